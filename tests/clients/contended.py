"""What streams have of the gateway over loopback: beside llama.cpp's own HTTP server, and in constant shape.

Arguments: the `bulkhead` program, llama.cpp's `llama-server`, the model, how many repetitions, and which parts, with commas
between them: `served`, `shaped`. Prints JSON with a member for each part. Needs nothing but Python; how it measures is told in
`served.py`.

`served`: 4 and 16 streams at a time, closed loop, the same file and the same number of threads for both servers; the
gateway's streams are of two tenants. `shaped`: two tenants of one gateway in turn, whose streams leave as they come and in
events of one size in fixed periods.
"""

import json
import os
import sys
import time

import served

# Streams at a time. Both sizes answer the same texts.
SIZES = (4, 16)
TEXTS = 32
# Of these, the other server's answers are compared with the gateway's before anything is timed.
COMPARED_TEXTS = 16
PROMPT_TOKENS = 200
COMPLETION_TOKENS = (30, 50, 70, 90)
SHAPED_STREAMS = 4
SHAPED_TEXTS = 8
# Three repetitions of everything.
SECONDS_MAX = 3600
SHAPES = {"plain": "as-it-comes", "shaped": "constant-shape"}


def compared(ours, theirs, streams, texts):
    """Medians of both, and ours through the best of theirs."""
    figures = {}
    best = served.ratios(ours, theirs)
    for figure in served.FIGURES:
        peer = best[figure].pop("peer")
        figures[figure] = {
            "bulkhead": served.spread([run[figure] for run in ours]),
            "peer": served.spread([run[figure] for run in theirs[peer]]), "peer_name": peer, "ratio": best[figure],
        }
    facts = {name: served.spreads(runs, served.FACTS) for name, runs in {"bulkhead": ours, **theirs}.items()}
    return {"streams": streams, "requests_each": texts // streams, "figures": figures, "facts": facts}


def beside_a_peer(program, server, model, repetitions):
    tokens = (PROMPT_TOKENS, COMPLETION_TOKENS)
    texts, expected, warmup = served.answered(program, server, model, TEXTS, *tokens)
    alike = served.alike(server, model, texts[:COMPARED_TEXTS], expected[:COMPARED_TEXTS], *tokens)
    say(f"answers are compared: {alike}")
    runs = {streams: {name: [] for name in ("bulkhead", *served.VARIANTS)} for streams in SIZES}
    for repetition in range(repetitions):
        for streams in SIZES:
            sides = {"bulkhead": (served.ours(program, model), expected)} | {
                variant: (served.theirs(server, model, arguments, streams, *tokens), None)
                for variant, arguments in served.VARIANTS.items()
            }
            for name in served.forth_and_back(sides, repetition):
                side, wanted = sides[name]
                with side as started:
                    run = served.measured(started, texts, streams, *tokens, warmup, wanted)
                runs[streams][name].append(run)
                say(f"{streams} streams, {name}: {run}")
    rows = []
    for streams, of in runs.items():
        own = of.pop("bulkhead")
        rows.append(compared(own, of, streams, TEXTS))
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS, "alike": alike, "sizes": rows}


def in_constant_shape(program, server, model, repetitions):
    tokens = (PROMPT_TOKENS, COMPLETION_TOKENS)
    texts, expected, warmup = served.answered(program, server, model, SHAPED_TEXTS * repetitions, *tokens)
    runs = {name: [] for name in SHAPES}
    # One gateway for both, whose caches are each tenant's own: a repetition's texts are new to both.
    with served.gateway(program, model, SHAPES) as started:
        headers = dict(zip(SHAPES, started.headers))
        for repetition in range(repetitions):
            part = slice(repetition * SHAPED_TEXTS, (repetition + 1) * SHAPED_TEXTS)
            for name in served.forth_and_back(SHAPES, repetition):
                started.headers = [headers[name]]
                run = served.measured(started, texts[part], SHAPED_STREAMS, *tokens, warmup, expected[part])
                runs[name].append(run)
                say(f"{SHAPED_STREAMS} streams, {name}: {run}")
    figures = {}
    for figure in served.FIGURES:
        plain, shaped = ([run[figure] for run in runs[name]] for name in SHAPES)
        ratios = [with_it / without for with_it, without in zip(shaped, plain)]
        figures[figure] = {"plain": served.spread(plain), "shaped": served.spread(shaped), "ratio": served.spread(ratios)}
    facts = {name: served.spreads(of, served.FACTS) for name, of in runs.items()}
    sizes = {"streams": SHAPED_STREAMS, "prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS}
    return sizes | {"figures": figures, "facts": facts}


def say(line):
    print(line, file=sys.stderr, flush=True)


def main():
    program, server, model, repetitions, parts = sys.argv[1:]
    served.bounded(SECONDS_MAX)
    measures = {"served": beside_a_peer, "shaped": in_constant_shape}
    result = {}
    for part in parts.split(","):
        say(f"measuring {part}")
        begun, load = time.monotonic(), os.getloadavg()[0]
        result[part] = measures[part](program, server, model, int(repetitions))
        result[part] |= {"took_s": time.monotonic() - begun, "load_average_before": load, "load_average_after": os.getloadavg()[0]}
    print(json.dumps(result))


main()
