"""Parallel commands: each ends with all processes that it started, even hidden ones, and with no others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.protocol import supervisor
from tests.conftest import until

pytestmark = pytest.mark.supervisor

SandboxOf = Callable[..., Sandbox]

HIDE = """
import os, resource, sys
def hide(seconds, shed):
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for fd in range(3):
        os.close(fd)
    shed()
    os.execve('/bin/sleep', ['sleep', seconds], {})
def lower(*limits):
    for limit, by in limits:
        now = resource.getrlimit(limit)[1]
        if now != resource.RLIM_INFINITY:
            resource.setrlimit(limit, (now - by, now - by))
"""


async def sleepers(sandbox: Sandbox) -> list[str]:
    """Return the arguments of every running `sleep`."""
    script = (
        "for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $p; echo; done 2> /dev/null | sed -n 's/^sleep //p'"
    )
    done = await sandbox.exec(["sh", "-c", script])
    return sorted(done.stdout.decode().split())


async def until_sleeping(sandbox: Sandbox, *expected: str) -> None:
    """Wait until exactly these run: on a busy machine, a server may start its processes late."""
    deadline = time.monotonic() + 30
    while (found := await sleepers(sandbox)) != [*expected]:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_what_leaves_its_command_at_once_ends_with_it_and_not_before(
    sandbox_of: SandboxOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The supervisor gets no time on a busy machine, so its child runs for long before it has a mark.
    source = Path(supervisor.__file__).read_text()
    line = "    seal_all(pid, number, limits, processes)\n"
    assert source.count(line) == 1
    slow = tmp_path / "slow.py"
    slow.write_text(source.replace(line, "    time.sleep(0.5)\n" + line))
    monkeypatch.setattr(supervisor, "__file__", str(slow))
    async with sandbox_of() as sandbox:
        program = HIDE + "hide('201', lambda: None)\nos.execvp('sleep', ['sleep', '202'])"
        beside = await sandbox.exec(["python3", "-c", program], background=True)
        await until_sleeping(sandbox, "201", "202")
        assert await sleepers(sandbox) == ["201", "202"], "the end of another command ended one"
        assert beside.job is not None
        await sandbox.kill(beside.job)
        assert await sleepers(sandbox) == []


async def test_what_hides_is_ended_with_its_command(sandbox_of: SandboxOf) -> None:
    program = HIDE + (
        "hide('301', lambda: None)\n"
        "hide('302', lambda: lower((10, 1)))\n"
        "hide('303', lambda: lower((15, 1)))\n"
        "hide('304', lambda: lower((10, 1), (15, 5)))\n"
        "hide('305', lambda: resource.setrlimit(10, (0, 0)))\n"
    )
    server = HIDE + "hide('201', lambda: None)\nos.execvp('sleep', ['sleep', '202'])"
    async with sandbox_of() as sandbox:
        beside = await sandbox.exec(["python3", "-c", server], background=True)
        assert beside.job is not None
        await until_sleeping(sandbox, "201", "202")
        for ending in ("", "import time; time.sleep(60)", "os.abort()"):
            done = await sandbox.exec(
                ["python3", "-c", program + ending], timeout=1 if "sleep" in ending else 20
            )
            assert done.timed_out == ("sleep" in ending)
            assert await sleepers(sandbox) == ["201", "202"], "all of the one, none of the other"
        await sandbox.kill(beside.job)
        assert await sleepers(sandbox) == []


@pytest.mark.slow  # quick: test_nothing_outlives_commands_side_by_side of test_survival.py
async def test_many_at_once_end_alone(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:

        async def one(number: int) -> bytes:
            program = HIDE + f"hide('{300 + number}', lambda: None); print({number})"
            return (await sandbox.exec(["python3", "-c", program], timeout=50)).stdout

        printed = await asyncio.gather(*(one(number) for number in range(24)))
        assert printed == [f"{number}\n".encode() for number in range(24)]
        assert await sleepers(sandbox) == []


@pytest.mark.slow  # quick: test_survival.py
async def test_a_fork_bomb_beside_another_command(sandbox_of: SandboxOf) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork(); os.setsid()\n    except OSError: pass"
    async with sandbox_of(limits=SandboxLimits(memory=1 << 30, pids=128)) as sandbox:
        await sandbox.exec(["sleep", "300"], background=True)
        # one process: how many of a shell's pipeline have begun is chance
        count = ["python3", "-c", "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"]
        before = int((await sandbox.exec(count)).stdout)
        done = await sandbox.exec(["python3", "-c", bomb], timeout=1)
        assert done.timed_out
        # if the bomb forked faster than its processes could be found, the other command may also have been killed
        assert await sleepers(sandbox) in ([], ["300"])
        assert int((await sandbox.exec(count)).stdout) <= before


async def test_what_a_command_in_the_background_wrote(sandbox_of: SandboxOf, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    async with sandbox_of() as sandbox:
        script = "echo ready; head -c 1000000 /dev/zero; echo no >&2; sleep 300"
        server = await sandbox.exec(["sh", "-c", script], background=True, log=log)
        assert server.job is not None
        for _ in range(200):
            if log.exists() and log.stat().st_size == 1_000_009:
                break
            await asyncio.sleep(0.05)
        ended = await sandbox.kill(server.job)
        assert ended is not None
        assert ended.exit == -9
        assert ended.stdout.startswith(b"ready\n")
        assert len(ended.stdout) == 64 << 10
        assert (ended.stderr, ended.total_bytes) == (b"no\n", 1_000_009)
        assert log.stat().st_size == 1_000_009
        assert await sandbox.kill(server.job) is None
        log = tmp_path / "short.log"
        short = await sandbox.exec(["sh", "-c", "echo $$"], background=True, log=log)
        assert short.job is not None
        await until(lambda: log.exists() and log.read_bytes().endswith(b"\n"))
        pid = log.read_text().strip()
        await sandbox.exec(["sh", "-c", f"while kill -0 {pid} 2>/dev/null; do sleep 0.01; done"])
        ended = await sandbox.kill(short.job)
        assert ended is not None
        assert (ended.exit, ended.stdout.decode()) == (0, f"{pid}\n")
        nothing = await sandbox.exec(["no-such-program"], background=True)
        assert (nothing.exit, nothing.job) == (127, None)


@pytest.mark.slow  # quick: test_supervisor_protocol.py
async def test_time_spent_waiting_for_a_turn_does_not_count(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        every = await asyncio.gather(*(sandbox.exec(["sleep", "0.5"], timeout=4) for _ in range(200)))
        assert {(done.exit, done.timed_out) for done in every} == {(0, False)}


async def test_commands_that_no_shell_would_take(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        for argv, code in (
            ([], 127),
            (["a\0b"], 127),
            (["true", "a\0b"], 126),
            (["true", "x" * 10_000_000], 126),
        ):
            done = await sandbox.exec(argv)
            assert (done.exit, done.stdout) == (code, b"")
            assert done.stderr
        large = await sandbox.exec(["sh"], stdin=b": " + b"x" * 10_000_000 + b"\necho read")
        assert large.stdout == b"read\n"
        odd = await sandbox.exec(["printf", "%s", "caf\udce9"], env={"NAME": "\udcff"})
        assert odd.stdout == b"caf\xe9"


@pytest.mark.slow
async def test_ten_thousand_calls_at_once(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        every = await asyncio.gather(*(sandbox.exec(["true"], timeout=5) for _ in range(10_000)))
        assert {(done.exit, done.timed_out) for done in every} == {(0, False)}
        assert (await sandbox.exec(["echo", "well"])).stdout == b"well\n"
