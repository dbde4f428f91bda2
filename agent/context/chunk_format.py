"""The forms in which a file's bytes become its chunk of the prompt.

A chunk starts with `<` and ends with a newline.
"""

from __future__ import annotations

PLAIN, CRLF, STORED, REDACTED = range(4)
"""Forms: bytes unchanged; CRLF replaced by LF; text stored with the cache; the same with redacted secrets."""

FIRST_REASON = 16
"""This form and higher ones mean that the file is left out; the rest is an index in `rules.BY_CONTENT`."""

BYTES_PER_TOKEN = 3
"""Estimate for use without a tokenizer.

Source code has 3.5 to 4.5 bytes per token (o200k_base over ten repositories). The estimate is therefore too
high, except for text like base64.
"""

_AWKWARD = frozenset('&<>"[]')


def estimate(chunk: bytes) -> int:
    """Return the estimated number of tokens of a chunk."""
    return -(-len(chunk) // BYTES_PER_TOKEN)


def as_they_are(form: int, name: bytes, data: bytes) -> list[bytes]:
    """Return the pieces of a chunk of the form `PLAIN` or `CRLF`; `name` comes from `shown_name`."""
    if form == PLAIN:
        return framed(name, data, b"")
    return framed(name, data.replace(b"\r\n", b"\n"), b' eol="crlf"')


def framed(name: bytes, body: bytes, attributes: bytes) -> list[bytes]:
    """Return the pieces of a chunk with this body; `attributes` is empty or begins with a space."""
    end = b"</file>\n" if not body or body[-1] == 10 else b"\n</file>\n"
    return [b'<file path="%b"%b>\n' % (name, attributes), body, end]


def shown_name(path: str) -> bytes:
    """Return a path as chunks and notes show it.

    It is on one line and quoted as an attribute, and reserved strings in it are escaped.
    """
    if path.isascii() and path.isprintable() and _AWKWARD.isdisjoint(path):
        return path.encode()
    from m3agent.agent.context.neutralise import attribute

    return attribute(path).encode()
