"""Test handing a patch over: it is applied whole or not at all, and overwrites nobody's changes."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from m3agent.agent.delivery.apply import HandOver, apply_to_work_tree, check_branch, commit_to_branch, undo
from m3agent.agent.repo.repository import Repository, open_repository
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.util.errors import PermissionRefused, UsageError
from tests.conftest import git

pytestmark = pytest.mark.integration  # each test starts git many times

MakeRepo = Callable[..., Path]
REGULAR, PROGRAM, LINK = 0o100644, 0o100755, 0o120000
FILES: dict[str, str | bytes] = {
    "a.py": "one\n",
    "b.py": "two\n",
    "d/c.py": "three\n",
    "d/e/f.py": "four\n",
    "run.sh": "echo\n",
}
CHANGES = [
    ("a.py", REGULAR, b"ONE\r\n\xff"),
    ("new/deep/n.py", REGULAR, b"new\n"),
    ("run.sh", PROGRAM, b"echo\n"),
    ("link", LINK, b"d/c.py"),
    ('odd "name"\n\\', REGULAR, b""),
]
GONE = ["b.py", "d/e/f.py"]


class Made:
    """A repository, and a patch made from its original files."""

    def __init__(
        self, root: Path, store: Path, changes: list[tuple[str, int, bytes]], gone: list[str]
    ) -> None:
        self.root = root
        self.repository: Repository = open_repository(root)
        self.workspace = (
            Workspace.from_folder(TreeStore(store), root, self.repository.list_files())
            if self.repository.root
            else Workspace(TreeStore(store, root / "objects"), git(root, "rev-parse", "HEAD^{tree}"))
        )
        tree = self.workspace.commit_changes(self.workspace.base, changes, gone)
        self.patch: Patch = self.workspace.patch(tree)

    def apply(self) -> None:
        apply_to_work_tree(self.repository, self.workspace, self.patch)

    def commit(self, name: str, message: str = "Fix: a\n\nbody ü\n") -> str:
        return commit_to_branch(self.repository, self.workspace, self.patch, name, message)


MakePatch = Callable[..., Made]


@pytest.fixture
def make(make_repo: MakeRepo, tmp_path: Path) -> MakePatch:
    def make_patch(
        changes: list[tuple[str, int, bytes]] | None = None,
        gone: list[str] | None = None,
        files: dict[str, str | bytes] | None = None,
    ) -> Made:
        given = changes is not None or gone is not None
        root = make_repo(FILES if files is None else files)
        return Made(
            root,
            tmp_path / "trees.git",
            (changes or []) if given else CHANGES,
            (gone or []) if given else GONE,
        )

    return make_patch


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of every file and folder outside `.git`."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name == ".git" or name.startswith(".git/"):
            continue
        info = path.lstat()
        content = (
            b"" if path.is_dir() else os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        )
        found[name] = (info.st_mode, content)
    return found


@contextlib.contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Keep everybody, also root, from making or removing anything in `folder`; skip the test if that is impossible."""
    if os.geteuid() != 0:
        mode = folder.stat().st_mode
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(mode)
        return
    if subprocess.run(["chattr", "+i", str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("as root, and on a file system without immutable folders")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)


@contextlib.contextmanager
def refused(made: Made, match: str) -> Iterator[None]:
    """Expect that what is done is refused, and that no file changes."""
    before = snapshot(made.root)
    with pytest.raises(PermissionRefused, match=match):
        yield
    assert snapshot(made.root) == before


# -- taken back -------------------------------------------------------------------------------------------


def take_back(made: Made) -> tuple[str, ...]:
    return undo(made.repository, made.workspace, made.patch)


def test_undo_restores_every_kind_of_change(make: MakePatch) -> None:
    made = make()
    before = snapshot(made.root)
    made.apply()
    assert sorted(take_back(made)) == sorted(made.patch.paths)
    assert snapshot(made.root) == before
    with pytest.raises(PermissionRefused, match="undone already"):
        take_back(made)
    made.apply()
    take_back(made)
    assert snapshot(made.root) == before


def test_undo_writes_nothing_if_a_file_changed(make: MakePatch) -> None:
    made = make()
    made.apply()
    (made.root / "run.sh").write_text("mine\n")
    with refused(made, r"run\.sh has changed since the patch was written"):
        take_back(made)
    (made.root / "run.sh").write_text("echo\n")
    take_back(made)
    assert (made.root / "a.py").read_text() == "one\n"


def test_undo_leaves_what_the_user_wrote(make: MakePatch) -> None:
    made = make([("a.py", REGULAR, b"ONE\n"), ("d/c.py", REGULAR, b"THREE\n")])
    with pytest.raises(PermissionRefused, match="nothing of this patch was written"):
        take_back(made)
    (made.root / "a.py").write_text("ONE\n")
    made.apply()
    assert take_back(made) == ("d/c.py",)
    assert (made.root / "a.py").read_text() == "ONE\n"


@pytest.mark.parametrize("path", ["a.py", "new/deep/n.py", "b.py"])
def test_undo_does_not_touch_what_was_committed_since(make: MakePatch, path: str) -> None:
    made = make([each for each in CHANGES if each[0] == path], [each for each in GONE if each == path])
    made.apply()
    git(made.root, "add", "--all")
    git(made.root, "commit", "-qm", "the fix")
    with refused(made, "committed since"):
        take_back(made)


def test_a_refused_patch_leaves_nothing_to_undo(make: MakePatch) -> None:
    made = make()
    (made.root / "a.py").write_text("mine\n")
    with pytest.raises(PermissionRefused):
        made.apply()
    with pytest.raises(PermissionRefused, match="nothing of this patch was written"):
        take_back(made)


# -- into the work tree -----------------------------------------------------------------------------------


def test_apply_every_kind_of_change(make: MakePatch) -> None:
    made = make()
    index = (made.root / ".git/index").read_bytes()
    (made.root / "a.py").chmod(0o640)
    made.apply()
    assert (made.root / "a.py").read_bytes() == b"ONE\r\n\xff"
    assert stat.S_IMODE((made.root / "a.py").stat().st_mode) == 0o640, "the mode is the user's"
    assert (made.root / "new/deep/n.py").read_bytes() == b"new\n"
    assert (made.root / "run.sh").stat().st_mode & stat.S_IXUSR
    assert (made.root / "link").readlink() == Path("d/c.py")
    assert (made.root / 'odd "name"\n\\').read_bytes() == b""
    assert not (made.root / "b.py").exists()
    assert not (made.root / "d/e").exists(), "a folder goes with its last file, as git does it"
    assert (made.root / "d/c.py").read_bytes() == b"three\n"
    assert set(snapshot(made.root)) == {
        "a.py", "d", "d/c.py", "link", "new", "new/deep", "new/deep/n.py", 'odd "name"\n\\', "run.sh",
    }  # fmt: skip
    assert (made.root / ".git/index").read_bytes() == index


def test_apply_is_what_git_apply_does(make: MakePatch, tmp_path: Path) -> None:
    made = make()
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(made.root), str(clone))
    subprocess.run(["git", "apply"], cwd=clone, input=made.patch.text, check=True)
    made.apply()
    assert snapshot(made.root) == snapshot(clone)


