"""Change tests in JavaScript, TypeScript and Go so that they must fail: what still passes shows nothing.

In one copy of a fixed test's file, each assertion fails as soon as it is reached. A test that passes there never reached any of its
assertions, or the code under test swallowed their errors. In the other copy, assertions expect other values.

Nothing here parses a language. A copy that does not compile is red, and red says nothing: only a test that passes does.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import NamedTuple

from m3agent.agent.verify.review import MOST_LINES, Finding, finding_at
from m3agent.sandbox.store.git import TreeStore
from m3agent.tools.runners.path_rules import is_code
from m3agent.tools.runners.suites import without_suite

NOT_REACHED = "passes without reaching any of its assertions, or the code keeps their errors"
OTHER_VALUE = "passes as well if its assertions expect other values"
LITERAL = re.compile(r"""(?<![\w.])(?:\d+(?:\.\d+)?(?![\w.])|"[^"\\\n]*"|'[^'\\\n]*'|`[^`\\$]*`)""")
"""A number or a text that can be changed by adding a character."""
CALL_OF_JS = re.compile(
    r"(?<![\w.$'\"`])(?:(?:assert|t|chai\.assert)(?:\.strict|\.assert)?\.(?:is|like|match|ok|true|false|truthy|falsy|regex|throws|rejects"
    r"|same|include|lengthOf|(?:not)?(?:[dD]eep|[lL]oose)?(?:[sS]trict)?[eE]qual\w*)|assert|expect|(?:deep)?[sS]trictEqual|deepEqual)\s*\(",
)
"""A call that compares, not one that says that a line must not be reached."""
EQUAL_OF_JS = re.compile(
    r"(?<![\w.$'\"`])(?:(?:assert|t)(?:\.strict|\.assert)?\.(?:is|same)|(?:(?:assert|t)(?:\.strict|\.assert)?\.)?(?:[dD]eep)?(?:[sS]trict)?"
    r"[eE]qual)\s*\("
)
"""An assertion whose second argument is what it expects."""
MATCHER_OF_JS = re.compile(
    r"\)\s*(?:\.(?:to|be|deep|resolves))*\.(?:toBe|toEqual|toStrictEqual|toHaveLength|equal|eql|eq)\s*\("
)
"""A matcher whose first argument is what it expects. With `.not`, other values may be right."""
FIXED_OF_JS = re.compile(r"null|undefined|true|false|NaN|\[\]|\{\}")
"""A value that has no other literal."""
CONDITION_OF_GO = re.compile(
    r"^(?P<head>[ \t]*(?:\} else )?if (?:[^\n]*; )?)(?P<condition>[^;\n]+?)(?= \{[ \t]*\n(?:[^\n]*\n){0,3}?[^\n]*"
    r"(?:\b\w+\.(?:Error|Fatal|Fail)\w*|\bpanic)\()",
    re.MULTILINE,
)
"""A condition for which a test fails."""
CALL_OF_GO = re.compile(
    r"^(?P<head>[ \t]*)(?=(?:assert|require)\.(?!\w*(?:NoError|Nil)\b)\w+\((?P<test>\w+),)", re.MULTILINE
)
"""An assertion of the library testify."""
EXPECTED_OF_GO = re.compile(
    rf"\b(?:assert|require)\.(?:Equal|EqualValues|Exactly)\(\w+, (?P<value>{LITERAL.pattern}|[a-z]\w*(?=,))"
)
DIFFERS = re.compile(
    r"(?:!= (?P<value>[^&|=<>!]+)|^!(?:[\w.]|\([^&|]*\)\.)*(?:Equal|Same|Eq)\((?P<all>[^&|!]+))$"
)
"""The end of a condition that holds if a value differs."""
IS_ERROR = re.compile(r"\berr\w*\)? != nil$")
"""A condition about an error that is not expected. Such a line comes before those that compare."""
START_OF_TEST = re.compile(r"^func |(?<![\w.$])(?:it|test|specify)\b[\w.]*\s*\(", re.MULTILINE)
"""Where the next test begins, or in Go the next function."""
VARIABLE = re.compile(r"\s*(?:[\w.]+\()?([A-Za-z_]\w*)\)?\s*")
"""A variable that is compared, or that is converted before."""
ENDS_WITH_LITERAL = re.compile(rf"{LITERAL.pattern}[\s)}}\]]*;?\s*$")
"""The end of a value that another literal changes. In `path("a").error`, it need not."""
ASSIGNS = r"^[ \t]*(?:(?:const|let|var)[ \t]+)?(?:\w+,[ \t]*)*%s(?:,[ \t]*\w+)*(?:[ \t]*:[^=\n]+|[ \t]+[\w.]+)?[ \t]*:?=(?!=)(?P<value>[^\n]+)$"
"""The line that gives a variable its value."""
TOLD = re.compile(r"\b\w+\.(?:Error|Fatal|Log)f?\([^\n]*")
"""A call of Go that prints its arguments."""
Span = tuple[int, int]


