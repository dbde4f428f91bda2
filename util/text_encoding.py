"""How the text of a file is stored: which encoding it has, with or without a byte order mark."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DECLARED = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)|^<\?xml[^>]*encoding=[\"']([-\w.]+)")
_BLANK_OR_COMMENT = re.compile(rb"[ \t\f]*(?:#.*)?\r?$")
_NO_FILE_HAS = frozenset({"idna", "punycode", "raw_unicode_escape", "unicode_escape", "utf-7"})
_GUESSES = ("gb18030", "cp1252", "latin-1")
_COMMON_CHINESE = 0.8
"""Least share of common Chinese characters, GB 2312's, among those that are not ASCII, for text in GBK."""
_WIDE = 0.4
"""Least share of zero bytes, all at odd or all at even places, in UTF-16 without a byte order mark."""


@dataclass(frozen=True)
class TextEncoding:
    """An encoding of text."""

    codec: str = "utf-8"
    """Python's name of the encoding."""
    mark: bytes = b""
    """The byte order mark."""
    errors: str = "strict"
    """What becomes of bytes that are no text; `surrogateescape` keeps each as half of a surrogate pair."""

    def decode(self, data: bytes) -> str:
        """Return the text of a file. Raises UnicodeDecodeError if the file has another encoding."""
        return data[len(self.mark) :].decode(self.codec, self.errors)

    def encode(self, text: str) -> bytes:
        """Return the bytes of a file with this text.

        Raises:
            UnicodeEncodeError: The encoding lacks one of the characters.
        """
        return self.mark + text.encode(self.codec, self.errors)

    def holds(self, data: bytes) -> bool:
        """Return whether the file's bytes are this encoding of its text, and nothing else."""
        try:
            return self.encode(self.decode(data)) == data
        except (UnicodeError, LookupError):
            return False


UTF8 = TextEncoding()


def encoding_of(data: bytes) -> TextEncoding | None:
    """Return the encoding of a file: what it says itself, else the most likely one; None if it holds no text.

    To decode the file with the result and to encode it again gives the same bytes.
    """
    for mark, codec in _MARKS:
        if data.startswith(mark) and TextEncoding(codec, mark).holds(data):
            return TextEncoding(codec, mark)
    declared = declared_encoding(data)
    if declared is not None and declared.holds(data):
        return declared
    if b"\0" in data:
        return _without_mark(data)
    if UTF8.holds(data):
        return UTF8
    chinese = _is_chinese(data)
    if damaged := _damaged_utf8(data, 4 if chinese else 1):
        return damaged
    likely = (TextEncoding(codec) for codec in _GUESSES if codec != "gb18030" or chinese)
    return next(encoding for encoding in likely if encoding.holds(data))


def declared_encoding(data: bytes) -> TextEncoding | None:
    """Return the encoding that the first two lines declare, in Python's or in XML's way; None if they do not."""
    for line in data[:1000].split(b"\n")[:2]:
        if match := _DECLARED.match(line):
            try:
                name = codecs.lookup((match[1] or match[2]).decode("ascii")).name
            except (LookupError, UnicodeDecodeError):
                return None
            declared = TextEncoding(name)
            return declared if name not in _NO_FILE_HAS and declared.holds(b"") else None
        if not _BLANK_OR_COMMENT.match(line):
            return None
    return None


def _without_mark(data: bytes) -> TextEncoding | None:
    """Return which UTF-16 a file with zero bytes is in, if any."""
    for codec, zeros, others in (("utf-16-le", data[1::2], data[::2]), ("utf-16-be", data[::2], data[1::2])):
        encoding = TextEncoding(codec)
        if zeros.count(0) >= _WIDE * len(zeros) and 0 not in others and encoding.holds(data):
            return encoding
    return None


def _damaged_utf8(data: bytes, least: int) -> TextEncoding | None:
    """Return UTF-8 that keeps the bytes which are no text, if it has `least` times as many characters beyond ASCII as such bytes."""
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    encoding = TextEncoding("utf-8", mark, "surrogateescape")
    foreign = [char for char in encoding.decode(data) if char > "\x7f"]
    bad = sum("\udc80" <= char <= "\udcff" for char in foreign)
    return encoding if mark or len(foreign) - bad >= least * bad else None


def _is_chinese(data: bytes) -> bool:
    try:
        foreign = [char for char in data.decode("gb18030") if ord(char) > 127]
    except UnicodeDecodeError:
        return False
    common = "".join(foreign).encode("gb2312", "ignore")
    return len(common) / 2 >= _COMMON_CHINESE * len(foreign)
