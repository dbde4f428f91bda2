"""Read environment specifications from the official package `swebench`.

Only some versions of the package have such tables.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

TABLES = Path("harness/constants/python.py")
"""Path of the tables in swebench 4.x. In 5.x the rows contain an image and a script instead."""


def official_environment(repo: str, version: str) -> dict[str, Any] | None:
    """Return the official recipe for a version of a repository.

    Returns:
        None if there is no recipe, or no package with such tables is installed.
    """
    tables = _tables()
    if tables is None:
        return None
    spec = tables.MAP_REPO_VERSION_TO_SPECS_PY.get(repo, {}).get(version)
    return spec and _recipe(spec, version, tables.MAP_REPO_TO_REQS_PATHS.get(repo, ()))


def _recipe(spec: Mapping[str, Any], version: str, requirements_files: Iterable[str]) -> dict[str, Any]:
    """Convert the package's specification of a version to a recipe, as `recipe.read_environment` reads it.

    Added are two things that the official images contain: pytest, and a version for setuptools-scm, which
    finds it in the git history there.
    """
    recipe = {**spec, "extra_pip": ["pytest"], "env": {"SETUPTOOLS_SCM_PRETEND_VERSION": f"{version}.0"}}
    if spec.get("packages") == "requirements.txt":
        recipe["requirements_files"] = list(requirements_files)
    return recipe


@functools.cache
def _tables() -> ModuleType | None:
    """Load only the module with the tables.

    Importing the package would also import its network clients and trainers.
    """
    package = importlib.util.find_spec("swebench")
    for folder in (package and package.submodule_search_locations) or ():
        if (path := Path(folder) / TABLES).is_file():
            spec = importlib.util.spec_from_file_location("swebench_tables", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None
