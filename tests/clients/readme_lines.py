"""Executes the README's shell lines as they are written, against a running gateway.

A block that is marked in the README with `<!-- checked -->` is run by `sh -eu` in an empty folder, with the variables
of a user who pasted what the demo printed. Blocks follow each other in one folder and one shell, as one would type them.
`./x` is the repository's own; BULKHEAD_VERIFY, when set, is the built verifier that `./x verify` would build, and
BULKHEAD_PROGRAM the program that `cargo build` would. The configuration that the lines make is served afterwards, and
the key that they show is used.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

from gateway import KEYS, URL

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^<!-- checked -->\n```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def prepare(folder):
    """What the lines for an installation find in a clone whose program has been built."""
    program = pathlib.Path(os.environ.get("BULKHEAD_PROGRAM", ROOT / "target/release/bulkhead"))
    (folder / "target/release").mkdir(parents=True)
    (folder / "target/release/bulkhead").symlink_to(program)
    (folder / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/bulkhead.toml", folder / "deploy")
    (folder / "bin").mkdir()
    cargo = folder / "bin/cargo"
    cargo.write_text('#!/bin/sh\n[ "$*" = "build --release --locked" ] || exit 64\n')
    cargo.chmod(0o755)


def serve(folder, key):
    """Serves the configuration that the lines made, on a free port, and asks with the key that they showed."""
    config = folder / "run/bulkhead.toml"
    text = config.read_text()
    if '[[tenants]]\nname = "acme"' not in text or key in text:
        sys.exit("the README's lines did not put the tenant, without its key, into the configuration")
    config.write_text(text.replace('listen = "127.0.0.1:8080"', 'listen = "127.0.0.1:0"'))
    command = [folder / "target/release/bulkhead", "serve", "--config", config]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as gateway:
        said, listed = "", ""
        for line in gateway.stderr:
            said += line
            listening = re.match(r"listening on (http://\S+)", line)
            if listening:
                request = urllib.request.Request(listening[1] + "/v1/models", headers={"authorization": f"Bearer {key}"})
                with urllib.request.urlopen(request, timeout=60) as answer:
                    listed = answer.read().decode()
                gateway.send_signal(signal.SIGTERM)
        if gateway.wait(timeout=60) != 0 or "SmolLM2-135M-Instruct" not in listed:
            sys.exit(f"the configuration that the README's lines made is not served: {said}")


def main():
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    marks = (ROOT / "README.md").read_text().count("<!-- checked -->")
    if not blocks or len(blocks) != marks:
        sys.exit(f"the README has {marks} marks and {len(blocks)} blocks after one: each mark stands above a ```sh block")
    for word in ("/v1/chat/completions", '"stream"', "/v1/isolation/receipts/", "verify", "key new"):
        if not any(word in block for block in blocks):
            sys.exit(f"no checked block of the README has `{word}`")
    environment = {
        "PATH": "bin:" + os.environ["PATH"],
        "HOME": os.environ.get("HOME", ""),
        "XDG_DATA_HOME": os.environ.get("XDG_DATA_HOME", ""),
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
        prepare(pathlib.Path(folder))
        script = "\n".join(f"echo '--- block {number}'\n{block}" for number, block in enumerate(blocks, 1))
        done = subprocess.run(
            ["sh", "-eu"], input=script, cwd=folder, env=environment, text=True, capture_output=True, timeout=300)
        print(done.stdout)
        print(done.stderr, file=sys.stderr)
        if done.returncode != 0:
            sys.exit(f"the README's lines ended with {done.returncode} after the block named last above")
        keys = re.findall(r"^bk_\w+$", done.stderr, re.MULTILINE)
        if len(keys) != 1:
            sys.exit(f"the README's lines showed {len(keys)} keys")
        serve(pathlib.Path(folder), keys[0])
    answered = done.stdout.count('"content"')
    if answered < 2 or "data: [DONE]" not in done.stdout:
        sys.exit("the README's lines ran, but no whole and no streamed answer came out of them")
    print(f"{len(blocks)} passed, 0 failed")


main()
