"""Read which extras and dependency groups the repository's own test runs install, whatever these are called.

Sources are requirements files (`-e .[cli]`), tox, nox, Hatch and GitHub workflows. All are read as data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.commands import NOT_OF_TESTS, NOX, nox_calls, read_commands
from m3agent.sandbox.declared.pyproject import HATCH_ENVIRONMENTS
from m3agent.sandbox.declared.requirements import logical_lines, requirements_files
from m3agent.sandbox.declared.setup_files import TOX
from m3agent.sandbox.declared.types import (
    PYPROJECT,
    WANTED_GROUPS,
    Files,
    ScanResult,
    name_of,
    plain_words,
    table,
    texts_at,
)

ITSELF = re.compile(r"""(?:^|[\s"'=/}])\.\[([\w.,\s-]+)\]""")
"""The repository itself with extras, as in `-e .[cli,test]` or `{toxinidir}/.[test]`."""
OPTION = re.compile(r"--(?:extra|extras|group|only-group|with)[\s=]+[\"']?([\w.-]+(?:,[\w.-]+)*)")
"""How `uv sync`, `pdm install`, `pip install` and `poetry install` name extras and groups."""
OF_PYTEST = re.compile(r"(?<![\w.-])pytest(?:-[\w-]+)?(?:[<>=!~]=?\d[\w.*]*,?)+")
"""A requirement of pytest or a plugin of it with bounds."""
UPPER = {"<", "<=", "==", "!=", "~="}
COMMANDS = "the commands of the test runs"
INSTALLS = re.compile(r"\b(pip|uv|pdm|poetry|hatch)\b.*\b(install|sync|run)\b")
OPTIONS_WITH_VALUE = {"-r", "-c", "-e", "--group", "--requirement", "--constraint", "--editable"}


def read_named(files: Files) -> set[str]:
    """Return the normalized names of the extras and groups that test runs install."""
    found: set[str] = set()
    installs = (f"pip install {' '.join(words)}" for words in nox_calls(files, "install"))
    for text in [*_requirements(files), *_tox(files), *read_commands(files), *installs]:
        found |= _names(ITSELF.findall(text))
        if INSTALLS.search(text):
            found |= _names(OPTION.findall(text))
    return found | _names(_in_tables(files))


def read_nox(files: Files, found: ScanResult) -> None:
    """Add the requirements that the test sessions of noxfile.py install by name."""
    for words in nox_calls(files, "install"):
        for word in filter(name_of, plain_words(words, OPTIONS_WITH_VALUE)):
            found.require(word, NOX)


def read_bounds(files: Files, found: ScanResult) -> None:
    """Add the versions of pytest and its plugins that test runs bound from above, as in `pip install "pytest<9"`.

    Two different bounds of one package belong to different runs; none of them is used.
    """
    bounds: dict[str, set[str]] = {}
    for line in read_commands(files):
        for word in OF_PYTEST.findall(line) if INSTALLS.search(line) else ():
            if name_of(word) and any(one.operator in UPPER for one in Requirement(word).specifier):
                bounds.setdefault(name_of(word), set()).add(word)
    for words in bounds.values():
        if len(words) == 1:
            found.constrain(words.pop(), COMMANDS)


def _names(lists: Iterable[str]) -> set[str]:
    """Return the normalized names in lists like `cli,test`, without those that tests do not need."""
    names = {canonicalize_name(name.strip()) for names in lists for name in names.split(",") if name.strip()}
    return {name for name in names if not NOT_OF_TESTS.search(name)}


def _requirements(files: Files) -> Iterator[str]:
    for path in requirements_files(files):
        yield from logical_lines(files.text(path) or "")


def _tox(files: Files) -> Iterator[str]:
    config = files.ini(TOX)
    yield from config.get("testenv", "deps", fallback="").splitlines()
    for key in ("extras", "dependency_groups"):
        for line in config.get("testenv", key, fallback="").splitlines():
            for name in re.split(r"[,\s]+", line.rpartition(":")[2].strip()):
                yield f".[{name}]"


def _in_tables(files: Files) -> Iterator[str]:
    """Yield what pyproject.toml's tables for Hatch and tox name."""
    tool = table(files.toml(PYPROJECT), "tool")
    environments: list[Any] = [
        environment
        for name, environment in table(tool, "hatch", "envs").items()
        if canonicalize_name(name) in WANTED_GROUPS | HATCH_ENVIRONMENTS
    ]
    environments.append(table(tool, "tox", "env_run_base"))
    for environment in environments:
        yield from texts_at(environment, "features", "dependency-groups", "extras", "dependency_groups")
        for line in texts_at(environment, "deps"):
            yield from ITSELF.findall(line)
