"""Read the commands that a repository's own test runs execute, as data: from tox, nox, Hatch, PDM, make, just
and workflows.

`read_named` reads which extras and dependency groups they install, whatever these are called, also from requirements files.
"""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from m3agent.sandbox.declared.pyproject import HATCH_ENVIRONMENTS
from m3agent.sandbox.declared.requirements import logical_lines, requirements_files
from m3agent.sandbox.declared.tox import TOX
from m3agent.sandbox.declared.types import (
    CONTINUED,
    PYPROJECT,
    WANTED_GROUPS,
    Files,
    ScanResult,
    name_of,
    plain_words,
    texts_at,
    values_at,
    words_of,
)
from m3agent.util.json_value import mapping, strings

NOX = "noxfile.py"
WORKFLOWS = ".github/workflows"
RECIPES = (("Makefile", "makefile", "GNUmakefile"), ("justfile", "Justfile", ".justfile"))
"""Names of the files of make and of just; of each program's, the first that exists counts."""
WORKFLOW = re.compile(r"\.github/workflows/[^/]+\.ya?ml")
OF_TESTS = re.compile(r"(^|[^a-z])(py)?(test|tests|testing|unit|ci|check|checks|main|build|python)([^a-z]|$)")
"""Names of workflows and sessions that run tests; others install what only documentation or releases need."""
NOT_OF_TESTS = re.compile(r"doc|lint|typ|mypy|format|release|publish|deploy|bench|audit|security|style")
TARGET = re.compile(r"@?([\w.-]+)(?:\s[^:]*)?:(?!=)")
"""The first line of a recipe of make or just, as in `test *args="tests": sync`."""

ITSELF = re.compile(r"""(?:^|[\s"'=/}])\.\[([\w.,\s-]+)\]""")
"""The repository itself with extras, as in `-e .[cli,test]` or `{toxinidir}/.[test]`."""
OPTION = re.compile(r"--(?:extra|extras|group|only-group|with)[\s=]+[\"']?([\w.-]+(?:,[\w.-]+)*)")
"""How `uv sync`, `pdm install`, `pip install` and `poetry install` name extras and groups."""
ALL = re.compile(r"--all-(extras|groups)\b")
"""How `uv` and `poetry` name all extras or groups."""
LEFT_OUT = re.compile(r"--(?:no-extra|no-group|without)[\s=]+[\"']?([\w.-]+(?:,[\w.-]+)*)")
"""How they leave out some of these, because they exclude others."""
TABLES = {
    "extras": (
        "project.optional-dependencies",
        "tool.poetry.extras",
        "tool.hatch.metadata.hooks.*.optional-dependencies",
    ),
    "groups": ("dependency-groups", "tool.poetry.group"),
}
"""Places in pyproject.toml that define extras and groups."""
OF_PYTEST = re.compile(r"(?<![\w.-])pytest(?:-[\w-]+)?(?:[<>=!~]=?\d[\w.*]*,?)+")
"""A requirement of pytest or a plugin of it with bounds."""
UPPER = {"<", "<=", "==", "!=", "~="}
COMMANDS = "the commands of the test runs"
INSTALLS = re.compile(r"\b(pip|uv|pdm|poetry|hatch)\b.*\b(install|sync|run)\b")
PIP_INSTALL = re.compile(r"\bpip3? install ([^$]+)$")
TOOLS = {
    "pip",
    "setuptools",
    "wheel",
    "build",
    "twine",
    "tox",
    "nox",
    "poetry",
    "hatch",
    "pdm",
    "uv",
    "pre-commit",
}
"""Packages that workflows install for themselves."""
ENDS = {"&&", "||", "|", ";", "#"}
OPTIONS_WITH_VALUE = {"-r", "-c", "-e", "--group", "--requirement", "--constraint", "--editable"}


