"""Read which files of the project only its own build makes: generated version files and extension modules.

The build itself runs in a container (`images/project_script.py`). Here its configuration is read as data.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from m3agent.sandbox.declared.setup_files import CFG, PY, setup_arguments
from m3agent.sandbox.declared.types import PYPROJECT, Files, ScanResult, name_of, texts_at
from m3agent.sandbox.store.workspace import inside_git, runs_later
from m3agent.util.json_value import mapping

SCM = ("setuptools_scm", "setuptools-scm", "vcs-versioning")
COMPILERS = frozenset(
    {
        *("cython", "cffi", "pybind11", "nanobind", "mypy", "mypyc"),
        *("maturin", "setuptools-rust", "meson-python", "scikit-build", "scikit-build-core"),
    }
)
"""Build requirements of projects that compile extension modules."""
RUST = frozenset({"maturin", "setuptools-rust"})
CARGO = "Cargo.toml"
COMPILED = re.compile(
    r"\b(ext_modules(?!\s*=\s*(?:\[\s*\]|None\b))|rust_extensions|cffi_modules|mypycify|cythonize)\b"
)
"""What a setup.py that compiles extension modules contains. It may name an empty list of them."""
READ_PYTHON = frozenset({"cython", "cffi", "mypy", "mypyc"})
READS_PYTHON = re.compile(r"\b(cffi_modules|mypycify|cythonize)\b")
"""Compilers that read Python modules, as build requirements and in a setup.py."""
TEST_FILE = re.compile(r"(test_.*|.*_test|tests?)\.py")
VERSION_FILES = (
    *(f"{tool}.write_to" for tool in SCM),
    *(f"{tool}.version_file" for tool in SCM),
    *("hatch.build.hooks.vcs.version-file", "hatch.build.targets.*.hooks.vcs.version-file"),
    *("hatch.build.hooks.version.path", "hatch.build.targets.*.hooks.version.path"),
    *("versioningit.write.file", "versioningit.onbuild.source-file"),
)
"""Places in pyproject.toml's tables of tools that name generated version files."""
VERSION_AT_END = re.compile(
    r"(?:^|[^0-9.])(\d+(?:[._]\d+)*(?:[-_.]?(?:a|b|rc|alpha|beta|post|dev)[-_.]?\d*)*)$"
)
# Plain text in these folders has no influence on what a build makes.
ASIDE = {"test", "tests", "doc", "docs", "benchmarks", "examples", ".github"}
TEXT = {".py", ".pyi", ".md", ".rst", ".txt", ".yml", ".yaml"}
PROSE = (".md", ".rst", ".pyi", ".yml", ".yaml", ".gitignore", ".gitattributes")
"""Ends of the names of files that no compiler reads."""


@dataclass(frozen=True)
class ProjectBuild:
    """What the project's own build makes."""

    version_files: tuple[str, ...]
    """Paths of the files that its configuration tells it to generate and that the tree lacks."""
    extensions: bool
    """Whether it compiles extension modules."""
    inputs: tuple[str, ...]
    """Paths of the files that decide the result."""
    rust: str | None = None
    """The oldest version of Rust that it accepts, if it needs Rust; empty for any version."""


def read_build(files: Files) -> ProjectBuild | None:
    """Return what the project's build makes and the tree lacks; None if that is nothing."""
    found = ScanResult()  # `read_declared` reads the same files and gives the notices
    whole = files.toml(PYPROJECT, found)
    wanted = sorted({posixpath.normpath(path) for path in _named(files, whole, found)} - files.paths)
    version_files = tuple(path for path in wanted if may_be_kept(path))
    extensions = _compiles(files, whole, found)
    if not version_files and not extensions:
        return None
    rust = _rust(files, whole, found) if extensions else None
    return ProjectBuild(version_files, extensions, _inputs(files, whole, extensions=extensions), rust)


def may_be_kept(path: str) -> bool:
    """Return whether a generated file with this path may be used: not if it starts by itself or is a test."""
    if path.startswith(("/", "../")) or path in {"", ".", ".."} or inside_git(path) or runs_later(path):
        return False
    return TEST_FILE.fullmatch(posixpath.basename(path).lower()) is None


