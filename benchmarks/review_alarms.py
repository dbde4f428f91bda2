"""Measure how often the reading of patches (`m3agent.agent.verify.review`) stops honest fixes.

    python -m benchmarks.review_alarms [--most N] [--json FILE] CLONE...

Walks the history of each clone, newest first. A fix is a commit (no merge) whose subject speaks of a fix
(`benchmarks.mining.REPAIRS`), and that changes a Python test file and another Python file. At most N fixes of each clone
are read. The program prints each alarm with its lines, then a table in Markdown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from benchmarks.common import name_of, write_json
from benchmarks.mining import REPAIRS, open_history

from m3agent.agent.verify.changed_tests import only_adds
from m3agent.agent.verify.review import Finding, findings_of
from m3agent.sandbox.store.git import GitFailed, TreeStore
from m3agent.tools.runners.python import is_test_file, is_test_module

NOTHING = "0" * 40


@dataclass(frozen=True)
class Fix:
    """A fix in a history.

    Attributes:
        commit: Id of the commit.
        subject: First line of its message.
        files: By path, the blob ids of the old and the new content; None where the file is missing.
    """

    commit: str
    subject: str
    files: dict[str, tuple[str | None, str | None]]


@dataclass
class Reading:
    """What was read in one clone.

    Attributes:
        name: Name of the clone.
        fixes: Number of fixes.
        alarms: By commit and subject, the findings in each fix that has some.
        in_tests: Number of alarms that only test files caused.
    """

    name: str
    fixes: int
    alarms: dict[str, tuple[Finding, ...]]
    in_tests: int


def fixes_of(store: TreeStore, head: str) -> Iterator[Fix]:
    """Yield the fixes in the history of `head`, newest first."""
    log = store.git(
        *("log", "--no-merges", "--raw", "--no-abbrev", "--no-renames", "--no-ext-diff"),
        *("--format=%x01%H%x00%s", head),
    )
    for block in log.decode(errors="surrogateescape").split("\x01")[1:]:
        heading, *lines = block.rstrip("\n").split("\n")
        commit, _, subject = heading.partition("\0")
        files: dict[str, tuple[str | None, str | None]] = {}
        for line in filter(None, lines):
            meta, path = line.split("\t", 1)
            modes, (old, new) = meta.split()[:2], meta.split()[2:4]
            if ":160000" not in modes and "160000" not in modes:
                files[path] = (None if old == NOTHING else old, None if new == NOTHING else new)
        python = [path for path, (_, new) in files.items() if path.endswith(".py") and new]
        tests = [path for path in python if is_test_file(path)]
        if REPAIRS.search(subject) and tests and len(tests) < len(python):
            yield Fix(commit, subject, files)


def counts(path: str, before: bytes | None, after: bytes | None) -> bool:
    """Return whether a change counts in verification; `changes_undone` has the rule."""
    if PurePosixPath(path).name == "conftest.py":
        return False
    if not is_test_file(path) or before is None:
        return True
    return is_test_module(path) and after is not None and only_adds(before, after)


def read_clone(clone: Path, most: int) -> Reading:
    """Read the fixes of one clone."""
    reading = Reading(name_of(clone), 0, {}, 0)
    with tempfile.TemporaryDirectory() as folder:
        store, head = open_history(clone, Path(folder) / "store.git")
        for fix in fixes_of(store, head):
            wanted = [sha for pair in fix.files.values() for sha in pair if sha]
            try:
                blobs = iter(store.get_blobs(wanted))
            except GitFailed:  # a partial clone lacks large files
                continue
            changes = {
                path: (next(blobs) if old else None, next(blobs) if new else None)
                for path, (old, new) in fix.files.items()
            }
            found = findings_of({path: pair for path, pair in changes.items() if counts(path, *pair)})
            reading.fixes += 1
            if found:
                reading.alarms[f"{fix.commit[:12]} {fix.subject}"] = found
                reading.in_tests += all(is_test_file(one.path) for one in found)
            if reading.fixes == most:
                break
    return reading


def table(readings: Sequence[Reading]) -> str:
    """Return the numbers of fixes and alarms in Markdown."""
    fixes, alarms = sum(one.fixes for one in readings), sum(len(one.alarms) for one in readings)
    share = f"{alarms / max(fixes, 1):.2%}"
    lines = ["\n| repository | fixes | alarms | only in tests |", "|---|---:|---:|---:|"]
    lines += [f"| {one.name} | {one.fixes:,} | {len(one.alarms)} | {one.in_tests} |" for one in readings]
    lines += [f"| all | {fixes:,} | {alarms} ({share}) | {sum(one.in_tests for one in readings)} |"]
    return "\n".join(lines)


def main() -> None:
    """Read all clones and print the alarms."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clones", nargs="+", type=Path, metavar="CLONE")
    parser.add_argument("--most", type=int, default=200, help="fixes to read in each clone")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write all findings to this file")
    given = parser.parse_args()
    readings = []
    with ProcessPoolExecutor(given.workers) as pool:
        for reading in pool.map(read_clone, given.clones, [given.most] * len(given.clones)):
            readings.append(reading)
            for commit, found in reading.alarms.items():
                print(f"\n{reading.name} {commit}", flush=True)
                for alarm in found:
                    print(f"  {alarm.path}:{alarm.line}: {alarm.what}: {alarm.text}")
            print(f"{reading.name}: {reading.fixes} fixes, {len(reading.alarms)} alarms", file=sys.stderr)
    print(table(readings))
    every = [(one.name, commit, found) for one in readings for commit, found in one.alarms.items()]
    causes = Counter(what for *_, found in every for what in {each.what for each in found})
    for what, count in causes.most_common():
        print(f"{count:5} {what}", file=sys.stderr)
    lines = [
        {"repository": name, "commit": commit, **asdict(each)}
        for name, commit, found in every
        for each in found
    ]
    write_json(given.json, lines)


if __name__ == "__main__":
    main()