def test_apply_takes_changes_of_links_and_modes(make: MakePatch) -> None:
    made = make(
        [("link", LINK, b"b.py"), ("run.sh", REGULAR, b"echo\n"), ("was", REGULAR, b"file now\n")], []
    )
    made.apply()
    git(made.root, "add", "-A")
    git(made.root, "commit", "-q", "-m", "second")
    again = Made(
        made.root,
        made.workspace.store.git_dir,
        [("link", LINK, b"a.py"), ("run.sh", PROGRAM, b"echo\n"), ("was", LINK, b"a.py")],
        [],
    )
    again.apply()
    assert (made.root / "link").readlink() == Path("a.py")
    assert (made.root / "run.sh").stat().st_mode & 0o111
    assert (made.root / "was").readlink() == Path("a.py")


@pytest.mark.parametrize("kind", ["modified", "staged", "untracked", "deleted"])
def test_apply_refuses_files_with_uncommitted_changes(make: MakePatch, kind: str) -> None:
    made = make()
    path = "new/deep/n.py" if kind == "untracked" else "a.py"
    target = made.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == "deleted":
        target.unlink()
    else:
        target.write_text("mine\n")
    if kind == "staged":
        git(made.root, "add", path)
    before = snapshot(made.root)
    with pytest.raises(PermissionRefused) as caught:
        made.apply()
    assert str(caught.value) == f"{path} has uncommitted changes: nothing was written"
    assert caught.value.exit_code == 5
    assert snapshot(made.root) == before


