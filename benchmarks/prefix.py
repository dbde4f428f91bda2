"""Measure how much of a pack stays a common prefix from commit to commit, in plain and in frozen order.

    python -m benchmarks.prefix REPO ... [--commits 50] [--json FILE]

Each repository's last commits on the first-parent line are packed one after the other, as for a user who follows the
branch: in a clone, with the caches of the previous pack. The result is the share of a commit's pack, in bytes, that is
a common prefix with its parent's pack. A server that has cached the parent's pack need not read that part again. A
repository without its whole history is refused.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, quantiles

from benchmarks.common import write_json

from m3agent.agent.context.checkout import Checkout, quick_checkout
from m3agent.agent.context.pack import pack
from m3agent.agent.context.packer import PackOptions
from m3agent.agent.context.types import Context

APART = 10
"""Commits between packs in the second measure, which stands for a session that continues after a while."""

BLOCK = 1 << 16
LEAST = {"plain": 0.55, "frozen": 0.93}


@dataclass
class Kept:
    """What one order keeps in one repository.

    next, apart: shares from commit to commit, and over APART commits; rebases: how often a new frozen base was made;
    size: the bytes of all packs.
    """

    next: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)
    rebases: int = 0
    size: int = 0


@dataclass(frozen=True)
class Replay:
    """One repository: its name, last commit, number of commits, and what each order keeps."""

    name: str
    commit: str
    commits: int
    kept: dict[str, Kept]


def common_prefix(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix in bytes."""
    limit = min(len(one), len(other))
    start = 0
    while start < limit and one[start : start + BLOCK] == other[start : start + BLOCK]:
        start += BLOCK
    if start >= limit:
        return limit
    for place in range(start, min(limit, start + BLOCK)):
        if one[place] != other[place]:
            return place
    return limit


def share(child: bytes, parent: bytes) -> float:
    """Return the share of the child's pack that is a common prefix with its parent's pack."""
    return common_prefix(child, parent) / len(child) if child else 1.0


def git(folder: Path, *args: str) -> str:
    """Return git's output. End the program with git's message if it fails."""
    done = subprocess.run(["git", *args], cwd=folder, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{folder}: git {args[0]}: {done.stderr.decode(errors='replace').strip()[-200:]}")
    return done.stdout.decode(errors="replace").strip()


def packs(clone: Path, commits: Sequence[str], caches: Path) -> Iterator[dict[str, Context]]:
    """Yield each commit's pack in both orders, oldest first."""
    for commit in commits:
        git(clone, "checkout", "--quiet", "--detach", "--force", commit)
        yield {
            order: pack(opened(clone), PackOptions(cache=str(caches / order), frozen=order == "frozen"))
            for order in LEAST
        }


def opened(clone: Path) -> Checkout:
    checkout = quick_checkout(str(clone))
    assert checkout is not None, "an ordinary clone"
    return checkout


def replay(repo: Path, commits: int, scratch: Path) -> Replay:
    """Pack the last `commits` commits and their parent. Raises SystemExit if the history is too short or incomplete."""
    clone = scratch / "clone"
    git(scratch, "clone", "--quiet", "--shared", "--no-checkout", str(repo.resolve()), clone.name)
    if git(clone, "rev-parse", "--is-shallow-repository") == "true":
        raise SystemExit(
            f"{repo} has only a part of its history, and the order of files comes from it: fetch the rest"
        )
    line = git(clone, "rev-list", "--first-parent", "-n", str(commits + 1), "HEAD").split()[::-1]
    if len(line) < 2:
        raise SystemExit(f"{repo} has no two commits to compare")
    kept = {order: Kept() for order in LEAST}
    before: dict[str, deque[bytes]] = {order: deque(maxlen=APART) for order in LEAST}
    for number, contexts in enumerate(packs(clone, line, scratch / "caches")):
        for order, context in contexts.items():
            one, earlier = kept[order], before[order]
            if number:
                one.next.append(share(context.data, earlier[-1]))
                one.rebases += order == "frozen" and context.rebased
                one.size += len(context.data)
            if len(earlier) == APART:
                one.apart.append(share(context.data, earlier[0]))
            earlier.append(context.data)
    return Replay(repo.resolve().name, line[-1], int(git(clone, "rev-list", "--count", "HEAD")), kept)


def tenth(values: Sequence[float]) -> float:
    """Return the value that a tenth of the values are below."""
    return quantiles(values, n=10, method="inclusive")[0] if len(values) > 1 else values[0]


def table(replays: Sequence[Replay]) -> str:
    """Return all results as Markdown, with the mean of all repositories and the targets."""
    lines = [
        f"| | plain: mean / p10 | {APART} apart | frozen: mean / p10 | {APART} apart | new bases | more bytes |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in replays:
        plain, frozen = one.kept["plain"], one.kept["frozen"]
        lines.append(_row(f"{one.name} {one.commit[:10]}", plain, frozen))
    everything = {order: _together([one.kept[order] for one in replays]) for order in LEAST}
    lines.append(_row("all", everything["plain"], everything["frozen"]))
    lines += ["", "| wanted | measured | |", "|---|---:|---|"]
    for order, least in LEAST.items():
        got = mean(everything[order].next)
        lines.append(
            f"| {order}: at least {least} on average | {got:.3f} | {'met' if got >= least else 'MISSED'} |"
        )
    return "\n".join(lines)


def _row(name: str, plain: Kept, frozen: Kept) -> str:
    cells = []
    for kept in (plain, frozen):
        cells.append(f"{mean(kept.next):.2f} / {tenth(kept.next):.2f}")
        cells.append(f"{mean(kept.apart):.2f}" if kept.apart else "")
    more = frozen.size / plain.size - 1 if plain.size else 0
    return f"| {name} | {' | '.join(cells)} | {frozen.rebases} | {more:.1%} |"


def _together(kept: Sequence[Kept]) -> Kept:
    """Combine several repositories. Each commit has the same weight, and all repositories have equally many."""
    return Kept(
        [value for one in kept for value in one.next],
        [value for one in kept for value in one.apart],
        sum(one.rebases for one in kept),
        sum(one.size for one in kept),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("repos", type=Path, nargs="+", metavar="REPO")
    parser.add_argument("--commits", type=int, default=50)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.commits < 1:
        parser.error("--commits: at least one")
    replays: list[Replay] = []
    for repo in options.repos:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="m3agent-prefix-") as scratch:
            replays.append(replay(repo, options.commits, Path(scratch)))
        print(f"{replays[-1].name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    print(
        f"the last {options.commits} commits of the first-parent line of each; tokens are taken for bytes\n"
    )
    print(table(replays))
    write_json(options.json, replays)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
