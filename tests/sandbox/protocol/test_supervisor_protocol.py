"""The supervisor over its raw stream: it answers every request, whatever it contains, and the next one too."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m3agent.sandbox.backends.bwrap_machine import command
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.protocol import supervisor
from m3agent.sandbox.protocol.channel import BOOT
from m3agent.sandbox.protocol.supervisor import FRAME, Supervisor
from tests.conftest import bwrap_here

pytestmark = [pytest.mark.integration, pytest.mark.linux]  # the supervisor runs in a sandbox

Header = dict[str, Any]
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/tmp"}


@pytest.mark.parametrize("sent", [b"", b"0000", b"00000999", b"00000999import os"])
def test_a_host_that_ends_while_the_supervisor_arrives(sent: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BOOT, "/nowhere"],
        check=False,
        input=sent,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, b"the host ended before the supervisor had arrived\n")


class Wire:
    """A supervisor in bubblewrap, with methods to send and read frames."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            command(SandboxLimits()), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
        )
        source = Path(supervisor.__file__).read_bytes()
        self.write(b"%08d" % len(source) + source)
        self.hello: Header = self.frame()[0]
        self.last = 0

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def frame(self) -> tuple[Header, bytes]:
        assert self.process.stdout is not None
        sizes = FRAME.unpack(self.process.stdout.read(FRAME.size))
        header, payload = (self.process.stdout.read(size) for size in sizes)
        return json.loads(header), payload

    def send(self, header: object, payload: bytes = b"") -> None:
        self.send_raw(json.dumps(header).encode(), payload)

    def send_raw(self, header: bytes, payload: bytes = b"") -> None:
        self.write(FRAME.pack(len(header), len(payload)) + header + payload)

    def ask(self, op: str, payload: bytes = b"", **fields: Any) -> Header:
        """Send a request and return its first answer."""
        self.last += 1
        self.send({"op": op, "id": self.last, **fields}, payload)
        while True:
            header, _ = self.frame()
            if header["id"] == self.last:
                return header

    def run(self, argv: object, **fields: Any) -> tuple[Header, bytes]:
        """Run a command. Return the header of its end or of the error, and its standard output."""
        output = b""
        header = self.ask("exec", **{"argv": argv, "env": ENV, **fields})
        while header["ev"] in {"started", "out"} or header["id"] != self.last:
            header, payload = self.frame()
            output += payload if header.get("fd") == 1 else b""
        return header, output

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    if not bwrap_here():
        pytest.skip("bubblewrap does not work on this machine")
    wire = Wire()
    yield wire
    wire.close()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"argv": []}, "no command to run"),
        ({"argv": "true"}, "no command to run"),
        ({"argv": [1]}, "no command to run"),
        ({"argv": None}, "no command to run"),
        ({"argv": [""]}, "cannot run ''"),
        ({"argv": ["no-such-program"]}, "cannot run 'no-such-program': No such file or directory"),
        ({"argv": ["/tmp"]}, "Permission denied"),
        ({"argv": ["tr\0ue"]}, "cannot run 'tr\\x00ue'"),
        ({"argv": ["true", "a\0b"]}, "null byte"),
        ({"argv": ["true", "x" * 10_000_000]}, "Argument list too long"),
        ({"argv": ["true", "\ud83d"]}, "surrogates not allowed"),
        ({"argv": ["true"], "env": {"A": "\0"}}, "null byte"),
        ({"argv": ["true"], "env": {"A=B": "x"}}, "illegal environment"),
        ({"argv": ["true"], "env": {"A": 1}}, "cannot run 'true'"),
        ({"argv": ["true"], "env": None}, "cannot run 'true'"),
        ({"argv": ["true"], "cwd": "no/such"}, "no such folder: no/such"),
        ({"argv": ["true"], "cwd": "a\0b"}, "null byte"),
        ({"argv": ["true"], "limits": {"NOSUCH": 1}}, "RLIMIT_NOSUCH"),
        ({"argv": ["true"], "timeout": "soon"}, "could not convert"),
        ({"argv": ["true"], "grace": [1]}, "float()"),
        ({"argv": ["true"], "file": "/proc/nowhere/x"}, "cannot write the program"),
        ({"argv": ["true"], "file": 5}, ""),
    ],
)
def test_a_command_that_cannot_run_is_one_error(wire: Wire, fields: Header, said: str) -> None:
    answer, _ = wire.run(**fields)
    assert answer["ev"] == "error"
    assert said in answer["text"]
    assert len(answer["text"]) < 1000
    assert wire.run(["true"])[0]["exit"] == 0


