"""Measures a gateway from outside and prints JSON: start, disconnects, 64 streams, memory, idleness.

Arguments: the `bulkhead` program, and optionally how many disconnects of each kind, or `starts` and a model file for the
starts alone: from the process to the first token of a stream, without a cache of repacked weights (cold) and with one
(warm), the model file in the system's memory in either case. Starts its own demo on loopback.
After a disconnect there is one look at `/metrics`, 5 or 10 ms after the socket was closed: has the engine stopped working
for that client? Looking all the time would take a core from the gateway and measure that.
"""

import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time


TENANT = """
[[tenants]]
name = "acme"
key_hash = "{hash}"
"""


class Serve:
    """`bulkhead serve` with one tenant, in a folder of its own, until its first token."""

    def __init__(self, program, folder, model, cache):
        made = subprocess.run([program, "key", "new", "acme", "--data-dir", folder], check=True, capture_output=True, text=True)
        key = made.stderr.split()[-1]
        hash = re.search(r"[0-9a-f]{64}", made.stdout)[0]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        config = os.path.join(folder, "bulkhead.toml")
        with open(config, "w") as file:
            file.write(f'listen = "127.0.0.1:{port}"\ndata_dir = "."\nmodel = {json.dumps(os.path.abspath(model))}\n')
            file.write('served_name = "model"\n' + TENANT.format(hash=hash))
        body = json.dumps({"model": "model", "messages": [{"role": "user", "content": "What is a lighthouse?"}],
                           "max_tokens": 4, "temperature": 0, "stream": True})
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
                f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n")
        started = time.perf_counter()
        process = subprocess.Popen([program, "serve", "--config", config, "--weights-cache", cache],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.001)
        self.listening_seconds = time.perf_counter() - started
        connection.sendall((head + body).encode())
        text = b""
        while not re.search(rb'"content":"[^"]', text):
            piece = connection.recv(65536)
            if not piece:
                sys.exit(f"no answer: {text.decode()}")
            text += piece
        self.first_token_seconds = time.perf_counter() - started
        with open(f"/proc/{process.pid}/status") as status:
            self.resident_bytes_peak = int(re.search(r"^VmHWM:\s+(\d+) kB", status.read(), re.MULTILINE)[1]) * 1024
        connection.close()
        # Repacked weights are written while requests are served.
        while not any(name.endswith(".weights") for name in os.listdir(cache)):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.wait()


def starts(program, model, repetitions=5):
    """Cold and warm in turn, so that what else happens on the machine meets both."""
    kinds = {"cold": [], "warm": []}
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as cache:
            for kind in kinds.values():
                with tempfile.TemporaryDirectory() as folder:
                    kind.append(Serve(program, folder, model, cache))

    def spread(values):
        return {"min": min(values), "median": statistics.median(values), "max": max(values)}

    return {
        name: {field: spread([getattr(one, field) for one in kind])
               for field in ("listening_seconds", "first_token_seconds", "resident_bytes_peak")}
        for name, kind in kinds.items()
    } | {"repetitions": repetitions, "model_bytes": os.path.getsize(model)}


class Demo:
    def __init__(self, program):
        started = time.perf_counter()
        self.process = subprocess.Popen([program, "demo", "--json", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE)
        ready = json.loads(self.process.stdout.readline())
        # The demo is ready when each tenant has had an answer.
        self.ready_seconds = time.perf_counter() - started
        self.host, port = ready["address"].removeprefix("http://").split(":")
        self.port = int(port)
        self.model = ready["model"]
        self.keys = [tenant["key"] for tenant in ready["tenants"]]
        self.metrics = http.client.HTTPConnection(self.host, self.port)

    def gauge(self, name):
        self.metrics.request("GET", "/metrics")
        text = self.metrics.getresponse().read().decode()
        return float(re.search(rf"^{name} (\S+)", text, re.MULTILINE).group(1))

    def idle(self):
        return self.gauge("kv_pages_free") == self.gauge("kv_pages_total")

    def request(self, prompt, max_tokens, stream, tenant=0):
        body = json.dumps({
            "model": self.model, "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens, "temperature": 0, "stream": stream,
        })
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self.host}\r\nauthorization: Bearer {self.keys[tenant]}"
                f"\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n")
        connection = socket.create_connection((self.host, self.port))
        connection.sendall((head + body).encode())
        return connection

    def stops_within(self, pause_ms, prompt, stream, wait_seconds):
        connection = self.request(prompt, 400, stream)
        if wait_seconds is None:
            connection.recv(1)
            time.sleep(0.05)
        else:
            time.sleep(wait_seconds)
        if self.gauge("engine_sequences_running") == 0:
            sys.exit("the engine was done before the client left: nothing was measured")
        connection.close()
        time.sleep(pause_ms / 1e3)
        stopped = self.gauge("engine_sequences_running") == 0
        while not self.idle():
            time.sleep(0.01)
        return stopped

    def status(self, field):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(rf"^{field}:\s+(\d+) kB", status.read(), re.MULTILINE).group(1)) * 1024

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    if sys.argv[2:3] == ["starts"]:
        print(json.dumps({"load_average_before": os.getloadavg()[0], "starts": starts(sys.argv[1], sys.argv[3])}, indent=2))
        return
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10
    load_before = os.getloadavg()[0]
    demo = Demo(program)
    result = {"load_average_before": load_before, "start_to_answers_seconds": demo.ready_seconds}
    result["resident_bytes_after_start"] = demo.status("VmRSS")
    long = "lorem ipsum dolor sit amet " * 220
    deep = "word " * 7000
    kinds = {
        "decode, streaming": ("Tell a story.", True, lambda _: None),
        "decode, whole answer": ("Tell a story.", False, lambda _: 0.3),
        "prefill of 1,300 tokens": (long, True, lambda number: 0.2 + number * 0.01),
        "prefill of 7,000 tokens": (deep, True, lambda number: 1 + number * 0.8),
    }
    result["stopped_after_disconnect"] = {
        kind: {"of": count} | {
            f"within_{pause}_ms": sum(demo.stops_within(pause, prompt, stream, wait(i)) for i in range(count))
            for pause in (5, 10)
        }
        for kind, (prompt, stream, wait) in kinds.items()
    }

    def stream(number):
        connection = demo.request(f"Write a sentence about the number {number}.", 64, True, number % 2)
        text = b""
        while piece := connection.recv(65536):
            text += piece
        return b"data: [DONE]" in text

    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        whole = sum(pool.map(stream, range(64)))
    result["streams_64"] = {"complete": whole, "seconds": time.perf_counter() - started}
    result["resident_bytes_peak"] = demo.status("VmHWM")
    time.sleep(3)
    result["resident_bytes_idle_afterwards"] = demo.status("VmRSS")
    before = demo.cpu_seconds()
    time.sleep(10)
    result["idle_cpu_seconds_in_10"] = round(demo.cpu_seconds() - before, 3)
    result["load_average_after"] = os.getloadavg()[0]
    demo.process.send_signal(signal.SIGTERM)
    demo.process.wait()
    print(json.dumps(result, indent=2))


main()
