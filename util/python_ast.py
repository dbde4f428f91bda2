"""Parse Python source in any thread.

`ast.parse` of Python 3.11 keeps its recursion depth in one place for all threads. If the garbage collector runs a finalizer
while one thread parses, another thread may parse meanwhile, and both fail with a SystemError.
"""

from __future__ import annotations

import ast
import threading
from typing import Literal, overload

_PARSING = threading.Lock()


@overload
def parse(source: bytes | str) -> ast.Module: ...
@overload
def parse(source: bytes | str, mode: Literal["eval"]) -> ast.Expression: ...
def parse(source: bytes | str, mode: str = "exec") -> ast.AST:
    """Parse source as `ast.parse` does, one thread at a time."""
    with _PARSING:
        return ast.parse(source, mode=mode)


def parsed(source: bytes | None) -> ast.Module | None:
    """Return the syntax tree of a file; None if it is missing, is no Python, or nests too deeply."""
    try:
        return None if source is None else parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
