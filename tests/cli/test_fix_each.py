"""`m3agent fix --each` fixes several issues, and says at the end how each of them ended."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from m3agent.agent.fix.finalize import FixResult
from m3agent.agent.report.text import UNKNOWN
from m3agent.agent.session.session import Session
from m3agent.agent.settings.loader import load_settings
from m3agent.agent.settings.settings import Settings
from m3agent.agent.ui.event_printer import Screen
from m3agent.cli.each import Ended, check, fix_each, issues_of, kept_in, write_reports
from m3agent.util.append_only import AppendOnlyFile
from m3agent.util.errors import EXIT_CODES, Status, UsageError
from tests.agent.report.test_report_model import a_fix
from tests.agent.scripted import BUGGY, UNTESTED, Fixes, MakeRepo, wait_until_gone
from tests.command_line import command, run
from tests.conftest import one_kind
from tests.emulated_terminal import EmulatedTerminal
from tests.servers.misbehaving import Silence

Outcome = Status | BaseException
FixAll = Callable[..., int]


def no_query(_: str) -> list[str]:
    raise AssertionError


@pytest.fixture
def fix_all(tmp_path: Path) -> FixAll:
    """Return a function that fixes the issues of a text, which end as told, and returns the exit code."""

    def fix_all(text: str, outcomes: Mapping[str, Outcome], *reports: Path) -> int:
        async def fixing(spec: str) -> FixResult:
            outcome = outcomes[spec]
            if isinstance(outcome, BaseException):
                raise outcome
            code = EXIT_CODES[outcome]
            return FixResult(outcome, code, "", tmp_path / "sessions" / f"session-{spec}", None, None)

        def begin(spec: str) -> tuple[Coroutine[Any, Any, FixResult], Screen]:
            return fixing(spec), Screen()

        (tmp_path / "issues").write_text(text)
        named, specs = issues_of(str(tmp_path / "issues"), no_query)
        kept = kept_in(tmp_path, tmp_path, Settings(), [named])
        with pytest.raises((typer.Exit, KeyboardInterrupt)) as ended:
            fix_each(
                specs,
                begin,
                json_result=False,
                kept=kept,
                report=lambda end: write_reports(reports, tmp_path, end),
            )
        return ended.value.exit_code if isinstance(ended.value, typer.Exit) else 130

    return fix_all


def test_one_issue_after_the_other_with_a_table_and_the_largest_exit_code(
    fix_all: FixAll, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {"one.md": Status.VERIFIED, "#2": Status.LIMIT, "gone.md": UsageError("there is no gone.md")}
    assert fix_all("one.md\n\n  #2\ngone.md\n", outcomes) == 6
    assert capsys.readouterr().err.splitlines() == [
        "m3agent: issue 1 of 3: one.md",
        "m3agent: issue 2 of 3: #2",
        "m3agent: issue 3 of 3: gone.md",
        "m3agent: there is no gone.md",
        "status    exit  session         issue",
        "verified  0     session-one.md  one.md",
        "limit     6     session-#2      #2",
        f"error     2     {UNKNOWN}               gone.md",
    ]


def test_an_interruption_stops_all_and_the_results_follow(
    fix_all: FixAll, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outcomes = {"one": Status.VERIFIED, "two": asyncio.CancelledError()}
    report = tmp_path / "all.json"
    assert fix_all("one\ntwo\nthree", outcomes, report) == 130
    shown = capsys.readouterr().err
    assert "three" not in shown
    assert [line.split()[0] for line in shown.splitlines()[-4:-1]] == ["status", "verified", "interrupted"]
    assert [row["status"] for row in json.loads(report.read_bytes())] == ["verified", "interrupted"]


class Meeting:
    """Fixes of which two are at work at the same time. The third begins when one of the two has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.working: set[str] = set()
        self.most = 0
        self.met = asyncio.Event()

    def begin(self, spec: str) -> tuple[Coroutine[Any, Any, FixResult], Screen]:
        screen = Screen()
        return self._fix(spec, screen), screen

    async def _fix(self, spec: str, screen: Screen) -> FixResult:
        self.working.add(spec)
        self.most = max(self.most, len(self.working))
        with screen, contextlib.ExitStack() as ending:
            ending.callback(self.working.remove, spec)
            if len(self.working) == 2:
                self.met.set()
            await self.met.wait()
            screen.say(f"{spec} works")
            if spec == "broken":
                raise UsageError("it cannot be read")
            if spec == "stopped":
                raise asyncio.CancelledError
            if spec == "endless":
                await asyncio.Event().wait()
        return FixResult(Status.VERIFIED, 0, "", self.folder / "sessions" / f"session-{spec}", None, None)


