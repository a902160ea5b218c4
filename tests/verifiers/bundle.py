#!/usr/bin/env python3
"""Checks a Bulkhead evidence bundle with nothing but the Python standard library and the `openssl` command.

Usage: bundle.py VERIFIER-KEY-FILE BUNDLE [REPORT-KEY-FILE]

Get the log's verifier key from where you trust it, not from the bundle. Written apart from the product, from the public
formats: C2SP signed-note and tlog-checkpoint, RFC 9162 section 2.1.3.2, ustar, docs/log-format.md for entries and
docs/evidence.md for the bundle. It shows that the manifest is signed by a key that the log's key vouches for (or by the third
argument), that every file is the one it names, that every entry is in the signed log, that they are one tenant's, none missing
between, and those of the time; and it counts them again and compares the counts with report.json. Cosignatures of witnesses,
pages and plots are not looked at. Exit status 0 when it is so, 1 when it is not.
"""

import base64
import binascii
import hashlib
import hmac
import json
import os
import subprocess
import sys
import tarfile
import tempfile

BUNDLE_BYTES_MAX = 512 * 1024 * 1024
KEY_BYTES_MAX = 1024
SIGNATURES_MAX = 16
PROOF_HASHES_MAX = 64
ED25519 = 1
# DER header of an Ed25519 public key (RFC 8410); the 32 bytes of the key follow.
ED25519_DER = bytes.fromhex("302a300506032b6570032100")
NAMES = ["manifest", "statement.json", "checkpoint", "report.certificate", "entries", "report.json", "report.html"]
NAMES += ["report.pdf", "oscal.json", "verify/bundle.py"]
KINDS = ["genesis", "opened", "sealed", None, None, "incident", "fault", "audit", "recovered", "replay", "incident_state"]
KINDS += ["heartbeat"]
ENDS = ["stop", "length", "aborted", "error", "isolation", "crash"]


class Refused(Exception):
    """The bundle does not prove what it claims."""


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


class Items:
    """Deterministic CBOR (RFC 8949 section 4.2.1), item by item: what the format has, and nothing else."""

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

    def bytes_(self):
        return self.take(self.head(2))

    def null_or(self, read):
        if self.at < len(self.data) and self.data[self.at] == 0xF6:
            self.at += 1
            return None
        return read()

    def end(self):
        require(self.at == len(self.data), "bytes after the end of CBOR")


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


def open_note(note, key, signatures_max):
    """The text of a signed note that the key has signed."""
    name, key_id, public_key = key
    text, separator, signatures = note.rpartition("\n\n")
    require(separator and signatures.endswith("\n"), "not a signed note")
    text += "\n"
    lines = signatures[:-1].split("\n")
    require(len(lines) <= signatures_max, "a note has too many signatures")
    found = None
    for line in lines:
        parts = line.split(" ")
        require(len(parts) == 3 and parts[0] == "\u2014", "malformed signature line")
        blob = decode_base64(parts[2])
        if parts[1] == name and blob[:4] == key_id:
            require(found is None, "two signatures of one key")
            found = blob[4:]
    require(found is not None, f"not signed by {name}")
    require(len(found) == 64 and verify_signature(public_key, text.encode(), found), "the signature is false")
    return text


def open_checkpoint(note, key):
    """Origin, size and root hash that the log has signed."""
    lines = open_note(note, key, SIGNATURES_MAX).split("\n")
    require(len(lines) == 4 and lines[3] == "", "the checkpoint is not exactly three lines")
    origin, size, root = lines[0], decode_decimal(lines[1]), decode_base64(lines[2])
    require(origin == key[0], "the checkpoint is of another log")
    require(len(root) == 32, "the root is not a hash")
    return size, root


def verify_inclusion(leaf, index, size, hashes, root):
    """RFC 9162 section 2.1.3.2, step by step."""
    require(index < size, "the index is not in the tree")
    node, last = index, size - 1
    result = leaf
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
    require(result == root, "the proof does not lead to the root hash")


