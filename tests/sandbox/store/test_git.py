"""The tree store takes and returns any name, content and mode, and never obeys a repository's settings."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from m3agent.sandbox.errors import DiskFull
from m3agent.sandbox.store.git import GitFailed, TreeEntry, TreeStore, run_git
from m3agent.sandbox.store.git_command import for_store
from tests.tools.small_disk import fill, small_disk

REGULAR, PROGRAM, LINK = 0o100644, 0o100755, 0o120000
Files = dict[str, tuple[int, bytes]]

# A file name on Linux may contain every byte except a slash and a zero byte. Git refuses every spelling of `.git`.
PART = (
    st.binary(min_size=1, max_size=12)
    | st.text(alphabet="ab \"'\\\n\t\r:*!()é-.~#", min_size=1, max_size=8).map(str.encode)
).filter(
    lambda part: (
        b"/" not in part and b"\0" not in part and part not in {b".", b".."} and b"git" not in part.lower()
    )
)
NAME = st.lists(PART, min_size=1, max_size=3).map(lambda parts: os.fsdecode(b"/".join(parts)))
CONTENT = st.binary(max_size=60) | st.text(alphabet="ab\n\r\\ ", max_size=60).map(str.encode)
FILE = st.tuples(st.sampled_from([REGULAR, PROGRAM]), CONTENT) | st.tuples(
    st.just(LINK), st.binary(min_size=1, max_size=20).filter(lambda target: b"\0" not in target)
)


def without_clashes(files: Files) -> Files:
    """Remove files whose path is also a folder of another file."""
    folders = {str(parent) for name in files for parent in Path(name).parents}
    return {name: file for name, file in files.items() if str(Path(name)) not in folders}


FILES = st.dictionaries(NAME, FILE, max_size=6).map(without_clashes)


@pytest.fixture(scope="module")
def store() -> Iterator[TreeStore]:
    with tempfile.TemporaryDirectory() as folder:
        yield TreeStore(Path(folder, "trees.git"))


def lay(folder: Path, files: Files) -> None:
    for name, (mode, content) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode == LINK:
            path.symlink_to(os.fsdecode(content))
        else:
            path.write_bytes(content)
            path.chmod(0o755 if mode == PROGRAM else 0o644)


def lying(folder: Path) -> Files:
    found: Files = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            # unchanged: Path.readlink() would turn "x/" into "x"
            found[name] = (LINK, os.fsencode(os.readlink(path)))  # noqa: PTH115
        elif stat.S_ISREG(info.st_mode):
            found[name] = (PROGRAM if info.st_mode & 0o100 else REGULAR, path.read_bytes())
    return found


def held(store: TreeStore, tree: str) -> Files:
    entries = store.list_tree(tree)
    return {
        e.path: (e.mode, blob)
        for e, blob in zip(entries, store.get_blobs([e.sha for e in entries]), strict=True)
    }


AWKWARD: Files = {
    "new\nline": (REGULAR, b"a\n"),
    'quo"te\\': (PROGRAM, b"no line end"),
    " blank ": (REGULAR, b""),
    "b/ b/x": (REGULAR, b"\0\xff"),
    "caf\udce9/\udcff": (LINK, b"../\xff\xfe"),
    "tab\t.txt": (REGULAR, b"a\r\nb\r\n"),
    "-rf": (REGULAR, b"x"),
    ":(exclude)*": (REGULAR, b"x"),
    ".gitattributes": (REGULAR, b"* text=auto eol=crlf filter=x\n"),
    ".gitignore": (REGULAR, b"*\n"),
}


# If such a file is empty or only its mode changes, only the first line of its part of the patch contains its name.
BLANKS: Files = {
    " /a": (REGULAR, b""),
    "b / /c ": (REGULAR, b""),
    "d/ e": (REGULAR, b"\0"),
    " f": (REGULAR, b"text\n"),
}


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(before=FILES, after=FILES)
@example(before=AWKWARD, after={})
@example(before={}, after={"\x01": (LINK, b"\x01/")})
@example(before={"l": (LINK, b"a/")}, after={"l": (LINK, b"./a//b")})
@example(before=BLANKS, after={name: (PROGRAM, content) for name, (_, content) in BLANKS.items()})
@example(before=BLANKS, after={})
@example(before={}, after=BLANKS)
@example(before={}, after=AWKWARD)
@example(
    before=AWKWARD, after={name: (REGULAR, content + b"more\n") for name, (_, content) in AWKWARD.items()}
)
def test_trees_and_the_patch_between_them(store: TreeStore, before: Files, after: Files) -> None:
    with tempfile.TemporaryDirectory() as name:
        old_folder, new_folder = Path(name, "old"), Path(name, "new")
        for folder, files in ((old_folder, before), (new_folder, after)):
            folder.mkdir()
            lay(folder, files)
        old = store.tree_of_folder(old_folder, sorted(before))
        new = store.write_tree(
            TreeEntry(path, mode, store.put_blob(content)) for path, (mode, content) in after.items()
        )
        assert held(store, old) == before
        assert held(store, new) == after
        letters = {path: letter for letter, path in store.changed_paths(old, new)}
        assert letters == {
            path: "A" if path not in before else "D" if path not in after else letters[path]
            for path in before.keys() | after.keys()
            if before.get(path) != after.get(path)
        }
        patch = store.diff(old, new)
        assert bool(patch) == (before != after)
        if patch:
            run_git(
                "apply",
                "--whitespace=nowarn",
                "-",
                cwd=old_folder,
                stdin=patch,
                env={"GIT_CEILING_DIRECTORIES": name},
            )
        assert lying(old_folder) == after


def test_header_names_are_plain_except_for_ambiguous_blanks(store: TreeStore) -> None:
    """A file's content is never mistaken for such a line."""
    line = b"diff --git a/ /x b/ /x\n"
    empty = store.write_tree([])

    def patch(name: str, content: bytes = b"") -> list[bytes]:
        tree = store.write_tree([TreeEntry(name, REGULAR, store.put_blob(content))])
        return store.diff(empty, tree).splitlines(keepends=True)

    assert patch("a b/c d")[0] == b"diff --git a/a b/c d b/a b/c d\n"
    assert patch("a b /c")[0] == b'diff --git "a/a b /c" "b/a b /c"\n'
    assert patch('" /c')[0] == b'diff --git "a/\\" /c" "b/\\" /c"\n', "in quotes already"
    assert patch("x", line)[-1] == b"+" + line


