"""Convert SWE-agent's commands to calls: with their own names for the peers, and as m3agent's tools for our detector.

SWE-agent keeps a file open, so `scroll_down` or `edit 7:7` may mean something else each time. That would be unfair to
detectors that compare only arguments. Therefore the open file and the position of the view become arguments.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator

from benchmarks.stall.data import Step
from benchmarks.stall.peers import Move

from m3agent.agent.stall import ObservedCall

HEADER = re.compile(r"\[File: (.*?) \((\d+) lines total\)\]")
NUMBERED = re.compile(r"^(\d+):(.*)$", re.MULTILINE)
VIEWS = ("open", "goto", "scroll_down", "scroll_up")
SEARCHES = ("search_dir", "search_file", "find_file")
REFUSED = ("Your proposed edit has introduced", "Usage:", "Error:", "No file open", "File ")
ENDS = ("submit", "exit_cost", "exit_context", "exit_format", "exit_error", "exit_api")


def moves(steps: Iterable[Step]) -> Iterator[tuple[Move, ObservedCall]]:
    """Yield what a peer and what our detector see of each step, without the steps that end a run."""
    path = ""
    view = ""
    for step in steps:
        action = step.action.strip()
        name, _, rest = action.partition(" ")
        name = name.split("\n", 1)[0]
        result = step.observation
        before, position = path, view
        if found := HEADER.search(result):
            path = found[1]
            numbers = NUMBERED.findall(result)
            view = numbers[0][0] if numbers else ""
        refused = result.startswith(REFUSED[0]) or (
            name in (*VIEWS, *SEARCHES, "edit", "create") and found is None and result.startswith(REFUSED[1:])
        )
        if name in ENDS:
            continue
        key = f"{rest.strip()} @ {before}:{position}" if name in VIEWS[1:] else rest.strip()
        key = f"{rest.strip()} @ {before}" if name in ("edit", "search_file") else key
        tool = "read_file" if name in VIEWS else "search" if name in SEARCHES else "shell"
        tool = name if name in ("edit", "create") else tool
        move = Move(step.thought, name, tool, {"command": key}, result, refused)
        yield move, _seen(name, action, key, path, result, refused)


def _seen(name: str, action: str, key: str, path: str, result: str, refused: bool) -> ObservedCall:
    digest = hashlib.sha256(result.encode("utf-8", "replace")).hexdigest()
    if name in VIEWS and not refused and NUMBERED.search(result):
        # what a read shows are numbered lines
        lines = "\n".join(f"{number}\t{text}" for number, text in NUMBERED.findall(result))
        return ObservedCall("file_read", {"path": path, "at": key}, lines, digest, False, 0, "")
    if name in ("edit", "create"):
        arguments = {"path": path, "change": f"{name} {key}"}
        if refused:
            return ObservedCall("file_edit", arguments, result, digest, True, None, "")
        return ObservedCall("file_edit", arguments, f"edited {path}", digest, False, 0, "")
    return ObservedCall("code_exec", {"code": action}, result, digest, refused, None, "")
