"""Read a row's description of its environment as an `Environment`."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable

from packaging.utils import canonicalize_name

from m3agent.evals.data.fields import Fields
from m3agent.evals.data.instance import TESTBED, Environment, PythonRunner

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_NOTE = re.compile(r"\s+\(.*\)\s*$")
_CONDA_PIN = re.compile(r"(?<![=<>!~])=(?!=)")
_EXPORT = re.compile(r"export ([A-Za-z_][A-Za-z0-9_]*)=(\S*)")
FOLDER = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+")
"""Where an image may have its code."""
_FILES = ("requirements.txt", "environment.yml")
"""Values of `packages` that mean: the packages are listed in this file of the repository."""


def read_environment(fields: Fields, image: str | None = None) -> Environment:
    """Return the environment of a recipe. All keys are optional.

    Keys:
        python_used, python_official, python: Minor version; the first present key counts.
        requirements_txt, requirements: Lines of a requirements file, as a text or a list.
        packages: Packages for conda or pip, in one text.
        pip_packages: Requirements.
        extra_pip: Requirements that count only if no other one names the package. A note in parentheses may
            follow.
        env, variables: Environment variables.
        eval_commands: Commands; only those that export a variable are used.
        exclude_newer: A date.
        requirements_files, system_packages, pre_install, install, image, folder: See `Environment`.
    """
    lines = _lines([*fields.texts("requirements_txt"), *fields.texts("requirements")])
    exact = _lines(fields.texts("pip_packages"))
    loose = _packages(fields.optional("packages"))
    # the official harness installs these in two steps and the second wins; in one step they would conflict
    packages = _unnamed(loose, exact) + exact
    packages += _unnamed([_NOTE.sub("", line) for line in _lines(fields.texts("extra_pip"))], lines, packages)
    matches = (_EXPORT.fullmatch(line.strip()) for line in fields.texts("eval_commands"))
    exported = {str(match[1]): str(match[2]) for match in matches if match}
    return Environment(
        image=fields.first("image") or image,
        python=fields.first("python_used", "python_official", "python"),
        system_packages=fields.texts("system_packages"),
        requirements=tuple(lines),
        requirements_files=fields.texts("requirements_files"),
        pip_packages=tuple(packages),
        pre_install=fields.texts("pre_install"),
        install=fields.first("install"),
        variables={**exported, **fields.variables("env"), **fields.variables("variables")},
        exclude_newer=fields.date("exclude_newer"),
        folder=_folder(fields),
    )


def runner_of(command: str) -> PythonRunner:
    """Return the test runner of a command of Python; pytest unless the command names another one."""
    words = _words(command)
    if any(word.rpartition("/")[2] == "runtests.py" for word in words):
        return "django"
    if any(f"/{word}".endswith("/bin/test") for word in words):
        return "sympy"
    return "unittest" if ("-m", "unittest") in itertools.pairwise(words) else "pytest"


def _folder(fields: Fields) -> str:
    """Return the path of the code in a prebuilt image. It becomes a part of a script."""
    folder = fields.first("folder") or TESTBED
    if not FOLDER.fullmatch(folder):
        raise fields.malformed("folder", folder, "is not a path such as /testbed")
    return folder


def _lines(texts: Iterable[str]) -> list[str]:
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _packages(text: str | None) -> list[str]:
    """Return requirements from a line of conda packages; conda's `name=1.2` is `name==1.2.*` for pip."""
    if text is None or text in _FILES:
        return []
    pinned = (_CONDA_PIN.subn("==", word) for word in _words(text) if not word.startswith("-"))
    return [f"{word}.*" if pins else word for word, pins in pinned]


def _words(text: str) -> list[str]:
    """Return the words of a shell command, also if it has an open quotation mark."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _unnamed(requirements: Iterable[str], *others: Iterable[str]) -> list[str]:
    """Return the requirements whose package none of the others names."""
    named = {_package(line) for lines in others for line in lines}
    return [line for line in requirements if _package(line) not in named]


def _package(requirement: str) -> str:
    match = _NAME.match(requirement)
    return canonicalize_name(match[1]) if match else requirement