def test_a_patch_applies_with_the_user_s_own_git(store: TreeStore, tmp_path: Path) -> None:
    """It applies whatever the user has configured for line ends and white space."""
    files = {"a.txt": (REGULAR, b"one\r\ntwo \r\n"), "b.bin": (REGULAR, bytes(range(256)))}
    changed = {"a.txt": (REGULAR, b"one\r\nthree \r\n"), "b.bin": (PROGRAM, bytes(range(255)))}
    lay(tmp_path, files)
    trees = [
        store.write_tree(TreeEntry(p, m, store.put_blob(c)) for p, (m, c) in each.items())
        for each in (files, changed)
    ]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply"], cwd=tmp_path, input=store.diff(*trees), check=True)
    assert {n: f for n, f in lying(tmp_path).items() if not n.startswith(".git/")} == changed


def test_nothing_of_the_tree_or_the_user_runs_or_converts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = tmp_path / "owned"
    touch = f"touch '{owned}'"
    config = tmp_path / "gitconfig"
    config.write_text(
        f'[filter "x"]\n clean = {touch}; cat\n smudge = {touch}; cat\n required = true\n'
        f"[core]\n fsmonitor = {touch}\n hooksPath = {tmp_path}/hooks\n autocrlf = true\n"
        f'[diff]\n external = {touch}\n[diff "x"]\n textconv = {touch}\n'
    )
    (tmp_path / "hooks").mkdir()
    hook = tmp_path / "hooks" / "post-index-change"
    hook.write_text(f"#!/bin/sh\n{touch}\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", touch)
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    folder = tmp_path / "tree"
    folder.mkdir()
    files = {".gitattributes": (REGULAR, b"* filter=x diff=x ident\n"), "a.txt": (REGULAR, b"$Id$\r\n")}
    lay(folder, files)
    store = TreeStore(tmp_path / "trees.git")
    tree = store.tree_of_folder(folder, sorted(files))
    assert held(store, tree) == files
    assert b"+$Id$\r\n" in store.diff(store.write_tree([]), tree)
    assert not owned.exists()
    assert not {"GIT_DIR", "GIT_EXTERNAL_DIFF", "HOME"} & {
        n for n, v in for_store().environment.items() if v == os.environ.get(n)
    }


def test_objects_of_the_user_s_repository_need_not_be_copied(tmp_path: Path) -> None:
    first = TreeStore(tmp_path / "first.git")
    tree = first.write_tree([TreeEntry("a", REGULAR, first.put_blob(b"text\n"))])
    second = TreeStore(tmp_path / "second.git", first.git_dir / "objects")
    assert held(second, tree) == {"a": (REGULAR, b"text\n")}
    again = TreeStore(second.git_dir)  # opened again, as a resumed session does
    assert held(again, tree) == {"a": (REGULAR, b"text\n")}


def test_missing_object_is_an_error(store: TreeStore, tmp_path: Path) -> None:
    nowhere = "1" * 40
    with pytest.raises(GitFailed, match=f"object {nowhere} is missing"):
        store.get_blobs([store.put_blob(b"x"), nowhere])
    with pytest.raises(GitFailed, match="git cat-file failed: "):
        store.get_blob(nowhere)
    with pytest.raises(GitFailed, match="git update-index failed: "):
        store.tree_of_folder(tmp_path, ["no-such-file"])
    assert store.get_blobs([]) == []


