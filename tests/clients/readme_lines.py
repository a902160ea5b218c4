"""Executes the README's shell lines as they are written, against a running gateway.

A block that is marked in the README with `<!-- checked -->` is run by `sh -eu` in an empty folder, with the variables
of a user who pasted what the demo printed. Blocks follow each other in one folder and one shell, as one would type them.
`./x` is the repository's own; BULKHEAD_VERIFY, when set, is the built verifier that `./x verify` would build.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from gateway import KEYS, URL

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^<!-- checked -->\n```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def main():
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    marks = (ROOT / "README.md").read_text().count("<!-- checked -->")
    if not blocks or len(blocks) != marks:
        sys.exit(f"the README has {marks} marks and {len(blocks)} blocks after one: each mark stands above a ```sh block")
    for word in ("/v1/chat/completions", '"stream"', "/v1/isolation/receipts/", "verify"):
        if not any(word in block for block in blocks):
            sys.exit(f"no checked block of the README has `{word}`")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", ""),
        "BULKHEAD_URL": URL,
        "BULKHEAD_KEY_ACME": KEYS["acme"],
        "BULKHEAD_KEY_GLOBEX": KEYS["globex"],
    }
    with tempfile.TemporaryDirectory() as folder:
        verify = os.environ.get("BULKHEAD_VERIFY")
        launcher = pathlib.Path(folder, "x")
        if verify:
            launcher.write_text(f'#!/bin/sh\n[ "$1" = verify ] || exit 64\nshift\nexec "{verify}" "$@"\n')
        else:
            launcher.write_text(f'#!/bin/sh\nexec "{ROOT}/x" "$@"\n')
        launcher.chmod(0o755)
        script = "\n".join(f"echo '--- block {number}'\n{block}" for number, block in enumerate(blocks, 1))
        done = subprocess.run(
            ["sh", "-eu"], input=script, cwd=folder, env=environment, text=True, capture_output=True, timeout=300)
    print(done.stdout)
    print(done.stderr, file=sys.stderr)
    if done.returncode != 0:
        sys.exit(f"the README's lines ended with {done.returncode} after the block named last above")
    answered = done.stdout.count('"content"')
    if answered < 2 or "data: [DONE]" not in done.stdout:
        sys.exit("the README's lines ran, but no whole and no streamed answer came out of them")
    print(f"{len(blocks)} passed, 0 failed")


main()
