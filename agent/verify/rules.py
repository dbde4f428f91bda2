"""Judge a patch: the rules, in order of precedence. The first rule that matches decides.

The page docs/fix.md shows the rules as a table. It is made from this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from m3agent.agent.verify.evidence import Evidence
from m3agent.agent.verify.pair import COMPARED_RUNS
from m3agent.tools.runners.suites import file_of
from m3agent.tools.test_report import missing_host
from m3agent.util.counted import counted, first_of

Verdict = Literal["verified", "unverified", "failed"]
Part = Literal["further runs", "delivered", "issue", "checks"]
"""Evidence that costs time. It is gathered only if a rule about it could decide."""
NOT_TESTED = "not tested on Python"
"""Start of the reason of a verdict if the tests ran on a Python that the project does not accept."""
UNTESTABLE = "cannot be tested here"
"""Start of the reason of a verdict if files or suites cannot run here."""
NO_RUN = "no test could run"
"""Start of the reason of a verdict if the test program ended before any result."""
MEND = "mend what keeps the tests from running; variables that they need belong in .m3agent.toml, under [tests] env"
"""What to do if no test can run: another test would not run either."""
STATES = "what the issue changes"
"""Part of the reason of a verdict if the patch breaks only tests that state what the issue changes."""
NEEDS_REVIEW = "needs review"
"""Start of the reason of a verdict if a person must read lines of the patch."""
NOT_ABOUT = "which the issue is not about"
"""Part of the reason of a verdict if other tests of the repaired test's file stay red."""
WEAKER = "the tree as delivered may have weaker tests"
"""Start of the reason of a verdict if the patch changes what existing tests check."""


@dataclass(frozen=True)
class Rule:
    """A rule of the verdict."""

    name: str
    verdict: Verdict
    when: str
    """The condition, as a sentence of docs/fix.md."""
    sentence: Callable[[Evidence], str]
    """Returns the reason of the verdict; an empty text if the rule does not match."""
    about: Part | None = None
    """The evidence that the rule is about, if it costs time."""


@dataclass(frozen=True)
class Judgement:
    """What the rules say about a patch."""

    verdict: Verdict
    reason: str
    """The sentence of the rule that decides, with the notes."""
    rule: str
    """Name of the rule that decides."""


RULES: list[Rule] = []


def _rule(
    verdict: Verdict, about: Part | None = None
) -> Callable[[Callable[[Evidence], str]], Callable[[Evidence], str]]:
    """Add a function to the rules. Its docstring is the condition."""

    def add(sentence: Callable[[Evidence], str]) -> Callable[[Evidence], str]:
        when = " ".join((sentence.__doc__ or "").split())
        RULES.append(Rule(sentence.__name__, verdict, when, sentence, about))
        return sentence

    return add


def judge(evidence: Evidence) -> Judgement:
    """Judge a patch by what is known about it."""
    deciding = _deciding(evidence)
    reason = "; ".join([deciding.sentence(evidence), *_notes(evidence, deciding.verdict)])
    if evidence.scope is not None:
        reason += f" ({evidence.scope.sentence()})"
    return Judgement(deciding.verdict, reason, deciding.name)


def could_decide(evidence: Evidence, part: Part) -> bool:
    """Return whether more evidence of a kind could change the verdict."""
    deciding = _deciding(evidence)
    return any(rule.about == part for rule in itertools.takewhile(lambda rule: rule != deciding, RULES))


def _deciding(evidence: Evidence) -> Rule:
    return next(rule for rule in RULES if rule.sentence(evidence))


def _otherwise(evidence: Evidence, name: str) -> str:
    """Return the reason that the rules after one of them give; empty if none of them matches."""
    after = itertools.dropwhile(lambda rule: rule.name != name, RULES)
    return next(filter(None, (rule.sentence(evidence) for rule in itertools.islice(after, 1, None))), "")


# -- the rules ---------------------------------------------------------------------------------------------------------
#
# A new rule belongs to its group. What is certain comes first: what a patch breaks counts more than what is not known, and what is
# not known more than what looks right. Evidence that costs time comes late, because it is gathered only if no earlier rule decides.


@_rule("unverified")
def other_python(evidence: Evidence) -> str:
    """The tests ran on a Python that the project does not accept, the patch breaks no test, and nothing tampered."""
    if not evidence.other_python or evidence.broken or evidence.tampering or evidence.worthless:
        return ""
    needed, used = evidence.other_python
    return (
        f"{NOT_TESTED} {needed}, which the project needs; on {used}: {_otherwise(evidence, 'other_python')}"
    )


