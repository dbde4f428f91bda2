"""Test `m3agent sessions` and `m3agent report` from the command line: what they print, write and refuse."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from m3agent.agent.cli import sessions
from m3agent.agent.cli.sessions import report, sessions_app
from m3agent.agent.errors import EnvironmentFault, UsageError
from m3agent.agent.report.write import write_page
from m3agent.agent.session import events
from m3agent.agent.session.catalog import find_session, list_sessions, summary_of
from m3agent.agent.session.events import Event
from m3agent.agent.session.log_reader import LOG
from m3agent.agent.session.session import Session
from tests.agent.report.test_report_model import PATCH, a_fix, finished, started, turn_started
from tests.tools.small_disk import fill, small_disk

app = typer.Typer()
app.add_typer(sessions_app, name="sessions")
app.command()(report)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def state(own_state: Path) -> Path:
    return own_state / "state"


def put(state: Path, name: str, *written: Event, patch: str = "") -> Path:
    """Write a session with a given id."""
    folder = state / "sessions" / name
    folder.mkdir(parents=True)
    session = Session(folder, [])
    for event in written:
        session.write(event)
    if patch:
        session.write_file("patch.diff", patch.encode())
    session.close()
    return folder


@pytest.fixture
def three(state: Path) -> Path:
    put(state, "20260101-100000-aaaaaa", *a_fix(), patch=PATCH)
    put(state, "20260101-110000-bbbbbb", *a_fix()[:-1])
    put(
        state,
        "20260102-100000-cccccc",
        started("Fares are\x1b[31mwrong"),
        finished("failed", price=None, turns=1),
    )
    return state


def test_a_list_is_newest_first(three: Path) -> None:
    lines = run("sessions", "list").stdout.splitlines()
    assert re.split(r"\s{2,}", lines[0]) == [
        "ID", "STARTED (UTC)", "STATUS", "TURNS", "PRICE", "SIZE", "REPOSITORY", "ISSUE", "REASON",
    ]  # fmt: skip
    cells = [re.split(r"\s{2,}", line) for line in lines[1:]]
    assert [row[0][-6:] for row in cells] == ["cccccc", "bbbbbb", "aaaaaa"]
    assert [row[2] for row in cells] == ["failed", "not finished", "verified"]
    assert [row[3] for row in cells] == ["1", "6", "6"]
    assert [row[4] for row in cells] == ["–", "–", "$0.0731"]  # noqa: RUF001
    assert cells[0][7] == "Fares are [31mwrong", "what drives a terminal is not printed"


def test_a_narrow_list_names_the_columns_that_it_leaves_out(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "columns_of", lambda _: 100)
    result = run("sessions", "list")
    assert "REASON" not in result.stdout
    assert result.stderr.startswith("m3agent: too narrow for ")
    assert "REASON: `m3agent sessions show ID` has them" in result.stderr


def test_a_list_as_json_has_every_field(three: Path) -> None:
    found = json.loads(run("sessions", "list", "--json").stdout)
    assert [summary["status"] for summary in found] == ["failed", "not finished", "verified"]
    last = found[-1]
    assert last["prompt_tokens"] == 2_490_900
    assert last["seconds"] == 96.3
    assert last["patch"] == str(three / "sessions" / last["id"] / "patch.diff")
    assert last["commit"] == "84f9a84a73ecc5ed7b1a53b6b1d9d5fef227ea1c"
    assert found[0]["patch"] is None
    assert found[0]["price"] is None


def test_a_patch_on_uncommitted_changes_is_for_git(state: Path) -> None:
    """`m3agent apply` refuses it; the next step is the same as at the end of the fix."""
    folder = put(
        state, "20260101-100000-aaaaaa", started(), finished("verified", uncommitted=("a.py",)), patch=PATCH
    )
    shown = run("sessions", "show").stdout
    assert shown.splitlines()[-1] == (
        f"next        git apply {shlex.quote(str(folder / 'patch.diff'))} (m3agent apply does not write over uncommitted changes)"
    )


def test_notes_on_the_patch_are_shown(state: Path) -> None:
    """A patch that is on a branch already, for example."""
    note = "committed to branch fix as 99c4d057aa1e"
    put(state, "20260101-100000-aaaaaa", started(), finished("verified", notes=[note]), patch=PATCH)
    shown = dict(line.split(None, 1) for line in run("sessions", "show").stdout.splitlines())
    assert shown["notes"] == note
    assert shown["next"].endswith("(writes the patch into the work tree, unless it is there)")


def test_without_sessions_there_is_a_sentence_and_no_table(state: Path) -> None:
    result = run("sessions", "list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "m3agent: there are no sessions yet\n")
    assert json.loads(run("sessions", "list", "--json").stdout) == []
    assert run("sessions", "show", "last").exit_code == 2


def test_details_wrap_below_their_beginning_on_a_terminal(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("sessions", "show").stdout
    monkeypatch.setattr(sessions, "columns_of", lambda _: 36)
    shown = run("sessions", "show").stdout
    assert shown.split() == whole.split() and len(shown.splitlines()) > len(whole.splitlines())
    assert {line[:12].strip() for line in shown.splitlines()} - {""} == {
        line[:12].strip() for line in whole.splitlines()
    }


def test_without_a_name_the_last_session_is_shown(three: Path) -> None:
    assert run("sessions", "show").stdout == run("sessions", "show", "last").stdout
    assert run("report", "-o", "-").stdout == run("report", "last", "-o", "-").stdout


def test_a_damaged_log_does_not_hide_the_others(three: Path) -> None:
    folder = put(three, "20260103-100000-dddddd", *a_fix()[:5])
    with (folder / LOG).open("a") as log:
        log.write("nonsense\n")
    (three / "sessions" / "20260104-100000-eeeeee").mkdir()
    (three / "sessions" / "a-file").write_text("no session")
    result = run("sessions", "list")
    assert result.exit_code == 0
    assert result.stdout.count("damaged") == 2
    assert len(result.stdout.splitlines()) == 1 + 5
    assert f"{folder / LOG}, line 6: this is not an event" in result.stderr
    shown = run("sessions", "show", "20260103")
    assert (shown.exit_code, shown.stdout) == (2, "")


@pytest.mark.parametrize("name", ["last", "20260102", "20260102-100000-cccccc"])
def test_a_session_is_shown_by_any_name_of_it(three: Path, name: str) -> None:
    shown = dict(line.split(None, 1) for line in run("sessions", "show", name).stdout.splitlines())
    assert shown["id"] == "20260102-100000-cccccc"
    assert shown["status"] == "failed"
    assert shown["next"] == f"m3agent report {shown['id']} -o report.html"
    assert shown["issue"] == "Fares are [31mwrong"
    assert json.loads(run("sessions", "show", name, "--json").stdout)["status"] == "failed"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("2025", "there is no session '2025': `m3agent sessions list` shows them"),
        ("", "there is no session '': `m3agent sessions list` shows them"),
        ("../sessions", "there is no session '../sessions'"),
        (
            "20260101",
            "'20260101' is the beginning of 2 sessions, 20260101-110000-bbbbbb and 20260101-100000-aaaaaa ",
        ),
    ],
)
def test_a_name_that_means_none_or_several_is_refused(three: Path, name: str, why: str) -> None:
    result = run("sessions", "show", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"m3agent: {why}")
    assert result.stderr.count("\n") == 1


def test_a_whole_id_counts_before_those_it_begins(state: Path) -> None:
    put(state, "20260101-100000-aa", started())
    put(state, "20260101-100000-aaaa", started())
    assert find_session(state, "20260101-100000-aa").name == "20260101-100000-aa"


def test_session_resumed_after_its_end_is_not_finished(state: Path) -> None:
    folder = put(state, "20260101-100000-aaaaaa", *a_fix(), turn_started(7))
    summary = summary_of(folder)
    assert (summary.status, summary.turns, summary.price) == ("not finished", 7, None)
    resumed = events.SessionResumed(m3agent="0", messages=4, tree="", interrupted=[])
    assert summary_of(put(state, "20260101-100000-bbbbbb", *a_fix(), resumed)).status == "not finished"


def test_the_size_is_that_of_all_files(state: Path) -> None:
    folder = put(state, "20260101-100000-aaaaaa", *a_fix())
    before = summary_of(folder).bytes
    (folder / "calls").mkdir()
    (folder / "calls" / "0001.log").write_bytes(os.urandom(300_000))
    (folder / "calls" / "link").symlink_to("/usr/bin/env")
    assert 300_000 <= summary_of(folder).bytes - before <= 400_000


def test_the_same_summary_with_and_without_reading_all(state: Path) -> None:
    """The fast way reads only both ends of a log, and gives the same summary as the whole log."""
    folder = put(state, "20260101-100000-aaaaaa", *a_fix())
    quick = summary_of(folder)
    raw = (folder / LOG).read_bytes()
    (folder / LOG).write_bytes(raw + b'{"v":1,')  # the last line is now incomplete
    assert {**vars(summary_of(folder)), "bytes": 0} == {**vars(quick), "bytes": 0}


def test_a_report_is_one_private_file(three: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = run("report", "20260101-10", "-o", str(page))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"m3agent: wrote {page} ({page.stat().st_size / 1000:,.0f} kB)\n"
    assert "The last van stays on the quay" in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    first = page.read_bytes()
    assert run("report", "last", "-o", str(page)).exit_code == 0
    assert page.read_bytes() != first, "an earlier report is written over"


def test_a_report_goes_to_standard_output(three: Path) -> None:
    result = run("report", "last", "-o", "-")
    assert result.stdout.startswith("<!doctype html>\n")
    assert result.stdout.endswith("</html>\n")


def test_sessions_are_named_by_paths_too(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = three / "sessions" / "20260101-100000-aaaaaa"
    alone = tmp_path / "kept.jsonl"
    alone.write_bytes((folder / LOG).read_bytes())
    by_id = run("report", folder.name, "-o", "-").stdout
    for path in (folder, folder / LOG):
        assert run("report", str(path), "-o", "-").stdout == by_id
    monkeypatch.chdir(tmp_path)
    page = run("report", "kept.jsonl", "-o", "-").stdout
    assert "the patch is not here; the session wrote it to /nowhere/patch.diff" in page
    assert run("report", folder.name, folder.name, "-o", "-").stdout == by_id, "each once"


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "nowhere", "device"])
def test_only_a_regular_file_is_written_over(three: Path, tmp_path: Path, kind: str) -> None:
    target, kept = tmp_path / "out", tmp_path / "kept"
    kept.write_text("mine")
    if kind == "folder":
        target.mkdir()
    elif kind == "link":
        target.symlink_to(kept)
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "nowhere":
        target = tmp_path / "no" / "out"
    else:
        target = Path("/dev/null")
    result = run("report", "last", "-o", str(target))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"m3agent: -o {target}: ")
    assert result.stderr.count("\n") == 1
    assert kept.read_text() == "mine"


@pytest.mark.integration
def test_a_full_disk_leaves_the_earlier_report(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256 << 10) as disk:
        page = disk / "report.html"
        write_page(page, b"earlier")
        fill(disk)
        with pytest.raises(EnvironmentFault, match=r"cannot be written: no space left on device"):
            write_page(page, b"x" * 200_000)
        assert page.read_bytes() == b"earlier"
        assert [path.name for path in disk.iterdir() if path.name.startswith(".report")] == []


def test_a_report_of_a_damaged_log_is_one_sentence(three: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"v":9}\n')
    result = run("report", str(log), "-o", str(tmp_path / "r.html"))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"m3agent: {log}, line 1: the event is of version 9")
    assert not (tmp_path / "r.html").exists()


def test_unreadable_sessions_are_reported(state: Path) -> None:
    state.mkdir()
    (state / "sessions").write_text("in the way")
    with pytest.raises(UsageError, match="sessions cannot be read: not a directory"):
        list_sessions(state)


def test_json_stays_json_whatever_the_issue_says(state: Path) -> None:
    odd: Any = "\ud83d\x00\x1b[2J </script>"
    put(state, "20260101-100000-aaaaaa", started(odd), finished())
    (summary,) = json.loads(run("sessions", "list", "--json").stdout)
    assert summary["issue"] == odd
