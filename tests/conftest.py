"""Fixtures that all tests share: git repositories, sandboxes, model servers, and a state folder for each test."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from hypothesis import settings
from pytest import ParameterSet

from m3agent.cli.facts import kinds
from m3agent.sandbox.backends.bwrap_machine import barred_by, command
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.here_machine import in_container
from m3agent.sandbox.backends.image import REPOSITORY
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.sandbox.errors import EngineUnavailable
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.serving.errors import TableError
from m3agent.serving.facts.table import rows
from scripts.docs import browser
from tests.agent.repositories import Files, NewRepo, run_git, write_files
from tests.installs import build

if TYPE_CHECKING:
    from tests.agent.fix.attempt_parts import World
    from tests.agent.scripted import Fixes
    from tests.servers.misbehaving import MisbehavingServer


# Many tests run commands in this process, and building the commands of the whole command line takes 0.08 s.
typer.main.get_command = cache(typer.main.get_command)

# The caller's choice of colours must not change a result. Tests of colours set these variables themselves.
for _colours in ("NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(_colours, None)

# `make test` draws the same examples everywhere; `make fuzz` draws new ones. A time limit for each example would
# fail on a busy machine, not on a fault.
settings.register_profile("tests", max_examples=20, derandomize=True, deadline=None, database=None)
settings.register_profile("fuzz", deadline=None, database=None, print_blob=False)
settings.load_profile("tests")


@cache
def docker_here() -> bool:
    try:
        connect().close()
    except EngineUnavailable:
        return False
    return True


@cache
def bwrap_here() -> bool:
    try:
        command(SandboxLimits())
    except EngineUnavailable:
        return False
    return barred_by() is None


STARTERS = {
    "backend",
    "one_backend",
    "sandbox_of",
    "kind",
    "box",
    "bench",
    "tight",
    "running_server",
    "wheel",
}
"""Fixtures that start sandboxes, servers or processes."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Check the tables of facts first: a malformed row would end the import of many modules, each with a traceback."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        try:
            for table, kind in kinds().items():
                rows(kind, table)
        except TableError as error:
            pytest.exit(str(error), returncode=pytest.ExitCode.TESTS_FAILED)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Compile a share of all tests in each worker, because in a fresh clone each worker would compile all of them."""
    worker = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    if worker is None or session.config.args_source != pytest.Config.ArgsSource.TESTPATHS:
        return
    here = Path(__file__).parent
    share = sorted(here.rglob("test_*.py"))[int(worker[1]) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]
    for path in share:
        if str(path.parent) not in sys.path:  # as pytest does, so that it finds the module imported
            sys.path.insert(0, str(path.parent))
        with suppress(Exception, pytest.skip.Exception):  # reported when the module is collected
            importlib.import_module(path.stem)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the fixtures and markers that it uses; see `markers` in pyproject.toml."""
    for item in items:
        parameters = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        kind = parameters.get("backend", parameters.get("kind"))
        if item.get_closest_marker("supervisor") and kind in KINDS and kind != one_kind():
            item.add_marker("slow")
        if item.get_closest_marker("languages") and "ecosystems" not in item.path.parts:
            raise pytest.UsageError(f"{item.nodeid}: `make test-languages` runs tests/ecosystems only")
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))  # seconds before the test counts as hanging
        needs_engine = any(
            item.get_closest_marker(name) for name in ("docker", "bwrap", "slow", "languages", "frameworks")
        )
        if needs_engine or (isinstance(item, pytest.Function) and not STARTERS.isdisjoint(item.fixturenames)):
            item.add_marker("integration")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt what collection made from garbage collection, so that no later one scans all of it."""
    one_kind()  # a unit test may not ask the engine
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


_unit_test: str | None = None
"""The id of the running test, if the test is not marked `integration`."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note whether the running test is a unit test."""
    global _unit_test
    _unit_test = None if item.get_closest_marker("integration") else item.nodeid
    try:
        return (yield)
    finally:
        _unit_test = None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Let teardown start processes: it may end a module fixture that integration tests used too."""
    global _unit_test
    _unit_test = None


FORBIDDEN = {"socket.connect", "subprocess.Popen", "os.posix_spawn", "os.fork", "tests.fork"}
"""Audit events that unit tests must not cause."""


def _refuse_in_unit_tests(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: refuse processes other than git, and connections, in unit tests."""
    if _unit_test is None or event not in FORBIDDEN:
        return
    words = arguments[1] if event in ("subprocess.Popen", "os.posix_spawn") else [event]
    program = os.fsdecode(words[0] if isinstance(words, list | tuple) else words)
    if Path(program).name != "git":
        raise RuntimeError(f"{_unit_test} needs `pytest.mark.integration`: it uses {program}")