def test_apply_names_a_few_of_many(make: MakePatch) -> None:
    files: dict[str, str | bytes] = {f"f{n}.py": "x\n" for n in range(6)}
    made = make([(name, REGULAR, b"y\n") for name in files], [], files)
    for name in files:
        (made.root / name).write_text("mine\n")
    with pytest.raises(
        PermissionRefused, match=r"f0\.py, f1\.py, f2\.py and 3 more have uncommitted changes"
    ):
        made.apply()


def test_changes_elsewhere_are_no_obstacle(make: MakePatch) -> None:
    made = make([("a.py", REGULAR, b"ONE\n")], [])
    (made.root / "b.py").write_text("mine\n")
    (made.root / "untracked.txt").write_text("mine\n")
    made.apply()
    assert (made.root / "a.py").read_text() == "ONE\n"
    assert (made.root / "b.py").read_text() == "mine\n"


def test_apply_refuses_files_with_newer_commits(make: MakePatch) -> None:
    made = make()
    (made.root / "b.py").write_text("somebody else's\n")
    git(made.root, "commit", "-q", "-a", "-m", "meanwhile")
    with refused(made, r"b\.py has changed since the fix started: nothing was written"):
        made.apply()


def test_apply_refuses_an_ignored_file_in_the_way(make: MakePatch) -> None:
    """Git does not report the file as changed, but it belongs to somebody."""
    made = make([("out.log", REGULAR, b"new\n")], [], {**FILES, ".gitignore": "*.log\n"})
    (made.root / "out.log").write_text("mine\n")
    with pytest.raises(PermissionRefused, match=r"out\.log has changed since the fix started"):
        made.apply()
    assert (made.root / "out.log").read_text() == "mine\n"


def test_apply_writes_through_no_link(make: MakePatch, tmp_path: Path) -> None:
    made = make(
        [("sub/x/new.py", REGULAR, b"new\n"), ("a.py", REGULAR, b"ONE\n")],
        [],
        {**FILES, ".gitignore": "sub\n"},
    )
    outside = tmp_path / "outside"
    (outside / "x").mkdir(parents=True)
    for target in (outside, made.root / "d"):
        (made.root / "sub").symlink_to(target)
        with refused(made, "is behind a symbolic link"):
            made.apply()
        assert not any((outside / "x").iterdir())
        (made.root / "sub").unlink()


