#!/usr/bin/env python3
"""Checks a Bulkhead receipt with nothing but the Python standard library and the `openssl` command.

Usage: receipt.py VERIFIER-KEY-FILE RECEIPT-FILE

Written apart from the product, from the public formats: C2SP signed-note, tlog-checkpoint and tlog-proof, RFC 9162
section 2.1.3.2, RFC 9052 and RFC 9942 for receipts in COSE, and docs/log-format.md for the extra data and the entries. It shows
that both entries are in the signed log and belong to one request, and which model the opened one names; of a COSE receipt, that
the sealed entry is in the log and names the opened one. The trace and the salts are not looked at. It knows the one key that it is
given: where the log has changed its key, the one that the log had when it signed. Whether it had another one by then it does not
know, and says so (`bulkhead-verify --rotation` does). Exit status 0 when it is so, 1 when it is not.
"""

import base64
import binascii
import hashlib
import os
import subprocess
import sys
import tempfile

RECEIPT_BYTES_MAX = 1024 * 1024
KEY_BYTES_MAX = 1024
SIGNATURES_MAX = 16
PROOF_HASHES_MAX = 64
ED25519 = 1
ONE_KEY = "this script knows one key, and follows no rotation of it"
# DER header of an Ed25519 public key (RFC 8410); the 32 bytes of the key follow.
ED25519_DER = bytes.fromhex("302a300506032b6570032100")


class Refused(Exception):
    """The receipt does not prove what it claims."""


def require(condition, reason):
    if not condition:
        raise Refused(reason)


def read_file(path, bytes_max):
    require(os.path.isfile(path), f"{path} is not a regular file")
    with open(path, "rb") as file:
        data = file.read(bytes_max + 1)
    require(len(data) <= bytes_max, f"{path} is longer than {bytes_max} bytes")
    return data


def decode_base64(text):
    """Standard base64 in its one form: what does not encode back to itself is refused."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refused("malformed base64") from None
    require(base64.b64encode(data).decode() == text, "base64 is not in its one form")
    return data


def decode_decimal(text):
    require(text.isascii() and text.isdigit() and len(text) <= 19, "malformed number")
    require(str(int(text)) == text, "number is not in its one form")
    return int(text)


def parse_key(text):
    """A verifier key line: name, key id, algorithm byte and key."""
    parts = text.strip("\n").split("+", 2)
    require(len(parts) == 3 and parts[0], "malformed verifier key")
    name, key_id, material = parts[0], parts[1], decode_base64(parts[2])
    require(len(material) == 33 and material[0] == ED25519, "the key is not an Ed25519 key")
    expected = hashlib.sha256(name.encode() + b"\n" + material).hexdigest()[:8]
    require(key_id == expected, "the key id does not belong to the key")
    return name, bytes.fromhex(key_id), material[1:]


def parse_receipt(text):
    """Splits a tlog-proof file into extra data, index, proof hashes and checkpoint."""
    head, separator, checkpoint = text.partition("\n\n")
    require(separator, "the receipt has no checkpoint")
    lines = head.split("\n")
    require(lines.pop(0) == "c2sp.org/tlog-proof@v1", "not a tlog-proof")
    require(lines and lines[0].startswith("extra "), "the receipt has no extra line")
    extra = decode_base64(lines.pop(0)[len("extra ") :])
    require(lines and lines[0].startswith("index "), "the receipt has no index line")
    index = decode_decimal(lines.pop(0)[len("index ") :])
    require(len(lines) <= PROOF_HASHES_MAX, "the proof is too long")
    hashes = [decode_base64(line) for line in lines]
    require(all(len(hash_) == 32 for hash_ in hashes), "a proof line is not a hash")
    return extra, index, hashes, checkpoint


class Items:
    """CBOR with shortest lengths (RFC 8949 section 4.2.1), item by item: what the formats have, and nothing else."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        require(count <= len(self.data) - self.at, "CBOR is cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def head(self, major):
        first = self.take(1)[0]
        require(first >> 5 == major, "a CBOR item has another type")
        short = first & 31
        if short < 24:
            return short
        require(short <= 27, "a CBOR item has no definite length")
        size = 1 << (short - 24)
        number = int.from_bytes(self.take(size), "big")
        require(number >= (24 if size == 1 else 1 << (4 * size)), "a CBOR number is not in its shortest form")
        return number

    def uint(self):
        return self.head(0)

    def is_(self, value):
        """The integer that has to stand here."""
        require((self.head(0) if value >= 0 else -1 - self.head(1)) == value, f"CBOR has no {value} where it belongs")

    def bytes_(self):
        return self.take(self.head(2))

    def text(self):
        return self.take(self.head(3)).decode()

    def null_or(self, read):
        if self.at < len(self.data) and self.data[self.at] == 0xF6:
            self.at += 1
            return None
        return read()

    def end(self):
        require(self.at == len(self.data), "bytes after the end of CBOR")


