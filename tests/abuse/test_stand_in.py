"""`code_exec` starts an interpreter before it has the program. No program may tamper with that of the next."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from m3agent.tools.base import ToolResult
from m3agent.tools.registry import Toolset
from tests.abuse.box import INSIDE, Box
from tests.conftest import others_later

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.supervisor]

SPOIL = {
    "nothing": "pass",
    "globals": "import json, builtins; builtins.leaked = 1; json.leaked = 1; os.environ['LEAKED'] = '1'; sys.modules['leaked'] = json",
    "pipe-for-the-program": "os.mkfifo('/tmp/m3agent/m3agent_code.py.new'); os.mkfifo('/tmp/m3agent/m3agent_code.py.last')",
    "folder-for-the-program": "os.mkdir('/tmp/m3agent/m3agent_code.py.new'); os.mkdir('/tmp/m3agent/m3agent_code.py.last')",
    "link-for-the-program": "os.symlink('/ws/stolen', '/tmp/m3agent/m3agent_code.py.new')",
    "link-for-the-folder": "os.rename('/tmp/m3agent', '/tmp/old'); os.mkdir('/ws/elsewhere'); os.symlink('/ws/elsewhere', '/tmp/m3agent')",
    "link-to-descriptors": "os.rename('/tmp/m3agent', '/tmp/old'); os.symlink('/proc/self/fd', '/tmp/m3agent')",
    "file-for-the-folder": "os.rename('/tmp/m3agent', '/tmp/old'); put('/tmp/m3agent', '')",
    "folder-closed": "os.chmod('/tmp/m3agent', 0)",
    "start-up-files": (
        "import site; folder = os.path.expanduser('~/.local/lib/python3.%d/site-packages' % sys.version_info[1]); os.makedirs(folder)\n"
        "put(folder + '/evil.pth', 'import os; os.environ[\"LEAKED\"] = \"1\"\\n')"
    ),
    "modules-in-the-tree": "put('/ws/encodings.py', 'raise SystemExit(9)'); put('/ws/sitecustomize.py', 'import os; os.environ[\"LEAKED\"] = \"1\"')",
    "kill-everything": "child(lambda: time.sleep(301)); os.kill(-1, signal.SIGSTOP); os.kill(-1, signal.SIGKILL)",
    "unnamed-end": "os.kill(os.getpid(), signal.SIGSEGV)",
}  # fmt: skip
# these change the sandbox's own Python, which is allowed; the supervisor must still work
OWN = {"start-up-files", "modules-in-the-tree"}
# the folder for programs is gone: the next program may be refused, at once and with a message
REFUSABLE = {"link-to-descriptors", "file-for-the-folder", "folder-closed", "folder-for-the-program"}


@pytest.mark.parametrize(
    "spoil",
    others_later(SPOIL, {"nothing", "globals", "folder-closed", "modules-in-the-tree", "kill-everything"}),
)
async def test_the_next_program_runs_untouched(box: Box, tmp_path: Path, spoil: str) -> None:
    async def call(code: str) -> ToolResult:
        async with asyncio.timeout(90):
            return await Toolset(box.sandbox, tmp_path).call("code_exec", {"code": code, "timeout": 60}, 1)

    assert (await call("print('first')")).content == "exit code: 0\nstdout:\nfirst"
    await call(f"{INSIDE}\n{SPOIL[spoil]}")
    await asyncio.sleep(0.15)  # time for the supervisor to start an interpreter
    probe = "import os, sys, json, builtins\nprint(os.environ.get('LEAKED'), hasattr(builtins, 'leaked'), hasattr(json, 'leaked'), 'leaked' in sys.modules)"
    for _ in range(2):
        result = await call(probe)
        if spoil in REFUSABLE and result.is_error:
            assert "cannot" in result.content
        elif spoil not in OWN:
            assert result.content == "exit code: 0\nstdout:\nNone False False False"
        await asyncio.sleep(0.1)
    assert (await box.sandbox.exec(["echo", "alive"])).stdout == b"alive\n"
    await box.sandbox.exec(["chmod", "-R", "u+rwX", "/tmp"])
    await box.sandbox.exec(["rm", "-rf", "/ws/stolen", "/tmp/m3agent", "/tmp/home/.local"])


async def test_refused_system_calls_are_refused_to_it_too(box: Box, tmp_path: Path) -> None:
    code = f"{INSIDE}\nprint(outcome(lambda: socket.socket(40, 1)), outcome(lambda: c('ptrace', 0, 0, 0, 0)), outcome(lambda: os.kill(1, 9)))"
    for _ in range(2):
        result = await Toolset(box.sandbox, tmp_path).call("code_exec", {"code": code}, 1)
        vsock, trace, kill = result.content.split()[-3:]
        assert {vsock, trace} <= {"EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT"}
        assert kill in {"done", "EPERM"}
        await asyncio.sleep(0.3)


async def test_a_program_over_its_time_leaves_nothing_to_the_next(box: Box, tmp_path: Path) -> None:
    code = (
        f"{INSIDE}\nignore_polite_signals()\nchild(lambda: (os.setsid(), time.sleep(301)))\nwhile True: pass"
    )
    result = await Toolset(box.sandbox, tmp_path).call("code_exec", {"code": code, "timeout": 1}, 1)
    assert result.content.startswith("timed out after 1 s")
