"""Measure the shape of the code: how much there is, and how dense it is.

Usage: python -m scripts.quality.shape [REVISION...]

Each revision is a column beside the working tree, so a change shows what it does.

A branch point is an `if`, a loop, an `except`, a `case`, an `assert`, a conditional expression, a part of a comprehension, or an
operand of `and` and `or` after the first. The complexity of a function is its branch points plus one; a nested function is a function of
its own. Function lines are without docstrings.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

PRODUCT = ("agent", "cli", "tools", "sandbox", "serving", "evals", "util")
TESTS = ("tests",)
TABLES = (".toml", ".json")
"""Data that code evaluates; its lines do not count as code."""
REPEAT = 6
"""Lines: equal passages of at least so many lines are repeats."""
QUOTED = 25
"""Characters: an assertion with a longer string holds a sentence for people."""
EMPTY_NAMES = frozenset({"found", "one", "said"})
"""Names that say nothing about the value."""
_BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.Assert, ast.comprehension,
)  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Shape:
    """Figures of a set of files."""

    files: int = 0
    lines: int = 0
    table_lines: int = 0
    filled: int = 0
    """Lines that are not blank."""
    comments: int = 0
    functions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Lines and branch points of each function."""
    docstrings: int = 0
    """Lines of the functions' docstrings."""
    many_parameters: int = 0
    """Functions with more than five parameters."""
    sentences: int = 0
    """Assertions that quote a sentence."""
    empty_names: int = 0
    """Assignments to names that say nothing."""
    passages: Counter[str] = field(default_factory=Counter[str])
    imported: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """By module of this set: the modules of the whole that import it."""

    def rows(self) -> dict[str, str]:
        """Return the figures by name, as text."""
        lines = sorted(length for length, _ in self.functions)
        branches = sum(points for _, points in self.functions)
        total = sum(lines) - self.docstrings
        return {
            "lines": f"{self.lines:,}",
            "lines of tables": f"{self.table_lines:,}",
            "files": f"{self.files:,}",
            "functions": f"{len(lines):,}",
            "lines of a function: median, 90 %, longest": f"{statistics.median(lines):.0f}, {_part(lines, 0.9)}, {lines[-1]}",
            "branch points per 100 function lines": f"{100 * branches / total:.1f}",
            "functions of complexity over 15": f"{sum(points >= 15 for _, points in self.functions)}",
            "functions with more than 5 parameters": f"{self.many_parameters}",
            "modules with one importer": f"{sum(len(importers) == 1 for importers in self.imported.values())}",
            "comments per 1,000 lines": f"{1000 * self.comments / self.filled:.1f}",
            "assertions that quote a sentence": f"{self.sentences:,}",
            f"assignments to {', '.join(sorted(EMPTY_NAMES))}": f"{self.empty_names:,}",
            "repeated lines": f"{sum(times - 1 for times in self.passages.values()):,}",
        }


def _part(ordered: list[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def shape(files: Mapping[str, str], folders: tuple[str, ...]) -> Shape:
    """Measure the files in some folders.

    Args:
        files: All files of the repository, by path from its root.
        folders: The top-level folders to measure. Importers are counted over all files.
    """
    made = Shape()
    inside = {path: text for path, text in files.items() if path.split("/")[0] in folders}
    for path, text in inside.items():
        if path.endswith(TABLES):
            made.table_lines += text.count("\n")
        elif path.endswith(".py"):
            _add(made, text)
            made.imported[_module(path)] = set()
    for path, text in files.items():
        if path.endswith(".py") and path.split("/")[0] not in TESTS:
            importer = _module(path)
            for name in _imports(text, importer):
                if name in made.imported and name != importer:
                    made.imported[name].add(importer)
    return made


def _add(made: Shape, text: str) -> None:
    lines = [line.strip() for line in text.splitlines()]
    made.files += 1
    made.lines += len(lines)
    filled = [line for line in lines if line]
    made.filled += len(filled)
    made.comments += sum(
        token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )
    made.passages.update("\n".join(filled[at : at + REPEAT]) for at in range(len(filled) - REPEAT + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                made.functions.append((_length(node), sum(_points(part) for part in _own(node))))
                made.docstrings += _length(node.body[0]) if ast.get_docstring(node) is not None else 0
                made.many_parameters += (
                    len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) > 5
                )
            case ast.Assert():
                made.sentences += any(
                    isinstance(part, ast.Constant)
                    and isinstance(part.value, str)
                    and len(part.value) >= QUOTED
                    and " " in part.value
                    for part in ast.walk(node.test)
                )
            case ast.Name(id=name, ctx=ast.Store()):
                made.empty_names += name in EMPTY_NAMES
            case _:
                pass


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, _FUNCTIONS):
            yield child
            yield from _own(child)


def _points(node: ast.AST) -> int:
    match node:
        case ast.BoolOp(values=values):
            return len(values) - 1
        case ast.comprehension(ifs=conditions):
            return 1 + len(conditions)
        case _:
            return isinstance(node, _BRANCHES)


def _module(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(("m3agent", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _imports(text: str, importer: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importer.rsplit(".", node.level)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def files_of(revision: str | None) -> dict[str, str]:
    """Return the measured files by path: of a revision, or of the working tree."""
    wanted = (".py", *TABLES)
    folders = [*PRODUCT, *TESTS]
    if revision is None:
        listed = (
            _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders)
            .decode()
            .split("\0")
        )
        paths = [path for path in listed if path.endswith(wanted) and Path(path).is_file()]
        return {path: Path(path).read_text(errors="replace") for path in paths}
    archive = tarfile.open(fileobj=io.BytesIO(_git("archive", revision)))  # noqa: SIM115  # in memory
    return {
        member.name: reader.read().decode(errors="replace")
        for member in archive
        if member.isfile()
        and member.name.endswith(wanted)
        and (reader := archive.extractfile(member)) is not None
    }


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], check=True, stdout=subprocess.PIPE).stdout


def main() -> None:
    """Print a table for the product and one for the tests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revisions", nargs="*", metavar="REVISION")
    revisions = parser.parse_args().revisions
    try:
        columns = {revision: files_of(revision) for revision in revisions} | {"now": files_of(None)}
    except subprocess.CalledProcessError:
        sys.exit("shape: git does not know one of these revisions, or this is no checkout")
    for title, folders in (("product", PRODUCT), ("tests", TESTS)):
        tables = {column: shape(files, folders).rows() for column, files in columns.items()}
        print(f"{title:<48}" + "".join(f"{column[:14]:>16}" for column in columns))
        for name in next(iter(tables.values())):
            print(f"  {name:<46}" + "".join(f"{rows[name]:>16}" for rows in tables.values()))


if __name__ == "__main__":
    main()
