#!/usr/bin/env python3
"""Writes the seeds of the model's targets: the smallest model of each format that loads, and parts of it.

Everything is made up here, from the formats' descriptions; the standard library is enough. Run it in this folder.
"""

import json
import os
import struct

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FF, LAYERS = 32, 2, 1, 16, 32, 1
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r"]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_characters():
    """The characters that stand for bytes in byte-level vocabularies (as GPT-2 has them)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    characters = {byte: chr(byte) for byte in plain}
    characters.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return [characters[byte] for byte in range(256)]


VOCABULARY = byte_characters() + [merge.replace(" ", "") for merge in MERGES] + CONTROL
TYPES = [1] * (len(VOCABULARY) - len(CONTROL)) + [3] * len(CONTROL)


class Random:
    state = 1

    def next(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state >> 40


RANDOM = Random()


def floats(count):
    return [((RANDOM.next() % 2001) - 1000) / 4000 for _ in range(count)]


def tensors():
    """Name in GGUF, name in safetensors, shape (rows, columns)."""
    query, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield "token_embd.weight", "model.embed_tokens.weight", (len(VOCABULARY), WIDTH)
    yield "output_norm.weight", "model.norm.weight", (WIDTH,)
    for layer in range(LAYERS):
        for ours, theirs, shape in [
            ("attn_norm", "input_layernorm", (WIDTH,)),
            ("attn_q", "self_attn.q_proj", (query, WIDTH)),
            ("attn_k", "self_attn.k_proj", (kv, WIDTH)),
            ("attn_v", "self_attn.v_proj", (kv, WIDTH)),
            ("attn_output", "self_attn.o_proj", (WIDTH, query)),
            ("ffn_norm", "post_attention_layernorm", (WIDTH,)),
            ("ffn_gate", "mlp.gate_proj", (FF, WIDTH)),
            ("ffn_up", "mlp.up_proj", (FF, WIDTH)),
            ("ffn_down", "mlp.down_proj", (WIDTH, FF)),
        ]:
            yield f"blk.{layer}.{ours}.weight", f"model.layers.{layer}.{theirs}.weight", shape


def gguf(path, q8):
    def string(text):
        data = text.encode()
        return struct.pack("<Q", len(data)) + data

    def array(kind, parts):
        return struct.pack("<IIQ", 9, kind, len(parts)) + b"".join(parts)

    def text(value):
        return struct.pack("<I", 8) + string(value)

    def number(value):
        return struct.pack("<II", 4, value)

    keys = {
        "general.architecture": text("llama"),
        "general.name": text("seed"),
        "llama.block_count": number(LAYERS),
        "llama.embedding_length": number(WIDTH),
        "llama.attention.head_count": number(HEADS),
        "llama.attention.head_count_kv": number(KV_HEADS),
        "llama.feed_forward_length": number(FF),
        "llama.context_length": number(128),
        "llama.rope.freq_base": struct.pack("<If", 6, 10000.0),
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", 6, 1e-5),
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text("smollm"),
        "tokenizer.ggml.tokens": array(8, [string(token) for token in VOCABULARY]),
        "tokenizer.ggml.token_type": array(5, [struct.pack("<i", kind) for kind in TYPES]),
        "tokenizer.ggml.merges": array(8, [string(merge) for merge in MERGES]),
        "tokenizer.ggml.bos_token_id": number(VOCABULARY.index("<|im_start|>")),
        "tokenizer.ggml.eos_token_id": number(VOCABULARY.index("<|im_end|>")),
        "tokenizer.chat_template": text(TEMPLATE),
    }
    infos, data = b"", b""
    listed = list(tensors())
    for name, _, shape in listed:
        data += b"\0" * (-len(data) % 32)
        blocked = q8 and len(shape) == 2
        dims = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        infos += string(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", 8 if blocked else 0, len(data))
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        if blocked:
            for _ in range(count // 32):
                data += struct.pack("<e32b", 0.002, *[RANDOM.next() % 255 - 127 for _ in range(32)])
        else:
            values = floats(count) if len(shape) == 2 else [1.0] * count
            data += struct.pack(f"<{count}f", *values)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(keys))
    head += b"".join(string(key) + value for key, value in keys.items()) + infos
    head += b"\0" * (-len(head) % 32)
    with open(path, "wb") as file:
        file.write(head + data)


def safetensors(path):
    header, data = {}, b""
    for _, name, shape in tensors():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = floats(count) if len(shape) == 2 else [1.0] * count
        # BF16 is the upper half of a float.
        part = b"".join(struct.pack("<f", value)[2:] for value in values)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def tokenizer_json(path):
    normal = {token: place for place, token in enumerate(VOCABULARY) if token not in CONTROL}
    added = [
        {"id": VOCABULARY.index(token), "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for token in CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": normal,
            "merges": MERGES,
        },
    }
    with open(path, "w") as file:
        json.dump(tokenizer, file, ensure_ascii=False, separators=(",", ":"))


def config_json(path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": FF,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "vocab_size": len(VOCABULARY),
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": VOCABULARY.index("<|im_start|>"),
        "eos_token_id": VOCABULARY.index("<|im_end|>"),
    }
    with open(path, "w") as file:
        json.dump(config, file)


for folder in ["gguf", "safetensors", "tokenizer_json", "model"]:
    os.makedirs(f"seeds/{folder}", exist_ok=True)
gguf("seeds/gguf/q8_0.gguf", q8=True)
safetensors("seeds/safetensors/bf16.safetensors")
tokenizer_json("seeds/tokenizer_json/byte_level.json")
config_json("seeds/model/config.json")
