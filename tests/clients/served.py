"""Compares the gateway with llama.cpp's own HTTP server: 16 streams at a time, closed loop, over loopback.

Arguments: the `bulkhead` program, the `llama-server` program, a file for the result (JSON), how many repetitions, the
model, and files made from it in other quantisations for the other server. Needs the Python package `llama-cpp-python`
for its version, and nothing else; `contended.py` measures with the same functions.

Each repetition starts each server anew and measures them in turn; ratios are of one repetition. The other server is
measured with its defaults and with small batches, which shorten the pauses of those who are decoding, and the better of
the two counts, figure by figure.
"""

import asyncio
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

STREAMS = 16
REQUESTS_EACH = 2
PROMPT_TOKENS = 500
COMPLETION_TOKENS = 64
START_SECONDS_MAX = 120
TEXT = pathlib.Path(__file__).parent.parent / "golden/model/perplexity.txt"
VARIANTS = {"defaults": [], "small batches": ["--batch-size", "128", "--ubatch-size", "128"]}
# Figure: whether more is better.
FIGURES = {
    "output_tokens_per_second": True, "ttft_ms_p50": False, "ttft_ms_p95": False, "ttft_ms_p99": False,
    "itl_ms_p50": False, "itl_ms_p95": False, "itl_ms_p99": False, "itl_ms_max": False,
}


def prompts(program, model, count, prompt_tokens):
    """Texts of exactly so many tokens that share no beginning: no cache of prefixes has anything of one from another."""
    port = free_port()
    process = start(program, model, port, ["--ctx-size", "128"])
    try:
        asyncio.run(ready(process, port))
        tokens = ask(port, "/tokenize", {"content": TEXT.read_text()})["tokens"]
        found, start_at, apart = [], 0, max(1, (len(tokens) - prompt_tokens) // (count + 20))
        while len(found) < count and start_at + prompt_tokens <= len(tokens):
            text = ask(port, "/detokenize", {"tokens": tokens[start_at : start_at + prompt_tokens]})["content"]
            # A piece may begin or end inside a character, or be other tokens when it stands alone.
            fits = len(ask(port, "/tokenize", {"content": text})["tokens"]) == prompt_tokens
            if fits:
                found.append(text)
            start_at += apart if fits else 1
        if len(found) < count:
            sys.exit("the text is too short for so many prompts")
        return found
    finally:
        process.terminate()
        process.wait()


def ask(port, path, body):
    data = json.dumps(body | {"add_special": False}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_SECONDS_MAX) as answer:
        return json.load(answer)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def stream(host, port, headers, body, prompt_tokens):
    """One request; gives the times of its pieces of text from its sending, and the tokens that the server counted."""
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    reader, writer = await asyncio.open_connection(host, port)
    started = time.perf_counter()
    writer.write(head.encode() + f"content-length: {len(data)}\r\n\r\n".encode() + data)
    status = await reader.readline()
    if b" 200 " not in status:
        sys.exit(f"the server answered {status!r}: {(await reader.read(2000))!r}")
    times, usage, done = [], None, False
    # The frames of chunked transfer stand on lines of their own, between those of the events.
    while line := await reader.readline():
        if not line.startswith(b"data:"):
            continue
        payload = line[5:].strip()
        if payload == b"[DONE]":
            done = True
            continue
        event = json.loads(payload)
        if event.get("usage"):
            usage = event["usage"]
        if event.get("choices") and event["choices"][0].get("text"):
            times.append(time.perf_counter() - started)
    writer.close()
    if not done or not times or not usage:
        sys.exit("a stream was cut or has no usage")
    if usage["prompt_tokens"] != prompt_tokens:
        sys.exit(f"the prompt had {usage['prompt_tokens']} tokens for this server, not {prompt_tokens}")
    return times, usage["completion_tokens"]


async def load(host, port, headers, extra, texts, streams, prompt_tokens, completion_tokens):
    """So many streams at once; each sends its next request when the last is answered. Every text is sent once."""
    results = []

    async def client(number):
        for text in texts[number::streams]:
            body = {
                "model": extra.get("model", "default"), "prompt": text,
                "max_tokens": completion_tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}, **extra,
            }
            results.append(await stream(host, port, headers, body, prompt_tokens))

    started = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(streams)))
    seconds = time.perf_counter() - started
    ttft = [times[0] * 1e3 for times, _ in results]
    itl = [(later - earlier) * 1e3 for times, _ in results for earlier, later in zip(times, times[1:])]
    figures = {"output_tokens_per_second": sum(tokens for _, tokens in results) / seconds}
    for name, values in {"ttft_ms": ttft, "itl_ms": itl}.items():
        figures |= {f"{name}_p{percent}": percentile(values, percent) for percent in (50, 95, 99)}
    return figures | {"itl_ms_max": max(itl)}


