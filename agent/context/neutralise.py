r"""Neutralise a file's text inside the prompt, visibly and reversibly.

There are two notations. Strings that the prompt or the model's tokenizer reserve get a backslash after their
first character: `</file>` becomes `<\/file>`. If backslashes are there already, one more is added. Invisible
and reordering characters are replaced by their code point: `<U+202E>`. If a file contains that notation
itself, it gets the backslash, too. Different texts therefore stay different, and removing one backslash or
reading the code restores the original.
"""

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple

NOTATION = (
    r"In the files shown, a backslash right after <, [ or ] in a reserved word (as in <\think>) is not in the file, "
    "and a code such as <U+001B> stands for that one character."
)
"""One sentence for the model that explains the notations."""

# Added tokens of MiniMax-M3: added_tokens in tokenizer.json of the published checkpoint. A server converts
# each of these strings to one control token, wherever it occurs in a prompt.
_TAG_TOKENS = (
    "add_file|code_context|code_interpreter|commit_after|commit_before|commit_message|commit_msg|"
    "delete_file|edit_file|empty_output|empty_source_file|file_content|file_sep|filename|filepath|"
    "fim_middle|fim_pad|fim_prefix|fim_suffix|function_call|gh_stars|issue_closed|issue_comment|"
    "issue_start|jupyter_code|jupyter_error|jupyter_output|jupyter_start|jupyter_text|pr_start|"
    "rename_file|reponame|repo_struct|review_comment|source_files"
)
_PAIRED_TOKENS = "mm:think|think|tool_call"

_AFTER_LESS = "|".join(
    (
        rf"(?:{_TAG_TOKENS})>",
        rf"/?(?:{_PAIRED_TOKENS})>",
        r"\|[\w-]{1,64}\|>",  # <|...|>: control tokens of this model and of many others
        # The prompt's own delimiters, including the end of the issue. `<file>` without attributes is not one
        # of them, and it is common in code and manuals.
        r"(?:/(?:file|issue|signatures|passages|changes)|/?not_shown|/?superseding)(?!\w)",
        r"file(?![\w>.:/-])",
        r"(?:signatures|passages|changes) path=",
        r"U\+[0-9A-F]{4,6}>",
        r"REDACTED:",
    )
)
# ]<]minimax[>[, ]<]start of image[>[, ]<]2.0 seconds[>[ and similar; role and document markers
_AFTER_BRACKET = r"<\][\w. ]{1,64}\[>\[|~b\]|~!b\[|!p~\[|!d~\["
# One expression per first character: searching for a single character is many times faster than for one of
# three.
_RESERVED = (
    re.compile(rf"<(?=\\*(?:{_AFTER_LESS}))"),
    re.compile(rf"\](?=\\*(?:{_AFTER_BRACKET}))"),
    re.compile(r"\[(?=\\*e~\[)"),
)
_INVISIBLE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls except tab and newline
    r"\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, reordering
    r"\ud800-\udfff"  # lone surrogates, which cannot be encoded
    r"\U000e0000-\U000e0fff"  # tag characters: text that only the model can read
)
_UNSEEN = re.compile(f"[{_INVISIBLE}]")
_UNSEEN_OR_BLANK = re.compile(f"[{_INVISIBLE}\t\n]")
_SEEN_ASCII = bytes((9, 10, *range(32, 127)))


class Decoded(NamedTuple):
    r"""A file's decoded text."""

    text: str
    r"""The text with `\n` line ends."""
    line_ends: str
    """The file's own line ends: `lf`, `crlf`, `cr` or `mixed`."""
    encoding: str
    """Python's name of the encoding."""


def decode(data: bytes) -> Decoded:
    """Decode a file's bytes.

    The encoding is UTF-8, UTF-16 with a byte order mark, the one that the file declares, or the likeliest. A
    byte order mark is removed. Bytes that no encoding explains become U+FFFD.
    """
    text, encoding = _text(data)
    pairs, newlines = text.count("\r\n"), text.count("\n")
    if pairs:
        return Decoded(text.replace("\r\n", "\n"), "crlf" if pairs == newlines else "mixed", encoding)
    if not newlines and "\r" in text:
        return Decoded(text.replace("\r", "\n"), "cr", encoding)
    return Decoded(text, "lf", encoding)


def _text(data: bytes) -> tuple[str, str]:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace"), "utf-16"
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError:
        lenient = data.decode("utf-8-sig", "replace")
    # UTF-8 with a few invalid bytes (for example test data) must not be read in another encoding.
    broken = lenient.count("\N{REPLACEMENT CHARACTER}")
    if sum(len(run) for run in _NOT_ASCII.findall(lenient)) >= 2 * broken:
        return lenient, "utf-8"
    for name in _candidates(data):
        try:
            return data.decode(name), codecs.lookup(name).name
        except (LookupError, UnicodeError, ValueError):
            continue
    return lenient, "utf-8"


_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_DECLARED = re.compile(rb"coding[:=][ \t]*[\"']?([-\w.]{1,40})")
_HIGH = re.compile(rb"[\x80-\xff]+")
_ASCII = bytes(range(32, 127))
_ENOUGH = 16
"""Fewer separate bytes among ASCII are not enough to guess from; nearly all are western European letters."""

_GUESSED_FROM = 8 * 1024
"""Number of bytes to guess from, counted from the first that is not ASCII; more do not improve the guess."""


def _candidates(data: bytes) -> Iterator[str]:
    """Yield encodings to try.

    The first is the one that the first lines declare (PEP 263, XML, editors); then follow the likeliest ones.
    """
    if declared := _DECLARED.search(data[:200]):
        yield declared[1].decode("ascii", "replace")
    runs = _HIGH.findall(data)
    if len(runs) >= _ENOUGH or max(map(len, runs)) > 1:
        from charset_normalizer import from_bytes

        first = data.index(runs[0])
        best = from_bytes(data[max(0, first - 256) : first + _GUESSED_FROM]).best()
        if best is not None and _ASCII.decode(best.encoding, "replace").encode("ascii", "replace") == _ASCII:
            yield best.encoding
    yield "cp1252"


def is_harmless(text: str) -> bool:
    """Return whether `harmless` would leave `text` unchanged."""
    if text.isascii():
        if text.encode().translate(None, _SEEN_ASCII):
            return False
    elif _UNSEEN.search(text):
        return False
    return not any(reserved.search(text) for reserved in _RESERVED)


def harmless(text: str) -> str:
    """Return `text` with reserved strings broken and invisible characters shown; tabs and newlines remain."""
    return text if is_harmless(text) else _broken(_UNSEEN, text)


def attribute(name: str) -> str:
    r"""Return a path as the value of a quoted attribute or as one line.

    Bytes that are not UTF-8 appear as `\xNN`.
    """
    readable = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    shown = _broken(_UNSEEN_OR_BLANK, readable)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _broken(unseen: re.Pattern[str], text: str) -> str:
    # Reserved strings first, because the notation for characters begins with `<`, too.
    for reserved in _RESERVED:
        text = reserved.sub(lambda match: f"{match[0]}\\", text)
    return unseen.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)
