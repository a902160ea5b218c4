"""Compares the gateway with llama.cpp's own HTTP server: 16 streams at a time, closed loop, over loopback.

Arguments: the `bulkhead` program, the `llama-server` program, a file for the result (JSON), how many repetitions, the
model, and files made from it in other quantisations for the other server. Needs the Python package `llama-cpp-python`,
for cutting prompts of an exact number of tokens, and nothing else.

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

import llama_cpp

STREAMS = 16
REQUESTS_EACH = 2
PROMPT_TOKENS = 500
COMPLETION_TOKENS = 64
# Room of a slot: prompt and completion, rounded up.
SLOT_TOKENS = 640
START_SECONDS_MAX = 120
TEXT = pathlib.Path(__file__).parent.parent / "golden/model/perplexity.txt"
VARIANTS = {"defaults": [], "small batches": ["--batch-size", "128", "--ubatch-size", "128"]}
# Figure: whether more is better.
FIGURES = {"output_tokens_per_second": True, "ttft_ms_p50": False, "itl_ms_max": False}


def prompts(model):
    """Texts of exactly PROMPT_TOKENS tokens that share no beginning."""
    vocabulary = llama_cpp.Llama(model, vocab_only=True, verbose=False)
    tokens = vocabulary.tokenize(TEXT.read_bytes(), add_bos=False, special=False)
    found, start = [], 0
    while len(found) < STREAMS:
        piece = vocabulary.detokenize(tokens[start : start + PROMPT_TOKENS])
        start += 30
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            continue
        if len(vocabulary.tokenize(piece, add_bos=False, special=False)) == PROMPT_TOKENS:
            found.append(text)
            start += PROMPT_TOKENS - 30
    return found


async def stream(host, port, headers, body):
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
    if usage["prompt_tokens"] != PROMPT_TOKENS:
        sys.exit(f"the prompt had {usage['prompt_tokens']} tokens for this server, not {PROMPT_TOKENS}")
    return times, usage["completion_tokens"]


async def load(host, port, headers, extra, texts):
    """All streams at once; each sends its next request when the last is answered."""
    results = []

    async def client(number):
        for turn in range(REQUESTS_EACH):
            body = {
                "model": extra.get("model", "default"), "prompt": texts[(number + turn * 7) % STREAMS],
                "max_tokens": COMPLETION_TOKENS, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}, **extra,
            }
            results.append(await stream(host, port, headers, body))

    started = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(STREAMS)))
    seconds = time.perf_counter() - started
    gaps = [later - earlier for times, _ in results for earlier, later in zip(times, times[1:])]
    return {
        "output_tokens_per_second": sum(tokens for _, tokens in results) / seconds,
        "ttft_ms_p50": statistics.median(times[0] for times, _ in results) * 1e3,
        "itl_ms_max": max(gaps) * 1e3,
    }


def ours(program, model, texts):
    command = [program, "demo", "--json", "--listen", "127.0.0.1:0", "--model", model]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        ready = json.loads(process.stdout.readline())
        host, port = ready["address"].removeprefix("http://").split(":")
        headers = {"authorization": f"Bearer {ready['tenants'][0]['key']}"}
        return asyncio.run(load(host, int(port), headers, {"model": ready["model"]}, texts))
    finally:
        process.terminate()
        process.wait()


def theirs(program, model, arguments, texts):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = str(len(os.sched_getaffinity(0)))
    command = [
        program, "--model", model, "--host", "127.0.0.1", "--port", str(port), "--threads", threads,
        "--threads-batch", threads, "--parallel", str(STREAMS), "--ctx-size", str(STREAMS * SLOT_TOKENS), *arguments,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(ready(process, port))
        # Not to end early, and not to take a prompt of an earlier turn out of its cache: neither does the gateway.
        extra = {"ignore_eos": True, "cache_prompt": False}
        return asyncio.run(load("127.0.0.1", port, {}, extra, texts))
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
    program, server, output, repetitions, model, *others = sys.argv[1:]
    files = {"same file": model} | {pathlib.Path(file).stem.rsplit(".as-", 1)[-1]: file for file in others}
    texts = prompts(model)
    load_before = os.getloadavg()[0]
    own, peers = [], {f"{name}, {variant}": [] for name in files for variant in VARIANTS}
    for repetition in range(int(repetitions)):
        own.append(ours(program, model, texts))
        print(f"repetition {repetition + 1}: bulkhead {own[-1]}", flush=True)
        for name, file in files.items():
            for variant, arguments in VARIANTS.items():
                run = theirs(server, file, arguments, texts)
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


main()
