"""Parse a row's test command. m3agent's own runner then runs the parts that matter."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
VALUED = frozenset({"-p", "-W", "-k", "-m", "-o", "-c", "-n", "-r", "--durations", "--rootdir", "--maxfail"})
"""Options of pytest whose value may be a separate word."""
LEFT_OUT = (
    *("-r", "-v", "-q", "-s", "-x", "-n", "-c", "--durations", "--tb", "--no-header", "--color", "--rootdir"),
    *("--maxfail", "--verbose", "--junit", "--pdb", "--exitfirst", "--dist", "--lf", "--ff", "--sw", "--co"),
)
"""Prefixes of options that are dropped: they affect only the output, or which tests or results appear."""


@dataclass(frozen=True)
class RowCommand:
    """A parsed test command."""

    env: dict[str, str] = field(default_factory=dict)
    """Variables that are set in front of the command."""
    python: tuple[str, ...] = ()
    """Options of the Python interpreter."""
    options: tuple[str, ...] = ()
    """Options of pytest that decide how tests run."""
    targets: tuple[str, ...] = ()
    """Words that may be paths."""
    program: str = ""
    """A script or module other than pytest; empty for pytest."""
    words: tuple[str, ...] = ()
    """All arguments of `program`."""


def parse_command(text: str) -> RowCommand:
    """Parse a shell line; parts that cannot be understood are left out."""
    try:
        words = shlex.split(text)
    except ValueError:
        return RowCommand()
    env: dict[str, str] = {}
    while words and (match := ASSIGNMENT.fullmatch(words[0])):
        env[match[1]] = match[2]
        words.pop(0)
    python: list[str] = []
    if words and PurePosixPath(words[0]).name.startswith("python"):
        words.pop(0)
        while words and words[0].startswith("-") and words[0] != "-m":
            option = words.pop(0)
            python.append(option)
            if option in {"-X", "-W"} and words:
                python.append(words.pop(0))
        if words[:1] == ["-m"]:
            words.pop(0)
    is_pytest = bool(words) and PurePosixPath(words[0]).name in {"pytest", "py.test"}
    other = ("", ()) if is_pytest or not words else (words[0], tuple(words[1:]))
    return RowCommand(env, tuple(python), *_split(words[1:], is_pytest=is_pytest), *other)


def _split(words: Sequence[str], *, is_pytest: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    options: list[str] = []
    targets: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            targets.append(word)
            continue
        taken = [word]
        if is_pytest and word in VALUED and left:
            taken.append(left.pop(0))
        if is_pytest and not word.startswith(LEFT_OUT):
            options += taken
    return tuple(options), tuple(targets)
