"""Compares the gateway with llama.cpp's own HTTP server: 16 streams at a time, closed loop, over loopback.

Arguments: the `bulkhead` program, the `llama-server` program, a file for the result (JSON), how many repetitions, the
model, and files made from it in other quantisations for the other server. Needs the Python package `llama-cpp-python`
for its version, and nothing else; `contended.py` measures with the same functions.

Both get the same texts, which no chat template touches, the same threads, and greedy sampling; both write all the tokens
that they are asked for. Before anything is timed, both answer every text, and the answers are compared. Each repetition
starts each server anew, warms it with texts that it does not meet again, and measures the servers in turn, forth and back;
ratios are of one repetition. The other server is measured with its defaults and with small batches, which shorten the
pauses of those who are decoding, and the better of the two counts, figure by figure.

This client runs on the processors that it measures. It keeps what arrives with the time and reads it when all is over;
how much of the processors it took is in the result, with what the server and everybody else took.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

STREAMS = 16
REQUESTS_EACH = 2
PROMPT_TOKENS = 500
# Answers of different lengths: with one length the streams of a server that computes whole prompts march in step, and nobody
# waits for them.
COMPLETION_TOKENS = (32, 48, 80, 96)
WARMUP_TEXTS = 4
WARMUP_TOKENS = 8
# A text that the model ends early on is no use; so many more than needed are looked at.
SPARE_TEXTS = 16
# Two engines round differently, so that greedy answers part sooner or later: half of them not before so many characters.
SAME_CHARACTERS_MEDIAN_MIN = 24
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 20
LOAD_SECONDS_MAX = 600
# Seven repetitions of nine sides.
SECONDS_MAX = 3 * 3600
TENANTS = ("acme", "globex")
TEXT = pathlib.Path(__file__).parent.parent / "golden/model/perplexity.txt"
VARIANTS = {"defaults": [], "small batches": ["--batch-size", "128", "--ubatch-size", "128"]}
# Figure: whether more is better.
FIGURES = {
    "output_tokens_per_second": True, "ttft_ms_p50": False, "ttft_ms_p95": False, "ttft_ms_p99": False,
    "itl_ms_p50": False, "itl_ms_p95": False, "itl_ms_p99": False, "itl_ms_max": False, "tpot_ms_p50": False,
}
# Of a run besides: nothing to compare, and what says whether the comparison is one.
FACTS = ("texts_per_token", "client_cpu_share", "server_cpu_share", "others_cpu_share")


def prompts(program, model, count, prompt_tokens):
    """Texts of exactly so many tokens that share no beginning: no cache of prefixes has anything of one from another."""
    with llama_server(program, model, ["--ctx-size", "128"]) as server:
        tokens = ask(server.port, "/tokenize", {"content": TEXT.read_text()})["tokens"]
        found, start_at, apart = [], 0, max(1, (len(tokens) - prompt_tokens) // (count + 20))
        while len(found) < count and start_at + prompt_tokens <= len(tokens):
            text = ask(server.port, "/detokenize", {"tokens": tokens[start_at : start_at + prompt_tokens]})["content"]
            # A piece may begin or end inside a character, or be other tokens when it stands alone.
            fits = len(ask(server.port, "/tokenize", {"content": text})["tokens"]) == prompt_tokens
            if fits:
                found.append(text)
            start_at += apart if fits else 1
        if len(found) < count:
            sys.exit("the text is too short for so many prompts")
        return found


def ask(port, path, body):
    data = json.dumps(body | {"add_special": False}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_SECONDS_MAX) as answer:
        return json.load(answer)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def threads():
    return len(os.sched_getaffinity(0))


class Arrivals(asyncio.Protocol):
    """Keeps what arrives, with the time of each piece; reads nothing of it."""

    def __init__(self):
        self.pieces, self.ended = [], asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.socket = transport.get_extra_info("socket")

    def data_received(self, data):
        self.pieces.append((time.perf_counter(), data))
        # A server that collects small pieces until the last one is acknowledged, as the other does, shall not wait for that.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if b"[DONE]" in data:
            self.connection_lost(None)

    def connection_lost(self, error):
        if not self.ended.done():
            self.ended.set_result(None)


class Answer:
    """One stream: the times of its texts from its sending, the text, and the tokens that the server counted."""

    def __init__(self, started, pieces):
        self.times, self.text, usage, done, head, rest = [], "", None, False, None, b""
        for at, data in pieces:
            # The frames of chunked transfer stand on lines of their own, between those of the events.
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                head = head or line
                payload = line[5:].strip() if line.startswith(b"data:") else b""
                if payload == b"[DONE]":
                    done = True
                elif payload:
                    event = json.loads(payload)
                    usage = event.get("usage") or usage
                    if event.get("choices") and event["choices"][0].get("text"):
                        self.times.append(at - started)
                        self.text += event["choices"][0]["text"]
        if b" 200 " not in (head or b"") or not done or not self.times or not usage:
            sys.exit(f"no answer, or not all of one: {b''.join(data for _, data in pieces)[:2000]!r}")
        self.prompt_tokens, self.tokens = usage["prompt_tokens"], usage["completion_tokens"]
        self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


class Server:
    """A server that has been started: where it listens, and with what it is asked."""

    def __init__(self, process, port, headers, extra):
        # Of each stream in turn.
        self.process, self.port, self.headers, self.extra = process, port, headers, extra

    async def stream(self, number, text, completion_tokens):
        """One request; its times and what arrived."""
        data = json.dumps(self.extra | {
            "prompt": text, "max_tokens": completion_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nconnection: close\r\n"
        head += self.headers[number % len(self.headers)] + f"content-length: {len(data)}\r\n\r\n"
        transport, arrivals = await asyncio.get_running_loop().create_connection(Arrivals, "127.0.0.1", self.port)
        started = time.perf_counter()
        transport.write(head.encode() + data)
        await arrivals.ended
        transport.close()
        return started, arrivals.pieces

    async def streams(self, texts, streams, lengths):
        """So many streams at once; each sends its next request when the last is answered. Every text is sent once."""
        arrived = {}

        async def client(number):
            for place in range(number, len(texts), streams):
                arrived[place] = await self.stream(number, texts[place], lengths[place])

        await asyncio.wait_for(asyncio.gather(*(client(number) for number in range(streams))), LOAD_SECONDS_MAX)
        return arrived

    def answers(self, texts, streams, lengths):
        """The answers in the order of the texts, how long all took together, and who used the processors meanwhile."""
        before, started = cpu_seconds(self.process), time.perf_counter()
        arrived = asyncio.run(self.streams(texts, streams, lengths))
        seconds = time.perf_counter() - started
        used = [late - early for early, late in zip(before, cpu_seconds(self.process))]
        answers = [Answer(*arrived[place]) for place in range(len(texts))]
        return answers, seconds, [share / (seconds * os.cpu_count()) for share in used]


def cpu_seconds(process):
    """Of this client, of the server, and of everybody else, with what the machine below took."""
    tick = os.sysconf("SC_CLK_TCK")
    own = time.process_time()
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    server = (int(fields[11]) + int(fields[12])) / tick
    machine = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    # Idle and waiting for the disk are the fourth and the fifth.
    return own, server, (sum(machine) - machine[3] - machine[4]) / tick - own - server


def lengths(completion_tokens, count):
    """How long each answer is. With 4 streams and with 16, every stream meets several lengths."""
    return [completion_tokens[(place + place // 4 + place // 16) % len(completion_tokens)] for place in range(count)]


def measured(server, texts, streams, prompt_tokens, completion_tokens, warmup, expected=None):
    """The figures of one server. With `expected`, each answer must be the beginning of it."""
    server.answers(warmup, len(warmup), [WARMUP_TOKENS] * len(warmup))
    wanted = lengths(completion_tokens, len(texts))
    answers, seconds, shares = server.answers(texts, streams, wanted)
    for answer, length in zip(answers, wanted):
        counted = (answer.prompt_tokens, answer.tokens, answer.cached_tokens)
        if counted != (prompt_tokens, length, 0):
            sys.exit(f"a server counted {counted} tokens of prompt, answer and cache, not {(prompt_tokens, length, 0)}")
    if expected and not all(whole.startswith(answer.text) for answer, whole in zip(answers, expected)):
        sys.exit("an answer is not what it was before")
    ttft = [answer.times[0] * 1e3 for answer in answers]
    itl = [(later - earlier) * 1e3 for answer in answers for earlier, later in zip(answer.times, answer.times[1:])]
    tpot = [(answer.times[-1] - answer.times[0]) * 1e3 / (answer.tokens - 1) for answer in answers]
    figures = {"output_tokens_per_second": sum(answer.tokens for answer in answers) / seconds}
    for name, values in {"ttft_ms": ttft, "itl_ms": itl, "tpot_ms": tpot}.items():
        figures |= {f"{name}_p{percent}": percentile(values, percent) for percent in (50, 95, 99)}
    texts_per_token = sum(len(answer.times) for answer in answers) / sum(answer.tokens for answer in answers)
    return figures | {"itl_ms_max": max(itl)} | dict(zip(FACTS, [texts_per_token, *shares]))


def percentile(values, percent):
    """The smallest of the values that so many percent of them do not exceed."""
    values = sorted(values)
    return values[max(0, -(-len(values) * percent // 100) - 1)]


def ends_with_its_parent():
    """Linux sends this process a signal when the one that started it is gone, however that ended."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextlib.contextmanager
