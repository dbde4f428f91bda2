"""Turn a verdict that is not `verified` into a message for the model, and find tests that a later patch weakens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from m3agent.agent.context.output import redact_text
from m3agent.agent.verify.verify import Verification
from m3agent.agent.verify.weaker_tests import weakened
from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.suites import file_of, without_suite
from m3agent.tools.test_runner import SAME_ERROR, first_error, red_before
from m3agent.util.counted import first_of

FeedbackKind = Literal[
    "broken",
    "still_red",
    "added_red",
    "weakened",
    "needs_review",
    "checks",
    "unstable",
    "no_red_test",
    "cannot_import",
    "undone",
    "refused",
]

ONLY_TESTS = (
    "Your change has only files of tests, and its tests pass without any other change. Change the code if the issue is there. "
    "If nothing is to be changed, do not invent a failure: remove the tests, and answer with one line that starts with "
    "'No change:' and says why."
)
MOST_NAMED = 20
"""Most tests that one part of the message names."""
MOST_ERRORS = 5
"""Most tests of one part whose error the message shows."""


@dataclass(frozen=True)
class Feedback:
    """A message that returns a verdict to the model."""

    kinds: tuple[FeedbackKind, ...]
    """What the verdict found, the most important first."""
    text: str
    tests: tuple[str, ...]
    """Ids of the red tests that the verdict rests on."""


def feedback_on(
    evidence: Verification, number: int, most: int, *, only_tests: bool = False
) -> Feedback | None:
    """Return the message for a verdict; None if the model cannot do anything about it.

    Args:
        number: Number of this message in the session, from 1.
    """
    parts = _parts(evidence)
    if only_tests and "no_red_test" in parts:
        parts["no_red_test"] = ONLY_TESTS
    if not parts:
        return None
    if evidence.undone:
        parts["undone"] = (
            "Changes to these files do not count, because the verification restores existing test files and files that "
            f"decide how tests run: {first_of(evidence.undone, MOST_NAMED)}. New tests count."
        )
    red = {*evidence.broken, *evidence.added_red, *evidence.still_red}
    text = "\n\n".join(
        (
            (
                "Your change was verified in a fresh copy of the repository and is not accepted (message "
                f"{number} of at most {most}): {evidence.reason}."
            ),
            *filter(None, parts.values()),
            ("" if [*parts] == ["no_red_test"] else "Correct the change. ")
            + "Run the tests, and answer without a tool call when you are done."
            + (" Do not delete, skip or weaken a test that is named here." if red else ""),
        )
    )
    return Feedback(tuple(parts), redact_text(text), tuple(sorted(red)))


def _parts(evidence: Verification) -> dict[FeedbackKind, str]:
    """Return what the model can do something about, each with its part of the message; the most important first."""
    parts = _red_parts(evidence)
    if evidence.weakened:
        parts["weakened"] = (
            f"Your change no longer has these tests as they were: {first_of(evidence.weakened, MOST_NAMED)}. Restore them. Only values in "
            "assertions of a test that an earlier message named red may change, if the test then fails without your change and "
            "passes with it."
        )
    if evidence.verdict == "unverified" and evidence.review:
        lines = first_of([f"{line.path}:{line.line} ({line.what})" for line in evidence.review], MOST_NAMED)
        parts["needs_review"] = (
            "These lines of your change reach for the insides of the interpreter or of the test runner. A person must read "
            f"them before the change can be accepted: {lines}. Fix the issue without them if that is possible."
        )
    if problems := [f"{check.command}: {each}" for check in evidence.checks for each in check.new]:
        parts["checks"] = "These problems are new with your change:\n" + "\n".join(
            f"- {each}" for each in problems[:MOST_NAMED]
        )
    repeats = evidence.repeats
    if unstable := (repeats.unstable | repeats.always_red) & {*evidence.fixed}:
        title = "These tests are red in some runs with your change"
        parts["unstable"] = named_tests(title, sorted(unstable), {**evidence.errors, **repeats.errors})
    if not parts and evidence.rule in ("no_red_test", "inseparable"):
        parts["no_red_test"] = "Write a test that fails without your change and passes with it."
    return parts


def _red_parts(evidence: Verification) -> dict[FeedbackKind, str]:
    """Return the parts of the message about tests that are red with the patch."""
    still_red, broken = (
        [ident for ident in idents if ident not in evidence.added_red]
        for idents in (evidence.still_red, evidence.broken)
    )
    edited = (
        "These tests that your change adds or edits are red; if the test itself is wrong, correct the test"
    )
    named: Sequence[tuple[FeedbackKind, str, Sequence[str]]] = (
        ("broken", "These tests pass without your change and do not pass with it", broken),
        ("added_red", edited, evidence.added_red),
        ("still_red", "These tests are red with and without your change", still_red),
    )
    marks = red_before(evidence.after, evidence.before)
    parts: dict[FeedbackKind, str] = {
        kind: named_tests(title, idents, evidence.errors, marks) for kind, title, idents in named if idents
    }
    if broken:
        parts["broken"] += f"\n{how_to_pin(broken)}"
    if any("::" not in without_suite(ident) for ident in (*still_red, *broken)):
        parts["cannot_import"] = ""
    return parts


def how_to_pin(broken: Sequence[str]) -> str:
    """Return what the model may do about a right change that existing tests contradict."""
    return (
        "If one of these tests states what the issue asks to change, leave it as it is, and answer with a line for it such as "
        f"'Pinned: {broken[0]}: <why>'."
    )


def refused_change(error: PathEscapes, number: int, most: int) -> Feedback:
    """Return the message for a change that may not be handed over."""
    text = (
        f"Your change is not accepted (message {number} of at most {most}): {error}.\n\n"
        "Undo this part of the change. Run the tests, and answer without a tool call when you are done."
    )
    return Feedback(("refused",), redact_text(text), ())


def named_tests(
    title: str,
    idents: Sequence[str],
    errors: Mapping[str, str],
    marks: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return a title with its tests; the first tests come with the last lines of their errors.

    Of a test with a mark that says that its error is the old one, the mark takes the place of the error.
    """
    lines = [f"{title} ({len(idents)}):"]
    for position, ident in enumerate(idents[:MOST_NAMED]):
        is_old = marks.get(ident) == SAME_ERROR
        lines.append(f"- {ident}{f' ({SAME_ERROR})' if is_old else ''}")
        if position < MOST_ERRORS and not is_old:
            lines += [f"    {line}" for line in first_error(errors.get(ident, ""))]
    if len(idents) > MOST_NAMED:
        lines.append(f"- and {len(idents) - MOST_NAMED} more")
    return "\n".join(lines)


