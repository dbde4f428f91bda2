"""Every git command that m3agent runs, in repositories that set every key of the installed git.

The value of each key names a program that leaves a mark when it runs. The commands are recorded where git is started,
so a new one cannot be left out. PATH decides which git is tried.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.context.checkout import Checkout
from m3agent.agent.context.packer import PackOptions
from m3agent.agent.delivery.apply import apply_to_work_tree, commit_to_branch
from m3agent.agent.delivery.push import RemoteBranches, has_commit, heads_of, push
from m3agent.agent.repo.git_config import ALLOWED
from m3agent.agent.repo.host_git import HostGit
from m3agent.agent.repo.repository import Repository, last_tag, open_repository, origin_url
from m3agent.agent.repo.snapshot import workspace_of
from m3agent.cli import context as command
from m3agent.evals.code.checkout import checkout
from m3agent.evals.create.folder import pack
from m3agent.evals.create.history import open_history
from m3agent.evals.data.instance import Source, Task
from m3agent.sandbox.store.git_command import SUBCOMMANDS, GitCommand, for_owner_question, subcommand
from m3agent.util.errors import M3AgentError
from tests.abuse.test_host_config import MORE, Hostile, configured
from tests.abuse.test_host_git import CONFIG
from tests.agent.delivery.test_apply import REGULAR
from tests.agent.repositories import found, write_files
from tests.conftest import git, others_later
from tests.servers.loopback import LoopbackServer, QuietHandler

pytestmark = pytest.mark.integration

MakeRepo = Callable[..., Path]
FILES = {"a.py": "x = 1\n", "b/c.py": "y = 1\n", ".gitattributes": "*.py filter=evil diff=evil merge=evil\n"}
HOOKS = ("reference-transaction", "pre-push", "post-index-change", "post-checkout", "post-commit")
NAMES = {
    "alias": "status",
    "branch": "main",
    "credential": "helper",
    "diff": "evil",
    "filter": "evil",
    "gpg": "ssh",
    "hook": "evil",
    "includeif": "gitdir:/**",
    "merge": "evil",
    "pager": "log",
    "protocol": "ext",
    "remote": "origin",
    "submodule": "x",
}
"""What stands for a name in a key, by the key's section."""
NOT_SET = re.compile(r"core\.(bare|worktree|prefersymlinkrefs)|extensions\..*")
"""Keys with which m3agent refuses the repository before it runs a command. Git 2.55 stops at the third in a submodule."""
MAY_RUN = re.compile(
    "alias|askpass|clean|cmd|command|driver|editor|exec|file|filter|fsmonitor|helper|hook|include|pack|pager|path|process"
    "|program|proxy|run|script|smudge|textconv|tool|update|url|vcs"
)
"""Parts of the names of keys that may name a program."""
Entries = list[tuple[str, str]]


def keys_of_git() -> list[str]:
    """Return every key of the installed git, in lower case and with names for its placeholders."""
    listed = subprocess.run(["git", "help", "--config"], check=True, capture_output=True, text=True).stdout
    found = set()
    for key in re.findall(r"^[a-z]\w*\.[^\s_]+$", listed, re.MULTILINE | re.IGNORECASE):  # gitweb has others
        name = NAMES.get(key.partition(".")[0].lower(), "x")
        found.add(re.sub(r"<[^>]*>|\*", name, key))
    known = {key for key, _ in configured(CONFIG + MORE, "false")}
    return sorted(key for key in {*found, *known} if not NOT_SET.fullmatch(key.lower()))


def written(entries: Entries) -> str:
    lines = []
    for key, value in entries:
        section, _, rest = key.partition(".")
        subsection, dot, name = rest.rpartition(".")
        lines.append(f'[{section} "{subsection}"]' if dot else f"[{section}]")
        lines.append(f' {name} = "{value}"')
    return "\n".join(lines) + "\n"


