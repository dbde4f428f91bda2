"""Find secrets in a file's text and replace each by a marker such as `<REDACTED:github-token>`.

These are found:
- keys and tokens in the formats of some hundred providers, JSON web tokens, and passwords in URLs and in
  Authorization headers (the library `redact-secret` judges these);
- private keys;
- random-looking values that are assigned to a name such as `password` or `API_KEY`.

These remain, because a model must be able to edit test suites and manuals: plain words, examples and
placeholders, test keys, and random-looking strings without the name or the format of a secret.

The same secret becomes the same marker in every run. Line numbers do not change, and redacting twice has no
effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from m3agent.agent.context import secret_rules as rules
from m3agent.agent.context.languages import is_code

if TYPE_CHECKING:
    import re

NOTATION_SECRETS = (
    "A marker such as <REDACTED:github-token> stands for a secret that the file contains at that place; a private "
    "key has one marker in each line. Leave such lines as they are, and never write a marker into a file."
)
"""Explains the markers to the model."""

_ROUNDS = 4
"""Largest number of rounds. Removing a secret can reveal another one in the rest of a longer match."""

_SHORTEST, _CHANGES, _WITHIN, _DISTINCT = 12, 4, 16, 8
"""A random-looking value has at least `_SHORTEST` characters and `_DISTINCT` different ones.

It also has at least `_CHANGES` changes of character class within `_WITHIN` characters.
"""

_ENOUGH = 256
"""Number of bytes that are examined to decide whether a value looks random."""

_LINE = 40
"""Least length of the longest line of a private key, in characters; 64 is usual."""

_CLAIMS = frozenset({"aud", "exp", "iat", "iss", "jti", "nbf", "sub"})
"""Claim names that RFC 7519 registers."""

_NOBODY = "1234567890"
"""Subject of the examples on jwt.io, which many manuals copy."""

_RECENT = 1767225600
"""2026-01-01 UTC, in Unix seconds; a constant, so that a file gives the same text every day."""

_BEFORE, _WINDOW, _STEP = 256, 3072, 2048
"""Windows of long lines, in bytes: part before the candidate, length, and step to the next window.

