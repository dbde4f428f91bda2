"""Finds secrets in a file's text and puts a marker such as `<REDACTED:github-token>` in the place of each.

What is found: keys and tokens in the formats of some hundred providers, JSON web tokens, passwords in URLs and in
Authorization headers (all these the library `redact-secret` judges); private keys; and values that look random and are
assigned to a name such as `password` or `API_KEY`. What stays, because a model must be able to edit test suites and
manuals: plain words, examples and placeholders, test keys, and what looks random but has no name or format of a secret.

The same secret becomes the same marker in every run. Line numbers stay, and redacting once more changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from m3agent.agent.context.languages import is_code
from m3agent.agent.context.secret_rules import PASSWORDS, RULESET, kind_of, rules

if TYPE_CHECKING:
    import re

NOTATION_SECRETS = (
    "A marker such as <REDACTED:github-token> stands for a secret that the file itself has in that place; of a private "
    "key every line has one. Leave such lines as they are, and never write a marker into a file."
)
"""Tells the model what the markers are."""

_ROUNDS = 4
"""Taking out one secret can bring to light another, in what is left of a longer match; one round nearly always does."""

_SHORTEST, _CHANGES, _WITHIN, _DISTINCT = 12, 4, 16, 8
"""What looks random has so many characters, so many changes of their kind within so many, and so many different ones."""

_ENOUGH = 256
"""Bytes that show whether a value looks random."""

_LINE = 40
"""Characters that the longest line of a private key has at least; 64 is usual."""

_CLAIMS = frozenset({"aud", "exp", "iat", "iss", "jti", "nbf", "sub"})
"""The names of claims that RFC 7519 registers."""

_NOBODY = "1234567890"
"""The subject of the examples of jwt.io, which many manuals took over."""

_RECENT = 1767225600
"""2026-01-01 UTC; a constant, so that a file gives the same text every day."""

_BEFORE, _WINDOW, _STEP = 256, 3072, 2048
"""The library sees a line. Of a longer line it sees windows, as its time can grow with the square of the length: each
begins so many bytes before what is worth a look, is so long, and overlaps the next so that tokens of 1 KiB are whole."""


class Finding(NamedTuple):
    """A secret that was replaced: what it is (of `secret_rules.KINDS`), and its line, counted from 1."""

    kind: str
    line: int


class Redacted(NamedTuple):
    """A text without its secrets, and what was replaced, by line."""

    text: str
    found: tuple[Finding, ...]


class _Span(NamedTuple):
    start: int
    end: int
    kind: str


def suspicious(data: bytes) -> bool:
    """Whether a file of these bytes may hold a secret. If False, `redact` leaves its text as it is.

    That holds for UTF-8 with any line ends, for UTF-16, and for encodings that agree with ASCII.
    """
    # With zeros it may be UTF-16, where the letters of an anchor stand apart.
    return b"\0" in data or next(_candidates(data, code=False), None) is not None


def redact(text: str, path: str) -> Redacted:
    """`text`, the content of the file `path`, with a marker in place of each secret.

    The path tells whether what is assigned without quotes may be an expression. An empty one is that of no program.
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
    """All secrets in `data`, in order; those that overlap are one, of the kind of the first."""
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
    """What may be secret: a secret by our own rules, or, without a kind, something for the library to judge.

    In code there are fewer, never others.
    """
    groups = rules().groups
    known = 0  # where the last value ends; names within values are not looked at
    for index, start, end in rules().anchors.find_matches_as_indexes(data.lower(), overlapping=True):
        group = groups[index]
        if group == "name":
            if start < known or not (match := rules().value.match(data, end)):
                continue
            first, known = _extent(data, match)
            if not _random(data[first:known]) or _harmless(data, start, match["name"]):
                continue
            if rules().web_token.match(data, first, known):
                yield _Span(first, known, "")  # what it says decides
            elif not (code and match["bare"]) or rules().word.fullmatch(data, first, known):
                name = data[start:end].lower().decode()
                yield _Span(first, known, "password" if name in PASSWORDS else "secret")
        elif group == "private key":
            if key := _private_key(data, start):
                yield key
        elif _worth_a_look(data, start, end, group):
            yield _Span(start, end, "")


def _extent(data: bytes, match: re.Match[bytes]) -> tuple[int, int]:
    """Where an assigned value begins and ends. Of a URL, the value of one parameter; but it may be any text in quotes."""
    assert match.lastindex is not None  # the group of the value
    first, last = match.span(match.lastindex)
    if not match["bare"] and _random(data[first:last]):
        return first, last
    if parameter := rules().parameter.search(data, first, last):
        return first, parameter.start()
    if match["bare"] and _varied(data[first:last]) and (rest := rules().rest.match(data, last)):
        return first, rest.end()
    return first, last