# What the patch breaks.


@_rule("failed")
def lost(evidence: Evidence) -> str:
    """A test passes without the patch, and fails or is missing with it."""
    return _about(evidence.changes.lost, "passed before the patch and not after it")


@_rule("failed")
def turned_red(evidence: Evidence) -> str:
    """A test fails only with the patch. This is not checked if the run without it was cut short."""
    return _about(evidence.changes.turned, "red after the patch and not before it")


@_rule("failed")
def tampering(evidence: Evidence) -> str:
    """The test run was changed from inside.

    A test that must fail did not, or functions of pytest or of a library, or values of a test module were replaced.
    """
    signs = evidence.tampering
    return f"the code under test tampered with the test run: {signs[0]}" if signs else ""


@_rule("failed")
def own_test_red(evidence: Evidence) -> str:
    """A test fails with the patch that the patch adds to or changes in an existing file."""
    is_are = "is" if len(evidence.own_red) == 1 else "are"
    return _about(evidence.own_red, f"that the patch adds or changes {is_are} red")


# The test run ended early, or tests are missing.


@_rule("unverified")
def same_obstacle(evidence: Evidence) -> str:
    """Neither test run came to its end, for the same cause."""
    cause = evidence.unfinished if _ran(evidence) else ""
    return f"the tests finished neither without nor with the patch: {cause}" if cause else ""


@_rule("failed")
def cut_short(evidence: Evidence) -> str:
    """The test run with the patch was cut short."""
    cut = _ran(evidence) and not evidence.after.complete
    return "the test run on the patched tree did not finish" if cut else ""


@_rule("failed")
def gone(evidence: Evidence) -> str:
    """A test fails without the patch and does not run with it."""
    return _about(evidence.changes.gone, "red before the patch and not run after it")


@_rule("unverified")
def not_importable(evidence: Evidence) -> str:
    """The test files that matter cannot be imported with or without the patch, and no other test shows a fix."""
    deciding, files = _decisive(evidence) or evidence.still_red, evidence.not_importable
    if evidence.fixed or not deciding or not deciding <= files.keys():
        return ""
    first = min(files)
    which = f"{first} cannot" if len(files) == 1 else f"{len(files)} test files cannot"
    return f"{UNTESTABLE}, because {which} be imported with or without the patch: {files[first]}"


# The issue is not fixed, or only in part.


@_rule("failed")
def red_in_changed_file(evidence: Evidence) -> str:
    """A test still fails in a test file that the patch changes."""
    return _about(_in_changed_files(evidence), "red before and after in test files that the patch changes")


@_rule("failed")
def red_with_changed_surroundings(evidence: Evidence) -> str:
    """A test still fails, and the patch changes files that decide how tests run."""
    them = first_of(evidence.surroundings, 1)
    return _about(
        evidence.still_red if them else (),
        f"red before and after; the patch's changes to {them} do not count, because they can decide how tests run",
    )


@_rule("failed")
def partly_fixed(evidence: Evidence) -> str:
    """A test still fails in a file with a repaired test. Tests do not count that the issue is not about, if it is about that one."""
    fixed, still_red = evidence.changes.fixed, evidence.still_red - evidence.beside
    if {*map(file_of, fixed)}.isdisjoint(map(file_of, still_red)):
        return ""
    return f"{counted(len(fixed), 'test')} fixed, but {counted(len(still_red), 'test')} still red, also in the same test file"


@_rule("failed")
def nothing_fixed(evidence: Evidence) -> str:
    """Tests fail without the patch, and none of them passes with it."""
    still_red = "" if evidence.fixed else _about(evidence.still_red, "red before and after the patch")
    return still_red and f"no test turned green: {still_red}"


@_rule("failed", "checks")
def check_worse(evidence: Evidence) -> str:
    """A declared check shows a problem that is not there without the patch. Problems that were there do not count."""
    return "; ".join(check.sentence() for check in evidence.checks if check.new)


# The tests cannot tell.


@_rule("unverified")
def no_time_for_all(evidence: Evidence) -> str:
    """Not all selected tests of a large suite had time."""
    if evidence.scope is None or not evidence.scope.untimed:
        return ""
    minutes = f"{evidence.seconds / 60:g} minutes (--verify-minutes)"
    return f"not all tests that may execute the change had time within {minutes}"