class Trap:
    """A folder with a program that leaves a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = folder / "ran"
        self.program = str(folder / "program")
        scripts = {
            **dict.fromkeys(
                ("program", *(f"hooks/{hook}" for hook in HOOKS)), f'echo "$0 $*" >> {self.mark}; exit 1'
            ),
            "path/ssh": "exit 255",
        }
        for name, text in scripts.items():
            write_files(folder, {name: f"#!/bin/sh\n{text}\n"})
            (folder / name).chmod(0o755)
        # at a new path, so that m3agent asks for its version
        (folder / "path" / "git").symlink_to(shutil.which("git") or "")
        write_files(
            folder, {"more": written([("core.fsmonitor", self.program), ("filter.evil.clean", self.program)])}
        )

    def entries(self, keys: Iterable[str]) -> Entries:
        """Return the keys with values that would start the program in most places where git takes one."""
        return [(key, value) for key in keys for value in self._values(key.lower())]

    def _values(self, key: str) -> list[str]:
        section, _, name = key.partition(".")
        if section in ("include", "includeif"):
            return [f"{self.folder}/more"]
        if section == "alias" or name.endswith(".update"):
            return [f"!{self.program}"]
        if key in ("remote.origin.url", "remote.origin.pushurl", "submodule.x.url"):
            return [f"ext::{self.program}"]
        if key in (
            "protocol.ext.allow",
            "log.showsignature",
            "filter.evil.required",
            "remote.origin.promisor",
        ):
            return ["always" if section == "protocol" else "true"]
        special = {"core.hookspath": [f"{self.folder}/hooks"], "hook.evil.event": list(HOOKS)}
        return special.get(key, [self.program])

    def ran(self) -> str:
        """Return what the program was called with, and forget it."""
        said = self.mark.read_text() if self.mark.exists() else ""
        self.mark.unlink(missing_ok=True)
        return said


class Recorder:
    """The git commands that were started.

    Attributes:
        names: Their names.
        of_user: Those in the user's repository: whether they talk to a remote, and their standard input.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.of_user: dict[tuple[str, ...], tuple[bool, bytes | None]] = {}


class Asking(QuietHandler):
    """A server that wants a password, so that git looks for a program that knows it."""

    def do_GET(self) -> None:
        self.answer(401, b"", {"WWW-Authenticate": 'Basic realm="x"'})


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trap:
    made = Trap(tmp_path / "trap")
    monkeypatch.setenv("PATH", f"{made.folder}/path:{os.environ['PATH']}")
    return made


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    argv, run = GitCommand.argv, GitCommand.run

    def record(self: GitCommand, *args: str) -> list[str]:
        made.names.add(subcommand(args))
        if "GIT_COMMON_DIR" in self.environment:
            made.of_user.setdefault(args, (self.environment["GIT_ALLOW_PROTOCOL"] != "none", None))
        return argv(self, *args)

    def record_input(self: GitCommand, *args: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        done = run(self, *args, **options)
        if args in made.of_user:
            made.of_user[args] = (made.of_user[args][0], options["stdin"])
        return done

    monkeypatch.setattr(GitCommand, "argv", record)
    monkeypatch.setattr(GitCommand, "run", record_input)
    return made


@pytest.fixture
def origins() -> Iterable[list[str]]:
    """Addresses for a remote, one for each program that git may need for it."""
    with LoopbackServer(Asking) as server:
        yield ["ssh://host.invalid/x", "git://127.0.0.1:1/x", f"http://{server.host}/x"]


PLACES = ["checkout", "bare", "work tree", "submodule", "above a submodule", "nested"]


def place(kind: str, make_repo: MakeRepo, folder: Path) -> tuple[Path, Path]:
    """Make a repository; return a folder of it, and the configuration that a stranger may write."""
    if kind == "above a submodule":
        inner, config = place("submodule", make_repo, folder)
        (inner / "a.py").write_text("dirty\n")
        return inner.parent, config
    root = Hostile(make_repo(FILES), folder).root
    git(root, "tag", "v1.0")
    if kind == "bare":
        git(folder, "clone", "-q", "--bare", str(root), "bare.git")
        return folder / "bare.git", folder / "bare.git/config"
    if kind == "work tree":
        git(root, "worktree", "add", "-q", "--detach", str(folder / "linked"))
        return folder / "linked", root / ".git/config"
    if kind == "submodule":
        outer = make_repo({"mine.py": "z = 1\n"}, "outer")
        git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(root), "x")
        git(outer, "commit", "-q", "-m", "submodule")
        return outer / "x", outer / ".git/modules/x/config"
    if kind == "nested":  # a bare repository among the files, and a folder with a file .git that names it
        outer = make_repo({"mine.py": "z = 1\n"}, "outer")
        git(outer, "clone", "-q", "--bare", str(root), "nested")
        git(outer, "add", "-A")
        git(outer, "commit", "-q", "-m", "nested")
        write_files(outer, {"sub/.git": "gitdir: ../nested\n", "sub/a.py": "x = 1\n"})
        return outer / "sub", outer / "nested/config"
    return root, root / ".git/config"