def test_no_file_replaces_a_submodule(make_repo: MakeRepo, tmp_path: Path) -> None:
    """Its checkout is no part of the base, so a patch may have files in its place."""
    root = make_repo(FILES)
    git(root, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    git(root, "commit", "-q", "-m", "submodule")
    (root / "sub").mkdir()
    for path in ("sub/x.py", "sub"):
        made = Made(root, tmp_path / "trees.git", [(path, REGULAR, b"x\n")], [])
        for hand_over in (made.apply, lambda made=made: made.commit("new")):
            with pytest.raises(PermissionRefused, match=f"^{path} belongs to the submodule sub: "):
                hand_over()
    assert list((root / "sub").iterdir()) == []
    assert git(root, "branch", "--list", "new") == ""


def test_apply_refuses_paths_that_became_a_folder_or_a_file(make: MakePatch) -> None:
    ignoring = {**FILES, ".gitignore": "out\n"}
    made = make([("out", REGULAR, b"file\n"), ("a.py", REGULAR, b"ONE\n")], [], ignoring)
    (made.root / "out").mkdir()
    (made.root / "out" / "mine").write_text("mine\n")
    with pytest.raises(PermissionRefused, match="out is a folder now"):
        made.apply()
    below = Made(made.root, made.workspace.store.git_dir, [("a.py/x", REGULAR, b"x\n")], ["a.py"])
    with pytest.raises(
        PermissionRefused, match=r"a\.py/x cannot be created because a part of its path is a file"
    ):
        below.apply()
    assert (made.root / "a.py").read_text() == "one\n"


@pytest.mark.integration
@pytest.mark.parametrize(
    "changes",
    [
        ([("a.py", REGULAR, b"ONE\n"), ("d/c.py", REGULAR, b"THREE\n")], []),
        # removing a file also needs write access to its folder
        ([("a.py", REGULAR, b"ONE\n"), ("new/x.py", REGULAR, b"x\n")], ["d/c.py"]),
        ([("a.py", REGULAR, b"ONE\n"), ("d/new.py", REGULAR, b"x\n")], []),
    ],
    ids=["change", "remove", "add"],
)
def test_apply_is_all_or_nothing(
    make: MakePatch, changes: tuple[list[tuple[str, int, bytes]], list[str]]
) -> None:
    made = make(*changes)
    before = snapshot(made.root)
    with unwritable(made.root / "d"):
        locked = snapshot(made.root)
        with pytest.raises(PermissionRefused, match=r"could not be written to .*/d/.*; nothing was written"):
            made.apply()
        assert snapshot(made.root) == locked
    assert snapshot(made.root) == before
    made.apply()
    assert (made.root / "a.py").read_bytes() == b"ONE\n"


@pytest.mark.integration
def test_moves_before_a_failure_are_undone(make: MakePatch) -> None:
    """The folder is writable, but one file in it cannot be replaced or removed."""
    changes = [("a.py", REGULAR, b"ONE\n"), ("new/x.py", REGULAR, b"x\n"), ("z.py", REGULAR, b"Z\n")]
    made = make(changes, ["b.py"], {**FILES, "z.py": "last\n"})
    (made.root / "a.py").chmod(0o600)
    before = snapshot(made.root)
    if subprocess.run(["chattr", "+i", str(made.root / "z.py")], capture_output=True, check=False).returncode:
        pytest.skip("files cannot be made immutable here")
    try:
        with pytest.raises(PermissionRefused, match="could not be written to"):
            made.apply()
    finally:
        subprocess.run(["chattr", "-i", str(made.root / "z.py")], check=True)
    assert snapshot(made.root) == before


def test_killed_apply_is_completed(make: MakePatch, tmp_path: Path) -> None:
    """The kill left some files patched, and left copies that were not moved in git's folder."""
    made, clone = make(), tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(made.root), str(clone))
    subprocess.run(["git", "apply"], cwd=clone, input=made.patch.text, check=True)
    staged = made.root / ".git" / "m3agent" / "killed"
    staged.mkdir(parents=True)
    (staged / ".m3agent-1.tmp").write_bytes(b"ONE")
    (made.root / "a.py").write_bytes(b"ONE\r\n\xff")
    (made.root / "b.py").unlink()
    shutil.copymode(clone / "run.sh", made.root / "run.sh")
    (made.root / "link").symlink_to("d/c.py")
    for _ in range(2):  # the second time changes nothing
        made.apply()
        assert snapshot(made.root) == snapshot(clone)
        assert list((made.root / ".git" / "m3agent").iterdir()) == []


@pytest.mark.parametrize("kind", ["content", "mode", "a link"])
def test_file_that_almost_matches_the_patch_is_not_overwritten(make: MakePatch, kind: str) -> None:
    made = make()
    if kind == "content":
        (made.root / "a.py").write_bytes(b"ONE\n")
    elif kind == "mode":
        (made.root / "a.py").write_bytes(b"ONE\r\n\xff")
        (made.root / "a.py").chmod(0o755)
    else:
        (made.root / "link").write_text("d/c.py")
    with refused(made, "has uncommitted changes"):
        made.apply()


def test_apply_needs_a_work_tree(make: MakePatch, tmp_path: Path) -> None:
    made = make()
    git(tmp_path, "clone", "-q", "--bare", str(made.root), "bare.git")
    bare = Made(tmp_path / "bare.git", tmp_path / "bare-trees.git", CHANGES, GONE)
    with pytest.raises(
        UsageError, match="a bare repository has no work tree to apply a patch to: use --branch NAME"
    ):
        bare.apply()


# -- to a branch ------------------------------------------------------------------------------------------


