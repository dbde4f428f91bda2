"""The model of a report: which attempts count, what is unknown, and how two runs are compared."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.evals.data.results import AttemptUsage, Grade, TestCount, Verdict
from m3agent.evals.report import wording
from m3agent.evals.report.counting import Tally, tally_of
from m3agent.evals.report.exports import as_json, junit, official_report
from m3agent.evals.report.model import compare, report_of
from m3agent.evals.report.page import render, rows
from m3agent.evals.report.table import table
from m3agent.util.errors import UsageError
from tests.evals.report.made import config, official, repo_of, result, run_folder, tally, worst

VERDICTS = st.sampled_from(list(Verdict))


def test_invalid_instances_are_left_out_of_the_rate_and_counted_apart() -> None:
    results = [
        result("o__a-1"),
        result("o__a-2", "unresolved"),
        result("o__b-1", "invalid"),
        result("o__b-2"),
    ]
    report = report_of(tally(results))
    assert report.invalid == ("o__b-1",)
    assert [worst(report.score), worst(report.over_all)] == pytest.approx([2 / 3, 2 / 4])
    assert (report.score.instances, report.over_all.instances) == (3, 4)
    assert report.complete


@pytest.mark.parametrize("verdict", ["empty", "error", "timeout", "unresolved"])
def test_every_way_to_fail_counts_against_the_agent(verdict: str) -> None:
    assert worst(report_of(tally([result("o__a-1"), result("o__a-2", verdict)])).score) == 0.5


def test_what_is_missing_or_infra_makes_a_range() -> None:
    results = [result("o__a-1"), result("o__a-2", "unresolved"), result("o__a-3", "infra")]
    report = report_of(tally(results, "o__a-4"))
    assert (report.missing, report.complete) == ((("o__a-3", 1), ("o__a-4", 1)), False)
    assert report.score.best is not None
    assert (worst(report.score), report.score.best.value) == (0.25, 0.75)
    assert report.used.attempts == 2, "an attempt that infra ended says nothing of costs"


def test_instance_with_some_invalid_attempts_is_left_out_with_a_note() -> None:
    results = [result("o__a-1", "invalid"), result("o__a-1", "resolved", 2)]
    report = report_of(tally([*results, *(result("o__a-2", attempt=n) for n in (1, 2))], attempts=2))
    assert report.invalid == ("o__a-1",)
    assert report.notes == ("o__a-1 is left out as invalid, though some of its attempts could be graded",)


def test_several_attempts_give_rates_and_pass_at_k() -> None:
    results = [result("o__a-1", "resolved" if n < 3 else "unresolved", n) for n in (1, 2, 3, 4)]
    results += [result("o__b-1", "unresolved", n) for n in (1, 2, 3, 4)]
    found = report_of(tally(results, attempts=4))
    assert worst(found.score) == 0.25
    assert [row.k for row in found.pass_k] == [1, 2, 3, 4]
    assert [row.one.value for row in found.pass_k] == pytest.approx([1 / 4, (1 - 1 / 6) / 2, 1 / 2, 1 / 2])
    assert [row.all_of.value for row in found.pass_k] == pytest.approx([1 / 4, 1 / 12, 0, 0])


def test_of_very_many_attempts_some_k_are_shown() -> None:
    found = report_of(tally([result("o__a-1", attempt=n) for n in range(1, 21)], attempts=20))
    assert [row.k for row in found.pass_k] == [*range(1, 11), 16, 20]


def test_unknown_amounts_are_unknown_and_not_0() -> None:
    known = AttemptUsage(turns=2, prompt_tokens=100, cached_tokens=40, completion_tokens=10, cost=0.5)
    results = [
        result("o__a-1", usage=known),
        result("o__a-2", "unresolved", usage=AttemptUsage(prompt_tokens=900)),
        result("o__a-3", usage=known.model_copy(update={"cost": 1.5})),
    ]
    used = report_of(tally(results)).used
    assert (used.cost.total, used.cost.known, used.cost.unknown, used.cost.per_resolved) == (2.0, 2, 1, 1.0)
    assert (used.cost.mean, used.cost.median, used.cost.largest) == (1.0, 1.0, 1.5)
    assert (used.tokens.total, used.tokens.unknown) == (220, 1)
    assert (used.cache.share, used.cache.known, used.cache.unknown) == (0.4, 2, 1)
    assert (used.reasoning_tokens.total, used.reasoning_tokens.unknown) == (None, 3)
    assert "$2.00 in all" in table(report_of(tally(results)))
    assert "at least $2.00 in all" in table(report_of(tally(results)))


def test_nothing_resolved_has_no_price() -> None:
    assert report_of(tally([result("o__a-1", "unresolved")])).used.cost.per_resolved is None


def test_stalls_are_counted_where_there_is_a_log() -> None:
    results = [
        result("o__a-1", stalls={"cycle": 2, "chant": 1}, session="s"),
        result("o__a-2", stalls={"cycle": 1}, session="s"),
        result("o__a-3", stalls={}, session="s"),
        result("o__a-4", stalls={}),
    ]
    stalls = report_of(tally(results)).used.stalls
    assert stalls.kinds == {"chant": (1, 1), "cycle": (3, 2)}
    assert (stalls.attempts, stalls.known, stalls.unknown) == (2, 3, 1)


def test_our_grading_is_put_beside_the_official_one() -> None:
    results = [
        result("o__a-1", official=official(True)),
        result("o__a-2", "unresolved", official=official(True)),
        result("o__a-3", "unresolved", official=official(False)),
        result("o__a-4", official=official(False)),
        result("o__a-5", official=official(None)),
        result("o__a-6", "empty"),
    ]
    found = report_of(tally(results)).agreement
    assert found is not None
    assert (found.both, found.neither, found.unknown) == (1, 1, 1)
    assert (found.only_strict, found.only_official) == (("o__a-4",), ("o__a-2",))
    assert report_of(tally([result("o__a-1")])).agreement is None


def test_failures_come_first() -> None:
    results = [result(f"o__a-{n}", verdict) for n, verdict in enumerate(Verdict)]
    order = [one.verdict.value for one in report_of(tally(results)).results]
    assert order == ["error", "timeout", "empty", "unresolved", "infra", "invalid", "resolved"]


def test_each_repository_has_its_part() -> None:
    verdicts = {"o__b-1": "resolved", "o__a-1": "unresolved", "o__b-2": "invalid", "o__b-3": "timeout"}
    first, second = report_of(tally([result(*each) for each in verdicts.items()])).repositories
    assert (first.name, second.name) == ("o/a", "o/b")
    assert (second.score.resolved, second.score.instances, second.invalid) == (1, 2, 1)
    assert (second.verdicts[Verdict.TIMEOUT], sum(second.verdicts.values())) == (1, 3)
    assert second.used.attempts == 2


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 9), VERDICTS, st.floats(0, 10)), min_size=1, max_size=12, unique_by=lambda x: x[0]),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_the_order_of_results_changes_no_byte(
    given: list[tuple[int, Verdict, float]], shuffle: random.Random
) -> None:
    results = [
        result(f"o__{'ab'[n % 2]}-{n}", verdict, usage=AttemptUsage(cost=cost)) for n, verdict, cost in given
    ]
    again = list(results)
    shuffle.shuffle(again)
    idents = sorted(one.instance_id for one in results)
    made = [
        Tally(config(idents), {ident: repo_of(ident) for ident in idents}, some) for some in (results, again)
    ]
    first, second = (report_of(one) for one in made)
    assert as_json(first, compare(made[0], made[1])) == as_json(second, compare(made[1], made[0]))
    assert table(first) == table(second)
    assert junit(first) == junit(second)
    assert official_report(first.config, results) == official_report(first.config, again)
    assert render(first, []) == render(second, [])


def test_two_runs_are_compared_over_what_both_have() -> None:
    ours = {"o__a-1": "resolved", "o__a-2": "resolved", "o__a-3": "unresolved", "o__a-4": "resolved"}
    theirs = {"o__a-1": "resolved", "o__a-2": "empty", "o__a-3": "resolved", "o__a-4": "invalid"}
    here = tally([result(*each) for each in (ours | {"o__b-1": "resolved"}).items()])
    there = tally([result(*each) for each in (theirs | {"o__b-2": "resolved"}).items()], data="0ther")
    comparison = compare(here, there)
    assert (comparison.won, comparison.lost, comparison.left_out) == (("o__a-2",), ("o__a-3",), ("o__a-4",))
    assert (comparison.only_here, comparison.only_there) == (("o__b-1",), ("o__b-2",))
    assert (comparison.instances, comparison.rates) == (3, (2 / 3, 2 / 3))
    assert comparison.paired is not None
    assert (comparison.paired.test, comparison.paired.p) == ("exact McNemar", 1.0)
    assert comparison.notes == (
        "the runs attempted different instances; those with the same id are compared as the same task",
    )
    assert comparison.used[0].attempts == 3


def test_runs_with_equal_ids_of_different_data_get_a_note() -> None:
    here, there = tally([result("o__a-1")]), tally([result("o__a-1")], data="0ther")
    assert "may not be the same tasks" in compare(here, there).notes[0]
    assert compare(here, here).notes == ("both runs have the same configuration: the differences are chance",)


def test_runs_that_share_nothing_are_not_compared() -> None:
    found = compare(tally([result("o__a-1")]), tally([result("o__a-2")]))
    assert (found.paired, found.rates, found.instances) == (None, None, 0)
    assert "0 (1 are in this run only; 1 in the other only)" in table(
        report_of(tally([result("o__a-1")])), found
    )


def test_a_result_in_another_one_s_place_is_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [result("o__a-1"), result("o__a-2")])
    there = folder.attempt("o__a-2", 1) / "result.json"
    there.write_text(result("o__a-1", "unresolved").model_dump_json())
    with pytest.raises(UsageError, match="holds the result of o__a-1, attempt 1: remove it"):
        tally_of(folder)


def test_an_id_that_leads_out_of_the_run_is_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [], instances=["../../elsewhere"])
    with pytest.raises(UsageError, match="not an instance id"):
        tally_of(folder)


def test_hostile_text_does_not_control_the_terminal() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07\u202e\r\n"
    grade = Grade(
        verdict=Verdict.UNRESOLVED, undone=(hostile,), fail_to_pass=TestCount(passed=0, failed=(hostile,))
    )
    bad = result("o__a-1", "unresolved", reason=hostile, grade=grade, stalls={hostile: 1}, session="s")
    hostile_tally = Tally(config(["o__a-1"], agent=hostile), {"o__a-1": hostile}, [bad])
    found = table(report_of(hostile_tally))
    assert "owned" in found
    assert not {char for char in found if ord(char) < 32 and char != "\n"}
    assert "\u202e" not in found


def test_a_run_of_nothing_but_invalid_instances_has_no_rate(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [result("o__a-1", "invalid")])
    found = report_of(tally_of(folder))
    assert found.score.worst is None
    assert "–" in table(found)  # noqa: RUF001  # the dash that stands for unknown
    assert "invalid" in render(found, rows(folder, found, {}))


@pytest.mark.parametrize(
    ("value", "shown"), [(-1e-17, "+0.0"), (0.0, "+0.0"), (-0.0833, "-8.3"), (0.125, "+12.5")]
)
def test_no_difference_has_no_minus(value: float, shown: str) -> None:
    assert wording.difference(value) == shown


def test_the_engine_without_a_model_has_no_tokens() -> None:
    report = report_of(tally([result("o__a-1")], settings={"engine": "embedded"}))
    shown = table(report)
    assert shown.startswith("m3agent 0.1.0, engine embedded: 1 instance")
    assert "tokens" not in shown