def percentile(values, percent):
    """The smallest of the values that so many percent of them do not exceed."""
    values = sorted(values)
    return values[max(0, -(-len(values) * percent // 100) - 1)]


def ours(program, model, texts, *sizes):
    command = [program, "demo", "--json", "--listen", "127.0.0.1:0", "--model", model]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        ready = json.loads(process.stdout.readline())
        host, port = ready["address"].removeprefix("http://").split(":")
        headers = {"authorization": f"Bearer {ready['tenants'][0]['key']}"}
        return asyncio.run(load(host, int(port), headers, {"model": ready["model"]}, texts, *sizes))
    finally:
        process.terminate()
        process.wait()


def start(program, model, port, arguments):
    threads = str(len(os.sched_getaffinity(0)))
    command = [
        program, "--model", model, "--host", "127.0.0.1", "--port", str(port), "--threads", threads,
        "--threads-batch", threads, *arguments,
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def theirs(program, model, arguments, texts, streams, prompt_tokens, completion_tokens):
    port = free_port()
    slot_tokens = -(-(prompt_tokens + completion_tokens) // 128) * 128
    sizes = ["--parallel", str(streams), "--ctx-size", str(streams * slot_tokens)]
    process = start(program, model, port, [*sizes, *arguments])
    try:
        asyncio.run(ready(process, port))
        # Not to end early, and not to take a prompt of an earlier turn out of its cache: the gateway gets each once.
        extra = {"ignore_eos": True, "cache_prompt": False}
        return asyncio.run(load("127.0.0.1", port, {}, extra, texts, streams, prompt_tokens, completion_tokens))
    finally:
        process.terminate()
        process.wait()


async def ready(process, port):
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit("the other server has ended: it does not run on this machine")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            status = await reader.readline()
            writer.close()
            if b" 200 " in status:
                return
        except OSError:
            pass
        await asyncio.sleep(0.2)
    sys.exit("the other server does not start")


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(own, peers):
    """Ours through the best of the peers, figure by figure, repetition by repetition."""
    result = {}
    for figure, more_is_better in FIGURES.items():
        medians = {name: statistics.median(run[figure] for run in runs) for name, runs in peers.items()}
        name = (max if more_is_better else min)(medians, key=medians.get)
        pairs = [mine[figure] / other[figure] for mine, other in zip(own, peers[name])]
        result[figure] = spread(pairs) | {"peer": name}
    return result


def main():
    import llama_cpp

    program, server, output, repetitions, model, *others = sys.argv[1:]
    files = {"same file": model} | {pathlib.Path(file).stem.rsplit(".as-", 1)[-1]: file for file in others}
    texts = prompts(server, model, STREAMS * REQUESTS_EACH, PROMPT_TOKENS)
    sizes = (STREAMS, PROMPT_TOKENS, COMPLETION_TOKENS)
    load_before = os.getloadavg()[0]
    own, peers = [], {f"{name}, {variant}": [] for name in files for variant in VARIANTS}
    for repetition in range(int(repetitions)):
        own.append(ours(program, model, texts, *sizes))
        print(f"repetition {repetition + 1}: bulkhead {own[-1]}", flush=True)
        for name, file in files.items():
            for variant, arguments in VARIANTS.items():
                run = theirs(server, file, arguments, texts, *sizes)
                peers[f"{name}, {variant}"].append(run)
                print(f"repetition {repetition + 1}: llama-server, {name}, {variant} {run}", flush=True)
    figures = lambda runs: {figure: spread([run[figure] for run in runs]) for figure in FIGURES}
    result = {
        "streams": STREAMS, "requests_each": REQUESTS_EACH, "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": COMPLETION_TOKENS, "repetitions": int(repetitions),
        "llama_cpp_python": llama_cpp.__version__,
        "load_average_before": load_before, "load_average_after": os.getloadavg()[0],
        "bulkhead": figures(own), "peers": {name: figures(runs) for name, runs in peers.items()},
        "same_file": ratios(own, {name: runs for name, runs in peers.items() if name.startswith("same file")}),
        "best_peer": ratios(own, peers),
    }
    pathlib.Path(output).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