def test_large_blobs_are_not_read(store: TreeStore) -> None:
    shas = store.put_blobs([b"a", b"large", b"b", b"larger", b"larger", b""])
    assert list(store.each_blob_up_to(shas, 4)) == [b"a", None, b"b", None, None, b""]
    assert list(store.each_blob_up_to(shas[:2], 5)) == [b"a", b"large"]
    assert store.sizes(shas) == [1, 5, 1, 6, 6, 0]


def test_submodules_are_left_out(store: TreeStore) -> None:
    lines = f"160000 commit {'2' * 40}\tsub\n100644 blob {store.put_blob(b'x')}\ta\n"
    command = ["git", "--git-dir", str(store.git_dir), "mktree", "--missing"]
    made = subprocess.run(command, input=lines.encode(), check=True, capture_output=True)
    tree = made.stdout.decode().strip()
    assert [entry.path for entry in store.list_tree(tree)] == ["a"]


def test_ignored_files(store: TreeStore, tmp_path: Path) -> None:
    lay(
        tmp_path,
        {".gitignore": (REGULAR, b"*.log\n!keep.log\n/build/\n"), "sub/.gitignore": (REGULAR, b"local\n")},
    )
    ignored = {
        "a.log", "sub/b.log", "build/x/y", "sub/local", "x/__pycache__/m.pyc", "a.egg-info/PKG-INFO", ".coverage.1",
        "new\nline.log", "caf\udce9.log", ":(exclude)*.log", ":!x.log", " .log",
    }  # fmt: skip
    wanted = {
        "keep.log",
        "sub/build/x",
        "local",
        "a.py",
        ":!x",
        ":(top)",
        "new\nline",
        "caf\udce9",
        "-v",
        '"q"',
    }
    assert store.ignored(sorted(ignored | wanted), tmp_path) == ignored
    assert store.ignored([], tmp_path) == set()
    assert store.ignored(["a.py"], tmp_path) == set()


@pytest.mark.integration
def test_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", 2 << 20) as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        store = TreeStore(folder / "trees.git")
        kept = store.put_blob(b"kept")
        room = fill(folder)
        assert store.get_blobs([kept] * 1000) == [b"kept"] * 1000, "reading needs no room"
        with pytest.raises(DiskFull, match=r"the disk is full: .* make room and try again"):
            store.put_blob(os.urandom(100_000))
        room.unlink()
        assert store.get_blob(store.put_blob(b"x")) == b"x"


def test_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    store = TreeStore(tmp_path / "trees.git")
    blob = store.put_blob(b"x")
    whole = sorted(store.git_dir.rglob("*"))
    (store.git_dir / "index-1").touch()
    (store.git_dir / "index-1.lock").touch()
    (store.git_dir / "unfinished-1" / "a").mkdir(parents=True)
    (store.git_dir / "objects" / blob[:2] / "tmp_obj_1").touch()
    store.sweep()
    assert sorted(store.git_dir.rglob("*")) == whole


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitFailed, match="git is not installed"):
        TreeStore(tmp_path / "trees.git")


def test_a_store_that_is_gone(tmp_path: Path) -> None:
    store = TreeStore(tmp_path / "trees.git")
    shutil.rmtree(store.git_dir)
    with pytest.raises(GitFailed, match=r"^git hash-object failed: the folder \S+/trees\.git is gone$"):
        store.put_blob(b"x")


def test_sandboxes_that_share_a_store_do_not_meet(tmp_path: Path) -> None:
    """They write many trees at the same time, beside a lock file that a killed git left."""
    store = TreeStore(tmp_path / "store.git")
    (store.git_dir / "index.lock").touch()
    blobs = [store.put_blob(b"%d" % number) for number in range(24)]

    def write(number: int) -> str:
        return store.write_tree([TreeEntry(f"f{number}", REGULAR, blobs[number])])

    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(write, range(24)))
    for number, tree in enumerate(trees):
        assert store.list_tree(tree) == (TreeEntry(f"f{number}", REGULAR, blobs[number]),)
    assert not list(store.git_dir.glob("index-*"))


def test_files_at_paths_are_read_without_the_whole_tree(store: TreeStore) -> None:
    names = ["a", "d/e", "d/f", "*", ":(top)x", "é y"]
    blob = store.put_blob(b"x")
    tree = store.write_tree([TreeEntry(name, REGULAR, blob) for name in names])
    wanted = ["a", "d", "d/f", "*", ":(top)x", "é y", "gone"]
    assert sorted(store.entries_at(tree, wanted)) == sorted({*names} & {*wanted})
    assert store.entries_at(tree, wanted)["d/f"] == TreeEntry("d/f", REGULAR, blob)
