#!/usr/bin/env python3
"""Makes logits.json with Hugging Face transformers, an implementation that shares no code with ours.

Run by hand, not by CI:
    python3 -m venv V && V/bin/pip install torch==2.15.0 transformers==5.24.0
    V/bin/python tests/golden/flavours/make_flavours.py

Each case is a small model of one flavour of the Llama family. Its weights are not stored: they are a function of the
tensor's name and the element's index, which engine/model/src/forward/flavour_tests.rs computes too. Names are those of
GGUF files, so that both sides mean the same tensor. logits.json has, for each case, the configuration as given to
transformers, and the logits of some positions of one sequence, computed in f32.
"""

import json
from pathlib import Path

import numpy
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

HERE = Path(__file__).parent
VOCAB = 64
TOKENS = [(7 * i * i + 3 * i + 5) % VOCAB for i in range(45)]
POSITIONS = [3, 19, 20, 33, 44]

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def rope(base, **scaling):
    return {"rope_theta": base, "rope_type": "default", **scaling}


def case(config, model, **arguments):
    return config, model, {**COMMON, **arguments}


def llama(layers, heads, kv_heads, head_dim, **arguments):
    dimensions = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    return {**dimensions, **arguments}


LLAMA3 = rope(
    500000.0,
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
YARN = rope(1e6, rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
GEMMA = {
    "rms_norm_eps": 1e-6,
    "sliding_window": 20,
    "rope_parameters": {
        "full_attention": rope(1e6, rope_type="linear", factor=8.0),
        "sliding_attention": rope(1e4),
    },
}

CASES = {
    "llama2": case(
        LlamaConfig, LlamaForCausalLM, **llama(2, 4, 4, 16, tie_word_embeddings=False, rope_parameters=rope(1e4))
    ),
    "llama3.1": case(LlamaConfig, LlamaForCausalLM, **llama(2, 2, 1, 32, rope_parameters=LLAMA3)),
    "mistral": case(
        MistralConfig,
        MistralForCausalLM,
        **llama(3, 4, 2, 16, tie_word_embeddings=False, sliding_window=20, rope_parameters=rope(1e4)),
    ),
    "tinyllama": case(
        LlamaConfig, LlamaForCausalLM, **llama(2, 8, 1, 16, tie_word_embeddings=False, rope_parameters=rope(1e4))
    ),
    "llama with biases": case(
        LlamaConfig,
        LlamaForCausalLM,
        **llama(2, 4, 2, 16, attention_bias=True, mlp_bias=True, rope_parameters=rope(1e4)),
    ),
    "smollm2": case(
        LlamaConfig, LlamaForCausalLM, **llama(3, 3, 1, 32, hidden_size=96, rope_parameters=rope(1e5))
    ),
    "smollm3": case(SmolLM3Config, SmolLM3ForCausalLM, **llama(5, 4, 2, 16, rope_parameters=rope(5e6))),
    "qwen2": case(Qwen2Config, Qwen2ForCausalLM, **llama(2, 4, 2, 16, rms_norm_eps=1e-6, rope_parameters=rope(1e6))),
    "qwen2.5 with yarn": case(
        Qwen2Config, Qwen2ForCausalLM, **llama(2, 2, 1, 32, rms_norm_eps=1e-6, rope_parameters=YARN)
    ),
    "qwen3": case(Qwen3Config, Qwen3ForCausalLM, **llama(2, 4, 2, 32, rms_norm_eps=1e-6, rope_parameters=rope(1e6))),
    "gemma3": case(
        Gemma3TextConfig, Gemma3ForCausalLM, **llama(7, 2, 1, 32, query_pre_attn_scalar=32, **GEMMA)
    ),
    "gemma3 with its own scale": case(
        Gemma3TextConfig, Gemma3ForCausalLM, **llama(2, 2, 1, 32, query_pre_attn_scalar=96, **GEMMA)
    ),
}

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}


def gguf_name(name, is_gemma):
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    norms = {"post_attention_layernorm": "ffn_norm"}
    if is_gemma:
        norms = {
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{({**PARTS, **norms})[part]}.{kind}"


def integers(name, count):
    """From -128 to 127: a hash of the name, and of each index with it."""
    seed = 2166136261
    for byte in name.encode():
        seed = ((seed ^ byte) * 16777619) & 0xFFFFFFFF
    x = (numpy.arange(count, dtype=numpy.uint64) * 0x9E3779B9 + seed) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return (x >> 24).astype(numpy.int64) - 128


def weights(name, shape, is_gemma):
    values = torch.from_numpy(integers(name, int(numpy.prod(shape)))).to(torch.float32).reshape(shape)
    if "norm" in name:
        return values / 256 + (0 if is_gemma else 1)
    if name.endswith("bias") or name == "token_embd.weight":
        return values / 128
    return values / 512


def logits(make_config, make_model, arguments):
    is_gemma = make_model is Gemma3ForCausalLM
    config = make_config(**json.loads(json.dumps(arguments)), attn_implementation="eager")
    model = make_model(config).to(torch.float32).eval()
    names = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            names.append(gguf_name(name, is_gemma))
            parameter.copy_(weights(names[-1], tuple(parameter.shape), is_gemma))
        all_logits = model(torch.tensor([TOKENS])).logits[0]
    return sorted(names), [[round(float(x), 4) for x in all_logits[position]] for position in POSITIONS]


def main():
    lines = []
    for name, (make_config, make_model, arguments) in CASES.items():
        names, rows = logits(make_config, make_model, arguments)
        print(f"{name}: {len(names)} tensors, logits from {min(map(min, rows))} to {max(map(max, rows))}")
        config = {"model_type": make_config.model_type, "architectures": [make_model.__name__], **arguments}
        rows = ",\n   ".join(json.dumps(row, separators=(",", ":")) for row in rows)
        lines.append(
            f'  {{"name": {json.dumps(name)},\n  "config": {json.dumps(config)},\n'
            f'  "tensors": {json.dumps(names, separators=(",", ":"))},\n  "logits": [\n   {rows}]}}'
        )
    text = ",\n".join(lines)
    (HERE / "logits.json").write_text(
        f'{{"tokens": {json.dumps(TOKENS)},\n "positions": {json.dumps(POSITIONS)},\n "cases": [\n{text}]}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
