"""Separate the tests in a Rust source file from its code, so that a patch's code can run with the tests of the base.

Only the lexical structure is read: comments, literals, lifetimes and brackets. A file that cannot be read that way is not
split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*)
    | (?P<block>/\*)
    | (?P<raw>\b[bc]?r(?P<hashes>\#*)")
    | (?P<string>\b[bc]"|")
    | (?P<char>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[0-9a-fA-F_]{1,8}\}|.)|[^\\'\n])')
    | (?P<lifetime>'\w+)
    | (?P<word>(?:r\#)?\w+)
    | (?P<open>[(\[{])
    | (?P<close>[)\]}])
    | (?P<other>\S)
    """,
    re.VERBOSE,
)
_STRING = re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL)
_BLOCK = re.compile(r"/\*|\*/")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_TEST = re.compile(
    r"cfg\((?:test|all\(test(?:,.*)?\))\)|(?:\w+::)*(?:test|bench|rstest|test_case|quickcheck)(?:\(.*\))?",
    re.DOTALL,
)
"""An attribute, without blanks, of an item that exists only for tests."""
_TO_SEMICOLON = frozenset({"use", "static", "const", "type"})
"""Words at the start of an item that ends with a semicolon, whatever brackets it has."""
_MODIFIERS = frozenset({"pub", "unsafe", "async", "extern", "default"})


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class _Parts:
    """A source file: its code, its test items outside of all brackets, and the test attributes inside of brackets."""

    code: str
    tests: str
    inner: tuple[str, ...]


def with_tests_of(base: str, patched: str) -> str | None:
    """Return the code of `patched` with the tests of `base`.

    If both have the same tests, it is `patched` as it is. None if one of them cannot be read, or if they differ in tests
    inside of other items, which stay where they are.
    """
    old, new = _parts(base), _parts(patched)
    if old is None or new is None or old.inner != new.inner:
        return None
    if old.tests == new.tests:
        return patched
    return f"{new.code.rstrip()}\n\n{old.tests}" if old.tests else new.code


def _parts(text: str) -> _Parts | None:
    tokens = _tokens(text)
    if tokens is None:
        return None
    spans, inner = [], []
    at, depth = 0, 0
    while at < len(tokens):
        token = tokens[at]
        if token.text == "#" and at + 1 < len(tokens) and tokens[at + 1].text == "[":
            after, is_test = _attributes(tokens, at)
            if is_test:
                end = _item_end(tokens, after)
                if end is None:
                    return None
                if depth:
                    inner.append(text[token.start : tokens[end].end])
                else:
                    spans.append((token.start, tokens[end].end))
                at = end + 1
                continue
            at = after
            continue
        depth += {"open": 1, "close": -1}.get(token.kind, 0)
        at += 1
    code, tests, last = "", "", 0
    for start, stop in spans:
        code += text[last:start]
        tests += text[start:stop] + "\n"
        last = stop
    return _Parts(code + text[last:], tests, tuple(inner))


def _attributes(tokens: list[_Token], at: int) -> tuple[int, bool]:
    """Return the place behind the attributes at `at`, and whether one of them marks a test."""
    is_test = False
    while at + 1 < len(tokens) and tokens[at].text == "#" and tokens[at + 1].text == "[":
        end = _closing(tokens, at + 1)
        inside = "".join(token.text for token in tokens[at + 2 : end])
        is_test = is_test or _TEST.fullmatch(inside) is not None
        at = end + 1
    return at, is_test


def _item_end(tokens: list[_Token], at: int) -> int | None:
    """Return the place of the last token of the item at `at`; None if it does not end."""
    to_semicolon = _ends_with_semicolon(tokens, at)
    while at < len(tokens):
        token = tokens[at]
        if token.text == ";" and token.kind == "other":
            return at
        if token.kind == "close":
            return None
        if token.kind == "open":
            at = _closing(tokens, at)
            if token.text == "{" and not to_semicolon:
                return at
        at += 1
    return None


def _ends_with_semicolon(tokens: list[_Token], at: int) -> bool:
    """Return whether the item at `at` ends with a semicolon, whatever brackets it has. A `const fn` does not."""
    while at < len(tokens) and (tokens[at].text in _MODIFIERS or tokens[at].kind in ("open", "string")):
        at = _closing(tokens, at) + 1 if tokens[at].kind == "open" else at + 1
    word, following = [*(token.text for token in tokens[at : at + 2]), "", ""][:2]
    return word in _TO_SEMICOLON and not (word == "const" and following in ("fn", "unsafe"))


def _closing(tokens: list[_Token], at: int) -> int:
    """Return the place of the bracket that closes the one at `at`. All brackets are in pairs."""
    depth = 0
    while True:
        depth += {"open": 1, "close": -1}.get(tokens[at].kind, 0)
        if depth == 0:
            return at
        at += 1


def _tokens(text: str) -> list[_Token] | None:
    """Return the tokens without comments; None if a literal, a comment or a bracket has no end."""
    found, expected = [], list[str]()
    for token in _raw_tokens(text):
        if token is None:
            return None
        if token.kind == "open":
            expected.append(_PAIRS[token.text])
        elif token.kind == "close" and (not expected or expected.pop() != token.text):
            return None
        found.append(token)
    return None if expected else found


def _raw_tokens(text: str) -> Iterator[_Token | None]:
    at = 0
    while match := _TOKEN.search(text, at):
        kind, start, end = match.lastgroup or "", match.start(), match.end()
        if kind == "hashes":
            kind = "raw"
        if kind == "block":
            end = _comment_end(text, end)
        elif kind == "raw":
            close = text.find('"' + match["hashes"], end)
            end = close + 1 + len(match["hashes"]) if close >= 0 else -1
        elif kind == "string":
            rest = _STRING.match(text, end)
            end = rest.end() if rest else -1
        if end < 0:
            yield None
            return
        at = end
        if kind not in ("comment", "block"):
            yield _Token("string" if kind == "raw" else kind, text[start:end], start, end)


def _comment_end(text: str, at: int) -> int:
    """Return the end of a comment behind its first `/*`; comments nest. -1 if it has none."""
    depth = 1
    while depth:
        match = _BLOCK.search(text, at)
        if match is None:
            return -1
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return at
