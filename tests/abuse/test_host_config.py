"""Git on the host, in a repository whose own configuration names programs: m3agent must not run any of them.

A clone does not contain such a configuration. But a bare repository among a clone's files does, and so does a checkout
unpacked from an archive.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.agent.context.checkout import Checkout, quick_checkout
from m3agent.agent.context.packer import PackOptions
from m3agent.agent.repo.repository import GitCommandFailed, open_repository, origin_url
from m3agent.cli import context as command
from m3agent.util.errors import M3AgentError, UsageError
from tests.abuse.test_host_git import CONFIG
from tests.agent.delivery.test_apply import REGULAR, Made
from tests.conftest import later

pytestmark = pytest.mark.integration

MakeRepo = Callable[..., Path]
MORE = """
[log]
	showSignature = true
[gpg]
	program = {run}
[gpg "ssh"]
	program = {run}
[core]
	alternateRefsCommand = {run}
	gitProxy = {run}
[protocol "ext"]
	allow = always
[remote "origin"]
	receivepack = {run}
	promisor = true
	partialclonefilter = blob:none
	vcs = ext
[status]
	submoduleSummary = true
"""
FILES = {"a.py": "x = 1\n", "b/c.py": "y = 1\n", ".gitattributes": "*.py filter=evil diff=evil merge=evil\n"}


def configured(keys: str, run: str) -> list[tuple[str, str]]:
    """Return the keys of a configuration with their values."""
    done = subprocess.run(
        ["git", "config", "--file", "-", "--no-includes", "--null", "--list"],
        input=keys.replace("{run}", run).encode(),
        check=True,
        capture_output=True,
    )
    entries = done.stdout.decode().split("\0")[:-1]
    return [(key, value) for key, _, value in (entry.partition("\n") for entry in entries)]


KEYS = [key for key, _ in configured(CONFIG + MORE, "false") if key != "core.worktree"]


class Hostile:
    """A checkout that names a program in every setting where git takes one. The program leaves a mark when it runs."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.mark = folder / "ran"
        self.program = folder / "evil.sh"
        self.program.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.mark}\ncat\n')
        self.program.chmod(0o755)
        self.sign()
        os.utime(root / "a.py", (1, 1))  # git then has to read the file to know whether it changed

    def git(self, *args: str, ok: bool = True) -> str:
        done = subprocess.run(["git", *args], cwd=self.root, check=ok, capture_output=True, text=True)
        return done.stdout.strip()

    def sign(self) -> None:
        """Add a signature to the commit, which git could check."""
        old = self.git("cat-file", "commit", "HEAD")
        head, _, message = old.partition("\n\n")
        made = subprocess.run(
            ["git", "hash-object", "-t", "commit", "-w", "--stdin"],
            cwd=self.root,
            input=f"{head}\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n{message}\n".encode(),
            check=True,
            capture_output=True,
        ).stdout.decode()
        self.git("update-ref", "HEAD", made.strip())

    def configure(self, keys: str, only: str | None = None, where: str = ".git/config") -> None:
        for key, value in configured(keys, str(self.program)):
            if key != "core.worktree" and only in (None, key):
                subprocess.run(
                    ["git", "config", "--file", str(self.root / where), "--add", key, value], check=True
                )

    def use(self, folder: Path, out: Path) -> None:
        """Do everything that m3agent does with a repository."""
        repository = open_repository(folder)
        with contextlib.suppress(GitCommandFailed):
            origin_url(repository)
        repository.dirty_paths()
        repository.list_files()
        repository.submodules()
        quick = quick_checkout(str(folder))
        for checkout in filter(None, (quick, Checkout.of(repository))):
            command.run(PackOptions(), checkout, output=str(out / "context.txt"))
            shutil.rmtree(Path(os.environ["M3AGENT_STATE"], "context"), ignore_errors=True)
        made = Made(folder, out / "trees.git", [("a.py", REGULAR, b"x = 2\n")], [])
        made.commit("fixed")
        if repository.root is not None:
            made.apply()

    def ran(self) -> str:
        return self.mark.read_text() if self.mark.exists() else ""


