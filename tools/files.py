"""`file_read`, `file_write`, `file_edit`: files of the work tree."""

from __future__ import annotations

import difflib
import hashlib
import textwrap
from collections.abc import Callable

from pydantic import Field

from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.workspace import inside_git
from m3agent.tools.base import MOST_CHARACTERS, Arguments, CallContext, Tool, ToolResult, readable, refusal

PATH = Field(description="Path relative to the repository's root.")
NEAREST = 3  # places shown when the text to replace is not found


class FileReadArguments(Arguments):
    """Arguments of file_read."""

    path: str = PATH
    start: int = Field(1, ge=1, description="First line, from 1.")
    end: int | None = Field(
        None, ge=1, description="Last line, inclusive; to the end of the file if left out."
    )


class FileWriteArguments(Arguments):
    """Arguments of file_write."""

    path: str = PATH
    content: str = Field(description="The whole new content of the file.")


class FileEditArguments(Arguments):
    """Arguments of file_edit."""

    path: str = PATH
    old: str = Field(description="The text to replace, with enough lines around it to be unique in the file.")
    new: str = Field(description="The text to put in its place.")


def plain(path: str) -> str:
    """The path as the sandbox wants it: relative, `./` and `/ws/` dropped.

    Raises:
        PathEscapes: it names git's own folder.
    """
    path = path.removeprefix("/ws/").removeprefix("./")
    if inside_git(path):
        raise PathEscapes(f"{path}: git's own folder cannot be touched")
    return path


async def read(context: CallContext, arguments: FileReadArguments) -> ToolResult:
    """Numbered lines of a file."""
    path = plain(arguments.path)
    content = await context.sandbox.read(path)
    if b"\0" in content:
        return refusal(f"{path} is a binary file of {len(content):,} bytes")
    lines = readable(content).splitlines()
    end = len(lines) if arguments.end is None else min(arguments.end, len(lines))
    if arguments.start > max(1, len(lines)):
        return refusal(f"{path} has {len(lines)} lines: there is no line {arguments.start}")
    shown: list[str] = []
    size = 0
    for number in range(arguments.start, end + 1):
        line = f"{number}\t{lines[number - 1]}"
        size += len(line) + 1
        if shown and size > MOST_CHARACTERS:
            shown.append(f"[lines {number} to {end} not shown: ask for them with start={number}]")
            break
        shown.append(line)
    digest = hashlib.sha256(content).hexdigest()
    return ToolResult("\n".join(shown) or "(empty file)", digest=digest, truncated=size > MOST_CHARACTERS)


async def write(context: CallContext, arguments: FileWriteArguments) -> ToolResult:
    """Write a file whole."""
    path = plain(arguments.path)
    content = arguments.content.encode("utf-8", "replace")
    await context.sandbox.write(path, content)
    lines = arguments.content.count("\n") + (not arguments.content.endswith("\n") and bool(content))
    return ToolResult(
        f"wrote {path} ({lines} lines, {len(content)} bytes)", digest=hashlib.sha256(content).hexdigest()
    )


async def edit(context: CallContext, arguments: FileEditArguments) -> ToolResult:
    """Replace one passage of a file."""
    path = plain(arguments.path)
    if not arguments.old:
        return refusal("old is empty: name the text to replace, or use file_write for a new file")
    raw = await context.sandbox.read(path)
    try:
        content = raw.decode("utf-8")
    except UnicodeDecodeError:
        return refusal(f"{path} is not UTF-8 text: change it with code_exec")
    replaced = replace(content, arguments.old, arguments.new)
    if isinstance(replaced, str):
        await context.sandbox.write(path, replaced.encode("utf-8", "replace"))
        line = next((n for n, (a, b) in enumerate(_pairs(content, replaced), 1) if a != b), 1)
        digest = hashlib.sha256(replaced.encode("utf-8", "replace")).hexdigest()
        return ToolResult(f"edited {path} from line {line}", digest=digest)
    if replaced:
        where = ", ".join(str(line) for line in replaced)
        return refusal(
            f"the text to replace is in {path} more than once (lines {where}): add lines around it"
        )
    return refusal(f"the text to replace is not in {path}.{nearest(content, arguments.old)}")


