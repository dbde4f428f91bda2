"""Tools that are not offered, but understood: what models are used to from other agents."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence

from pydantic import Field

from m3agent.sandbox.errors import DiskFull, FileProblem, PathEscapes
from m3agent.tools import code_exec
from m3agent.tools.base import Arguments, CallContext, Tool, ToolResult, refusal
from m3agent.tools.files import PATH, edit_all, path_of, path_to_write, store
from m3agent.tools.patch_format import BadPatch, FileChange, changes_of, patched
from m3agent.tools.text_file import CannotEncode, TextFile, lf_only, with_line_ends

SEARCH = """\
import fnmatch, os, pathlib, re
kind, pattern, folder, glob, flags, most = {arguments!r}
left = most
def show(line):
    global left
    left -= 1
    if left < 0:
        raise SystemExit(f"[more than {{most}}: narrow the search]")
    print(line)
def files():
    if os.path.isfile(folder):
        yield folder
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in (".git", "node_modules", "__pycache__"))
        yield from (os.path.normpath(os.path.join(here, name)) for name in sorted(names))
if kind == "glob":
    for path in sorted(pathlib.Path(folder).glob(pattern)):
        show(path)
else:
    wanted = re.compile(pattern, flags)
    for path in files():
        if glob and not any(fnmatch.fnmatch(part, glob) for part in (path, os.path.basename(path))):
            continue
        with open(path, "rb") as file:
            text = file.read()
        if b"\\0" in text:
            continue
        for number, line in enumerate(text.decode("utf-8", "replace").split("\\n"), 1):
            if wanted.search(line):
                show(f"{{path}}:{{number}}:{{line[:300]}}")
if left == most:
    print("(nothing)")
"""
"""The program that searches files, in the sandbox: a pattern may take any time."""
MOST_LINES = 200

Plan = tuple[FileChange, str, TextFile | None, str]
"""A change of a patch, the file's path, the file as it was (None if it is new), and its new text."""


class PassageEdit(Arguments):
    """One of several edits."""

    old: str
    new: str
    replace_all: bool = False


class EditsArguments(Arguments):
    """Arguments of file_edits."""

    path: str = PATH
    edits: list[PassageEdit] = Field(min_length=1)


class InsertArguments(Arguments):
    """Arguments of file_insert."""

    path: str = PATH
    line: int = Field(ge=0, description="The line after which the text is inserted.")
    text: str


class PatchArguments(Arguments):
    """Arguments of apply_patch."""

    patch: str


class GrepArguments(Arguments):
    """Arguments of grep."""

    pattern: str
    path: str = "."
    glob: str = ""
    ignore_case: bool = False


class GlobArguments(Arguments):
    """Arguments of glob."""

    pattern: str
    path: str = "."


async def edit_several(context: CallContext, arguments: EditsArguments) -> ToolResult:
    """Make several edits of a file, or none."""
    edits = [(edit.old, edit.new, edit.replace_all) for edit in arguments.edits]
    return await edit_all(context, await path_to_write(context.sandbox, arguments.path), edits)


async def insert(context: CallContext, arguments: InsertArguments) -> ToolResult:
    """Insert lines into a file."""
    path = await path_to_write(context.sandbox, arguments.path)
    file = await asyncio.to_thread(TextFile.of, await context.sandbox.read(path))
    if file is None:
        return refusal(f"{path} is a binary file")
    lines = (
        lf_only(file.text).splitlines(keepends=True) if "\n" in file.text else [file.text] * bool(file.text)
    )
    if arguments.line > len(lines):
        return refusal(f"{path} has {len(lines)} lines: there is no line {arguments.line}")
    before = "".join(lines[: arguments.line])
    before += "\n" * bool(before and not before.endswith("\n"))
    text = before + lf_only(arguments.text).removesuffix("\n") + "\n" + "".join(lines[arguments.line :])
    done = f"inserted into {path} after line {arguments.line}"
    return await store(context, path, file, with_line_ends(file.text, text), done)


