"""Test `m3agent doctor`: what it checks, and what it advises."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from m3agent.agent.fix import collection
from m3agent.agent.settings.loader import settings_of
from m3agent.agent.settings.settings import Settings
from m3agent.agent.verify.rules import MEND, NO_RUN
from m3agent.cli import doctor
from m3agent.cli.check_table import json_of, table
from m3agent.cli.doctor import diagnose, exit_code
from m3agent.sandbox.declared.preparation import Preparation
from m3agent.sandbox.store.workspace import LARGEST_FILE
from m3agent.serving.check.check import Check
from m3agent.serving.launch.record import Phase, ServerRecord, new_folder, write_record
from tests.agent.repositories import NewRepo
from tests.command_line import run
from tests.conftest import git, later
from tests.fakes.runner import use_own_runner
from tests.servers.misbehaving import MisbehavingServer

pytestmark = pytest.mark.integration

GOOD, BAD = Check("x", True, "fine"), Check("x", False, "absent", "install it")


class Machine:
    """The surroundings that the doctor checks: programs on PATH, an engine's address, a folder for sessions."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.monkeypatch = monkeypatch
        git = shutil.which("git")
        assert git is not None
        (self.programs / "git").symlink_to(git)
        monkeypatch.setenv("PATH", str(self.programs))
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/no-engine.sock")
        monkeypatch.setenv("M3AGENT_STATE", str(folder / "state"))
        self.repo = folder

    def add(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def look(self, **settings: object) -> dict[str, Check]:
        checks = asyncio.run(diagnose(settings_of(settings), self.repo))
        return {check.name: check for check in checks}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.fixture
def server(running_server: MisbehavingServer) -> str:
    running_server.reset()
    models = {"data": [{"id": "m3", "object": "model", "owned_by": "vllm", "max_model_len": 262144}]}
    running_server.pages = {"/v1/models": models}
    return running_server.url


def test_a_bare_machine(machine: Machine) -> None:
    found = machine.look()
    assert list(found) == [
        *("Python", "git", "repository", "Docker", "base image", "bubblewrap"),
        *("GPU", "endpoint", "sessions", "disk"),
    ]
    assert found["Python"].ok and found["git"].ok and found["sessions"].ok
    assert found["repository"].ok is False and "not in a git repository" in found["repository"].detail
    assert found["Docker"].ok is False and "DOCKER_HOST=unix://" in found["Docker"].detail
    assert found["bubblewrap"] == Check("bubblewrap", False, "not installed", "apt-get install bubblewrap")
    assert found["GPU"] == Check("GPU", None, "no GPU: the embedded engine is used")
    assert found["endpoint"].ok is None
    assert exit_code(list(found.values())) == 3


def test_an_engine_that_was_never_installed(machine: Machine) -> None:
    assert doctor._engine_fault("", denied=False) == (
        "no engine is installed",
        "apt-get install docker.io iptables, as root",
    )
    machine.add("dockerd", "exit 1")
    assert "systemctl start docker" in doctor._engine_fault("", denied=False)[1]


def test_git_missing_or_too_old(machine: Machine) -> None:
    (machine.programs / "git").unlink()
    found = machine.look()
    assert found["git"] == Check("git", False, "not installed", "apt-get install git")
    machine.add("git", "echo git version 2.7.4")
    found = machine.look()
    assert found["git"].ok is False and found["git"].detail == "2.7 is older than 2.30"


def test_a_folder_that_does_not_exist_is_wrong_use(tmp_path: Path) -> None:
    done = run("doctor", "--repo", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "nowhere" in done.stderr


def test_repository_is_described(machine: Machine, new_repo: NewRepo) -> None:
    machine.repo = new_repo()
    check = machine.look()["repository"]
    assert check.ok and check.detail.startswith(f"{machine.repo} at ")


def test_a_file_that_no_sandbox_gets_is_named(machine: Machine, new_repo: NewRepo) -> None:
    machine.repo = new_repo()
    with (machine.repo / "weights.bin").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)  # sparse: it takes no room
    check = machine.look()["repository"]
    assert check.ok is None and "weights.bin" in check.detail


def test_submodules_are_named(machine: Machine, new_repo: NewRepo) -> None:
    machine.repo = repo = new_repo(files={"a.py": "x = 1\n"})
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},libs/sub")
    git(repo, "commit", "-q", "-m", "submodule")
    assert "libs/sub" in machine.look()["repository"].detail


def test_an_engine_that_never_answers(machine: Machine, tmp_path: Path) -> None:
    machine.monkeypatch.setattr(doctor, "ENGINE_TIMEOUT", 0.3)
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "no-engine.sock"))
        engine.listen()
        assert machine.look()["Docker"].ok is False


