"use strict";

// What the verifier is made of: text, base64 and numbers in their one form, SHA-256, deterministic CBOR.
const BulkheadForms = (() => {
  const U32_MAX = (1n << 32n) - 1n;
  const U64_MAX = (1n << 64n) - 1n;

  /** A check that failed, by its name. */
  class Refusal extends Error {
    constructor(check, reason) {
      super(reason);
      this.check = check;
    }
  }

  // Bytes and text.

  const encoder = new TextEncoder();

  function utf8(bytes) {
    // Nothing is repaired and no mark is dropped: other bytes would be another receipt.
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  }

  function tryUtf8(bytes) {
    try {
      return utf8(bytes);
    } catch {
      return null;
    }
  }

  function concat(...parts) {
    const all = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
    let at = 0;
    for (const part of parts) {
      all.set(part, at);
      at += part.length;
    }
    return all;
  }

  function equal(a, b) {
    return a.length === b.length && a.every((byte, at) => byte === b[at]);
  }

  function hex(bytes) {
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  const BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

  /** Standard base64 in its one form, or null. */
  function base64(text) {
    if (text.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) return null;
    const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
    const bytes = new Uint8Array((text.length / 4) * 3 - padding);
    let bits = 0;
    let held = 0;
    let at = 0;
    for (const character of text.slice(0, text.length - padding)) {
      held = ((held << 6) | BASE64.indexOf(character)) & 0xffffff;
      bits += 6;
      if (bits >= 8) {
        bits -= 8;
        bytes[at++] = (held >> bits) & 0xff;
      }
    }
    // Bits behind the last byte are zero in the one form.
    return (held & ((1 << bits) - 1)) === 0 ? bytes : null;
  }

  function hashOf(text) {
    const bytes = base64(text);
    return bytes && bytes.length === 32 ? bytes : null;
  }

  /** A number of 64 bits in its one decimal form, or null. */
  function decimal(text) {
    if (!/^(0|[1-9][0-9]{0,19})$/.test(text)) return null;
    const number = BigInt(text);
    return number <= U64_MAX ? number : null;
  }

  // SHA-256 (FIPS 180-4). The page also works where a browser offers its own only on encrypted pages, and hashes piece by piece.

  const ROUND = new Uint32Array([
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
  ]);

  class Sha256 {
    constructor() {
      this.state = new Uint32Array([
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
      ]);
      this.block = new Uint8Array(64);
      this.filled = 0;
      this.length = 0;
      this.words = new Uint32Array(64);
    }

    update(bytes) {
      this.length += bytes.length;
      let at = 0;
      while (at < bytes.length) {
        const take = Math.min(64 - this.filled, bytes.length - at);
        this.block.set(bytes.subarray(at, at + take), this.filled);
        this.filled += take;
        at += take;
        if (this.filled === 64) {
          this.compress();
          this.filled = 0;
        }
      }
      return this;
    }

    compress() {
      const w = this.words;
      const view = new DataView(this.block.buffer);
      for (let i = 0; i < 16; i++) w[i] = view.getUint32(4 * i);
      const turn = (x, n) => (x >>> n) | (x << (32 - n));
      for (let i = 16; i < 64; i++) {
        const s0 = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ (w[i - 15] >>> 3);
        const s1 = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ (w[i - 2] >>> 10);
        w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
      }
      let [a, b, c, d, e, f, g, h] = this.state;
      for (let i = 0; i < 64; i++) {
        const s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
        const one = (h + s1 + ((e & f) ^ (~e & g)) + ROUND[i] + w[i]) | 0;
        const s0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
        const two = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
        [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
      }
      const sums = [a, b, c, d, e, f, g, h];
      for (let i = 0; i < 8; i++) this.state[i] = (this.state[i] + sums[i]) | 0;
    }

    digest() {
      const bits = BigInt(this.length) * 8n;
      const rest = (this.filled < 56 ? 56 : 120) - this.filled;
      const end = new Uint8Array(rest + 8);
      end[0] = 0x80;
      new DataView(end.buffer).setBigUint64(rest, bits);
      this.update(end);
      const digest = new Uint8Array(32);
      const view = new DataView(digest.buffer);
      this.state.forEach((word, i) => view.setUint32(4 * i, word));
      return digest;
    }
  }

  function sha256(...parts) {
    const hash = new Sha256();
    for (const part of parts) hash.update(part);
    return hash.digest();
  }

  function u32(number) {
    const bytes = new Uint8Array(4);
    new DataView(bytes.buffer).setUint32(0, Number(BigInt.asUintN(32, BigInt(number))));
    return bytes;
  }

  // Deterministic CBOR (RFC 8949 section 4.2.1): what the format has, and nothing else.

  class Items {
    constructor(bytes, check) {
      this.bytes = bytes;
      this.at = 0;
      this.check = check;
    }

    refuse(reason) {
      throw new Refusal(this.check, reason);
    }

    take(count) {
      if (count > BigInt(this.bytes.length - this.at)) this.refuse("CBOR is cut off");
      const from = this.at;
      this.at += Number(count);
      return this.bytes.subarray(from, this.at);
    }

    head(major) {
      const [first] = this.take(1n);
      if (first >> 5 !== major) this.refuse("a CBOR item has another type");
      const short = first & 31;
      if (short < 24) return BigInt(short);
      if (short > 27) this.refuse("a CBOR item has no definite length");
      const size = 1 << (short - 24);
      let number = 0n;
      for (const byte of this.take(BigInt(size))) number = (number << 8n) | BigInt(byte);
      const least = size === 1 ? 24n : 1n << BigInt(4 * size);
      if (number < least) this.refuse("a CBOR number is not in its shortest form");
      return number;
    }

    uint() {
      return this.head(0);
    }

    uint32() {
      const number = this.uint();
      if (number > U32_MAX) this.refuse("a number is out of range");
      return number;
    }

    /** One of the numbers below `count`. */
    below(count) {
      const number = this.uint();
      if (number >= BigInt(count)) this.refuse("a number is out of range");
      return Number(number);
    }

    byteString() {
      return this.take(this.head(2));
    }

    fixed(length) {
      const bytes = this.byteString();
      if (bytes.length !== length) this.refuse("a byte string has another length");
      return bytes;
    }

    text() {
      const text = tryUtf8(this.take(this.head(3)));
      if (text === null) this.refuse("a text is not UTF-8");
      return text;
    }

    array() {
      return this.head(4);
    }

    arrayOf(length) {
      if (this.array() !== BigInt(length)) this.refuse("a list has another length");
    }

    orNull(read) {
      if (this.bytes[this.at] !== 0xf6) return read();
      this.at += 1;
      return null;
    }

    end() {
      if (this.at !== this.bytes.length) this.refuse("bytes follow the end");
    }
  }

  return { Refusal, Items, U32_MAX, encoder, tryUtf8, utf8, concat, equal, hex, base64, hashOf, decimal, sha256, u32 };
})();

if (typeof module !== "undefined") module.exports = BulkheadForms;
