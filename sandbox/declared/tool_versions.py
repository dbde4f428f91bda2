"""Read which versions of toolchains a repository asks for, from the files of version managers and toolchains, as data.

The versions are only compared with what is installed: nothing is installed because of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from m3agent.sandbox.declared.types import Files, table

NAMES = {
    "dotnet": ".NET",
    "dotnet-core": ".NET",
    "elixir": "Elixir",
    "go": "Go",
    "golang": "Go",
    "java": "Java",
    "node": "Node.js",
    "nodejs": "Node.js",
    "php": "PHP",
    "ruby": "Ruby",
    "rust": "Rust",
    "swift": "Swift",
}
"""Languages by the names that asdf and mise use for their tools."""
NUMBERS = re.compile(r"\d+(?:\.\d+){0,2}")
GO_LINE = re.compile(r"^go[ \t]+(\d+\.\d+(?:\.\d+)?)", re.MULTILINE)
CHANNEL = re.compile(r"\d+\.\d+(?:\.\d+)?")


@dataclass(frozen=True)
class AskedVersion:
    """A version that a repository asks for."""

    tool: str
    """Name of the language or program, for people."""
    version: str
    source: str
    """The file that says so."""


def asked_versions(files: Files, folder: str) -> list[AskedVersion]:
    """Return the versions for a folder: for each tool that of the nearest file, in the folder or above it."""
    found: dict[str, AskedVersion] = {}
    while True:
        for name, read in READERS.items():
            path = f"{folder}/{name}" if folder else name
            text = files.text(path)
            for tool, version in read(text, files, path) if text is not None else ():
                if match := NUMBERS.search(version):
                    found.setdefault(tool, AskedVersion(tool, match[0], path))
        if not folder:
            return list(found.values())
        folder = folder.rpartition("/")[0]


def is_older(installed: str, asked: str) -> bool:
    """Return whether an installed version is older than one that is asked for; `1.21.3` fulfils `1.21`."""
    numbers = [tuple(map(int, version.split("."))) for version in (installed, asked)]
    return numbers[0][: len(numbers[1])] < numbers[1]


def older_than_asked(asked: list[AskedVersion], installed: Mapping[str, str]) -> list[str]:
    """Return a sentence for each tool that is older than what the repository asks for."""
    return [
        f"{one.source} asks for {one.tool} {one.version}, and the sandbox has {installed[one.tool]}: "
        "tests may fail because of that"
        for one in asked
        if one.tool in installed and is_older(installed[one.tool], one.version)
    ]


Found = Iterator[tuple[str, str]]


def _asdf(text: str, files: Files, path: str) -> Found:
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if len(words) > 1 and words[0] in NAMES:
            yield NAMES[words[0]], words[1]


def _mise(text: str, files: Files, path: str) -> Found:
    for name, value in table(files.toml(path), "tools").items():
        first: Any = value[0] if isinstance(value, list) and value else value
        version = first.get("version") if isinstance(first, dict) else first
        if name in NAMES and isinstance(version, str):
            yield NAMES[name], version


def _one(tool: str) -> Callable[[str, Files, str], Found]:
    def read(text: str, files: Files, path: str) -> Found:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        if lines and re.match(r"(?:v|ruby-)?\d", lines[0]):
            yield tool, lines[0]

    return read


def _go_mod(text: str, files: Files, path: str) -> Found:
    if match := GO_LINE.search(text):
        yield "Go", match[1]


def _rust(text: str, files: Files, path: str) -> Found:
    channel = table(files.toml(path), "toolchain").get("channel", text.strip())
    if isinstance(channel, str) and CHANNEL.fullmatch(channel):
        yield "Rust", channel


READERS: Mapping[str, Callable[[str, Files, str], Found]] = {
    "go.mod": _go_mod,
    "rust-toolchain.toml": _rust,
    "rust-toolchain": _rust,
    ".nvmrc": _one("Node.js"),
    ".node-version": _one("Node.js"),
    ".ruby-version": _one("Ruby"),
    ".tool-versions": _asdf,
    "mise.toml": _mise,
    ".mise.toml": _mise,
}
"""Readers by file name. If two files of a folder name the same tool, the first one in this list counts."""
