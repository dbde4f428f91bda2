"""Which patch is verified: from a file, the work tree, commits or a branch. Real git, no sandbox."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.agent.errors import UsageError
from m3agent.agent.patches.change import Change, Source, read_change
from m3agent.agent.repo.repository import open_repository
from m3agent.sandbox.errors import PathEscapes
from tests.conftest import git

MakeRepo = Callable[..., Path]


@pytest.fixture
def repo(make_repo: MakeRepo) -> Path:
    """Return a repository with two commits on main, and a branch `topic` with two commits since the first."""
    root = make_repo({"a.py": "1\n", "b.py": "1\n"})
    git(root, "branch", "topic")
    commit(root, "second", {"b.py": "2\n"})
    git(root, "checkout", "-q", "topic")
    commit(root, "topic 1", {"a.py": "2\n"})
    commit(root, "topic 2", {"a.py": "3\n", "c.py": "new\n"})
    git(root, "checkout", "-q", "-")
    return root


def commit(root: Path, message: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", message)


def change(root: Path, **source: str) -> Change:
    """Return the patch that is verified. The files of its trees can be read afterwards."""
    folder = root.parent / f"trees-{len(list(root.parent.iterdir()))}"
    folder.mkdir()

    async def read() -> Change:
        return await read_change(
            Source(**source), open_repository(root), folder, github_api="", env={}, say=lambda _: None
        )

    return asyncio.run(read())


def files(found: Change, tree: str) -> dict[str, str]:
    entries = found.workspace.entries(tree)
    return {path: found.workspace.store.get_blob(entry.sha).decode() for path, entry in entries.items()}


def both(found: Change) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files without and with the patch."""
    assert found.base.tree == found.patch.base == found.workspace.base
    return files(found, found.patch.base), files(found, found.patch.tree)


def test_the_changes_of_the_work_tree(repo: Path) -> None:
    """Without another source: changed, new and deleted files, but not ignored ones."""
    (repo / "a.py").write_text("mine\n")
    (repo / "b.py").unlink()
    (repo / "new.py").write_text("new\n")
    (repo / ".gitignore").write_text("*.log\n")
    (repo / "x.log").write_text("")
    found = change(repo)
    old = {"a.py": "1\n", "b.py": "2\n"}
    assert both(found) == (old, {"a.py": "mine\n", "new.py": "new\n", ".gitignore": "*.log\n"})
    assert found.base.commit == git(repo, "rev-parse", "HEAD")
    assert found.base.tree == git(repo, "rev-parse", "HEAD^{tree}")
    assert (found.origin.kind, found.origin.commit, found.text) == ("work tree", None, found.patch.text)


def test_the_work_tree_since_a_branch_was_left(repo: Path) -> None:
    git(repo, "checkout", "-q", "topic")
    (repo / "a.py").write_text("4\n")
    found = change(repo, base="main")
    assert both(found) == ({"a.py": "1\n", "b.py": "1\n"}, {"a.py": "4\n", "b.py": "1\n", "c.py": "new\n"})
    assert found.base.commit == git(repo, "rev-parse", "topic~2")


def test_line_ends_that_git_converts_are_no_change(make_repo: MakeRepo) -> None:
    """The tests run with the files as they are on disk, on both sides."""
    root = make_repo({"a.py": "1\n2\n", "b.py": "1\n"})
    git(root, "config", "--global", "core.autocrlf", "true")
    git(root, "rm", "-q", "--cached", "-r", ".")
    git(root, "reset", "-q", "--hard")
    assert (root / "a.py").read_bytes() == b"1\r\n2\r\n"
    (root / "a.py").write_bytes(b"1\r\n3\r\n")
    found = change(root)
    assert both(found) == ({"a.py": "1\r\n2\r\n", "b.py": "1\r\n"}, {"a.py": "1\r\n3\r\n", "b.py": "1\r\n"})
    assert b"-2\r\n+3\r\n" in found.text


def test_a_patch_in_a_file_or_on_standard_input(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for the commit, not for the files on disk; its bytes stay as they are given."""
    text = git(repo, "diff", "main", "topic", "--", "a.py")
    (repo / "a.py").write_text("uncommitted\n")
    (tmp_path / "p.diff").write_text(text)
    found = change(repo, file=str(tmp_path / "p.diff"))
    assert both(found) == ({"a.py": "1\n", "b.py": "2\n"}, {"a.py": "3\n", "b.py": "2\n"})
    assert found.text == text.encode() != found.patch.text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    again = change(repo, file="-", base="topic~2")
    assert both(again) == ({"a.py": "1\n", "b.py": "1\n"}, {"a.py": "3\n", "b.py": "1\n"})
    assert (found.origin.kind, again.origin.kind) == ("file", "file")


def test_commits(repo: Path) -> None:
    found = change(repo, commits="topic")
    assert both(found)[0] == {"a.py": "2\n", "b.py": "1\n"}
    assert (found.origin.kind, found.origin.commit) == ("commits", git(repo, "rev-parse", "topic"))
    first = ({"a.py": "1\n", "b.py": "1\n"}, {"a.py": "3\n", "b.py": "1\n", "c.py": "new\n"})
    for source in ("topic~2..topic", "HEAD..topic", "HEAD...topic", "..topic"):
        assert both(change(repo, commits=source)) == first, source
    assert both(change(repo, commits="topic", base="HEAD")) == first


def test_a_branch(repo: Path) -> None:
    """It is compared with the commit that is checked out, or with origin's default branch if it is that one itself."""
    first = ({"a.py": "1\n", "b.py": "1\n"}, {"a.py": "3\n", "b.py": "1\n", "c.py": "new\n"})
    assert both(change(repo, branch="topic")) == first
    assert both(change(repo, branch="topic", base="topic~1"))[0]["a.py"] == "2\n"
    clone = repo.parent / "clone"
    git(repo.parent, "clone", "-q", str(repo), str(clone))
    git(clone, "checkout", "-q", "topic")
    assert both(change(clone, branch="topic")) == first
    git(repo, "checkout", "-q", "topic")
    with pytest.raises(UsageError, match="names no commit of this repository"):
        change(repo, branch="topic")


def test_the_users_repository_does_not_change(repo: Path, tmp_path: Path) -> None:
    (repo / "a.py").write_text("mine\n")
    (tmp_path / "p.diff").write_text(git(repo, "diff") + "\n")

    def state() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (repo / ".git").rglob("*") if path.is_file()}

    before = state()
    for source in ({}, {"commits": "HEAD"}, {"branch": "topic"}, {"file": str(tmp_path / "p.diff")}):
        assert not change(repo, **source).patch.empty
    assert state() == before


