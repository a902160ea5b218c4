#!/usr/bin/env python3
"""Makes perplexity.json of this folder with llama.cpp: how well the default model predicts perplexity.txt.

Run by hand, not by CI:
    python3 -m venv V && V/bin/pip install llama-cpp-python==0.3.36   # compiles; minutes
    V/bin/python tests/golden/model/make_perplexity.py MODEL.gguf

The text is Isaac Newton's Opticks, fourth edition, London 1730, Queries 1 to 27 of the third book: in the public domain.
Its tokens are cut into windows; each is computed on its own, and every token of it but the first is scored by the
logits before it. Weights as they are in the file, no flash attention, f16 KV cache, as in make_golden.py.
"""

import hashlib
import json
import struct
import sys
from pathlib import Path

import llama_cpp
import numpy

HERE = Path(__file__).parent
WINDOW = 512

defaults = llama_cpp.llama_model_default_params


def weights_as_in_the_file():
    parameters = defaults()
    parameters.use_extra_bufts = False
    return parameters


llama_cpp.llama_cpp.llama_model_default_params = weights_as_in_the_file
llama = llama_cpp.Llama(
    sys.argv[1], n_ctx=WINDOW, n_batch=WINDOW, n_threads=1, n_threads_batch=1, logits_all=True, flash_attn=False,
    verbose=False,
)
tokens = llama.tokenize((HERE / "perplexity.txt").read_bytes(), add_bos=False, special=False)
windows = []
for start in range(0, len(tokens) - 1, WINDOW):
    window = tokens[start : start + WINDOW]
    llama.reset()
    llama.eval(window)
    rows = llama.scores[: len(window) - 1].astype(numpy.float64)
    top = rows.max(axis=1, keepdims=True)
    log_sums = numpy.log(numpy.exp(rows - top).sum(axis=1)) + top[:, 0]
    losses = log_sums - rows[numpy.arange(len(window) - 1), window[1:]]
    windows.append({"scored": len(losses), "loss": round(float(losses.sum()), 4)})
    print(f"{start + len(window)} of {len(tokens)} tokens", flush=True)
scored = sum(window["scored"] for window in windows)
golden = {
    "llama_cpp_python": llama_cpp.__version__,
    "tokens": len(tokens),
    "tokens_sha256": hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest(),
    "window": WINDOW,
    "perplexity": round(float(numpy.exp(sum(window["loss"] for window in windows) / scored)), 5),
    "windows": windows,
}
(HERE / "perplexity.json").write_text(json.dumps(golden, indent=1) + "\n")
