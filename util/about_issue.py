"""Decide whether an issue is about a test: whether its words name the test, its file, or code that the test uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from m3agent.util.python_ast import parsed

_NAME = re.compile(r"[^\W\d]\w+")
_CODE = re.compile(r"`[^`\n]+`|[\w.]+(?=\()|\w*_\w+|\w+\.\w[\w.]*|\b[a-z]+[A-Z]\w*|\b[A-Z][a-z]+[A-Z]\w*")
"""What looks like code in an issue: in backticks, before a parenthesis, with an underscore or a dot, in camel case."""


@dataclass(frozen=True)
class IssueWords:
    """The words of an issue."""

    text: str
    """The issue's whole text."""

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(_NAME.findall(self.text))

    @cached_property
    def _code(self) -> frozenset[str]:
        return frozenset(name for part in _CODE.findall(self.text) for name in _NAME.findall(part))

    def tests(self, idents: Iterable[str], files: Mapping[str, bytes]) -> set[str]:
        """Return the tests that the issue is about.

        The issue names the test or its file; or it names code that the test uses: any word for what the test's file imports,
        otherwise a word that looks like code. An issue without a word is about all tests, and without text about none.

        Args:
            idents: Ids of tests, which begin with the path of their file.
            files: Contents of these files by path; a file that is missing is known by its name only.
        """
        if not self._words:
            return set(idents) if self.text.strip() else set()
        return {ident for ident in idents if self._is_about(ident, files)}

    def _is_about(self, ident: str, files: Mapping[str, bytes]) -> bool:
        path = ident.partition("::")[0]
        function = ident.rpartition("::")[2].partition("[")[0]
        if function in self._words or PurePosixPath(path).name in self.text:
            return True
        if path not in files:
            return False
        imported, used = _names(files[path], function)
        return not (self._words.isdisjoint(imported) and self._code.isdisjoint(used))


def _names(source: bytes, function: str) -> tuple[set[str], set[str]]:
    """Return the names that a test function uses, first those of imported code, then all.

    If the function is not found, its whole file counts.
    """
    tree = parsed(source)
    if tree is None:
        return set(), set(_NAME.findall(source.decode(errors="replace")))
    bound = _imported_names(tree)
    nodes = list(_nodes_of(tree, function))
    plain = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    of_modules = {
        node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id in bound
    }
    return (plain & bound) | of_modules, plain | {node.attr for node in attributes}


def _imported_names(tree: ast.Module) -> set[str]:
    """Return the names that the import statements of a file bind."""
    imports = (node.names for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return {(alias.asname or alias.name).partition(".")[0] for names in imports for alias in names}


def _nodes_of(tree: ast.Module, function: str) -> Iterator[ast.AST]:
    """Yield the nodes of all functions with a name. If no function has it, yield those of the whole file."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    for part in [node for node in functions if node.name == function] or tree.body:
        yield from ast.walk(part)