def version_of_tag(tag: str) -> str | None:
    """Return the version that the name of a tag contains, such as 1.2 for `v1.2` or `name-1.2`; None without one."""
    match = VERSION_AT_END.search(tag)
    try:
        return str(Version(re.sub(r"(?<=\d)_(?=\d)", ".", match[1]))) if match else None
    except InvalidVersion:
        return None


def _named(files: Files, whole: dict[str, Any], found: ScanResult) -> Iterator[str]:
    """Yield the paths of version files that pyproject.toml and setup.py name."""
    tool = whole.get("tool")
    yield from texts_at(tool, *VERSION_FILES)
    yield from texts_at(
        setup_arguments(files, found)[1], "use_scm_version.write_to", "use_scm_version.version_file"
    )
    # the path is relative to the packages; where no folder is named, that is src/ or the root
    folder = next(texts_at(tool, "pdm.build.package-dir"), "")
    for path in texts_at(tool, "pdm.version.write_to"):
        yield from (posixpath.join(place, path) for place in ([folder] if folder else ["src", "."]))


def _compiles(files: Files, whole: dict[str, Any], found: ScanResult) -> bool:
    """Return whether the project's build compiles extension modules."""
    if any(path.endswith(".pyx") for path in _outside_tests(files)):
        return True
    setuptools = mapping(whole, "tool", "setuptools")
    if "ext-modules" in setuptools or "setuptools-rust" in mapping(whole, "tool"):
        return True
    if COMPILED.search(files.text(PY, found) or "") or files.ini(CFG, found).has_section("build_ext"):
        return True
    return bool(COMPILERS & _build_requires(whole))


def _rust(files: Files, whole: dict[str, Any], found: ScanResult) -> str | None:
    """Return the oldest version of Rust that the build accepts; empty for any version, None if it needs no Rust."""
    tool = mapping(whole, "tool")
    in_setup = "rust_extensions" in (files.text(PY, found) or "")
    if not RUST & (_build_requires(whole) | tool.keys()) and not in_setup:
        return None
    manifest = next(texts_at(tool, "maturin.manifest-path"), CARGO)
    cargo = files.toml(posixpath.normpath(manifest), found)
    return next(texts_at(cargo, "package.rust-version", "workspace.package.rust-version"), "")


def _build_requires(whole: dict[str, Any]) -> set[str]:
    return {name_of(line) for line in texts_at(whole, "build-system.requires")}


def _outside_tests(files: Files) -> Iterator[str]:
    return (path for path in files.paths if not ASIDE & set(path.split("/")[:-1]))


def _inputs(files: Files, whole: dict[str, Any], *, extensions: bool) -> tuple[str, ...]:
    """Return the files that decide what the build makes.

    A version file depends only on the configuration and on the code of the project's own build backend.
    """
    backends = map(posixpath.normpath, texts_at(whole, "build-system.backend-path"))
    folders = tuple(f"{folder}/" for folder in backends if folder != ".")
    configuration = {
        path
        for path in files.paths
        if path in {PYPROJECT, CFG} or path.startswith(folders) or ("/" not in path and path.endswith(".py"))
    }
    return tuple(sorted(configuration | (_compiled(files, whole) if extensions else set())))


def _compiled(files: Files, whole: dict[str, Any]) -> set[str]:
    """Return all files but the text of tests and documentation; Python modules only if the compiler reads such."""
    outside = set(_outside_tests(files))
    decide = {
        path
        for path in files.paths
        if not path.endswith(PROSE) and (path in outside or posixpath.splitext(path)[1] not in TEXT)
    }
    in_setup = READS_PYTHON.search(files.text(PY) or "")
    if not (in_setup or READ_PYTHON & _build_requires(whole) or any(p.endswith(".pyx") for p in outside)):
        decide = {path for path in decide if not path.endswith((".py", ".pyi"))}
    return decide
