"""What models are used to: the names of other agents' tools and arguments, read as the tools that there are.

A call is read in another way only if that has one meaning. Otherwise it stays as it is, and is refused with the names that
there are. What the model sent stays in the conversation and in the log.
`aliases.toml` has the names.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
NAMES = {
    name: (row["tool"], row.get("implied", {})) for row in _TABLES["tools"] for name in row["names"].split()
}
"""A tool, and arguments that a name implies, by the name in lower case."""
ARGUMENTS: dict[str, dict[str, str]] = {
    tool: {name: others.format(**_TABLES["groups"]) for name, others in names.items()}
    for tool, names in _TABLES["arguments"].items()
}
"""Other names of each tool's arguments."""
UNUSED, UNUSED_IF_FALSE = (_TABLES[key].split() for key in ("unused", "unused_if_false"))

EDITOR = {"view": "file_read", "create": "file_write", "str_replace": "file_edit", "insert": "file_insert"}
"""The commands of the editor tool of other agents."""

_TAGGED = re.compile(r"<?(?:parameter(?:\s+name)?\s*=\s*)?[\"']?([\w-]+)[\"']?\s*/?>?")
_PATCH_BY_SHELL = re.compile(r"\s*apply_patch\s*<<-?\s*[\"']?(\w+)[\"']?\n(.*)\n\1\s*", re.DOTALL)
LONGEST_TIMEOUT = 600
LEAST_MILLISECONDS, MOST_MILLISECONDS = 10_000, 3_600_000
"""A time limit between these cannot be meant in seconds. A larger one makes no sense at all."""


@dataclass(frozen=True)
class Meaning:
    """How a call is read."""

    tool: str
    arguments: dict[str, Any]
    note: str = ""
    """Tells the model which tool was called; empty if the call was right."""


def meaning(name: str, arguments: Mapping[str, Any]) -> Meaning:
    """Return how a call is read: as another tool, or with other arguments, if it has exactly one meaning."""
    given = Meaning(name, dict(arguments))
    key = name.strip().removeprefix("functions.").removeprefix("default_api.").lower()
    tool, implied = NAMES.get(key, ("", {}))
    if tool == "editor":
        arguments = dict(arguments)
        tool = EDITOR.get(str(arguments.pop("command", "")), "")
    if not tool:
        return given
    read = _renamed(tool, arguments)
    if tool == "code_exec" and not implied and not {"command", "cmd"}.isdisjoint(arguments):
        implied = {"language": "bash"}  # a command is a shell's
    read = {**implied, **read}
    convert = CONVERSIONS.get(tool)
    if convert is not None:
        tool, read = convert(read)
    if tool == name and read == arguments:
        return given
    return Meaning(tool, read, f"note: this was read as {tool}({', '.join(read)})")


def _renamed(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments under the names that the tool has."""
    known = ARGUMENTS[tool]
    own = {other: name for name, others in known.items() for other in others.split()}
    renamed: dict[str, Any] = {}
    for given, value in arguments.items():
        tagged = _TAGGED.fullmatch(given)
        name = tagged[1] if tagged and given not in own else given
        name = own.get(name, name)
        if name in UNUSED or (name in UNUSED_IF_FALSE and value in (False, None, "false", "")):
            continue
        if name in renamed or (name != given and name in arguments):
            return dict(arguments)  # two values for one argument
        renamed[name] = value
    return renamed


def _program(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    code = arguments.get("code")
    if isinstance(code, list) and all(isinstance(word, str) for word in code):
        if len(code) == 2 and code[0] == "apply_patch":
            return "apply_patch", {"patch": code[1]}
        is_script = len(code) == 3 and code[0].endswith("sh") and code[1] in ("-c", "-lc")
        code = arguments["code"] = code[2] if is_script else shlex.join(code)
    if isinstance(code, str) and (patch := _PATCH_BY_SHELL.fullmatch(code)):
        return "apply_patch", {"patch": patch[2]}
    if (
        isinstance(code, str)
        and isinstance(arguments.get("cwd"), str)
        and arguments.get("language") == "bash"
    ):
        arguments["code"] = f"cd -- {shlex.quote(arguments.pop('cwd'))} || exit\n{code}"
    return "code_exec", _in_seconds(arguments)


def _in_seconds(arguments: dict[str, Any]) -> dict[str, Any]:
    """Read a long time limit as milliseconds."""
    limit = arguments.pop("timeout_ms", arguments.get("timeout"))
    if limit is None:
        arguments.pop("timeout", None)
    elif isinstance(limit, int) and LEAST_MILLISECONDS <= limit <= MOST_MILLISECONDS:
        arguments["timeout"] = min(max(limit // 1000, 1), LONGEST_TIMEOUT)
    return arguments


def _lines(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    window, limit = arguments.pop("view_range", None), arguments.pop("limit", None)
    if isinstance(window, list) and len(window) == 2 and all(isinstance(line, int) for line in window):
        arguments["start"], last = window
        arguments["end"] = last if last > 0 else None
    if isinstance(first := arguments.pop("offset", None), int):
        arguments["start"] = max(first, 1)
    start = arguments.get("start", 1)
    if isinstance(limit, int) and limit > 0 and isinstance(start, int) and "end" not in arguments:
        arguments["end"] = start + limit - 1
    return "file_read", arguments


def _edit(arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    every = arguments.pop("replace_all", False)
    if "edits" not in arguments and every is not True:
        return "file_edit", arguments
    alone = {name: arguments.pop(name) for name in ("old", "new") if name in arguments}
    edits = arguments.get("edits", [alone])
    if isinstance(edits, str):
        try:
            edits = json.loads(edits)
        except (ValueError, RecursionError):
            return "file_edits", arguments
    if isinstance(edits, list) and all(isinstance(item, dict) for item in edits):
        arguments["edits"] = [{"replace_all": every, **_renamed("file_edit", item)} for item in edits]
    return "file_edits", arguments


CONVERSIONS: dict[str, Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "code_exec": _program,
    "file_read": _lines,
    "file_edit": _edit,
    "file_edits": _edit,
}
"""What is more than another name: returns the tool and its arguments."""
