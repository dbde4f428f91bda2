"""Test the one handler around all commands: an output that cannot be written, Ctrl-C at any moment, and faults of m3agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.main import get_command

from m3agent.agent.session.log_reader import LOG
from m3agent.cli import app as cli
from m3agent.util.errors import OUTPUT_CLOSED
from tests.agent.scripted import FIX, ISSUE, NOT_TESTED, UNTESTED, MakeRepo, events
from tests.agent.session.hostile_events import SESSION, hostile_lines
from tests.cli.test_hostile_output import names
from tests.command_line import Process, command, run
from tests.conftest import later
from tests.servers.misbehaving import MisbehavingServer

pytestmark = pytest.mark.integration

FULL = "m3agent: standard output cannot be written: No space left on device\n"
PRINTS: dict[str, Sequence[str]] = {
    "config show": (),
    "context": (),
    "doctor": ("--json",),
    "mcp list": ("--json",),
    "plan": ("--gpus", "8xH200"),
    "report": (SESSION, "-o", "-"),
    "serve status": ("--json",),
    "sessions export": (SESSION,),
    "sessions list": ("--json",),
    "sessions show": (SESSION, "--json"),
}
"""Commands that print to standard output without a sandbox or a server, and their arguments."""
COMMANDS = sorted(names(get_command(cli.app)))
HELP = ("", *COMMANDS)


@pytest.fixture
def folder(make_repo: MakeRepo, own_state: Path) -> Path:
    """Return a repository. The state has a session about it."""
    repo = make_repo(UNTESTED)
    session = own_state / "state" / "sessions" / SESSION
    session.mkdir(parents=True)
    lines = hostile_lines(str(repo), forged=False)
    (session / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return repo


def into_full(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Return the exit status and the errors of a command whose standard output is full."""
    with Path("/dev/full").open("wb") as full, Process(*arguments, cwd=cwd, stdout=full) as process:
        _, errors = process.communicate()
        assert process.returncode is not None
        return process.returncode, errors.decode()


@pytest.mark.parametrize("name", HELP)
def test_help_into_a_full_output(name: str, tmp_path: Path) -> None:
    assert into_full(*name.split(), "--help", cwd=tmp_path) == (3, FULL)


@pytest.mark.parametrize("name", PRINTS)
def test_a_result_into_a_full_output(name: str, folder: Path) -> None:
    code, errors = into_full(*name.split(), *PRINTS[name], cwd=folder)
    assert (code, errors.count(FULL), errors.endswith(FULL)) == (3, 1, True)
    assert "Traceback" not in errors


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in PRINTS and name != "acp"])
def test_a_wrong_call_says_so_although_the_output_is_full(name: str, tmp_path: Path) -> None:
    code, errors = into_full(*name.split(), "--nonsense", cwd=tmp_path)
    assert (code, errors.count("\n")) == (2, 1), errors


@pytest.mark.parametrize("printed", [(), later("--json")])
def test_a_fix_into_a_full_output_keeps_its_patch(
    server: MisbehavingServer, make_repo: MakeRepo, own_state: Path, printed: Sequence[str]
) -> None:
    server.answers = [FIX, NOT_TESTED]
    repo = make_repo(UNTESTED)
    more = [printed] if isinstance(printed, str) else printed
    code, errors = into_full("fix", ISSUE, "--endpoint", server.url, *more, cwd=repo)
    assert (code, errors.count(FULL)) == (3, 1), errors
    assert "Traceback" not in errors
    if not more:
        assert events(own_state)[-1]["status"] == "unverified"


@pytest.mark.parametrize("closed", [">&-", later("2>&-"), later(">&- 2>&- <&-")])
@pytest.mark.parametrize("arguments", [("config", "show"), later(("--help",)), later(("sessions", "list"))])
def test_a_closed_stream_drops_what_is_written(closed: str, arguments: Sequence[str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command(*arguments)],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


@pytest.mark.parametrize(
    "arguments", [("--help",), *((*name.split(), *more) for name, more in PRINTS.items())]
)
def test_a_reader_that_is_gone_is_no_fault_and_no_success(arguments: Sequence[str], folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with Process(*arguments, cwd=folder, stdout=writing) as process:
        os.close(writing)
        _, errors = process.communicate()
        assert (process.returncode, b"roken" in errors) == (OUTPUT_CLOSED, False)


INTERRUPTED = """
import os, signal, sys
at = sys.argv.pop(1)
class Finder:
    def find_spec(self, name, *_):
        if name == at:
            os.kill(os.getpid(), signal.SIGINT)
from m3agent.cli.__main__ import main
sys.meta_path.insert(0, Finder())
if at == "the end":
    import atexit
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
main()
"""


@pytest.mark.parametrize(
    "at",
    [
        "m3agent.sandbox.store.git_command",
        later("typer"),
        later("m3agent.cli.app"),
        later("m3agent.agent.settings.loader"),
        later("pydantic"),
        "the end",
    ],
)
def test_ctrl_c_is_silent_at_any_moment(at: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, at, "config", "show"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the tests may ignore it
    )
    assert (done.returncode, b"Traceback" in done.stderr, b"Interrupt" in done.stderr) == (130, False, False)
    assert done.stderr == b"" or at == "the end"


AT_THE_START = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "m3agent.cli":
            os.kill(os.getpid(), signal.SIGINT)
from m3agent.__main__ import main
sys.meta_path.insert(0, Finder())
main()
"""


def test_ctrl_c_is_silent_before_the_command_line_is_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_START, "config", "show"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode in (130, -signal.SIGINT), done.stderr) == (True, b"")


def test_a_parent_that_ignores_ctrl_c_is_obeyed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "typer", "config", "show"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (done.returncode, b"max_turns" in done.stdout) == (0, True)


FAULTY = """
import sys
from m3agent.cli.__main__ import main
from m3agent.cli import app
def broken():
    raise ValueError("so\\nbroken")
app.main = broken
main()
"""


def test_a_fault_of_m3agent_is_one_line(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", FAULTY]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (
        3,
        "m3agent: this is a fault of m3agent, please report it: ValueError in <string>:6: so broken\n",
    )
    argv[1:1] = ["-X", "dev"]
    developing = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert "Traceback" in developing.stderr


@pytest.mark.parametrize("module", ["m3agent", "m3agent.agent"])
def test_both_modules_are_the_command_line(module: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", module, "--version"]
    assert subprocess.check_output(argv, cwd=tmp_path).startswith(b"m3agent ")
    assert run("--version").returncode == 0
