"""`file_read`, `file_write`, `file_edit`: files of the work tree."""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
from collections.abc import Collection, Sequence
from dataclasses import replace

from pydantic import Field

from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import FileProblem, PathEscapes
from m3agent.sandbox.store.workspace import Workspace, refuse_git_files
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
from m3agent.tools.passages import LISTED, Replaced, nearest, split, without_fence
from m3agent.tools.passages import replace as replace_passage
from m3agent.tools.runners.suites import files_of_tests
from m3agent.tools.syntax_check import parse_problem
from m3agent.tools.text_file import CannotEncode, TextFile, common, lf_only, with_line_ends
from m3agent.tools.work_paths import listing, meant_path, near_hint, plain

PATH = Field(description="Path relative to the repository's root.")
MISSING = "no such file or directory"
PROSE = (".adoc", ".markdown", ".md", ".mdx", ".rst", ".txt")
"""Endings of files in which a fence may be meant."""
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


async def files_of(sandbox: Sandbox) -> Collection[str]:
    """Return the files of the work tree that git does not ignore."""
    return await asyncio.to_thread(sandbox.workspace.entries, await sandbox.checkpoint())


async def path_of(sandbox: Sandbox, path: str) -> str:
    """Return the path relative to the work tree; empty for the work tree itself.

    Raises:
        PathEscapes: The path is outside the work tree, or in git's own folder.
    """
    root = sandbox.folders.work_tree
    wanted = plain(path, root)
    if not wanted.startswith(("/", "..")) and ".." not in wanted.split("/"):
        return wanted
    return await asyncio.to_thread(meant_path, path, root, await files_of(sandbox))


async def path_to_write(sandbox: Sandbox, path: str) -> str:
    """Return the path as `path_of` does; refuse the work tree, files that git itself reads, and submodules: no patch may have them.

    Raises:
        PathEscapes: The path names nothing that may be written.
    """
    if not (wanted := await path_of(sandbox, path)).strip("./"):
        raise PathEscapes(f"'{path}' is not a file path: give one relative to the repository's root")
    refuse_git_files(wanted)
    sandbox.workspace.refuse_submodule(posixpath.normpath(wanted))
    return wanted


async def _read_near(sandbox: Sandbox, path: str) -> bytes:
    """Return a file's bytes; if it is missing, the error names files with similar names."""
    try:
        return await sandbox.read(path)
    except FileProblem as error:
        if MISSING not in str(error):
            raise
        hint = await asyncio.to_thread(near_hint, path, await files_of(sandbox))
        raise FileProblem(f"{error}{hint}") from None


async def read(context: CallContext, arguments: FileReadArguments) -> ToolResult:
    """Return lines of a file, with their numbers; of a folder, what is in it."""
    path = (await path_of(context.sandbox, arguments.path)).rstrip("/")
    if not path.strip("./"):
        return await _list(context.sandbox, path)
    try:
        content = await _read_near(context.sandbox, path)
    except FileProblem as error:
        if not str(error).endswith("is a folder"):
            raise
        return await _list(context.sandbox, path)
    file = await asyncio.to_thread(TextFile.of, content)
    if file is None:
        return refusal(f"{path} is a binary file of {len(content):,} bytes")
    result = _numbered(path, split(visible(lf_only(file.text))), arguments)
    return result if result.is_error else replace(result, digest=hashlib.sha256(content).hexdigest())


async def _list(sandbox: Sandbox, folder: str) -> ToolResult:
    rows = await asyncio.to_thread(listing, folder, await files_of(sandbox))
    return ToolResult("\n".join([f"{folder or '.'} is a folder, with:", *(rows or ["(no files)"])]))


def _numbered(path: str, lines: list[str], arguments: FileReadArguments) -> ToolResult:
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
    return ToolResult("\n".join(shown) or "(empty file)", truncated=truncated)


