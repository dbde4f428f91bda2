"""Test `m3agent sandbox` as a program calls it: exit codes and exact output."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from m3agent.agent.repo.snapshot import scratch_folder, sweep_scratch
from m3agent.sandbox.backends.factory import Backend
from m3agent.sandbox.backends.image import REPOSITORY
from tests.agent.scripted import Fixes, calls, says
from tests.command_line import TIMEOUT, Process, Stream
from tests.conftest import TIME_LIMITS, docker_here, later
from tests.servers.packages import PackageIndex, reachable_index, wheel

pytestmark = pytest.mark.integration

MakeRepo = Callable[..., Path]
Exec = Callable[..., subprocess.CompletedProcess[bytes]]

needs_docker = pytest.mark.skipif(not docker_here(), reason="no Docker engine answers")


def command(*arguments: str | bytes) -> list[str | bytes]:
    return [sys.executable, "-m", "m3agent", "sandbox", *arguments]


def started(*arguments: str | bytes, stdin: Stream = subprocess.DEVNULL) -> Process:
    return Process("sandbox", *map(os.fsdecode, arguments), stdin=stdin)


def run(*arguments: str | bytes, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    process = started(*arguments, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL)
    output, errors = process.communicate(stdin)
    return subprocess.CompletedProcess(arguments, process.wait(), output, errors)


@pytest.fixture
def repo(make_repo: MakeRepo) -> Path:
    folder: Path = make_repo({"a.txt": "a\n", "src/own.py": "WORD = 'own'\n", "run.sh": "echo never\n"})
    (folder / "new.txt").write_text("not committed\n")
    return folder


def exec_in(repo: Path, backend: Backend) -> Exec:
    def run_in(
        *arguments: str | bytes, options: tuple[str, ...] = (), stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        where = ("--repo", str(repo), "--sandbox", backend, *options)
        return run("exec", *where, "--", *arguments, stdin=stdin)

    return run_in


@pytest.fixture
def run_in(repo: Path, one_backend: Backend) -> Exec:
    return exec_in(repo, one_backend)


@pytest.fixture
def run_in_each(repo: Path, backend: Backend) -> Exec:
    return exec_in(repo, backend)


def test_output_exit_code_and_files_are_those_of_a_tool_call(run_in_each: Exec, repo: Path) -> None:
    script = (
        "cat a.txt new.txt; python3 -c 'import own; print(own.WORD)'; pwd; echo err >&2; echo > a.txt; exit 7"
    )
    done = run_in_each("sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"a\nnot committed\nown\n/ws\n", b"err\n")
    assert (repo / "a.txt").read_text() == "a\n", "the repository itself was changed"


def test_bytes_pass_through_as_they_are(run_in: Exec) -> None:
    odd = bytes(range(1, 256))
    assert run_in("printf", "%s", odd).stdout == odd
    block = os.urandom(3_000_000)
    done = run_in("sh", "-c", "cat; printf '\\000\\377' >&2", stdin=block)
    assert done.stdout == block
    assert done.stderr == b"\0\xff"


def test_a_timeout_is_124_with_the_output_so_far(run_in: Exec) -> None:
    for limit in TIME_LIMITS:
        started = time.monotonic()
        done = run_in(
            "sh", "-c", "echo begun; setsid sleep 300 & sleep 300", options=("--timeout", str(limit))
        )
        assert time.monotonic() - started < limit + 60
        if done.stdout:
            break
    else:
        pytest.fail("it did not begin")
    assert (done.returncode, done.stdout) == (124, b"begun\n")
    assert f"timed out after {limit} s".encode() in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("no-such-program",), 127),
        later(("./no-such-file",), 127),
        later(("ls -a",), 127),
        later(("/ws",), 126),
        (("./run.sh",), 126),
        (("sh", "-c", "kill -9 $$"), 137),
        later(("sh", "-c", "kill -TERM $$"), 143),
        (("sh", "-c", "exit 255"), 255),
        later(("true",), 0),
    ],
    ids=str,
)
def test_exit_codes_are_those_of_a_shell(run_in: Exec, arguments: tuple[str, ...], code: int) -> None:
    done = run_in(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stderr.count(b"\n") == (code in (126, 127)) + (" " in arguments[0])
    assert (b"or a shell: bash -c 'ls -a'" in done.stderr) == (arguments == ("ls -a",))


def test_a_command_that_wants_no_input_does_not_wait_for_it(repo: Path, one_backend: Backend) -> None:
    reading, writing = os.pipe()
    try:
        where = ("--repo", str(repo), "--sandbox", one_backend)
        with started("exec", *where, "--", "head", "-n", "1", stdin=reading) as process:
            os.write(writing, b"one\ntwo\n")
            assert process.communicate(timeout=60)[0] == b"one\n"
    finally:
        os.close(reading)
        os.close(writing)


def test_a_reader_that_goes_ends_the_command(repo: Path, one_backend: Backend) -> None:
    where = ("--repo", str(repo), "--sandbox", one_backend)
    with started("exec", *where, "--", "sh", "-c", "yes; sleep 300") as process:
        assert process.stdout.read(4) == b"y\ny\n"
        process.stdout.close()
        assert process.wait(timeout=60) == 141


@pytest.mark.slow  # quick: test_a_reader_that_goes_ends_the_command
def test_output_without_a_place_to_go_is_dropped(repo: Path, one_backend: Backend) -> None:
    argv = command("exec", "--repo", str(repo), "--sandbox", one_backend, "--", "sh", "-c", "echo x; exit 3")
    quoted = " ".join(f"'{part!s}'" for part in argv)
    done = subprocess.run(["sh", "-c", f"{quoted} >&- 2>&- <&-"], check=False, timeout=60)
    assert done.returncode == 3


@pytest.mark.slow  # quick: tests/sandbox/backends/test_contract.py
def test_output_beyond_the_cap_is_counted(run_in: Exec) -> None:
    done = run_in("head", "-c", "60000000", "/dev/zero")
    assert (done.returncode, len(done.stdout)) == (0, 50 << 20)
    assert f"{60_000_000 - (50 << 20):,} more bytes".encode() in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_everything(
    repo: Path, one_backend: Backend, number: signal.Signals, own_state: Path
) -> None:
    where = ("--repo", str(repo), "--sandbox", one_backend)
    with started("exec", *where, "--", "sh", "-c", "echo on; sleep 300") as process:
        assert process.stdout.readline() == b"on\n"
        process.send_signal(number)
        assert process.wait(TIMEOUT) == 130
    assert list((own_state / "state" / "scratch").iterdir()) == []


def test_a_killed_commands_folder_goes_with_the_next(
    repo: Path, one_backend: Backend, own_state: Path
) -> None:
    where = ("--repo", str(repo), "--sandbox", one_backend)
    with started("exec", *where, "--", "sh", "-c", "echo on; sleep 300") as process:
        assert process.stdout.readline() == b"on\n"
        process.kill()
    state = own_state / "state"
    assert len(list((state / "scratch").iterdir())) == 1
    with scratch_folder(state) as mine:
        assert list((state / "scratch").iterdir()) == [mine]
        assert sweep_scratch(state) == 0, "a living one's folder was taken away"
    assert list((state / "scratch").iterdir()) == []


def test_wrong_use_and_no_sandbox(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for arguments in (
        ("exec",),
        ("exec", "--timeout", "0", "true"),
        ("exec", "--timeout", "soon", "true"),
        ("exec", "--sandbox", "none", "true"),
        ("exec", "--repo", str(tmp_path / "plain"), "true"),
        ("build", "--repo", str(repo), "--exclude-newer", "yesterday"),
        ("prune", "--keep-gb", "-1"),
    ):
        done = run(*arguments)
        assert done.returncode == 2, arguments
        assert b"Traceback" not in done.stderr


@needs_docker
def test_missing_image_is_a_fault_of_the_environment(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M3AGENT_SANDBOX", "docker")
    for arguments in (("exec", "--image", "m3agent-none:0", "true"), ("build", "--image", "m3agent-none:0")):
        if arguments[0] == "build":
            (repo / "requirements.txt").write_text("alpha\n")
        done = run(arguments[0], "--repo", str(repo), *arguments[1:])
        assert done.returncode == 3, arguments
        assert done.stderr.count(b"\n") == 1
        assert b"m3agent-none:0" in done.stderr


# -- shell ------------------------------------------------------------------------------------------------------


def test_a_shell_reads_commands_from_a_pipe(repo: Path, one_backend: Backend) -> None:
    done = run(
        "shell", "--repo", str(repo), "--sandbox", one_backend, stdin=b"cd src\npwd\necho err >&2\nexit 4\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (4, b"/ws/src\n", b"err\n")


def test_a_shell_on_a_terminal(repo: Path, one_backend: Backend) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command("shell", "--repo", str(repo), "--sandbox", one_backend))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 123, 0, 0))
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + 60
        while text not in seen:
            assert select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], seen
            seen += os.read(terminal, 65536)
        seen = seen.partition(text)[2]

    until(b"$ ")
    os.write(terminal, b"stty size; tty\r")
    until(b"41 123\r\n/dev/pts/")
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
    os.write(terminal, b"until stty size | grep -q '30 90'; do :; done; echo resi'zed'\r")
    until(b"resized\r\n")
    # wait until the program reports its start: an earlier Ctrl-C would go to the shell
    os.write(terminal, b"python3 -c \"import time; print('star' + 'ted', flush=True); time.sleep(300)\"\r")
    until(b"started\r\n")
    os.write(terminal, b"\x03")
    until(b"$ ")
    os.write(terminal, b"exit 5\r")
    status = os.waitpid(pid, 0)[1]
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 5


# -- environments -----------------------------------------------------------------------------------------------

BUGGY = {
    "pyproject.toml": '[project]\nname = "calc"\nversion = "1"\ndependencies = ["alpha"]\n',
    "calc.py": "import alpha\n\n\ndef add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    with reachable_index(monkeypatch) as server:
        server.add(wheel("alpha", "1.0"))
        yield server


@pytest.mark.slow  # quick: tests/sandbox/images/test_environment.py
@needs_docker
@pytest.mark.usefixtures("own_images")
def test_build_prints_the_image_and_exec_uses_it(index: PackageIndex, make_repo: MakeRepo) -> None:
    repo = make_repo(BUGGY)
    built = run("build", "--repo", str(repo))
    assert built.returncode == 0, built.stderr
    name = built.stdout.decode().strip()
    assert name.startswith(f"{REPOSITORY}:")
    again = run("build", "--repo", str(repo))
    assert (again.stdout, again.stderr) == (built.stdout, b"")
    probe = ("--sandbox", "docker", "--", "python3", "-c", "import alpha; print(alpha.VERSION)")
    for more in ((), ("--image", name)):
        done = run("exec", "--repo", str(repo), *more, *probe)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"1.0\n", b"")


@pytest.mark.slow
@needs_docker
@pytest.mark.usefixtures("own_images")
def test_a_fix_has_the_dependencies_in_the_loop_and_in_verification(
    fixes: Fixes, index: PackageIndex
) -> None:
    repo = fixes.make_repo(BUGGY)
    fixes(
        repo,
        [
            calls("test_runner", test_file="."),
            calls("file_edit", path="calc.py", old="a - b", new="a + b"),
            calls("test_runner", test_file="."),
            says("add() subtracted; it adds now."),
        ],
        M3AGENT_SANDBOX="docker",
    )
    (log,) = (fixes.home / "state" / "sessions").glob("*/events.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    (ready,) = [event for event in events if event["type"] == "environment.ready"]
    assert ready["image"].startswith(f"{REPOSITORY}:")
    assert events[-1]["status"] == "verified"


@pytest.mark.integration
@needs_docker
@pytest.mark.slow  # quick: test_environment.py
def test_without_environment_exec_continues_and_build_fails(index: PackageIndex, make_repo: MakeRepo) -> None:
    repo = make_repo({"requirements.txt": "no-such-thing\n"})
    done = run("exec", "--repo", str(repo), "--sandbox", "docker", "echo", "bare")
    assert (done.returncode, done.stdout) == (0, b"bare\n")
    assert b"continuing without the repository's dependencies" in done.stderr
    built = run("build", "--repo", str(repo))
    assert (built.returncode, built.stdout) == (3, b"")
    assert b"the log is " in built.stderr


@pytest.mark.integration
@needs_docker
def test_off_leaves_the_sandbox_bare(
    index: PackageIndex, make_repo: MakeRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M3AGENT_ENVIRONMENT", "off")
    done = run(
        "exec", "--repo", str(make_repo(BUGGY)), "--sandbox", "docker", "--", "python3", "-c", "import alpha"
    )
    assert done.returncode == 1
    assert index.requests == []


def test_nothing_declared_is_nothing_built(repo: Path) -> None:
    if not docker_here():
        pytest.skip("no Docker engine answers")
    done = run("build", "--repo", str(repo))
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"nothing to build" in done.stderr
