"""Set-up: what it plans, what it refuses, and that a second run has nothing to do. These tests install nothing."""

import ast
import contextlib
import fcntl
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
# Programs that the scripts may use on a bare machine, besides python3.
TOOLS = [
    "bash",
    "cat",
    "cut",
    "dirname",
    "env",
    "flock",
    "git",
    "head",
    "mkdir",
    "sed",
    "sleep",
    "sort",
    "tail",
]
NO_ENGINE = "unix:///nonexistent/docker.sock"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout in which set-up has never run."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Return a folder for PATH with the tools of a bare machine: no uv, no bubblewrap, no Docker."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found, f"this machine lacks {name}"
        (folder / name).symlink_to(found)
    (folder / "python3").symlink_to(Path(sys.executable).resolve())
    return folder


def setup(
    checkout: Path, path: Path | str, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run the set-up script with only these environment variables."""
    return subprocess.run(
        [checkout / "scripts" / "setup.sh", *arguments],
        env={"PATH": str(path), "HOME": str(checkout), **environment},
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def bubblewrap_works() -> bool:
    """Return whether bubblewrap works as m3agent uses it: it may be absent, or user namespaces may be forbidden."""
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    try:
        command = [
            *drop,
            "bwrap",
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--ro-bind",
            "/",
            "/",
            "true",
        ]
        return subprocess.run(command, cwd="/", check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def can_hide_engine() -> bool:
    """Return whether a command can run with an empty /run, which hides the Docker socket."""
    try:
        hidden = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/run"]
        return subprocess.run(hidden, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_parse_and_stop_at_errors(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if script.name != "common.sh":  # it is sourced, not run
        assert os.access(script, os.X_OK)
        assert "set -euo pipefail" in script.read_text()


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.py")), ids=lambda path: path.name)
def test_helpers_need_nothing_but_the_standard_library(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] in sys.stdlib_module_names


def test_without_an_engine_and_without_leave_to_install_one(checkout: Path, tools: Path) -> None:
    result = setup(checkout, tools, "--plan", SETUP="no", DOCKER_HOST=NO_ENGINE)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == (
        f"error: no sandbox: nothing answers at DOCKER_HOST={NO_ENGINE}, and bubblewrap is not installed; "
        "start that engine or unset DOCKER_HOST.\n"
    )


def test_bubblewrap_that_fails_says_why(checkout: Path, tools: Path) -> None:
    for name, text in (
        ("bwrap", "echo first; echo 'bwrap: setting up uid map: no' >&2; exit 1"),
        ("setpriv", "exec bwrap"),
    ):
        (tools / name).unlink(missing_ok=True)
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    result = setup(checkout, tools, "--plan", SETUP="no", DOCKER_HOST=NO_ENGINE)
    assert result.returncode == 1
    assert (
        "and bubblewrap does not work here (bwrap: setting up uid map: no); start that engine"
        in result.stderr
    )


@pytest.mark.bwrap
@pytest.mark.skipif(not bubblewrap_works(), reason="bubblewrap does not work here")
def test_bubblewrap_serves_where_no_engine_does(checkout: Path, tools: Path) -> None:
    path = f"{tools}:/usr/bin:/bin"
    result = setup(checkout, path, "--plan", SETUP="no", DOCKER_HOST=NO_ENGINE)
    assert result.returncode == 0
    assert (
        f"nothing answers at DOCKER_HOST={NO_ENGINE}: bubblewrap will serve as the sandbox." in result.stderr
    )


def test_the_plan_for_python_names_all_it_installs(checkout: Path, tools: Path) -> None:
    result = setup(checkout, tools, "--plan", "python", SETUP="no")
    assert result.returncode == 0
    lines = result.stderr.splitlines()
    assert lines[0] == "m3agent set-up will"
    assert lines[1].startswith("  - install uv ")
    assert len(lines) == 3
    assert lines[2].startswith("  - install the Python packages of uv.lock into .venv/ (0.8 GB")


def test_a_plan_changes_nothing(checkout: Path, tools: Path) -> None:
    setup(checkout, tools, "--plan", "python")
    assert {path.name for path in checkout.iterdir()} == {"scripts", ".setup"}
    assert [path for path in (checkout / ".setup").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [("python3", "Python 3.11 or newer"), ("git", "needs git"), ("flock", "needs flock")],
)
def test_a_missing_tool_is_named(checkout: Path, tools: Path, missing: str, sentence: str) -> None:
    (tools / missing).unlink()
    result = setup(checkout, tools, "python")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unknown_argument_is_refused(checkout: Path, tools: Path) -> None:
    result = setup(checkout, tools, "--paln")
    assert result.returncode == 1
    assert "not '--paln'" in result.stderr


@pytest.mark.skipif(not can_hide_engine(), reason="needs a mount namespace of its own")
def test_on_a_bare_machine_the_plan_comes_before_the_question(checkout: Path, tools: Path) -> None:
    """As root, with apt-get and no engine: set-up prints the plan, then asks. Without an answer it installs nothing."""
    apt = tools / "apt-get"
    apt.write_text("#!/bin/sh\necho apt-get was run >&2\n")
    apt.chmod(0o755)
    # Hide the socket and dockerd. PIP_NO_INDEX keeps pip from downloading anything if this test fails.
    hide = "for folder in /run /usr/sbin /usr/local/sbin; do mount -t tmpfs tmpfs $folder || exit; done"
    run = 'exec env -i PIP_NO_INDEX=1 HOME="$1" PATH="$2" "$1/scripts/setup.sh"'
    leader, follower = pty.openpty()
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{hide}; {run}", "sh", checkout, tools],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    ) as process:
        os.close(follower)
        screen = b""
        with os.fdopen(leader, "r+b", buffering=0) as terminal, contextlib.suppress(OSError):
            # Linux reports an error once the other side of a terminal is closed.
            while chunk := terminal.read(4096):
                screen += chunk
                if screen.endswith(b"[Y/n] "):
                    terminal.write(b"\x04")
    text = screen.decode()
    assert process.returncode == 1
    assert text.index("docker.io iptables") < text.index("Install a Docker engine on this machine?")
    assert "no answer, so nothing was installed" in text
    assert "apt-get was run" not in text


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """Serve `/_ping` on a unix socket. Each answer takes its status code from the end of the list."""
    answers: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.pop() if self.path == "/_ping" else 404)
            self.end_headers()

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is the base class's)
            pass

    path = str(tmp_path / "engine.sock")
    with UnixStreamServer(path, Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        yield f"unix://{path}", answers
        server.shutdown()
        thread.join()


def ping(host: str) -> int:
    """Run the script that checks whether an engine answers."""
    environment = {**os.environ, "DOCKER_HOST": host}
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "docker_ping.py"], check=False, env=environment
    ).returncode


def test_an_engine_is_found_by_its_answer(engine: tuple[str, list[int]]) -> None:
    host, answers = engine
    answers += [500, 200]
    assert [ping(host), ping(host), ping(NO_ENGINE), ping("tcp://127.0.0.1:9")] == [0, 1, 1, 1]


def test_refusing_socket_has_its_own_exit_code(engine: tuple[str, list[int]]) -> None:
    host, _ = engine
    Path(host.removeprefix("unix://")).chmod(0)
    script = (ROOT / "scripts" / "docker_ping.py").read_text()
    if os.geteuid() == 0:  # root may open every socket
        loaded = "import http.client, os, socket, urllib.parse"  # import while the files are still readable
        script = f"{loaded}\nos.setgid(65534)\nos.setuid(65534)\n{script}"
    environment = {**os.environ, "DOCKER_HOST": host}
    assert subprocess.run([sys.executable, "-c", script], check=False, env=environment).returncode == 2


def shell(checkout: Path, script: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a bash script that has sourced the common functions."""
    return subprocess.run(
        ["bash", "-c", f'source "$0/scripts/common.sh"\n{script}', checkout],
        env={"PATH": os.environ["PATH"], **environment},
        check=False,
        capture_output=True,
        text=True,
    )


def test_a_failing_step_shows_the_end_of_its_log(checkout: Path) -> None:
    result = shell(checkout, "step 'doing it' bash -c 'seq 1 30; echo cause >&2; exit 3'")
    assert result.returncode == 3
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == "==> doing it"
    assert lines[1].startswith("doing it: failed with exit code 3; the end of ")
    assert lines[2:] == [*(f"    {n}" for n in range(12, 31)), "    cause"]


def test_a_step_hides_what_went_well(checkout: Path) -> None:
    result = shell(checkout, "step 'doing it' echo chatter")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "==> doing it\n")


