"""How a file's chunk of the prompt comes about from its bytes. A chunk starts with `<` and ends with a newline."""

from __future__ import annotations

PLAIN, CRLF, STORED, REDACTED = range(4)
"""The bytes as they are; with line ends made `\\n`; a text kept beside the cache, without or with secrets redacted."""

FIRST_REASON = 16
"""Forms from here on are files left out: positions in `rules.BY_CONTENT`."""

BYTES_PER_TOKEN = 3
"""Estimate without a tokenizer. Source code has 3.5 to 4.5 bytes a token (o200k_base over ten repositories), so this
overstates what is used, except for text like base64."""

_AWKWARD = frozenset('&<>"[]')


def estimate(chunk: bytes) -> int:
    """Tokens of a chunk where no tokenizer is at hand."""
    return -(-len(chunk) // BYTES_PER_TOKEN)


def as_they_are(form: int, name: bytes, data: bytes) -> list[bytes]:
    """The chunk, in pieces, of a file of form `PLAIN` or `CRLF`; `name` as `shown_name` gives it."""
    if form == PLAIN:
        return framed(name, data, b"")
    return framed(name, data.replace(b"\r\n", b"\n"), b' eol="crlf"')


def framed(name: bytes, body: bytes, attributes: bytes) -> list[bytes]:
    """The chunk of a file with this text; `attributes` begin with a space or are empty."""
    end = b"</file>\n" if not body or body[-1] == 10 else b"\n</file>\n"
    return [b'<file path="%b"%b>\n' % (name, attributes), body, end]


def shown_name(path: str) -> bytes:
    """A path as chunks and notes show it: on one line, quoted for an attribute, with nothing reserved in it."""
    if path.isascii() and path.isprintable() and _AWKWARD.isdisjoint(path):
        return path.encode()
    from m3agent.agent.context.text import attribute

    return attribute(path).encode()