def test_commit_to_a_new_branch(make: MakePatch) -> None:
    made = make()
    before, index = snapshot(made.root), (made.root / ".git/index").read_bytes()
    head = git(made.root, "rev-parse", "HEAD")
    commit = made.commit("fix/one")
    assert git(made.root, "rev-parse", "fix/one") == commit
    assert git(made.root, "rev-parse", "fix/one^") == head == git(made.root, "rev-parse", "HEAD")
    assert git(made.root, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert git(made.root, "status", "--porcelain") == ""
    assert snapshot(made.root) == before
    assert (made.root / ".git/index").read_bytes() == index
    assert git(made.root, "rev-parse", "fix/one^{tree}") == made.patch.tree
    assert git(made.root, "log", "-1", "--format=%an <%ae>|%cn|%B", "fix/one") == (
        "Tester <tester@example.invalid>|Tester|Fix: a\n\nbody ü"
    )
    git(made.root, "fsck", "--strict")


def test_links_are_compared_as_they_are(make: MakePatch) -> None:
    """Links are compared by their text, not by their target: git keeps a final slash and an initial `./`."""
    root = make(changes=[], gone=[]).root
    (root / "link").symlink_to("d/")
    (root / "kept").symlink_to("./d//c.py")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "links")
    made = Made(root, root.parent / "links.git", [("link", LINK, b"./d/e/"), ("a.py", REGULAR, b"x\n")], [])
    made.apply()
    assert os.readlink(root / "link") == "./d/e/"  # noqa: PTH115  # pathlib would normalise the target
    made.apply()  # everything is in place: nothing to do and nothing to refuse
    applied = git(root, "diff", "--binary", "--full-index").encode() + b"\n"
    assert applied == made.patch.text