def parse_extra(extra):
    """Sealed entry, opened entry, index and proof of the opened one. The salts and the trace are stepped over."""
    items = Items(extra)
    require(items.head(4) == 7 and items.uint() in (1, 2), "unknown extra data")
    sealed, opened, opened_index, proof = items.bytes_(), items.bytes_(), items.uint(), items.bytes_()
    require(len(proof) % 32 == 0 and len(proof) <= 32 * PROOF_HASHES_MAX, "the second proof is malformed")
    return sealed, opened, opened_index, [proof[at : at + 32] for at in range(0, len(proof), 32)]


def parse_entry(entry):
    """Version, kind, uuid and what follows the head."""
    items = Items(entry)
    fields, version, kind, uuid = items.head(4), items.uint(), items.uint(), items.bytes_()
    require(version in (1, 2, 3, 4, 5), f"entry version {version} is not known")
    items.bytes_(), items.bytes_(), items.uint(), items.uint(), items.null_or(items.bytes_), items.uint(), items.bytes_()
    return fields, version, kind, uuid, items


def opened_facts(opened, opened_index, sealed):
    """What the opened entry says of the model: digest of its file and fingerprint. The two entries belong together."""
    fields, version, kind, uuid, items = parse_entry(opened)
    require(kind == 1 and fields == (19 if version == 1 else 20), "the second entry is not an opened one")
    items.uint()
    for _ in range(4):
        items.bytes_()
    model = items.bytes_()
    fingerprint = items.bytes_() if version >= 2 else None
    items.bytes_(), items.uint(), items.uint()
    items.end()
    require(len(model) == 32 and (fingerprint is None or len(fingerprint) == 32), "a digest has another length")
    fields, version, kind, _, items = parse_entry(sealed)
    require(kind == 2 and fields == (29 if version >= 3 else 28), "the first entry is not a sealed one")
    require(items.bytes_() == uuid and items.uint() == opened_index, "the entries belong to different requests")
    require(items.bytes_() == hashlib.sha256(b"\x00" + opened).digest(), "the entries belong to different requests")
    return model.hex(), fingerprint.hex() if fingerprint else "none"


def verify_signature(public_key, message, signature):
    """Ed25519 by the openssl command."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("key", "message", "signature")]
        for path, data in zip(paths, (ED25519_DER + public_key, message, signature)):
            with open(path, "wb") as file:
                file.write(data)
        command = ["openssl", "pkeyutl", "-verify", "-pubin", "-keyform", "DER", "-inkey", paths[0]]
        command += ["-rawin", "-in", paths[1], "-sigfile", paths[2]]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def open_checkpoint(note, key):
    """Checks the log's signature on a signed note; returns origin, size and root hash."""
    name, key_id, public_key = key
    text, separator, signatures = note.rpartition("\n\n")
    require(separator and signatures.endswith("\n"), "the checkpoint is not a signed note")
    text += "\n"
    lines = signatures[:-1].split("\n")
    require(len(lines) <= SIGNATURES_MAX, "the checkpoint has too many signatures")
    found = None
    for line in lines:
        parts = line.split(" ")
        require(len(parts) == 3 and parts[0] == "\u2014", "malformed signature line")
        blob = decode_base64(parts[2])
        if parts[1] == name and blob[:4] == key_id:
            require(found is None, "two signatures of one key")
            found = blob[4:]
    require(found is not None, f"the checkpoint is not signed by the key {name}+{key_id.hex()}: {ONE_KEY}")
    require(len(found) == 64 and verify_signature(public_key, text.encode(), found), "the signature is false")
    lines = text.split("\n")
    require(len(lines) == 4 and lines[3] == "", "the checkpoint is not exactly three lines")
    origin, size, root = lines[0], decode_decimal(lines[1]), decode_base64(lines[2])
    require(origin == name, "the checkpoint is of another log")
    require(len(root) == 32, "the root is not a hash")
    return origin, size, root