def test_an_engine_we_may_not_use(machine: Machine, tmp_path: Path) -> None:
    import docker.transport.unixconn  # imported before the process gives up its rights  # noqa: F401

    path = tmp_path / "no-engine.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(path))
        engine.listen()
        path.chmod(0)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            checks = doctor._engine(Settings())
        finally:
            if root:
                os.seteuid(0)
    assert "no permission" in checks[0].detail and "usermod -aG docker" in checks[0].fix


@pytest.mark.docker
def test_a_real_engine_and_its_images(machine: Machine, new_repo: NewRepo) -> None:
    machine.repo = new_repo()
    machine.monkeypatch.delenv("DOCKER_HOST")
    try:
        docker.DockerClient.from_env(timeout=10).close()
    except DockerException:
        pytest.skip("no Docker engine")
    found = machine.look()
    assert found["Docker"].ok and found["base image"].ok
    assert found["bubblewrap"].ok is None  # one kind of sandbox is enough
    assert exit_code(list(found.values())) == 0
    found = machine.look(image="m3agent-absent:0")
    assert found["base image"].ok is False and "docker pull m3agent-absent:0" in found["base image"].fix
    assert machine.look(sandbox="bwrap")["bubblewrap"].ok is False


@pytest.mark.bwrap
def test_bubblewrap_is_tried(machine: Machine, new_repo: NewRepo) -> None:
    machine.repo = new_repo()
    for name in ("bwrap", "setpriv"):
        program = shutil.which(name, path="/usr/bin:/bin")
        if program is None:
            pytest.skip(f"no {name}")
        (machine.programs / name).symlink_to(program)
    found = machine.look()
    if not found["bubblewrap"].ok:
        assert found["bubblewrap"].fix
        pytest.skip(found["bubblewrap"].detail)
    assert found["Docker"].ok is None and found["Docker"].fix
    assert exit_code(list(found.values())) == 0
    assert machine.look(sandbox="docker")["Docker"].ok is False


def test_bubblewrap_that_cannot_start(machine: Machine) -> None:
    if not (setpriv := shutil.which("setpriv", path="/usr/bin:/bin")):
        pytest.skip("no setpriv")
    (machine.programs / "setpriv").symlink_to(setpriv)
    machine.add("bwrap", "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1")
    check = machine.look()["bubblewrap"]
    assert check.ok is False and check.fix
    assert check.detail.startswith(("cannot start: ", "the kernel forbids", "bubblewrap uses"))


@pytest.mark.parametrize(
    ("sandbox", "image", "docker_works", "bubblewrap_works", "ok"),
    [
        (None, None, True, True, (True, True)),
        (None, None, True, False, (True, None)),
        (None, None, False, True, (None, True)),
        (None, None, False, False, (False, False)),
        (None, "img", False, True, (False, True)),
        ("docker", None, False, True, (False, True)),
        ("docker", None, True, False, (True, None)),
        ("bwrap", None, True, False, (True, False)),
        ("bwrap", None, False, True, (None, True)),
    ],
)
def test_one_working_sandbox_is_enough_unless_one_is_named(
    sandbox: str | None,
    image: str | None,
    docker_works: bool,
    bubblewrap_works: bool,
    ok: tuple[bool | None, bool | None],
) -> None:
    settings = settings_of({"sandbox": sandbox, "image": image})
    engine, bubblewrap = GOOD if docker_works else BAD, GOOD if bubblewrap_works else BAD
    checks = doctor._either(settings, [engine, engine], bubblewrap)
    assert [check.ok for check in checks] == [ok[0], ok[0], ok[1]]


def test_an_image_that_is_missing_is_a_fault_where_an_engine_is_used() -> None:
    checks = doctor._either(Settings(), [GOOD, BAD], GOOD)
    assert [check.ok for check in checks] == [True, False, True], "fix takes the engine, and finds no image"
    checks = doctor._either(Settings(sandbox="bwrap"), [GOOD, BAD], GOOD)
    assert [check.ok for check in checks] == [True, None, True]


def test_an_image_that_the_sandbox_would_ignore_is_a_fault() -> None:
    checks = doctor._either(Settings(sandbox="bwrap", image="an-image"), [GOOD, GOOD], GOOD)
    assert (checks[0].name, checks[0].ok) == ("sandbox", False)


def test_gpus_are_counted(machine: Machine) -> None:
    rows = "; ".join(
        f"echo '{number}, GPU-{number}, NVIDIA H200, 143771, 1, Disabled'" for number in range(2)
    )
    machine.add("nvidia-smi", rows)
    assert machine.look()["GPU"] == Check("GPU", True, "2xH200")
    machine.add("nvidia-smi", "echo 'no devices were found'; exit 6")
    assert machine.look()["GPU"].ok is None
    machine.monkeypatch.setattr(doctor, "ENGINE_TIMEOUT", 0.3)
    machine.add("nvidia-smi", "exec /bin/sleep 60")
    assert "did not answer within 0.3 s" in machine.look()["GPU"].detail


