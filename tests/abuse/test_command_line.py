"""Some of the same attempts through `m3agent sandbox exec`, as a user would try them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.sandbox.backends.factory import Backend
from tests.abuse.box import INSIDE
from tests.command_line import Process

pytestmark = pytest.mark.supervisor

MakeRepo = Callable[..., Path]

REFUSED = """
for n in range(1, 65): outcome(lambda: os.kill(1, n))
os.write(1, b'{"ev":"exit","exit":0}' + bytes(8 << 20))
asks = lambda: socket.socket(40, 1), lambda: connect(("192.0.2.1", 80)), lambda: open("/proc/1/mem", "rb")
os._exit(7 if "done" not in [outcome(ask) for ask in asks] else 8)
"""
# program, time limit in seconds, correct exit codes
ATTEMPTS: dict[str, tuple[str, float, set[int]]] = {
    "survivor": (
        "child(lambda: (os.setsid(), ignore_polite_signals(), become('sleep', '4321')))\ntime.sleep(300)",
        1,
        {124},
    ),
    "refused": (REFUSED, 60, {7}),
}


@pytest.mark.slow  # quick: test_survival.py
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_sandbox_exec_stops_the_attempt(kind: Backend, make_repo: MakeRepo, attempt: str) -> None:
    program, limit, right = ATTEMPTS[attempt]
    repo = make_repo({"a.txt": "a\n"})
    started = time.monotonic()
    where = ("--repo", str(repo), "--sandbox", kind, "--timeout", str(limit))
    process = Process("sandbox", "exec", *where, "--", "python3", "-c", f"{INSIDE}\n{program}")
    _, errors = process.communicate(timeout=100)
    assert process.returncode in right, errors.decode(errors="replace")
    assert time.monotonic() - started < limit + 40
    assert not alive("4321")


def alive(argument: str) -> list[str]:
    """Return the processes of this machine that have this argument, including those in sandboxes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if argument.encode() in words:
            found.append(process.name)
    return found