def read_archive(path):
    """The files of a bundle: known names in order, plain files, nothing else."""
    require(os.path.isfile(path), f"{path} is not a regular file")
    require(os.path.getsize(path) <= BUNDLE_BYTES_MAX, f"{path} is longer than {BUNDLE_BYTES_MAX} bytes")
    files, place = {}, -1
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                require(member.isreg() and member.name in NAMES, "the archive holds what no bundle has")
                require(NAMES.index(member.name) > place, "a file is not in its place")
                place = NAMES.index(member.name)
                files[member.name] = archive.extractfile(member).read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Refused(f"not a tar archive: {error}") from None
    for name in NAMES:
        require(name in files or name == "report.certificate", f"{name} is missing")
    return files


def check_manifest(files, key, report_key):
    """The manifest is signed, and names exactly the files that are there."""
    if report_key is None:
        require("report.certificate" in files, "nobody vouches for the report key: give it")
        lines = open_note(files["report.certificate"].decode(), key, 1).split("\n")
        require(len(lines) == 4 and lines[3] == "", "the certificate is malformed")
        require(lines[0] == "bulkhead report key v1" and lines[1] == key[0], "the certificate is of another log")
        report_key = parse_key(lines[2])
    require(report_key[0] == key[0] + "/report", "the report key is of another log")
    lines = open_note(files["manifest"].decode(), report_key, 1).split("\n")
    wanted = ["bulkhead evidence bundle v1", key[0]]
    for name in NAMES:
        if name in files and name != "manifest":
            wanted.append(f"{hashlib.sha256(files[name]).hexdigest()} {len(files[name])} {name}")
    require(lines == wanted + [""], "the manifest names other files")


def parse_records(data):
    """Index, leaf hash, entry and proof of each record. One that names another tenant is its leaf hash alone."""
    records, at = [], 0
    while at < len(data):
        require(len(data) - at >= 11, "the entries are cut off")
        index, length = int.from_bytes(data[at : at + 8], "big"), int.from_bytes(data[at + 8 : at + 10], "big")
        at += 10
        shown = length or 32
        require(shown + 1 <= len(data) - at, "the entries are cut off")
        content, hashes = data[at : at + shown], data[at + shown]
        at += shown + 1
        leaf, entry = (hashlib.sha256(b"\x00" + content).digest(), content) if length else (content, None)
        require(hashes <= PROOF_HASHES_MAX and hashes * 32 <= len(data) - at, "the entries are cut off")
        records.append((index, leaf, entry, [data[at + 32 * n : at + 32 * n + 32] for n in range(hashes)]))
        at += 32 * hashes
    return records


def parse_head(entry):
    """Kind, time, tenant, its number and previous leaf hash, and what follows the head."""
    items = Items(entry)
    items.head(4)
    version, kind = items.uint(), items.uint()
    require(1 <= version <= 9, f"entry version {version} is not known")
    items.bytes_(), items.bytes_(), items.bytes_()
    wall_us = items.uint()
    items.uint()
    tenant, number, previous = items.null_or(items.bytes_), items.uint(), items.bytes_()
    return kind, wall_us, tenant, number, previous, items


def check_entries(records, statement, size, root):
    """Every entry is in the log and the tenant's, and none is missing; gives those of the time."""
    heads, due, before, withheld = [], None, -1, []
    require(records and records[0][2] and records[-1][2], "the first or the last entry is withheld")
    for index, leaf, entry, proof in records:
        verify_inclusion(leaf, index, size, proof, root)
        require(index > before, "the entries are out of order")
        before = index
        if entry is None:
            withheld.append(index)
            due = (due[0] + 1, leaf)
            continue
        kind, wall_us, tenant, number, previous, items = parse_head(entry)
        require(tenant is not None and tenant.hex() == statement["reference"], f"entry {index} is of another tenant")
        require(due is None or due == (number, previous), f"an entry of the tenant is missing before entry {index}")
        due = (number + 1, leaf)
        heads.append((index, kind, wall_us, number, items))
    from_us, to_us = statement["from_us"], statement["to_us"]
    earlier = bool(heads) and heads[0][2] < from_us
    heads = heads[1:] if earlier else heads
    later = bool(heads) and heads[-1][2] > to_us
    heads = heads[:-1] if later else heads
    require(heads and heads[0][2] >= from_us and heads[-1][2] <= to_us, "the entries are not those of the time")
    require(earlier or heads[0][3] == 0, "the entry before the time is missing")
    require(withheld == [stated["entry"] for stated in statement["withheld"]], "what is withheld is not spoken of")
    return heads, later, len(withheld)