def running(command):
    """A process that does not outlive this block."""
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(command, preexec_fn=ends_with_its_parent, **nothing)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def gateway(program, model, tenants):
    """The gateway with these tenants, whose streams have the given shapes; each stream is of the next of them."""
    with tempfile.TemporaryDirectory() as folder:
        port, headers, config = free_port(), [], []
        for name, shape in tenants.items():
            made = subprocess.run([program, "key", "new", name, "--data-dir", folder], check=True, capture_output=True, text=True)
            headers.append(f"authorization: Bearer {made.stderr.split()[-1]}\r\n")
            key_hash = re.search(r"[0-9a-f]{64}", made.stdout)[0]
            config.append(f'[[tenants]]\nname = "{name}"\nkey_hash = "{key_hash}"\n[scheduler.tenants.{name}]\nstream = "{shape}"\n')
        head = f'listen = "127.0.0.1:{port}"\ndata_dir = "."\nmodel = {json.dumps(os.path.abspath(model))}\nserved_name = "model"\n'
        path = pathlib.Path(folder, "bulkhead.toml")
        path.write_text(head + f"[engine]\nthreads = {threads()}\n" + "".join(config))
        with running([program, "serve", "--config", str(path)]) as process:
            ready(process, port, "/readyz")
            yield Server(process, port, headers, {"model": "model"})


