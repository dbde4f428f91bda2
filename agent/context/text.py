r"""Makes a file's text harmless inside the prompt, visibly and so that it can be undone.

Two notations are used. Strings that the prompt or the model's tokenizer reserve get a backslash after their first
character (`</file>` becomes `<\/file>`); where backslashes stand there already, one more is added. Characters that
cannot be seen or that reorder what is seen become their code point (`<U+202E>`); that notation itself, found in a file,
gets the backslash. So no two texts become the same, and removing one backslash or reading the code gives the original.
"""

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple

NOTATION = (
    r"In the files shown, a backslash right after <, [ or ] in a reserved word (as in <\think>) is not in the file, "
    "and a code such as <U+001B> stands for that one character."
)
"""One sentence that tells the model how to read `harmless` text."""

# Added tokens of MiniMax-M3: added_tokens in tokenizer.json of the published checkpoint. A server turns each of these
# strings into one control token wherever it stands in a prompt.
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
        r"\|[\w-]{1,64}\|>",  # <|...|>: this and many other models' control tokens
        # Our own delimiters, and the one that ends the issue. `<file>` is left alone: it is no delimiter of ours, but
        # common in code and manuals.
        r"(?:/(?:file|issue|signatures|changes)|/?not_shown|/?superseding)(?!\w)",
        r"file(?![\w>.:/-])",
        r"(?:signatures|changes) path=",
        r"U\+[0-9A-F]{4,6}>",
        r"REDACTED:",
    )
)
# ]<]minimax[>[, ]<]start of image[>[, ]<]2.0 seconds[>[ and the like; role and document markers
_AFTER_BRACKET = r"<\][\w. ]{1,64}\[>\[|~b\]|~!b\[|!p~\[|!d~\["
# One expression for each first character: a search for a single character is many times faster than for one of three.
_RESERVED = (
    re.compile(rf"<(?=\\*(?:{_AFTER_LESS}))"),
    re.compile(rf"\](?=\\*(?:{_AFTER_BRACKET}))"),
    re.compile(r"\[(?=\\*e~\[)"),
)
_INVISIBLE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls except tab and newline
    r"\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, reordering
    r"\ud800-\udfff"  # halves of nothing, which no encoder takes
    r"\U000e0000-\U000e0fff"  # tag characters: text that only the model sees
)
_UNSEEN = re.compile(f"[{_INVISIBLE}]")
_UNSEEN_OR_BLANK = re.compile(f"[{_INVISIBLE}\t\n]")
_SEEN_ASCII = bytes((9, 10, *range(32, 127)))


class Decoded(NamedTuple):
    """A file's text with `\\n` line ends, its own line ends (`lf`, `crlf`, `cr` or `mixed`), and its encoding by
    Python's name."""

    text: str
    line_ends: str
    encoding: str


def decode(data: bytes) -> Decoded:
    """Read a file's bytes as text: UTF-8, UTF-16 with a byte order mark, the encoding it names itself, or the likeliest.

    A byte order mark is left out. What no reading explains becomes U+FFFD.
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
    # UTF-8 with a few bytes that are none (test data, say) must not be read as something else as a whole.
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
"""A few single bytes among ASCII are too little to guess from: western European letters, nearly without exception."""

_GUESSED_FROM = 8 * 1024
"""Bytes from the first that is not ASCII on; more takes longer and tells no more."""


def _candidates(data: bytes) -> Iterator[str]:
    """Encodings to try: the one that the first lines declare (PEP 263, XML, editors), then the likeliest."""
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
    """Whether `harmless` would leave `text` as it is."""
    if text.isascii():
        if text.encode().translate(None, _SEEN_ASCII):
            return False
    elif _UNSEEN.search(text):
        return False
    return not any(reserved.search(text) for reserved in _RESERVED)


def harmless(text: str) -> str:
    """`text` with reserved strings broken and invisible characters shown; tabs and newlines stay."""
    return text if is_harmless(text) else _broken(_UNSEEN, text)


def attribute(name: str) -> str:
    """A path as the value of a quoted attribute or as one line; bytes that are not UTF-8 appear as `\\xNN`."""
    readable = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    shown = _broken(_UNSEEN_OR_BLANK, readable)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _broken(unseen: re.Pattern[str], text: str) -> str:
    # Reserved strings first: what shows a character begins with `<` too.
    for reserved in _RESERVED:
        text = reserved.sub(lambda match: f"{match[0]}\\", text)
    return unseen.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)
