"""What streams have of the gateway over loopback: beside llama.cpp's own HTTP server, and in constant shape.

Arguments: the `bulkhead` program, llama.cpp's `llama-server`, the model, how many repetitions, and which parts, with commas
between them: `served`, `shaped`. Prints JSON with a member for each part. Needs nothing but Python.

`served`: 4 and 16 streams at a time, closed loop, the same file and the same number of threads for both servers. Each repetition
starts each server anew and measures them in turn; ratios are of one repetition. The other server is measured with its
defaults and with small batches, and the better of the two counts, figure by figure. `shaped`: two tenants of one gateway in
turn, whose streams leave as they come and in events of one size in fixed periods.
"""

import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import served

# Streams, and requests of each.
SIZES = {4: 2, 16: 1}
PROMPT_TOKENS = 200
COMPLETION_TOKENS = 60
SHAPED_STREAMS = 4
SHAPED_REQUESTS = 2
TENANTS = {"plain": "as-it-comes", "shaped": "constant-shape"}


def compared(ours, theirs, streams, requests):
    """Medians of both, and ours through the best of theirs."""
    figures = {}
    best = served.ratios(ours, theirs)
    for figure in served.FIGURES:
        peer = best[figure]["peer"]
        figures[figure] = {
            "bulkhead": served.spread([run[figure] for run in ours]),
            "peer": served.spread([run[figure] for run in theirs[peer]]), "peer_name": peer,
            "ratio": {part: best[figure][part] for part in ("median", "min", "max")},
        }
    return {"streams": streams, "requests_each": requests, "figures": figures}


def beside_a_peer(program, server, model, repetitions):
    rows = []
    for streams, requests in SIZES.items():
        texts = served.prompts(server, model, streams * requests, PROMPT_TOKENS)
        sizes = (streams, PROMPT_TOKENS, COMPLETION_TOKENS)
        own, peers = [], {variant: [] for variant in served.VARIANTS}
        for _ in range(repetitions):
            own.append(served.ours(program, model, texts, *sizes))
            for variant, arguments in served.VARIANTS.items():
                peers[variant].append(served.theirs(server, model, arguments, texts, *sizes))
        rows.append(compared(own, peers, streams, requests))
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS, "sizes": rows}


def in_constant_shape(program, server, model, repetitions):
    count = SHAPED_STREAMS * SHAPED_REQUESTS
    texts = served.prompts(server, model, count * (repetitions + 1), PROMPT_TOKENS)
    runs = {name: [] for name in TENANTS}
    with tempfile.TemporaryDirectory() as folder:
        port, keys, config = served.free_port(), {}, []
        for name, shape in TENANTS.items():
            made = subprocess.run([program, "key", "new", name, "--data-dir", folder], check=True, capture_output=True, text=True)
            keys[name] = made.stderr.split()[-1]
            key_hash = re.search(r"[0-9a-f]{64}", made.stdout)[0]
            config.append(f'[[tenants]]\nname = "{name}"\nkey_hash = "{key_hash}"\n[scheduler.tenants.{name}]\nstream = "{shape}"\n')
        head = f'listen = "127.0.0.1:{port}"\ndata_dir = "."\nmodel = {json.dumps(os.path.abspath(model))}\nserved_name = "model"\n'
        path = pathlib.Path(folder, "bulkhead.toml")
        path.write_text(head + "".join(config))
        process = subprocess.Popen([program, "serve", "--config", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(listening(process, port))
            # The first repetition warms caches and is not counted.
            for repetition in range(repetitions + 1):
                part = texts[repetition * count : (repetition + 1) * count]
                for name in sorted(TENANTS, reverse=repetition % 2 == 1):
                    headers = {"authorization": f"Bearer {keys[name]}"}
                    load = served.load("127.0.0.1", port, headers, {"model": "model"}, part, SHAPED_STREAMS, PROMPT_TOKENS, COMPLETION_TOKENS)
                    run = asyncio.run(load)
                    if repetition > 0:
                        runs[name].append(run)
        finally:
            process.terminate()
            process.wait()
    figures = {}
    for figure in served.FIGURES:
        plain, shaped = ([run[figure] for run in runs[name]] for name in TENANTS)
        ratios = [ours / theirs for ours, theirs in zip(shaped, plain)]
        figures[figure] = {"plain": served.spread(plain), "shaped": served.spread(shaped), "ratio": served.spread(ratios)}
    return {"streams": SHAPED_STREAMS, "prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS, "figures": figures}


async def listening(process, port):
    deadline = time.monotonic() + served.START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            return writer.close()
        except OSError:
            await asyncio.sleep(0.05)
    sys.exit("the gateway does not start")


def main():
    program, server, model, repetitions, parts = sys.argv[1:]
    measures = {"served": beside_a_peer, "shaped": in_constant_shape}
    result = {}
    for part in parts.split(","):
        print(f"measuring {part}", file=sys.stderr, flush=True)
        begun, load = time.monotonic(), os.getloadavg()[0]
        result[part] = measures[part](program, server, model, int(repetitions))
        result[part] |= {"took_s": time.monotonic() - begun, "load_average_before": load, "load_average_after": os.getloadavg()[0]}
    print(json.dumps(result))


main()
