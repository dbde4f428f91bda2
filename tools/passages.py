"""Find a passage of a file that a model wants to replace, even if the model copied it imperfectly.

The ways to read a passage are tried in turn, and the first way that fits somewhere decides. If it fits in several places,
nothing is replaced.
"""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from m3agent.tools.base import MOST_CHARACTERS, cut, visible
from m3agent.tools.text_file import common, lf_only, with_line_ends

NEAREST = 3  # places shown when the text to replace is not found
ALIKE = 0.5  # least similarity of such a place's first line, from 0 to 1
COMPARED = 200  # characters of a line that are compared for that
LISTED = 10  # line numbers given when the text is found more than once

_FENCED = re.compile(r"\s*```[\w+.-]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)
_NUMBERED = re.compile(r"[ \t]*(\d{1,9})(?:\t|→|[ \t]*\|[ ]?|: ?)(.*)")
_QUOTE = re.compile(r"\\([\"'])")
_ESCAPE = re.compile(r"\\([\"'\\ntr])")
_MEANINGS = {"n": "\n", "t": "\t", "r": ""}

Reading = Callable[[str], str | None]
"""Reads a passage in one way; returns None, or the passage itself, if it is not written in that way."""


@dataclass(frozen=True)
class Replaced:
    """A text in which a passage was replaced."""

    text: str
    how: str = ""
    """How the passage was read, if it was not in the text as it was given."""


def replace(content: str, old: str, new: str, *, every: bool = False) -> Replaced | list[int]:
    """Replace `old` by `new` if `old` occurs exactly once.

    Each line keeps its line end. The passage is searched as it is, without trailing white space, with another
    indentation, with other blanks, and then without what models add when they copy: line numbers, a fence, entities,
    escapes.

    Args:
        content: The text, with any line ends.
        every: Replace the passage wherever it occurs as it is.

    Returns:
        The new text; or the numbers of the lines where `old` begins, if it occurs several times or never.
    """
    text, old, new = lf_only(content), lf_only(old), lf_only(new)
    if every and old and old in text:
        return Replaced(with_line_ends(content, text.replace(old, new)))
    places = _replace_once(text, old, new)
    for how, reading in READINGS:
        if places != []:
            break
        passage = reading(old)
        if passage is None or passage == old or not passage.strip():
            continue
        replacement = reading(new)
        if replacement is None and reading is without_numbers and any(map(_NUMBERED.fullmatch, split(new))):
            return []
        places = _replace_once(text, passage, new if replacement is None else replacement)
        if isinstance(places, Replaced):
            places = Replaced(places.text, how)
    return (
        Replaced(with_line_ends(content, places.text), places.how) if isinstance(places, Replaced) else places
    )


def _replace_once(content: str, old: str, new: str) -> Replaced | list[int]:
    starts, at = [], content.find(old)
    while at >= 0:
        starts.append(at)
        at = content.find(old, at + 1)  # overlapping occurrences count separately
    if len(starts) == 1:
        return Replaced(content[: starts[0]] + new + content[starts[0] + len(old) :])
    if starts:
        return [content.count("\n", 0, start) + 1 for start in starts[: LISTED + 1]]
    for normal in (_trimmed, _dedented):
        starts_of_lines = _find_lines(content, old, normal)
        if len(starts_of_lines) > 1:
            return [line + 1 for line in starts_of_lines]
        if starts_of_lines:
            return Replaced(_replace_lines(content, old, new, starts_of_lines[0]))
    return _replace_blanks(content, old, new)


def nearest(content: str, old: str) -> str:
    """Describe the passages that are most similar to a missing text, so that the model can correct itself."""
    lines = split(content)
    wanted = split(old.strip("\r\n"))
    span = max(1, len(wanted))
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[0].strip()[:COMPARED] if wanted else "")
    scored: list[tuple[float, int]] = []
    for number, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:COMPARED])
        if matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE:
            scored.append((matcher.ratio(), number))
    shown = [
        "\n".join(f"{n + 1}\t{visible(lines[n])}" for n in range(number, min(len(lines), number + span)))
        for score, number in sorted(scored, key=lambda item: (-item[0], item[1]))[:NEAREST]
        if score >= ALIKE
    ]
    if not shown:
        return " No line of the file is similar to its first line."
    return cut(" Nearest lines:\n" + "\n...\n".join(shown), MOST_CHARACTERS // 3)


def split(text: str) -> list[str]:
    """Split into lines as editors and tracebacks count them: only LF and CR LF end a line."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def without_fence(text: str) -> str | None:
    """Return the content of a fenced block if the whole text is one; else None."""
    fenced = _FENCED.fullmatch(text)
    return None if fenced is None or "\n```" in fenced[1] else fenced[1]


def without_numbers(text: str) -> str | None:
    """Return the lines without the numbers before them; None unless all are numbered, in a row."""
    numbered = [_NUMBERED.fullmatch(line) for line in split(text)]
    rows = [match for match in numbered if match is not None]
    first = int(rows[0][1]) if rows else 0
    if (
        not rows
        or len(rows) < len(numbered)
        or [int(row[1]) for row in rows] != [*range(first, first + len(rows))]
    ):
        return None
    return "\n".join(row[2] for row in rows) + ("\n" if text.endswith("\n") else "")


READINGS: tuple[tuple[str, Reading], ...] = (
    ("without its fence", without_fence),
    ("without its line numbers", without_numbers),
    ("with its entities, such as &amp;, as characters", html.unescape),
    ('with \\" as a plain quote', partial(_QUOTE.sub, r"\1")),
    (
        "with its escapes, such as \\n, as characters",
        partial(_ESCAPE.sub, lambda match: _MEANINGS.get(match[1], match[1])),
    ),
)


def _trimmed(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines]


def _dedented(lines: list[str]) -> list[str]:
    margin = len(_margin(lines))
    return [line[margin:].rstrip() for line in lines]


def _find_lines(content: str, old: str, normal: Callable[[list[str]], list[str]]) -> list[int]:
    """Return the numbers (from 0) of the lines where `old` begins if both texts are normalised."""
    lines, passage = split(content), split(old.strip("\r\n"))
    first = next((n for n, line in enumerate(passage) if line.strip()), None)
    if first is None:
        return []
    wanted, key, span = normal(passage), passage[first].strip(), len(passage)
    return [
        start
        for start in range(len(lines) - span + 1)
        if lines[start + first].strip() == key and normal(lines[start : start + span]) == wanted
    ]


def _replace_lines(content: str, old: str, new: str, start: int) -> str:
    lines = content.split("\n")
    passage = split(old.strip("\n"))
    end = start + len(passage)
    have, want = _margin(passage), _margin(lines[start:end])
    replacement = [_indented(line, have, want) for line in split(new.strip("\n"))]
    return "\n".join(lines[:start] + replacement + _rest(lines, end, replacement))


def _rest(lines: list[str], end: int, replacement: list[str]) -> list[str]:
    """Return the lines behind a passage; a passage that ends the file leaves the line end before it."""
    return lines[end:] if end < len(lines) or replacement else [""]


def _replace_blanks(content: str, old: str, new: str) -> Replaced | list[int]:
    """Replace a passage that differs from the text in blanks; return an empty list if an indentation is uncertain."""
    passage = split(old.strip("\n"))
    words = [line.split() for line in passage]
    if not any(words):
        return []
    left = r"(?<!\w)" if re.match(r"\s*\w", old) else ""
    right = r"(?!\w)" if re.search(r"\w\s*$", old) else ""
    lines = (r"[^\S\n]++".join(map(re.escape, line)) for line in words)
    pattern = left + r"[^\S\n]*+\n[^\S\n]*+".join(lines) + right
    places = list(islice(re.finditer(pattern, content), LISTED + 1))
    if len(places) != 1:
        return [content.count("\n", 0, place.start()) + 1 for place in places]
    start, end = places[0].span()
    begin = content.rfind("\n", 0, start) + 1
    is_indented = not content[begin:start].strip()
    if passage[0][:1].isspace() and not is_indented:
        return []
    start = begin if is_indented else start
    replacement = _with_blanks_of(content[start:end].split("\n"), passage, split(new.strip("\n")))
    if replacement is None:
        return []
    text = "\n".join(replacement)
    if not replacement and is_indented and content.startswith("\n", end):
        end += 1
    return Replaced(f"{content[:start]}{text}{content[end:]}", "with the file's blanks")


def _with_blanks_of(present: list[str], passage: list[str], new: list[str]) -> list[str] | None:
    """Return new lines with the blanks that the file has where the passage has others; None if they are uncertain."""
    known: dict[str, set[str]] = {}
    for given, there in zip(passage, present, strict=True):
        known.setdefault(given, set()).add(there)
        if given.strip():
            known.setdefault(_margin([given]), set()).add(_margin([there]))
    replacement = []
    for line in new:
        begin = line if line in known or not line.strip() else _margin([line])
        meant = known.get(begin, {begin} if not line.strip() else set())
        if len(meant) != 1:
            return None
        replacement.append(min(meant) + line[len(begin) :])
    return replacement


def _indented(line: str, have: str, want: str) -> str:
    """Change the indentation of a line from that of one passage (`have`) to that of another (`want`)."""
    if not line.strip() or have == want:
        return line
    if line.startswith(have):
        return want + line[len(have) :]
    if want.startswith(have):  # the line is indented less than its passage: keep the difference
        return want[len(have) :] + line
    return line[min(len(_margin([line])), max(0, len(have) - len(want))) :]


def _margin(lines: Sequence[str]) -> str:
    """Return the indentation that all lines except blank ones share."""
    indents = [line[: len(line) - len(line.lstrip())] for line in lines if line.strip()]
    # what the first and the last in alphabetical order have in common, all have in common
    return min(indents)[: common(min(indents), max(indents))] if indents else ""