def test_a_working_folder_that_vanished(wire: Wire) -> None:
    assert wire.run(["mkdir", "-p", "going"])[0]["exit"] == 0
    assert wire.run(["rmdir", "../going"], cwd="going")[0]["exit"] == 0
    answer, _ = wire.run(["true"], cwd="going")
    assert answer["text"].endswith("no such folder: going")


def test_bytes_that_are_not_utf_8(wire: Wire) -> None:
    name = os.fsdecode(b"caf\xe9")
    answer, output = wire.run(["printf", "%s", name], env={**ENV, name: name})
    assert (answer["exit"], output) == (0, b"caf\xe9")
    assert wire.ask("write", b"x", path=name)["ev"] == "ok"
    assert wire.run(["cat", name])[1] == b"x"
    found = wire.ask("scan", skip=[], most=1000)
    assert b"caf\xe9" in [os.fsencode(entry[0]) for entry in found["changed"]]


def wait_for_a_tick(file: Path) -> None:
    """Wait until the clock of the file system shows another time."""
    file.touch()
    before = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == before:
        file.touch()


def test_a_file_that_was_restored_was_touched(wire: Wire, tmp_path: Path) -> None:
    sha = "0" * 40
    files = [["kept", 0o100644, 1, sha], ["restored", 0o100644, 1, sha], ["removed", 0o100644, 1, sha]]
    wire.ask("put", b"abc", files=files, into=None, alone=True)
    wait_for_a_tick(tmp_path / "clock")
    wire.run(["sh", "-c", "printf x > restored; printf b > restored; rm removed; touch new"])
    assert wire.ask("touched")["paths"] == ["restored", "removed"]


def test_ten_megabytes_on_standard_input(wire: Wire) -> None:
    wire.last += 1
    wire.send({"op": "exec", "id": wire.last, "argv": ["wc", "-c"], "env": ENV}, b"x" * 10_000_000)
    output = b""
    while (got := wire.frame())[0]["ev"] != "exit":
        output += got[1]
    assert output.strip() == b"10000000"


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
OPERATIONS = st.sampled_from(
    ["exec", "input", "kill", "write", "read", "put", "delete", "scan", "touched", "ping", "speak", "nothing", "__init__", "listen", "tunnel"]
)  # fmt: skip
FIELDS = st.sampled_from(
    ["argv", "cwd", "env", "timeout", "grace", "background", "limits", "more", "file", "warm", "job", "path", "mode", "offset",
     "limit", "files", "into", "paths", "skip", "most", "version", "port", "window", "conn", "do", "end"]
)  # fmt: skip


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(op=OPERATIONS | ANY, fields=st.dictionaries(FIELDS, ANY, max_size=5), payload=st.binary(max_size=40))
def test_any_fields(wire: Wire, op: object, fields: Header, payload: bytes) -> None:
    answerless = {"tunnel", "alive"}
    wire.last += 1
    ident = wire.last
    wire.send({"op": op, "id": ident, **fields}, payload)
    wire.last += 1
    wire.send({"op": "ping", "id": wire.last})
    answered = isinstance(op, str) and op in answerless
    while (got := wire.frame())[0]["id"] != wire.last:
        answered |= got[0]["id"] == ident
    assert got[0]["ev"] == "ok"
    # `input` is answered once a command has read it, and here no such command exists
    assert answered


@settings(max_examples=100)
@given(
    raw=st.binary(max_size=60) | ANY.map(lambda value: json.dumps(value).encode()),
    payload=st.binary(max_size=20),
)
def test_any_header(wire: Wire, raw: bytes, payload: bytes) -> None:
    wire.send_raw(raw, payload)
    wire.last += 1
    wire.send({"op": "ping", "id": wire.last})
    first, _ = wire.frame()
    assert first["ev"] == "error"
    while (got := wire.frame())[0]["id"] != wire.last:
        pass
    assert got[0]["ev"] == "ok"


def test_a_header_nested_beyond_reason(wire: Wire) -> None:
    wire.send_raw(b"[" * 200_000)
    assert wire.frame()[0]["ev"] == "error"
    assert wire.ask("ping")["ev"] == "ok"


def test_a_frame_in_pieces(wire: Wire) -> None:
    wire.last += 1
    raw = json.dumps({"op": "ping", "id": wire.last}).encode()
    for byte in FRAME.pack(len(raw), 3) + raw + b"abc":
        wire.write(bytes([byte]))
    assert wire.frame() == ({"id": wire.last, "ev": "ok"}, b"")


