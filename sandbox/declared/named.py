"""Read which extras and dependency groups the repository's own test runs install, whatever these are called.

Sources are requirements files (`-e .[cli]`), tox, nox, Hatch and GitHub workflows. All are read as data.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.pyproject import HATCH_ENVIRONMENTS
from m3agent.sandbox.declared.pyproject import SOURCE as PYPROJECT
from m3agent.sandbox.declared.requirements import logical_lines, requirements_files
from m3agent.sandbox.declared.setup_files import TOX
from m3agent.sandbox.declared.types import WANTED_GROUPS, Files, ScanResult, strings, table

NOX = "noxfile.py"
ITSELF = re.compile(r"""(?:^|[\s"'=/}])\.\[([\w.,\s-]+)\]""")
"""The repository itself with extras, as in `-e .[cli,test]` or `{toxinidir}/.[test]`."""
OPTION = re.compile(r"--(?:extra|extras|group|only-group|with)[\s=]+[\"']?([\w.-]+(?:,[\w.-]+)*)")
"""How `uv sync`, `pdm install`, `pip install` and `poetry install` name extras and groups."""
INSTALLS = re.compile(r"\b(pip|uv|pdm|poetry|hatch)\b.*\b(install|sync|run)\b")
WORKFLOW = re.compile(r"\.github/workflows/[^/]+\.ya?ml")
OF_TESTS = re.compile(r"(^|[^a-z])(py)?(test|tests|testing|unit|ci|check|checks|main|build|python)([^a-z]|$)")
"""Names of workflows and sessions that run tests; others install what only documentation or releases need."""
OPTIONS_WITH_VALUE = {"-r", "-c", "-e", "--group", "--requirement", "--constraint", "--editable"}
NOT_OF_TESTS = re.compile(r"doc|lint|typ|mypy|format|release|publish|deploy|bench|audit|security|style")


def read_named(files: Files) -> set[str]:
    """Return the normalized names of the extras and groups that test runs install."""
    found: set[str] = set()
    for text in [*_requirements(files), *_tox(files), *_workflows(files), *map(" ".join, _nox(files))]:
        found |= _names(ITSELF.findall(text))
        if INSTALLS.search(text):
            found |= _names(OPTION.findall(text))
    return found | _names(_in_tables(files))


def read_nox(files: Files, found: ScanResult) -> None:
    """Add the requirements that the test sessions of noxfile.py install by name."""
    for words in _nox(files):
        before = ""
        for word in words[2:]:
            if not word.startswith("-") and before not in OPTIONS_WITH_VALUE and _is_requirement(word):
                found.require(word, NOX)
            before = word


def _names(lists: Iterable[str]) -> set[str]:
    """Return the normalized names in lists like `cli,test`, without those that tests do not need."""
    names = {canonicalize_name(name.strip()) for names in lists for name in names.split(",") if name.strip()}
    return {name for name in names if not NOT_OF_TESTS.search(name)}


def _requirements(files: Files) -> Iterator[str]:
    for path in requirements_files(files):
        yield from logical_lines(files.text(path, ScanResult()) or "")


def _tox(files: Files) -> Iterator[str]:
    config = files.ini(TOX, ScanResult())
    yield from config.get("testenv", "deps", fallback="").splitlines()
    for key in ("extras", "dependency_groups"):
        for line in config.get("testenv", key, fallback="").splitlines():
            for name in re.split(r"[,\s]+", line.rpartition(":")[2].strip()):
                yield f".[{name}]"


def _workflows(files: Files) -> Iterator[str]:
    for path in sorted(files.paths):
        name = path.rpartition("/")[2].lower()
        if WORKFLOW.fullmatch(path) and OF_TESTS.search(name) and not NOT_OF_TESTS.search(name):
            yield from (files.text(path, ScanResult()) or "").replace("\\\n", " ").splitlines()


def _in_tables(files: Files) -> Iterator[str]:
    """Yield what pyproject.toml's tables for Hatch and tox name."""
    tool = table(files.toml(PYPROJECT, ScanResult()), "tool")
    environments: list[Any] = [
        environment
        for name, environment in table(tool, "hatch", "envs").items()
        if canonicalize_name(name) in WANTED_GROUPS | HATCH_ENVIRONMENTS
    ]
    environments.append(table(tool, "tox", "env_run_base"))
    for environment in environments:
        for key in ("features", "dependency-groups", "extras", "dependency_groups"):
            yield from strings(table(environment).get(key))
        for line in strings(table(environment).get("deps")):
            yield from ITSELF.findall(line)


def _nox(files: Files) -> Iterator[list[str]]:
    """Yield the installations of the test sessions of noxfile.py, each as the words of a command of pip."""
    try:
        module = ast.parse(files.text(NOX, ScanResult()) or "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    sessions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    for session in sessions:
        if OF_TESTS.search(session.name) and not NOT_OF_TESTS.search(session.name):
            calls = [node for node in ast.walk(session) if isinstance(node, ast.Call)]
            for call in calls:
                if isinstance(call.func, ast.Attribute) and call.func.attr == "install":
                    words = [word.value for word in call.args if isinstance(word, ast.Constant)]
                    yield ["pip", "install", *(word for word in words if isinstance(word, str))]


def _is_requirement(word: str) -> bool:
    try:
        Requirement(word)
    except InvalidRequirement:
        return False  # for example a folder
    return True