async def apply_patch(context: CallContext, arguments: PatchArguments) -> ToolResult:
    """Apply a patch to the work tree: all its changes, or none if one does not fit."""
    planned: list[Plan] = []
    touched: set[str] = set()
    try:
        for change in changes_of(arguments.patch):
            path = await path_to_write(context.sandbox, change.path)
            target = await path_to_write(context.sandbox, change.target or change.path)
            names = {posixpath.normpath(path), posixpath.normpath(target)}
            if twice := names & touched:
                raise BadPatch(f"{min(twice)} is changed twice: give all its changes in one part")
            touched |= names
            file = await _present(context, path)
            text = patched(change, path, None if file is None else file.text)
            (file or TextFile()).with_text(text)  # fails before the first change
            if target != path and await _present(context, target) is not None:
                raise BadPatch(f"{target} exists already, so {path} cannot be moved there")
            planned.append((change, target, file, text))
            if target != path:
                planned.append((FileChange(path, "delete"), path, file, ""))
    except (BadPatch, CannotEncode) as error:
        return refusal(f"{error}; nothing was changed")
    return await _carry_out(context, planned)


async def _present(context: CallContext, path: str) -> TextFile | None:
    try:
        raw = await context.sandbox.read(path)
    except FileProblem:
        return None
    file = await asyncio.to_thread(TextFile.of, raw)
    if file is None:
        raise BadPatch(f"{path} is a binary file")
    return file


async def _carry_out(context: CallContext, planned: Sequence[Plan]) -> ToolResult:
    """Change the files in turn. If one fails, stop, and say which were changed and which were not."""
    done: list[str] = []
    for change, path, file, text in planned:
        try:
            if change.kind == "delete":
                await _delete(context, path)
                done.append(f"deleted {path}")
            else:
                done.append((await store(context, path, file, text, f"patched {path}")).content)
        except (DiskFull, FileProblem, PathEscapes) as error:
            if not done:
                raise
            left = ", ".join(plan[1] for plan in planned[len(done) :])
            stopped = f"error: {error}; the patch stopped here, and these files were not changed: {left}"
            return ToolResult("\n".join([*done, stopped]), is_error=True)
    return ToolResult("\n".join(done))


async def _delete(context: CallContext, path: str) -> None:
    if (await context.sandbox.exec(["rm", "--", f"./{path}"])).exit:
        raise FileProblem(f"{path} was not deleted")


async def grep(context: CallContext, arguments: GrepArguments) -> ToolResult:
    """Search the files of a folder for lines that match a regular expression."""
    flags = 2 if arguments.ignore_case else 0  # re.IGNORECASE
    return await _search(context, "grep", arguments.pattern, arguments.path, arguments.glob, flags)


async def find(context: CallContext, arguments: GlobArguments) -> ToolResult:
    """List the paths that match a pattern."""
    return await _search(context, "glob", arguments.pattern, arguments.path)


async def _search(
    context: CallContext, kind: str, pattern: str, path: str, glob: str = "", flags: int = 0
) -> ToolResult:
    folder = await path_of(context.sandbox, path) or "."
    program = SEARCH.format(arguments=(kind, pattern, folder, glob, flags, MOST_LINES))
    return await code_exec.run(context, code_exec.CodeExecArguments.model_validate({"code": program}))


TOOLS = (
    Tool(
        "file_edits",
        "Make several edits of a file.",
        EditsArguments,
        edit_several,
        kind="edit",
        verb="edit",
        content_arguments=("edits",),
    ),
    Tool(
        "file_insert",
        "Insert lines into a file.",
        InsertArguments,
        insert,
        kind="edit",
        verb="edit",
        content_arguments=("text",),
    ),
    Tool(
        "apply_patch",
        "Apply a patch.",
        PatchArguments,
        apply_patch,
        kind="edit",
        verb="patch",
        content_arguments=("patch",),
    ),
    Tool("grep", "Search files.", GrepArguments, grep, verb="search", title_argument="pattern"),
    Tool("glob", "List paths.", GlobArguments, find, verb="list", title_argument="pattern"),
)
