"""Makes a file's chunk of the prompt when no earlier pack has: reads, neutralises, redacts."""

from __future__ import annotations

from m3agent.agent.context.forms import CRLF, FIRST_REASON, PLAIN, REDACTED, STORED, as_they_are, framed
from m3agent.agent.context.rules import BY_CONTENT, reason_by_content
from m3agent.agent.context.secrets import redact, suspicious
from m3agent.agent.context.text import decode, harmless, is_harmless

_BOM = b"\xef\xbb\xbf"


def make(name: bytes, path: str, data: bytes) -> tuple[int, bytes]:
    """The form and the chunk of a file; for a file left out, its reason's form and nothing.

    `name` as `forms.shown_name` gives it for `path`.
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
