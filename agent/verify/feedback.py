"""Turn a verdict that is not `verified` into a message for the model, and find tests that a later patch weakens."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from m3agent.agent.context.output import redact_text
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.python_ast import parse
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.suites import file_of, without_suite
from m3agent.tools.test_runner import first_error

FeedbackKind = Literal[
    "broken",
    "still_red",
    "added_red",
    "weakened",
    "needs_review",
    "unstable",
    "no_red_test",
    "cannot_import",
    "undone",
    "refused",
]

MOST_NAMED = 20
"""Most tests that one part of the message names."""
MOST_ERRORS = 5
"""Most tests of one part whose error the message shows."""
SKIPS = frozenset({"skip", "skipif", "skipIf", "skipUnless", "skipTest", "xfail", "importorskip"})
"""Names in pytest and unittest that skip a test or let it fail."""


@dataclass(frozen=True)
class Feedback:
    """A message that returns a verdict to the model.

    Attributes:
        kinds: What the verdict found, the most important first.
        text: The message.
        tests: Ids of the red tests that the verdict rests on.
    """

    kinds: tuple[FeedbackKind, ...]
    text: str
    tests: tuple[str, ...]


def feedback_on(evidence: Verification, number: int, most: int) -> Feedback | None:
    """Return the message for a verdict; None if the model cannot do anything about it.

    Args:
        evidence: A verification whose verdict is not `verified`.
        number: Number of this message in the session, from 1.
        most: Most messages of this kind in a session.
    """
    parts = _parts(evidence)
    if not parts:
        return None
    if evidence.undone:
        parts["undone"] = (
            "Changes to these files do not count, because the verification restores existing test files and files that "
            f"decide how tests run: {_list(evidence.undone)}. New tests count."
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
    errors, parts = dict(evidence.errors), dict[FeedbackKind, str]()
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
    parts |= {kind: _named(title, idents, errors) for kind, title, idents in named if idents}
    if any("::" not in without_suite(ident) for ident in (*still_red, *broken)):
        parts["cannot_import"] = ""
    if evidence.weakened:
        parts["weakened"] = (
            "An earlier message named these tests red, and your change no longer has them as they were: "
            f"{_list(evidence.weakened)}. Restore them and correct the code. Only values in a test's assertions may change, "
            "if the test then fails without your change and passes with it."
        )
    if evidence.verdict == "unverified" and evidence.review:
        lines = _list([f"{line.path}:{line.line} ({line.what})" for line in evidence.review])
        parts["needs_review"] = (
            "These lines of your change reach for the insides of the interpreter or of the test runner. A person must read "
            f"them before the change can be accepted: {lines}. Fix the issue without them if that is possible."
        )
    repeats = evidence.repeats
    if repeats is not None and (unstable := (repeats.unstable | repeats.always_red) & {*evidence.fixed}):
        title = "These tests are red in some runs with your change"
        parts["unstable"] = _named(title, sorted(unstable), {**errors, **repeats.errors})
    if not parts and evidence.rule in ("no_red_test", "inseparable"):
        parts["no_red_test"] = "Write a test that fails without your change and passes with it."
    return parts


def refused_change(error: PathEscapes, number: int, most: int) -> Feedback:
    """Return the message for a change that may not be handed over.

    Args:
        error: Says what is refused.
        number, most: As for `feedback_on`.
    """
    text = (
        f"Your change is not accepted (message {number} of at most {most}): {error}.\n\n"
        "Undo this part of the change. Run the tests, and answer without a tool call when you are done."
    )
    return Feedback(("refused",), redact_text(text), ())


def _named(title: str, idents: Sequence[str], errors: Mapping[str, str]) -> str:
    """Return a title with its tests; the first tests come with the last lines of their errors."""
    lines = [f"{title} ({len(idents)}):"]
    for position, ident in enumerate(idents[:MOST_NAMED]):
        lines.append(f"- {ident}")
        if position < MOST_ERRORS:
            lines += [f"    {line}" for line in first_error(errors.get(ident, ""))]
    if len(idents) > MOST_NAMED:
        lines.append(f"- and {len(idents) - MOST_NAMED} more")
    return "\n".join(lines)


def _list(paths: Sequence[str]) -> str:
    more = len(paths) - MOST_NAMED
    return ", ".join(paths[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def weakened(
    ident: str, base: bytes | None, earlier: bytes | None, later: bytes | None, *, shows_fix: bool = False
) -> str:
    """Return how a patch weakened a test that an earlier verdict named red; empty if it did not.

    A test counts as weakened if it is gone, if something new may skip it, or if one of its assertions is gone. A test
    that the base tree has in the same words never counts: verification restores it. A test that shows the fix may have
    other values in its assertions: the earlier ones may have been wrong.

    Args:
        ident: Id of the test or of its file.
        base: Content of the test's file in the base tree; None if it does not exist there.
        earlier: Content in the tree in which the test was named red.
        later: Content in the tree of the patch.
        shows_fix: Whether the test is red without the patch and green with it.
    """
    if earlier is None or earlier == later:
        return ""
    if base is not None and _test(base, ident) is not None:
        return ""
    if later is None:
        return "deleted"
    old, new = _test(earlier, ident), _test(later, ident)
    if old is None:
        return ""  # the earlier file could not be parsed, or the test is made at run time
    if new is None:
        return "deleted"
    if _skips(_parsed(later)) - _skips(_parsed(earlier)):
        return "skipped"
    return "weakened" if _assertions(old, shows_fix) - _assertions(new, shows_fix) else ""


def weakened_tests(
    workspace: Workspace, named: Mapping[str, str], tree: str, evidence: Verification
) -> list[str]:
    """Return the tests that a patch weakened, each with how, as `tests/test_a.py::test_b was deleted`.

    Args:
        workspace: Holds the trees.
        named: The tests that earlier verdicts named red, each with the id of its tree.
        tree: Tree id of the patch.
        evidence: The verification of the patch.
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


def _parsed(source: bytes) -> ast.Module | None:
    try:
        return parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _test(source: bytes, ident: str) -> ast.AST | None:
    """Return the function or class that a test id names, or the whole module for the id of a file."""
    found: ast.AST | None = _parsed(source)
    for name in without_suite(ident).partition("[")[0].split("::")[1:]:
        found = next(
            (
                node
                for node in getattr(found, "body", ())
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and node.name == name
            ),
            None,
        )
    return found


def _skips(tree: ast.AST | None) -> Counter[str]:
    return Counter(name for node in _nodes(tree) if (name := _name(node)) in SKIPS)


def _assertions(tree: ast.AST, any_value: bool) -> Counter[str]:
    """Return the assertions in a test: `assert`, unittest's methods, and `pytest.raises` and its like.

    Args:
        tree: The test.
        any_value: Whether assertions that differ in literal values only count as equal.
    """
    checks = ("assert", "raises", "warns", "fail")
    return Counter(
        ast.dump(_WithoutValues().visit(copy.deepcopy(node)) if any_value else node)
        for node in _nodes(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and _name(node.func).startswith(checks))
    )


class _WithoutValues(ast.NodeTransformer):
    """Replaces each literal value by the name of its type."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant(type(node.value).__name__)


def _nodes(tree: ast.AST | None) -> Iterator[ast.AST]:
    return ast.walk(tree) if tree is not None else iter(())


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
