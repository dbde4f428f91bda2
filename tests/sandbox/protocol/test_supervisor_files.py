"""File access below a root: the kernel's rule (openat2) and the walk that replaces it give the same answers."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m3agent.sandbox.protocol.supervisor import Refused, Supervisor

pytestmark = pytest.mark.linux  # the supervisor runs in a sandbox

SECRET = "not yours\n"


@pytest.fixture(params=["openat2", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Supervisor:
    (tmp_path / "ws").mkdir()
    (tmp_path / "secret").write_text(SECRET)
    return files_below(tmp_path / "ws", by_kernel=request.param == "openat2")


def files_below(folder: Path, *, by_kernel: bool) -> Supervisor:
    supervisor = Supervisor(str(folder), -1, -1, openat2=by_kernel)
    if by_kernel and not supervisor.openat2:
        pytest.skip("this kernel has no openat2")
    assert supervisor.openat2 == by_kernel
    return supervisor


def read(supervisor: Supervisor, path: str) -> str:
    """Return the file's text, or the code of the refusal."""
    try:
        answer = supervisor.op_read({"path": path}, b"")
    except Refused as refusal:
        return refusal.code
    except OSError as error:
        return type(error).__name__
    assert answer is not None
    return answer[1].decode()


def write(supervisor: Supervisor, path: str, text: str) -> str:
    try:
        supervisor.op_write({"path": path}, text.encode())
    except Refused as refusal:
        return refusal.code
    except OSError as error:
        return type(error).__name__
    return "written"


def test_links_that_stay_inside_are_followed(root: Supervisor) -> None:
    top = Path(root.root)
    assert write(root, "deep/er/a.txt", "one") == "written"
    (top / "folder").symlink_to("deep/er")
    (top / "absolute").symlink_to(top / "deep")
    (top / "deep" / "up").symlink_to("../deep/er")
    (top / "file").symlink_to("folder/a.txt")
    (top / "absolute-file").symlink_to(top / "deep" / "er" / "a.txt")
    (top / "dangling").symlink_to("deep/new.txt")
    inside = ("deep/er/a.txt", "folder/a.txt", "absolute/er/a.txt", "deep/up/a.txt", "file", "absolute-file")
    for number, path in enumerate([*inside, f"{top}/file", "deep/../file", "deep//er/./a.txt"]):
        assert write(root, path, f"text {number}") == "written"
        for other in inside:
            assert read(root, other) == f"text {number}", (path, other)
    assert write(root, "dangling", "x") == "written"
    assert (top / "deep" / "new.txt").read_text() == "x"
    assert (top / "file").is_symlink(), "the link stays, its target is written"
    assert (top / "dangling").is_symlink()


def test_nothing_outside_is_reached(root: Supervisor) -> None:
    top = Path(root.root)
    (top / "a.txt").write_text("inside")
    (top / "out").symlink_to("../secret")
    (top / "out-absolute").symlink_to(top.parent / "secret")
    (top / "above").symlink_to("..")
    (top / "everything").symlink_to("/")
    (top / "self").symlink_to("/proc/self/fd")
    (top / "itself").symlink_to("itself")
    for path in (
        "../secret", "out", "out-absolute", "above/secret", "everything/etc/passwd", "self/0", "a/../../secret",
        str(top.parent / "secret"), "/etc/passwd", "", ".", "..", "a/..", "x\0y", "../ws-other", f"{top}x/y",
    ):  # fmt: skip
        assert read(root, path) == "escape", path
        assert write(root, path, "mine") == "escape", path
    assert read(root, "itself") in {"escape", "OSError", "special"}
    assert write(root, "itself", "x") in {"escape", "OSError", "special"}
    assert (top.parent / "secret").read_text() == SECRET


