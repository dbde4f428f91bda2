"""Measure whether the selection over a budget shows the files that a fix changed, on fixes in repositories' histories.

    python -m benchmarks.selection REPO[:ROOT] ... [--cases 100] [--budget 25] [--json FILE]

For each of the last fixes, the issue is the commit message and the repository is the parent commit. The result is the
share of the changed source files that are shown whole, on average over the fixes, when only a given percentage of all
tokens may be shown. A fix is a commit that is no merge, whose message mentions a fix, a bug or a regression (and not
style), and that changes at most twelve files, at least one of them a source file that existed before. ROOT is the
folder of the repository's sources. It is only used for judging: the selection does not get it. Without it, the words
of paths decide what is a source. Tokens are estimated as bytes / 4. Budgets are 10, 25 and 50 % and --budget.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common import write_json

from m3agent.agent.context.languages import is_code
from m3agent.agent.context.rules import reason_by_content, reason_by_name
from m3agent.agent.context.selection.kinds import FileKind, kind_of
from m3agent.agent.context.selection.query import read_issue
from m3agent.agent.context.selection.select import (
    DEFAULT,
    Candidate,
    Evidence,
    Weights,
    issue_values,
    read_signs,
    select,
    static_values,
)
from m3agent.agent.context.selection.store import TermStore

BYTES_PER_TOKEN = 4
DELIMITERS = 12
"""Tokens of the delimiters around a file or an outline."""
TAU = 100
"""Number of commits after which a change has the weight 1/e in a file's rate of change."""
HISTORY = 1000
"""Number of commits to read for that. Older changes would have a weight of 1/22,000 or less."""
MOST_FILES = 12
FIX = re.compile(r"\b(?:fix(?:e[sd]|ing)?|bug(?:fix)?|regression)\b", re.IGNORECASE)
STYLE = re.compile(
    r"\b(?:black|flake8|format(?:ting)?|lint(?:ing|er)?|mypy|pre-commit|pyupgrade|pylint|ruff|spelling|style|typos?)\b",
    re.IGNORECASE,
)
TRAILER = re.compile(r"^(?:[a-z]+-)+by: .*$", re.MULTILINE | re.IGNORECASE)
TEST = re.compile(r"(?:^|/)_*(?:tests?|testing|spec)_*/|(?:^|/)(?:test_|conftest)|[_.](?:test|spec)\.")

NOTHING = Weights(
    words=0, path=0, names=0, mentions=0, recency=0, neighbours=0, kinds=dict.fromkeys(FileKind, 1.0), size=0
)
ROWS = (
    ("recency", replace(NOTHING, recency=1)),
    ("BM25", replace(NOTHING, words=1)),
    ("+ path", replace(NOTHING, words=1, path=DEFAULT.path)),
    ("+ names", replace(NOTHING, words=1, path=DEFAULT.path, names=DEFAULT.names)),
    ("+ mentions", replace(DEFAULT, recency=0, neighbours=0, kinds=NOTHING.kinds, size=0)),
    ("+ recency", replace(DEFAULT, neighbours=0, kinds=NOTHING.kinds, size=0)),
    ("+ imports", replace(DEFAULT, kinds=NOTHING.kinds, size=0)),
    ("+ kind", replace(DEFAULT, size=0)),
    ("+ size: ranked by the issue", DEFAULT),
)


@dataclass(frozen=True)
class Fix:
    """A commit that fixes something: its message, and the existing files that it changed."""

    commit: str
    parent: str
    message: str
    sources: frozenset[str]
    others: frozenset[str]


