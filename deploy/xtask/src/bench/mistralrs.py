# Arguments: model file, text file, repetitions. Prints one line of JSON: speeds by mistral.rs's own clock.
#
# Its Python package takes text, so prompts have about as many tokens as wanted; speeds are per token that it counted.
import importlib.metadata
import json
import pathlib
import statistics
import sys

from mistralrs import CompletionRequest, Runner, Which

model, text, repetitions = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text(), int(sys.argv[3])
# Characters of the text that make about so many tokens.
PROMPTS = {"prefill_512": 2020, "prefill_2048": 8100}
DECODED = 64

which = Which.GGUF(quantized_model_id=str(model.parent), quantized_filename=model.name)
runner = Runner(which=which, prefix_cache_n=0)


def usage(prompt, max_tokens):
    request = CompletionRequest(prompt, model="default", max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return runner.send_completion_request(request).usage


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


figures = {}
# The first of each kind warms up; every prompt begins elsewhere, so that none is found in a cache.
for figure, characters in PROMPTS.items():
    uses = [usage(text[start : start + characters], 1) for start in range(0, 40 * (repetitions + 1), 40)]
    figures[figure] = spread([use.prompt_tokens / use.total_prompt_time_sec for use in uses[1:]])
uses = [usage(text[start : start + 120], DECODED) for start in range(0, 40 * (repetitions + 1), 40)]
figures["decode_b1"] = spread([use.completion_tokens / use.total_completion_time_sec for use in uses[1:]])
print(json.dumps({"name": "mistralrs", "version": importlib.metadata.version("mistralrs"), "tokens_per_second": figures}))