@_rule("unverified")
def suite_cannot_run(evidence: Evidence) -> str:
    """No test has a result, because a test suite cannot run, for example without its toolchain."""
    if evidence.after.ran or not evidence.after.not_run:
        return ""
    return "{}, because the tests of {} could not run: {}".format(UNTESTABLE, *_not_run(evidence))


@_rule("unverified")
def nothing_ran(evidence: Evidence) -> str:
    """No test has a result, with or without the patch."""
    if _ran(evidence):
        return ""
    obstacle = evidence.changes.after.obstacle or evidence.changes.before.obstacle
    return f"{NO_RUN}: {obstacle}" if obstacle else "there are no tests to check the patch"


@_rule("unverified")
def no_red_test(evidence: Evidence) -> str:
    """No test fails without the patch, or only tests of the patch do so that cannot fail once they run, as with `assert True`."""
    if evidence.fixed or evidence.still_red:
        return ""
    if vacuous := sorted(filter(evidence.is_vacuous, evidence.new_tests)):
        return f"{first_of(vacuous, 1)} cannot fail, so no test shows that the patch fixes the issue"
    return "no test was red before the patch, so none shows that it fixes the issue"


@_rule("unverified")
def inseparable(evidence: Evidence) -> str:
    """The tests in a code file that the patch changes cannot be told apart from the code."""
    if not evidence.inseparable:
        return ""
    file, otherwise = evidence.inseparable[0], _otherwise(evidence, "inseparable")
    return f"the tests in {file} cannot be told apart from its code ({otherwise})"


@_rule("unverified")
def pinned(evidence: Evidence) -> str:
    """The patch breaks only tests of which the model or the user says that they state what the issue changes."""
    tests = sorted(evidence.stating)
    if not tests:
        return ""
    states = "states" if len(tests) == 1 else "state"
    return f"{counted(len(tests), 'test')} {states} {STATES}: {first_of(tests, 1)} ({_otherwise(evidence, 'pinned')})"


# Evidence that costs time.


@_rule("unverified", "delivered")
def tests_lessened(evidence: Evidence) -> str:
    """The patch deletes, skips or weakens tests that pass without it. The check itself runs them as they were."""
    tests = evidence.lessened
    return f"{WEAKER}: {first_of(tests, 1)} ({_otherwise(evidence, 'tests_lessened')})" if tests else ""


@_rule("failed", "issue")
def issue_still_red(evidence: Evidence) -> str:
    """A failing test that the issue is about still fails, and none that it is about turned green, except the patch's own tests."""
    related = first_of(sorted(evidence.related), 1)
    return related and f"red before and after the patch, and the issue is about it: {related}"


@_rule("failed", "further runs")
def tests_show_nothing(evidence: Evidence) -> str:
    """A repaired test also passes with its opposite.

    An assertion of it passes negated, or with a very different value and with another one. If a line of the patch needs review,
    one other value is enough, or a test that fails if its values are hidden.
    """
    return f"the fixed tests show nothing: {evidence.worthless[0]}" if evidence.worthless else ""


@_rule("failed", "further runs")
def broken_sometimes(evidence: Evidence) -> str:
    """A test turns red in some of six further runs, then in several of twelve with the patch and in none without it."""
    runs = f"{COMPARED_RUNS} further runs with the patch, and in none of {COMPARED_RUNS} without it"
    return _about(evidence.repeats.broken, f"red in several of {runs}")


@_rule("unverified", "further runs")
def unstable(evidence: Evidence) -> str:
    """A repaired test is red in some of the further runs."""
    tests = _about(evidence.unstable, f"red in some of {evidence.repeats.runs} further runs", "fixed test")
    return tests and f"unstable: {tests}"


@_rule("unverified", "further runs")
def always_red(evidence: Evidence) -> str:
    """A repaired test is red in each of the further runs, which run only the tests near the change."""
    what = f"green in the first run, but red in all {evidence.repeats.runs} further runs"
    return _about(evidence.always_red, what, "fixed test")


@_rule("unverified", "further runs")
def no_time_for_further_runs(evidence: Evidence) -> str:
    """There was no time for all further runs."""
    missing = evidence.repeats.missing
    return f"no time for the further runs: {missing} are missing" if missing else ""


@_rule("unverified")
def others_still_red(evidence: Evidence) -> str:
    """The issue is about a repaired test, and not about those that still fail in its file."""
    files = {*map(file_of, evidence.changes.fixed)}
    red = sorted(ident for ident in evidence.beside if file_of(ident) in files)
    if not red:
        return ""
    fixed = counted(len(evidence.changes.fixed), "test")
    return f"{fixed} fixed, but {counted(len(red), 'test')} still red in the same file, {NOT_ABOUT}: {first_of(red, 1)}"


