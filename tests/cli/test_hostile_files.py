"""Test that no command waits for a file of a repository, or reads one without end, whatever the file is."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from m3agent.agent.repo import git_spawn
from m3agent.agent.repo.repository import open_repository
from m3agent.agent.repo.snapshot import workspace_of
from m3agent.sandbox.store.workspace import LARGEST_FILE
from m3agent.util.errors import EnvironmentFault
from m3agent.util.plain_file import read_first, read_inside
from tests.command_line import run
from tests.conftest import git

SECONDS = 20.0  # for one command; m3agent waits 5 s for git before it looks for the reason


def fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def endless(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path, outside: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)  # sparse: it takes no room


def outside(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def loop(path: Path, outside: Path) -> None:
    path.symlink_to(path.name)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()


def pipe_link(path: Path, outside: Path) -> None:
    pipe = outside.parent / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
    path.symlink_to(pipe)


KINDS: tuple[Callable[[Path, Path], None], ...] = (fifo, endless, huge, outside, loop, folder, pipe_link)
SETTINGS = (".m3agent.toml", "pyproject.toml", ".mcp.json")
FILES = (
    "code.py", "AGENTS.md", "Dockerfile", "requirements.txt", "setup.cfg", "setup.py", "tox.ini", ".m3agentignore", ".gitmodules",
)  # fmt: skip
"""Other files of a work tree that m3agent reads by name, and two that it reads as text."""
OF_GIT = (".gitignore", ".gitattributes", "src/.gitignore", "src/.gitattributes")
"""Files that git reads. It waits for each of them that is a pipe."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "context": ("context", "--stats"),
    "context by the full command line": ("context", "--stats", "--prefix=frozen", "--verify"),
    "config": ("config", "show"),
    "mcp list": ("mcp", "list"),
    "mcp trust": ("mcp", "trust"),
    "create": ("eval", "create", "--dry-run"),
}
OF_CODE = {"context", "context by the full command line", "create"}
"""The commands that read more than `SETTINGS`."""
SECRET = "max_turns = 77  # m3agent: never read"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "src").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / "calc.py").write_text("x = 1\n")
    (root / "src" / "more.py").write_text("y = 1\n")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "first")
    (tmp_path / "outside").write_text(SECRET)
    return root


def replaced(root: Path, name: str, kind: Callable[[Path, Path], None]) -> None:
    path = root / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    kind(path, root.parent / "outside")


def at_work(root: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command; it must end soon, with an expected exit code and without a traceback."""
    words = COMMANDS[command]
    where = ("--repo", str(root)) if "create" not in words else (str(root),)
    begun = time.monotonic()
    done = run(*words, *where, env={"GIT_CEILING_DIRECTORIES": str(root.parent)})
    assert time.monotonic() - begun < SECONDS
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1, 2, 3), done.stderr
    if done.returncode in (2, 3):
        assert len(done.stderr.strip().splitlines()) <= 3, done.stderr
    return done


def tried(
    root: Path, kind: Callable[[Path, Path], None], names: Sequence[str], commands: Iterable[str]
) -> None:
    """Replace files by ones of this kind and run each command.

    A command may stop at the first of them, and then it does not read the others. So each half is tried alone, too.
    """
    for command in commands:
        for name in names:
            replaced(root, name, kind)
        done = at_work(root, command)
        assert "77" not in done.stdout, "a file outside was read"
        for name in names:
            path = root / name
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        if done.returncode and len(names) > 1:
            half = len(names) // 2
            tried(root, kind, names[:half], [command])
            tried(root, kind, names[half:], [command])


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_file(repository: Path, kind: Callable[[Path, Path], None]) -> None:
    tried(repository, kind, [".m3agent.toml"], ["context", "config"])
    tried(repository, kind, [".mcp.json"], ["mcp list"])


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_file_as_every_kind(repository: Path, kind: Callable[[Path, Path], None]) -> None:
    for name in SETTINGS:
        tried(repository, kind, [name], COMMANDS)
    for names in [FILES, *([name] for name in OF_GIT)] if kind is fifo else [FILES + OF_GIT]:
        tried(repository, kind, names, sorted(OF_CODE))


# -- the helper --------------------------------------------------------------------------------------------------------


def test_a_plain_file_is_read(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"12345")
    (tmp_path / "link").symlink_to("plain")
    for name in ("plain", "link"):
        assert read_inside(str(tmp_path), str(tmp_path / name), 5) == b"12345"
        assert read_first(str(tmp_path / name), 3) == b"123"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (fifo, "not a regular file"),
        (endless, "leads out of the repository"),
        (huge, "larger than 1,000 bytes"),
        (outside, "leads out of the repository"),
        (loop, "symbolic links"),
        (folder, "not a regular file"),
        (pipe_link, "leads out of the repository"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_files_are_refused(tmp_path: Path, kind: Callable[[Path, Path], None], why: str) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    (tmp_path / "outside").write_text(SECRET)
    kind(root / "file", tmp_path / "outside")
    with pytest.raises(OSError, match=why):
        read_inside(str(root), str(root / "file"), 1000)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/dev/tty", "."])
def test_a_device_is_never_read(name: str) -> None:
    with pytest.raises(OSError):
        read_first(name, 10)


# -- git ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["Linux", "elsewhere"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take Linux's own calls away, as on other systems."""
    if request.param == "elsewhere":
        for name in ("pidfd_open", "memfd_create"):
            monkeypatch.delattr(os, name, raising=False)


@pytest.mark.integration
@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("name", [".gitignore", "src/.gitattributes"])
def test_git_does_not_wait_for_a_pipe(repository: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_spawn, "PATIENCE", 0.2)
    replaced(repository, name, fifo)
    os.utime(
        repository / "src/more.py", (1, 1)
    )  # else git may know that the file is unchanged, and read no attributes
    opened = open_repository(repository)
    sentence = f"Git cannot read {repository / name}, which is not a regular file: remove it"
    with pytest.raises(EnvironmentFault, match=sentence):
        opened.dirty_paths()
    with pytest.raises(EnvironmentFault, match=sentence):
        git_spawn.GitProcess(opened.host_git, "status").output()
    with pytest.raises(EnvironmentFault, match=sentence):
        workspace_of(opened, repository.parent, lambda _: None)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["index", "info/exclude"])
def test_git_does_not_wait_for_a_pipe_in_its_own_folder(
    repository: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive may have one there."""
    monkeypatch.setattr(git_spawn, "PATIENCE", 0.2)
    opened = open_repository(repository)
    replaced(repository / ".git", name, fifo)
    with pytest.raises(
        EnvironmentFault, match=f"Git cannot read {repository / '.git' / name}, which is not a regular"
    ):
        opened.dirty_paths()


@pytest.mark.usefixtures("system")
def test_a_slow_git_is_waited_for(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_spawn, "PATIENCE", 0.0)
    opened = open_repository(repository)
    (repository / "new.py").touch()
    assert opened.dirty_paths() == {"new.py"}
    assert git_spawn.GitProcess(opened.host_git, "ls-files").output() == b"calc.py\nsrc/more.py\n"


def test_a_work_tree_that_is_too_large(repository: Path) -> None:
    for number in range(164):
        path = repository / "src" / f"data{number:03}.bin"
        path.touch()
        os.truncate(path, LARGEST_FILE)
    with pytest.raises(
        EnvironmentFault, match=r"larger than 16 GiB together, the largest is src/data000\.bin: leave"
    ):
        workspace_of(open_repository(repository), repository.parent, lambda _: None)
