"""An engine for tests that start one: it takes vLLM's arguments, logs like vLLM and answers HTTP, without GPUs.

A program that needs only the standard library, so that it also runs inside containers and on Slurm's nodes. With
`--master-addr` the first node waits until all others have called, as vLLM's does. `/seen` says what it was given.
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE = 30.0  # seconds for the first node to start


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("serve")
    parser.add_argument("model")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29501)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--fail-rank", type=int, help="this node ends as an engine that cannot start")
    return parser.parse_known_args()[0]


def say(text: str) -> None:
    sys.stdout.write(f"INFO 11-22 01:00:00 [stand_in.py:1] {text}\n")
    sys.stdout.flush()


def meet(asked: argparse.Namespace) -> list[str]:
    """Wait for the other nodes, and return what they sent."""
    said: list[str] = []
    with socket.create_server((asked.master_addr, asked.master_port)) as listening:
        listening.settimeout(PATIENCE)
        for _ in range(asked.nnodes - 1):
            with listening.accept()[0] as other:
                said.append(other.recv(1000).decode())
    return said


def call(asked: argparse.Namespace) -> None:
    """Report to the first node, and retry while it has not started yet."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection((asked.master_addr, asked.master_port)) as first:
                address = os.environ.get("VLLM_HOST_IP", "")
                mine = {"rank": asked.node_rank, "headless": asked.headless, "address": address}
                first.sendall(json.dumps(mine).encode())
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def end(*_: object) -> None:
    say("Shutting down")
    os._exit(0)


def main() -> None:
    asked = arguments()
    signal.signal(signal.SIGTERM, end)
    say("vLLM API server version 0.24.0")
    if asked.node_rank == asked.fail_rank:
        sys.exit("ValueError: Free memory on device is less than desired GPU memory utilization")
    if asked.node_rank:
        call(asked)
        threading.Event().wait()
    others = meet(asked) if asked.nnodes > 1 else []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "others": others}  # noqa: PTH109
            seen["files"] = {
                path: os.path.exists(path) and (os.access(path, os.W_OK), sorted(os.listdir(path)))  # noqa: PTH110, PTH208
                for path in self.path.partition("?")[2].split(",")
                if path
            }
            body = json.dumps(seen if self.path.startswith("/seen") else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer((asked.host, asked.port), Handler)
    say("Application startup complete.")
    server.serve_forever()


if __name__ == "__main__":
    main()