def test_an_endpoint_is_asked(machine: Machine, server: str) -> None:
    check = machine.look(endpoint=server)["endpoint"]
    assert check == Check("endpoint", True, f"m3 at {server} (vllm, 262,144 tokens)")
    check = machine.look(endpoint=server, model="other")["endpoint"]
    assert check.ok is False and "other" in check.detail


def test_an_endpoint_that_refuses(machine: Machine) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        check = machine.look(endpoint=f"http://127.0.0.1:{port}/v1", api_key="hush")["endpoint"]
    assert check.ok is False and f"127.0.0.1:{port}" in check.detail and check.fix
    assert "hush" not in check.detail


def test_a_running_server_is_asked(machine: Machine, server: str) -> None:
    folder = new_folder(Path(os.environ["M3AGENT_STATE"]))
    record = ServerRecord(url=server, engine="vllm", pid=os.getpid())
    write_record(folder, record)
    found = machine.look()
    assert found["endpoint"] == Check(
        "endpoint", True, f"none set: the m3agent server at {server} (ready), m3 (vllm, 262,144 tokens)"
    )
    assert found["GPU"].detail == "no GPU"
    assert machine.look(engine="embedded")["endpoint"] == Check(
        "endpoint",
        None,
        "engine is set: the embedded engine is used, a search for small repairs, no language model; --endpoint URL names a server",
    )
    write_record(folder, record.model_copy(update={"phase": Phase.LOADING}))
    check = machine.look()["endpoint"]
    assert (check.ok, check.detail.startswith(f"the m3agent server at {server} is loading")) == (False, True)


def test_a_running_server_that_does_not_answer(machine: Machine) -> None:
    record = ServerRecord(url="http://127.0.0.1:9/v1", engine="vllm", pid=os.getpid())
    write_record(new_folder(Path(os.environ["M3AGENT_STATE"])), record)
    check = machine.look()["endpoint"]
    assert check.ok is False
    assert "m3agent serve logs" in check.fix


def test_settings_that_a_fix_refuses(machine: Machine, server: str) -> None:
    check = machine.look(endpoint=server, seed=7)["endpoint"]
    assert check.ok is False
    assert check.detail.startswith("--seed is only for the embedded engine")


def test_nowhere_to_keep_sessions(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    machine.monkeypatch.setenv("M3AGENT_STATE", str(tmp_path / "file"))
    found = machine.look()
    assert found["sessions"].ok is False and "M3AGENT_STATE" in found["sessions"].fix
    assert found["disk"].ok is None


def test_a_full_disk(machine: Machine) -> None:
    assert machine.look()["disk"].detail.endswith("state")
    machine.monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 1 << 80)
    assert machine.look()["disk"].ok is False


def test_long_lines_wrap_on_a_terminal() -> None:
    checks = [Check("Docker", False, "no engine answers at its socket", "install it and start it")]
    assert table(checks, width=40).plain == (
        "✗ missing  Docker  no engine answers at\n"
        "                   its socket\n"
        "                   to fix: install it\n"
        "                   and start it\n"
    )
    assert table(checks, width=36).plain == (
        "✗ missing  Docker\n    no engine answers at its socket\n    to fix: install it and start it\n"
    ), "no room beside the name"
    assert table(checks).plain.count("\n") == 2


def test_rendering() -> None:
    checks = [
        Check("git", True, "2.39"),
        Check("Docker", False, "absent", "install it"),
        Check("GPU", None, "none"),
    ]
    assert table(checks).plain == (
        "✓ ok       git     2.39\n"
        "✗ missing  Docker  absent\n"
        "                   to fix: install it\n"
        "-          GPU     none\n"
    )
    assert table(checks).spans[0].style == "green"
    assert json.loads(json_of(checks))[1] == {
        "name": "Docker",
        "ok": False,
        "detail": "absent",
        "fix": "install it",
    }
    assert (exit_code(checks), exit_code(checks[::2])) == (3, 0)


