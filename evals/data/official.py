"""Specifications of environments out of the official package `swebench`, where a version is installed that has them."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from m3agent.evals.data.recipe import official_recipe

TABLES = Path("harness/constants/python.py")
"""Where swebench 4.x has its tables; 5.x has none, since its rows bring an image and a script instead."""


def official_environment(repo: str, version: str) -> dict[str, Any] | None:
    """The recipe of the official package for a version of a repository; None where it is not there or has none."""
    tables = _tables()
    if tables is None:
        return None
    spec = tables.MAP_REPO_VERSION_TO_SPECS_PY.get(repo, {}).get(version)
    return spec and official_recipe(spec, version, tables.MAP_REPO_TO_REQS_PATHS.get(repo, ()))


@functools.cache
def _tables() -> ModuleType | None:
    """The tables alone: importing the package would import its network clients and trainers as well."""
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
