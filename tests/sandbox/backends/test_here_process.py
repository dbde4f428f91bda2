"""What the sandbox without isolation promises beyond the others. Run in a container: see `test_here.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.sandbox.backends.here_machine import PREFIX, HereMachine, in_container
from m3agent.sandbox.backends.kinds import WITHOUT_ISOLATION
from m3agent.sandbox.backends.sandbox import GRACE, Sandbox, SandboxLimits
from m3agent.sandbox.errors import SandboxDied
from m3agent.sandbox.store.workspace import Workspace
from tests.conftest import KINDS, until

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        KINDS != [WITHOUT_ISOLATION] or not in_container(), reason="runs in a container of test_here.py"
    ),
]


@pytest.fixture
def sandbox_here(workspace_of: WorkspaceOf) -> Callable[[], Sandbox]:
    return lambda: Sandbox(HereMachine(SandboxLimits(memory=1 << 30)), workspace_of({"a.txt": "a\n"}))


def processes() -> dict[int, str]:
    """Return every process of the container, with its command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if " Z " not in (folder / "stat").read_text():
                found[int(folder.name)] = (folder / "cmdline").read_text()
        except OSError:
            continue
    return found


async def test_nothing_is_left(sandbox_here: Callable[[], Sandbox]) -> None:
    before = processes().keys()
    async with sandbox_here() as sandbox:
        folder = Path(sandbox.folders.work_tree).parent
        await sandbox.exec(
            ["sh", "-c", "mkdir -p closed/inner; chmod 0 closed; touch $TMPDIR/x; setsid sleep 301 &"]
        )
        await sandbox.exec(["sleep", "302"], background=True)
        assert processes().keys() > before
    assert not folder.exists()
    assert processes().keys() <= before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
@pytest.mark.parametrize("target", ["supervisor", "guard", "host", "everybody", "group of the host"])
async def test_a_command_cannot_signal_the_sandbox_or_its_host(
    sandbox_here: Callable[[], Sandbox], target: str, number: int
) -> None:
    pids = {
        "supervisor": "os.getppid()",
        "guard": "int(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])",
        "host": str(os.getpid()),
        "everybody": "-1",
        "group of the host": str(-os.getpgid(0)),
    }
    async with sandbox_here() as sandbox:
        done = await sandbox.exec(["python3", "-c", f"import os; os.kill({pids[target]}, {int(number)})"])
        assert b"PermissionError" in done.stderr
        if target in ("supervisor", "guard", "host"):
            program = f"import os, signal; fd = os.pidfd_open({pids[target]}); signal.pidfd_send_signal(fd, {int(number)})"
            done = await sandbox.exec(["python3", "-c", program])
            assert b"PermissionError" in done.stderr
            program = (
                f"import os, signal; fd = os.open('/proc/%d' % ({pids[target]}), os.O_RDONLY)\n"
                f"signal.pidfd_send_signal(fd, {int(number)})"
            )
            done = await sandbox.exec(["python3", "-c", program])
            assert b"OSError" in done.stderr
        assert (await sandbox.exec(["echo", "still here"])).stdout == b"still here\n"


async def test_a_supervisor_that_is_late_keeps_its_sandbox(sandbox_here: Callable[[], Sandbox]) -> None:
    """On a loaded machine, a supervisor needed more than six seconds to end a fork bomb."""
    async with sandbox_here() as sandbox:
        supervisor = int((await sandbox.exec(["sh", "-c", "echo $PPID"])).stdout)
        running = asyncio.create_task(sandbox.exec(["sh", "-c", "echo begun; exec sleep 301"], timeout=2))
        await until(lambda: running.done() or any("sleep\x00301" in line for line in processes().values()))
        os.kill(supervisor, signal.SIGSTOP)
        await asyncio.sleep(GRACE + 6)
        os.kill(supervisor, signal.SIGCONT)
        done = await running
        assert (done.timed_out, done.stdout) == (True, b"begun\n")


async def test_the_variables_of_the_host_cannot_be_read(
    sandbox_here: Callable[[], Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M3AGENT_API_KEY", "sk-hidden")
    monkeypatch.setenv("SOME_TOKEN", "sk-hidden")
    async with sandbox_here() as sandbox:
        pids = [str(pid) for pid in (os.getpid(), os.getppid())]
        done = await sandbox.exec(["sh", "-c", "env; cat /proc/$0/environ; cat /proc/$0/mem", pids[0]])
        assert b"hidden" not in done.stdout
        assert b"denied" in done.stderr
        assert b"hidden" not in (await sandbox.exec(["sh", "-c", "cat /proc/$PPID/environ"])).stdout


async def test_all_ends_with_a_killed_host(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from m3agent.sandbox.backends.here_machine import HereMachine
from m3agent.sandbox.backends.sandbox import GRACE, Sandbox, SandboxLimits
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
async def main():
    folder = Path({str(tmp_path)!r})
    workspace = Workspace.from_folder(TreeStore(folder / "trees.git"), folder, [])
    async with Sandbox(HereMachine(SandboxLimits()), workspace) as sandbox:
        await sandbox.exec(["sleep", "333"], background=True)
        print(sandbox.folders.work_tree, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert host.stdout is not None
    folder = Path((await host.stdout.readline()).decode().strip()).parent
    try:  # a loaded machine takes a moment from the start of a process to its program
        await until(lambda: any("sleep\x00333" in line for line in processes().values()))
    finally:
        host.kill()
        await host.wait()
    await until(lambda: not folder.exists() and not any("333" in line for line in processes().values()))


async def test_a_killed_supervisor_leaves_nothing(sandbox_here: Callable[[], Sandbox]) -> None:
    async with sandbox_here() as sandbox:
        shown = await sandbox.exec(["sh", "-c", "setsid sleep 334 & echo $PPID"])
        await sandbox.exec(["sleep", "335"], background=True)
        os.kill(int(shown.stdout), signal.SIGKILL)
        with pytest.raises(SandboxDied):
            await sandbox.exec(["true"])
        await until(lambda: not any("33" in line for line in processes().values() if "sleep" in line))
    assert not Path(sandbox.folders.work_tree).parent.exists()


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
async def test_a_cancelled_start_leaves_nothing(sandbox_here: Callable[[], Sandbox], delay: float) -> None:
    """Its guard may not have begun yet, and cannot clean up then."""
    before = processes().keys()
    starting = asyncio.create_task(sandbox_here().__aenter__())
    await asyncio.sleep(delay)
    starting.cancel()
    sandbox = (await asyncio.gather(starting, return_exceptions=True))[0]
    if isinstance(sandbox, Sandbox):
        await sandbox.close()
    assert not list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    # a process that was killed is there until the kernel has ended it
    await until(lambda: processes().keys() <= before)
