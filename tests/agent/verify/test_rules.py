"""Test the rules of the verdict, from evidence alone. test_verify.py verifies whole patches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from m3agent.agent.verify.evidence import Evidence
from m3agent.agent.verify.inverted_runs import CopiesSeen
from m3agent.agent.verify.pair import Repeats
from m3agent.agent.verify.review import Finding
from m3agent.agent.verify.rules import RULES, Verdict, could_decide, judge
from m3agent.agent.verify.scope import Scope
from m3agent.tools.runners.suites import file_of
from m3agent.tools.test_report import Signs, TestReport
from m3agent.util.counted import counted


def report(
    passed: str = "", failed: str = "", errored: str = "", skipped: str = "", complete: bool = True
) -> TestReport:
    """Return a report of tests named by single words: `a` is the file a.py, `a.x` is the test x in it."""

    def ids(words: str) -> tuple[str, ...]:
        return tuple(
            sorted(
                f"{w.partition('.')[0]}.py" + f"::{w.partition('.')[2]}" * ("." in w) for w in words.split()
            )
        )

    red = (*ids(failed), *ids(errored))
    return TestReport(
        ids(passed),
        ids(failed),
        ids(errored),
        ids(skipped),
        dict.fromkeys(red, "E"),
        complete,
        False,
        1.0,
        0,
        "",
        False,
    )


@pytest.mark.parametrize(
    ("before", "after", "verdict", "said", "sets"),
    [
        # fixed, broken, still red
        (report("a.x", "a.y"), report("a.x a.y"), "verified", "1 test red before, green after; nothing else", "a.y//"),
        (report("a.x", "a.y a.z"), report("a.x a.y", "a.z"), "failed", "1 test fixed, but 1 test still red", "a.y//a.z"),
        (report("", "a.y b.z"), report("a.y", "b.z"), "verified", "turned red; 1 test elsewhere still", "a.y//b.z"),
        (report("a.x", "a.y"), report("a.y", "a.x"), "failed", "1 test passed before the patch and not after", "a.y/a.x/"),
        (report("a.x", "a.y"), report("a.y"), "failed", "1 test passed before the patch and not after", "a.y/a.x/"),
        (report("a.x", "a.y"), report("a.y", skipped="a.x"), "failed", "1 test passed before", "a.y/a.x/"),
        (report("a.x", "a.y"), report("a.x", "a.y"), "failed", "no test turned green: 1 test red before and after the patch", "//a.y"),
        (report("a.x"), report("a.x"), "unverified", "no test was red before the patch", "//"),
        (report(), report(), "unverified", "there are no tests", "//"),
        (report(), report("a.x"), "unverified", "no test was red before", "//"),
        (report("a.x"), report(), "failed", "1 test passed before the patch and not after", "/a.x/"),
        (report("", "a.x"), report(), "failed", "1 test red before the patch and not run after it", "//a.x"),
        (report(skipped="a.x"), report(), "unverified", "no test was red before", "//"),
        (report(skipped="a.x"), report(skipped="a.x"), "unverified", "no test was red before", "//"),
        (report(skipped="a.x"), report("a.x"), "unverified", "no test was red before", "//"),
        # an import error has one id; once the file can be imported, its tests have their own ids
        (report("b.x", errored="a"), report("b.x a.x a.y"), "verified", "1 test red before", "a//"),
        (report(errored="a"), report("a.x", "a.y"), "failed", "2 tests red before and after", "//a a.y"),
        (report(errored="a"), report(errored="a"), "unverified", "a.py cannot be imported with or without the patch: E", "//a"),
        (report(errored="a"), report("a.x", errored="a"), "unverified", "a.py cannot be imported with or without the", "//a"),
        (report("a.x"), report(errored="a"), "failed", "1 test passed before", "/a.x a/"),
        (report(errored="a"), report("ab.x"), "failed", "1 test red before the patch and not run after it", "//a"),
        # a red test that is deleted, renamed or skipped does not count as fixed, whatever else is fixed
        (report("b.x", "a.x"), report("b.x"), "failed", "1 test red before the patch and not run after it", "//a.x"),
        (report("", "a.x b.y"), report("b.y"), "failed", "1 test red before the patch and not run", "b.y//a.x"),
        (report("", "a.x b.y"), report("b.y", skipped="a.x"), "failed", "1 test red before the patch and not", "b.y//a.x"),
        (report("", "a.x"), report("a.renamed"), "failed", "1 test red before the patch and not run", "//a.x"),
        (report(errored="a"), report(skipped="a.x"), "failed", "1 test red before the patch and not run", "//a"),
        # red after, but missing or skipped before
        (report("", "a.x"), report("a.x", "a.new"), "failed", "1 test red after the patch and not before it", "a.x/a.new/"),
        (report("", "a.x", skipped="b.y"), report("a.x", "b.y"), "failed", "1 test red after the patch", "a.x/b.y/"),
        # an incomplete run shows less
        (report("", "a.x"), report("a.x", complete=False), "failed", "did not finish", "a.x//"),
        (report("", "a.x", complete=False), report("a.x b.y"), "verified", "1 test red before", "a.x//"),
        (report("", "a.x", complete=False), report("a.x", "b.y"), "verified", "1 test elsewhere", "a.x//b.y"),
        (report("", "a.x", complete=False), report("a.x", "a.y"), "failed", "still red, also in the same test file", "a.x//a.y"),
        # failed before, and cannot even run after: red in both
        (report("", "a.x"), report(errored="a.x"), "failed", "1 test red before and after", "//a.x"),
    ],
)  # fmt: skip
def test_judge(before: TestReport, after: TestReport, verdict: Verdict, said: str, sets: str) -> None:
    evidence = Evidence(before, after)
    judged = judge(evidence)
    assert said in judged.reason
    assert judged.verdict == verdict
    wanted = [set(report(passed=words).passed) for words in sets.split("/")]
    assert [evidence.fixed, evidence.broken, evidence.still_red] == wanted


@pytest.mark.parametrize(
    ("beside", "rule"), [("", "partly_fixed"), ("a.y", "partly_fixed"), ("a.y a.z", "others_still_red")]
)
def test_red_tests_that_the_issue_is_not_about_do_not_fail_a_patch(beside: str, rule: str) -> None:
    evidence = Evidence(report("", "a.x a.y a.z"), report("a.x", "a.y a.z"))
    assert judge(replace(evidence, beside=frozenset(report(beside).passed))).rule == rule


def test_red_tests_in_files_that_the_patch_changes() -> None:
    before, after = report("", "a.x b.y"), report("b.y", "a.x")
    assert judge(Evidence(before, after, paths=["b.py", "c.py"])).rule == "fixed"
    judged = judge(Evidence(before, after, paths=["a.py"]))
    assert judged.verdict == "failed"
    assert judged.reason == "1 test red before and after in test files that the patch changes"


def test_a_folder_that_could_not_be_collected() -> None:
    def errored(ident: str) -> TestReport:
        return TestReport((), (), (ident,), (), {ident: "E"}, True, False, 1.0, 1, "", False)

    after = report("tests/a.x tests/a.y")
    for ident in ("tests", "."):
        assert judge(Evidence(errored(ident), after)).verdict == "verified"
    assert judge(Evidence(errored("test"), after)).verdict == "failed"


def test_count_and_file() -> None:
    assert [counted(n, "test") for n in (0, 1, 2)] == ["0 tests", "1 test", "2 tests"]
    assert [file_of(ident) for ident in ("a/b.py::T::x", "a/b.py", "a::b::c")] == ["a/b.py", "a/b.py", "a"]


def test_a_new_test_counts_beside_files_that_cannot_be_imported() -> None:
    run = report("a.x", errored="b")
    base = Evidence(run, run, paths=["a.py"])
    own = report(failed="a.y"), report("a.y")
    assert judge(base).rule == "not_importable"
    assert judge(replace(base, own=own)).rule == "shown"
    assert judge(replace(base, own=own, after=report("a.x", "a.z", "b"))).rule == "turned_red"


def test_an_added_test_shows_a_fix_whose_old_code_its_file_cannot_import() -> None:
    base = Evidence(report("a.x"), report("a.x"), own=(report(errored="a"), report("a.x a.y")))
    assert (judge(base).rule, base.shown) == ("shown", {"a.py::y"}), "a test that was there shows nothing"
    assert judge(replace(base, own=(report(errored="a"), report("a.x")))).rule == "no_red_test"
    assert judge(replace(base, own=(report(errored="b"), report("a.x a.y")))).rule == "no_red_test"


def test_files_that_cannot_be_imported_excuse_no_red_test_if_the_patch_changes_surroundings() -> None:
    run = report(failed="c.x", errored="b")
    base = Evidence(run, run, paths=["b.py"])
    assert judge(base).rule == "not_importable"
    assert judge(replace(base, surroundings=["setup.cfg"])).verdict == "failed"


def test_the_first_of_several_tests_is_named() -> None:
    lessened = replace(FIXED, lessened=("a.py::x was deleted", "a.py::z was deleted"))
    assert "tests: a.py::x was deleted and 1 more (" in judge(lessened).reason
    pinned = frozenset({"a.py::x", "a.py::z"})
    stating = Evidence(report("a.x a.z", "a.y"), report("a.y", "a.x a.z"), pinned=pinned)
    assert judge(stating).reason.startswith("2 tests state what the issue changes: a.py::x and 1 more (")


TIMED_OUT = replace(report("a.x", "a.y", complete=False), timed_out=True)
ODD_END = replace(report("a.x", "a.y", complete=False), exit=2, output="KeyError: 'HOME'")


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        (TIMED_OUT, replace(TIMED_OUT, seconds=9.0), "same_obstacle"),
        (ODD_END, ODD_END, "same_obstacle"),
        (ODD_END, TIMED_OUT, "cut_short"),
        (ODD_END, replace(ODD_END, output="KeyError: 'USER'"), "cut_short"),
        (ODD_END, replace(ODD_END, passed=(), failed=("a.py::x", "a.py::y")), "lost"),
        (replace(ODD_END, passed=(), failed=()), replace(ODD_END, passed=(), failed=()), "nothing_ran"),
    ],
)
def test_runs_that_do_not_finish(before: TestReport, after: TestReport, rule: str) -> None:
    judged = judge(Evidence(before, after))
    assert judged.rule == rule
    assert judged.verdict == ("unverified" if rule in ("same_obstacle", "nothing_ran") else "failed")


def test_a_red_test_that_lacks_the_network_is_named() -> None:
    before = replace(report("a.x", "a.y a.z"), errors={"a.py::z": "gaierror: api.example.org"})
    after = replace(
        report("a.x a.y", "a.z"), errors={"a.py::z": "Error: getaddrinfo ENOTFOUND api.example.org"}
    )
    judged = judge(Evidence(before, after))

    assert judged.verdict == "failed"
    assert "a.py::z needs the network" in judged.reason
    assert "--allow-net api.example.org" in judged.reason


def test_the_cause_is_named() -> None:
    judged = judge(Evidence(ODD_END, ODD_END))
    cause = "the test program ended with exit status 2: KeyError: 'HOME'"
    assert judged.reason == f"the tests finished neither without nor with the patch: {cause}"


FIXED = Evidence(report("a.x", "a.y"), report("a.x a.y"), paths=["code.py"], suites=("pytest:.",))
SHOWN = Evidence(report("a.x"), report("a.x"), own=(report("a.x", "a.y"), report("a.x a.y")))
LINE = Finding("code.py", 3, "sys._getframe()", "reads frames")
FORGED = replace(FIXED.after, signs=Signs(forged=("pytest.fail was replaced",)))
COPIES = CopiesSeen(("a.py:1 passes, and passes as well if it is negated",))
UNTIMED = Scope(tests=9, selected=3, ran=2)
TEST = frozenset({"a.py::y"})


def repeats(**values: Any) -> Repeats:
    return replace(Repeats(6, 6.0, frozenset(), frozenset(), {}), **values)


EXAMPLES: list[tuple[Evidence, str, str]] = [
    (FIXED, "fixed", "1 test red before, green after; nothing else turned red"),
    (SHOWN, "shown", "1 test added by the patch: red on the old code, green on the new; shown only by the patch's own tests"),
    (
        replace(FIXED, other_python=("3.7", "3.12.4")),
        "other_python",
        "not tested on Python 3.7, which the project needs; on 3.12.4: 1 test red before, green after; nothing else turned red",
    ),
    (replace(FIXED, other_python=("3.7", "3.12.4"), after=FORGED), "tampering", "the code under test tampered with the test run: pytest.fail was replaced"),
    (replace(SHOWN, own=(report("a.x"), report("a.x", "a.y"))), "own_test_red", "1 test that the patch adds or changes is red"),
    (replace(FIXED, scope=UNTIMED, seconds=300), "no_time_for_all", "not all tests that may execute the change had time within 5 minutes (--verify-minutes) (3 of 9 tests execute the change or may do so: 2 ran)"),
    (
        replace(FIXED, inseparable=["lib.rs"], copies=COPIES),
        "inseparable",
        f"the tests in lib.rs cannot be told apart from its code (the fixed tests show nothing: {COPIES.signs[0]})",
    ),
    (
        replace(SHOWN, related=frozenset({"b.py::p", "b.py::q"}), copies=COPIES),
        "issue_still_red",
        "red before and after the patch, and the issue is about it: b.py::p and 1 more",
    ),
    (replace(FIXED, copies=COPIES, repeats=repeats(broken=TEST)), "tests_show_nothing", f"the fixed tests show nothing: {COPIES.signs[0]}"),
    (replace(FIXED, repeats=repeats(broken=TEST)), "broken_sometimes", "1 test red in several of 12 further runs with the patch, and in none of 12 without it"),
    (replace(FIXED, repeats=repeats(unstable=TEST)), "unstable", "unstable: 1 fixed test red in some of 6 further runs"),
    (replace(FIXED, repeats=repeats(always_red=TEST)), "always_red", "1 fixed test green in the first run, but red in all 6 further runs"),
    (replace(FIXED, repeats=repeats(runs=3, missing=3)), "no_time_for_further_runs", "no time for the further runs: 3 are missing"),
    (
        replace(FIXED, findings=(LINE, LINE)),
        "needs_review",
        "needs review: code.py:3 reads frames, and 1 more; its tests cannot show that it works (1 test red before, green after; nothing else turned red)",
    ),
    (replace(FIXED, similar=(LINE,)), "needs_review", "needs review: code.py:3 reads frames; its tests cannot show that it works (1 test red before, green after; nothing else turned red)"),
    (
        replace(FIXED, rerun_flaky=frozenset({"a.py::x"}), left_out=("go:tool",)),
        "fixed",
        "1 test red before, green after; nothing else turned red; 1 flaky test not counted; ran pytest:.; not affected by the patch and not run: go:tool",
    ),
    (replace(FIXED, after=replace(FIXED.after, not_run={"go:tool": "no go"})), "fixed", "1 test red before, green after; nothing else turned red; the tests of go:tool could not run here: no go"),
    (Evidence(report(), replace(report(), not_run={"go:tool": "no go"})), "suite_cannot_run", "cannot be tested here, because the tests of go:tool could not run: no go"),
    (replace(FIXED, after=replace(FIXED.after, signs=Signs(blind="the guard sees little"))), "fixed", "1 test red before, green after; nothing else turned red; the guard sees little"),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "rule", "reason"), EXAMPLES)
def test_each_rule_has_its_sentence(evidence: Evidence, rule: str, reason: str) -> None:
    judged = judge(evidence)
    assert (judged.rule, judged.reason) == (rule, reason)


def test_a_test_of_a_file_that_could_not_be_imported_is_a_fixed_test() -> None:
    evidence = Evidence(report("b.z", errored="a"), report("b.z a.y"), repeats=repeats(always_red=TEST))
    assert judge(evidence).rule == "always_red"


def matching(evidence: Evidence) -> list[str]:
    return [rule.name for rule in RULES if rule.sentence(evidence)]


def test_several_rules_may_match() -> None:
    evidence = replace(FIXED, copies=COPIES, repeats=repeats(missing=3), findings=(LINE,))
    assert matching(evidence) == ["tests_show_nothing", "no_time_for_further_runs", "needs_review", "fixed"]


def test_rules_about_a_seeming_fix_match_also_if_nothing_is_fixed() -> None:
    nothing = Evidence(report("a.x"), report("a.x"), findings=(LINE,), inseparable=["lib.rs"])
    assert matching(nothing) == ["no_red_test", "inseparable", "needs_review"]


@pytest.mark.parametrize(
    ("evidence", "open_to"),
    [
        (FIXED, True),
        (SHOWN, True),
        (replace(FIXED, findings=(LINE,)), True),
        (replace(FIXED, after=FORGED), False),
        (replace(FIXED, scope=UNTIMED), False),
        (replace(FIXED, after=FIXED.before), False),
        (replace(FIXED, inseparable=["lib.rs"]), False),
    ],
)
def test_further_runs_take_place_only_if_they_could_change_the_verdict(
    evidence: Evidence, open_to: bool
) -> None:
    assert could_decide(evidence, "further runs") is open_to


def test_each_rule_has_a_name_and_a_condition() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.when.endswith(".") for rule in RULES)


def test_a_changed_test_that_states_what_the_issue_changes_shows_the_fix() -> None:
    evidence = Evidence(report("a.x a.y"), report("a.y", "a.x"), own=(report("", "a.x"), report("a.x")))
    assert judge(evidence).rule == "lost"
    judged = judge(replace(evidence, pinned=frozenset({"a.py::x"})))
    assert (judged.verdict, judged.rule) == ("unverified", "pinned")
    assert "red on the old code, green on the new" in judged.reason