def _harmless(data: bytes, start: int, rest: bytes) -> bool:
    """Whether the name that has an anchor at data[start:], and `rest` after it, is one of values that are not secret."""
    before = rules().harmless_start.search(data, max(0, start - 16), start)
    return before is not None or rules().harmless_end.search(rest) is not None


def _worth_a_look(data: bytes, start: int, end: int, group: str) -> bool:
    """Whether what follows the anchor data[start:end] may belong to a token or a password."""
    if group in ("authorization", "url"):
        value = (rules().userinfo if group == "url" else rules().authorization).match(data, end)
        return value is not None and _random(value[1])
    if group == "beginning":
        # At the beginning of a word, or after an escape such as \n.
        before = data[max(0, start - 2) : start]
        if before[-1:].isalnum() and before[:1] != b"\\":
            return False
    return rules().token.match(data, end) is not None


def _private_key(data: bytes, start: int) -> _Span | None:
    """What stands between the BEGIN and END lines of the private key in whose BEGIN line data[start:] is."""
    armor = rules().armor.match(data, max(0, data.rfind(b"-----BEGIN ", max(0, start - 52), start)))
    if armor is None or armor.end() < start:
        return None
    body = rules().body.match(data, armor.end())
    assert body is not None  # it can be empty
    pieces = rules().piece.finditer(data, *body.span())
    lines = [piece for piece in pieces if piece[1] and len(piece[1]) >= _LINE]
    if not lines or not _random(lines[0][1]):
        return None
    # Without an END line, words after the key may have been taken for lines of it.
    end = body.end() if data.startswith(b"-----END", body.end()) else lines[-1].end()
    return _Span(body.start(), end, "private-key")


def _random(value: bytes) -> bool:
    """Whether a value looks random, with and without its encoding, and is no placeholder."""
    if not _varied(value) or rules().placeholder.search(value):
        return False
    plain = _plain(value)
    return plain == value or _varied(plain)


def _varied(value: bytes) -> bool:
    """Whether a value changes so often between kinds of characters as random ones do."""
    changes = [match.start() for match in rules().change.finditer(value, 0, _ENOUGH)]
    return (
        len(value) >= _SHORTEST
        and len(set(value)) >= _DISTINCT
        and any(
            after - before < _WITHIN for before, after in zip(changes, changes[_CHANGES - 1 :], strict=False)
        )
    )


def _plain(value: bytes) -> bytes:
    """A value without the encoding of URLs; or the password in what follows `Authorization: Basic`."""
    from base64 import b64decode
    from urllib.parse import unquote_to_bytes

    try:
        decoded = b64decode(value, validate=True)
    except ValueError:
        return unquote_to_bytes(value)
    return decoded.rpartition(b":")[2] if decoded.isascii() else value


def _by_library(data: bytes, candidates: Iterable[_Span]) -> Iterator[_Span]:
    """What the library finds around the candidates."""
    from redact_secret import scan

    seen = 0
    for candidate in candidates:
        if candidate.kind == "private-key" or candidate.start < seen:
            continue
        start, end = _window(data, candidate)
        seen = end if end - start < _STEP else start + _STEP
        # An escape such as \n before a token is no part of its word.
        text = rules().escape.sub("  ", data[start:end].decode())
        for finding in scan(text, ruleset=RULESET):
            secret = text[finding.start : finding.end].encode()
            if _accepted(finding.type, secret):
                first = start + len(text[: finding.start].encode())
                yield _Span(first, first + len(secret), kind_of(finding.type))


def _window(data: bytes, candidate: _Span) -> tuple[int, int]:
    """The line of a candidate, or as much of it as the library is to see; whole characters."""
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
    """Whether something that the library found, of a type that it calls `found`, is to be replaced."""
    if found in ("contextual_secret", "private_key"):
        return False  # by our own rules
    if found == "jwt" and not _alive(secret):
        return False
    if found.startswith(("authorization_", "bearer_", "connection_", "otpauth_", "vendor_")):
        return _random(secret)  # their surroundings say less than the format of a provider
    return len(set(secret)) >= _DISTINCT and not rules().placeholder.search(secret)


def _alive(token: bytes) -> bool:
    """Whether a JSON web token may still open something. Those in tests and manuals claim nothing or expired long ago."""
    import json
    from base64 import urlsafe_b64decode

    try:
        claims = json.loads(urlsafe_b64decode(token.split(b".")[1] + b"=="))
        if _CLAIMS.isdisjoint(claims) or claims.get("sub") == _NOBODY:
            return False
        return float(claims.get("exp", _RECENT)) >= _RECENT
    except (ValueError, IndexError, TypeError, AttributeError, OverflowError, RecursionError):
        return True  # encrypted, or unusual


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
    """A marker; of a private key, its lines with a marker in each and all that stands around the key's own text."""
    marker = f"<REDACTED:{kind}>".encode()
    if kind != "private-key":
        return marker
    return rules().piece.sub(lambda piece: marker if piece[1] else piece[0], secret)