def check_name(heads, statement):
    """The tenant's name opens the commitment of one of its entries."""
    name = statement["name"]
    if name is None:
        return False
    found = [items for index, kind, _, _, items in heads if index == name["entry"] and kind == 1]
    require(found, "the entry that the name opens is not there")
    items = found[0]
    items.uint(), items.bytes_()
    content = b"isolog/v1/tenant\x00" + bytes.fromhex(name["salt"]) + statement["tenant"].encode()
    require(hmac.compare_digest(hashlib.sha256(content).digest(), items.bytes_()), "the name does not open the commitment")
    return True


def count(heads):
    """The counts that the report must have."""
    kinds, ends, pages, tokens = {}, {}, [0, 0, 0], [0, 0]
    for _, kind, _, _, items in heads:
        name = KINDS[kind] if kind < len(KINDS) and KINDS[kind] else f"kind {kind}"
        kinds[name] = kinds.get(name, 0) + 1
        if kind != 2:
            continue
        items.bytes_(), items.uint(), items.bytes_()
        reason = items.uint()
        require(reason < len(ENDS), "a response ended in an unknown way")
        ends[ENDS[reason]] = ends.get(ENDS[reason], 0) + 1
        items.null_or(items.bytes_), items.null_or(items.bytes_), items.uint(), items.uint()
        tokens = [tokens[0] + items.uint(), tokens[1] + items.uint()]
        read = [items.uint(), items.uint(), items.uint()]
        require(read[2] == 0 or reason == 4, "a response that read a foreign page was not stopped")
        pages = [sum(pair) for pair in zip(pages, read)]
    return kinds, ends, pages, tokens


def compare(heads, later, withheld, statement, report):
    """The report's counts are those of the entries."""
    kinds, ends, pages, tokens = count(heads)
    facts, responses = report["facts"], report["facts"]["responses"]
    known = {kind: number for kind, number in facts["kinds"].items() if not kind.startswith("kind ") and kind in KINDS}
    wanted = {kind: number for kind, number in kinds.items() if kind in KINDS}
    require(known == wanted, "the report counts other kinds of entries")
    require(responses["ends"] == ends and responses["sealed"] == sum(ends.values()), "the report counts other ends")
    require(responses["opened"] == kinds.get("opened", 0), "the report counts other requests")
    require([responses["prompt_tokens"], responses["completion_tokens"]] == tokens, "the report counts other tokens")
    held = [facts["pages"]["own"], facts["pages"]["public"], facts["pages"]["foreign"]]
    require(held == pages and facts["pages"]["released_after_foreign"] == 0, "the report counts other pages")
    complete = facts["completeness"]
    numbers = [complete["entries"], complete["first_number"], complete["last_number"]]
    require(numbers == [len(heads) + withheld, heads[0][3], heads[-1][3]], "the report has other numbers of entries")
    require(complete["begin_is_closed"] and complete["end_is_closed"] == later, "the report claims another completeness")
    require(report["statement"] == statement, "the report has another statement")


def check(arguments):
    """The line that is printed when all is as it has to be."""
    key = parse_key(read_file(arguments[1], KEY_BYTES_MAX).decode())
    report_key = parse_key(read_file(arguments[3], KEY_BYTES_MAX).decode()) if len(arguments) > 3 else None
    files = read_archive(arguments[2])
    check_manifest(files, key, report_key)
    size, root = open_checkpoint(files["checkpoint"].decode(), key)
    statement, report = json.loads(files["statement.json"]), json.loads(files["report.json"])
    require(statement["format"] == 1, "the bundle has another form")
    heads, _, _ = check_entries(parse_records(files["entries"]), statement, size, root)
    named = check_name(heads, statement)
    # The heads were read on by the name; they are read anew to be counted.
    heads, later, withheld = check_entries(parse_records(files["entries"]), statement, size, root)
    compare(heads, later, withheld, statement, report)
    end = "closed" if later else "open"
    return f"OK origin={key[0]} size={size} entries={len(heads) + withheld} end={end} name={'opened' if named else 'not opened'}"


def main(arguments):
    if len(arguments) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(check(arguments))
    except (UnicodeDecodeError, ValueError, KeyError, TypeError, IndexError) as error:
        print(f"REFUSED: malformed: {type(error).__name__}")
        return 1
    except Refused as refused:
        print(f"REFUSED: {refused}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