def context(folder: Path, *args: str, quick: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `m3agent context` in a folder: its quick variant, or the whole command line."""
    env = {name: value for name, value in os.environ.items() if name != "M3AGENT_RERUNS"}
    env |= {} if quick else {"M3AGENT_RERUNS": "0"}
    argv = [sys.executable, "-m", "m3agent.agent", "context", *args]
    return subprocess.run(argv, cwd=folder, env=env, check=False, capture_output=True, text=True)


@pytest.fixture
def hostile(make_repo: MakeRepo, tmp_path: Path) -> Hostile:
    return Hostile(make_repo(FILES), tmp_path)


@pytest.mark.slow  # a minute together; the quick tests below set all keys at once
@pytest.mark.parametrize("key", KEYS)
def test_no_key_of_a_checkout_is_obeyed(hostile: Hostile, tmp_path: Path, key: str) -> None:
    hostile.configure(CONFIG + MORE, key)
    hostile.use(hostile.root, tmp_path)
    assert not hostile.ran()
    assert (hostile.root / "a.py").read_text() == "x = 2\n"
    for name in (".git/config", ".git/config.worktree"):
        (hostile.root / name).unlink(missing_ok=True)
    assert hostile.git("show", "fixed:a.py") == "x = 2", "what was to be done is done"


@pytest.mark.slow  # a minute together; the quick tests below set all keys at once
@pytest.mark.parametrize("key", KEYS)
def test_no_key_of_a_bare_repository_is_obeyed(hostile: Hostile, tmp_path: Path, key: str) -> None:
    bare = tmp_path / "bare.git"
    hostile.git("clone", "-q", "--bare", str(hostile.root), str(bare))
    hostile.configure(CONFIG + MORE, key, str(bare / "config"))
    hostile.use(bare, tmp_path)
    assert not hostile.ran()


@pytest.mark.parametrize("quick", [True, later(False)])
def test_all_keys_at_once(hostile: Hostile, tmp_path: Path, quick: bool) -> None:
    hostile.configure(CONFIG + MORE)
    hostile.configure("[extensions]\n worktreeConfig = true\n")
    hostile.configure(CONFIG + MORE, where=".git/config.worktree")
    (hostile.root / ".git/info/attributes").write_text("* filter=evil diff=evil\n")
    done = context(hostile.root, quick=quick)
    assert done.returncode == 0, done.stderr
    assert '<file path="a.py">\nx = 1\n</file>' in done.stdout
    hostile.use(hostile.root, tmp_path)
    assert not hostile.ran()


def test_all_keys_of_a_bare_repository_at_once(hostile: Hostile, tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    hostile.git("clone", "-q", "--bare", str(hostile.root), str(bare))
    hostile.configure(CONFIG + MORE, where=str(bare / "config"))
    hostile.use(bare, tmp_path)
    assert not hostile.ran()


@pytest.mark.slow
@pytest.mark.parametrize("quick", [True, later(False)])
def test_a_bare_repository_among_the_files_of_a_clone(
    hostile: Hostile, make_repo: MakeRepo, tmp_path: Path, quick: bool
) -> None:
    outer = make_repo({"mine.py": "z = 1\n"}, "outer")
    hostile.git("clone", "-q", "--bare", str(hostile.root), str(outer / "nested"))
    hostile.configure(CONFIG + MORE, where=str(outer / "nested/config"))
    for args in (["add", "-A"], ["commit", "-qm", "nested"], ["clone", "-q", ".", str(tmp_path / "clone")]):
        subprocess.run(["git", *args], cwd=outer, check=True, capture_output=True)
    nested = tmp_path / "clone" / "nested"
    (nested / "refs" / "heads").mkdir(parents=True, exist_ok=True)  # git keeps no empty folders
    # git treats such a folder as a repository
    subprocess.run(["git", "log"], cwd=nested, check=True, capture_output=True)
    assert "evil.sh" in hostile.ran()
    hostile.mark.unlink()

    done = context(nested, quick=quick)
    assert done.returncode == 2
    assert f"{nested} is a bare repository inside the work tree of {nested.parent}" in done.stderr
    with pytest.raises(UsageError, match="inside the work tree"):
        hostile.use(nested, tmp_path)
    assert context(nested / "objects", quick=quick).stdout == context(nested.parent, quick=quick).stdout
    assert not hostile.ran()


@pytest.mark.parametrize("quick", [True, later(False)])
def test_signatures_are_not_checked(hostile: Hostile, tmp_path: Path, quick: bool) -> None:
    hostile.configure(MORE)
    hostile.git("log")
    assert "--verify" in hostile.ran(), "git would"
    hostile.mark.unlink()
    assert context(hostile.root, quick=quick).returncode == 0
    assert not hostile.ran()


@pytest.mark.parametrize("quick", [True, later(False)])
def test_missing_objects_are_not_fetched(hostile: Hostile, tmp_path: Path, quick: bool) -> None:
    folder = hostile.git("rev-parse", "HEAD:b")
    hostile.git("config", "core.repositoryFormatVersion", "1")
    hostile.git("config", "extensions.partialClone", "origin")
    hostile.git("config", "remote.origin.promisor", "true")
    hostile.git("config", "remote.origin.url", "ssh://host.invalid/repository")
    hostile.git("config", "core.sshCommand", f"echo ssh >> '{hostile.mark}'; false")
    (hostile.root / ".git/objects" / folder[:2] / folder[2:]).unlink()
    hostile.git("log", "--name-only", ok=False)
    assert "ssh" in hostile.ran(), "git would"
    hostile.mark.unlink()
    context(hostile.root, quick=quick)
    with contextlib.suppress(M3AgentError):
        hostile.use(hostile.root, tmp_path)
    assert not hostile.ran()


@pytest.mark.parametrize("quick", [True, later(False)])
def test_files_are_not_filtered(hostile: Hostile, tmp_path: Path, quick: bool) -> None:
    hostile.configure('[filter "evil"]\n clean = {run}\n')
    hostile.git("status")
    assert hostile.ran(), "git would"
    hostile.mark.unlink()
    os.utime(hostile.root / "a.py", (1, 1))
    assert context(hostile.root, quick=quick).returncode == 0
    hostile.use(hostile.root, tmp_path)
    assert not hostile.ran()


def test_the_users_own_filter_is_obeyed_without_secrets(
    hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    monkeypatch.setenv("SOME_API_KEY", "hush")
    hostile.git("config", "--global", "filter.evil.clean", f"env > '{tmp_path}/env'; tr 2 3")
    hostile.use(hostile.root, tmp_path)
    assert hostile.git("show", "fixed:a.py") == "x = 3"
    seen = (tmp_path / "env").read_text()
    assert "hush" not in seen and "M3AGENT_" not in seen and "HOME=" in seen