The library scans single lines. Its time can grow with the square of the length, so of a long line it gets
windows. They overlap, so that tokens of 1 KiB are always complete in one of them.
"""


class Finding(NamedTuple):
    """A secret that was replaced: its kind (one of `secret_rules.KINDS`) and its line, counted from 1."""

    kind: str
    line: int


class Redacted(NamedTuple):
    """A text without its secrets, and the replaced secrets in order of lines."""

    text: str
    found: tuple[Finding, ...]


class _Span(NamedTuple):
    start: int
    end: int
    kind: str


def suspicious(data: bytes) -> bool:
    """Return whether a file with these bytes may contain a secret.

    If False, `redact` does not change its text.

    This holds for UTF-8 with any line ends, for UTF-16, and for encodings that agree with ASCII.
    """
    # With NUL bytes it may be UTF-16, in which the letters of an anchor are not adjacent.
    return b"\0" in data or next(_candidates(data, code=False), None) is not None


def redact(text: str, path: str) -> Redacted:
    """Replace each secret in the content of a file by a marker.

    Args:
        path: The file's path. It tells whether an unquoted value may be an expression of code; empty for text
            that is not code.
    """
    code = is_code(path.rpartition("/")[2])
    data = text.encode("utf-8", "replace")
    found: list[Finding] = []
    for _ in range(_ROUNDS):
        spans = _spans(data, code)
        if not spans:
            break
        data, more = _replace(data, spans)
        found += more
    if not found:
        return Redacted(text, ())
    return Redacted(data.decode(), tuple(sorted(found, key=lambda finding: finding.line)))


def _spans(data: bytes, code: bool) -> list[_Span]:
    """Return all secrets in `data`, in order. Overlapping ones are merged and have the kind of the first."""
    candidates = list(_candidates(data, code))
    spans: list[_Span] = []
    ours = (span for span in candidates if span.kind)
    for span in sorted([*_by_library(data, candidates), *ours], key=lambda span: span.start):
        if spans and span.start < spans[-1].end:
            spans[-1] = spans[-1]._replace(end=max(spans[-1].end, span.end))
        else:
            spans.append(span)
    return spans


def _candidates(data: bytes, code: bool) -> Iterator[_Span]:
    """Yield possible secrets.

    A candidate with a kind was found by m3agent's own rules. One without a kind must be judged by the
    library. For code there are fewer candidates, but never additional ones.
    """
    known = 0  # end of the last value; names inside values are ignored
    for index, start, end in rules.anchors().find_matches_as_indexes(data.lower(), overlapping=True):
        group = rules.GROUPS[index]
        if group == "name":
            if start < known or not (match := rules.VALUE.match(data, end)):
                continue
            first, known = _extent(data, match)
            if not _random(data[first:known]) or _harmless(data, start, match["name"]):
                continue
            if rules.WEB_TOKEN.match(data, first, known):
                yield _Span(first, known, "")  # the library decides by its content
            elif not (code and match["bare"]) or rules.WORD.fullmatch(data, first, known):
                name = data[start:end].lower().decode()
                yield _Span(first, known, "password" if name in rules.PASSWORDS else "secret")
        elif group == "private key":
            if key := _private_key(data, start):
                yield key
        elif _worth_a_look(data, start, end, group):
            yield _Span(start, end, "")


def _extent(data: bytes, match: re.Match[bytes]) -> tuple[int, int]:
    """Return start and end of an assigned value.

    A random-looking value in quotes is taken completely. Otherwise the value ends before any further URL
    parameter.
    """
    assert match.lastindex is not None  # the value's group
    first, last = match.span(match.lastindex)
    if not match["bare"] and _random(data[first:last]):
        return first, last
    if parameter := rules.PARAMETER.search(data, first, last):
        return first, parameter.start()
    if match["bare"] and _varied(data[first:last]) and (rest := rules.REST.match(data, last)):
        return first, rest.end()
    return first, last


def _harmless(data: bytes, start: int, rest: bytes) -> bool:
    """Return whether a name is one of values that are not secret.

    The name's anchor begins at data[start:]; `rest` is the part of the name after the anchor.
    """
    before = rules.HARMLESS_START.search(data, max(0, start - 16), start)
    return before is not None or rules.HARMLESS_END.search(rest) is not None


def _worth_a_look(data: bytes, start: int, end: int, group: str) -> bool:
    """Return whether the text after the anchor data[start:end] may be part of a token or a password."""
    if group in ("authorization", "url"):
        value = (rules.USERINFO if group == "url" else rules.AUTHORIZATION).match(data, end)
        return value is not None and _random(value[1])
    if group == "beginning":
        # At the start of a word, or after an escape such as \n.
        before = data[max(0, start - 2) : start]
        if before[-1:].isalnum() and before[:1] != b"\\":
            return False
    return rules.TOKEN.match(data, end) is not None


def _private_key(data: bytes, start: int) -> _Span | None:
    """Return the text between the BEGIN and END lines of a private key, if there is one.

    The BEGIN line contains data[start:].
    """
    armor = rules.ARMOR.match(data, max(0, data.rfind(b"-----BEGIN ", max(0, start - 52), start)))
    if armor is None or armor.end() < start:
        return None
    body = rules.BODY.match(data, armor.end())
    assert body is not None  # the match can be empty
    pieces = rules.PIECE.finditer(data, *body.span())
    lines = [piece for piece in pieces if piece[1] and len(piece[1]) >= _LINE]
    if not lines or not _random(lines[0][1]):
        return None
    # Without an END line, the match may include words after the key.
    end = body.end() if data.startswith(b"-----END", body.end()) else lines[-1].end()
    return _Span(body.start(), end, "private-key")


def _random(value: bytes) -> bool:
    """Return whether a value looks random, before and after decoding, and is not a placeholder."""
    if not _varied(value) or rules.PLACEHOLDER.search(value):
        return False
    plain = _plain(value)
    return plain == value or _varied(plain)


def _varied(value: bytes) -> bool:
    """Return whether a value switches between character classes as often as random values do."""
    changes = [match.start() for match in rules.CHANGE.finditer(value, 0, _ENOUGH)]
    return (
        len(value) >= _SHORTEST
        and len(set(value)) >= _DISTINCT
        and any(
            after - before < _WITHIN for before, after in zip(changes, changes[_CHANGES - 1 :], strict=False)
        )
    )


def _plain(value: bytes) -> bytes:
    """Return a value without URL encoding, or the password in the value of `Authorization: Basic`."""
    from base64 import b64decode
    from urllib.parse import unquote_to_bytes

    try:
        decoded = b64decode(value, validate=True)
    except ValueError:
        return unquote_to_bytes(value)
    return decoded.rpartition(b":")[2] if decoded.isascii() else value


def _by_library(data: bytes, candidates: Iterable[_Span]) -> Iterator[_Span]:
    """Yield the library's findings around the candidates."""
    from redact_secret import scan

    seen = 0
    for candidate in candidates:
        if candidate.kind == "private-key" or candidate.start < seen:
            continue
        start, end = _window(data, candidate)
        seen = end if end - start < _STEP else start + _STEP
        # An escape such as \n before a token does not belong to its word.
        text = rules.ESCAPE.sub("  ", data[start:end].decode())
        for finding in scan(text, ruleset=rules.RULESET):
            secret = text[finding.start : finding.end].encode()
            if _accepted(finding.type, secret):
                first = start + len(text[: finding.start].encode())
                yield _Span(first, first + len(secret), rules.kind_of(finding.type))


