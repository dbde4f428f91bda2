"""Find out which programs an image has, and add what it lacks: a Python that the project accepts, toolchains of test suites,
compilers for the project's own build, and what a Dockerfile names.

A Python comes from uv or with another base image, the rest from Debian's packages. Nothing can be installed over the skeleton
image, which has this machine's /usr. If that lacks something, Debian's base image takes its place.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from m3agent.sandbox.backends.image import DEFAULT_PATH, Image
from m3agent.sandbox.declared.tool_versions import LANGUAGES, TABLE, is_older
from m3agent.sandbox.declared.types import name_of
from m3agent.sandbox.images import env_script, packages_script
from m3agent.sandbox.images.debian import RELEASED, base_here, base_image, best_base, exact_base
from m3agent.sandbox.images.installers import installers
from m3agent.sandbox.images.layers import Builder, Layer, Step, digest

FOLDER = "/opt/m3agent-env"
"""Folder of Pythons that uv installs, and of the virtual environment, in an image."""
PACKAGES_RECIPE = 1  # part of every hash; increase it if the same names must give another image
COMPILERS_RECIPE = 1  # the same for compilers
PYTHON_RECIPE = 1  # the same for a Python
PROGRAMS: Mapping[str, str] = TABLE["programs"]
"""Debian packages by the program that they are installed for."""
UNPACKAGED = frozenset(TABLE["unpackaged"]["names"])
"""Those that the Debian of m3agent's images does not have."""
LIBRARIES: Mapping[str, Any] = TABLE["libraries"]
"""By Debian package, the file of a shared library, and the Python packages that load it and do not contain it."""
VERSIONS = [row["version"] for row in LANGUAGES.values()]
"""Commands that print the version of a toolchain."""
TOOLS = {
    program: language
    for language, row in LANGUAGES.items()
    for program in (row["version"][0], *row.get("programs", ()))
}
"""Languages by the programs of their toolchains."""
PROBE = r"""
while [ $# -gt 0 ]; do
  case $1 in
  program) command -v "$2" >/dev/null 2>&1 || echo "missing $3" ;;
  package) [ -e "/usr/share/doc/$2" ] || [ -e "/var/lib/dpkg/info/$2.list" ] || ls /var/lib/dpkg/info/"$2":*.list >/dev/null 2>&1 ||
    echo "missing $3" ;;
  library) [ -n "$(ls -d /usr/lib/"$2" /usr/lib64/"$2" /usr/lib/*/"$2" 2>/dev/null)" ] || echo "missing $3" ;;
  version) ! command -v "$2" >/dev/null 2>&1 || echo "version $2 $("$2" "$3" 2>&1 </dev/null | head -n 1)" ;;
  esac
  shift 3
done
"""
"""Shell script that gets three arguments for each question: program, package, library or version; a name; what is missing."""
VERSION = re.compile(r"\d+(?:\.\d+)+")

COMPILERS_PROBE = r"""
command -v cc >/dev/null || echo 'a C compiler'
include=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)
[ -e "$include/Python.h" ] || echo "Python's headers"
command -v cargo >/dev/null || echo Rust
"""
"""Shell script that prints what an image lacks for a project's own build, one name a line."""
PYTHONS_PROBE = r"""
for python in python3 "$@"; do
  "$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
done
"""
"""Shell script that prints the versions of the Pythons of an image; first, that of python3."""
PYTHONS = tuple(f"python{python}" for python in RELEASED)


@dataclass(frozen=True)
class Toolchains:
    """What an image has."""

    missing: tuple[str, ...]
    """Debian packages that it lacks."""
    versions: Mapping[str, str]
    """Versions of its toolchains, by the name of the language or program."""


def toolchains_of(builder: Builder, image: Image, packages: Collection[str]) -> Toolchains:
    """Return which of these packages an image lacks, and its toolchains. Blocking; the result is kept.

    Raises:
        EnvironmentBuildFailed: The engine failed.
    """
    return read_answers(builder.ask(image, PROBE, _questions(packages), "the search for toolchains"))