def inclusion_root(entry, index, size, hashes):
    """RFC 9162 section 2.1.3.2, step by step."""
    require(index < size, "the index is not in the tree")
    node, last = index, size - 1
    result = hashlib.sha256(b"\x00" + entry).digest()
    for sibling in hashes:
        require(last != 0, "the proof is too long")
        if node & 1 or node == last:
            result = hashlib.sha256(b"\x01" + sibling + result).digest()
            while not node & 1 and node != 0:
                node >>= 1
                last >>= 1
        else:
            result = hashlib.sha256(b"\x01" + result + sibling).digest()
        node >>= 1
        last >>= 1
    require(last == 0, "the proof is too short")
    return result


def verify_inclusion(entry, index, size, hashes, root):
    require(inclusion_root(entry, index, size, hashes) == root, "the proof does not lead to the root hash")


def open_cose(data, key):
    """Checks the log's signature on a COSE receipt; returns origin, size, index and extra data."""
    name, key_id, public_key = key
    items = Items(data)
    require(items.head(6) == 18 and items.head(4) == 4, "not a COSE_Sign1")
    protected = items.bytes_()
    # One more parameter with the extra data: of the kind of proof, the one inclusion proof.
    require(items.head(5) == 2, "the receipt has no extra data")
    items.is_(396), require(items.head(5) == 1, "not one kind of proof"), items.is_(-1)
    require(items.head(4) == 1, "not one proof")
    proof = Items(items.bytes_())
    items.is_(-65537)
    extra = items.bytes_()
    require(items.null_or(lambda: b"") is None, "the root hash is not detached")
    signature = items.bytes_()
    items.end()
    head = Items(protected)
    require(head.head(5) == 4, "the protected header has other parameters")
    head.is_(1), head.is_(-8), head.is_(4)
    require(head.bytes_() == key_id, f"the receipt is signed by another key than {name}+{key_id.hex()}: {ONE_KEY}")
    head.is_(15), require(head.head(5) == 3, "not three claims")
    head.is_(1)
    origin = head.text()
    head.is_(2)
    subject = head.text()
    head.is_(-65537)
    size = head.uint()
    head.is_(395), head.is_(1)
    head.end()
    require(proof.head(4) == 3 and proof.uint() == size, "the proof is for another size")
    index, count = proof.uint(), proof.head(4)
    require(count <= PROOF_HASHES_MAX, "the proof is too long")
    hashes = [proof.bytes_() for _ in range(count)]
    proof.end()
    require(origin == name, "the receipt is of another log")
    require(all(len(hash_) == 32 for hash_ in hashes), "a proof's hash has another length")
    entry = parse_extra(extra)[0]
    root = inclusion_root(entry, index, size, hashes)
    # RFC 9052 section 4.4, with the root hash as the detached payload.
    require(len(protected) < 256, "the protected header is too long")
    length = bytes([0x40 | len(protected)]) if len(protected) < 24 else bytes([0x58, len(protected)])
    message = b"\x84\x6aSignature1" + length + protected + b"\x40\x58\x20" + root
    require(len(signature) == 64 and verify_signature(public_key, message, signature), "the signature is false")
    require(subject.replace("-", "") == parse_entry(entry)[4].bytes_().hex(), "the receipt is about another request")
    return origin, size, index, extra


def main(arguments):
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        key = parse_key(read_file(arguments[1], KEY_BYTES_MAX).decode())
        receipt = read_file(arguments[2], RECEIPT_BYTES_MAX)
        if receipt[:1] == b"\xd2":
            origin, size, index, extra = open_cose(receipt, key)
            entry, opened, opened_index, _ = parse_extra(extra)
        else:
            extra, index, hashes, note = parse_receipt(receipt.decode())
            entry, opened, opened_index, opened_hashes = parse_extra(extra)
            origin, size, root = open_checkpoint(note, key)
            verify_inclusion(entry, index, size, hashes, root)
            verify_inclusion(opened, opened_index, size, opened_hashes, root)
        model, fingerprint = opened_facts(opened, opened_index, entry)
    except UnicodeDecodeError:
        print("REFUSED: not text")
        return 1
    except Refused as refused:
        print(f"REFUSED: {refused}")
        return 1
    print(f"under the key {key[0]}+{key[1].hex()}: {ONE_KEY}", file=sys.stderr)
    digest = hashlib.sha256(entry).hexdigest()
    print(f"OK origin={origin} size={size} index={index} entry-sha256={digest} model={model} fingerprint={fingerprint}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
