# The peer of `bulkhead bench engine`: times llama.cpp through its C interface, without Python's share.
# Arguments: model, threads. Says what it is in one line of JSON, then answers each line of input with seconds and the
# settings that it used:
#   prefill TOKEN...                  one pass over the prompt
#   decode BATCH COUNT TOKEN...       COUNT passes of one token for each of BATCH sequences, after the prompt, which is
#                                     computed for each of them and not timed
#
# The peer is measured at its best: before the first timing of a kind every combination of its settings that can matter
# is tried, and the fastest is kept. Its repacked weights ("extra buffers") end the process on virtual machines that
# announce AMX and do not permit it, in passes of several tokens; a child tries that first, and where it dies they are
# used for passes of single tokens alone.
import ctypes
import itertools
import json
import os
import sys
import time

import llama_cpp as l

path, threads = sys.argv[1], int(sys.argv[2])
# llama.cpp's own defaults.
N_BATCH, N_UBATCH = 2048, 512
# Prompt and passes of a trial.
TRIAL_TOKENS, TRIAL_COUNT = 512, 8

l.llama_backend_init()
quiet = l.llama_log_callback(lambda level, text, data: None)
l.llama_log_set(quiet, ctypes.c_void_p(0))


def load(repacked):
    params = l.llama_model_default_params()
    params.use_extra_bufts = repacked
    model = l.llama_load_model_from_file(path.encode(), params)
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    return model


class Context:
    """Room for `sequences` of `tokens` each, with one combination of settings."""

    def __init__(self, model, sequences, tokens, flash, unified):
        params = l.llama_context_default_params()
        params.n_seq_max = sequences
        params.n_ctx = sequences * (-(-tokens // 256) * 256)
        params.n_batch = N_BATCH
        params.n_ubatch = N_UBATCH
        params.n_threads = threads
        params.n_threads_batch = threads
        params.flash_attn_type = l.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else l.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.kv_unified = unified
        params.no_perf = True
        self.pointer = l.llama_init_from_model(model, params)
        if not self.pointer:
            sys.exit("llama.cpp cannot make a context")
        self.batch = l.llama_batch_init(N_BATCH, 0, 1)

    def __del__(self):
        l.llama_batch_free(self.batch)
        l.llama_free(self.pointer)

    def clear(self):
        l.llama_memory_clear(l.llama_get_memory(self.pointer), False)

    def fill(self, rows):
        """Rows of (token, position, sequence, whether logits are wanted)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, logits

    def run(self):
        """Computes what was filled in; gives seconds."""
        start = time.perf_counter()
        code = l.llama_decode(self.pointer, self.batch)
        l.llama_synchronize(self.pointer)
        seconds = time.perf_counter() - start
        if code != 0:
            sys.exit(f"llama.cpp failed to decode ({code})")
        return seconds

    def prefill(self, tokens, sequence=0, at_once=N_BATCH):
        seconds = 0.0
        for start in range(0, len(tokens), at_once):
            piece = tokens[start : start + at_once]
            last = len(tokens) - 1
            self.fill([(token, start + i, sequence, start + i == last) for i, token in enumerate(piece)])
            seconds += self.run()
        return seconds

    def decode(self, batch, count, prompt, at_once):
        for sequence in range(batch):
            self.prefill(prompt, sequence, at_once)
        seconds = 0.0
        for step in range(count):
            # Any token costs the same.
            self.fill([(prompt[(step + s) % len(prompt)], len(prompt) + step, s, True) for s in range(batch)])
            seconds += self.run()
        return seconds


def repacked_takes_batches():
    child = os.fork()
    if child == 0:
        # It may die here, and says so by that alone.
        Context(load(True), 1, 256, True, False).prefill([1, 2, 3, 4] * 16)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


repacked_batches = repacked_takes_batches()
models = {"file's weights": load(False), "repacked weights": load(True)}
# The one context in use: (what it is for, the context).
current = (None, None)
# The best settings for (command, batch, rough size).
chosen = {}


def context(sequences, tokens, weights, flash, unified):
    global current
    key = (sequences, -(-tokens // 256), weights, flash, unified)
    if current[0] != key:
        current = (None, None)
        current = (key, Context(models[weights], sequences, tokens, flash, unified))
    current[1].clear()
    return current[1]


def best(kind, sequences, single, trial):
    if kind not in chosen:
        weights = [name for name in models if single or repacked_batches or name != "repacked weights"]
        choices = itertools.product(weights, [True, False], [True, False] if sequences > 1 else [False])
        timed = []
        for settings in choices:
            trial(settings)
            timed.append((trial(settings), settings))
        chosen[kind] = min(timed)[1]
    return chosen[kind]


def prefill(tokens):
    few = tokens[:TRIAL_TOKENS]

    def trial(settings):
        return context(1, len(few), *settings).prefill(few)

    settings = best(("prefill", len(tokens)), 1, False, trial)
    return context(1, len(tokens), *settings).prefill(tokens), settings


def decode(batch, count, prompt):
    def passes(count, settings):
        at_once = 1 if settings[0] == "repacked weights" and not repacked_batches else N_BATCH
        return context(batch, room, *settings).decode(batch, count, prompt, at_once)

    room = len(prompt) + count
    settings = best(("decode", batch), batch, batch == 1, lambda settings: passes(TRIAL_COUNT, settings))
    return passes(count, settings), settings


description = ctypes.create_string_buffer(256)
l.llama_model_desc(models["file's weights"], description, 256)
print(
    json.dumps({
        "version": l.__version__,
        "weights": description.value.decode(),
        "system": l.llama_print_system_info().decode().strip(),
        "batches_repacked": repacked_batches,
    }),
    flush=True,
)
for line in sys.stdin:
    command, *numbers = line.split()
    numbers = [int(number) for number in numbers]
    if command == "prefill":
        seconds, (weights, flash, unified) = prefill(numbers)
    else:
        batch, count, *prompt = numbers
        seconds, (weights, flash, unified) = decode(batch, count, prompt)
    words = [weights, "flash attention" if flash else "plain attention"] + ["one KV buffer"] * unified
    print(f"{seconds:.6f} {', '.join(words)}", flush=True)