@contextlib.contextmanager
def llama_server(program, model, arguments):
    """The other server. Its answers do not end early, no prompt is looked for in a cache, and sampling is as cheap as it can be."""
    port, own = free_port(), str(threads())
    command = [program, "--model", model, "--host", "127.0.0.1", "--port", str(port), "--threads", own, "--threads-batch", own]
    with running([*command, *arguments]) as process:
        ready(process, port, "/health")
        yield Server(process, port, [""], {"model": "default", "ignore_eos": True, "cache_prompt": False, "top_k": 1})


def ready(process, port, path):
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"this ended with {process.returncode} before it listened: {' '.join(process.args)}")
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=START_SECONDS_MAX).close()
        time.sleep(0.1)
    sys.exit(f"{process.args[0]} does not start")


def ours(program, model):
    return gateway(program, model, dict.fromkeys(TENANTS, "as-it-comes"))


def theirs(program, model, arguments, streams, prompt_tokens, completion_tokens):
    """With room for every stream, and without the copies that it keeps for later requests."""
    slot_tokens = -(-(prompt_tokens + max(completion_tokens)) // 128) * 128
    sizes = ["--parallel", str(streams), "--ctx-size", str(streams * slot_tokens), "--cache-ram", "0"]
    return llama_server(program, model, [*sizes, *arguments])


def answered(program, server, model, count, prompt_tokens, completion_tokens):
    """Texts whose answers have as many tokens as the longest, these answers of the gateway, and other texts to warm with."""
    texts = prompts(server, model, count + SPARE_TEXTS + WARMUP_TEXTS, prompt_tokens)
    warmup, texts = texts[-WARMUP_TEXTS:], texts[:-WARMUP_TEXTS]
    with ours(program, model) as own:
        answers, *_ = own.answers(texts, STREAMS, [max(completion_tokens)] * len(texts))
    kept = [(text, answer.text) for text, answer in zip(texts, answers) if answer.tokens == max(completion_tokens)][:count]
    if len(kept) < count:
        sys.exit("the model ends too many answers early")
    return [text for text, _ in kept], [answer for _, answer in kept], warmup


def alike(server, model, texts, expected, prompt_tokens, completion_tokens):
    """How much of the other server's answers is what it should be; ends when it cannot be the same question."""
    with theirs(server, model, [], STREAMS, prompt_tokens, completion_tokens) as peer:
        answers, *_ = peer.answers(texts, STREAMS, [max(completion_tokens)] * len(texts))
    same = [len(os.path.commonprefix([mine, other.text])) for mine, other in zip(expected, answers)]
    found = {
        "answers": len(texts), "same": sum(mine == other.text for mine, other in zip(expected, answers)),
        "same_characters_median": statistics.median(same), "characters_median": statistics.median(map(len, expected)),
    }
    if found["same_characters_median"] < SAME_CHARACTERS_MEDIAN_MIN:
        sys.exit(f"the servers do not answer the same question: {found}")
    return found


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def spreads(runs, figures):
    return {figure: spread([run[figure] for run in runs]) for figure in figures}


def forth_and_back(sides, repetition):
    """What is measured in turn: what came first comes last the next time."""
    return list(sides)[:: -1 if repetition % 2 else 1]


def ratios(own, peers):
    """Ours through the best of the peers, figure by figure, repetition by repetition."""
    result = {}
    for figure, more_is_better in FIGURES.items():
        medians = {name: statistics.median(run[figure] for run in runs) for name, runs in peers.items()}
        name = (max if more_is_better else min)(medians, key=medians.get)
        pairs = [mine[figure] / other[figure] for mine, other in zip(own, peers[name])]
        result[figure] = spread(pairs) | {"peer": name}
    return result


def bounded(seconds_max):
    """This client ends after so long, or when it is told to, and its servers with it."""
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, lambda *_: sys.exit("ended before all was measured"))
    signal.alarm(seconds_max)


