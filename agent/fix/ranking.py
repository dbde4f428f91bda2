"""Rank several attempts: by verdict, fewest regressions, agreement by execution, equal patches, then size of the patch."""

from __future__ import annotations

import ast
import contextlib
import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.runners.suites import files_of_tests
from m3agent.util.python_ast import parse

VERDICTS = ("verified", "unverified", "failed")


@dataclass(frozen=True)
class AttemptResult:
    """The result of one attempt."""

    number: int
    evidence: Verification | None
    """Verification of its patch; None if there was none."""
    kind: Hashable
    """Equal for patches that make the same change to the code, apart from comments and layout. None without a
    patch."""
    lines: int
    """Number of lines added and removed."""
    executed: int = 0
    """Score of the agreement by execution; 0 if it was not measured."""


@dataclass(frozen=True)
class Rank:
    """The rank of an attempt among the others; the lowest `key` is the best."""

    number: int
    """Number of the attempt."""
    verdict: str
    """Verdict of the verification; "none" without one."""
    regressions: int
    """Number of tests that the patch broke."""
    agreement: int
    """Number of patches of the same kind, this one included; 0 without a patch."""
    lines: int
    """Number of lines added and removed."""
    executed: int
    """Score of the agreement by execution; 0 if it was not measured."""

    @property
    def key(self) -> tuple[int, int, int, int, int, int]:
        """The sort key."""
        place = VERDICTS.index(self.verdict) if self.verdict in VERDICTS else len(VERDICTS)
        return (place, self.regressions, -self.executed, -self.agreement, self.lines, self.number)


def ranked(results: Sequence[AttemptResult]) -> list[Rank]:
    """Rank the attempts, best first."""
    kinds = Counter(result.kind for result in results if result.kind is not None)
    ranks = [
        Rank(
            number=result.number,
            verdict=result.evidence.verdict if result.evidence is not None else "none",
            regressions=len(result.evidence.broken) if result.evidence is not None else 0,
            agreement=kinds[result.kind] if result.kind is not None else 0,
            lines=result.lines,
            executed=result.executed,
        )
        for result in results
    ]
    return sorted(ranks, key=lambda rank: rank.key)


def result_of(
    number: int,
    workspace: Workspace | None,
    patch: Patch | None,
    evidence: Verification | None,
    executed: int = 0,
) -> AttemptResult:
    """Return the result of an attempt, derived from its patch and the verification."""
    if workspace is None or patch is None or patch.empty:
        return AttemptResult(number, evidence, None, 0)
    entries, files = workspace.entries(patch.tree), files_of_tests(workspace.store, patch.base)
    code = frozenset(
        (path, _essence(path, workspace.store.get_blob(entries[path].sha)) if path in entries else "")
        for path in patch.paths
        if not files.is_test(path)
    )
    return AttemptResult(number, evidence, code, _changed_lines(patch.text), executed)


def _essence(path: str, content: bytes) -> str:
    """Return a digest of what a file does.

    The digest covers a Python file's syntax tree without docstrings, and any other file's text without whitespace.
    """
    essence = b"".join(content.split())
    if path.endswith(".py"):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            essence = ast.dump(_without_docstrings(parse(content))).encode(errors="replace")
    return hashlib.sha256(essence).hexdigest()


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return tree


def _changed_lines(patch: bytes) -> int:
    """Count the lines added and removed in a patch in git's format; for a binary file, the lines of its encoding."""
    return sum(
        line[:1] in (b"+", b"-") and not line.startswith((b"+++ ", b"--- ")) for line in patch.splitlines()
    )