class Kind(NamedTuple):
    """A kind of copy."""

    change: Mapping[str, Callable[[str], str]]
    """Changes a text, by its language."""
    what: str
    """What a test does that passes in the copy."""


def other_value(text: str) -> str:
    """Return a text with another last literal."""
    literals = [*LITERAL.finditer(text)]
    if not literals:
        return text
    start, end = literals[-1].span()
    literal = f"1{text[start:end]}" if text[start].isdigit() else f"{text[start : end - 1]}~{text[end - 1]}"
    return text[:start] + literal + text[end:]


def arguments_at(text: str, start: int) -> list[Span]:
    """Return the spans of the first two arguments of a call whose list begins at a position."""
    spans, depth = list[Span](), 0
    for each in re.finditer(rf"{LITERAL.pattern}|[([{{,)\]}}]", text[start : start + 2000]):
        sign, end = each[0], start + each.start()
        if depth == 0 and sign in ",)":
            spans.append((spans[-1][1] + 1 if spans else start, end))
            if sign == ")" or len(spans) == 2:
                break
        depth += (sign in ("(", "[", "{")) - (sign in (")", "]", "}"))
    return spans


def stopped_js(text: str) -> str:
    """Let each assertion throw an error."""
    return CALL_OF_JS.sub(lambda call: f"BigInt(0.5) || {call[0]}", text)


def other_values_js(text: str) -> str:
    """Let assertions expect another value."""
    spans = [_expected(text, arguments_at(text, call.end())) for call in EQUAL_OF_JS.finditer(text)]
    spans += [arguments_at(text, call.end())[:1] for call in MATCHER_OF_JS.finditer(text)]
    return _with_other_values(text, {span for each in spans for span in each})


