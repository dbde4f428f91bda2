"""Test which files of a repository are listed, and how they are read while they may change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from m3agent.agent.context import rules
from m3agent.agent.context.files import (
    LIST,
    WorkTree,
    git_output,
    list_generated,
    list_matching,
    parse_listing,
    read_commit,
)
from m3agent.agent.repo.repository import GitCommandFailed
from tests.agent.repositories import NewRepo, found, no_repository, run_git, write_files

if TYPE_CHECKING:
    from m3agent.agent.context.files import FileListing


def listed(root: Path) -> FileListing:
    return parse_listing(git_output(found(root), *LIST))


def test_the_index_and_what_differs_from_it(new_repo: NewRepo) -> None:
    root = new_repo(
        files={".gitignore": b"*.log\n", "a.py": b"1", "b/c.py": b"2", "gone.py": b"3", "kept.log": b"4"}
    )
    (root / "a.py").write_bytes(b"changed")
    (root / "gone.py").unlink()
    (root / "new.py").write_bytes(b"5")
    (root / "other.log").write_bytes(b"6")
    found = listed(root).settled
    assert found == {
        ".gitignore": True,
        "a.py": False,
        "b/c.py": True,
        "gone.py": False,
        "kept.log": True,
        "new.py": False,
    }
    assert list(found) == sorted(found, key=os.fsencode)
    with WorkTree(str(root)) as tree:
        assert tree.read("gone.py") is None
        assert tree.read("a.py") == b"changed"


def test_a_subfolder_lists_the_whole_repository(new_repo: NewRepo) -> None:
    root = new_repo(files={"a.py": b"1", "b/c.py": b"2"})
    assert list(listed(root / "b").settled) == ["a.py", "b/c.py"]


def test_conflicts_submodules_and_nested_repositories(new_repo: NewRepo, tmp_path: Path) -> None:
    other = new_repo("other")
    root = new_repo("root", files={"a.py": b"1\n"})
    run_git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    run_git(root, "commit", "--quiet", "--message=sub")
    run_git(root, "clone", "--quiet", str(other), "nested")
    run_git(root, "checkout", "--quiet", "-b", "side")
    (root / "a.py").write_bytes(b"2\n")
    run_git(root, "commit", "--quiet", "--all", "--message=2")
    run_git(root, "checkout", "--quiet", "-")
    (root / "a.py").write_bytes(b"3\n")
    run_git(root, "commit", "--quiet", "--all", "--message=3")
    with pytest.raises(subprocess.CalledProcessError):
        run_git(root, "merge", "--quiet", "side")
    listing = listed(root)
    assert listing.settled["a.py"] is False
    assert set(listing.left_out) == {("sub", rules.SUBMODULE), ("nested/", rules.SUBMODULE)}


def test_a_sparse_checkout_lists_what_is_there(new_repo: NewRepo) -> None:
    root = new_repo(files={"a.py": b"1", "in/b.py": b"2", "out/c.py": b"3"})
    run_git(root, "sparse-checkout", "set", "--cone", "in")
    assert list(listed(root).settled) == ["a.py", "in/b.py"]
    run_git(root, "sparse-checkout", "reapply", "--sparse-index")
    assert list(listed(root).settled) == ["a.py", "in/b.py"]


def test_names_of_any_bytes(new_repo: NewRepo) -> None:
    names = [b"caf\xe9.py", b"with\nnewline", b"tab\there", b"Case.py", b"case.py", b"? odd", b"H 100644 x"]
    root = new_repo(files={name: name for name in names})
    found = listed(root).settled
    assert {os.fsencode(name) for name in found} == set(names)
    with WorkTree(str(root)) as tree:
        assert {os.fsencode(name): tree.read(name) for name in found} == {name: name for name in names}


def test_patterns_match_as_in_gitignore(new_repo: NewRepo) -> None:
    root = new_repo(files={"a.py": b"", "d/a.py": b"", "d/b.txt": b"", "d/keep.txt": b""})
    (root / "new.txt").write_bytes(b"")
    assert list_matching(found(root), "--exclude=*.txt", "--exclude=!keep.txt") == {"d/b.txt", "new.txt"}
    assert list_matching(found(root), "--exclude=/a.py") == {"a.py"}
    (root / "d" / ".m3agentignore").write_text("*.py\n")
    assert list_matching(found(root), "--exclude-per-directory=.m3agentignore") == {"d/a.py"}


def test_generated_files_by_attribute(new_repo: NewRepo) -> None:
    attributes = b"a.c linguist-generated\nb.c linguist-generated=true\nlib/** linguist-vendored\nd.c linguist-generated=false\n"
    files = {".gitattributes": attributes, "a.c": b"", "b.c": b"", "lib/c.c": b"", "d.c": b""}
    assert list_generated(found(new_repo(files=files))) == {"a.c", "b.c", "lib/c.c"}


def test_git_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(GitCommandFailed, match="not a git repository"):
        git_output(no_repository(tmp_path), "ls-files")


def test_no_link_is_followed(tmp_path: Path) -> None:
    write_files(tmp_path, {"outside/key": b"hush", "root/a": b"1", "root/d/e": b"2"})
    root = tmp_path / "root"
    (root / "link").symlink_to(tmp_path / "outside" / "key")
    (root / "near").symlink_to("a")
    (root / "broken").symlink_to("nowhere")
    (root / "dir").symlink_to(tmp_path / "outside")
    os.mkfifo(root / "pipe")
    with WorkTree(str(root)) as tree:
        assert [tree.read(path) for path in ("link", "near", "broken")] == [rules.LINK] * 3
        assert [tree.read(path) for path in ("dir/key", "pipe", "d", "a/b")] == [rules.UNREADABLE] * 4
        for path in ("../outside/key", "d/../../outside/key", "/etc/passwd", "", "d//e", "./a"):
            assert tree.read(path) == rules.UNREADABLE
        assert (tree.read("a"), tree.read("d/e"), tree.read("d/none")) == (b"1", b"2", None)


def test_tree_that_changes_during_reading(tmp_path: Path) -> None:
    write_files(tmp_path, {"outside/file": b"hush", "root/d/a": b"1", "root/d/file": b"2", "root/e/f": b"3"})
    root = tmp_path / "root"
    with WorkTree(str(root)) as tree:
        assert tree.read("d/a") == b"1"
        (root / "d").rename(root / "old")
        (root / "d").symlink_to(tmp_path / "outside")
        # The open folder is still the one that was listed.
        assert tree.read("d/file") == b"2"
        assert tree.read("e/f") == b"3"
        assert tree.read("d/file") == rules.UNREADABLE


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(2 * 1024**3)
    with WorkTree(str(tmp_path)) as tree:
        assert tree.read("huge.txt") == rules.LARGE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"")
    (tmp_path / "a.py").chmod(0)
    with WorkTree(str(tmp_path)) as tree:
        assert tree.read("a.py") == rules.UNREADABLE


@pytest.mark.linux
def test_many_folders_do_not_use_up_descriptors(tmp_path: Path) -> None:
    paths = [f"{n}/{n}/f.py" for n in range(40)] + ["/".join("abcdefgh") + "/f.py"]
    write_files(tmp_path, dict.fromkeys(paths, b"x\n"))

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    with WorkTree(str(tmp_path)) as tree:
        open_at_once = 0
        for path in paths:
            assert tree.read(path) == b"x\n"
            open_at_once = max(open_at_once, descriptors())
    assert open_at_once - before < 15
    assert descriptors() == before


def test_the_files_of_a_commit(new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo(
        files={"a.py": b"x = 1\n", "b.bin": b"\0", "c.png": b"", "d.txt": b"a\n" * 600_000, "e.py": b"y\n"}
    )
    (root / "link").symlink_to("a.py")
    run_git(root, "add", "link")
    run_git(root, "commit", "--quiet", "--message=link")
    run_git(tmp_path, "clone", "--quiet", "--bare", str(root), "bare.git")
    assert sorted(read_commit(found(tmp_path / "bare.git"), "HEAD")) == [
        ("a.py", b"x = 1\n"),
        ("b.bin", b"\0"),
        ("c.png", rules.IMAGE),
        ("d.txt", rules.LARGE),
        ("e.py", b"y\n"),
        ("link", rules.LINK),
    ]


def test_a_file_that_a_partial_clone_lacks_is_left_out(new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo(files={"a.py": b"x = 1\n", "b.py": b"y = 2\n"})
    run_git(tmp_path, "clone", "--quiet", "--bare", "--no-hardlinks", str(root), "bare.git")
    oid = run_git(root, "rev-parse", "HEAD:b.py").strip()
    (tmp_path / "bare.git" / "objects" / oid[:2] / oid[2:]).unlink()
    assert sorted(read_commit(found(tmp_path / "bare.git"), "HEAD")) == [
        ("a.py", b"x = 1\n"),
        ("b.py", rules.UNREADABLE),
    ]
