"""Find code that knows the results of fixed tests, as `known_answers` does, in other languages than Python.

    if (a === 2 && b === 3) return 5;
    const sums = { '2,3': 5 };

These files are read as lines of text, because there is no parser for all languages. So a test counts as having a result for inputs if
the literals of both stand within a few lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

LITERAL = re.compile(r"""[-+]?\b\d[\w.]*|"[^"\n]*"|'[^'\n]*'|`[^`\n]*`""")
"""A number or a text."""
_ONE = f"({LITERAL.pattern})"
_GROUP = rf"((?:{LITERAL.pattern})(?:\s*,\s*(?:{LITERAL.pattern}))+)"
NUMBER = re.compile(r"\d[\d.]*")
NUMBERS = re.compile(r"-?\d[\d.]*(?:[^A-Za-z\d.]{1,2}\d[\d.]*)+")
"""A text that joins numbers, such as `2,3`."""
_JOINED = rf"""(["'`]{NUMBERS.pattern}["'`])"""
ASKED = re.compile(
    rf"{_ONE}\s*===?\s*{_ONE}|===?\s*{_ONE}|{_ONE}\s*===?|\bcase\s+{_ONE}\s*:|\bwhen\s+\[\s*{_GROUP}|\bwhen\s+{_ONE}"
    rf"|\.equals\(\s*{_ONE}\s*\)"
)
"""A literal with which a condition compares."""
RESULT = re.compile(rf"(?:\breturn|\?|=>|->|\bthen)\s*\(?\s*{_ONE}(?=\s*(?:[;:,)}}\n]|$))")
"""A literal that code returns."""
ALTERNATIVES = re.compile(r"\|\||:\s*case\b")
"""What makes a condition hold for one of its literals alone."""
ENTRIES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_ONE}\s*\]?\s*(?::|=>)\s*{_ONE}",  # { '2,3': 5 }
        rf"{_ONE}\s*:\s*\{{\s*{_ONE}\s*:\s*{_ONE}",  # { 2: { 3: 5 } }
        rf"[{{(\[]\s*{_GROUP}\s*[}})\]]\s*(?::|=>|->)\s*{_ONE}",  # {2, 3}: 5
        rf"(?:\[|\.set\()\s*{_JOINED}\s*,\s*{_ONE}\s*[\])]",  # new Map([['2,3', 5]])
        rf"\[\s*{_ONE}\s*\](?:\s*\[\s*{_ONE}\s*\])?\s*=\s*{_ONE}",  # sums[2][3] = 5
    )
)
"""Entries of tables: inputs, and at the end the result."""
PARTS = re.compile(r"[^\s,;|]+")
"""The words of a text. A name such as `utf-8` is one."""
COMMENT = re.compile(r"\s*(?://|\*|#(?!\[))")
"""The beginning of a line that is a comment. In Rust, `#[` begins an attribute."""
SUFFIX_OF_NUMBER = "_nfFlLuU"
LINES_OF_CODE, LINES_OF_TEST = 4, 6
"""Most lines over which a condition with its result extends, and a call or a row of a test with its expectation."""
Answer = tuple[tuple[str, ...], tuple[str, ...]]
"""The words of the inputs, in any order, and those of the result."""


def known_texts(was: str, now: str, tests: str) -> Iterator[int]:
    """Yield the lines of new code that have a result of the tests for inputs of the tests.

    Args:
        was: The code without the patch.
        now: The code with it.
        tests: The text of the files with the fixed tests.
    """
    before = {answer for _, answer in _answers(was)}
    new = [(line, answer) for line, answer in _answers(now) if answer not in before]
    windows = list(_windows(tests)) if new else []
    for line, (inputs, result) in new:
        wanted = Counter((*inputs, *result))
        if any(wanted <= window for window in windows):
            yield line


def _answers(code: str) -> Iterator[tuple[int, Answer]]:
    """Yield the inputs for which code has a result, each with its line from 1: several values, or a text of several words."""
    lines = code.split("\n")
    for number, line in enumerate(lines):
        if LITERAL.search(line) is not None and COMMENT.match(line) is None:
            for inputs, result in (*_entries(line), *_conditions(lines, number)):
                words = tuple(sorted(_words(inputs)))
                if len(words) > 1 and (value := tuple(_words([result]))):
                    yield number + 1, (words, value)


def _entries(line: str) -> Iterator[tuple[list[str], str]]:
    for pattern in ENTRIES:
        for match in pattern.finditer(line):
            *inputs, result = filter(None, match.groups())
            yield LITERAL.findall(" ".join(inputs)), result


def _conditions(lines: list[str], number: int) -> Iterator[tuple[list[str], str]]:
    """Yield the condition that begins in a line, if a literal is its result."""
    if ASKED.search(lines[number]) is None:
        return
    text = "\n".join(lines[number : number + LINES_OF_CODE])
    result = RESULT.search(text)
    if result is None:
        return
    asked = text[: result.start()]
    if ALTERNATIVES.search(asked) is None:
        parts = (part for match in ASKED.finditer(asked) for part in match.groups() if part)
        yield LITERAL.findall(" ".join(parts)), result[1]


def _windows(tests: str) -> Iterator[Counter[str]]:
    """Yield the words of the literals of all lines with those that follow."""
    lines = [_words(LITERAL.findall(line)) for line in tests.split("\n")]
    for start, line in enumerate(lines):
        if line:
            yield Counter(word for each in lines[start : start + LINES_OF_TEST] for word in each)


def _words(literals: Iterable[str]) -> list[str]:
    """Return the words and numbers of literals; a text without words is one itself. A text that code completes has none."""
    words = list[str]()
    for literal in literals:
        text = literal.strip("\"'`")
        if "${" not in text:
            parts = (NUMBER if NUMBERS.fullmatch(text) else PARTS).findall(text) if literal != text else []
            words += map(_number, parts or [text])
    return words


def _number(word: str) -> str:
    """Return a number in one way of writing: `2` for `2`, `2.0` and `2n`."""
    try:
        return f"{float(word.rstrip(SUFFIX_OF_NUMBER)):g}"
    except ValueError:
        return word