class History:
    """A repository's fixes, trees and contents, read with git."""

    def __init__(self, repo: Path, root: str | None) -> None:
        self.repo = repo
        self.root = root
        self._blobs: dict[str, tuple[bool, int]] = {}
        self._cat = subprocess.Popen(
            ["git", "-C", str(repo), "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def git(self, *args: str) -> str:
        command = ["git", "-C", str(self.repo), "-c", "core.quotePath=false", *args]
        return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode(errors="replace")

    def fixes(self, number: int) -> list[Fix]:
        found: list[Fix] = []
        form = "--format=%x1e%H%x1f%P%x1f%B%x1f"
        log = self.git("log", "--no-merges", "--no-renames", "--name-status", "-n", "10000", form)
        for record in log.split("\x1e")[1:]:
            commit, parents, message, names = record.split("\x1f")
            changed = [line.split("\t", 1) for line in names.strip().split("\n") if "\t" in line]
            title = message.strip().partition("\n")[0]
            if not parents or len(changed) > MOST_FILES or not FIX.search(message) or STYLE.search(title):
                continue
            before = frozenset(path for status, path in changed if status != "A" and not reason_by_name(path))
            sources = frozenset(path for path in before if self._is_source(path))
            if sources:
                text = TRAILER.sub("", message).strip()
                found.append(Fix(commit, parents.split()[0], text, sources, before - sources))
                if len(found) == number:
                    break
        return found

    def _is_source(self, path: str) -> bool:
        if self.root is None:
            return kind_of(path) is FileKind.SOURCE
        return path.startswith(self.root) and is_code(path.rpartition("/")[2]) and not TEST.search(path)

    def candidates(self, commit: str) -> list[Candidate]:
        """Return the files of a commit that the packer would show."""
        touched = self._touched(commit)
        found: list[Candidate] = []
        for line in self.git("ls-tree", "-r", "-z", commit).split("\0"):
            meta, _, path = line.partition("\t")
            if not meta.startswith("100") or reason_by_name(path):
                continue
            oid = meta.split()[2]
            shown, size = self._blob(oid)
            if shown:
                key = hashlib.blake2b(f"{oid} {path}".encode(), digest_size=16).digest()
                tokens = size // BYTES_PER_TOKEN + DELIMITERS
                sign = touched.get(path)
                found.append(
                    Candidate(
                        path,
                        key,
                        self._reader(oid),
                        tokens,
                        -tokens,
                        None if sign is None else math.log(sign),
                    )
                )
        return found

    def _reader(self, oid: str) -> Callable[[], str]:
        return lambda: self.read(oid).decode(errors="replace")

    def _blob(self, oid: str) -> tuple[bool, int]:
        if oid not in self._blobs:
            data = self.read(oid)
            self._blobs[oid] = not reason_by_content(data), len(data)
        return self._blobs[oid]

    def read(self, oid: str) -> bytes:
        assert self._cat.stdin and self._cat.stdout
        self._cat.stdin.write(f"{oid}\n".encode())
        self._cat.stdin.flush()
        header = self._cat.stdout.readline().split()
        if header[1] != b"blob":
            return b"\0"  # the object is not in this clone: treat it as binary
        data = self._cat.stdout.read(int(header[2]))
        self._cat.stdout.read(1)
        return data

    def _touched(self, commit: str) -> dict[str, float]:
        log = self.git(
            "log",
            "--first-parent",
            "-m",
            "--no-renames",
            "--name-only",
            "--format=%x1e",
            "-n",
            str(HISTORY),
            commit,
        )
        touched: dict[str, float] = {}
        for age, record in enumerate(log.split("\x1e")[1:]):
            for path in record.strip().split("\n"):
                touched[path] = touched.get(path, 0.0) + math.exp(-age / TAU)
        return touched


@dataclass
class Result:
    """The recall of changed sources for each fix of one repository, by row and percentage."""

    repository: str
    head: str
    files: int
    tokens: int
    seconds: float
    commits: list[str]
    titles: list[str]
    recall: dict[str, dict[int, list[float]]]

    def mean(self, row: str, percent: int) -> float:
        return statistics.fmean(self.recall[row][percent])


def measure(
    history: History, number: int, percents: Sequence[int], store: TermStore, title_only: bool
) -> Result:
    """Run every compared selection on each of the last fixes of a repository."""
    fixes = history.fixes(number)
    if not fixes:
        raise SystemExit(f"{history.repo}: no fixes were found in its history")
    head = history.git("rev-parse", "--short", "HEAD").strip()
    result = Result(history.repo.name, head, 0, 0, 0.0, [], [], {})
    if result.repository in ("repo", ".git"):
        result.repository = history.repo.resolve().parent.name
    chance = random.Random(1)
    seconds: list[float] = []
    for number_, fix in enumerate(fixes):
        candidates = history.candidates(fix.parent)
        title = fix.message.partition("\n")[0]
        issue = title if title_only else fix.message
        signs = read_signs(candidates, read_issue(issue), store)
        started = time.process_time()
        select(candidates, issue, 1, store)
        seconds.append(time.process_time() - started)
        total = sum(candidate.tokens for candidate in candidates)

        def note(row: str, percent: int, shown: Sequence[int]) -> None:
            paths = {candidates[index].path for index in shown}  # noqa: B023
            share = len(paths & fix.sources) / len(fix.sources)  # noqa: B023
            result.recall.setdefault(row, {}).setdefault(percent, []).append(share)

        for row, values in _rankings(candidates, signs, chance):
            ranked = sorted(range(len(candidates)), key=lambda i: (-values[i], candidates[i].path))
            for percent in percents:
                note(row, percent, _first(candidates, ranked, total * percent // 100))

        def outline_tokens(index: int) -> int | None:
            outline = store.outline(candidates[index])  # noqa: B023
            return None if outline is None else len(outline.encode()) // BYTES_PER_TOKEN + DELIMITERS

        for percent in percents:
            budget = total * percent // 100
            chosen = select(candidates, issue, budget, store)
            note("core and tail", percent, [*chosen.core, *chosen.tail])
            chosen = select(candidates, issue, budget, store, outline_tokens=outline_tokens)
            note("core, outlines and tail", percent, [*chosen.core, *chosen.tail])
            note("  the same, or outlined", percent, [*chosen.core, *chosen.tail, *chosen.outlined])
        result.commits.append(fix.commit)
        result.titles.append(title)
        if number_ == 0:
            result.files, result.tokens = len(candidates), total
        print(f"\r{result.repository}: {number_ + 1} of {len(fixes)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    result.seconds = statistics.median(seconds)
    return result


def _rankings(
    candidates: list[Candidate], signs: Evidence, chance: random.Random
) -> list[tuple[str, list[float]]]:
    return [
        ("random", [chance.random() for _ in candidates]),
        *((row, issue_values(candidates, signs, weights)) for row, weights in ROWS),
        ("prior: the issue unknown", static_values(candidates, signs)),
    ]


def _first(candidates: list[Candidate], ranked: list[int], room: int) -> list[int]:
    shown: list[int] = []
    for index in ranked:
        if candidates[index].tokens <= room:
            room -= candidates[index].tokens
            shown.append(index)
    return shown


def report(results: list[Result], percents: Sequence[int], budget: int) -> str:
    """Return the results as text."""
    lines: list[str] = []
    for result in results:
        lines.append(
            f"{result.repository} at {result.head}: {result.files:,} files, ≈{result.tokens:,} tokens;"
            f" {len(result.commits)} fixes, {result.commits[0][:9]} to {result.commits[-1][:9]};"
            f" {result.seconds * 1000:.0f} ms of CPU to select, terms being known"
        )
    width = max(len(row) for row in results[0].recall)
    lines += ["", " " * width + "".join(f"  {result.repository[:17]:>17}" for result in results)]
    lines.append(f"{'recall at ' + '/'.join(map(str, percents)) + ' %':<{width}}")
    for row in results[0].recall:
        cells = ("/".join(f"{result.mean(row, percent):.3f}" for percent in percents) for result in results)
        lines.append(f"{row:<{width}}" + "".join(f"  {cell:>17}" for cell in cells))
    row = "core, outlines and tail"
    lines += ["", f"Not all of what was changed was shown at {budget} %:"]
    for result in results:
        for commit, title, share in zip(
            result.commits, result.titles, result.recall[row][budget], strict=True
        ):
            if share < 1:
                lines.append(f"  {result.repository[:17]:17} {commit[:9]} {share:.2f} {title[:80]}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("repositories", nargs="+", metavar="REPO[:ROOT]")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--budget", type=int, default=25, metavar="PERCENT")
    parser.add_argument(
        "--title-only", action="store_true", help="the issue is the message's first line alone"
    )
    parser.add_argument("--cache", type=Path, help="folder to keep terms in")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    percents = sorted({10, 25, 50, arguments.budget})
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder, TermStore(arguments.cache or Path(folder)) as store:
        for each in arguments.repositories:
            repo, _, root = each.partition(":")
            results.append(
                measure(
                    History(Path(repo), root or None), arguments.cases, percents, store, arguments.title_only
                )
            )
    print(report(results, percents, arguments.budget))
    write_json(arguments.json, results)


if __name__ == "__main__":
    main()