sys.addaudithook(_refuse_in_unit_tests)


def python_program(code: str) -> str:
    """Return a program that this Python runs, as pip and uv write it in a folder with spaces, which a first line cannot name."""
    return PROGRAM.format(shlex.quote(sys.executable)) + code


PROGRAM = """\
#!/bin/sh
'''exec' {} "$0" "$@"
' '''
"""


@pytest.fixture
def unicode_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show more than ASCII, whatever the caller's locale is."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


@pytest.fixture(scope="session")
def git_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the template of a new git repository without sample hooks, which are most files of a small one."""
    template = tmp_path_factory.mktemp("git-template")
    for name in ("hooks", "info"):
        (template / name).mkdir()
    return template


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the paths of home folders, one for each test: `mktemp` would list those of all earlier tests."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_state(git_template: Path, homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Separate the sessions and settings of the tests from those of the machine's user."""
    home = next(homes)
    home.mkdir()
    for name in [n for n in os.environ if n.startswith(("M3AGENT_", "XDG_", "OPENAI_", "GIT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    # flaky tests have tests of their own (test_verify_sandboxes.py, test_flaky.py); others need no reruns
    monkeypatch.setenv("M3AGENT_RERUNS", "0")
    # commands use the sandbox that starts fastest; tests of Docker name it
    monkeypatch.setenv("M3AGENT_SANDBOX", one_kind())
    monkeypatch.setenv("M3AGENT_STATE", str(home / "state"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
    (home / "gitconfig").write_text(
        "[user]\n name = Tester\n email = tester@example.invalid\n"
        f"[init]\n defaultBranch = main\n templateDir = {git_template}\n"
        "[maintenance]\n auto = false\n"  # otherwise each commit starts one more process
    )
    yield home
    shutil.rmtree(home, ignore_errors=True)


def one_kind() -> Backend:
    """Return the kind of sandbox that starts fastest on this machine."""
    if KINDS == ["here"]:
        return "here"
    if "bwrap" in KINDS and bwrap_here():
        return "bwrap"
    assert docker_here(), "neither Docker nor bubblewrap works here: see `m3agent doctor`"
    return "docker"


KINDS = os.environ.get("TEST_SANDBOXES", "docker bwrap").split()
"""Kinds of sandboxes of the tests. `here` is for a container of which nothing is left afterwards: see test_here.py."""


def backend_here(backend: Backend) -> Backend:
    """Return `backend`, or skip the test if it does not work here; fail if no backend works."""
    works: dict[Backend, Callable[[], bool]] = {
        "docker": docker_here,
        "bwrap": bwrap_here,
        "here": in_container,
    }
    if not works[backend]():
        one_kind()
        pytest.skip(f"{backend} does not work on this machine")
    return backend


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return each kind of sandbox that works on this machine, for tests of what all kinds promise."""
    return backend_here(request.param)


@pytest.fixture
def one_backend() -> Backend:
    """Return one kind of sandbox, for tests where the kind does not matter."""
    return one_kind()


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Keep all other tests on this machine from using `what` meanwhile, whatever their temporary folder is."""
    with Path(f"/tmp/m3agent-tests-{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait before requests to an API or a small page are repeated."""
    for name in ("_LONGEST_API_BACKOFF", "_LONGEST_PAGE_WAIT"):
        monkeypatch.setattr(f"m3agent.serving.client.retry.{name}", 0.0)


def later(*values: object) -> ParameterSet:
    """Return parameters that only the long tests try, because other parameters guard the same behaviour."""
    return pytest.param(*values, marks=pytest.mark.slow)


def others_later(names: Iterable[str], quick: Collection[str]) -> list[str | ParameterSet]:
    """The names as parameters; those that are not in `quick` are tried in the long tests."""
    return [name if name in quick else later(name) for name in names]


TIME_LIMITS = (1, 4, 16, 64)
"""Time limits in seconds to try for a program that must begin and then be over its time: a start may take seconds."""


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, for at most a minute. Raises `TimeoutError`."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition depends on another process
            await asyncio.sleep(0.01)


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def make_repo(tmp_path: Path) -> Callable[[dict[str, str | bytes]], Path]:
    """Return a function that makes a git repository with these files in one commit."""

    def make(files: dict[str, str | bytes], name: str = "repo") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        write_files(folder, files)
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "first")
        return folder

    return make


@pytest.fixture
def workspace_of(tmp_path: Path) -> Callable[[dict[str, str | bytes]], Workspace]:
    """Return a function that makes a workspace with these files."""

    def make(files: dict[str, str | bytes]) -> Workspace:
        folder = tmp_path / "tree"
        write_files(folder, files)
        return Workspace.from_folder(TreeStore(tmp_path / "trees.git"), folder, sorted(files))

    return make


@pytest.fixture
def sandbox_of(
    backend: Backend, workspace_of: Callable[[dict[str, str | bytes]], Workspace]
) -> Callable[..., Sandbox]:
    """Return a function that makes a sandbox with these files; entering the sandbox starts it."""

    def make(files: dict[str, str | bytes] | None = None, limits: SandboxLimits | None = None) -> Sandbox:
        spec = SandboxSpec(backend, limits=limits or SandboxLimits(memory=1 << 30))
        return new_sandbox(backend, spec, workspace_of(files or {"a.txt": "a\n"}), lambda _: None)

    return make


@pytest.fixture
def images_alone() -> Iterator[None]:
    """Keep all other tests from making or removing environment images: they share one engine."""
    with alone("images"):
        yield


@pytest.fixture
def own_images(images_alone: None) -> Iterator[None]:
    """Remove the environment images that the test made."""
    api = connect()
    before = {name for listed in api.images() for name in listed.get("RepoTags") or []}
    yield
    for listed in api.images():
        for name in set(listed.get("RepoTags") or []) - before:
            if name.startswith(f"{REPOSITORY}:"):
                api.remove_image(name, force=True)
    api.close()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout."""
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def chromium() -> None:
    """Skip the test if there is no Chromium; `scripts.docs.browser` runs it."""
    if browser.find() is None:
        pytest.skip("needs Chromium on PATH (Debian: apt-get install chromium)")


@pytest.fixture(scope="session")
def running_server() -> Iterator[MisbehavingServer]:
    # imported here because most tests need no web server
    from tests.servers.misbehaving import MisbehavingServer

    with MisbehavingServer() as running:
        yield running


@pytest.fixture
def server(running_server: MisbehavingServer) -> MisbehavingServer:
    """Return a model server that answers as the test tells it to."""
    running_server.reset()
    return running_server


@pytest.fixture
def model(server: MisbehavingServer) -> MisbehavingServer:
    """Return the server that plays the model."""
    return server


@pytest.fixture
def fixes(model: MisbehavingServer, make_repo: Callable[..., Path], own_state: Path) -> Fixes:
    """Return what runs fixes by the server that plays the model."""
    from tests.agent.scripted import Fixes  # imported here because most tests run no fix

    return Fixes(model, make_repo, own_state)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return the surroundings of an attempt, in memory."""
    from tests.agent.fix.attempt_parts import world_in  # imported here because most tests need no attempt

    with world_in(tmp_path) as made:
        yield made


@pytest.fixture
def new_repo(tmp_path: Path) -> NewRepo:
    def make(name: str = "repo", files: Files | None = None) -> Path:
        root = tmp_path / name
        root.mkdir()
        run_git(root, "init", "--quiet", "--initial-branch=main")
        write_files(root, {"a.py": b"x = 1\n"} if files is None else files)
        run_git(root, "add", "--all", "--force")
        run_git(root, "commit", "--quiet", "--allow-empty", "--message=first")
        return root

    return make
