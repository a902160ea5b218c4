"""The model in f32 with numpy: what both engines approximate. Slow and short; used by make_golden.py."""

import struct

import numpy as np

SIZES = {0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4), 6: ("f", 4), 7: ("?", 1),
         10: ("Q", 8), 11: ("q", 8), 12: ("d", 8)}


class Oracle:
    def __init__(self, path):
        self.data = np.fromfile(path, np.uint8)
        self.at = 8
        tensors, keys = self.scalar(10), self.scalar(10)
        self.keys = {}
        for _ in range(keys):
            key = self.string()
            self.keys[key] = self.value(self.scalar(4))
        self.tensors = {}
        for _ in range(tensors):
            name, dimensions = self.string(), self.scalar(4)
            shape = [self.scalar(10) for _ in range(dimensions)]
            self.tensors[name] = (shape, self.scalar(4), self.scalar(10))
        self.base = -(-self.at // 32) * 32

    def scalar(self, kind):
        code, size = SIZES[kind]
        self.at += size
        return struct.unpack("<" + code, self.data[self.at - size:self.at].tobytes())[0]

    def string(self):
        length = self.scalar(10)
        self.at += length
        return self.data[self.at - length:self.at].tobytes().decode()

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind = self.scalar(4)
            return [self.value(kind) for _ in range(self.scalar(10))]
        return self.scalar(kind)

    def tensor(self, name):
        shape, kind, offset = self.tensors[name]
        count = int(np.prod(shape))
        start = self.base + offset
        if kind == 0:
            flat = self.data[start:start + 4 * count].view("<f4")
        elif kind == 3:  # Q4_1: scale, minimum, 16 bytes: low nibbles are the first half
            blocks = self.data[start:start + count // 32 * 20].reshape(-1, 20)
            scale = blocks[:, 0:2].copy().view("<f2").astype(np.float32)
            minimum = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
            quants = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
            flat = quants * scale + minimum
        elif kind == 8:  # Q8_0: scale, 32 signed bytes
            blocks = self.data[start:start + count // 32 * 34].reshape(-1, 34)
            scale = blocks[:, 0:2].copy().view("<f2").astype(np.float32)
            flat = blocks[:, 2:].view(np.int8).astype(np.float32) * scale
        else:
            raise ValueError(f"type {kind}")
        return flat.reshape(shape[::-1])

    def logits(self, tokens):
        """Logits after the last token."""
        key = lambda name: self.keys["llama." + name]
        heads, kv_heads = key("attention.head_count"), key("attention.head_count_kv")
        eps, dim = key("attention.layer_norm_rms_epsilon"), key("embedding_length") // heads
        count = len(tokens)
        angles = np.arange(count)[:, None] * key("rope.freq_base") ** (-np.arange(0, dim, 2) / dim)
        cos, sin = np.cos(angles)[:, None].astype(np.float32), np.sin(angles)[:, None].astype(np.float32)
        mask = np.triu(np.full((count, count), -np.inf, np.float32), 1)

        def norm(x, name):
            return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps) * self.tensor(name)

        def rotate(x):
            even, odd = x[..., 0::2], x[..., 1::2]
            return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)

        embedding = self.tensor("token_embd.weight")
        x = embedding[np.array(tokens)]
        for layer in range(key("block_count")):
            weight = lambda name: self.tensor(f"blk.{layer}.{name}.weight").T
            h = norm(x, f"blk.{layer}.attn_norm.weight")
            q = rotate((h @ weight("attn_q")).reshape(count, heads, dim))
            k = rotate((h @ weight("attn_k")).reshape(count, kv_heads, dim))
            v = (h @ weight("attn_v")).reshape(count, kv_heads, dim)
            out = np.empty_like(q)
            for head in range(heads):
                group = head // (heads // kv_heads)
                scores = q[:, head] @ k[:, group].T / np.sqrt(np.float32(dim)) + mask
                scores = np.exp(scores - scores.max(axis=1, keepdims=True))
                out[:, head] = scores / scores.sum(axis=1, keepdims=True) @ v[:, group]
            x = x + out.reshape(count, -1) @ weight("attn_output")
            h = norm(x, f"blk.{layer}.ffn_norm.weight")
            gate = h @ weight("ffn_gate")
            x = x + (gate / (1 + np.exp(-gate)) * (h @ weight("ffn_up"))) @ weight("ffn_down")
        return embedding @ norm(x[-1:], "output_norm.weight")[0]