def of_tests(name: str) -> bool:
    """Return whether a workflow, a session or a script with this name runs tests."""
    return bool(OF_TESTS.search(name.lower())) and not NOT_OF_TESTS.search(name.lower())


def read_commands(files: Files) -> list[str]:
    """Return the lines in which test runs may name a command; some contain other text around it."""
    found = [*_tox(files), *_scripts(files), *_recipes(files), *workflow_lines(files)]
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


def _recipes(files: Files) -> Iterator[str]:
    """Yield the commands of the recipes for tests."""
    for names in RECIPES:
        name = next((name for name in names if name in files.paths), "")
        target = ""
        for line in CONTINUED.sub(" ", files.text(name) or "").splitlines():
            if match := TARGET.match(line):
                target = match[1]
            elif line[:1].isspace() and of_tests(target):
                yield line.strip()


def workflow_lines(files: Files) -> Iterator[str]:
    """Yield the lines of the workflows of tests."""
    for path in sorted(files.paths):
        if WORKFLOW.fullmatch(path) and of_tests(path.rpartition("/")[2]):
            yield from CONTINUED.sub(" ", files.text(path) or "").splitlines()


def read_named(files: Files) -> set[str]:
    """Return the normalized names of the extras and groups that test runs install."""
    found: set[str] = set()
    installs = (f"pip install {' '.join(words)}" for words in nox_calls(files, "install"))
    texts = [*_in_requirements(files), *_in_tox(files), *read_commands(files), *installs]
    for text in texts:
        found |= _names(ITSELF.findall(text))
        if INSTALLS.search(text):
            found |= _names(OPTION.findall(text))
    return found | _names(_in_tables(files)) | _all_named(files, filter(INSTALLS.search, texts))


def read_nox(files: Files, found: ScanResult) -> None:
    """Add the requirements that the test sessions of noxfile.py install by name."""
    for words in nox_calls(files, "install"):
        found.require_all(filter(name_of, plain_words(words, OPTIONS_WITH_VALUE)), NOX)


def read_installs(files: Files, found: ScanResult) -> None:
    """Add the requirements that workflows of tests install by name, if the repository declares none anywhere else."""
    if found.requirements:
        return
    for line in workflow_lines(files):
        if match := PIP_INSTALL.search(line):
            words = itertools.takewhile(lambda word: word not in ENDS, words_of(match[1]))
            for word in plain_words(words, OPTIONS_WITH_VALUE):
                if name_of(word) and name_of(word) not in TOOLS:
                    found.require(word, WORKFLOWS)


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


def _all_named(files: Files, installs: Iterable[str]) -> set[str]:
    """Return the normalized names of all extras or groups in pyproject.toml, if an installation names all.

    Those that any such installation leaves out are not among them.
    """
    texts = [text for text in installs if ALL.search(text)]
    places = {place for text in texts for kind in ALL.findall(text) for place in TABLES[kind]}
    tables = values_at(files.toml(PYPROJECT), *places)
    left_out = _names(names for text in texts for names in LEFT_OUT.findall(text))
    return _names(name for table in tables for name in mapping(table)) - left_out


def _in_requirements(files: Files) -> Iterator[str]:
    for path in requirements_files(files):
        yield from logical_lines(files.text(path) or "")


def _in_tox(files: Files) -> Iterator[str]:
    yield from files.ini_lines(TOX, "testenv", "deps")
    for line in files.ini_lines(TOX, "testenv", "extras", "dependency_groups"):
        for name in re.split(r"[,\s]+", line.rpartition(":")[2].strip()):
            yield f".[{name}]"


def _in_tables(files: Files) -> Iterator[str]:
    """Yield what pyproject.toml's tables for Hatch, tox and Pixi name."""
    tool = mapping(files.toml(PYPROJECT), "tool")
    for name, environment in mapping(tool, "pixi", "environments").items():
        if name == "default" or of_tests(name):
            yield from texts_at([environment], "*", "*.features")
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
