"""Read the variables that a repository's own test runs set: in tox, Hatch and workflows. Only literal values count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from m3agent.sandbox.declared.commands import of_tests, workflow_lines
from m3agent.sandbox.declared.pyproject import HATCH_ENVIRONMENTS
from m3agent.sandbox.declared.tox import TOX
from m3agent.sandbox.declared.types import PYPROJECT, Files
from m3agent.util.json_value import mapping

LITERAL = re.compile(r"[^{}$\n]*")
IN_TOX = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.*?)\s*")
ENV = re.compile(r"(\s*(?:- )?)env:\s*")
IN_ENV = re.compile(r"""(\s*)([A-Za-z_]\w*):\s+(["']?)(.*?)\3\s*(?:\s#.*)?""")
OF_CI = (
    *("CI", "GITHUB_*", "*COLOR*", "TERM", "COLUMNS"),
    *("TOX*", "NOX*", "PRE_COMMIT*", "CIBW_*", "CODECOV*", "PIXI_*", "HATCH_*", "MYPY*"),
)
"""Names of variables that workflows set for other programs than the tests."""


def read_variables(files: Files) -> dict[str, str]:
    """Return the variables with their values; those of tox and Hatch come before those of workflows."""
    tool = mapping(files.toml(PYPROJECT), "tool")
    environments = mapping(tool, "hatch", "envs").items()
    tables = [mapping(tool, "tox", "env_run_base").get(key) for key in ("setenv", "set_env")]
    tables += [
        mapping(t).get("env-vars") for name, t in environments if name in HATCH_ENVIRONMENTS or of_tests(name)
    ]
    found = dict(_in_workflows(files))
    for table in tables:
        found |= {name: value for name, value in mapping(table).items() if isinstance(value, str)}
    lines = files.ini_lines(TOX, "testenv", "setenv", "set_env")
    found |= {match[1]: match[2] for line in lines if (match := IN_TOX.fullmatch(line))}
    return {name: value for name, value in found.items() if value and LITERAL.fullmatch(value)}


def _in_workflows(files: Files) -> Iterator[tuple[str, str]]:
    """Yield the variables of workflows of tests that have the same value everywhere."""
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
    for name, given in values.items():
        if len(given) == 1 and not any(fnmatchcase(name.upper(), pattern) for pattern in OF_CI):
            yield name, given.pop()
