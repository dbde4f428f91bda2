"""Read the commands that a repository's own test runs execute, as data: from tox, nox, Hatch, PDM, make and workflows."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

from m3agent.sandbox.declared.setup_files import TOX
from m3agent.sandbox.declared.types import PYPROJECT, Files, strings, table, texts_at

NOX = "noxfile.py"
MAKEFILES = ("Makefile", "makefile", "GNUmakefile")
WORKFLOW = re.compile(r"\.github/workflows/[^/]+\.ya?ml")
OF_TESTS = re.compile(r"(^|[^a-z])(py)?(test|tests|testing|unit|ci|check|checks|main|build|python)([^a-z]|$)")
"""Names of workflows and sessions that run tests; others install what only documentation or releases need."""
NOT_OF_TESTS = re.compile(r"doc|lint|typ|mypy|format|release|publish|deploy|bench|audit|security|style")
CONTINUED = re.compile(r"\\\r?\n\s*")
TARGET = re.compile(r"([\w.-]+)\s*:(?!=)")  # of a Makefile


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
    config = files.ini(TOX)
    for key in ("commands_pre", "commands"):
        text = CONTINUED.sub(" ", config.get("testenv", key, fallback=""))
        yield from (re.sub(r"\{toxinidir\}[/\\]?", "", line) for line in text.splitlines())


def _scripts(files: Files) -> Iterator[str]:
    """Yield what pyproject.toml's tables for tox, Hatch and PDM run."""
    tool = table(files.toml(PYPROJECT), "tool")
    commands = table(tool, "tox", "env_run_base").get("commands")
    for one in commands if isinstance(commands, list) else []:
        yield shlex.join(strings(one))
    scripts = [table(tool, "pdm", "scripts")]
    scripts += [table(environment, "scripts") for environment in table(tool, "hatch", "envs").values()]
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