async def do_everything(where: Path, out: Path, origins: list[str], config: Path) -> None:
    """Run every git command that m3agent has."""
    out.mkdir()
    repository = open_repository(where)
    changed = next(path for path in repository.list_files() if path.endswith(".py"))
    if repository.root is not None:
        os.utime(
            repository.root / changed, (1, 1)
        )  # git then has to read the file to know whether it changed
    origin_url(repository)
    last_tag(repository)
    repository.dirty_paths()
    repository.submodules()
    command.run(PackOptions(), Checkout.of(repository), output=str(out / "context.txt"))
    shutil.rmtree(Path(os.environ["M3AGENT_STATE"], "context"), ignore_errors=True)
    workspace = workspace_of(repository, out, lambda _: None)
    new = [(changed, REGULAR, b"x = 2\n"), ("new.py", REGULAR, b"")]
    patch = workspace.patch(workspace.commit_changes(workspace.base, new, []))
    workspace.wanted(["new.py", "x.pyc"], set())
    workspace.store.apply(patch.base, patch.text)
    commit_to_branch(repository, workspace, patch, f"fixed-{out.name}", "Fix it\n")
    if repository.root is not None:
        before = (repository.root / changed).read_bytes()
        apply_to_work_tree(repository, workspace, patch)
        (repository.root / changed).write_bytes(before)
        (repository.root / "new.py").unlink()
    history = open_history(where, out)
    pack(history.store, {"refs/heads/x": next(iter(history.commits())).sha}, "x")
    write_files(out / "code", {"a.py": "x = 1\n"})
    for kind, location in (("git", where), ("folder", out / "code")):
        source = Source.model_validate({"kind": kind, "location": str(location), "ref": repository.head})
        checkout(Task(instance_id="x", repo="x", statement="x", source=source), out / f"checkout-{kind}")
    has_commit(repository, RemoteBranches("main", {"main": repository.head}), "main", repository.head)
    for_owner_question().run("rev-parse", "--absolute-git-dir", cwd=repository.host_git.folder)
    keys = config.read_text()
    for origin in origins:
        config.write_text(keys + written([("remote.origin.url", origin)]))
        await use_remote(repository)
    config.write_text(keys)


async def use_remote(repository: Repository) -> None:
    with contextlib.suppress(M3AgentError):
        await heads_of(repository)
    with contextlib.suppress(M3AgentError):
        await push(repository, repository.head, "fixed")


@pytest.mark.parametrize("kind", others_later(PLACES, ["checkout", "nested"]))
async def test_no_program_of_any_key_runs(
    kind: str, make_repo: MakeRepo, tmp_path: Path, trap: Trap, recorder: Recorder, origins: list[str]
) -> None:
    """All keys are set at once, except those that m3agent hands on: git would stop at their values."""
    where, config = place(kind, make_repo, tmp_path)
    keys = [key for key in keys_of_git() if not any(fnmatchcase(key.lower(), each) for each in ALLOWED)]
    assert len(keys) > 500
    config.write_text(written(trap.entries(keys)) + config.read_text())
    await do_everything(where, tmp_path / "out", [*origins, f"ext::{trap.program}"], config)
    assert trap.ran() == ""
    if kind not in ("bare", "nested"):
        assert recorder.names == SUBCOMMANDS, "commands that were not tried"


