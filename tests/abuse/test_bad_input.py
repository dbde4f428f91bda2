"""Invalid requests, and a sandbox that disappears: the result is a clear error, never a hang or a crash."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from m3agent.sandbox.backends.docker_machine import DockerMachine
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.errors import DiskFull, FileProblem, PathEscapes, SandboxDied, SandboxError
from m3agent.sandbox.protocol.channel import Channel
from m3agent.tools.registry import Toolset
from tests.abuse.box import Box, gone
from tests.tools.small_disk import fill, small_disk

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.supervisor]

LIMITS = SandboxLimits(memory=512 << 20)
TEN_MEGABYTES = 10 << 20

COMMANDS: dict[str, list[str]] = {
    "ten-megabytes": ["sh", "-c", "x" * TEN_MEGABYTES],
    "many-arguments": ["echo", *["x"] * 1_000_000],
    "nul": ["echo", "a\0b"],
    "nul-in-name": ["ec\0ho"],
    "half-a-surrogate-pair": ["echo", "\ud800"],
    "nothing": [],
    "empty-name": [""],
    "a-folder": ["/ws"],
    "not-executable": ["/etc/hosts"],
    "missing": ["no-such-program"],
    "not-a-program": ["/ws/garbage"],
    "loop-of-links": ["/ws/loop"],
}


async def test_commands_that_cannot_run(box: Box) -> None:
    await box.python(
        "put('/ws/garbage', '\\0\\1\\2'); os.chmod('/ws/garbage', 0o755); os.symlink('loop', '/ws/loop')"
    )
    for name, command in COMMANDS.items():
        done = await box.sandbox.exec(command, timeout=60)
        assert done.exit in {126, 127}, name
        assert done.stderr, name


async def test_bytes_that_are_not_text_arrive_unchanged(box: Box) -> None:
    done = await box.sandbox.exec(
        ["printf", "%s", b"\xff\xfe caf\xe9 \x1b[2J\n".decode(errors="surrogateescape")]
    )
    assert done.stdout == b"\xff\xfe caf\xe9 \x1b[2J\n"


async def test_programs_of_ten_megabytes(box: Box, tmp_path: Path) -> None:
    for language in ("python", "bash"):
        code = (
            "#" * TEN_MEGABYTES + "\necho = print('ran')"
            if language == "python"
            else "#" * TEN_MEGABYTES + "\necho ran"
        )
        arguments = {"code": code, "language": language, "timeout": 60}
        result = await Toolset(box.sandbox, tmp_path).call("code_exec", arguments, 1)
        assert "ran" in result.content or result.is_error


ARGUMENTS: list[dict[str, object]] = [
    {}, {"code": 7}, {"code": "x", "timeout": 0}, {"code": "x", "timeout": -1}, {"code": "x", "timeout": 10**9}, {"code": "x", "timeout": float("nan")},
    {"code": "a\0b"}, {"code": "\ud800"}, {"code": "x", "language": "perl"}, {"code": "x", "user": "root"}, {"code": [7]}, {"code": None},
]  # fmt: skip


async def test_arguments_of_a_tool_that_make_no_sense(box: Box, tmp_path: Path) -> None:
    for arguments in ARGUMENTS:
        result = await Toolset(box.sandbox, tmp_path).call("code_exec", arguments, 1)
        assert result.is_error, arguments
        assert result.content.startswith("error: "), arguments


PATHS = ["", ".", "..", "/", "a\0b", "x" * 300, "x/" * 3000 + "x", "\ud800", "//etc/passwd", "./../x"]


async def test_paths_that_make_no_sense(box: Box) -> None:
    for path in PATHS:
        for work in (box.sandbox.read(path), box.sandbox.write(path, b"x")):
            with pytest.raises((PathEscapes, FileProblem)):
                await work


async def test_a_working_directory_that_vanished(box: Box) -> None:
    sandbox = box.sandbox
    await sandbox.exec(["mkdir", "/ws/here"])
    gone = await sandbox.exec(
        ["sh", "-c", "rmdir /ws/here; pwd; python3 -c 'import os; os.getcwd()'"], cwd="here"
    )
    assert gone.exit == 1
    after = await sandbox.exec(["true"], cwd="here")
    assert (after.exit, b"no such folder" in after.stderr) == (127, True)
    for cwd in ("/etc/hosts", "a.txt", "\0", "x" * 5000, "loop"):
        assert (await sandbox.exec(["true"], cwd=cwd)).exit in {126, 127}


async def test_an_environment_that_makes_no_sense(box: Box) -> None:
    for env in ({"A\0B": "x"}, {"A": "x\0y"}, {"A=B": "x"}, {"": "x"}, {"A": "x" * 5_000_000}):
        done = await box.sandbox.exec(["true"], env=env)
        assert done.exit in {0, 126, 127}
    awkward = await box.sandbox.exec(
        ["sh", "-c", "echo $PATH"], env={"PATH": "/usr/bin:/bin", "IFS": "/", "LD_PRELOAD": "/no"}
    )
    assert b"/usr/bin" in awkward.stdout


async def test_no_time_at_all(box: Box) -> None:
    for timeout in (0.0, -1.0, 1e-9):
        assert (await box.sandbox.exec(["sleep", "100"], timeout=timeout)).timed_out


async def test_a_hundred_calls_at_once(box: Box) -> None:
    done = await asyncio.gather(*(box.sandbox.exec(["echo", str(n)], timeout=90) for n in range(100)))
    right = [d for n, d in enumerate(done) if (d.exit, d.stdout) == (0, b"%d\n" % n)]
    # processes are limited: a call that gets none fails with a message, and never gets another call's output
    assert all(d.exit in {126, 127} and d.stderr and not d.stdout for d in done if d not in right)
    assert len(right) >= 20


@pytest.mark.slow
async def test_ten_thousand_calls_at_once(box: Box) -> None:
    done = await asyncio.gather(
        *(
            box.sandbox.exec(["echo", str(n)], timeout=170)
            if n % 20 == 0
            else box.sandbox.write(f"n{n % 50}", b"%d" % n)
            for n in range(10_000)
        )
    )
    assert all(d is None or d.exit in {0, 126, 127} for d in done)


async def test_requests_the_supervisor_does_not_know(box: Box) -> None:
    channel: Channel = box.sandbox.channel
    for op, fields in (
        ("", {}), ("no-such", {}), ("__init__", {}), ("exec", {}), ("exec", {"argv": 7, "env": {}}), ("exec", {"argv": ["true"], "env": 7}),
        ("read", {"path": 7}), ("read", {"path": "x", "limit": "y"}), ("write", {}), ("put", {"files": [["../x", 33188, 1, ""]]}),
        ("put", {"files": 7}), ("delete", {"paths": ["../x"]}), ("scan", {}), ("kill", {}), ("kill", {"job": "x"}), ("kill", {"job": 10**9}),
    ):  # fmt: skip
        header, _ = await channel.ask(op, b"x", timeout=60, **fields)
        assert header["ev"] in {"error", "ok"}, (op, fields)
        assert header["ev"] == "error" or op == "kill", (op, fields)


async def test_the_container_is_removed_by_someone_else(box: Box) -> None:
    async with box.fresh() as sandbox:
        running = asyncio.create_task(sandbox.exec(["sleep", "100"], timeout=100))
        await sandbox.ping()
        machine = sandbox.machine
        if isinstance(machine, DockerMachine):
            api = connect()
            await asyncio.to_thread(api.remove_container, machine._id, force=True)
            api.close()
        else:
            await machine.destroy()
        async with asyncio.timeout(120):
            with pytest.raises(SandboxDied):
                await running
            for work in (
                sandbox.ping(),
                sandbox.exec(["true"]),
                sandbox.read("x"),
                sandbox.write("x", b""),
                sandbox.checkpoint(),
            ):
                with pytest.raises(SandboxDied):
                    await work


async def test_a_full_disk_of_the_host(box: Box, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as folder:
        fill(folder)
        with pytest.raises(DiskFull):
            await box.sandbox.exec(["head", "-c", "3000000", "/dev/zero"], log=folder / "log")
    await gone(box.sandbox)


# What a program could send that has replaced the supervisor. The host reads frames, and must not crash, hang or run out
# of memory.
FRAMES = {
    "noise": "os.urandom(100_000)",
    "not-json": "struct.pack('>II', 5, 0) + b'{{{{{'",
    "no-object": "struct.pack('>II', 2, 0) + b'[]'",
    "second-greeting": "frame({'ev': 'hello', 'protocol': 1}) * 3",
    "unknown-id": "frame({'ev': 'ok', 'id': 999999}) * 1000",
    "id-of-another-kind": "frame({'ev': 'ok', 'id': [1]})",
    "endless-header": "struct.pack('>II', 0xFFFFFFFF, 0) + b'x' * (200 << 20)",
    "endless-payload": "struct.pack('>II', 20, 0xFFFFFFFF) + b'{\"ev\":\"ok\",\"id\":1}  ' + b'x' * (200 << 20)",
    "deep-json": "struct.pack('>II', 200_000, 0) + b'[' * 200_000",
    "nothing": "b''",
}
IMPOSTOR = """
import json, os, struct, sys, time
def frame(header):
    raw = json.dumps(header).encode()
    return struct.pack(">II", len(raw), 0) + raw
sys.stdin.buffer.read(8)
sys.stdout.buffer.write(frame({"ev": "hello", "python": "3", "root": "/ws"}))
sys.stdout.buffer.flush()
sys.stdout.buffer.write(%s)
sys.stdout.buffer.flush()
os.close(1)
"""


@pytest.mark.parametrize("frames", FRAMES)
async def test_impostor_of_the_supervisor(frames: str) -> None:
    program = [sys.executable, "-c", IMPOSTOR % FRAMES[frames]]
    process = await asyncio.create_subprocess_exec(*program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout and process.stdin

    async def why_dead() -> SandboxError:
        return SandboxDied("it ended")

    before = most_memory()
    channel = Channel(process.stdout, process.stdin, multiplexed=False, why_dead=why_dead)
    try:
        async with asyncio.timeout(120):
            with pytest.raises(SandboxDied):
                await channel.boot(60)
                await channel.ask("ping", timeout=60)
        closed, _ = await asyncio.wait([asyncio.create_task(channel.close())], timeout=60)
        assert closed, "close() waits for a supervisor that does not read"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        while await process.stdout.read(1 << 20):
            pass  # asyncio does not notice the end of the process while output is unread
        await process.wait()
    assert most_memory() - before < 100 << 20


def most_memory() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
