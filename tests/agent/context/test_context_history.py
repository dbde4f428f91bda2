"""Test how often files change by git history, the state kept between runs, and the order of files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.context.history import TAU, FileHistory, HistoryReader, parse, sort_key
from tests.agent.repositories import NewRepo, found, no_repository, run_git

if TYPE_CHECKING:
    from pathlib import Path


def commit(root: Path, *names: str) -> str:
    for name in names:
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + "line\n")
    run_git(root, "add", "--all")
    run_git(root, "commit", "--quiet", "--allow-empty", "--message=change")
    return head(root)


def head(root: Path) -> str:
    return run_git(root, "rev-parse", "HEAD").strip()


def read(root: Path, folder: Path | None) -> FileHistory:
    return HistoryReader(found(root), head(root), None if folder is None else str(folder)).result()


def test_churn_is_the_sum_over_the_commits_that_touched_a_file(new_repo: NewRepo) -> None:
    root = new_repo(files={"a": b"1\n"})
    commit(root, "b")
    commit(root)
    commit(root, "a", "dir/c d")
    history = read(root, None)
    assert (history.head, history.count) == (head(root), 4)
    expected = {b"a": math.log(math.exp(1 / TAU) + math.exp(4 / TAU)), b"b": 2 / TAU, b"dir/c d": 4 / TAU}
    assert history.churn == pytest.approx(expected)


def test_merges_count_as_one_commit_on_the_first_parent_line(new_repo: NewRepo) -> None:
    root = new_repo(files={"a": b"1\n"})
    run_git(root, "checkout", "--quiet", "-b", "side")
    commit(root, "s")
    commit(root, "s", "t")
    run_git(root, "checkout", "--quiet", "-")
    commit(root, "m")
    run_git(root, "merge", "--quiet", "--no-edit", "side")
    history = read(root, None)
    assert history.count == 3
    assert history.churn[b"s"] == history.churn[b"t"] == 3 / TAU


def test_stored_history_equals_a_new_reading(new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo(files={"a": b"1\n", "b": b"2\n"})
    folder = tmp_path / "cache"
    for names in (("a",), ("b", "c"), (), ("a", "c"), ("a",)):
        commit(root, *names)
        kept, anew = read(root, folder), read(root, None)
        assert (kept.head, kept.count, kept.churn) == (anew.head, anew.count, anew.churn)
    run_git(root, "checkout", "--quiet", "-b", "side", "HEAD~3")
    commit(root, "side")
    kept, anew = read(root, folder), read(root, None)
    assert (kept.head, kept.count, kept.churn) == (anew.head, anew.count, anew.churn)
    run_git(root, "checkout", "--quiet", "HEAD~2")  # an ancestor, with a detached head
    kept, anew = read(root, folder), read(root, None)
    assert (kept.head, kept.churn) == (anew.head, anew.churn)


@pytest.mark.parametrize("damage", [b"", b"m3hist1\n", b"x" * 100, None])
def test_damaged_state_is_read_again(damage: bytes | None, new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo(files={"a": b"1\n"})
    folder = tmp_path / "cache"
    whole = read(root, folder)
    state = folder / "history"
    state.write_bytes(state.read_bytes()[:-1] if damage is None else damage)
    again = read(root, folder)
    assert (again.head, again.count) == (whole.head, whole.count)


def test_a_folder_that_cannot_be_written_costs_time_only(new_repo: NewRepo, tmp_path: Path) -> None:
    root = new_repo(files={"a": b"1\n"})
    (tmp_path / "file").write_text("")
    assert read(root, tmp_path / "file" / "cache").churn == {b"a": 1 / TAU}


def test_no_history_at_all(tmp_path: Path) -> None:
    assert HistoryReader(no_repository(tmp_path), "0" * 40, None).result().churn == {}


churns = st.dictionaries(
    st.binary(min_size=1, max_size=9).filter(lambda name: b"\0" not in name),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(st.text("0123456789abcdef", min_size=40, max_size=40), st.integers(0, 2**31), churns)
def test_the_state_reads_back(commit_id: str, count: int, churn: dict[bytes, float]) -> None:
    state = parse(FileHistory(commit_id, count, churn).bytes())
    assert state is not None
    assert (state.head, state.count, state.churn) == (commit_id, count, churn)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    parse(data)
    parse(b"m3hist1\n" + data)


def test_the_order() -> None:
    files = [
        ("new", None, 5),
        ("small", 1.0, 10),
        ("large", 1.0, 1000),
        ("busy", 9.0, 1000),
        ("twin", 1.0, 10),
    ]
    ordered = sorted(files, key=lambda file: sort_key(file[1], file[2], file[0]))
    assert [name for name, *_ in ordered] == ["large", "small", "twin", "busy", "new"]