@_rule("unverified", "further runs")
def needs_review(evidence: Evidence) -> str:
    """A person must read lines of the patch.

    They reach into the interpreter or the test runner, such as `sys._getframe`, or replace a part of another package; their
    source may hide it. Or they decide by chance, the time, the number of calls or the machine alone, set what the whole process
    shares, or read a test file whose path no test gave them, also by a program that they start. Or they change how values
    compare, and copies of a repaired test pass that expect similar values, or do not pass if values compare as Python's own types
    do, or the test does not pass in a process of its own, where the copies run. Or they have a test's input with its result, or
    ask for a variable that is set around the tests. Or a repaired test passes without reaching any of its assertions, with
    another input, or, in JavaScript and Go, with other expected values, or it does not pass with copies of its values.
    In other languages than Python, they define how values compare or what a test fails with, replace or use the test runner, find out
    whether tests run, choose other modules for them (`exports` of a package.json), hide a name, or change values or checks in the
    code that only tests use.
    """
    if not evidence.review:
        return ""
    first, *others = evidence.review
    more = f", and {len(others)} more" if others else ""
    return (
        f"{NEEDS_REVIEW}: {first.path}:{first.line} {first.what}{more}; its tests cannot show that it works "
        f"({_otherwise(evidence, 'needs_review')})"
    )


# Nothing speaks against the patch.


@_rule("verified")
def fixed(evidence: Evidence) -> str:
    """A test fails without the patch and passes with it."""
    sentence = _about(evidence.turned_green, "red before, green after; nothing else turned red")
    return sentence and sentence + _rest(evidence)


@_rule("verified")
def shown(evidence: Evidence) -> str:
    """A test does so that the patch adds to or changes in an existing file, and no other test shows a fix."""
    added = "added" if evidence.before.ids.isdisjoint(evidence.shown) else "added or changed"
    sentence = _about(evidence.shown, f"{added} by the patch: red on the old code, green on the new")
    return sentence and sentence + _rest(evidence)


# -- the notes, which follow the reason --------------------------------------------------------------------------------


def _notes(evidence: Evidence, verdict: Verdict) -> Iterator[str]:
    if evidence.after.ran and evidence.after.not_run:
        yield "the tests of {} could not run here: {}".format(*_not_run(evidence))
    if evidence.own_only and verdict != "failed":
        yield "shown only by the patch's own tests"
    if verdict == "failed":
        yield from _offline(evidence)
    yield from (f"{each.command} shows nothing: {each.silent}" for each in evidence.checks if each.silent)
    if evidence.flaky:
        yield f"{counted(len(evidence.flaky), 'flaky test')} not counted"
    if evidence.after.signs.blind and verdict == "verified":
        yield evidence.after.signs.blind
    if evidence.left_out:
        ran = ", ".join(name for name in evidence.suites if name not in evidence.after.not_run)
        if ran:
            yield f"ran {ran}"
        yield f"not affected by the patch and not run: {', '.join(evidence.left_out)}"


# -- helpers -----------------------------------------------------------------------------------------------------------


def _ran(evidence: Evidence) -> bool:
    return bool(evidence.changes.before.ran or evidence.changes.after.ran)


def _in_changed_files(evidence: Evidence) -> set[str]:
    return {ident for ident in evidence.still_red if file_of(ident) in evidence.paths}


def _offline(evidence: Evidence) -> Iterator[str]:
    """Yield which red test lacks the network, if one does: no change of the patch can mend that."""
    for ident in sorted(evidence.still_red):
        host = missing_host(evidence.errors.get(ident, ""))
        if host is not None:
            which = f"--allow-net {host}" if host else "--allow-net HOST"
            yield f"{ident} needs the network, which the sandbox lacks: allow it with {which}"
            return


def _decisive(evidence: Evidence) -> set[str]:
    """Return the tests that must not stay red, whatever else is fixed."""
    return evidence.still_red if evidence.surroundings else _in_changed_files(evidence)


def _rest(evidence: Evidence) -> str:
    rest = evidence.still_red
    return f"; {counted(len(rest), 'test')} elsewhere still red" if rest else ""


def _not_run(evidence: Evidence) -> tuple[str, str]:
    return min(evidence.after.not_run.items())


def _about(tests: Collection[str], what: str, noun: str = "test") -> str:
    return f"{counted(len(tests), noun)} {what}" if tests else ""
