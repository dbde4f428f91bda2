"""What all tests share: real repositories, real sandboxes, and a state folder of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from m3agent.sandbox.base import Limits, Sandbox
from m3agent.sandbox.bwrap_machine import barred_by, command
from m3agent.sandbox.docker_machine import connect
from m3agent.sandbox.errors import EngineUnavailable
from m3agent.sandbox.git import TreeStore
from m3agent.sandbox.open import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.workspace import Workspace
from tests.installs import build
from tests.servers.misbehaving import MisbehavingServer


def docker_here() -> bool:
    try:
        connect().close()
    except EngineUnavailable:
        return False
    return True


def bwrap_here() -> bool:
    try:
        command(Limits())
    except EngineUnavailable:
        return False
    return barred_by() is None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests may take longer before they count as hanging."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sessions and settings of the machine's user stay out of the tests, and the tests' out of theirs."""
    home = tmp_path_factory.mktemp("home")
    for name in [n for n in os.environ if n.startswith(("M3AGENT_", "XDG_", "OPENAI_", "GIT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    # verdicts on flaky tests have tests of their own (test_verify.py, test_flaky.py): the others need not wait for reruns
    monkeypatch.setenv("M3AGENT_RERUNS", "0")
    monkeypatch.setenv("M3AGENT_STATE", str(home / "state"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
    (home / "gitconfig").write_text(
        "[user]\n name = Tester\n email = tester@example.invalid\n[init]\n defaultBranch = main\n"
    )
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(params=["docker", "bwrap"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every kind of sandbox there is on this machine; at least one has to be."""
    here = {"docker": docker_here, "bwrap": bwrap_here}[request.param]()
    if not here:
        assert docker_here() or bwrap_here(), "neither Docker nor bubblewrap works here: see `m3agent doctor`"
        pytest.skip(f"{request.param} does not work on this machine")
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def best_backend() -> Backend:
    """The one kind a user of this machine would get."""
    if docker_here():
        return "docker"
    assert bwrap_here(), "neither Docker nor bubblewrap works here: see `m3agent doctor`"
    return "bwrap"


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def make_repo(tmp_path: Path) -> Callable[[dict[str, str | bytes]], Path]:
    """A git repository of these files, in one commit."""

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
    """A workspace that starts from these files."""

    def make(files: dict[str, str | bytes]) -> Workspace:
        folder = tmp_path / "tree"
        write_files(folder, files)
        return Workspace.from_folder(TreeStore(tmp_path / "trees.git"), folder, sorted(files))

    return make


@pytest.fixture
def sandbox_of(
    backend: Backend, workspace_of: Callable[[dict[str, str | bytes]], Workspace]
) -> Callable[..., Sandbox]:
    """A sandbox of each kind over these files; enter it to start it."""

    def make(files: dict[str, str | bytes] | None = None, limits: Limits | None = None) -> Sandbox:
        spec = SandboxSpec(backend, limits=limits or Limits(memory=1 << 30))
        return new_sandbox(backend, spec, workspace_of(files or {"a.txt": "a\n"}), lambda _: None)

    return make


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def running_server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as running:
        yield running


@pytest.fixture
def server(running_server: MisbehavingServer) -> MisbehavingServer:
    """A model server that answers as the test tells it to."""
    running_server.reset()
    return running_server
