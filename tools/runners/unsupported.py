"""Tests that m3agent recognises and cannot run: their runners, and how a repository shows that it uses one.

A repository in which only such tests are found is not one without tests, so people are told the name. `unsupported.toml` has the
runners.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from m3agent.tools.runners.base import Tree, is_skipped

MOST_READ = 50
"""Most files of one kind that are read."""


@cache
def _rows() -> list[tuple[str, re.Pattern[str], re.Pattern[str]]]:
    """Return the name of each runner with the patterns of the paths and of the texts that show it."""
    rows = []
    for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["runners"]:
        file, text = row.get("file", r"package\.json"), row.get("text", "")
        if "script" in row:
            text = rf'"test[\w:.-]*"\s*:\s*"[^"]*\b(?:{row["script"]})\b'
        rows.append((row["name"], re.compile(f"(?:.*/)?{file}", re.DOTALL), re.compile(text)))
    return rows


def found_in(tree: Tree) -> Mapping[str, str]:
    """Return the runners that a tree uses, each with the path that shows it."""
    paths = [path for path in sorted(tree.paths) if not is_skipped(path)]
    shown = dict[str, str]()
    for name, file, text in _rows():
        named = [path for path in paths if file.fullmatch(path)][:MOST_READ]
        if path := next((path for path in named if not text.pattern or text.search(tree.text(path))), ""):
            shown.setdefault(name, path)
    return shown


def described(tree: Tree) -> str:
    """Return the runners for people: `Deno (deno.json), Karma (karma.conf.js)`; empty if there are none."""
    return ", ".join(f"{name} ({path})" for name, path in sorted(found_in(tree).items()))
