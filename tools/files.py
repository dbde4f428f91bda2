"""`file_read`, `file_write`, `file_edit`: files of the work tree."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import posixpath
from collections.abc import Callable

from pydantic import Field

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.store.workspace import Workspace, inside_git, refuse_git_files
from m3agent.tools.base import (
    MOST_CHARACTERS,
    Arguments,
    CallContext,
    Tool,
    ToolResult,
    cut,
    refusal,
    visible,
)
from m3agent.tools.runners.suites import files_of_tests

PATH = Field(description="Path relative to the repository's root.")
NEAREST = 3  # places shown when the text to replace is not found
ALIKE = 0.5  # least similarity of such a place's first line, from 0 to 1
COMPARED = 200  # characters of a line that are compared for that
LISTED = 10  # line numbers given when the text is found more than once
LEFT_OUT = (
    "note: git ignores this file, so it will be neither in the patch nor in the verification. "
    "The fix must work without it."
)

TESTS = (
    "note: the verification runs the tests that this file had as they were, and a patch that removes, skips or "
    "weakens one of them is not verified. New tests are welcome."
)


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


def plain(path: str, root: str) -> str:
    """Return the path relative to the work tree in the folder `root`, without `./` and without that folder.

    Raises:
        PathEscapes: The path is in git's own folder.
    """
    path = path.removeprefix(f"{root}/").removeprefix("./")
    if inside_git(path):
        raise PathEscapes(f"{path}: git's own folder cannot be touched")
    return path


def file_path(path: str, root: str) -> str:
    """Return the path as `plain` does; refuse the work tree itself.

    Raises:
        PathEscapes: The path is the work tree, or is in git's own folder.
    """
    if not (wanted := plain(path, root)).strip("./"):
        raise PathEscapes(f"'{path}' is not a file path: give one relative to the repository's root")
    return wanted


def path_to_write(path: str, sandbox: Sandbox) -> str:
    """Return the path as `file_path` does; refuse files that no patch may contain.

    Raises:
        PathEscapes: The path is the work tree, in git's own folder, a file that git itself reads, or in a submodule.
    """
    wanted = file_path(path, sandbox.folders.work_tree)
    refuse_git_files(wanted)
    sandbox.workspace.refuse_submodule(posixpath.normpath(wanted))
    return wanted


async def read(context: CallContext, arguments: FileReadArguments) -> ToolResult:
    """Return lines of a file, with their numbers."""
    path = file_path(arguments.path, context.sandbox.folders.work_tree)
    content = await context.sandbox.read(path)
    if b"\0" in content:
        return refusal(f"{path} is a binary file of {len(content):,} bytes")
    lines = split(visible(content.decode("utf-8", "replace").replace("\r\n", "\n")))
    end = len(lines) if arguments.end is None else min(arguments.end, len(lines))
    if arguments.start > max(1, len(lines)):
        return refusal(f"{path} has {len(lines)} lines: there is no line {arguments.start}")
    if lines and end < arguments.start:
        return refusal(f"end ({end}) is before start ({arguments.start})")
    shown: list[str] = []
    size = 0
    truncated = False
    for number in range(arguments.start, end + 1):
        line = f"{number}\t{cut(lines[number - 1])}"
        truncated = truncated or len(lines[number - 1]) > MOST_CHARACTERS
        size += len(line) + 1
        if shown and size > MOST_CHARACTERS:
            shown.append(f"[lines {number} to {end} not shown: ask for them with start={number}]")
            truncated = True
            break
        shown.append(line)
    digest = hashlib.sha256(content).hexdigest()
    return ToolResult("\n".join(shown) or "(empty file)", digest=digest, truncated=truncated)


async def write(context: CallContext, arguments: FileWriteArguments) -> ToolResult:
    """Write a complete file."""
    path = path_to_write(arguments.path, context.sandbox)
    content = arguments.content.encode()
    await context.sandbox.write(path, content)
    lines = arguments.content.count("\n") + (not arguments.content.endswith("\n") and bool(content))
    return await _written(context, path, f"wrote {path} ({lines} lines, {len(content)} bytes)", content)


async def edit(context: CallContext, arguments: FileEditArguments) -> ToolResult:
    """Replace one passage of a file."""
    path = path_to_write(arguments.path, context.sandbox)
    if not arguments.old:
        return refusal("old is empty: name the text to replace, or use file_write for a new file")
    if arguments.old == arguments.new:
        return refusal("old and new are the same: nothing would change")
    raw = await context.sandbox.read(path)
    try:
        content = raw.decode("utf-8")
    except UnicodeDecodeError:
        return refusal(f"{path} is not UTF-8 text: change it with code_exec")
    replaced = await asyncio.to_thread(replace, content, arguments.old, arguments.new)
    if isinstance(replaced, str):
        encoded = replaced.encode()
        await context.sandbox.write(path, encoded)
        line = content.count("\n", 0, _common(content, replaced)) + 1
        return await _written(context, path, f"edited {path} from line {line}", encoded)
    if replaced:
        where = ", ".join(str(line) for line in replaced[:LISTED]) + (", ..." if replaced[LISTED:] else "")
        return refusal(
            f"the text to replace is in {path} more than once (lines {where}): add lines around it"
        )
    near = await asyncio.to_thread(nearest, content, arguments.old)
    return refusal(f"the text to replace is not in {path}.{near}")


async def _written(context: CallContext, path: str, done: str, content: bytes) -> ToolResult:
    """Return the result of a write, with a note if the file is no part of the work, or had tests before."""
    if await context.sandbox.is_left_out(path):
        done += f"\n{LEFT_OUT}"
    elif await asyncio.to_thread(_had_tests, context.sandbox.workspace, path):
        done += f"\n{TESTS}"
    return ToolResult(done, digest=hashlib.sha256(content).hexdigest())


def _had_tests(workspace: Workspace, path: str) -> bool:
    """Return whether a file can hold tests, and was there before the work began."""
    path = posixpath.normpath(path)
    return path in workspace.entries(workspace.base) and files_of_tests(
        workspace.store, workspace.base
    ).has_tests(path)


def replace(content: str, old: str, new: str) -> str | list[int]:
    """Replace `old` by `new` if `old` occurs exactly once.

    These ways are tried in turn: the exact text (with CR LF if all lines of the file end with it), the text without
    trailing white space, and the text with another indentation (the replacement then gets that indentation).

    Returns:
        The new content; or the numbers of the lines where `old` begins, if it occurs several times or never.
    """
    if 0 < content.count("\n") == content.count("\r\n"):
        old, new = _with_crlf(old), _with_crlf(new)
    starts, at = [], content.find(old)
    while at >= 0:
        starts.append(at)
        at = content.find(old, at + 1)  # overlapping occurrences count separately
    if len(starts) == 1:
        return content[: starts[0]] + new + content[starts[0] + len(old) :]
    if starts:
        return [content.count("\n", 0, start) + 1 for start in starts[: LISTED + 1]]
    for normal in (_trimmed, _dedented):
        found = _find_lines(content, old, normal)
        if len(found) > 1:
            return [line + 1 for line in found]
        if found:
            return _replace_lines(content, old, new, found[0])
    return []


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


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


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
    passage = split(old.strip("\r\n"))
    end = start + len(passage)
    have, want = _margin(passage), _margin(lines[start:end])
    cr = "\r" if lines[start].endswith("\r") else ""
    replacement = [_indented(line, have, want) + cr for line in split(new.strip("\r\n"))]
    if end == len(lines):  # the passage ends a file whose last line has no line end
        replacement = [*replacement[:-1], replacement[-1].removesuffix("\r")] if replacement else [""]
    return "\n".join(lines[:start] + replacement + lines[end:])


def _indented(line: str, have: str, want: str) -> str:
    """Change the indentation of a line from that of one passage (`have`) to that of another (`want`)."""
    if not line.strip() or have == want:
        return line
    if line.startswith(have):
        return want + line[len(have) :]
    if want.startswith(have):  # the line is indented less than its passage: keep the difference
        return want[len(have) :] + line
    return line[min(len(_margin([line])), max(0, len(have) - len(want))) :]


def _margin(lines: list[str]) -> str:
    """Return the indentation that all lines except blank ones share."""
    indents = [line[: len(line) - len(line.lstrip())] for line in lines if line.strip()]
    # what the first and the last in alphabetical order have in common, all have in common
    return min(indents)[: _common(min(indents), max(indents))] if indents else ""


def _common(a: str, b: str) -> int:
    """Return the length of the longest common prefix of two texts."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


READ = Tool(
    "file_read",
    "Read lines of a file of the repository.",
    FileReadArguments,
    read,
    kind="read",
    verb="read",
)
WRITE = Tool(
    "file_write",
    "Write a file of the repository, whole; folders are made.",
    FileWriteArguments,
    write,
    kind="edit",
    verb="write",
    content_arguments=("content",),
)
EDIT = Tool(
    "file_edit",
    "Replace one passage of a file of the repository.",
    FileEditArguments,
    edit,
    kind="edit",
    verb="edit",
    content_arguments=("old", "new"),
)