async def write(context: CallContext, arguments: FileWriteArguments) -> ToolResult:
    """Write a complete file; one that exists keeps its encoding and its line ends."""
    path = await path_to_write(context.sandbox, arguments.path)
    try:
        file = await asyncio.to_thread(TextFile.of, await context.sandbox.read(path))
    except FileProblem as error:
        if MISSING not in str(error):
            raise
        file = None
    unfenced = without_fence(arguments.content) if not path.endswith(PROSE) and "." in path else None
    text = arguments.content if unfenced is None else f"{unfenced}\n"
    if file is not None and "\n" in file.text:
        text = await asyncio.to_thread(with_line_ends, file.text, text)
    lines = text.count("\n") + (not text.endswith("\n") and bool(text))
    done = f"wrote {path} ({lines} lines, {{size}} bytes)"
    if unfenced is not None:
        done += "\nnote: the content was written without its fence: file_write takes the bare content"
    return await store(context, path, file, text, done)


async def edit(context: CallContext, arguments: FileEditArguments) -> ToolResult:
    """Replace one passage of a file."""
    path = await path_to_write(context.sandbox, arguments.path)
    return await edit_all(context, path, [(arguments.old, arguments.new, False)])


async def edit_all(context: CallContext, path: str, edits: Sequence[tuple[str, str, bool]]) -> ToolResult:
    """Replace passages of a file, one after the other: all of them or none.

    Args:
        edits: Old and new text of each, and whether it is replaced wherever it occurs.
    """
    raw = await _read_near(context.sandbox, path)
    file = await asyncio.to_thread(TextFile.of, raw)
    if file is None:
        return refusal(f"{path} is a binary file of {len(raw):,} bytes: change it with code_exec")
    text, notes = file.text, list[str]()
    for number, (old, new, every) in enumerate(edits, 1):
        which = f"edit {number}: " if len(edits) > 1 else ""
        if not old:
            return refusal(f"{which}old is empty: name the text to replace, or use file_write for a new file")
        if old == new:
            return refusal(f"{which}old and new are the same: nothing would change")
        replaced = await asyncio.to_thread(replace_passage, text, old, new, every=every)
        if not isinstance(replaced, Replaced):
            problem = await asyncio.to_thread(_not_replaced, path, text, old, replaced)
            return refusal(f"{which}{problem}" + ("; none of the edits was made" if which else ""))
        text = replaced.text
        notes += [f"\nnote: {which}the old text was read {replaced.how}"] if replaced.how else []
    line = file.text.count("\n", 0, common(file.text, text)) + 1
    return await store(context, path, file, text, f"edited {path} from line {line}{''.join(notes)}")


def _not_replaced(path: str, text: str, old: str, places: list[int]) -> str:
    if not places:
        return f"the text to replace is not in {path}.{nearest(text, old)}"
    where = ", ".join(str(line) for line in places[:LISTED]) + (", ..." if places[LISTED:] else "")
    return f"the text to replace is in {path} more than once (lines {where}): add lines around it"


async def store(context: CallContext, path: str, file: TextFile | None, text: str, done: str) -> ToolResult:
    """Write a file's new text as the file stores text; return the result with notes that matter for the work.

    Args:
        file: The file as it was; None if it is new or held no text.
        done: What was done. `{size}` stands for the number of bytes.
    """
    try:
        content = (file or TextFile()).with_text(text)
    except CannotEncode as error:
        return refusal(f"{path}: {error}")
    await context.sandbox.write(path, content)
    done = done.replace("{size}", str(len(content)))
    if broken := await asyncio.to_thread(parse_problem, path, None if file is None else file.text, text):
        done += f"\nnote: {broken}"
    if await context.sandbox.is_left_out(path):
        done += f"\n{LEFT_OUT}"
    elif await asyncio.to_thread(_first_changes_tests, context.sandbox.workspace, path, file):
        done += f"\n{TESTS}"
    return ToolResult(done, digest=hashlib.sha256(content).hexdigest())


def _first_changes_tests(workspace: Workspace, path: str, file: TextFile | None) -> bool:
    """Return whether a file can hold tests, and was until now as before the work began."""
    path = posixpath.normpath(path)
    entry = workspace.entries(workspace.base).get(path)
    if entry is None or not files_of_tests(workspace.store, workspace.base).has_tests(path):
        return False
    return TextFile.of(workspace.store.get_blob(entry.sha)) == file


READ = Tool(
    "file_read", "Read lines of a file of the repository.", FileReadArguments, read, kind="read", verb="read"
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
