"""Read the commands that a repository's own test runs execute, as data: from tox, nox, Hatch, PDM, make and workflows.

`read_named` reads which extras and dependency groups they install, whatever these are called, also from requirements files.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.pyproject import HATCH_ENVIRONMENTS
from m3agent.sandbox.declared.requirements import logical_lines, requirements_files
from m3agent.sandbox.declared.setup_files import TOX
from m3agent.sandbox.declared.types import (
    CONTINUED,
    PYPROJECT,
    WANTED_GROUPS,
    Files,
    ScanResult,
    name_of,
    plain_words,
    texts_at,
)
from m3agent.util.json_value import mapping, strings

NOX = "noxfile.py"
MAKEFILES = ("Makefile", "makefile", "GNUmakefile")
WORKFLOW = re.compile(r"\.github/workflows/[^/]+\.ya?ml")
OF_TESTS = re.compile(r"(^|[^a-z])(py)?(test|tests|testing|unit|ci|check|checks|main|build|python)([^a-z]|$)")
"""Names of workflows and sessions that run tests; others install what only documentation or releases need."""
NOT_OF_TESTS = re.compile(r"doc|lint|typ|mypy|format|release|publish|deploy|bench|audit|security|style")
TARGET = re.compile(r"([\w.-]+)\s*:(?!=)")  # of a Makefile

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


def of_tests(name: str) -> bool:
    """Return whether a workflow, a session or a script with this name runs tests."""
    return bool(OF_TESTS.search(name.lower())) and not NOT_OF_TESTS.search(name.lower())


def read_commands(files: Files) -> list[str]:
    """Return the lines in which test runs may name a command; some contain other text around it."""
    found = [*_tox(files), *_scripts(files), *_makefile(files), *_workflows(files)]
    return [*found, *(shlex.join(words) for words in nox_calls(files, "run"))]


def nox_calls(files: Files, method: str) -> Iterator[list[str]]:
    """Yield the literal arguments of a method of the session, for each call in noxfile.py's sessions of tests."""
    sessions = [node for node in files.python(NOX).body if isinstance(node, ast.FunctionDef)]
    calls = (node for session in sessions if of_tests(session.name) for node in ast.walk(session))
    for call in calls:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == method:
            words = [word.value for word in call.args if isinstance(word, ast.Constant)]
            yield strings(words)


def _tox(files: Files) -> Iterator[str]:
    for line in files.ini_lines(TOX, "testenv", "commands_pre", "commands"):
        yield re.sub(r"\{toxinidir\}[/\\]?", "", line)


def _scripts(files: Files) -> Iterator[str]:
    """Yield what pyproject.toml's tables for tox, Hatch and PDM run."""
    tool = mapping(files.toml(PYPROJECT), "tool")
    commands = mapping(tool, "tox", "env_run_base").get("commands")
    for one in commands if isinstance(commands, list) else []:
        yield shlex.join(strings(one))
    scripts = [mapping(tool, "pdm", "scripts")]
    scripts += [mapping(environment, "scripts") for environment in mapping(tool, "hatch", "envs").values()]
    for name, script in (item for one in scripts for item in one.items()):
        if of_tests(name):
            yield from texts_at({"script": script}, "script", "script.cmd")


def _makefile(files: Files) -> Iterator[str]:
    name = next((name for name in MAKEFILES if name in files.paths), "")
    target = ""
    for line in CONTINUED.sub(" ", files.text(name) or "").splitlines():
        if match := TARGET.match(line):
            target = match[1]
        elif line.startswith("\t") and of_tests(target):
            yield line.strip()


def _workflows(files: Files) -> Iterator[str]:
    for path in sorted(files.paths):
        if WORKFLOW.fullmatch(path) and of_tests(path.rpartition("/")[2]):
            yield from CONTINUED.sub(" ", files.text(path) or "").splitlines()


def read_named(files: Files) -> set[str]:
    """Return the normalized names of the extras and groups that test runs install."""
    found: set[str] = set()
    installs = (f"pip install {' '.join(words)}" for words in nox_calls(files, "install"))
    for text in [*_in_requirements(files), *_in_tox(files), *read_commands(files), *installs]:
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


def _in_requirements(files: Files) -> Iterator[str]:
    for path in requirements_files(files):
        yield from logical_lines(files.text(path) or "")


def _in_tox(files: Files) -> Iterator[str]:
    yield from files.ini_lines(TOX, "testenv", "deps")
    for line in files.ini_lines(TOX, "testenv", "extras", "dependency_groups"):
        for name in re.split(r"[,\s]+", line.rpartition(":")[2].strip()):
            yield f".[{name}]"


def _in_tables(files: Files) -> Iterator[str]:
    """Yield what pyproject.toml's tables for Hatch and tox name."""
    tool = mapping(files.toml(PYPROJECT), "tool")
    environments: list[Any] = [
        environment
        for name, environment in mapping(tool, "hatch", "envs").items()
        if canonicalize_name(name) in WANTED_GROUPS | HATCH_ENVIRONMENTS
    ]
    environments.append(mapping(tool, "tox", "env_run_base"))
    for environment in environments:
        yield from texts_at(environment, "features", "dependency-groups", "extras", "dependency_groups")
        for line in texts_at(environment, "deps"):
            yield from ITSELF.findall(line)