def test_a_repository_with_other_ids(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q", "--object-format=sha256")
    commit(root, "first", {"a.py": "1\n"})
    commit(root, "second", {"a.py": "2\n"})
    assert both(change(root, commits="HEAD")) == ({"a.py": "1\n"}, {"a.py": "2\n"})
    (root / "a.py").write_text("3\n")
    assert both(change(root)) == ({"a.py": "2\n"}, {"a.py": "3\n"})


def test_names_that_are_not_unicode(repo: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \n.py")
    (repo / name).write_text("x\n")
    assert change(repo).patch.paths == (name,)
    (repo / name).unlink()
    commit(repo, "third", {name: "y\n"})
    (repo / name).write_text("z\n")
    assert both(change(repo)) == (
        {"a.py": "1\n", "b.py": "2\n", name: "y\n"},
        {"a.py": "1\n", "b.py": "2\n", name: "z\n"},
    )


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ({"commits": "nope"}, "--commit: 'nope' names no commit of this repository"),
        ({"commits": "--all"}, "--commit: '--all' names no commit of this repository"),
        ({"commits": "topic~2^"}, "--commit: 'topic~2^' names no commit of this repository"),
        ({"commits": "a..b..c"}, "names no commit"),
        ({"branch": "-x"}, "--branch: '-x' names no commit of this repository"),
        ({"file": "nowhere.diff"}, "the patch 'nowhere.diff' cannot be read: no such file or directory"),
        ({"file": "/"}, "the patch '/' cannot be read: it is not a regular file"),
        ({"file": "/dev/null"}, "the patch '/dev/null' cannot be read: it is not a regular file"),
        ({"base": "nope"}, "--base: 'nope' names no commit of this repository"),
    ],
)
def test_a_wrong_source_is_one_sentence(repo: Path, source: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        change(repo, **source)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_first_commit_has_no_parent(repo: Path) -> None:
    first = git(repo, "rev-list", "--max-parents=0", "HEAD")
    with pytest.raises(UsageError) as error:
        change(repo, commits=first)
    assert str(error.value) == f"--commit: the commit {first[:12]} has no parent here to compare it with"


def test_two_sources_are_refused() -> None:
    with pytest.raises(UsageError, match="PATCH and --branch name two patches: give only one"):
        Source(file="x", branch="y")
    with pytest.raises(UsageError, match="--base is for one commit: a range names its base itself"):
        Source(commits="a..b", base="c")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("no patch\n", "p.diff' is not a patch: give one as `git diff` prints it"),
        (
            "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-9\n+3\n",
            "(a.py: patch does not apply): name its commit with --base",
        ),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-9\n+3\n", "does not apply to "),
    ],
)
def test_a_patch_that_does_not_apply(repo: Path, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "p.diff").write_text(text)
    with pytest.raises(UsageError) as error:
        change(repo, file=str(tmp_path / "p.diff"))
    assert sentence in str(error.value)


def test_a_shallow_clone_says_so(repo: Path) -> None:
    clone = repo.parent / "clone"
    git(repo.parent, "clone", "-q", "--depth=1", "--no-single-branch", f"file://{repo}", str(clone))
    with pytest.raises(UsageError, match="have no commit in common; this clone is shallow: fetch more with"):
        change(clone, branch="origin/topic")
    with pytest.raises(UsageError, match="this clone is shallow"):
        change(clone, commits="HEAD")


def test_git_files_are_refused(repo: Path) -> None:
    (repo / ".gitattributes").write_text("* text\n")
    with pytest.raises(
        PathEscapes, match=r"the change touches \.gitattributes, which git itself reads: refused"
    ):
        change(repo)


def test_another_commit_of_a_submodule_is_refused(repo: Path, make_repo: MakeRepo) -> None:
    part = make_repo({"x": "1\n"}, "part")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(part), "sub")
    git(repo, "commit", "-q", "-m", "submodule")
    commit(repo / "sub", "more", {"x": "2\n"})
    with pytest.raises(PathEscapes, match="sets the commit of the submodule sub: refused"):
        change(repo)
    git(repo, "commit", "-q", "-a", "-m", "bump")
    with pytest.raises(PathEscapes, match="sets the commit of the submodule sub: refused"):
        change(repo, commits="HEAD")
    assert change(repo).patch.empty


def test_a_bare_repository_needs_a_source(repo: Path) -> None:
    git(repo.parent, "clone", "-q", "--bare", str(repo), "bare.git")
    bare = repo.parent / "bare.git"
    with pytest.raises(UsageError, match="a bare repository has no changes of its own"):
        change(bare)
    assert change(bare, commits="topic").patch.paths == ("a.py", "c.py")
