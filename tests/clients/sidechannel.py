"""Audits a gateway of its own for side channels and prints the result as JSON, with what its log and the verifier say of it.

Arguments: the `bulkhead` program, `bulkhead-verify`, the model, KV pages of the gateway, and what else the audit is to be given.
The gateway listens on loopback and names the first tenant as a probe. Needs nothing but Python.
"""

import hashlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

TENANTS = {"victim": "BULKHEAD_API_KEY_A", "attacker": "BULKHEAD_API_KEY_B"}
PAGE_TOKENS = 16
START_SECONDS_MAX = 60
# The audit's exit status says its verdict.
VERDICTS = {0: "isolated", 3: "channel_found", 4: "void", 5: "inconclusive"}


def configure(program, folder, model, pages):
    """The port of the gateway to be, and the audit's environment with the keys of its tenants."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = f'listen = "127.0.0.1:{port}"\ndata_dir = "."\nmodel = {json.dumps(os.path.abspath(model))}\n'
    text += f'[engine]\npages = {pages}\n[audit]\nprobes = ["victim"]\n'
    environment = dict(os.environ)
    for name, variable in TENANTS.items():
        made = subprocess.run([program, "key", "new", name, "--data-dir", folder], check=True, capture_output=True, text=True)
        environment[variable] = made.stderr.split()[-1]
        text += f'[[tenants]]\nname = "{name}"\nkey_hash = "{re.search(r"[0-9a-f]{64}", made.stdout)[0]}"\n'
    pathlib.Path(folder, "bulkhead.toml").write_text(text)
    return port, environment


def listening(process, port):
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
    sys.exit("the gateway does not start")


def main():
    program, verify, model, pages, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        port, environment = configure(program, folder, model, int(pages))
        config, output = os.path.join(folder, "bulkhead.toml"), pathlib.Path(folder, "result.json")
        gateway = subprocess.Popen([program, "serve", "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            listening(gateway, port)
            load_before, begun = os.getloadavg()[0], time.monotonic()
            audit = [program, "audit", "sidechannel", "--json", "--address", f"http://127.0.0.1:{port}", "--output", output]
            audit += ["--flood-tokens", str(int(pages) * PAGE_TOKENS), *arguments]
            made = subprocess.run(audit, env=environment, stdout=subprocess.PIPE, text=True)
            took_s, load_after = time.monotonic() - begun, os.getloadavg()[0]
        finally:
            gateway.terminate()
            gateway.wait()
        if made.returncode not in VERDICTS:
            sys.exit(f"the audit could not be made: exit status {made.returncode}")
        said = json.loads(made.stdout)
        log = subprocess.run([verify, "log", os.path.join(folder, "log"), "--json"], check=True, stdout=subprocess.PIPE, text=True)
        written = output.read_bytes()
    # What the program said, what it wrote and what the log holds are one result.
    assert said["result"] == json.loads(written) and said["result"]["verdict"] == VERDICTS[made.returncode]
    assert said["sha256"] == hashlib.sha256(written).hexdigest()
    log = json.loads(log.stdout)
    print(json.dumps({
        "exit_status": made.returncode, "pages": int(pages), "took_s": took_s,
        "load_average_before": load_before, "load_average_after": load_after,
        **said, "log": log,
    }))


main()
