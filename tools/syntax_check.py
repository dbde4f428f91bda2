"""Whether a change breaks the syntax of a file: said at once, it costs no run of the tests."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
import warnings
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from m3agent.tools.base import cut, visible
from m3agent.util.python_ast import parse

GRAMMARS = {
    "go": "go",
    "java": "java",
    "js": "javascript",
    "jsx": "javascript",
    "mjs": "javascript",
    "php": "php",
    "rb": "ruby",
    "rs": "rust",
    "ts": "typescript",
    "tsx": "tsx",
}
"""Grammars of tree-sitter, an optional extra, by suffix."""
MOST_CHARACTERS = 500_000
PYTHON = f"Python {sys.version_info[0]}.{sys.version_info[1]}"


def parse_problem(path: str, before: str | None, after: str) -> str:
    """Return where a changed file does not parse, in a sentence; empty if it does, or did not parse before.

    Args:
        path: The file's path, whose suffix tells the language.
        before: The text before the change; None for a new file.
        after: The text after it.
    """
    suffix = PurePosixPath(path).suffix.removeprefix(".").lower()
    if max(len(before or ""), len(after)) > MOST_CHARACTERS:
        return ""
    problem = _problem(suffix, after)
    if not problem or (before is not None and _problem(suffix, before)):
        return ""
    return cut(
        f"{path} {'does not parse' if before is None else 'no longer parses'} as {visible(problem)}", 500
    )


def _problem(suffix: str, text: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if suffix in ("py", "pyi"):
                parse(re.sub(r"coding[:=]", "coding ", text, count=2))  # the text is decoded already
            elif suffix == "json":
                json.loads(text)
            elif suffix == "toml":
                tomllib.loads(text)
            elif suffix in GRAMMARS:
                return _grammar_problem(GRAMMARS[suffix], text)
    except SyntaxError as error:
        return f"{PYTHON}: line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{'Python' if suffix.startswith('py') else suffix.upper()}: {error}"
    return ""


def _grammar_problem(grammar: str, text: str) -> str:
    parser = _parser(grammar)
    if parser is None:
        return ""
    root = parser.parse(text.encode("utf-8", "replace")).root_node
    if not root.has_error:
        return ""
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if node.is_error or node.is_missing:
            return f"{grammar}: line {node.start_point[0] + 1}: syntax error"
        nodes += reversed([child for child in node.children if child.has_error or child.is_missing])
    return f"{grammar}: syntax error"


@cache
def _parser(grammar: str) -> Any:
    try:
        return importlib.import_module("tree_sitter_language_pack").get_parser(grammar)
    except (ImportError, LookupError):
        return None