def test_commit_where_git_knows_nobody(make: MakePatch, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make()
    git(made.root, "config", "user.useConfigOnly", "true")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    commit = made.commit("fix")
    assert git(made.root, "log", "-1", "--format=%an <%ae>", commit) == "m3agent <m3agent@localhost>"


def test_commit_on_a_detached_head(make: MakePatch) -> None:
    made = make()
    git(made.root, "checkout", "-q", "--detach")
    detached = Made(made.root, made.workspace.store.git_dir, CHANGES, GONE)
    commit = detached.commit("fix")
    assert git(made.root, "rev-parse", "fix^{tree}") == detached.patch.tree
    assert git(made.root, "rev-parse", f"{commit}^") == git(made.root, "rev-parse", "HEAD")
    assert git(made.root, "branch", "--show-current") == ""


def test_commit_in_a_bare_repository(make: MakePatch, tmp_path: Path) -> None:
    made = make()
    git(tmp_path, "clone", "-q", "--bare", str(made.root), "bare.git")
    bare = Made(tmp_path / "bare.git", tmp_path / "bare-trees.git", CHANGES, GONE)
    commit = bare.commit("fix")
    assert git(tmp_path / "bare.git", "rev-parse", f"{commit}^{{tree}}") == bare.patch.tree == made.patch.tree


def test_commit_in_a_linked_work_tree(make: MakePatch, tmp_path: Path) -> None:
    made = make()
    git(made.root, "worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
    linked = Made(tmp_path / "linked", tmp_path / "linked-trees.git", CHANGES, GONE)
    linked.commit("fix")
    assert git(made.root, "rev-parse", "fix^{tree}") == linked.patch.tree


def test_line_ends_are_those_git_add_would_store(make_repo: MakeRepo, tmp_path: Path) -> None:
    root = make_repo({".gitattributes": "*.txt text eol=crlf\n", "a.txt": "one\n", "raw.bin": b"\r\n"})
    git(root, "checkout", "-q", "--", ".")
    (root / "a.txt").unlink()
    git(root, "checkout", "-q", "--", "a.txt")
    assert (root / "a.txt").read_bytes() == b"one\r\n"
    made = Made(
        root, tmp_path / "t.git", [("a.txt", REGULAR, b"ONE\r\n"), ("raw.bin", REGULAR, b"\r\n\r\n")], []
    )
    made.commit("fix")
    show = ["git", "cat-file", "blob"]
    assert subprocess.run([*show, "fix:a.txt"], cwd=root, check=True, capture_output=True).stdout == b"ONE\n"
    assert (
        subprocess.run([*show, "fix:raw.bin"], cwd=root, check=True, capture_output=True).stdout
        == b"\r\n\r\n"
    )


def test_no_hook_of_the_repository_runs(make: MakePatch, tmp_path: Path) -> None:
    made = make()
    ran = tmp_path / "ran"
    hooks = (
        "pre-commit",
        "post-commit",
        "commit-msg",
        "reference-transaction",
        "post-index-change",
        "post-checkout",
    )
    for name in hooks:
        hook = made.root / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho {name} >> '{ran}'\n")
        hook.chmod(0o755)
    git(made.root, "config", "core.fsmonitor", str(made.root / ".git/hooks/pre-commit"))
    made.commit("fix")
    made.apply()
    assert not ran.exists(), ran.read_text()
    git(made.root, "commit", "-q", "-a", "-m", "by hand")
    assert "pre-commit" in ran.read_text(), "the hooks do run where they should"


@pytest.mark.parametrize(
    ("hand_over", "option"),
    [
        (HandOver(apply=True), "--apply"),
        (HandOver(branch="b"), "--branch"),
        (HandOver(branch="b", pull_request=True), "--pr"),
    ],
)
def test_uncommitted_changes_are_told_before_the_fix(
    make: MakePatch, hand_over: HandOver, option: str
) -> None:
    """A refusal after a fix of minutes would come too late."""
    made = make()
    assert hand_over.caution(made.repository) == ""
    (made.root / "a.py").write_text("mine\n")
    (made.root / "d" / "new.py").write_text("mine\n")
    assert hand_over.caution(made.repository) == (
        f"a.py, d/new.py have uncommitted changes: {option} is refused if the patch touches one of them; to avoid that, "
        "commit first"
    )
    assert HandOver().caution(made.repository) == ""


def test_a_branch_is_refused_over_uncommitted_changes(make: MakePatch) -> None:
    made = make()
    (made.root / "a.py").write_text("mine\n")
    with pytest.raises(PermissionRefused, match=r"--branch refused: a\.py has uncommitted changes"):
        made.commit("fix")
    assert git(made.root, "branch", "--list", "fix") == ""


@pytest.mark.parametrize(
    "name",
    ["", "-x", "a..b", "a b", "a.lock", "a/", "/a", "a//b", "@", "HEAD", "a~1", "a:b", "a\nb", "@{-1}", "*"],
)
def test_names_that_git_does_not_take(make: MakePatch, name: str) -> None:
    made = make([("a.py", REGULAR, b"ONE\n")], [])
    git(made.root, "checkout", "-q", "-b", "second")  # so that @{-1} names a branch
    for attempt in (lambda: check_branch(made.repository, name), lambda: made.commit(name)):
        with pytest.raises(UsageError, match="is not a branch name that git accepts: choose another name"):
            attempt()
    assert git(made.root, "for-each-ref", "--format=%(refname:short)").split() == ["main", "second"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("main", "branch main exists already: choose another name, or delete it first"),
        ("feature/x", "branch feature/x exists already"),
        ("feature", "branch feature cannot exist beside branch feature/x: choose another name"),
        ("main/sub/x", "branch main/sub/x cannot exist beside branch main: choose another name"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_names_that_are_taken(make: MakePatch, name: str, said: str, packed: bool) -> None:
    made = make([("a.py", REGULAR, b"ONE\n")], [])
    git(made.root, "branch", "feature/x")
    if packed:
        git(made.root, "pack-refs", "--all")
    head = git(made.root, "rev-parse", "main")
    with pytest.raises(UsageError, match=said):
        made.commit(name)
    assert git(made.root, "rev-parse", "main", "feature/x").split() == [head, head]


@pytest.mark.parametrize("name", ["feature/xy", "feature/y", "main2", "mai", "ünï", "caf\udce9", "a{b}"])
def test_names_like_others_are_fine(make: MakePatch, name: str) -> None:
    made = make([("a.py", REGULAR, b"ONE\n")], [])
    git(made.root, "branch", "feature/x")
    commit = made.commit(name)
    assert git(made.root, "rev-parse", f"refs/heads/{name}") == commit
