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
from rich.text import Text
from typer.testing import CliRunner, Result

from m3agent.agent.repo.host_git import HostGit
from m3agent.agent.report.write import write_page
from m3agent.agent.session import catalog, events
from m3agent.agent.session.catalog import Sessions, sessions_of, summary_of
from m3agent.agent.session.events import Event
from m3agent.agent.session.log_reader import LOG
from m3agent.agent.session.session import Session
from m3agent.agent.ui import result as results
from m3agent.cli import sessions
from m3agent.cli.app import app
from m3agent.util.errors import EnvironmentFault, UsageError
from tests.agent.report.test_report_model import PATCH, a_fix, finished, message, started, turn_started
from tests.agent.scripted import MakeRepo
from tests.agent.session.an_event import an_event
from tests.conftest import git
from tests.tools.small_disk import fill, small_disk

pytestmark = pytest.mark.usefixtures("unicode_locale")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def state(own_state: Path) -> Path:
    return own_state / "state"


@pytest.fixture(autouse=True)
def ferry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run in the repository that the sessions of these tests are about."""
    if "make_repo" not in request.fixturenames:
        there = HostGit("/home/dev/ferry", "/home/dev/ferry/.git", "/home/dev/ferry/.git", "/home/dev/ferry")
        monkeypatch.setattr(catalog, "find_repository", lambda _: there)


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


def test_a_list_ends_with_the_newest(three: Path) -> None:
    lines = run("sessions", "list").stdout.splitlines()
    assert re.split(r"\s{2,}", lines[0]) == [
        "ID", "WHEN", "STATUS", "REPOSITORY", "TURNS", "PRICE", "SIZE", "REASON", "ISSUE",
    ]  # fmt: skip
    cells = [re.split(r"\s{2,}", line) for line in lines[1:]]
    assert [row[0][-6:] for row in cells] == ["aaaaaa", "bbbbbb", "cccccc"]
    assert [row[1] for row in cells] == ["just now"] * 3
    assert [row[2] for row in cells] == ["verified", "not finished", "failed"]
    assert [row[4] for row in cells] == ["6", "6", "1"]
    assert [row[5] for row in cells] == ["$0.0731", "–", "–"]  # noqa: RUF001
    assert cells[2][8] == "Fares are [31mwrong", "what drives a terminal is not printed"


def test_a_list_of_sessions_without_a_price_has_no_prices(state: Path) -> None:
    put(state, "20260101-100000-aaaaaa", started(), finished("failed", price=0, turns=1))
    put(state, "20260101-110000-bbbbbb", started(), finished("failed", price=None, turns=1))
    assert "PRICE" not in run("sessions", "list").stdout


def test_a_list_has_the_last_twenty(state: Path) -> None:
    for number in range(23):
        put(state, f"20260101-1000{number:02}-aaaaaa", *a_fix())
    shown = run("sessions", "list")
    assert len(shown.stdout.splitlines()) == 1 + 20
    assert shown.stdout.splitlines()[-1].startswith("20260101-100022")
    assert shown.stderr == "m3agent: 3 earlier sessions are not shown: -n 0 lists all\n"
    assert len(run("sessions", "list", "-n", "0").stdout.splitlines()) == 1 + 23
    assert len(run("sessions", "list", "-n", "2").stdout.splitlines()) == 1 + 2
    assert len(json.loads(run("sessions", "list", "--json").stdout)) == 23
    assert len(json.loads(run("sessions", "list", "--json", "-n", "2").stdout)) == 2


@pytest.mark.parametrize(("width", "wanted"), [(40, ["ID", "STATUS"]), (50, ["ID", "WHEN", "STATUS"])])
@pytest.mark.parametrize("options", [(), ("--all",)])
def test_a_very_narrow_list_has_whole_statuses(
    three: Path, monkeypatch: pytest.MonkeyPatch, width: int, wanted: list[str], options: tuple[str, ...]
) -> None:
    printed: list[Text] = []
    monkeypatch.setattr(sessions, "columns_of", lambda _: width)
    monkeypatch.setattr(results, "print_result", printed.append)
    result = run("sessions", "list", *options)
    head, *rows = printed[0].plain.splitlines()
    assert max(map(len, (head, *rows))) <= width
    for row, status in zip(rows, ("verified", "not finished", "failed"), strict=True):
        assert f"  {status}" in row
    in_green = [
        printed[0].plain[each.start : each.end] for each in printed[0].spans if "green" in str(each.style)
    ]
    assert in_green == ["verified"]
    assert "ISSUE: `m3agent sessions show ID` has them" in result.stderr
    if not options:
        assert head.split() == wanted


@pytest.mark.parametrize("width", [30, 70])
def test_a_narrow_list_has_what_tells_most(three: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(sessions, "columns_of", lambda _: width)
    result = run("sessions", "list")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) == width
    assert result.stderr.startswith("m3agent: too narrow for ")
    last = "REASON" if width == 70 else "ISSUE"
    assert f"{last}: `m3agent sessions show ID` has them" in result.stderr
    if width == 70:
        assert lines[0].split() == ["ID", "WHEN", "STATUS", "ISSUE"]
        assert lines[1].startswith("20260101-100000-aaaaaa  just now  verified      The last van stays")
        assert lines[1].endswith("…")


def test_a_narrow_list_of_all_repositories_names_them(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "columns_of", lambda _: 80)
    lines = run("sessions", "list", "--all").stdout.splitlines()
    assert lines[0].split() == ["ID", "WHEN", "STATUS", "REPOSITORY", "ISSUE"]
    assert max(map(len, lines)) <= 80


def test_statuses_in_a_list_have_the_colours_of_a_fix(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Text] = []
    monkeypatch.setattr(results, "print_result", printed.append)
    run("sessions", "list")
    [text] = printed
    styles = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert (styles["verified"], styles["failed"], styles["not finished"]) == ("green", "red", "yellow")
    assert styles["20260101-100000-aaaaaa  "] == "bold cyan"


def test_a_fork_says_of_what_and_when(state: Path) -> None:
    first = put(state, "20260101-100000-aaaaaa", *a_fix())
    copied = [json.loads(line) for line in (first / LOG).read_text().splitlines()]
    for number, line in enumerate(copied):
        line["ts"] = "2026-01-01T10:00:00.000Z" if number == 0 else line["ts"]
    forked = {
        **copied[0],
        "ts": "2026-01-02T11:00:00.000Z",
        "type": "session.forked",
        "source": first.name,
        "turn": 3,
    }
    folder = put(state, "20260102-110000-bbbbbb", *a_fix())
    lines = [*copied[:-1], forked, copied[-1]]
    (folder / LOG).write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    told = "fork of 20260101-100000-aaaaaa after turn 3"
    shown = run("sessions", "list").stdout.splitlines()
    assert [line.strip() for line in shown if "fork" in line] == [told]
    assert shown[-1].strip() == told, "below its own row"
    details = run("sessions", "show", "last").stdout.splitlines()
    assert "started     2026-01-02 11:00:00 UTC" in details, "not when the first session started"
    assert "forked      of 20260101-100000-aaaaaa after turn 3" in details


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


@pytest.mark.parametrize(
    ("source", "flavour", "tokens"),
    [("embedded", "embedded", None), ("named", "embedded", None), ("named", "vllm", 2_490_900)],
)
@pytest.mark.parametrize("is_over", [True, False])
def test_only_a_language_model_has_tokens(
    state: Path, source: str, flavour: str, tokens: int | None, is_over: bool
) -> None:
    """Another process may serve the embedded engine: only its answer to the first request tells."""
    begun = started(endpoint={"url": "", "description": "", "source": source})
    probed = an_event(events.EndpointProbed, flavour=flavour)
    later = an_event(events.EndpointProbed, flavour="embedded")
    end = [turn_started(1), message(1), later, finished()]
    put(state, "20260101-100000-aaaaaa", begun, probed, *(end if is_over else ()))
    [summary] = json.loads(run("sessions", "list", "--json").stdout)
    used = tokens if is_over else None
    assert summary["prompt_tokens"] == used
    assert [summary[f"{name}_tokens"] is None for name in ("cached", "completion")] == [used is None] * 2
    assert ("tokens " in run("sessions", "show").stdout) == (used is not None)


def test_a_patch_on_uncommitted_changes_is_for_git(state: Path) -> None:
    """`m3agent apply` refuses it; the next step is the same as at the end of the fix."""
    folder = put(
        state, "20260101-100000-aaaaaa", started(), finished("verified", uncommitted=("a.py",)), patch=PATCH
    )
    shown = run("sessions", "show").stdout
    assert shown.splitlines()[-1] == (
        f"next        git -C /home/dev/ferry apply {shlex.quote(str(folder / 'patch.diff'))} (m3agent apply does not write over uncommitted changes)"
    )


def test_a_session_that_never_began_is_not_listed(state: Path) -> None:
    """It was interrupted while the sandbox was chosen: its log does not even have the issue."""
    put(state, "20260101-100000-aaaaaa", *a_fix())
    put(state, "20260101-110000-bbbbbb", finished("interrupted", turns=0))
    put(state, "20260101-120000-cccccc")
    [summary] = json.loads(run("sessions", "list", "--json").stdout)
    assert summary["id"] == "20260101-100000-aaaaaa"
    assert json.loads(run("sessions", "show", "--json").stdout)["id"] == "20260101-100000-aaaaaa"
    assert json.loads(run("sessions", "show", "20260101-11", "--json").stdout)["status"] == "interrupted"
    assert "resume" not in run("sessions", "show", "20260101-11").stdout, "there is nothing to resume"


def test_notes_on_the_patch_are_shown(state: Path) -> None:
    """A patch that is on a branch already, for example."""
    note = "committed to branch fix as 99c4d057aa1e"
    put(state, "20260101-100000-aaaaaa", started(), finished("verified", notes=[note]), patch=PATCH)
    shown = dict(line.split(None, 1) for line in run("sessions", "show").stdout.splitlines())
    assert shown["notes"] == note
    assert shown["next"].endswith("(writes the patch into the work tree, unless it is there)")


def test_without_sessions_there_is_a_sentence_and_no_table(state: Path) -> None:
    result = run("sessions", "list")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "",
        "m3agent: there are no sessions yet about /home/dev/ferry\n",
    )
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
    (three / "sessions" / "20260104-100000-eeeeee" / LOG).mkdir(parents=True)
    (three / "sessions" / "20260105-100000-ffffff").mkdir()  # a detached fix that begins, or was refused
    (three / "sessions" / "a-file").write_text("no session")
    result = run("sessions", "list")
    assert result.exit_code == 0
    assert result.stdout.count("damaged") == 2
    assert len(result.stdout.splitlines()) == 1 + 5
    assert f"{folder / LOG}, line 6: this is not an event" in result.stderr
    assert "ffffff" not in result.stdout
    shown = run("sessions", "show", "20260103")
    assert (shown.exit_code, shown.stdout) == (2, "")


@pytest.mark.parametrize("name", ["last", "20260102", "20260102-100000-cccccc"])
def test_a_session_is_shown_by_any_name_of_it(three: Path, name: str) -> None:
    shown = dict(line.split(None, 1) for line in run("sessions", "show", name).stdout.splitlines())
    assert shown["id"] == "20260102-100000-cccccc"
    assert shown["status"] == "failed"
    assert shown["next"] == f"m3agent report {shown['id']}"
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
    assert Sessions(state).find("20260101-100000-aa").name == "20260101-100000-aa"


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
    assert result.stderr == f"m3agent: wrote {page} ({page.stat().st_size / 1000:,.0f} kB): {page.as_uri()}\n"
    assert "The last van stays on the quay" in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    first = page.read_bytes()
    assert run("report", "last", "-o", str(page)).exit_code == 0
    assert page.read_bytes() != first, "an earlier report is written over"


def test_a_report_has_a_file_of_its_own(three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    result = run("report")
    assert (result.exit_code, result.stdout) == (0, "")
    assert [path.name for path in folder.iterdir()] == ["m3agent-report.html"]
    address = result.stderr.rpartition(" ")[2].strip()
    assert address == (folder / "m3agent-report.html").as_uri()


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
        Sessions(state).list()


def test_json_stays_json_whatever_the_issue_says(state: Path) -> None:
    odd: Any = "\ud83d\x00\x1b[2J </script>"
    put(state, "20260101-100000-aaaaaa", started(odd), finished())
    (summary,) = json.loads(run("sessions", "list", "--json").stdout)
    assert summary["issue"] == odd


def about(root: Path, git_dir: Path | None = None) -> events.SessionStarted:
    return started(repository={"root": str(root), "git_dir": str(git_dir or root / ".git")})


MINE, OTHERS = "20260101-100000-aaaaaa", "20260102-100000-bbbbbb"


@pytest.fixture
def two(state: Path, make_repo: MakeRepo, tmp_path: Path) -> Path:
    """Return a repository with the older of two sessions. The newer one is about another repository."""
    repo = make_repo({"pkg/a.py": "a = 1\n"})
    put(state, MINE, about(repo), finished("failed"))
    put(state, OTHERS, about(tmp_path / "other"), finished("failed"))
    return repo


def test_last_is_the_last_session_of_this_repository(two: Path, state: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(two, "worktree", "add", "-q", str(linked))
    for folder in (two, two / "pkg", linked):
        assert sessions_of(state, folder).find("last").name == MINE
        assert [each.name for each in sessions_of(state, folder).folders()] == [MINE]
    there = put(state, "20260103-100000-cccccc", about(linked, two / ".git" / "worktrees" / "linked"))
    assert sessions_of(state, two).find("last") == there
    assert sessions_of(state, two, every=True).find(OTHERS).name == OTHERS


@pytest.mark.parametrize(
    ("source", "status"),
    [("question", "answered"), ("question", "limit"), ("question", None), ("acp", "answered")],
)
def test_the_last_fix_is_no_question(two: Path, state: Path, source: str, status: str | None) -> None:
    ends = [finished(status, patch=None, paths=[])] if status else []
    asked = about(two)
    asked.issue["source"] = source
    question = put(state, "20260103-100000-cccccc", asked, *ends)
    assert sessions_of(state, two).find("last", fixes=True).name == MINE
    assert sessions_of(state, two).find("last") == question
    assert sessions_of(state, two).find("20260103", fixes=True) == question


def test_an_issue_in_a_file_named_question_is_a_fix(two: Path, state: Path) -> None:
    asked = about(two)
    asked.issue["source"] = "question"
    fix = put(state, "20260103-100000-cccccc", asked, finished("failed"))
    assert sessions_of(state, two).find("last", fixes=True) == fix


def test_an_id_of_another_repository_is_refused_unless_it_is_named(
    two: Path, state: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    refusal = f"session {OTHERS} is about {other}, and this is {two}: name its repository with --repo"
    for name in (OTHERS, OTHERS[:8]):
        with pytest.raises(UsageError) as refused:
            sessions_of(state, two).find(name)
        assert str(refused.value) == refusal
    other.mkdir()
    git(other, "init", "-q")
    assert sessions_of(state, other).find(OTHERS).name == OTHERS


def test_outside_a_repository_any_id_but_no_last_is_meant(two: Path, state: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    assert sessions_of(state, outside).find(OTHERS).name == OTHERS
    with pytest.raises(UsageError, match=f"there is no session about {outside}: "):
        sessions_of(state, outside).find("last")
    plain = put(state, "20260103-100000-cccccc", about(outside, state / "plain-folders" / "x.git"))
    assert sessions_of(state, outside).find("last") == plain


def test_views_outside_a_repository_show_all_and_say_so(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = run("sessions", "list")
    assert (MINE in listed.stdout, OTHERS in listed.stdout) == (True, True)
    assert listed.stderr == (
        f"m3agent: {tmp_path} is in no git repository: the sessions of all repositories count\n"
    )
    monkeypatch.chdir(two)
    assert OTHERS not in run("sessions", "list").stdout
    assert OTHERS in run("sessions", "list", "--all").stdout
    assert run("sessions", "show", OTHERS).exit_code == 2
    assert (
        f"report {OTHERS} --repo {shlex.quote(str(tmp_path / 'other'))}"
        in run("sessions", "show", OTHERS, "--all").stdout
    )


def test_a_folder_that_does_not_exist_is_refused(state: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        sessions_of(state, tmp_path / "nowhere")
