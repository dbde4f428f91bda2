"""Record which lines of the project run, and the types of the values in its variables."""

# Runs inside the sandbox: os.path starts faster than pathlib.
# ruff: noqa: PTH100

from __future__ import annotations

import os
import sys
import threading
import types
from typing import Any

from m3agent.serving.embedded.probe.tree import Tree, is_test

SAMPLES = 12
"""Number of returns of one function at which its variables are examined."""


class Tracer:
    """Line coverage of project files (without tests) by sys.settrace."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._names: dict[str, str | None] = {}
        self._lines: set[tuple[str, int]] = set()
        self._sampled: dict[types.CodeType, int] = {}
        self.kinds: dict[str, dict[str, set[str]]] = {}

    def begin(self) -> None:
        """Start recording, without earlier lines."""
        self._lines = set()
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def take(self) -> dict[str, list[int]]:
        """Stop recording; return the lines that ran since `begin`, by file."""
        sys.settrace(None)
        threading.settrace(None)
        found: dict[str, list[int]] = {}
        for rel, line in sorted(self._lines):
            found.setdefault(rel, []).append(line)
        return found

    def take_kinds(self) -> dict[str, dict[str, list[str]]]:
        """Return and forget the types seen: ``file:first line`` of a function, variable, type names."""
        kinds = {
            key: {name: sorted(seen) for name, seen in names.items()} for key, names in self.kinds.items()
        }
        self.kinds = {}
        return kinds

    def _enter(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        path = frame.f_code.co_filename
        if path not in self._names:
            rel = self._tree.rel(os.path.abspath(path))
            self._names[path] = None if rel is None or is_test(rel) or not rel.endswith(".py") else rel
        name = self._names[path]
        if name is None:
            return None
        add = self._lines.add

        def local(frame: types.FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                add((name, frame.f_lineno))
            elif event == "return":
                self._sample(name, frame)
            return local

        add((name, frame.f_lineno))
        return local

    def _sample(self, name: str, frame: types.FrameType) -> None:
        code = frame.f_code
        seen = self._sampled.get(code, 0)
        if seen >= SAMPLES or code.co_name == "<module>":
            return
        self._sampled[code] = seen + 1
        names = self.kinds.setdefault(f"{name}:{code.co_firstlineno}", {})
        for variable, value in frame.f_locals.items():
            names.setdefault(variable, set()).add(type(value).__name__)
