# The peer of `bulkhead bench engine`: times llama.cpp through its C interface, without Python's share.
# Arguments: model, threads. Says its version, then answers each line of input with seconds:
#   prefill TOKEN...            one pass over the prompt
#   decode COUNT TOKEN...       COUNT single-token passes after the prompt, which is not timed
#
# The peer is measured at its best. Its repacked weights ("extra buffers") decode faster than those of the file, but on
# virtual machines that announce AMX and do not permit it their batched kernels end the process. A child tries that
# first; where it dies, prompts are timed on the weights of the file and single tokens on the repacked ones.
import ctypes
import os
import sys
import time

import llama_cpp as l

path, threads = sys.argv[1], int(sys.argv[2])


class Engine:
    def __init__(self, repacked):
        l.llama_backend_init()
        self.quiet = l.llama_log_callback(lambda level, text, data: None)
        l.llama_log_set(self.quiet, ctypes.c_void_p(0))
        params = l.llama_model_default_params()
        params.use_extra_bufts = repacked
        self.model = l.llama_load_model_from_file(path.encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        params = l.llama_context_default_params()
        params.n_ctx = 2048
        params.n_batch = 512
        params.n_ubatch = 512
        params.n_threads = threads
        params.n_threads_batch = threads
        self.context = l.llama_new_context_with_model(self.model, params)
        if not self.context:
            sys.exit("llama.cpp cannot make a context")

    def clear(self):
        l.llama_memory_clear(l.llama_get_memory(self.context), True)

    def run(self, tokens):
        array = (l.llama_token * len(tokens))(*tokens)
        if l.llama_decode(self.context, l.llama_batch_get_one(array, len(tokens))) != 0:
            sys.exit("llama.cpp failed to decode")
        l.llama_synchronize(self.context)


def repacked_takes_batches():
    child = os.fork()
    if child == 0:
        # It may die here, and says so by that alone.
        Engine(repacked=True).run([1, 2, 3, 4])
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


batches = repacked_takes_batches()
single = Engine(repacked=True)
prompts = single if batches else Engine(repacked=False)
how = "repacked weights" if batches else "prompts on the file's weights, single tokens on repacked ones"
print(f"{l.__version__} ({how})", flush=True)
for line in sys.stdin:
    command, *numbers = line.split()
    numbers = [int(number) for number in numbers]
    if command == "prefill":
        prompts.clear()
        start = time.perf_counter()
        prompts.run(numbers)
        seconds = time.perf_counter() - start
    else:
        count, *prompt = numbers
        single.clear()
        for piece in [prompt] if batches else [[token] for token in prompt]:
            single.run(piece)
        seconds = 0.0
        for _ in range(count):
            # Any token costs the same.
            start = time.perf_counter()
            single.run(prompt[-1:])
            seconds += time.perf_counter() - start
    print(f"{seconds:.6f}", flush=True)