def weakened_tests(
    workspace: Workspace, named: Mapping[str, str], tree: str, evidence: Verification
) -> list[str]:
    """Return the tests that a patch weakened, each with how, as `tests/test_a.py::test_b was deleted`.

    Args:
        named: The tests that earlier verdicts named red, each with the id of its tree.
    """
    if not named:
        return []
    files = {each: workspace.entries(each) for each in {workspace.base, tree, *named.values()}}
    skipped, ran = set(evidence.after.skipped), {*evidence.after.passed, *evidence.after.red}

    def content(each: str, path: str) -> bytes | None:
        entry = files[each].get(path)
        return None if entry is None else workspace.store.get_blob(entry.sha)

    found = []
    for ident, earlier in sorted(named.items()):
        path = file_of(ident)
        old, now = content(earlier, path), content(tree, path)
        how = weakened(ident, content(workspace.base, path), old, now, shows_fix=ident in evidence.fixed)
        name = without_suite(ident)[len(path) :]
        if not how and path not in files[workspace.base] and name and ident not in ran:
            how = "skipped" if ident in skipped else "deleted"
        if how == "deleted" and any(
            without_suite(other)[len(file_of(other)) :] == name
            and not weakened(ident, None, old, content(tree, file_of(other)), shows_fix=True)
            for other in evidence.fixed
        ):
            continue  # it is in another file now
        if how:
            found.append(f"{ident} was {how}")
    return found
