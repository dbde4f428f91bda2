"""Which of several attempts is handed over: by verification, then fewest regressions, agreement, and size."""

from __future__ import annotations

import ast
import contextlib
import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from m3agent.agent.verify import Verification, is_test_file
from m3agent.sandbox.workspace import Patch, Workspace

VERDICTS = ("verified", "unverified", "failed")


@dataclass(frozen=True)
class AttemptResult:
    """What an attempt came to. kind: patches of one kind change the code in the same way, comments and layout aside;
    None without a patch. lines: added and removed."""

    number: int
    evidence: Verification | None
    kind: Hashable
    lines: int


@dataclass(frozen=True)
class Rank:
    """An attempt beside the others; the lowest comes first. agreement: how many patches are of its kind, its own
    included."""

    number: int
    verdict: str
    regressions: int
    agreement: int
    lines: int

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        """What it is compared by."""
        place = VERDICTS.index(self.verdict) if self.verdict in VERDICTS else len(VERDICTS)
        return (place, self.regressions, -self.agreement, self.lines, self.number)


def ranked(results: Sequence[AttemptResult]) -> list[Rank]:
    """The attempts, best first."""
    kinds = Counter(result.kind for result in results if result.kind is not None)
    ranks = [
        Rank(
            number=result.number,
            verdict=result.evidence.verdict if result.evidence is not None else "none",
            regressions=len(result.evidence.broken) if result.evidence is not None else 0,
            agreement=kinds[result.kind] if result.kind is not None else 0,
            lines=result.lines,
        )
        for result in results
    ]
    return sorted(ranks, key=lambda rank: rank.key)


def result_of(
    number: int, workspace: Workspace | None, patch: Patch | None, evidence: Verification | None
) -> AttemptResult:
    """What an attempt came to, by its patch."""
    if workspace is None or patch is None or patch.empty:
        return AttemptResult(number, evidence, None, 0)
    entries = workspace.entries(patch.tree)
    code = frozenset(
        (path, _essence(path, workspace.store.get_blob(entries[path].sha)) if path in entries else "")
        for path in patch.paths
        if not is_test_file(path)
    )
    return AttemptResult(number, evidence, code, _changed_lines(patch.text))


def _essence(path: str, content: bytes) -> str:
    """A digest of what a file does: a Python file's syntax without docstrings, of another its text without spaces."""
    essence = b"".join(content.split())
    if path.endswith(".py"):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            essence = ast.dump(_without_docstrings(ast.parse(content))).encode(errors="replace")
    return hashlib.sha256(essence).hexdigest()


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return tree


def _changed_lines(patch: bytes) -> int:
    """Lines added and removed, as a patch in git's format shows them; a binary file's are as many as its encoding has."""
    return sum(
        line[:1] in (b"+", b"-") and not line.startswith((b"+++ ", b"--- ")) for line in patch.splitlines()
    )