@pytest.mark.usefixtures("unicode_locale")
@pytest.mark.parametrize(
    ("specs", "code", "statuses"),
    [
        (["one", "broken", "three"], 2, ["verified", "error", "verified"]),
        (["endless", "stopped", "three"], 130, ["interrupted", "interrupted"]),
    ],
)
def test_two_issues_at_a_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], specs: list[str], code: int, statuses: list[str]
) -> None:
    """An interruption ends those at work, and no other one begins."""
    meeting, reported = Meeting(tmp_path), list[Ended]()
    with pytest.raises((typer.Exit, KeyboardInterrupt)) as ended:
        fix_each(
            specs,
            meeting.begin,
            workers=2,
            json_result=False,
            kept=kept_in(tmp_path, tmp_path, Settings(), [specs]),
            report=reported.extend,
        )
    assert (ended.value.exit_code if isinstance(ended.value, typer.Exit) else 130) == code
    assert [end.status for end in reported] == statuses
    assert meeting.most == 2
    shown = capfd.readouterr().err.splitlines()
    assert shown[:2] == [f"m3agent: issue {number} of 3: {specs[number - 1]}" for number in (1, 2)]
    assert f"1│ note: {specs[0]} works" in shown
    if code == 2:
        assert "m3agent: issue 2 of 3 is error: 1 of 3 issues ended, 1 at work, 1 waiting" in shown
        assert "m3agent: it cannot be read" in shown


