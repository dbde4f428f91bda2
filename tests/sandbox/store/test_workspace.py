"""States of the work tree, and which changes a patch may contain."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.sandbox.errors import DiskFull, PathEscapes
from m3agent.sandbox.store.git import TreeEntry, TreeStore, run_git
from m3agent.sandbox.store.workspace import Workspace, inside_git, refuse_repositories, runs_later
from tests.agent.repositories import write_files
from tests.tools.small_disk import fill, small_disk

REGULAR, PROGRAM, LINK, SUBMODULE = 0o100644, 0o100755, 0o120000, 0o160000

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]


def test_changes_make_a_state_and_a_patch(workspace_of: WorkspaceOf, tmp_path: Path) -> None:
    workspace = workspace_of({"a.py": "one\n", "b.py": "two\n", "d/c.py": "three\n"})
    changed = [("a.py", REGULAR, b"ONE\n"), ("new/n.sh", PROGRAM, b"#!/bin/sh\n"), ("link", LINK, b"d/c.py")]
    tree = workspace.commit_changes(workspace.base, changed, ["b.py", "never-there"])
    assert {path: entry.mode for path, entry in workspace.entries(tree).items()} == {
        "a.py": REGULAR,
        "d/c.py": REGULAR,
        "link": LINK,
        "new/n.sh": PROGRAM,
    }
    patch = workspace.patch(tree)
    assert (patch.base, patch.tree, patch.empty) == (workspace.base, tree, False)
    assert patch.paths == ("a.py", "b.py", "link", "new/n.sh")
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    for name, content in (("a.py", "one\n"), ("b.py", "two\n")):
        (fresh / name).write_text(content)
    run_git("apply", cwd=fresh, stdin=patch.text, env={"GIT_CEILING_DIRECTORIES": str(tmp_path)})
    assert (fresh / "a.py").read_text() == "ONE\n"
    assert not (fresh / "b.py").exists()
    assert (fresh / "link").readlink() == Path("d/c.py")
    assert (fresh / "new/n.sh").stat().st_mode & 0o111


def test_a_file_in_a_folder_s_place_and_the_other_way_round(workspace_of: WorkspaceOf) -> None:
    workspace = workspace_of({"a": "file\n", "b/c": "below\n"})
    tree = workspace.commit_changes(
        workspace.base, [("a/x", REGULAR, b"below\n"), ("b", REGULAR, b"file\n")], ["a", "b/c"]
    )
    assert set(workspace.entries(tree)) == {"a/x", "b"}
    assert set(workspace.patch(tree).paths) == {"a", "a/x", "b", "b/c"}


def test_a_submodule_stays_as_it_is(workspace_of: WorkspaceOf) -> None:
    """Its commit is in no repository that m3agent reads."""
    store = workspace_of({"a.py": "one\n"}).store

    def tree_with(content: bytes, commit: str) -> str:
        entries = [
            TreeEntry("a.py", REGULAR, store.put_blob(content)),
            TreeEntry("sub", SUBMODULE, commit * 40),
        ]
        return store.write_tree(entries)

    workspace = Workspace(store, tree_with(b"one\n", "1"))
    assert workspace.patch(tree_with(b"two\n", "1")).paths == ("a.py",)
    with pytest.raises(PathEscapes, match=r"^the change sets the commit of the submodule sub: refused$"):
        workspace.patch(tree_with(b"one\n", "2"))


@pytest.mark.parametrize("path", ["libs/sub/x.py", "libs/sub/deep/x.py", "libs/sub"])
def test_a_file_in_the_place_of_a_submodule_is_refused(workspace_of: WorkspaceOf, path: str) -> None:
    workspace = workspace_of({"a.py": "one\n"})
    workspace.store.note_submodules(["libs/sub", "caf\udce9"])
    assert workspace.submodules == {"libs/sub", "caf\udce9"}
    beside = workspace.commit_changes(workspace.base, [("libs/subs", REGULAR, b"x\n")], [])
    assert workspace.patch(beside).paths == ("libs/subs",)
    with pytest.raises(PathEscapes, match=f"^{path} belongs to the submodule libs/sub"):
        workspace.patch(workspace.commit_changes(workspace.base, [(path, REGULAR, b"x\n")], []))


def test_many_files_that_are_named_as_parts_of_repositories_are_checked_in_one_pass() -> None:
    tree = [f"d{number}/HEAD" for number in range(20_000)] + [
        f"d{number}/objects/x" for number in range(20_000)
    ]
    started = time.process_time()
    refuse_repositories(tree, tree)
    with pytest.raises(PathEscapes, match="d7/"):
        refuse_repositories(tree, [*tree, "d7/refs/x"])
    assert time.process_time() - started < 10, "each pair of paths was compared"


def test_no_change_is_an_empty_patch(workspace_of: WorkspaceOf) -> None:
    workspace = workspace_of({"a.py": "one\n"})
    there = workspace.commit_changes(workspace.base, [("a.py", REGULAR, b"two\n")], [])
    back = workspace.commit_changes(there, [("a.py", REGULAR, b"one\n")], [])
    assert back == workspace.base
    patch = workspace.patch(back)
    assert (patch.empty, patch.text, patch.paths, patch.runs_later) == (True, b"", (), ())


@pytest.mark.parametrize(
    ("path", "mode", "content"),
    [
        (".gitattributes", REGULAR, b"* filter=x\n"),
        ("sub/.GitAttributes", REGULAR, b"x"),
        (".gitmodules", REGULAR, b"x"),
        ("link", LINK, b"/etc/passwd"),
        ("link", LINK, b"../outside"),
        ("d/link", LINK, b"../../outside"),
        ("d/link", LINK, b"x/../../../outside"),
        ("d/link", LINK, b"\xff/../../../x"),
    ],
)
def test_entries_that_a_patch_may_not_contain(
    workspace_of: WorkspaceOf, path: str, mode: int, content: bytes
) -> None:
    workspace = workspace_of({"a.py": "one\n"})
    tree = workspace.commit_changes(workspace.base, [(path, mode, content)], [])
    with pytest.raises(PathEscapes, match="refused"):
        workspace.patch(tree)


@pytest.mark.parametrize("target", [b"a.py", b"../a.py", b"./x/../a.py", b"missing", b"x/y/../../../a.py"])
def test_links_inside_the_tree_are_handed_over(workspace_of: WorkspaceOf, target: bytes) -> None:
    workspace = workspace_of({"a.py": "one\n"})
    tree = workspace.commit_changes(workspace.base, [("d/link", LINK, target)], [])
    assert workspace.patch(tree).paths == ("d/link",)


@pytest.mark.integration
def test_full_disk_is_reported_and_partial_data_is_not_used(tmp_path: Path) -> None:
    files = {".gitignore": "*.log\n" + "# a long one\n" * 2000}
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        write_files(tmp_path / "tree", dict(files))
        workspace = Workspace.from_folder(TreeStore(disk / "trees.git"), tmp_path / "tree", sorted(files))
        (spare := disk / "spare").write_bytes(b"x" * (16 << 10))
        room = fill(disk)
        spare.unlink()  # room for the folders, but not for the file
        with pytest.raises(DiskFull, match=r"cannot write .*: No space left on device; make room"):
            workspace._base_ignore_files()
        room.unlink()
        assert (workspace._base_ignore_files() / ".gitignore").read_text() == files[".gitignore"]


def test_a_file_of_git_s_own_that_is_taken_away_is_refused_too(workspace_of: WorkspaceOf) -> None:
    workspace = workspace_of({".gitattributes": "* text\n", "a.py": "one\n"})
    with pytest.raises(PathEscapes, match=r"\.gitattributes"):
        workspace.patch(workspace.commit_changes(workspace.base, [], [".gitattributes"]))


def test_an_escaping_link_that_was_there_may_stay_or_go(workspace_of: WorkspaceOf, tmp_path: Path) -> None:
    store = TreeStore(tmp_path / "own.git")
    first = Workspace(store, store.write_tree([]))
    base = first.commit_changes(first.base, [("out", LINK, b"/etc/hosts"), ("a.py", REGULAR, b"one\n")], [])
    workspace = Workspace(store, base)
    assert workspace.patch(workspace.commit_changes(base, [("a.py", REGULAR, b"two\n")], [])).paths == (
        "a.py",
    )
    assert workspace.patch(workspace.commit_changes(base, [], ["out"])).paths == ("out",)


def test_the_base_s_ignore_rules_decide(workspace_of: WorkspaceOf) -> None:
    workspace = workspace_of(
        {".gitignore": "*.log\nbuild/\n", "kept.log": "tracked\n", "sub/.gitignore": "x.*\n"}
    )
    paths = ["kept.log", "new.log", "build/a", "sub/x.py", "x.py", "__pycache__/m.pyc", ":(exclude)x", "n.py"]
    assert workspace.wanted(paths, {"kept.log"}) == ["kept.log", "x.py", ":(exclude)x", "n.py"]
    assert workspace.wanted(["a.pyc"], {"a.pyc"}) == ["a.pyc"], "tracked, so part of the work"


INSIDE_GIT = (".git/config", "a/.git/b", ".GIT", "a/Git~1/x")
RUN_LATER = (
    *(".github/workflows/ci.yml", "docs/.vscode/tasks.json", "conftest.py", "tests/conftest.py", "Makefile"),
    *("a/hidden.pth", "setup.py", "Jenkinsfile", ".travis.yml", "azure-pipelines.yml", "pytest.toml"),
    *(".buildkite/pipeline.yml", ".mcp.json", ".claude/settings.json", ".cursor/mcp.json", ".zed/tasks.json"),
    *(".GitHub/workflows/x.yml", "web/package.json", "Dockerfile", "docker-compose.yml", "GNUmakefile"),
    *("justfile", ".pytest.ini", ".m3agent.toml"),
)


@pytest.mark.parametrize("path", [*INSIDE_GIT, ".gitignore", "git/x", "a.git/x"])
def test_inside_git(path: str) -> None:
    assert inside_git(path) is (path in INSIDE_GIT)


@pytest.mark.parametrize(
    "path", [*RUN_LATER, "package.json.py", "src/setup_tools.py", "github/ci.yml", "makefile.py"]
)
def test_files_that_run_later(path: str) -> None:
    assert runs_later(path) is (path in RUN_LATER)


def test_files_that_run_later_are_named_in_the_patch(workspace_of: WorkspaceOf) -> None:
    workspace = workspace_of({"a.py": "one\n"})
    changed = [
        ("conftest.py", REGULAR, b"x = 1\n"),
        ("a.py", REGULAR, b"two\n"),
        (".github/x.yml", REGULAR, b"y\n"),
    ]
    patch = workspace.patch(workspace.commit_changes(workspace.base, changed, []))
    assert patch.runs_later == (".github/x.yml", "conftest.py")
