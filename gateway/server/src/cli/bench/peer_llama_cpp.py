# The peer of `bulkhead bench engine`: times llama.cpp through its C interface, without Python's share.
# Arguments: model, threads. Says its version, then answers each line of input with seconds:
#   prefill TOKEN...            one pass over the prompt
#   decode COUNT TOKEN...       COUNT single-token passes after the prompt, which is not timed
import ctypes
import sys
import time

import llama_cpp as l

path, threads = sys.argv[1], int(sys.argv[2])
l.llama_backend_init()
quiet = l.llama_log_callback(lambda level, text, data: None)
l.llama_log_set(quiet, ctypes.c_void_p(0))
params = l.llama_model_default_params()
# Its AMX kernels end the process on virtual machines that announce AMX and do not permit it.
params.use_extra_bufts = False
model = l.llama_load_model_from_file(path.encode(), params)
if not model:
    sys.exit(f"llama.cpp cannot load {path}")
params = l.llama_context_default_params()
params.n_ctx = 2048
params.n_batch = 512
params.n_ubatch = 512
params.n_threads = threads
params.n_threads_batch = threads
context = l.llama_new_context_with_model(model, params)
if not context:
    sys.exit("llama.cpp cannot make a context")
vocabulary = l.llama_n_vocab(l.llama_model_get_vocab(model))


def run(tokens):
    array = (l.llama_token * len(tokens))(*tokens)
    if l.llama_decode(context, l.llama_batch_get_one(array, len(tokens))) != 0:
        sys.exit("llama.cpp failed to decode")
    l.llama_synchronize(context)


def greedy():
    logits = l.llama_get_logits_ith(context, -1)
    return max(range(0, vocabulary, 997), key=lambda token: logits[token])


print(f"{l.__version__} (use_extra_bufts=false)", flush=True)
for line in sys.stdin:
    command, *numbers = line.split()
    numbers = [int(number) for number in numbers]
    l.llama_memory_clear(l.llama_get_memory(context), True)
    if command == "prefill":
        start = time.perf_counter()
        run(numbers)
        seconds = time.perf_counter() - start
    else:
        count, *prompt = numbers
        run(prompt)
        seconds = 0.0
        for _ in range(count):
            # Any token of the vocabulary costs the same; choosing it is not timed.
            token = greedy()
            start = time.perf_counter()
            run([token])
            seconds += time.perf_counter() - start
    print(f"{seconds:.6f}", flush=True)
