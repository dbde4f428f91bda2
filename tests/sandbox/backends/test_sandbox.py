"""Isolation and limits of the sandbox, on every backend of this machine. The core's contract is in test_contract.py."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.sandbox.backends.sandbox import BLOCK, Sandbox, SandboxLimits
from m3agent.sandbox.errors import DiskFull, FileProblem, PathEscapes
from tests.conftest import TIME_LIMITS

SandboxOf = Callable[..., Sandbox]


async def processes(sandbox: Sandbox) -> list[str]:
    """Return the command lines of all processes inside, except the supervisor and the one that lists them."""
    script = (
        "import glob,os\n"
        "for p in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    n = p.split('/')[2]\n"
        "    if n not in ('1', str(os.getpid())):\n"
        "        print(open(p).read().replace(chr(0), ' '))\n"
    )
    done = await sandbox.exec(["python3", "-c", script])
    return [line for line in done.stdout.decode().splitlines() if line.strip()]


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=50), st.integers(1, 10_000))
def test_the_memory_for_a_work_tree_has_room_for_it_twice(sizes: list[int], times: int) -> None:
    """Git in the sandbox has a copy of each file."""
    limits = SandboxLimits(memory=SandboxLimits.memory_for(sizes * times))
    assert limits.inodes >= 2 * len(sizes) * times
    assert limits.disk >= 2 * times * sum(size + BLOCK - 1 for size in sizes if size > BLOCK)


def incompressible(count: int) -> dict[str, bytes]:
    """Return files of 1 MiB each."""
    content = random.Random(count).randbytes(1 << 20)
    return {f"{number}.bin": content + bytes([number]) for number in range(count)}


@pytest.mark.slow  # quick: test_the_memory_for_a_work_tree_has_room_for_it_twice
async def test_a_work_tree_without_room_says_how_much_memory_it_needs(sandbox_of: SandboxOf) -> None:
    with pytest.raises(DiskFull, match=r"work tree of 130 files: give it 2 GiB of memory"):
        async with sandbox_of(incompressible(130), limits=SandboxLimits(memory=256 << 20)):
            pass


@pytest.mark.slow  # quick: test_the_memory_for_a_work_tree_has_room_for_it_twice
async def test_without_room_for_gits_copies_there_is_no_repository(sandbox_of: SandboxOf) -> None:
    async with sandbox_of(incompressible(60), limits=SandboxLimits(memory=256 << 20)) as sandbox:
        assert (await sandbox.exec(["ls", "-d", ".git"])).exit != 0
        await sandbox.write("more.bin", bytes(1 << 20))


async def test_a_signal_that_ends_a_command_is_its_exit(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        killed = await sandbox.exec(["sh", "-c", "kill -9 $$"])
        assert killed.exit == -9


@pytest.mark.slow  # quick: tests/abuse/test_survival.py
async def test_nothing_survives_a_timeout(sandbox_of: SandboxOf) -> None:
    hard = (
        "import os,signal,subprocess,sys,time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep','301'], start_new_session=True)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: os.execvpe('sleep', ['sleep','302'], {})\n"
        "    os._exit(0)\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)\n"
    )
    async with sandbox_of() as sandbox:
        for limit in TIME_LIMITS:
            started = time.monotonic()
            done = await sandbox.exec(["python3", "-c", hard], timeout=limit)
            assert time.monotonic() - started < limit + 60
            if done.stdout:
                break
        else:
            pytest.fail("it did not begin")
        assert done.timed_out
        assert done.stdout == b"ready\n"
        assert await processes(sandbox) == []


async def test_nothing_survives_a_command_that_ends(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        started = time.monotonic()
        done = await sandbox.exec(["sh", "-c", "sleep 300 & setsid sleep 300 & echo done"])
        assert done.stdout == b"done\n"
        assert time.monotonic() - started < 60, "it waited for the background children"
        assert await processes(sandbox) == []


async def test_background_job_runs_on_beside_others_until_killed(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        job = await sandbox.exec(["sh", "-c", "sleep 300; true"], background=True)
        assert job.job is not None
        await sandbox.exec(["sh", "-c", "setsid sleep 200 & true"])
        timed_out = await sandbox.exec(["sh", "-c", "setsid sleep 200 & sleep 200"], timeout=0.3)
        assert timed_out.timed_out
        assert all("300" in line for line in await processes(sandbox))
        assert len(await processes(sandbox)) == 2
        await sandbox.kill(job.job)
        for _ in range(100):
            if not await processes(sandbox):
                break
        assert await processes(sandbox) == []


async def test_supervisor_cannot_be_killed_or_traced_from_inside(sandbox_of: SandboxOf) -> None:
    attack = "kill -9 1; kill -TERM 1; kill -STOP 1; kill -INT 1; ls /proc/1/fd; echo forged > /proc/1/fd/1; cat /proc/1/environ"
    async with sandbox_of() as sandbox:
        done = await sandbox.exec(["sh", "-c", attack])
        await sandbox.ping()
        assert b"Permission denied" in done.stderr or b"cannot open" in done.stderr
        assert (await sandbox.exec(["echo", "alive"])).stdout == b"alive\n"


async def test_hardening(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        caps = await sandbox.exec(["sh", "-c", "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; id -u"])
        text = caps.stdout.decode()
        assert "CapEff:\t0000000000000000" in text
        assert "NoNewPrivs:\t1" in text
        assert text.splitlines()[-1] == "1000"
        for target in ("/usr/x", "/etc/x", "/x", "/proc/sys/kernel/core_pattern"):
            done = await sandbox.exec(["sh", "-c", f"echo x > {target}"])
            assert done.exit != 0, target
        net = "import socket; s = socket.socket(); s.settimeout(2); s.connect(('192.0.2.1', 80))"
        assert (await sandbox.exec(["python3", "-c", net])).exit != 0
        links = await sandbox.exec(["sh", "-c", "cat /proc/net/dev"])
        names = {line.split(":")[0].strip() for line in links.stdout.decode().splitlines() if ":" in line}
        tunnels = {"tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"}
        assert names <= {"lo", *tunnels}


async def test_output_flood_is_capped_on_the_host(
    sandbox_of: SandboxOf, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("log") / "out.log"
    async with sandbox_of() as sandbox:
        done = await sandbox.exec(["head", "-c", "200000000", "/dev/zero"], log=log, timeout=60)
        assert done.total_bytes == 200_000_000
        assert log.stat().st_size == 50 << 20


async def test_pipes_and_the_supervisor_s_descriptors_are_no_files(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        await sandbox.exec(["sh", "-c", "mkfifo pipe; ln -s /proc/1/fd fds"])
        with pytest.raises(PathEscapes):
            await sandbox.read("fds/1")
        with pytest.raises(PathEscapes):
            await sandbox.write("fds/1", b"x")
        with pytest.raises(FileProblem):
            await sandbox.read("pipe")
        with pytest.raises(FileProblem):
            await sandbox.write("pipe", b"x")


async def test_full_disk_leaves_the_old_content(sandbox_of: SandboxOf) -> None:
    async with sandbox_of(limits=SandboxLimits(memory=256 << 20)) as sandbox:
        await sandbox.write("keep.txt", b"old\n")
        fill = await sandbox.exec(["sh", "-c", "cat /dev/zero > fill.bin"], timeout=60)
        assert fill.exit != 0
        with pytest.raises(DiskFull):
            await sandbox.write("keep.txt", b"n" * 1_000_000)
        assert await sandbox.read("keep.txt") == b"old\n"
        await sandbox.exec(["rm", "fill.bin"])
        await sandbox.write("keep.txt", b"new\n")
        assert await sandbox.read("keep.txt") == b"new\n"


async def test_cancelling_a_command_ends_it(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        running = asyncio.ensure_future(sandbox.exec(["sleep", "100"], timeout=100))
        await sandbox.ping()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        for _ in range(100):
            if not await processes(sandbox):
                break
        assert await processes(sandbox) == []


async def test_parallel_commands_do_not_mix(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        results = await asyncio.gather(
            *(sandbox.exec(["sh", "-c", f"echo {n}; sleep 0.2; echo {n}"]) for n in range(20))
        )
        assert [r.stdout for r in results] == [f"{n}\n{n}\n".encode() for n in range(20)]


async def test_memory_bomb_ends_the_job_and_not_the_sandbox(sandbox_of: SandboxOf) -> None:
    async with sandbox_of(limits=SandboxLimits(memory=256 << 20)) as sandbox:
        bomb = await sandbox.exec(
            ["python3", "-c", "x = [bytearray(10**7) for _ in range(1000)]"], timeout=60
        )
        assert bomb.exit != 0
        await sandbox.ping()


@pytest.mark.slow  # quick: tests/abuse/test_survival.py
async def test_fork_bomb_is_contained(sandbox_of: SandboxOf) -> None:
    async with sandbox_of() as sandbox:
        bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
        done = await sandbox.exec(["python3", "-c", bomb], timeout=2)
        assert done.timed_out
        assert await processes(sandbox) == []
