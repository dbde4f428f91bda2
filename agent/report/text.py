"""Format texts and numbers for the page. Text from a model or a repository is shown, never interpreted.

The template escapes markup itself. `visible` is for untrusted text: it replaces characters that are invisible or change
the order of the text with visible names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup, escape

UNKNOWN = "–"  # noqa: RUF001  # an en dash is what a table shows for "unknown"

INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\ud800-\udfff"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Control characters except tab and newline, characters that change the direction of writing, zero-width characters,
fillers, lone surrogates, and tag characters. Trojan Source (CVE-2021-42574) and "ASCII smuggling" use them."""

DATA = re.compile(r"[A-Za-z0-9+/=_-]{120,}")
"""A run of characters as in base64 or hexadecimal, longer than any word or digest that people read (SHA-512 has 128 digits in
hexadecimal, which nobody reads to the end)."""

_C0_NAMES = (
    "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI "
    "DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US"
)
_C0 = _C0_NAMES.split()  # names of ISO 646; few fonts contain Unicode's symbols for these characters


@dataclass(frozen=True)
class Excerpt:
    """A text whose middle is left out if it is too long."""

    head: str
    tail: str
    """The end; empty if nothing is left out."""
    omitted: int


def excerpt(text: str, limit: int) -> Excerpt:
    """Return at most `limit` characters of a text: two thirds from its beginning, the rest from its end."""
    if len(text) <= limit:
        return Excerpt(text, "", 0)
    head = limit * 2 // 3
    tail = limit - head
    return Excerpt(text[:head], text[len(text) - tail :], len(text) - limit)


def without_data(text: str) -> str:
    """Replace encoded data, such as base64, by its length. Programs send it to each other; it tells people nothing."""
    return DATA.sub(lambda found: f"({len(found[0]):,} characters of data)", text)


def visible(text: object) -> Markup:
    """Return a text as HTML, with markup escaped and invisible characters shown by name."""
    return Markup(INVISIBLE.sub(_named, str(escape(str(text)))))  # noqa: S704  # escaped in this very line


def plain(text: object) -> str:
    """Return a text with invisible characters replaced, for places that take no markup (the title, labels)."""
    return INVISIBLE.sub("\ufffd", str(text))


def one_line(text: str, limit: int) -> str:
    """Return a text on one line of at most `limit` characters, cut at its end."""
    line = " ".join(text[: limit * 8].split())  # eight times the limit is enough for dropped whitespace
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _named(match: re.Match[str]) -> str:
    code = ord(match[0])
    name = _C0[code] if code < len(_C0) else f"U+{code:04X}"
    return f'<b class="odd">{name}</b>'


def count(value: float | None) -> str:
    """Format a number: `13,654`."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def short_count(value: float) -> str:
    """Format a number with three digits, for ticks of an axis and changing rows: `950`, `13.7k`, `1.5M`."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return three_digits(value / size) + unit
    return f"{value:g}"


def three_digits(value: float) -> str:
    """Format a number with three significant digits, and all digits before its point."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def share(value: float | None) -> str:
    """Format a share (0 to 1) as a percentage: `99.8%`."""
    return UNKNOWN if value is None else f"{value:.1%}"


def speed(value: float | None) -> str:
    """Format a speed in tokens per second, without the unit."""
    return UNKNOWN if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def price(value: float | None) -> str:
    """Format a price in US dollars: `$1.25`, with four digits below one dollar."""
    if value is None:
        return UNKNOWN
    return "$0" if value == 0 else f"${value:,.2f}" if value >= 1 else f"${value:.4f}"


def duration(value: float | None) -> str:
    """Format a duration in seconds: `0.5 s`, `3 min 12 s`, `2 h 5 min`."""
    if value is None:
        return UNKNOWN
    if value < 10:
        return f"{value:.1f} s" if value >= 0.1 else f"{value * 1000:.0f} ms"
    seconds = round(value)
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def size(value: float | None) -> str:
    """Format a size in bytes: `107 kB`."""
    if value is None:
        return UNKNOWN
    for unit, unit_bytes in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= unit_bytes:
            return f"{three_digits(value / unit_bytes)} {unit}"
    return f"{value:.0f} B"


def moment(stamp: str) -> str:
    """Format a log's timestamp as `2026-01-31 12:00:00 UTC`; return it unchanged if it is not valid."""
    parsed = instant(stamp)
    return stamp if parsed is None else f"{parsed:%Y-%m-%d %H:%M:%S} UTC"


def ago(stamp: str, now: datetime) -> str:
    """Return how long ago a log's timestamp was: `2 h ago`; the day if that was more than a month ago."""
    parsed = instant(stamp)
    if parsed is None:
        return UNKNOWN
    minutes = int((now - parsed).total_seconds() // 60)
    if minutes < 1:
        return "just now"
    for unit, of_minutes, most in (("min", 1, 60), ("h", 60, 48), ("days", 1440, 31)):
        if minutes < most * of_minutes:
            return f"{minutes // of_minutes} {unit} ago"
    return f"{parsed:%Y-%m-%d}"


def instant(stamp: str) -> datetime | None:
    """Parse a log's timestamp; return None if it is not valid or has no time zone."""
    try:
        parsed = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None