PARTS = 3


def given_to_git(repository: HostGit) -> list[str]:
    """Return the configurations that git gets without and with a remote, each without its first line, a stamp."""
    folders = [repository.command(remote=remote).environment["GIT_COMMON_DIR"] for remote in (False, True)]
    return [Path(folder, "config").read_text().partition("\n")[2] for folder in folders]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", ["checkout", "nested"])
async def test_no_program_of_a_single_key_runs(
    kind: str,
    part: int,
    make_repo: MakeRepo,
    tmp_path: Path,
    trap: Trap,
    recorder: Recorder,
    origins: list[str],
) -> None:
    """With only one key, no other one can keep git from obeying it.

    A key that cannot name a program is not tried if git gets the same configuration without it.
    """
    where, config = place(kind, make_repo, tmp_path)
    base = config.read_text()
    await do_everything(where, tmp_path / "out", origins, config)
    commands = dict(recorder.of_user)
    config.write_text(base + written([("remote.origin.url", origins[0])]))
    without_key = given_to_git(found(where))
    known = {key for key, _ in configured(CONFIG + MORE, "false")}
    ran = {}
    tried = 0
    for key in keys_of_git()[part::PARTS]:
        may_run = key in known or MAY_RUN.search(key.lower()) is not None
        for origin in origins:
            config.write_text(base + written([("remote.origin.url", origin), *trap.entries([key])]))
            with contextlib.suppress(M3AgentError):  # git does not take the value
                git = found(where)
                if not may_run and origin == origins[0] and given_to_git(git) == without_key:
                    break
                tried += origin == origins[0]
                for args, (remote, stdin) in commands.items():
                    if remote or origin == origins[0]:
                        with contextlib.suppress(M3AgentError):
                            git.command(remote=remote).run(*args, cwd=git.folder, stdin=stdin, timeout=60)
        if said := trap.ran():
            ran[key] = said
    assert ran == {}
    assert tried > 50


COMMANDS = (
    *(
        "status",
        "diff",
        "log --show-signature",
        "log -p --ext-diff",
        "fetch origin",
        "ls-remote git://127.0.0.1:1/x",
    ),
    *(
        "push origin HEAD:refs/heads/x",
        "commit --allow-empty -m x",
        "credential fill",
        "update-ref refs/heads/y HEAD",
    ),
)
WOULD = {  # key -> further keys that it needs, as a part of a configuration
    "core.fsmonitor": "",
    "core.hooksPath": "",
    "core.sshCommand": "",
    "core.gitProxy": "",
    "credential.helper": "",
    "diff.external": "",
    "diff.evil.command": "",
    "diff.evil.textconv": "",
    "filter.evil.clean": "",
    "filter.evil.process": "",
    "gpg.program": "",
    "include.path": "",
    "remote.origin.url": '[protocol "ext"]\n allow = always',
}


def test_git_itself_would_run_them(make_repo: MakeRepo, tmp_path: Path, trap: Trap) -> None:
    """Counter-check: the values are such that git's own commands start the program."""
    where, config = place("checkout", make_repo, tmp_path)
    base = config.read_text() + written([("remote.origin.url", "ssh://host.invalid/x")])
    idle = []
    for key, more in WOULD.items():
        entries = trap.entries([key])
        text = (
            base.replace("ssh://host.invalid/x", entries[0][1])
            if key.endswith("url")
            else base + written(entries)
        )
        config.write_text(f"{text}{more}\n")
        (where / "a.py").write_text("x = 3\n")
        for words in COMMANDS:
            args = ["git", *words.split()]
            subprocess.run(
                args, cwd=where, input=b"url=https://x.invalid\n\n", capture_output=True, check=False
            )
            if trap.mark.exists():
                break
        if not trap.ran():
            idle.append(key)
    assert idle == []