def test_links_do_not_reach_git_s_own_folder(root: Supervisor) -> None:
    top = Path(root.root)
    (top / "sub" / ".git").mkdir(parents=True)
    (top / ".git" / "hooks").mkdir(parents=True)
    (top / ".git" / "config").write_text("own")
    for link, target in (
        ("gl", ".git"),
        ("hooks", "gl/hooks"),
        ("absolute", str(top / ".git")),
        ("file", ".git/config"),
        ("new", "gl/hooks/new"),
        ("nested", "sub/.git"),
    ):
        (top / link).symlink_to(target)
    paths = (
        "gl/hooks/post-commit",
        "hooks/x",
        "absolute/x",
        "gl/made/x",
        "nested/x",
        "new",
        "file",
        ".git/config",
    )
    for path in paths:
        assert write(root, path, "mine") == "escape", path
        with pytest.raises(Refused, match=r": git's own folder cannot be touched$"):
            root.op_write({"path": path}, b"mine")
    for path in ("gl/config", "file", "absolute/config"):
        assert read(root, path) == "escape", path
    left = {str(path.relative_to(top)) for path in (*top.glob(".git/**/*"), *top.glob("sub/.git/*"))}
    assert left == {".git/hooks", ".git/config"}
    assert (top / ".git" / "config").read_text() == "own"


def test_special_and_missing_files_are_refused(root: Supervisor) -> None:
    top = Path(root.root)
    (top / "folder").mkdir()
    (top / "a.txt").write_text("a")
    os.mkfifo(top / "pipe")
    assert read(root, "folder") == "EISDIR"
    assert read(root, "pipe") == "special"
    assert read(root, "missing") == read(root, "missing/too") == "FileNotFoundError"
    assert read(root, "a.txt/below") in {"ENOTDIR", "NotADirectoryError"}
    assert write(root, "a.txt/below", "x") == "ENOTDIR"
    for path in ("folder", "pipe"):
        assert write(root, path, "x") == "special"


@pytest.mark.parametrize("rounds", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_a_link_swapped_in_between_reaches_nothing(root: Supervisor, rounds: int) -> None:
    """One thread replaces a folder by a link to the outside as fast as it can, while another reads and writes."""
    top = Path(root.root)
    outside = top.parent / "outside"
    for folder in (outside, top / "real"):
        folder.mkdir()
        (folder / "a.txt").write_text("inside" if folder != outside else SECRET)
    (top / "link").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        (top / "real").rename(top / "a")
        while not stop.is_set():
            for name in ("a", "link"):
                try:
                    (top / name).rename(top / "place")
                    (top / "place").rename(top / name)
                except OSError:  # a write that found no folder has created one
                    shutil.rmtree(top / "place", ignore_errors=True)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        answers = {read(root, "place/a.txt") for _ in range(6 * rounds)}
        written = {write(root, "place/a.txt", "inside") for _ in range(rounds)}
    finally:
        stop.set()
        thread.join()
    assert not any(SECRET in answer for answer in answers)
    assert written <= {"written", "escape", "OSError", "FileNotFoundError", "ENOTDIR", "FileExistsError"}
    assert (outside / "a.txt").read_text() == SECRET
    assert [path.name for path in outside.iterdir()] == ["a.txt"]


PARTS = st.sampled_from(["a", "b", "..", ".", "", "in", "out", "abs", "new", "f.txt", "x" * 200])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(PARTS, min_size=1, max_size=6))
def test_both_ways_agree(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    path = "/".join(parts)
    answers = []
    for by_kernel in (True, False):
        top = tmp_path_factory.mktemp("tree") / "ws"
        (top / "a" / "b").mkdir(parents=True)
        (top.parent / "f.txt").write_text(SECRET)
        (top / "a" / "f.txt").write_text("f")
        (top / "in").symlink_to("a/b")
        (top / "out").symlink_to("../..")
        (top / "abs").symlink_to(top / "a")
        supervisor = files_below(top, by_kernel=by_kernel)
        first = read(supervisor, path)
        answers.append((first, write(supervisor, path, "w"), read(supervisor, path)))
        assert first != SECRET
        assert (top.parent / "f.txt").read_text() == SECRET
        assert {path.name for path in top.parent.iterdir()} == {"f.txt", "ws"}
        os.close(supervisor.root_fd)
    assert answers[0] == answers[1]
