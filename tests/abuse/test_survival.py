"""Processes that try to outlive their command: they leave its session, parent or environment, or ignore signals."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.abuse.box import INSIDE, Box, gone, survivors, until
from tests.conftest import TIME_LIMITS, later

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.supervisor]

STAYERS = {
    "new-session": "child(lambda: (os.setsid(), become('sleep', '301')))",
    "double-fork": "child(lambda: (os.setsid(), child(lambda: become('sleep', '301'))))",
    "daemon": "child(lambda: (os.setsid(), child(lambda: (forget_descriptors(), os.chdir('/'), become('sleep', '301')))))",
    "ignores-signals": "ignore_polite_signals(); child(lambda: (os.setpgid(0, 0), time.sleep(301)))",
    "nohup": "os.system('nohup sh -c \"trap : TERM HUP INT; sleep 301; sleep 302\" >/dev/null 2>&1 &')",
    "stopped": "child(lambda: (os.setsid(), os.kill(os.getpid(), signal.SIGSTOP)))",
    "clean-environment": "child(lambda: (os.setsid(), child(lambda: become('env', '-i', 'setsid', 'sleep', '301'))))",
    "limits-lowered": (
        "import resource\n"
        "child(lambda: ([resource.setrlimit(n, (0, 0)) for n in (10, 15)], os.setsid(), child(lambda: become('sleep', '301'))))"
    ),
    # its parent is process 1 from the start, and nothing links it to the command
    "sibling": "os.environ.clear(); syscall('clone', 0x8000 | 17, None, None, None, None) or (os.setsid(), become('sleep', '301'))",
    # the process counts as a zombie, but its second thread still runs
    "zombie-with-a-thread": (
        "child(lambda: (os.setsid(), threading.Thread(target=time.sleep, args=(301,)).start(), libc.pthread_exit(None)))"
    ),
    # a chain of short-lived processes: each has a successor before it can be killed
    "relay": "child(lambda: [os.fork() and os._exit(0) or os.setsid() for _ in iter(int, 1)])",
}
"""Programs that leave a process running when the command times out or its main process ends."""

READY, HANG = "\nprint('ready', flush=True)\n", "\ntime.sleep(300)\n"


def programs(end: str) -> list[str]:
    """Return each program of STAYERS. The number of seconds that it sleeps identifies a surviving process."""
    return [stayer.replace("301", str(301 + n)) + end for n, stayer in enumerate(STAYERS.values())]


def all_in_one(end: str) -> str:
    return (
        "\n".join(f"child(lambda: exec({program!r}, globals()))" for program in programs(""))
        + "\ntime.sleep(0.3)"
        + end
    )


async def test_nothing_outlives_a_timeout(box: Box) -> None:
    for limit in TIME_LIMITS:
        started = time.monotonic()
        done = await box.python(all_in_one(READY + HANG), timeout=limit + 1)
        assert time.monotonic() - started < limit + 60
        if done.stdout:
            break
    else:
        pytest.fail("it did not begin")
    assert (done.timed_out, done.stdout) == (True, b"ready\n"), done.stderr
    assert await survivors(box.sandbox) == []


async def test_nothing_outlives_its_command(box: Box) -> None:
    started = time.monotonic()
    done = await box.python(all_in_one(READY))
    assert (done.timed_out, done.stdout) == (False, b"ready\n"), done.stderr
    assert time.monotonic() - started < 60, "it waited for what the command left running"
    assert await survivors(box.sandbox) == []


async def test_nothing_outlives_a_background_command_that_is_killed(box: Box) -> None:
    program = f"{INSIDE}\n{all_in_one('')}\nopen('ready', 'w').close()\n{HANG}"
    job = await box.sandbox.exec(["python3", "-c", program], background=True)
    assert job.job is not None
    await until(lambda: box.has("ready"))
    await box.sandbox.kill(job.job)
    await gone(box.sandbox)


@pytest.mark.parametrize("end", ["by-itself", later("by-timeout")])
async def test_nothing_outlives_commands_side_by_side(box: Box, end: str) -> None:
    """The supervisor must know which process belongs to which command: a command that still runs keeps its own."""
    beside = await box.sandbox.exec(["sleep", "999"], background=True)
    assert beside.job is not None
    hang = HANG if end == "by-timeout" else "\ntime.sleep(0.1)"
    for limit in TIME_LIMITS[1:] if hang == HANG else (60,):
        running = [box.python(program, timeout=limit) for program in programs(READY + hang)]
        every = await asyncio.gather(*running)
        if all(done.stdout for done in every):
            break
    else:
        pytest.fail("it did not begin")
    for done in every:
        assert (done.timed_out, done.stdout) == (end == "by-timeout", b"ready\n"), done.stderr
    left = await survivors(box.sandbox)
    assert [line for line in left if "999" not in line] == []
    assert len(left) == 1, "the other command was killed along with them"
    await box.sandbox.kill(beside.job)
    await gone(box.sandbox)


async def test_a_child_that_holds_the_output_open_delays_nothing(box: Box) -> None:
    started = time.monotonic()
    done = await box.python(
        "child(lambda: (os.setsid(), time.sleep(301)))\nos.write(1, b'done')\nos._exit(7)"
    )
    assert (done.exit, done.stdout) == (7, b"done")
    assert time.monotonic() - started < 60


async def test_a_command_without_descriptors_is_still_timed(box: Box) -> None:
    done = await box.python("forget_descriptors()\nignore_polite_signals()\ntime.sleep(300)", timeout=0.7)
    assert done.timed_out


@pytest.mark.parametrize("parallel", [later(False), True])
async def test_fork_bomb(box: Box, parallel: bool) -> None:
    beside = await box.sandbox.exec(["sleep", "999"], background=True) if parallel else None
    bomb = (
        "ignore_polite_signals()\nwhile True:\n    try: os.fork(); os.setpgid(0, 0)\n    except OSError: pass"
    )
    done = await box.python(bomb, timeout=1)
    assert done.timed_out
    left = await survivors(box.sandbox)
    assert [line for line in left if "999" not in line] == []
    assert len(left) == (1 if parallel else 0), "the other command was killed along with it"
    if beside is not None and beside.job is not None:
        await box.sandbox.kill(beside.job)
        await gone(box.sandbox)


async def test_thread_bomb(box: Box) -> None:
    bomb = "while True:\n    try: threading.Thread(target=time.sleep, args=(301,)).start()\n    except RuntimeError: pass"
    assert (await box.python(bomb, timeout=1)).timed_out
