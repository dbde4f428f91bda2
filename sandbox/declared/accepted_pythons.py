"""Read which versions of Python a repository accepts, from specifiers and from its GitHub workflows."""

from __future__ import annotations

import re

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from m3agent.sandbox.declared.commands import WORKFLOW, of_tests
from m3agent.sandbox.declared.types import Files

OTHERS = (*(f"3.{minor}" for minor in (*range(15, 40), 4, 3)), "2.7")
"""Versions that count only if a project accepts none of those that a base image may have."""
KNOWN = (*(f"3.{minor}" for minor in (12, 11, 13, 10, 9, 14, 8, 7, 6, 5)), *OTHERS)
"""Minor versions of Python; those for which most packages have wheels come first."""
PATCHES = range(31)
MATRIX = re.compile(
    r"""^[\s-]*["']?python(?:[-_]version)?s?["']?[ \t]*:[ \t]*(.*)\n((?:[ \t]+-[^\n:]*\n)*)""", re.MULTILINE
)
"""A key of a workflow that names versions of Python, with a list in the same line or in the lines below."""
MINOR = re.compile(r"(?<![\w.])3\.\d+(?![\w])")


def read_ci_pythons(files: Files) -> tuple[str, ...]:
    """Return the minor versions of Python that GitHub workflows with tests name, best first."""
    found = set[str]()
    for path in files.paths:
        if WORKFLOW.fullmatch(path) and of_tests(path.rpartition("/")[2]):
            for match in MATRIX.finditer((files.text(path) or "") + "\n"):
                found.update(MINOR.findall(match[1].partition("#")[0] + match[2]))
    return tuple(python for python in KNOWN if python in found)


def minor_of(version: str) -> str:
    """Return the minor version of a version of Python."""
    return ".".join(version.split(".")[:2])


def pythons_in(specifier: str) -> tuple[str, ...]:
    """Return the minor versions of Python that a specifier accepts, best first; empty if it accepts any, or is invalid."""
    try:
        accepted = SpecifierSet(specifier)
    except InvalidSpecifier:
        return ()
    if not len(accepted):
        return ()
    fit = [python for python in KNOWN if any(accepted.contains(f"{python}.{n}") for n in PATCHES)]
    return tuple(python for python in fit if python not in OTHERS) or tuple(fit[:1])
