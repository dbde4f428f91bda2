"""Find out which toolchains an image has, and add what test suites lack, from Debian's packages.

Nothing can be installed over the skeleton image, which has this machine's /usr. If that lacks something, Debian's base image
takes its place.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m3agent.sandbox.backends.image import DEFAULT_PATH, Image, installed_on_host
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images.debian import DEBIAN, base_image
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.images.kept import Say, folder
from m3agent.sandbox.images.probe import probe
from m3agent.sandbox.images.system_packages import with_system_packages

PROGRAMS = {
    "autoconf": "autoconf",
    "automake": "automake",
    "bats": "bats",
    "bundler": "bundle",
    "cargo": "cargo",
    "cargo-web": "cargo",
    "cmake": "cmake",
    "composer": "composer",
    "default-jdk": "javac",
    "default-jdk-headless": "javac",
    "dotnet-sdk-8.0": "dotnet",
    "elixir": "mix",
    "g++": "c++",
    "gcc": "cc",
    "golang": "go",
    "golang-go": "go",
    "gradle": "gradle",
    "libtool": "libtoolize",
    "make": "make",
    "maven": "mvn",
    "meson": "meson",
    "ninja-build": "ninja",
    "nodejs": "node",
    "npm": "npm",
    "openjdk-17-jdk-headless": "javac",
    "perl": "prove",
    "php-cli": "php",
    "phpunit": "phpunit",
    "pkg-config": "pkg-config",
    "rake": "rake",
    "ruby": "ruby",
    "ruby-bundler": "bundle",
    "ruby-minitest": "minitest",
    "ruby-rspec": "rspec",
    "rustc": "rustc",
    "rustc-web": "rustc",
    "swiftlang": "swift",
    "yarnpkg": "yarnpkg",
}
"""Debian packages by the program that they are installed for. If the program is there, whoever installed it, so is the package.

Of another package, its documentation or dpkg's record must be there.
"""
TOOLS = {
    "bundle": "Ruby",
    "cargo": "Rust",
    "dotnet": ".NET",
    "go": "Go",
    "javac": "Java",
    "mix": "Elixir",
    "node": "Node.js",
    "php": "PHP",
    "ruby": "Ruby",
    "rustc": "Rust",
    "swift": "Swift",
}
"""Languages by the programs of their toolchains."""
VERSIONS = {
    ".NET": ("dotnet", "--version"),
    "Elixir": ("elixir", "--short-version"),
    "Go": ("go", "version"),
    "Java": ("java", "-version"),
    "Node.js": ("node", "--version"),
    "PHP": ("php", "--version"),
    "Ruby": ("ruby", "--version"),
    "Rust": ("rustc", "--version"),
    "Swift": ("swift", "--version"),
}
"""Commands that print the version of a toolchain."""
PROBE = r"""
while [ $# -gt 0 ]; do
  case $1 in
  program) command -v "$2" >/dev/null 2>&1 || echo "missing $3" ;;
  package) [ -e "/usr/share/doc/$2" ] || [ -e "/var/lib/dpkg/info/$2.list" ] || ls /var/lib/dpkg/info/"$2":*.list >/dev/null 2>&1 ||
    echo "missing $3" ;;
  version) ! command -v "$2" >/dev/null 2>&1 || echo "version $2 $("$2" "$3" 2>&1 </dev/null | head -n 1)" ;;
  esac
  shift 3
done
"""
"""Shell script that gets three arguments for each question: program, package or version; a name; what is missing."""
VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True)
class Toolchains:
    """What an image has.

    Attributes:
        missing: Debian packages that it lacks.
        versions: Versions of the toolchains that it has, by the name of the language or program.
    """

    missing: tuple[str, ...]
    versions: Mapping[str, str]


def toolchains_of(api: Any, image: Image, packages: Collection[str], state: Path) -> Toolchains:
    """Return which of these packages an image lacks, and its toolchains. Blocking; the result is kept.

    Raises:
        EnvironmentBuildFailed: The engine failed.
    """
    questions = _questions(packages)
    made_from = [image.ident, installed_on_host() if image.binds else "", PROBE, questions]
    digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]
    kept = folder(state) / f"toolchains-{digest}.json"
    try:
        lines = [str(line) for line in json.loads(kept.read_text("utf-8"))]
    except (OSError, ValueError, TypeError):
        lines = probe(api, image, PROBE, questions, "the search for toolchains")
        kept.write_text(json.dumps(lines), "utf-8")
    return read_answers(lines)


def _questions(packages: Iterable[str]) -> list[str]:
    questions: list[str] = []
    for package in sorted(packages):
        program = PROGRAMS.get(package)
        questions += ["package", package, package] if program is None else ["program", program, package]
    for program, option in VERSIONS.values():
        questions += ["version", program, option]
    return questions


def read_answers(lines: Iterable[str]) -> Toolchains:
    """Read the output of `PROBE`."""
    tools = {program: tool for tool, (program, _) in VERSIONS.items()}
    missing, versions = [], {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "missing":
            missing.append(rest)
        elif kind == "version":
            program, _, text = rest.partition(" ")
            if (match := VERSION.search(text)) and program in tools:
                versions[tools[program]] = match[0]
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


def with_toolchains(
    api: Any,
    image: Image,
    packages: Sequence[str],
    pythons: Collection[str],
    indexes: Indexes,
    *,
    state: Path,
    say: Say,
    stop: threading.Event,
) -> Image:
    """Return an image with the packages that test suites need; `image` itself if it has them or they cannot be had.

    Blocking; takes minutes if something must be installed. What cannot be installed is a note.

    Args:
        api: The engine's client.
        image: The image to start from.
        packages: Debian packages.
        pythons: Minor versions of Python that the project accepts, best first; empty for any.
        indexes: Where packages come from.
        state: Folder for logs, locks and times of last use.
        say: Receives notes for people.
        stop: Ends the work early.

    Raises:
        EnvironmentBuildFailed: `stop` was set.
    """
    try:
        missing = toolchains_of(api, image, packages, state).missing
        if missing and image.binds:
            say(f"this machine's /usr lacks {', '.join(missing)} for the tests: using Debian's base image")
            python = next((python for python in pythons if python in DEBIAN), None)
            image = base_image(api, python, state=state, say=say, stop=stop).image
            missing = toolchains_of(api, image, packages, state).missing
    except EnvironmentBuildFailed as error:
        if stop.is_set():
            raise
        say(f"{error}; the tests have to do without what is missing")
        return image
    why = "which the tests need"
    return with_system_packages(api, image, missing, indexes, why=why, state=state, say=say, stop=stop)