def main():
    import llama_cpp

    program, server, output, repetitions, model, *others = sys.argv[1:]
    bounded(SECONDS_MAX)
    files = {"same file": model} | {pathlib.Path(file).stem.rsplit(".as-", 1)[-1]: file for file in others}
    sizes = (STREAMS, PROMPT_TOKENS, COMPLETION_TOKENS)
    texts, expected, warmup = answered(program, server, model, STREAMS * REQUESTS_EACH, *sizes[1:])
    compared = alike(server, model, texts, expected, *sizes[1:])
    load_before = os.getloadavg()[0]
    sides = {"bulkhead": (lambda: ours(program, model), expected)} | {
        f"{name}, {variant}": (lambda file=file, arguments=arguments: theirs(server, file, arguments, *sizes), None)
        for name, file in files.items() for variant, arguments in VARIANTS.items()
    }
    runs = {name: [] for name in sides}
    for repetition in range(int(repetitions)):
        for name in forth_and_back(sides, repetition):
            start, wanted = sides[name]
            with start() as started:
                runs[name].append(measured(started, texts, *sizes, warmup, wanted))
            print(f"repetition {repetition + 1}: {name} {runs[name][-1]}", flush=True)
    own = runs.pop("bulkhead")
    result = {
        "streams": STREAMS, "requests_each": REQUESTS_EACH, "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": COMPLETION_TOKENS, "repetitions": int(repetitions),
        "llama_cpp_python": llama_cpp.__version__, "alike": compared,
        "load_average_before": load_before, "load_average_after": os.getloadavg()[0],
        "bulkhead": spreads(own, (*FIGURES, *FACTS)),
        "peers": {name: spreads(of, (*FIGURES, *FACTS)) for name, of in runs.items()},
        "same_file": ratios(own, {name: of for name, of in runs.items() if name.startswith("same file")}),
        "best_peer": ratios(own, runs),
    }
    pathlib.Path(output).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
