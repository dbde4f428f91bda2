"""A run's page shows everything of a run, and nothing in a patch or in a test's name becomes active HTML."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.report import text
from m3agent.evals.data.results import Grade, TestCount, Verdict
from m3agent.evals.data.run_folder import RunFolder
from m3agent.evals.report import page as page_module
from m3agent.evals.report.counting import Tally, tally_of
from m3agent.evals.report.model import RunReport, compare, report_of
from m3agent.evals.report.page import (
    MOST_FAILED,
    MOST_PATCH,
    histogram,
    render,
    rows,
    verdict_bars,
    write_sessions,
)
from tests.agent.report.test_report_model import Write, a_fix, write
from tests.agent.report.test_report_page import CHROMIUM, HOSTILE, Page, asked, browse
from tests.evals.report.made import official, result, run_folder

__all__ = ["asked", "write"]  # fixtures


def hostile_run(path: Path, planted: str) -> tuple[RunFolder, RunReport]:
    """Write a run that has the text `planted` in every field that others control."""
    grade = Grade(
        verdict=Verdict.UNRESOLVED,
        fail_to_pass=TestCount(passed=1, failed=(planted, "b")),
        pass_to_pass=TestCount(passed=1, failed=(planted,)),
        undone=(planted,),
        forged=(planted,),
    )
    bad = result(
        "o__a-1", "unresolved", reason=planted, status=planted, grade=grade, stalls={planted: 1},
        session=planted.replace("\x00", ""), official=official(True),
    )  # fmt: skip
    folder = run_folder(
        path, [bad, result("o__a-2"), result("o__a-3", "invalid", reason=planted)], agent=planted, data=planted,
        command=(planted,), settings={planted: planted}, timeouts={planted: 5.0},
        patches={"o__a-1": f"--- a/x\n+++ b/{planted}\n@@ -1 +1 @@ {planted}\n-{planted}\n+x\n".encode(errors="replace")},
    )  # fmt: skip
    kept = tally_of(folder)
    repos = dict.fromkeys(kept.instances, planted)
    return folder, report_of(Tally(folder.config, repos, kept.results.values()))


def page_of(folder: RunFolder) -> str:
    report = report_of(tally_of(folder))
    return render(report, rows(folder, report, {}))


def test_a_page_holds_all_of_a_run(tmp_path: Path) -> None:
    grade = Grade(
        verdict=Verdict.UNRESOLVED,
        fail_to_pass=TestCount(passed=1, failed=("test_lane.py::test_long",)),
        pass_to_pass=TestCount(passed=7, failed=("test_deck.py::test_old",)),
        undone=("tests/conftest.py",),
        forged=("the plugin was replaced",),
    )
    results = [
        result("o__a-1", official=official(True)),
        result("o__a-2", "unresolved", grade=grade, reason="1 of 2 tests fails", official=official(True)),
        result("o__b-1", "invalid", reason="the reference fails"),
    ]
    folder = run_folder(tmp_path / "run", results, timeouts={"agent": 90.0})
    other = run_folder(tmp_path / "other", [result("o__a-1", "empty"), result("o__a-2", "empty")])
    tally = tally_of(folder)
    report = report_of(tally)
    found = Page(render(report, rows(folder, report, {}), compare(tally, tally_of(other))))
    for said in (
        "m3agent 0.1.0 on 3 instances of 2 repositories", "50.0% resolved", "9.5% to 90.5%", "$0.0200", "80.0%",
        "1 of 2 tests fails", "put back tests/conftest.py", "forged the plugin was replaced", "test_lane.py::test_long",
        "test_deck.py::test_old", "a <= b", "1/2", "7/8", "the reference fails", "Compared with m3agent 0.1.0",
        "exact McNemar: p = 1", "+50.0 points", "vllm", "da7a", "1 min 30 s", "all, invalid ones as not resolved",
    ):  # fmt: skip
        assert said in found.text, said
    assert found.links == ["data:,"]


def test_failures_come_before_resolved_attempts(tmp_path: Path) -> None:
    results = [result("o__a-1"), result("o__a-2", "unresolved"), result("o__a-3", "error"), result("o__a-4")]
    page = page_of(run_folder(tmp_path / "run", results))
    assert re.findall(r'<td><span class="status \w+">(\w+)</span>', page) == [
        "error", "unresolved", "resolved", "resolved",
    ]  # fmt: skip


def test_an_incomplete_run_says_so_before_any_rate(tmp_path: Path) -> None:
    page = page_of(
        run_folder(tmp_path / "run", [result("o__a-1"), result("o__a-2", "infra")], instances=["o__a-3"])
    )
    found = Page(page).text
    assert found.strip().startswith("incomplete: 33.3% to 100.0% resolved"), "the title"
    told = "2 of 3 attempts have no result, 1 of them because the machine or the model server failed"
    assert found.index("Incomplete") < found.index(told) < found.rindex("33.3% to 100.0% resolved")


def test_hostile_texts_are_shown_and_do_nothing(tmp_path: Path) -> None:
    folder, report = hostile_run(tmp_path / "run", HOSTILE.replace("\ud83d", "").replace("\udcff", ""))
    page = render(report, rows(folder, report, {}))
    found = Page(page)
    assert found.text.count("<img src=x onerror=") > 12
    assert found.links == ["data:,"]
    assert not text.INVISIBLE.search(page)
    page.encode()


@given(planted=st.text(max_size=40).filter(lambda t: t.encode(errors="replace").decode() == t))
def test_no_text_becomes_markup(tmp_path_factory: pytest.TempPathFactory, planted: str) -> None:
    folder, report = hostile_run(tmp_path_factory.mktemp("runs") / "run", f"<b>{planted}")
    page = render(report, rows(folder, report, {}))
    Page(page)
    assert not text.INVISIBLE.search(page)


def test_long_patches_and_many_tests_are_cut_and_say_where_the_rest_is(tmp_path: Path) -> None:
    failed = tuple(f"test_{n}" for n in range(MOST_FAILED + 5))
    grade = Grade(verdict=Verdict.UNRESOLVED, fail_to_pass=TestCount(passed=0, failed=failed))
    patch = b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n" + b"+<\n" * 10_000
    folder = run_folder(
        tmp_path / "run", [result("o__a-1", "unresolved", grade=grade)], patches={"o__a-1": patch}
    )
    found = Page(page_of(folder)).text
    left = len(patch) - MOST_PATCH
    assert f"{left:,} more characters are in attempts/o__a-1/1/patch.diff" in found
    assert "5 more are in result.json" in found


def test_a_patch_that_is_gone_does_not_stop_the_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [result("o__a-1")])
    (folder.attempt("o__a-1", 1) / "patch.diff").unlink()
    assert "100.0% resolved" in Page(page_of(folder)).text


def with_session(folder: RunFolder, ident: str, session: Path) -> None:
    session.rename(folder.attempt(ident, 1) / "session")


def test_each_session_has_a_page_and_a_link_to_it(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [
        result("o__a-1", session="attempts/o__a-1/1/session"),
        result("o__a-2", "unresolved", session="attempts/o__a-2/1/session"),
        result("o__a-3"),
    ]
    folder = run_folder(tmp_path / "run", results)
    with_session(folder, "o__a-1", write(*a_fix()))
    report = report_of(tally_of(folder))
    page = tmp_path / "a report #1.html"
    said: list[str] = []
    sessions = write_sessions(folder, report, page, said.append)
    assert said == []
    monkeypatch.setattr(page_module, "_SAY_EVERY", -1.0)
    assert write_sessions(folder, report, page, said.append) == sessions
    assert said == ["1 of 2 sessions' pages are written", "2 of 2 sessions' pages are written"]
    found = Page(render(report, rows(folder, report, sessions)))
    assert found.links == ["data:,", "a%20report%20%231_files/o__a-1-1.html"]
    assert "No session's page: the session's log does not exist" in found.text
    session = (tmp_path / "a report #1_files" / "o__a-1-1.html").read_text()
    assert "The manifest shows 6.0 m free" in Page(session).text


@pytest.mark.parametrize("session", ["../secret", "absolute", "attempts/../../secret", "link"])
def test_a_session_outside_the_run_is_not_read(tmp_path: Path, write: Write, session: str) -> None:
    secret = tmp_path / "secret"
    write(*a_fix()).rename(secret)
    named = str(secret) if session == "absolute" else session
    folder = run_folder(tmp_path / "run", [result("o__a-1", session=named)])
    (folder.path / "link").symlink_to(secret)
    report = report_of(tally_of(folder))
    sessions = write_sessions(folder, report, tmp_path / "report.html", print)
    assert "outside the run's folder" in sessions["o__a-1", 1].problem
    assert not (tmp_path / "report_files").exists()


def test_damaged_log_is_noted(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [result("o__a-1", session="attempts/o__a-1/1/session")])
    log = folder.attempt("o__a-1", 1) / "session"
    log.mkdir()
    (log / "events.jsonl").write_text("no event\n")
    report = report_of(tally_of(folder))
    sessions = write_sessions(folder, report, tmp_path / "report.html", print)
    assert "the log is damaged" in sessions["o__a-1", 1].problem


def widths(drawn: str, name: str) -> list[float]:
    return [float(width) for width in re.findall(rf'<rect class="{name}"[^>]*width="([\d.]+)"', drawn)]


def test_bars_are_in_proportion_to_attempts() -> None:
    drawn = str(
        verdict_bars([("o/a", {Verdict.RESOLVED: 6, Verdict.EMPTY: 3}), ("o/<b>", {Verdict.EMPTY: 1})])
    )
    (resolved,) = widths(drawn, "resolved")
    assert widths(drawn, "empty") == [
        pytest.approx(resolved / 2, abs=0.2),
        pytest.approx(resolved / 6, abs=0.2),
    ]
    assert "<title>o/&lt;b&gt;: 1 empty</title>" in drawn
    assert verdict_bars([("o/a", {})]) == ""


def test_a_histogram_counts_each_attempt_once() -> None:
    drawn = str(histogram("tokens", [0, 5, 100], [100, 99.9], text.short_count))
    told = [(int(a), int(b)) for a, b in re.findall(r"(\d+) resolved, (\d+) not", drawn)]
    assert told == [(2, 0), (0, 1), (1, 1)]
    assert histogram("tokens", [], [], text.short_count) == ""


@given(st.lists(st.floats(0, 1e12), max_size=40), st.lists(st.floats(0, 1e12), max_size=40))
def test_a_histogram_stays_in_its_frame(resolved: list[float], others: list[float]) -> None:
    drawn = str(histogram("time", resolved, others, text.duration, smallest=0.1))
    for x, y, width, height in re.findall(
        r'x="([\d.-]+)" y="([\d.-]+)" width="([\d.]+)" height="([\d.]+)"/>', drawn
    ):
        assert float(x) >= 61
        assert float(x) + float(width) <= 747
        assert float(y) >= 39
        assert float(y) + float(height) <= 171
    told = re.findall(r"([\d,]+) resolved, ([\d,]+) not", drawn)
    assert sum(int(good) for good, _ in told) == len(resolved)
    assert sum(int(bad) for _, bad in told) == len(others)
    assert "nan" not in drawn


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_runs_nothing_of_it_and_asks_for_nothing(
    tmp_path: Path, asked: tuple[str, list[str]]
) -> None:
    url, paths = asked
    live = (
        f"<img src='{url}/img'><script>document.title='owned'; console.error('ran')</script>"
        f"<link rel=stylesheet href='{url}/link'><iframe src='{url}/frame'></iframe><style>@import '{url}/i';</style>"
    )
    folder, report = hostile_run(tmp_path / "run", live)
    page = tmp_path / "report.html"
    page.write_bytes(render(report, rows(folder, report, {})).encode())
    elements, logged = browse(page, tmp_path / "profile")
    assert logged == "", "neither an error nor a refused request"
    assert paths == []
    assert not re.search(r"<(img|script|iframe|object|embed|form|input|video|audio)\b", elements)
    assert html.escape(live, quote=False) in elements, "the markup is there, as text"