@pytest.mark.parametrize(
    ("packages", "ok", "detail", "fix"),
    [
        ((), True, "Own (web/own.suite)", ""),
        (("no-such-package-of-debian",), None, "Own (web/own.suite): no-such-package-of-debian is missing", "apt-get install no-such-package-of-debian, as root"),
    ],
)  # fmt: skip
def test_each_suite_has_a_line_about_its_toolchain(
    packages: tuple[str, ...],
    ok: bool | None,
    detail: str,
    fix: str,
    machine: Machine,
    new_repo: NewRepo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_own_runner(monkeypatch, Preparation(packages))
    machine.repo = new_repo(files={"a.txt": b"", "web/own.suite": b""})
    checks = machine.look()
    assert [name for name in checks if name.startswith("tests ")] == ["tests own:web"]
    assert checks["tests own:web"] == Check("tests own:web", ok, detail, fix)


def test_the_suite_of_the_whole_repository_has_the_runner_s_name(
    machine: Machine, new_repo: NewRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_own_runner(monkeypatch, Preparation())
    machine.repo = new_repo(files={"own.suite": b""})
    assert "tests own" in machine.look()


@pytest.mark.parametrize("there", [True, False])
def test_the_embedded_engine_needs_parsers_for_other_languages(
    there: bool, machine: Machine, new_repo: NewRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("m3agent.serving.embedded.languages.available", lambda: there)
    machine.repo = new_repo(files={"go.mod": b"module a\n", "a_test.go": b"package a\n"})
    checks = machine.look()
    assert ("extra outlines" in checks) == (not there)
    if not there:
        assert "cannot change Go" in checks["extra outlines"].detail


def test_a_repository_without_tests_is_said_to_have_none(machine: Machine, new_repo: NewRepo) -> None:
    machine.repo = new_repo(files={"calc.py": b"x = 1\n"})
    check = machine.look()["tests"]
    assert (check.ok, check.detail) == (None, "no tests were found here, so nothing can verify a patch")
    assert check.fix.startswith("add a test that shows the fault")


@pytest.mark.docker
@pytest.mark.parametrize(
    ("conftest", "reason"),
    [
        ("import os\nos.environ['SERVICE_URL']\n", "KeyError: 'SERVICE_URL'"),
        later("import pytest\npytest.exit('no service', returncode=0)\n", "no service"),
        later("import sys\nsys.exit(0)\n", "exit status 0"),
    ],
)
def test_tests_that_cannot_start_are_a_fault(
    conftest: str, reason: str, machine: Machine, new_repo: NewRepo
) -> None:
    machine.repo = repo = new_repo(files={"conftest.py": conftest, "test_a.py": "def test_a(): assert 1\n"})
    machine.monkeypatch.delenv("DOCKER_HOST")
    check = machine.look()["tests pytest"]
    assert (check.ok, check.fix) == (False, MEND)
    assert NO_RUN in check.detail and reason in check.detail
    (repo / "conftest.py").write_text("")
    assert machine.look()["tests pytest"].ok


@pytest.mark.docker
def test_what_is_missing_is_said_with_what_helps(machine: Machine, new_repo: NewRepo) -> None:
    """A file that skips itself is no fault, and neither is an import that takes long; both are said."""
    asks, lacks = (
        "import sys\nsys.stdin.read()\ndef test_a(): pass\n",
        "import pytest\npytest.importorskip('no_such_module')\n",
    )
    machine.repo = repo = new_repo(files={"test_a.py": asks.encode(), "test_b.py": lacks.encode()})
    machine.monkeypatch.delenv("DOCKER_HOST")
    check = machine.look()["tests pytest"]
    assert (
        check.ok is None and "reading from stdin" in check.detail and "test_b.py skips itself" in check.detail
    )
    assert (
        "--ignore in pytest's addopts" in check.fix and "if no_such_module comes from a package" in check.fix
    )
    (repo / "test_a.py").write_text("def test_a(): pass\n")
    assert machine.look()["tests pytest"].ok
    machine.monkeypatch.setattr(collection, "HERE_SECONDS", 0.01)
    check = machine.look()["tests pytest"]
    assert check.ok and "too long to wait for" in check.detail


@pytest.mark.docker
def test_an_environment_that_is_not_built_is_not_built_by_the_doctor(
    machine: Machine, new_repo: NewRepo
) -> None:
    machine.repo = new_repo(
        files={"requirements.txt": "no-such-package-there-is\n", "test_a.py": "import a\n"}
    )
    machine.monkeypatch.delenv("DOCKER_HOST")
    check = machine.look()["tests pytest"]
    assert check.ok and "its environment is not built yet" in check.detail


def test_tests_that_cannot_run_here_are_named(machine: Machine, new_repo: NewRepo) -> None:
    machine.repo = new_repo(files={"deno.json": b"{}"})
    check = machine.look()["tests"]
    assert check.ok is None
    assert "Deno (deno.json)" in check.detail


def test_outside_a_repository_there_are_no_suites(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_runner(monkeypatch, Preparation())
    (machine.repo / "own.suite").touch()
    assert not any(name.startswith("tests") for name in machine.look())


@pytest.mark.parametrize("container", [True, False])
def test_without_isolation_no_backend_is_needed(container: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "in_container", lambda: container)
    checks = doctor._either(Settings(sandbox="here"), [BAD], BAD)
    assert [check.ok for check in checks] == [None, None, container or None]
