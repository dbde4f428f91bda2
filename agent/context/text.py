r"""Makes a file's text harmless inside the prompt, visibly and so that it can be undone.

Two notations are used. Strings that the prompt or the model's tokenizer reserve get a backslash after their first
character (`</file>` becomes `<\/file>`); where backslashes stand there already, one more is added. Characters that
cannot be seen or that reorder what is seen become their code point (`<U+202E>`); that notation itself, found in a file,
gets the backslash. So no two texts become the same, and removing one backslash or reading the code gives the original.
"""

import re

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

_RESERVED = "|".join(
    (
        rf"<(?=\\*(?:{_TAG_TOKENS})>)",
        rf"<(?=\\*/?(?:{_PAIRED_TOKENS})>)",
        r"<(?=\\*\|[\w-]{1,64}\|>)",  # <|...|>: this and many other models' control tokens
        r"\](?=\\*<\][\w. ]{1,64}\[>\[)",  # ]<]minimax[>[, ]<]start of image[>[, ]<]2.0 seconds[>[ and the like
        r"\](?=\\*(?:~b\]|~!b\[|!p~\[|!d~\[))",  # role and document markers
        r"\[(?=\\*e~\[)",
        # Our own delimiters, and the one that ends the issue. `<file>` is left alone: it is no delimiter of ours, but common in code and manuals.
        r"<(?=\\*(?:/file|/issue|/?not_shown)(?!\w))",
        r"<(?=\\*file(?![\w>.:/-]))",
        r"<(?=\\*U\+[0-9A-F]{4,6}>)",
    )
)
_INVISIBLE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls except tab and newline
    r"\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, reordering
    r"\ud800-\udfff"  # halves of nothing, which no encoder takes
    r"\U000e0000-\U000e0fff"  # tag characters: text that only the model sees
)
_IN_TEXT = re.compile(f"({_RESERVED})|[{_INVISIBLE}]")
_IN_NAME = re.compile(rf"({_RESERVED})|[{_INVISIBLE}\t\n]")


def decode(data: bytes) -> tuple[str, str]:
    """The text of `data` with `\\n` line ends, and its own line ends: `lf`, `crlf`, `cr` or `mixed`.

    What is not UTF-8 becomes U+FFFD; a byte order mark is left out.
    """
    text = data.decode("utf-8-sig", "replace")
    pairs, newlines = text.count("\r\n"), text.count("\n")
    if pairs:
        return text.replace("\r\n", "\n"), "crlf" if pairs == newlines else "mixed"
    if not newlines and "\r" in text:
        return text.replace("\r", "\n"), "cr"
    return text, "lf"


def harmless(text: str) -> str:
    """`text` with reserved strings broken and invisible characters shown; tabs and newlines stay."""
    return _IN_TEXT.sub(_shown, text)


def attribute(name: str) -> str:
    """A path as the value of a quoted attribute or as one line; bytes that are not UTF-8 appear as `\\xNN`."""
    readable = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    shown = _IN_NAME.sub(_shown, readable)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _shown(match: re.Match[str]) -> str:
    return f"{match[0]}\\" if match[1] else f"<U+{ord(match[0]):04X}>"
