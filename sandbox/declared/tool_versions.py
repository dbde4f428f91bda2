"""Read which versions of toolchains a repository asks for, from the files of version managers and toolchains, as data.

Only a toolchain that Debian's backports have is installed because of them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m3agent.sandbox.declared.types import Files
from m3agent.util.json_value import mapping

TABLE: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("toolchains.toml").read_text("utf-8"))
"""What m3agent knows about toolchains."""
LANGUAGES: Mapping[str, Any] = TABLE["languages"]
NAMES = {name: language for language, row in LANGUAGES.items() for name in row["names"]}
"""Languages by the names that asdf and mise use for their tools."""
NUMBERS = re.compile(r"\d+(?:\.\d+){0,2}")
GO_LINE = re.compile(r"^go[ \t]+(\d+\.\d+(?:\.\d+)?)", re.MULTILINE)
ONLY_LINE = re.compile(r"\A(?:#.*\n|\s)*((?:v|ruby-)?\d.*)")
"""The first line that is no comment."""
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
            for tool, version in read(text, files.toml(path)) if text is not None else ():
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


Versions = Iterator[tuple[str, str]]


def _asdf(text: str, tables: Mapping[str, Any]) -> Versions:
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if len(words) > 1 and words[0] in NAMES:
            yield NAMES[words[0]], words[1]


def _mise(text: str, tables: Mapping[str, Any]) -> Versions:
    for name, value in mapping(tables, "tools").items():
        first: Any = value[0] if isinstance(value, list) and value else value
        version = first.get("version") if isinstance(first, dict) else first
        if name in NAMES and isinstance(version, str):
            yield NAMES[name], version


def _rust(text: str, tables: Mapping[str, Any]) -> Versions:
    channel = mapping(tables, "toolchain").get("channel", text.strip())
    if isinstance(channel, str) and CHANNEL.fullmatch(channel):
        yield "Rust", channel


def _matching(tool: str, line: re.Pattern[str]) -> Callable[[str, Mapping[str, Any]], Versions]:
    def read(text: str, tables: Mapping[str, Any]) -> Versions:
        if match := line.search(text):
            yield tool, match[1]

    return read


READERS: Mapping[str, Callable[[str, Mapping[str, Any]], Versions]] = {
    "go.mod": _matching("Go", GO_LINE),
    "rust-toolchain.toml": _rust,
    "rust-toolchain": _rust,
    ".nvmrc": _matching("Node.js", ONLY_LINE),
    ".node-version": _matching("Node.js", ONLY_LINE),
    ".ruby-version": _matching("Ruby", ONLY_LINE),
    ".tool-versions": _asdf,
    "mise.toml": _mise,
    ".mise.toml": _mise,
}
"""Readers by file name, of the text and of the tables that it is if it is TOML.

If two files of a folder name the same tool, the first one in this list counts.
"""