@pytest.mark.parametrize("home", ["", "/nonexistent"])
def test_a_home_that_cannot_be_used_is_replaced(checkout: Path, home: str) -> None:
    result = shell(checkout, 'echo "$HOME"; touch "$HOME/file"', HOME=home)
    assert result.stdout == f"{checkout}/.setup/home\n"
    assert result.stderr == ""


def test_a_home_that_can_be_used_is_kept(checkout: Path, tmp_path: Path) -> None:
    assert shell(checkout, 'echo "$HOME"', HOME=str(tmp_path)).stdout == f"{tmp_path}\n"


def has_uv() -> bool:
    """Return whether set-up would find uv without installing it."""
    return bool(shutil.which("uv")) or (ROOT / ".setup" / "uv" / "bin" / "uv").exists()


@pytest.mark.skipif(not has_uv(), reason="this checkout was not set up by `make`")
def test_a_second_run_finds_everything_done() -> None:
    command = [str(ROOT / "scripts" / "setup.sh"), "python"]
    environment = {**os.environ, "UV_OFFLINE": "1"}
    before = (ROOT / ".venv" / "bin" / "m3agent").stat()
    result = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    after = (ROOT / ".venv" / "bin" / "m3agent").stat()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.skipif(not has_uv(), reason="this checkout was not set up by `make`")
def test_two_runs_at_once_take_turns() -> None:
    command = [str(ROOT / "scripts" / "setup.sh"), "python"]
    environment = {**os.environ, "UV_OFFLINE": "1"}
    with (ROOT / ".setup" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            assert (
                process.stderr.readline() == "Another set-up of this checkout is running; waiting for it.\n"
            )
            assert process.poll() is None
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert process.stderr.read() == ""
        assert process.returncode == 0
