"""Test which tests are flaky, from reports alone. test_verify.py and test_verify_sandboxes.py verify whole patches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.verify.evidence import Changes
from m3agent.agent.verify.flaky import (
    Outcome,
    Runs,
    containers,
    counting_neither_way,
    members,
    outcomes,
    without,
)
from m3agent.tools.test_report import TestReport

KINDS = ("passed", "failed", "errored", "skipped", "absent")
IDS = [f"{path}::{name}" for path in ("a.py", "b/c.py") for name in ("x", "T::y", "z[1/2::3]")]


def report(complete: bool = True, **ids: str) -> TestReport:
    """Return a report; each argument lists the ids of one outcome, separated by spaces."""
    passed, failed, errored, skipped = (tuple(ids.get(kind, "").split()) for kind in KINDS[:4])
    return TestReport(
        passed, failed, errored, skipped, errors=dict.fromkeys((*failed, *errored), "E"), complete=complete,
        timed_out=False, seconds=1.0, exit=0, output="", truncated=False,
    )  # fmt: skip


def of_kinds(kinds: dict[str, str], complete: bool = True) -> TestReport:
    by = {kind: " ".join(i for i, k in kinds.items() if k == kind) for kind in KINDS[:4]}
    return report(complete, **by)


@pytest.mark.parametrize(
    ("ident", "run", "outcome"),
    [
        ("a.py::x", report(passed="a.py::x"), "green"),
        ("a.py::x", report(failed="a.py::x"), "red"),
        ("a.py::x", report(errored="a.py::x"), "red"),
        ("a.py::x", report(skipped="a.py::x"), "neither"),
        ("a.py::x", report(passed="a.py::y"), "neither"),
        # a file or folder that cannot be imported has one id
        ("a.py::x", report(errored="a.py"), "red"),
        ("t/a.py::T::x", report(errored="t"), "red"),
        ("t/a.py::T::x", report(errored="."), "red"),
        ("t/a.py::T::x", report(errored="t/b.py u"), "neither"),
        ("a.py", report(passed="a.py::x a.py::y"), "green"),
        ("a.py", report(passed="a.py::x", failed="a.py::y"), "red"),
        ("a.py", report(passed="ab.py::x"), "neither"),
        (".", report(passed="ab.py::x"), "green"),
        # the test ran, so its folder could be imported
        ("t/a.py::x", report(passed="t/a.py::x", errored="t"), "green"),
        # in a run that was cut short, a test without a result may not have run yet
        ("a.py::x", report(complete=False, passed="a.py::y"), None),
        ("a.py::x", report(complete=False, failed="a.py::x"), "red"),
        ("a.py::x", report(complete=False, skipped="a.py::x"), None),
    ],
)
def test_outcomes(ident: str, run: TestReport, outcome: Outcome | None) -> None:
    assert outcomes(run, [ident]) == ({} if outcome is None else {ident: outcome})


def test_what_a_test_is_in() -> None:
    assert containers("t/u/a.py::T::x") == {".", "t", "t/u", "t/u/a.py", "t/u/a.py::T"}
    assert containers("a.py::x[1/2::3]") == {".", "a.py", "a.py::x[1", "a.py::x[1/2"}
    assert containers(".") == set()
    assert members(["a.py::x", "a.py::y"]) == {"a.py": {"a.py::x", "a.py::y"}, ".": {"a.py::x", "a.py::y"}}


GREEN, RED, GONE = report(passed="a.py::x"), report(failed="a.py::x"), report()
CUT = report(complete=False)


@pytest.mark.parametrize(
    ("whole", "apart", "found"),
    [
        ([GREEN], [GREEN, GREEN, GREEN], "stable"),
        ([GREEN], [GREEN, RED, GREEN], "flaky"),
        ([GREEN], [RED, GREEN, GREEN], "flaky"),
        ([GREEN], [RED, RED, RED], "unsettled"),
        ([GREEN], [RED], "unsettled"),
        ([GREEN, GREEN], [RED, RED, RED], "stable"),  # the test depends on other tests
        ([GREEN, RED], [RED, RED, RED], "flaky"),
        ([GREEN, GONE], [GONE, GONE, GONE], "flaky"),  # a test whose id is random
        ([GREEN], [CUT, GREEN, CUT], "stable"),
        ([GREEN], [CUT], "stable"),
        ([CUT], [GREEN], "stable"),
        ([GREEN, CUT], [RED], "stable"),  # the runs did not show that the test is flaky
        ([GREEN], [CUT, RED, GREEN], "flaky"),
    ],
)
def test_the_rule(whole: list[TestReport], apart: list[TestReport], found: str) -> None:
    runs = Runs(whole, apart)
    assert (runs.flaky(["a.py::x"]) == {"a.py::x"}) is (found == "flaky")
    unsettled = runs.unsettled(["a.py::x"]) == {"a.py::x"}
    if len(whole) == 1:
        assert unsettled is (found == "unsettled")
    else:
        assert found != "unsettled"


REPORTS = st.builds(of_kinds, st.fixed_dictionaries({i: st.sampled_from(KINDS) for i in IDS}), st.booleans())
KINDS_ALIKE = {"green": ("passed",), "red": ("failed", "errored"), "neither": ("skipped", "absent")}


@st.composite
def runs_with_stable(draw: st.DrawFn) -> tuple[Runs, set[str]]:
    """Return runs on one tree, and the tests that have the same outcome in every run that reports one."""
    stable = draw(st.sets(st.sampled_from(IDS)))
    fixed = {i: draw(st.sampled_from(sorted(KINDS_ALIKE))) for i in sorted(stable)}
    reports = []
    for _ in range(draw(st.integers(2, 5))):
        kinds = {i: draw(st.sampled_from(KINDS_ALIKE.get(fixed.get(i, ""), KINDS))) for i in IDS}
        reports.append(of_kinds(kinds, draw(st.booleans())))
    border = draw(st.integers(1, min(2, len(reports) - 1)))
    return Runs(reports[:border], reports[border:]), stable


@given(runs_with_stable())
def test_a_stable_test_is_never_flaky(drawn: tuple[Runs, set[str]]) -> None:
    runs, stable = drawn
    assert not runs.flaky(IDS) & stable
    assert not runs.unsettled(IDS) & stable


@given(st.lists(REPORTS, min_size=2, max_size=5), st.data())
def test_a_test_is_flaky_if_its_outcomes_on_one_tree_differ(
    reports: list[TestReport], data: st.DataObject
) -> None:
    ident = data.draw(st.sampled_from(IDS))
    said = [found[ident] for run in reports if (found := outcomes(run, [ident]))]
    changes = len(set(said)) > 1
    for runs in (Runs(reports, []), Runs([], reports), Runs([reports[0]], reports)):
        assert (ident in runs.flaky(IDS)) is changes
        assert ident not in runs.flaky(set(IDS) - {ident})


@given(st.lists(REPORTS, min_size=2, max_size=4), st.lists(REPORTS, min_size=2, max_size=4))
def test_flaky_tests_are_in_no_set_and_the_others_stay(old: list[TestReport], new: list[TestReport]) -> None:
    flaky = Runs(old[:1], old[1:]).flaky(IDS) | Runs(new[:1], new[1:]).flaky(IDS)
    before, after = without(old[0], flaky), without(new[0], flaky)
    changes = Changes(before, after)
    assert not flaky & (changes.fixed | changes.broken | changes.still_red)
    others = set(IDS) - flaky
    assert outcomes(before, others) == outcomes(old[0], others)
    assert outcomes(after, others) == outcomes(new[0], others)
    assert changes.broken >= {i for i in others if i in old[0].passed and i not in new[0].passed}


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ([GREEN] * 4, [RED, RED, RED, GREEN], True),  # broken in most runs, so probably by the patch
        ([GREEN] * 4, [RED, RED, GREEN, GONE], True),
        ([GREEN] * 4, [RED, GREEN, RED, GREEN], False),
        ([GREEN, RED, GREEN, GREEN], [RED, RED, RED, GREEN], False),  # flaky before the patch
        ([RED, RED, GREEN, RED], [GREEN] * 4, False),
        ([RED] * 4, [GREEN] * 4, True),
        ([GREEN] * 4, [RED] * 4, True),
    ],
)
def test_what_counts_neither_way(old: list[TestReport], new: list[TestReport], counts: bool) -> None:
    found = counting_neither_way(Runs(old[:1], old[1:]), Runs(new[:1], new[1:]), ["a.py::x"])
    assert (found == frozenset()) is counts
