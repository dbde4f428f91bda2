"""Make a file's chunk of the prompt if it is not cached: decode, neutralise and redact the text."""

from __future__ import annotations

from m3agent.agent.context.chunk_format import (
    CRLF,
    FIRST_REASON,
    PLAIN,
    REDACTED,
    STORED,
    as_they_are,
    framed,
)
from m3agent.agent.context.neutralise import decode, harmless, is_harmless
from m3agent.agent.context.rules import BY_CONTENT, reason_by_content
from m3agent.agent.context.secrets import Redacted, redact, suspicious

_BOM = b"\xef\xbb\xbf"


def make(name: bytes, path: str, data: bytes) -> tuple[int, bytes]:
    """Return the form and the chunk of a file.

    If the file is left out, return the form that stands for the reason, and no bytes.

    Args:
        name: The path as `chunk_format.shown_name` returns it.
    """
    reason = reason_by_content(data)
    if reason is not None:
        return FIRST_REASON + BY_CONTENT.index(reason), b""
    text, line_ends, encoding = decode(data)
    as_it_is = encoding == "utf-8" and not data.startswith(_BOM) and "\N{REPLACEMENT CHARACTER}" not in text
    if as_it_is and line_ends in ("lf", "crlf") and is_harmless(text) and not suspicious(data):
        form = PLAIN if line_ends == "lf" else CRLF
        return form, b"".join(as_they_are(form, name, data))
    redacted = redact(harmless(text), path)
    attributes = "" if line_ends == "lf" else f' eol="{line_ends}"'
    if encoding != "utf-8":
        attributes += f' encoding="{encoding}"'
    form = REDACTED if redacted.found else STORED
    return form, b"".join(framed(name, redacted.text.encode(), attributes.encode()))


def text_of_large(path: str, data: bytes, *, complete: bool) -> Redacted | None:
    """Return the text of a file that is too large to be packed, as the prompt would show it.

    Args:
        data: The file's content, or its beginning.
        complete: Whether `data` is the complete file. If not, what may be cut at the end is left out.

    Returns:
        None if the file is left out for another reason than its size.
    """
    if reason_by_content(data, largest=len(data)) is not None:
        return None
    if not complete:
        data = data[: data.rfind(b"\n") + 1]
        key = data.rfind(b"-----BEGIN ")
        if key >= 0 and b"-----END " not in data[key:]:  # without its end it would not be redacted
            data = data[:key]
    return redact(harmless(decode(data).text), path)
