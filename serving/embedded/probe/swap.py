"""Putting a changed function into a process that has already imported the original."""

# Runs inside the sandbox, where plain paths start faster.
# ruff: noqa: PTH100

from __future__ import annotations

import gc
import inspect
import os
import sys
import types
from typing import Any


def key_of(code: types.CodeType) -> tuple[str, int, str]:
    """Name `code` by where it stands in its file."""
    return os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name


class ImportTimeCalls:
    """Notes the functions that run while modules are imported: changing those needs a fresh import."""

    def __init__(self) -> None:
        self.ran: set[tuple[str, int, str]] = set()

    def begin(self) -> None:
        """Start noting."""
        sys.setprofile(self._note)

    def take(self) -> dict[str, list[int]]:
        """Stop noting."""
        sys.setprofile(None)
        return {}

    def _note(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self.ran.add(key_of(frame.f_code))


def live_functions() -> dict[tuple[str, int, str], list[types.FunctionType]]:
    """Index every function object of this process by its code's place."""
    found: dict[tuple[str, int, str], list[types.FunctionType]] = {}
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType):
            found.setdefault(key_of(thing.__code__), []).append(thing)
    return found


def nested(code: types.CodeType) -> list[types.CodeType]:
    """Return the code objects defined directly inside `code`, in order."""
    return [const for const in code.co_consts if isinstance(const, types.CodeType)]


def shape(code: types.CodeType) -> tuple[Any, ...]:
    """Return what `code` does by itself, nested code and line numbers left out."""
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
    """Map the place of each changed function to its new code; None when only a fresh import would do.

    The flag beside a code says whether its function must be alive: those made inside another (`inside`) need not be,
    they will be made from the new code of the outer one.
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
