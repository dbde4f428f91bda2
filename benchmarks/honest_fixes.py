"""Compare the verification of honest fixes with that of an older m3agent: are verdicts the same, and how long does it take?

    python -m benchmarks.honest_fixes --before CHECKOUT [--fixes 60] [--per-repository 12] [--suite 10] [--json FILE] CLONE...

CHECKOUT is a checkout of the older commit with its own environment (`SETUP=no make python` there). Each CLONE is a local
clone, bare or not. The fixes are small repairs in its history (`mining.py`), newest first. The base is the parent commit
with the commit's tests, and the patch is the commit's change of the code. Both programs verify it without a known result of
the base tree, one after the other, in the same kind of sandbox. Which one is first changes from fix to fix. A repair does not
count if the older program does not verify it, or if its suite takes longer than --suite seconds.

The program prints each fix with both verdicts and times, and then the sums and medians. The exit status is 1 if a verdict
differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import name_of, say, write_json
from benchmarks.mined import with_tests_of
from benchmarks.mining import mine, open_history

from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.images.environment import find_environment
from m3agent.sandbox.store.workspace import Workspace

CHILD = Path(__file__).with_name("honest_fixes_child.py")
HERE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Row:
    """A fix.

    Attributes:
        repository, commit: Where it comes from.
        tests: Tests with a result on the base tree.
        suite: Seconds of the base tree's tests.
        verdicts: Verdict before and now.
        seconds: Wall time of the verification before and now.
        reason: Reason of the verdict now.
    """

    repository: str
    commit: str
    tests: int
    suite: float
    verdicts: tuple[str, str]
    seconds: tuple[float, float]
    reason: str

    def line(self) -> str:
        """Return the fix as a line of a Markdown table."""
        before, now = self.seconds
        same = self.verdicts[1] if self.verdicts[0] == self.verdicts[1] else f"**{self.verdicts[1]}**"
        return (
            f"| {self.repository} {self.commit[:10]} | {self.tests} | {self.suite:.1f} | {same} | {before:.1f} | {now:.1f} "
            f"| {now / before:.2f} |"
        )


def run(checkout: Path, given: dict[str, Any]) -> dict[str, Any] | None:
    """Verify a repair with the m3agent of a checkout; None if that fails."""
    done = subprocess.run(
        [checkout / ".venv/bin/python", CHILD],
        cwd=checkout,
        input=json.dumps(given) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        say(f"{given['commit'][:10]}: {done.stderr.strip().splitlines()[-1:]}")
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows_of(clone: Path, before: Path, most: int, suite: float) -> Iterator[Row]:
    """Yield the fixes of a clone."""
    name, found = name_of(clone), 0
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as folder:
        scratch = Path(folder)
        store, head = open_history(clone, scratch / "history.git")
        for number, repair in enumerate(mine(store, head)):
            if found == most:
                return
            workspace = Workspace(store, with_tests_of(store, repair.parent, repair.commit))
            try:
                image = asyncio.run(find_environment(workspace, scratch / "state", say))
            except SandboxError as error:
                say(f"{name} {repair.commit[:10]}: {error}")
                continue
            where = {"parent": repair.parent, "commit": repair.commit, "path": repair.path}
            given = {"clone": str(clone.resolve()), "image": image, **where}
            order = (before, HERE) if number % 2 else (HERE, before)
            results = {checkout: run(checkout, given) for checkout in order}
            old, new = results[before], results[HERE]
            if old is None or new is None or old["verdict"] != "verified" or old["suite"] > suite:
                say(f"{name} {repair.commit[:10]}: does not count: {old and (old['verdict'], old['reason'])}")
                continue
            found += 1
            yield Row(
                name,
                repair.commit,
                old["tests"],
                old["suite"],
                (old["verdict"], new["verdict"]),
                (old["seconds"], new["seconds"]),
                new["reason"],
            )


def main() -> None:
    """Verify the fixes and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clones", nargs="+", type=Path, metavar="CLONE")
    parser.add_argument("--before", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--fixes", type=int, default=60, help="most fixes in all")
    parser.add_argument("--per-repository", type=int, default=12, help="most fixes of one repository")
    parser.add_argument("--suite", type=float, default=10, help="most seconds of the base tree's tests")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows: list[Row] = []
    print(
        "| fix | tests | suite s | verdict | before s | now s | now / before |\n|---|---:|---:|---|---:|---:|---:|"
    )
    for clone in options.clones:
        most = min(options.per_repository, options.fixes - len(rows))
        for row in rows_of(clone, options.before.resolve(), most, options.suite):
            print(row.line(), flush=True)
            rows.append(row)
            write_json(options.json, rows)
    if not rows:
        raise SystemExit("no fix counts")
    before, now = zip(*(row.seconds for row in rows), strict=True)
    differ = [row for row in rows if row.verdicts[0] != row.verdicts[1]]
    medians = statistics.median(before), statistics.median(now)
    print(f"\n{len(rows)} fixes, {len(differ)} with another verdict")
    print(f"sum: {sum(before):.0f} s before, {sum(now):.0f} s now: {sum(now) / sum(before):.2f}")
    print(f"median: {medians[0]:.1f} s before, {medians[1]:.1f} s now: {medians[1] / medians[0]:.2f}")
    for row in differ:
        print(f"{row.repository} {row.commit[:10]}: {row.verdicts[1]}: {row.reason}")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
