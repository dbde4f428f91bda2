"""Swap a changed function into a process that has already imported the original."""

# Runs inside the sandbox: os.path starts faster than pathlib.
# ruff: noqa: PTH100

from __future__ import annotations
import __future__

import ast
import functools
import gc
import inspect
import operator
import os
import sys
import types
from typing import Any

from m3agent.serving.embedded.probe.tree import spliced

FUTURES = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
"""The flags of code objects that correspond to ``from __future__`` imports."""


def key_of(code: types.CodeType) -> tuple[str, int, str]:
    """Identify `code` by its position in its file."""
    return os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name


class ImportTimeCalls:
    """Record the functions that run while modules are imported: changing those needs a fresh import."""

    def __init__(self) -> None:
        self.ran: set[tuple[str, int, str]] = set()

    def begin(self) -> None:
        """Start recording."""
        sys.setprofile(self._note)

    def take(self) -> dict[str, list[int]]:
        """Stop recording."""
        sys.setprofile(None)
        return {}

    def _note(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self.ran.add(key_of(frame.f_code))


def live_functions() -> dict[tuple[str, int, str], list[types.FunctionType]]:
    """Return every function object of this process, by the position of its code."""
    found: dict[tuple[str, int, str], list[types.FunctionType]] = {}
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType):
            found.setdefault(key_of(thing.__code__), []).append(thing)
    return found


class Original:
    """A file as imported, for comparison with candidates.

    Only the top-level statement that a candidate changes is compiled.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        tree = ast.parse(text)  # noqa: TID251  # the only thread of a program that runs in a sandbox
        self.flags = compile(text, path, "exec", dont_inherit=True).co_flags & FUTURES
        starts = [0]
        for line in text.split("\n"):
            starts.append(starts[-1] + len(line) + 1)
        firsts = [
            min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            for node in tree.body
        ]
        # (line, start, end) of each statement, with the text before the next one
        lasts = [line - 1 for line in firsts[1:]] + [len(starts) - 1]
        self.statements = [
            (first, starts[first - 1], min(starts[lasts[number]], len(text)))
            for number, first in enumerate(firsts)
            if lasts[number] >= first
        ]
        self.compiled: dict[int, types.CodeType] = {}

    def changes(
        self, edits: list[list[Any]], ran: set[tuple[str, int, str]]
    ) -> dict[tuple[str, int, str], tuple[types.CodeType, bool]] | None:
        """Return the `changes` of the file with `edits`; raises SyntaxError if it does not compile then."""
        low, high = min(edit[0] for edit in edits), max(edit[1] for edit in edits)
        for line, start, end in self.statements:
            if start <= low and high < end:
                if line not in self.compiled:
                    self.compiled[line] = self._compiled(line, self.text[start:end])
                moved = [[edit[0] - start, edit[1] - start, edit[2]] for edit in edits]
                return changes(
                    self.compiled[line], self._compiled(line, spliced(self.text[start:end], moved)), ran
                )
        if 0 not in self.compiled:
            self.compiled[0] = self._compiled(1, self.text)
        return changes(self.compiled[0], self._compiled(1, spliced(self.text, edits)), ran)

    def _compiled(self, line: int, text: str) -> types.CodeType:
        code: types.CodeType = compile(
            "\n" * (line - 1) + text, self.path, "exec", flags=self.flags, dont_inherit=True
        )
        return code


def nested(code: types.CodeType) -> list[types.CodeType]:
    """Return the code objects defined directly inside `code`, in order."""
    return [const for const in code.co_consts if isinstance(const, types.CodeType)]


def shape(code: types.CodeType) -> tuple[Any, ...]:
    """Return what `code` does by itself, without nested code and line numbers."""
    consts = tuple(
        (type(const).__name__, repr(const))
        for const in code.co_consts
        if not isinstance(const, types.CodeType)
    )
    names = (
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_argcount,
        code.co_flags,
    )
    return (code.co_code, consts, names, tuple(inner.co_name for inner in nested(code)))


def changes(
    old: types.CodeType, new: types.CodeType, ran: set[tuple[str, int, str]], inside: bool = False
) -> dict[tuple[str, int, str], tuple[types.CodeType, bool]] | None:
    """Map the position of each changed function to its new code; None if only a fresh import will do.

    The flag beside the code says whether its function must exist already. A function made inside another one
    (`inside`) need not: the new code of the outer function will make it.
    """
    is_function = bool(old.co_flags & inspect.CO_NEWLOCALS)  # not a module or class body
    if shape(old) != shape(new):
        same_frame = old.co_name == new.co_name and old.co_freevars == new.co_freevars
        return (
            {key_of(old): (new, not inside)}
            if is_function and same_frame and key_of(old) not in ran
            else None
        )
    found: dict[tuple[str, int, str], tuple[types.CodeType, bool]] = {}
    for index, before in enumerate(nested(old)):
        inner = changes(before, nested(new)[index], ran, inside or is_function)
        if inner is None:
            return None
        found.update(inner)
    if found and is_function:
        found[key_of(old)] = (new, not inside)
    return found