def _with_other_values(text: str, spans: Collection[Span]) -> str:
    """Change what is expected: values that stand in an assertion, and those of variables that stand there."""
    changes = {span: other_value(text[slice(*span)]) for span in {*spans, *_assigned(text, spans)}}
    for (start, end), new in sorted(changes.items(), reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _assigned(text: str, compared: Collection[Span]) -> Iterator[Span]:
    """Yield where the values of compared variables stand, if they end with a literal, and if the test uses them for nothing else."""
    starts = [0, *(match.end() for match in START_OF_TEST.finditer(text)), len(text)]
    for span in compared:
        if (variable := VARIABLE.fullmatch(text[slice(*span)])) is None:
            continue
        after = bisect.bisect(starts, span[0])
        start, end = starts[after - 1 : after + 1]
        values = [*re.compile(ASSIGNS % variable[1], re.MULTILINE).finditer(text, start, end)]
        told = (call.span() for call in TOLD.finditer(text, start, end))
        known = [*(value.span() for value in values), *told, *compared]
        uses = (use.start() for use in re.compile(rf"(?<![\w.]){variable[1]}\b").finditer(text, start, end))
        only = all(any(low <= use < high for low, high in known) for use in uses)
        if only and len(values) == 1 and ENDS_WITH_LITERAL.search(values[0]["value"]):
            yield values[0].span("value")


def _expected(text: str, spans: list[Span]) -> list[Span]:
    """Return the argument that is expected, of two: the second one, unless the first one is no more than a value."""
    first = text[slice(*spans[0])].strip() if spans else ""
    if LITERAL.fullmatch(first):
        return spans[:1]
    return [] if FIXED_OF_JS.fullmatch(first) else spans[1:]


def stopped_go(text: str) -> str:
    """Let each condition for a failure hold, except those about errors."""

    def stopped(match: re.Match[str]) -> str:
        is_error = IS_ERROR.search(match["condition"])
        return match[0] if is_error else f"{match['head']}true || ({match['condition']})"

    text = CONDITION_OF_GO.sub(stopped, text)
    return CALL_OF_GO.sub(lambda call: f'{call["head"]}{call["test"]}.Fatal("stopped"); ', text)


def other_values_go(text: str) -> str:
    """Let conditions and assertions compare with another value."""
    spans = {call.span("value") for call in EXPECTED_OF_GO.finditer(text)}
    for match in CONDITION_OF_GO.finditer(text):
        value = None if "&&" in match["condition"] else DIFFERS.search(match["condition"])
        if value is not None:
            spans.add((match.start("condition") + value.start(value.lastgroup or 0), match.end("condition")))
    return _with_other_values(text, spans)


KINDS = (
    Kind({"js": stopped_js, "go": stopped_go}, NOT_REACHED),
    Kind({"js": other_values_js, "go": other_values_go}, OTHER_VALUE),
)


class OtherCopy(NamedTuple):
    """A tree in which tests must fail."""

    tree: str
    tests: Mapping[str, Finding]
    """Where each test is, by its id, and what it does if it passes."""


def other_copies(store: TreeStore, tree: str, idents: Collection[str]) -> Iterator[OtherCopy]:
    """Yield trees in which the tests have changed assertions, of those that have assertions that can change."""
    entries = {entry.path: entry for entry in store.list_tree(tree)}
    by_file = defaultdict[str, list[str]](list)
    for ident in sorted(idents):
        path = without_suite(ident).partition("::")[0]
        if path in entries and (path.endswith(".go") or is_code(path)):
            by_file[path].append(ident)
    texts = {path: store.get_blob(entries[path].sha).decode(errors="replace") for path in by_file}
    for kind in KINDS:
        changed, tests = dict[str, bytes](), dict[str, Finding]()
        for path, text in texts.items():
            change = kind.change["go" if PurePosixPath(path).suffix == ".go" else "js"]
            changed[path] = change(text).encode()
            tests |= dict(_changed_tests(path, text, by_file[path], change, kind.what))
        if tests:
            shas = store.put_blobs([*changed.values()])
            new = {path: replace(entries[path], sha=sha) for path, sha in zip(changed, shas, strict=True)}
            yield OtherCopy(store.write_tree([*(entries | new).values()]), tests)


def _changed_tests(
    path: str, text: str, idents: Collection[str], change: Callable[[str], str], what: str
) -> Iterator[tuple[str, Finding]]:
    """Yield the tests of a file with assertions that change."""
    lines = text.split("\n")
    for ident in idents:
        numbers = [*_starts(path, text, ident)]
        bodies = ["\n".join(_block(lines[number : number + MOST_LINES])) + "\n" for number in numbers]
        if bodies and all(change(body) != body for body in bodies):
            yield ident, finding_at(path, text.encode(), numbers[0] + 1, what)


def _block(lines: list[str]) -> Iterator[str]:
    """Yield the first line, and those that are indented more: texts may have brackets of their own."""
    yield lines[0]
    indent = len(lines[0]) - len(lines[0].lstrip())
    yield from itertools.takewhile(
        lambda line: not line.strip() or len(line) - len(line.lstrip()) > indent, lines[1:]
    )


def _starts(path: str, text: str, ident: str) -> Iterator[int]:
    """Yield the numbers, from 0, of the lines at which tests of a name begin."""
    names = without_suite(ident).split("::")[1:]
    if path.endswith(".go"):
        begins = rf"^func {re.escape(names[0].partition('/')[0])}\(" if names else "(?!)"
    else:
        name = names[-1].rpartition(" > ")[2] if names else ""
        begins = rf"(?<![\w.$])(?:it|test|specify)\b[\w.]*\s*\(\s*(['\"`]){re.escape(name)}\1"
    yield from (text.count("\n", 0, match.start()) for match in re.finditer(begins, text, re.MULTILINE))