def replace(content: str, old: str, new: str) -> str | list[int]:
    """The content with `old` replaced by `new`; else the lines where `old` begins: none, or more than one.

    Tried in turn: the exact text; line ends of the file's kind; trailing white space ignored; the whole passage
    indented differently (the replacement is then indented alike).
    """
    if "\r\n" in content and "\r\n" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    count = content.count(old)
    if count == 1:
        return content.replace(old, new)
    if count > 1:
        starts, at = [], content.find(old)
        while at >= 0:
            starts.append(content.count("\n", 0, at) + 1)
            at = content.find(old, at + 1)
        return starts
    for normal in (_trimmed, _dedented):
        found = _find_lines(content, old, normal)
        if len(found) > 1:
            return [line + 1 for line in found]
        if found:
            return _replace_lines(content, old, new, found[0])
    return []


def nearest(content: str, old: str) -> str:
    """The places of a file most like a text that is not in it, for the model to correct itself."""
    lines = content.splitlines()
    wanted = old.strip("\n").splitlines()
    span = max(1, len(wanted))
    first = wanted[0].strip() if wanted else ""
    scored = sorted(
        (
            (difflib.SequenceMatcher(None, first, line.strip()).ratio(), number)
            for number, line in enumerate(lines)
        ),
        key=lambda item: (-item[0], item[1]),
    )
    shown: list[str] = []
    for score, number in scored[:NEAREST]:
        if score < 0.5:
            break
        passage = "\n".join(f"{n + 1}\t{lines[n]}" for n in range(number, min(len(lines), number + span)))
        shown.append(passage)
    return (
        (" Nearest lines:\n" + "\n...\n".join(shown))
        if shown
        else " No line of it is like the first line given."
    )


def _trimmed(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines]


def _dedented(lines: list[str]) -> list[str]:
    return textwrap.dedent("\n".join(line.rstrip() for line in lines)).split("\n")


def _find_lines(content: str, old: str, normal: Callable[[list[str]], list[str]]) -> list[int]:
    """Numbers (from 0) of the lines at which `old` begins once both are brought to a normal form."""
    lines = content.splitlines()
    wanted = normal(old.strip("\r\n").splitlines())
    if not any(line.strip() for line in wanted):
        return []
    span = len(wanted)
    return [start for start in range(len(lines) - span + 1) if normal(lines[start : start + span]) == wanted]


def _replace_lines(content: str, old: str, new: str, start: int) -> str:
    lines = content.splitlines(keepends=True)
    span = len(old.strip("\r\n").splitlines())
    end = "\r\n" if lines[start].endswith("\r\n") else "\n"
    first_old = next(line for line in old.strip("\r\n").splitlines() if line.strip())
    first_here = next(line for line in lines[start : start + span] if line.strip())
    have, want = _indent(first_old), _indent(first_here)
    replacement = []
    for line in new.strip("\r\n").splitlines():
        if line.startswith(have) and line.strip():
            line = want + line[len(have) :]
        replacement.append(line + end)
    if replacement and not lines[start + span - 1].endswith("\n"):
        replacement[-1] = replacement[-1].rstrip("\r\n")
    return "".join(lines[:start] + replacement + lines[start + span :])


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _pairs(before: str, after: str) -> list[tuple[str, str]]:
    old, new = before.splitlines(), after.splitlines()
    length = max(len(old), len(new))
    return list(zip(old + [""] * (length - len(old)), new + ["\0"] * (length - len(new)), strict=True))


READ = Tool("file_read", "Read lines of a file of the repository.", FileReadArguments, read)
WRITE = Tool(
    "file_write", "Write a file of the repository, whole; folders are made.", FileWriteArguments, write
)
EDIT = Tool("file_edit", "Replace one passage of a file of the repository.", FileEditArguments, edit)
