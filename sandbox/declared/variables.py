"""Read the variables that a repository's own test runs set: in tox and Hatch, and in workflows if tox passes them on.

Only literal values count. A workflow may name services and files that only its steps make: values with a place are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from m3agent.sandbox.declared.commands import of_tests, workflow_lines
from m3agent.sandbox.declared.pyproject import HATCH_ENVIRONMENTS
from m3agent.sandbox.declared.tox import TOX
from m3agent.sandbox.declared.types import PYPROJECT, Files, texts_at
from m3agent.util.json_value import mapping

LITERAL = re.compile(r"[^{}$\n]+")
LOCALE = re.compile(r"(?:LANG|LANGUAGE|LC_\w+)=(?!C\b|POSIX).*")
"""A locale that images may lack."""
NO_PLACE = re.compile(r"(?!localhost)[\w.+-]+")
IN_TOX = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.*?)\s*")
ENV = re.compile(r"(\s*(?:- )?)env:\s*")
IN_ENV = re.compile(r"""(\s*)([A-Za-z_]\w*):\s+(["']?)(.*?)\3\s*(?:\s#.*)?""")
OF_CI = ("CI", "CI_*", "GITHUB_*", "*COLOR*", "TERM", "COLUMNS", "CODECOV*")
"""Names of variables that describe a workflow's machine and its output."""


def read_variables(files: Files) -> dict[str, str]:
    """Return the variables with their values; those of tox and Hatch come before those of workflows."""
    tool = mapping(files.toml(PYPROJECT), "tool")
    tox, environments = mapping(tool, "tox", "env_run_base"), mapping(tool, "hatch", "envs").items()
    tables = [tox.get("setenv"), tox.get("set_env")]
    tables += [
        mapping(table).get("env-vars")
        for name, table in environments
        if name in HATCH_ENVIRONMENTS or of_tests(name)
    ]
    passed = [*texts_at(tox, "pass_env", "passenv"), *files.ini_lines(TOX, "testenv", "passenv", "pass_env")]
    found = dict(_in_workflows(files, re.split(r"[,\s]+", " ".join(passed))))
    for table in tables:
        found |= {name: value for name, value in mapping(table).items() if isinstance(value, str)}
    lines = files.ini_lines(TOX, "testenv", "setenv", "set_env")
    found |= {match[1]: match[2] for line in lines if (match := IN_TOX.fullmatch(line))}
    return {
        name: value
        for name, value in found.items()
        if LITERAL.fullmatch(value) and not LOCALE.fullmatch(f"{name}={value}")
    }


def _in_workflows(files: Files, passed: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables of workflows of tests that have one of these names, and the same value everywhere."""
    for name, given in _given(files).items() if any(passed) else ():
        wanted = any(fnmatchcase(name, pattern) for pattern in passed if pattern != "*")
        if wanted and len(given) == 1 and not any(fnmatchcase(name, pattern) for pattern in OF_CI):
            yield from ((name, value) for value in given if NO_PLACE.fullmatch(value))


def _given(files: Files) -> dict[str, set[str]]:
    """Return the values of the variables that workflows of tests set, by name."""
    values: dict[str, set[str]] = {}
    inside: int | None = None  # the indent of `env:`
    for line in workflow_lines(files):
        match = IN_ENV.fullmatch(line)
        if inside is not None and match and len(match[1]) > inside:
            values.setdefault(match[2], set()).add(match[4])
        elif block := ENV.fullmatch(line):
            inside = len(block[1])
        elif line.strip() and not line.lstrip().startswith("#"):
            inside = None
    return values