def test_what_came_to_an_end_is_not_fixed_again(
    fix_all: FixAll, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The results are on the disk before the next issue begins, so a kill loses none."""
    assert fix_all("one\ntwo\nthree", {"one": Status.FAILED, "two": Status.INTERRUPTED}) == 130
    (results,) = (tmp_path / "each").iterdir()
    damage = b'\0\0\n[1]\n{}\n["verified", "x", "y", "two"]\n["ver'  # and cut off in the middle of a line
    results.write_bytes(results.read_bytes() + damage)
    capsys.readouterr()
    assert fix_all("one\ntwo\nthree", {"two": Status.VERIFIED, "three": Status.VERIFIED}) == 1
    shown = capsys.readouterr().err.splitlines()
    assert shown[:2] == [
        "m3agent: 1 of 3 issues ended before and will not be fixed again",
        "m3agent: issue 2 of 3: two",
    ]
    assert [line.split()[:2] for line in shown[-3:]] == [
        ["failed", "1"],
        ["verified", "0"],
        ["verified", "0"],
    ]
    assert not [*(tmp_path / "each").iterdir()], "the next run begins anew"


def test_an_issue_that_met_an_error_is_fixed_again(
    fix_all: FixAll, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as without its model server: the person sees that, stops, starts it and gives the command again."""
    first = {
        "one": UsageError("odd"),
        "two": Status.VERIFIED,
        "three": Status.ERROR,
        "four": Status.INTERRUPTED,
    }
    assert fix_all("one\ntwo\nthree\nfour", first) == 130
    capsys.readouterr()
    now = {"one": Status.FAILED, "three": Status.VERIFIED, "four": Status.VERIFIED}
    assert fix_all("one\ntwo\nthree\nfour", now) == 1
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "m3agent: 1 of 4 issues ended before and will not be fixed again"
    assert [line.split()[-1] for line in shown[-4:]] == ["one", "two", "three", "four"]


def test_two_commands_do_not_fix_the_same_issues(fix_all: FixAll, tmp_path: Path) -> None:
    path = kept_in(tmp_path, tmp_path, Settings(), [["one"]])
    path.parent.mkdir()
    with (
        contextlib.closing(AppendOnlyFile(path)),
        pytest.raises(UsageError, match="another m3agent fix --each"),
    ):
        fix_all("one", {"one": Status.VERIFIED})


def test_the_issues_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\none\n"))
    assert issues_of("-", no_query) == (["one", "two", "one"], ["one", "two"])


def test_a_query_is_known_by_its_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are kept by the query, because the tracker may have other issues in the next run."""
    assert issues_of("crash label:bug", lambda text: [text]) == ("crash label:bug", ["crash label:bug"])
    monkeypatch.chdir(tmp_path)
    long, address = f"label:{'a' * 300}", "https://github.com/owner/repo/issues/1"
    assert issues_of(long, lambda text: [text]) == (long, [long])
    with pytest.raises(UsageError, match="cannot be read"):
        issues_of(address, no_query)
    Path("label:bug").write_text("one\n")
    assert issues_of("label:bug", no_query) == (["one"], ["one"])


@pytest.mark.parametrize("variable", ["M3AGENT_MAX_TURNS", "M3AGENT_MODEL", "M3AGENT_API_KEY"])
def test_other_settings_fix_the_issues_again(tmp_path: Path, variable: str) -> None:
    """Also if they come from a variable. A key changes no result."""

    def kept(env: dict[str, str]) -> Path:
        return kept_in(tmp_path, tmp_path, load_settings(tmp_path, {}, env).settings, [["one"], False])

    env = {"M3AGENT_ENDPOINT": "http://127.0.0.1:8000/v1"}
    assert kept(env) == kept(dict(env))
    assert (kept(env) == kept({**env, variable: "7"})) is (variable == "M3AGENT_API_KEY")


def test_a_report_that_failed_is_written_without_new_work(fix_all: FixAll, tmp_path: Path) -> None:
    folder, report = tmp_path / "reports", tmp_path / "all.json"
    outcomes = {"one": Status.VERIFIED, "two": Status.FAILED}
    with pytest.raises(UsageError):
        fix_all("one\ntwo", outcomes, folder / "all.json")
    assert fix_all("one\ntwo", {}, report) == 1
    assert [row["status"] for row in json.loads(report.read_bytes())] == ["verified", "failed"]
    assert fix_all("one\ntwo", outcomes) == 1, "the next run begins anew"


def test_one_report_about_all(fix_all: FixAll, tmp_path: Path) -> None:
    folder = tmp_path / "sessions" / "session-one"
    folder.mkdir(parents=True)
    session = Session(folder, [])
    for event in a_fix():
        session.write(event)
    session.close()
    page, table = tmp_path / "all.html", tmp_path / "all.json"
    assert fix_all("one\ntwo\n", {"one": Status.VERIFIED, "two": UsageError("no")}, page, table) == 2
    first, second = json.loads(table.read_bytes())
    assert (first["issue"], first["status"], first["exit"], first["session"]) == (
        "one",
        "verified",
        0,
        "session-one",
    )
    assert first["seconds"] > 0
    assert (second["issue"], second["session"], second["patch"]) == ("two", None, None)
    assert "<table" in page.read_text()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "cannot be read: it is not text"),
        (b" \n\n", "names no issue: write one on each line"),
    ],
)
def test_a_file_without_issues_is_refused(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "issues"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(UsageError, match=f"^--each {file} {reason}$"):
        issues_of(str(file), no_query)


@pytest.mark.parametrize(
    ("file", "issue", "reason"),
    [
        (None, None, "missing argument 'ISSUE'; see 'm3agent fix --help'."),
        (None, "text", "--most is for several issues: leave it away, or name them with --each"),
        ("f", "text", "--each names the issues: leave ISSUE away"),
        ("f", None, "--branch is for one issue: leave it or --each away"),
    ],
)
def test_an_unclear_command_line_is_refused(file: str | None, issue: str | None, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(file, issue, {"--attach": False, "--branch": True}, {"--most": True})
    assert str(refused.value) == reason


@pytest.mark.integration
def test_a_report_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    refused = run(
        "fix", "--each", "-", "--report", str(tmp_path / "no" / "all.html"), "--repo", str(tmp_path)
    )
    assert refused.returncode == 2
    assert f"--report {tmp_path}/no/all.html: there is no folder" in refused.stderr


def test_options_for_one_issue_do_not_matter_for_one_issue() -> None:
    check(None, "issue.md", {"--branch": True}, {"--most": False})
    check("f", None, {"--branch": False}, {"--most": True})


@pytest.mark.slow  # quick: test_an_interruption_stops_all_and_the_results_follow
@pytest.mark.usefixtures("unicode_locale")
@pytest.mark.integration
def test_ctrl_c_ends_all_that_are_at_work(fixes: Fixes, tmp_path: Path) -> None:
    """A terminal shows both, and how many wait."""
    (tmp_path / "issues").write_text("one\ntwo\nthree\n")
    where = ("--repo", str(fixes.repo(UNTESTED)), "--endpoint", fixes.model.url, "--sandbox", one_kind())
    words = ("fix", "--each", str(tmp_path / "issues"), "--workers", "2", *where)
    fixes.model.answers = [Silence(), Silence()]
    with EmulatedTerminal(command(*words), output_too=True) as terminal:
        terminal.until(lambda lines: any("3 issues ended, 2 at work, 1 waiting" in line for line in lines))
        fixes.model.wait_for_chats(2)
        terminal.until(lambda lines: any(line.startswith("2│ session") for line in lines))
        terminal.press(b"\x03")
        assert terminal.until_the_end() == 130
    assert sum(line.startswith("interrupted  130 ") for line in terminal.lines) == 2
    wait_until_gone(terminal.process.pid)
    wrong = run(*words, "--apply")
    assert (wrong.returncode, "--apply is for one issue at a time" in wrong.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("workers", ["1", "2"])
def test_two_issues_are_fixed_in_two_sessions(make_repo: MakeRepo, tmp_path: Path, workers: str) -> None:
    repo = make_repo(BUGGY)
    (tmp_path / "issues").write_text("add(2, 3) should be 5\nSums are wrong\n")
    where = ("--repo", str(repo), "--engine", "embedded", "--workers", workers)
    done = run("fix", "--each", str(tmp_path / "issues"), *where)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("diff --git a/calc.py") == 2
    head, *rows = done.stderr.splitlines()[-3:]
    assert head.split() == ["status", "exit", "session", "issue"]
    sessions = [row.split()[2] for row in rows]
    assert len(set(sessions)) == 2
    assert f"m3agent apply {sessions[0]}" in done.stderr