def _window(data: bytes, candidate: _Span) -> tuple[int, int]:
    """Return the line of a candidate, or the part of it that the library gets.

    It contains only complete characters.
    """
    earliest = max(0, candidate.start - _BEFORE)
    start = data.rfind(b"\n", earliest, candidate.start) + 1 or earliest
    end = data.find(b"\n", candidate.end, start + _WINDOW)
    if end < 0:
        end = min(start + _WINDOW, len(data))
    while _within_character(data, start):
        start += 1
    while _within_character(data, end):
        end -= 1
    return start, end


def _within_character(data: bytes, position: int) -> bool:
    return position < len(data) and 0x80 <= data[position] < 0xC0


def _accepted(found: str, secret: bytes) -> bool:
    """Return whether a finding of the library, with its type name `found`, is to be replaced."""
    if found in ("contextual_secret", "private_key"):
        return False  # m3agent's own rules find these
    if found == "jwt" and not _alive(secret):
        return False
    if found.startswith(("authorization_", "bearer_", "connection_", "otpauth_", "vendor_")):
        return _random(secret)  # the context is weaker evidence than a provider's format
    return len(set(secret)) >= _DISTINCT and not rules.PLACEHOLDER.search(secret)


def _alive(token: bytes) -> bool:
    """Return whether a JSON web token may still be valid.

    Tokens in tests and manuals have no claims or expired long ago.
    """
    import json
    from base64 import urlsafe_b64decode

    try:
        claims = json.loads(urlsafe_b64decode(token.split(b".")[1] + b"=="))
        if _CLAIMS.isdisjoint(claims) or claims.get("sub") == _NOBODY:
            return False
        return float(claims.get("exp", _RECENT)) >= _RECENT
    except (ValueError, IndexError, TypeError, AttributeError, OverflowError, RecursionError):
        return True  # encrypted or unusual


def _replace(data: bytes, spans: Iterable[_Span]) -> tuple[bytes, list[Finding]]:
    parts: list[bytes] = []
    found: list[Finding] = []
    end, line = 0, 1
    for span in spans:
        line += data.count(b"\n", end, span.start)
        found.append(Finding(span.kind, line))
        secret = data[span.start : span.end]
        parts += data[end : span.start], _in_its_place(secret, span.kind)
        line += secret.count(b"\n")
        end = span.end
    return b"".join((*parts, data[end:])), found


def _in_its_place(secret: bytes, kind: str) -> bytes:
    """Return a marker; for a private key, its lines with a marker in each, and the other text unchanged."""
    marker = f"<REDACTED:{kind}>".encode()
    if kind != "private-key":
        return marker
    return rules.PIECE.sub(lambda piece: marker if piece[1] else piece[0], secret)