def _questions(packages: Iterable[str]) -> list[str]:
    questions: list[str] = []
    for package in sorted(packages):
        if package in LIBRARIES:
            questions += ["library", LIBRARIES[package]["file"], package]
        else:
            program = PROGRAMS.get(package)
            questions += ["package", package, package] if program is None else ["program", program, package]
    for program, option in VERSIONS:
        questions += ["version", program, option]
    return questions


def libraries_for(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the Debian packages with the shared libraries that these Python packages load and do not contain."""
    names = {name_of(line) for line in requirements}
    return tuple(package for package, row in LIBRARIES.items() if not names.isdisjoint(row["needed_by"]))


def read_answers(lines: Iterable[str]) -> Toolchains:
    """Read the output of `PROBE`."""
    missing, versions = [], {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "missing":
            missing.append(rest)
        elif kind == "version":
            program, _, text = rest.partition(" ")
            if (match := VERSION.search(text)) and program in TOOLS:
                versions[TOOLS[program]] = match[0]
    return Toolchains(tuple(missing), versions)


def tools_of(packages: Iterable[str]) -> set[str]:
    """Return the languages whose toolchains are among these packages."""
    programs = (PROGRAMS.get(package, "") for package in packages)
    return {TOOLS[program] for program in programs if program in TOOLS}


def missing_on_host(packages: Iterable[str]) -> list[str]:
    """Return which of these packages this machine's /usr lacks."""
    return [
        package
        for package in packages
        if (
            shutil.which(PROGRAMS[package], path=DEFAULT_PATH) is None
            if package in PROGRAMS
            else not Path("/usr/share/doc", package).exists()
        )
    ]


def pythons_of(builder: Builder, image: Image) -> tuple[str, ...]:
    """Return the minor versions of the Pythons of an image; first, that of its python3. Blocking; the result is kept.

    Raises:
        EnvironmentBuildFailed: The engine failed.
    """
    lines = builder.ask(image, PYTHONS_PROBE, PYTHONS, "the search for Pythons")
    return tuple(dict.fromkeys(line for line in lines if re.fullmatch(r"\d+\.\d+", line)))


def with_python(builder: Builder, image: Image, pythons: Sequence[str], *, replaceable: bool) -> Image:
    """Return an image with a Python that the project accepts; `image` itself if it has one, or if none can be had.

    Blocking; takes minutes if something must be made. What cannot be had is a note, here and in the functions below.

    Args:
        pythons: Minor versions of Python that the project accepts, best first; empty for any.
        replaceable: Whether another image may take its place.

    Raises:
        EnvironmentBuildFailed: The work was stopped, or the engine failed. The same holds for the functions below.
    """
    own = pythons_of(builder, image) if pythons else ()
    if not own or not {*own}.isdisjoint(pythons):
        return image
    for python in pythons if replaceable else ():
        if base := base_here(builder.api, python, state=builder.state):
            return base.image
    with builder.tolerant(None):
        return builder.image(_python_layer(builder, image, pythons[0]), image)
    if replaceable and (best := best_base(pythons)) is not None:
        with builder.tolerant(""):
            return exact_base(
                builder.api, best, state=builder.state, say=builder.say, stop=builder.stop
            ).image
    builder.say(f"Python {pythons[0]} is not available here: using {own[0]}")
    return image


def _python_layer(builder: Builder, image: Image, python: str) -> Layer:
    """Return the layer with a Python that uv installs."""

    def steps() -> list[Step]:
        job = {"folder": FOLDER, "pythons": [python], "env": builder.env}
        return [Step(env_script, job, ("python",), installers(), folders=(FOLDER,))]

    key = f"python-{digest([PYTHON_RECIPE, image.ident or image.name, python, platform.machine()])}"
    return Layer(key, f"an image with Python {python}", steps)


def with_toolchains(
    builder: Builder,
    image: Image,
    packages: Sequence[str],
    pythons: Collection[str],
    asked: Mapping[str, str] = MappingProxyType({}),
) -> Image:
    """Return an image with the Debian packages that test suites need; `image` itself if it has them or they cannot be had.

    Args:
        pythons: Those of `with_python`.
        asked: The least versions of toolchains, by language, where the image may be replaced by one with newer ones.
    """
    if not packages:
        return image
    tools = {package: TOOLS.get(PROGRAMS.get(package, ""), "") for package in packages}
    newer = {
        package: asked[language]
        for package, language in tools.items()
        if language in asked and "backported" in LANGUAGES[language]
    }

    def missing(start: Image) -> list[str]:
        there = toolchains_of(builder, start, packages)
        old = {
            package
            for package, version in newer.items()
            if is_older(there.versions.get(tools[package], version), version)
        }
        return sorted({*there.missing, *old})

    def told(missing: Sequence[str]) -> str:
        names = (f"{package} {newer.get(package, '')}".strip() for package in missing)
        return f"{', '.join(names)} for the tests: using Debian's base image"

    with builder.tolerant("the tests have to do without what is missing"):
        below, names = _over_debian(builder, image, pythons, missing, told)
        return with_system_packages(builder, below, names, why="which the tests need", newer=newer)
    return image


def with_compilers(builder: Builder, image: Image, pythons: Collection[str], *, rust: bool) -> Image:
    """Return an image with a C compiler and Python's headers, and with Rust on demand. Otherwise like `with_toolchains`.

    Some build backends bring their compilers themselves.
    """

    def missing(start: Image) -> list[str]:
        lines = builder.ask(start, COMPILERS_PROBE, (), "the search for compilers")
        return [line for line in lines if rust or line != "Rust"]

    key = f"compilers-{digest([COMPILERS_RECIPE, image.ident, rust])}"
    with builder.tolerant("the project's build has to do without"):
        if there := builder.here(key):
            return there
        image, lacks = _over_debian(
            builder,
            image,
            pythons,
            missing,
            lambda lacks: f"{' and '.join(lacks)} for the project's build: using Debian's",
        )
        if lacks:
            note = f"installing {' and '.join(lacks)} for the project's build once (this may take minutes)"
            return builder.image(_layer(builder, key, "an image with compilers", note, rust=rust), image)
    return image


def _over_debian(
    builder: Builder,
    image: Image,
    pythons: Collection[str],
    missing: Callable[[Image], Sequence[str]],
    told: Callable[[Sequence[str]], str],
) -> tuple[Image, Sequence[str]]:
    """Return an image that can be installed over, and what it lacks: `image`, or Debian's for a skeleton that lacks something."""
    lacks = missing(image)
    if not lacks or not image.binds:
        return image, lacks
    builder.say(f"this machine's /usr lacks {told(lacks)}")
    python = best_base(pythons)
    base = base_image(builder.api, python, state=builder.state, say=builder.say, stop=builder.stop).image
    return base, missing(base)


def with_system_packages(
    builder: Builder,
    image: Image,
    names: Sequence[str],
    *,
    why: str,
    newer: Mapping[str, str] = MappingProxyType({}),
) -> Image:
    """Return an image with those of these Debian packages that can be installed. Blocking; takes minutes.

    Args:
        why: Says for people why they are installed, as a relative clause.
        newer: The least versions of packages; if Debian's release has older ones, they come from its backports.
    """
    if not names:
        return image
    if image.binds:
        listed = " ".join(names)
        builder.say(f"left out, because nothing can be installed over this machine's /usr: {listed}")
        return image
    key = f"packages-{digest([PACKAGES_RECIPE, image.ident, sorted(names), *sorted(newer.items())])}"
    note = f"installing {' '.join(names)}, {why}, once (this may take minutes)"
    with builder.tolerant("continuing without them"):
        return builder.image(
            _layer(builder, key, "an image with these packages", note, packages=names, newer=dict(newer)),
            image,
        )
    return image


def _layer(builder: Builder, key: str, what: str, note: str, **settings: object) -> Layer:
    """Return the layer in which `packages_script` installs something."""

    def steps() -> list[Step]:
        return [Step(packages_script, {**settings, "env": builder.env})]

    return Layer(key, what, steps, as_root=True, before=(note,))
