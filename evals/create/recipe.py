"""Derive an instance's environment from its files and its date: Python version, packages and installation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from m3agent.evals.create.history import Commit, CommitHistory
from m3agent.sandbox.declared.declared import Declared, acceptable_pythons, read_declared
from m3agent.sandbox.declared.types import Files, ScanResult, table
from m3agent.sandbox.images.debian import RELEASED
from m3agent.sandbox.images.environment import files_of
from m3agent.sandbox.store.workspace import Workspace

SETTLED = timedelta(days=183)
"""How long after a Python release most packages had wheels for it."""
UNKNOWN = "0.0.0"
CLASSIFIER = re.compile(r"Programming Language :: Python :: 3\.(\d+)\b")
BUILD_FILES = ("pyproject.toml", "setup.cfg", "setup.py")

# Build tools that take the version from git's tags, which an instance does not have. Each has a pattern for
# its name in build files, and the variable that sets the version instead (from the tool's documentation).
VERSIONED_BY_TAGS = (
    (
        re.compile(r"setuptools[_-]scm|hatch-vcs|flit[_-]scm|vcs[_-]versioning", re.IGNORECASE),
        "SETUPTOOLS_SCM_PRETEND_VERSION",
    ),
    (re.compile(r"\bpbr\b"), "PBR_VERSION"),
    (re.compile(r"poetry-dynamic-versioning"), "POETRY_DYNAMIC_VERSIONING_BYPASS"),
    (re.compile(r"pdm-backend|pdm-pep517"), "PDM_BUILD_SCM_VERSION"),
)


def recipe_of(
    history: CommitHistory, base: str, commit: Commit, python: str | None, available: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Return a row's `environment`, without the command that names test files, and its `version`.

    Args:
        python: The minor version to use, whatever the project declares; None to choose one.
    """
    files = files_of(Workspace(history.store, base))
    declared = read_declared(files)
    texts = [files.text(name, ScanResult()) or "" for name in BUILD_FILES]
    release = history.release(base)
    minor = python or choose_python(accepted(declared, texts), commit.date.date(), available)
    lines = [line.partition(" --hash")[0] for line in declared.requirements]
    has_pytest = any(canonicalize_name(Requirement(line).name) == "pytest" for line in lines)
    return {
        "python_official": minor,
        "python_used": minor,
        "base": None,
        "requirements_txt": "".join(f"{line}\n" for line in lines) or None,
        "packages": None,
        "pip_packages": [] if has_pytest else ["pytest"],
        "pre_install": [],
        "install": "python -m pip install -e ." if is_installable(files) else None,
        "env": {name: release or UNKNOWN for sign, name in VERSIONED_BY_TAGS if any(map(sign.search, texts))},
        "test_cmd": "pytest -rA",
        "extra_pip": [],
        "services": [],
        "exclude_newer": commit.date.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }, release or ""


def choose_python(accepts: Sequence[str], day: date, available: Sequence[str] = ()) -> str:
    """Return the newest minor version that was settled on `day`, else the oldest one.

    Args:
        accepts: Minor versions that the project accepts; empty for any. If none of them is available, all
            available versions are considered.
    """
    known = [minor for minor in RELEASED if not available or minor in available]
    fit = [minor for minor in known if not accepts or minor in accepts] or known or list(RELEASED)
    settled = [minor for minor in fit if RELEASED[minor] + SETTLED <= day]
    return max(settled, key=RELEASED.__getitem__) if settled else min(fit, key=RELEASED.__getitem__)


def accepted(declared: Declared, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the minor versions that the project declares as accepted, else those in its classifiers."""
    named = {f"3.{minor}" for text in texts for minor in CLASSIFIER.findall(text)}
    return acceptable_pythons(declared) or tuple(sorted(named))


def is_installable(files: Files) -> bool:
    """Return whether pip can install the tree. A pyproject.toml may exist only to configure other tools."""
    whole = files.toml("pyproject.toml", ScanResult())
    return "setup.py" in files.paths or bool(
        table(whole, "project") or table(whole, "build-system") or table(whole, "tool", "poetry")
    )