@pytest.mark.integration
def test_an_impossible_frame_ends_the_supervisor() -> None:
    if not bwrap_here():
        pytest.skip("bubblewrap does not work on this machine")
    wire = Wire()
    try:
        wire.write(struct.pack(">II", 1 << 31, 0))
        assert wire.process.stdout is not None
        assert wire.process.stdout.read() == b""
        wire.process.wait(timeout=60)
    finally:
        wire.close()


def broken(header: Header, payload: bytes) -> None:
    raise {"unforeseen": AssertionError, "memory": MemoryError, "depth": RecursionError}[header["how"]]("odd")


@pytest.mark.parametrize("how", ["unforeseen", "memory", "depth"])
def test_an_unforeseen_fault_is_that_request_s_only(tmp_path: Path, how: str) -> None:
    read, write = os.pipe()
    one = Supervisor(str(tmp_path), read, write)
    one.answer({"id": 7, "how": how}, b"", broken)
    sizes = FRAME.unpack(os.read(read, FRAME.size))
    answer = json.loads(os.read(read, sizes[0]))
    assert (answer["id"], answer["ev"], answer["code"]) == (7, "error", "internal")
    assert "odd" in answer["text"]
    for fd in (read, write, one.root_fd):
        os.close(fd)


@pytest.mark.slow
def test_commands_beyond_the_limit_wait_their_turn(wire: Wire) -> None:
    """Each command has 1 s and takes 0.2 s. Together they take far longer."""
    count = 300
    first = wire.last + 1
    for ident in range(first, first + count):
        wire.send({"op": "exec", "id": ident, "argv": ["sleep", "0.2"], "env": ENV, "timeout": 1.0})
    wire.last = first + count - 1
    most = 0
    ends: dict[int, Header] = {}
    running: set[int] = set()
    while len(ends) < count:
        header, _ = wire.frame()
        if header["ev"] == "started":
            running.add(header["id"])
            most = max(most, len(running))
        else:
            running.discard(header["id"])
            ends[header["id"]] = header
    assert all(end["exit"] == 0 and not end["timed_out"] for end in ends.values())
    assert 1 < most <= 64


def test_a_waiting_command_takes_input_and_can_be_taken_back(wire: Wire) -> None:
    first = wire.last + 1
    for ident in range(first, first + 100):
        wire.send({"op": "exec", "id": ident, "argv": ["sleep", "0.3"], "env": ENV})
    fed, taken_back = first + 100, first + 101
    wire.send({"op": "exec", "id": fed, "argv": ["cat"], "env": ENV, "more": True}, b"one ")
    wire.send({"op": "exec", "id": taken_back, "argv": ["touch", "was-run"], "env": ENV})
    wire.send({"op": "input", "id": fed + 2, "job": fed, "end": True}, b"two")
    wire.send({"op": "kill", "id": fed + 3, "job": taken_back})
    wire.last = fed + 3
    output, ended = b"", 0
    while ended < 101:
        header, payload = wire.frame()
        assert header["id"] != taken_back
        output += payload
        ended += header["ev"] == "exit"
    assert output == b"one two"
    assert wire.run(["test", "-e", "was-run"])[0]["exit"] == 1


def test_commands_in_the_background_leave_room_for_others(wire: Wire) -> None:
    first = wire.last + 1
    started = []
    for ident in range(first, first + 80):
        wire.send({"op": "exec", "id": ident, "argv": ["sleep", "100"], "env": ENV, "background": True})
    wire.last = first + 79
    for _ in range(80):
        header, _ = wire.frame()
        if header["ev"] == "started":
            started.append(header["id"])
        else:
            assert (header["code"], header["text"]) == (
                "exec-refused",
                "too many background commands at once",
            )
    assert 1 < len(started) < 80
    assert wire.run(["true"])[0]["exit"] == 0
    for job in started:
        assert wire.ask("kill", job=job)["ev"] == "ok"
    assert wire.run(["true"])[0]["exit"] == 0


@pytest.mark.slow
def test_ten_thousand_at_once(wire: Wire) -> None:
    count = 10_000
    first = wire.last + 1
    frames = bytearray()
    for ident in range(first, first + count):
        raw = json.dumps({"op": "exec", "id": ident, "argv": ["true"], "env": ENV, "timeout": 10}).encode()
        frames += FRAME.pack(len(raw), 0) + raw
    wire.write(bytes(frames))
    wire.last = first + count - 1
    ended: set[int] = set()
    while len(ended) < count:
        header, _ = wire.frame()
        if header["ev"] != "started":
            assert (header["ev"], header["exit"]) == ("exit", 0)
            ended.add(header["id"])
    assert wire.ask("ping")["ev"] == "ok"
