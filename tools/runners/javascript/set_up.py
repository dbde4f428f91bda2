"""Find the files that a configuration of JavaScript's test runners names as set-up. They can have any name."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator

from m3agent.tools.runners.base import Tree
from m3agent.tools.runners.javascript.packages import table_of

MANIFEST = "package.json"
SECTIONS = ("jest", "mocha", "ava", "vitest")
"""Keys of a package.json under which runners have their settings."""
_CONFIGURATION = re.compile(r"(?:jest|vitest|vite|mocha|ava)[\w.-]*\.(?:[cm]?[jt]s|json)|\.mocharc(?:\.\w+)?")
_NAMED = re.compile(
    r"""\b(?:setupFiles(?:AfterEnv)?|globalSetup|globalTeardown|testEnvironment|snapshotSerializers|require|file)["']?\s*:\s*"""
    r"""(\[[^\]]*\]|["'][^"'\n]+["'])"""
)
"""A key of jest, vitest, mocha or ava whose values are files, with its values."""
_OPTION = re.compile(r"(?:^|\s)(?:-r|--require|--import|--file|--setupFiles|--globalSetup)[= ]\s*([^\s\"']+)")
"""An option of a runner whose value is a file."""
_TEXT = re.compile(r"""["']([^"'\n]+)["']""")
_ENDS = ("", ".js", ".cjs", ".mjs", ".ts", ".tsx", ".mts", ".cts", "/index.js", "/index.ts")
"""Ends of a path that a configuration may leave out."""


def set_up_files(tree: Tree) -> set[str]:
    """Return the paths of the set-up files of a tree."""
    found = set[str]()
    for path in tree.paths:
        folder, name = posixpath.split(path)
        if name == MANIFEST or _CONFIGURATION.fullmatch(name):
            for value in _values(tree, path, name):
                named = posixpath.normpath(posixpath.join(folder, value.replace("<rootDir>", ".")))
                found |= {named + end for end in _ENDS}
    return found & tree.paths


def _values(tree: Tree, path: str, name: str) -> Iterator[str]:
    text = tree.text(path)
    if name == MANIFEST:
        manifest = tree.json(path)
        for script in table_of(manifest, "scripts").values():
            yield from _OPTION.findall(str(script))
        text = json.dumps({section: manifest.get(section) for section in SECTIONS})
    for values in _NAMED.findall(text):
        yield from _TEXT.findall(values)
