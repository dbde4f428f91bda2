"""Read the dependencies of tox.ini.

A line of tox may begin with a condition on the parts ("factors") of an environment's name: `django{42,52}: Django`. Sources:
tox's documentation, "Generative environments" and "Factor-conditional settings".
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator

from m3agent.sandbox.declared.requirements import asks_folder, read_named_file
from m3agent.sandbox.declared.types import Files, ScanResult

TOX = "tox.ini"
LEFT_OUT = "'{}' depends on tox's own settings: left out"
CONDITION = re.compile(r"([!\w{},.\s-]+):\s+(.*)")
CHOICES = re.compile(r"\{([^{}]*)\}")
BETWEEN = re.compile(r",(?![^{}]*\})|\s+")
PYTHON = re.compile(r"(?:py|pypy)\d*(?:\.\d+)?t?")
UNRELEASED = {"main", "master", "dev", "devel", "nightly", "pre", "latest"}
"""Factors of environments that install a package from its repository."""


def read_tox(files: Files, found: ScanResult) -> None:
    """Add the dependencies of tox's main environment.

    Of lines with a condition, those for the last environment of a Python version count: it has the newest versions.
    """
    config = files.ini(TOX, found)
    factors = _factors(files)
    for raw in config.get("testenv", "deps", fallback="").splitlines():
        line = re.sub(r"\{(?:toxinidir|tox_root)\}[/\\]?", "./", raw.split(" #")[0]).strip()
        if not line or line.startswith("#"):
            continue
        if match := CONDITION.fullmatch(line):
            if not _holds(match[1], factors):
                _say_unknown(match[1], line, factors, found)
                continue
            line = match[2]
        _read_line(files, line, found)


def _read_line(files: Files, line: str, found: ScanResult) -> None:
    """Add what one line without a condition names."""
    if "{" in line:
        found.notice(TOX, LEFT_OUT.format(line[:80]))
    elif match := re.match(r"(-r|--requirement|-c|--constraint)[\s=]*(\S+)", line):
        read_named_file(files, posixpath.normpath(match[2]), TOX, found, constraint="c" in match[1][:3])
    elif line.startswith(("-", ".", "/")):
        if not asks_folder(line, ("",), found):
            found.notice(TOX, f"'{line[:80]}' is installed from a folder or is an option: left out")
    else:
        found.require(line, TOX)


def _say_unknown(condition: str, line: str, factors: set[str], found: ScanResult) -> None:
    """Record a line that holds in an environment which m3agent cannot tell: for a Python version, or without a list."""
    names = {factor.lstrip("!") for each in _expanded(condition) for factor in each.split("-")}
    if not factors or _is_of_python(names):
        found.notice(TOX, LEFT_OUT.format(line[:80]))


def _factors(files: Files) -> set[str]:
    """Return the factors of the last environment of a Python version; empty if tox.ini lists none."""
    lines = files.ini_lines(TOX, "tox", "envlist", "env_list")
    plain = ",".join(line for text in lines if (line := text.partition("#")[0].strip()))
    environments = [set(name.split("-")) for name in _expanded(plain)]
    last = [names for names in environments if _is_of_python(names) and not names & UNRELEASED]
    return last[-1] if last else set()


def _is_of_python(factors: set[str]) -> bool:
    return any(PYTHON.fullmatch(factor) for factor in factors)


def _holds(condition: str, factors: set[str]) -> bool:
    """Return whether a condition holds: commas stand for "or", hyphens for "and", `!` for "not".

    The environment may have another Python version than tox's, so a condition that asks for one does not hold.
    """
    return bool(factors) and any(
        all(_has(factors, factor) for factor in each.split("-")) for each in _expanded(condition)
    )


def _has(factors: set[str], factor: str) -> bool:
    if factor.startswith("!"):
        return factor[1:] not in factors
    return factor in factors and not PYTHON.fullmatch(factor)


def _expanded(text: str) -> Iterator[str]:
    """Yield the names in a list, with one name for each of the choices in braces: `a{1,2}` stands for `a1,a2`."""
    for name in filter(None, BETWEEN.split(text)):
        parts = CHOICES.split(name)
        choices = [part.split(",") if number % 2 else [part] for number, part in enumerate(parts)]
        for chosen in itertools.product(*choices):
            yield "".join(map(str.strip, chosen))
