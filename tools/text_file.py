"""Text files as they are: a change of the text keeps the encoding, and each line's own end."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from m3agent.tools.base import visible
from m3agent.util.text_encoding import UTF8, TextEncoding, declared_encoding, encoding_of

MOST_COMPARED = 2000
"""Most changed lines that are compared one by one, to keep the ends of those that stay."""


class CannotEncode(ValueError):
    """The file's encoding lacks a character of the new text."""


@dataclass(frozen=True)
class TextFile:
    """The text of a file, and how the file stores it."""

    text: str = ""
    """The text with the line ends that the file has."""
    encoding: TextEncoding = UTF8

    @classmethod
    def of(cls, data: bytes) -> TextFile | None:
        """Read a file; return None if it holds no text."""
        encoding = encoding_of(data)
        return None if encoding is None else cls(encoding.decode(data), encoding)

    def with_text(self, text: str) -> bytes:
        """Return the bytes of the file with another text, whose line ends are written as they are.

        Raises:
            CannotEncode: The encoding lacks a character of the text.
        """
        encoding = self._encoding_for(text)
        try:
            return encoding.encode(text)
        except UnicodeEncodeError as error:
            line = text.count("\n", 0, error.start) + 1
            char = text[error.start]
            raise CannotEncode(
                f"the file is stored as {encoding.codec}, which lacks the character '{visible(char)}' "
                f"(U+{ord(char):04X}) in line {line}: write that character in another way"
            ) from None

    def _encoding_for(self, text: str) -> TextEncoding:
        """Return the file's encoding, or the one that the new text declares; UTF-8 if only the old text declared one."""
        new, old = (declared_encoding(start[:1000].encode("utf-8", "replace")) for start in (text, self.text))
        return self.encoding if self.encoding.mark or new == old else new or UTF8


def lf_only(text: str) -> str:
    """Return a text in which LF alone ends each line."""
    return text.replace("\r\n", "\n")


def with_line_ends(old: str, new: str) -> str:
    """Return the new text with the line ends of the old one.

    A line that stays keeps its own end. A changed or added line has the end of the line in its place.
    """
    new = lf_only(new)
    if "\r\n" not in old:
        return new
    ends = ["\r\n" if line.endswith("\r") else "\n" for line in old.split("\n")[:-1]]
    if "\n" not in ends:
        return new.replace("\n", "\r\n")
    lines = new.split("\n")
    places = _places(lf_only(old).split("\n"), lines)
    kept = [ends[min(place, len(ends) - 1)] for place in places]
    return "".join(line + end for line, end in zip(lines, [*kept[: len(lines) - 1], ""], strict=True))


def _places(old: Sequence[str], new: Sequence[str]) -> Iterator[int]:
    """Yield for each new line the number of the old line that is in its place."""
    top = common(old, new)
    bottom = min(common(old[::-1], new[::-1]), min(len(old), len(new)) - top)
    yield from range(top)
    middle = old[top : len(old) - bottom], new[top : len(new) - bottom]
    blocks = [("replace", 0, len(middle[0]), 0, len(middle[1]))]
    if max(map(len, middle)) <= MOST_COMPARED:
        blocks = [*difflib.SequenceMatcher(None, *middle, autojunk=False).get_opcodes()]
    for _, first, last, start, stop in blocks:
        # a line beyond the replaced ones follows the line before it
        place = max(0, top + max(last, first) - 1)
        yield from (min(top + first + number, place) for number in range(stop - start))
    yield from range(len(old) - bottom, len(old))


def common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many items at the beginning of two sequences are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))
