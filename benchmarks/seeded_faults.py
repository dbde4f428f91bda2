"""Seed one-line faults into public projects in Go and JavaScript, and let the embedded engine repair them.

    python -m benchmarks.seeded_faults CLONE [CLONE ...] [--faults 10] [--seed 1] [--seconds 300] [--list] [--json FILE]

CLONE is a local clone, bare or not; its HEAD is used. A fault changes or removes one line of a file that is no test. It is
drawn by a list of mistakes of this script, which works on text and shares no code with the engine: first the kind of mistake,
each as likely as the others, then the place. A fault counts if the project still builds and at least one test turns red. The
engine gets the ids of the red tests as its issue. A patch counts if `m3agent fix` prints it in time, and afterwards exactly
those tests pass that pass without the fault. Changes to tests are ignored.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common import commit_all, name_of, run_fix, say, write_json, write_out
from benchmarks.mining import open_history

from m3agent.agent.fix.sandbox_setup import with_environment
from m3agent.agent.settings.settings import Settings
from m3agent.sandbox.backends.factory import SandboxSpec, choose_backend, new_sandbox
from m3agent.sandbox.store.git import GitFailed, TreeEntry
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import run_tests
from m3agent.tools.runners.suites import files_of_tests, suites_of, tree_files
from m3agent.tools.test_report import TestReport

CODE = (".go", ".js", ".cjs", ".mjs", ".ts")
NO_PART = re.compile(r"(^|/)(\.|bench|docs?/|examples?/|scripts?/|typings/)|\.d\.ts$|config\.\w+$")
"""Files that are no part of the program itself."""
SWAPS = (
    ("==", "!="),
    ("===", "!=="),
    ("<", "<="),
    (">", ">="),
    ("<", ">"),
    ("&&", "||"),
    ("+", "-"),
    ("*", "+"),
    ("+=", "="),
    ("true", "false"),
    ("break", "continue"),
)
"""Words that are taken for each other."""
BRANCH = re.compile(r"(if \(?)(.+?)(\)? \{\s*)$")
STATEMENT = re.compile(r"\s+[\w.\[\]$]+(\(.*\)| [-+*|]?= .*|\+\+|--);?$")


@dataclass(frozen=True)
class Row:
    """A fault and what became of it: one line of the table."""

    project: str
    path: str
    line: int
    kind: str
    before: str
    after: str
    red: int
    fixed: bool = False
    same: bool = False
    verified: bool = False
    seconds: float = 0.0
    why: str = ""
    patch: str = ""


def swapped_words(line: str) -> Iterator[str]:
    """A word or an operator is another one."""
    for pair in SWAPS:
        for old, new in (pair, pair[::-1]):
            edge = r"(?<!\w)" if old.isalpha() else r"(?<= )"
            end = r"(?!\w)" if old.isalpha() else r"(?= )"
            for found in re.finditer(edge + re.escape(old) + end, line):
                yield line[: found.start()] + new + line[found.end() :]


def changed_numbers(line: str) -> Iterator[str]:
    """A number is one more or less."""
    for found in re.finditer(r"(?<![\w.])\d{1,4}(?![\w.])", line):
        for step in (-1, 1):
            if int(found[0]) + step >= 0:
                yield line[: found.start()] + str(int(found[0]) + step) + line[found.end() :]


def negated(line: str) -> Iterator[str]:
    """A condition is negated, or is not any more."""
    if found := BRANCH.search(line):
        yield f"{line[: found.start()]}{found[1]}!({found[2]}){found[3]}"
    for found in re.finditer(r"!(?=[\w(])", line):
        yield line[: found.start()] + line[found.end() :]


def cut_conditions(line: str) -> Iterator[str]:
    """A part of a condition is missing."""
    if found := BRANCH.search(line):
        parts = re.split(r" (?:&&|\|\|) ", found[2])
        if len(parts) > 1:
            yield line.replace(found[2], found[2][len(parts[0]) + 4 :])
            yield line.replace(found[2], found[2][: -len(parts[-1]) - 4])


def missing(line: str) -> Iterator[str]:
    """A statement is missing."""
    if STATEMENT.match(line):
        yield ""


def other_names(line: str, beside: list[str]) -> Iterator[str]:
    """A name is one of those in the lines beside it."""
    near = sorted(
        {name for text in beside for name in re.findall(r"(?<![\w\"'`])[a-z]\w*(?![\w(\"'`])", text)}
    )
    for found in re.finditer(r"(?<![\w\"'`])[a-z]\w*(?![\w\"'`])", line):
        for name in near:
            if name != found[0] and not {name, found[0]} & KEYWORDS:
                yield line[: found.start()] + name + line[found.end() :]


def shorter_texts(line: str) -> Iterator[str]:
    """A text lacks its last character."""
    for found in re.finditer(r"""(["'])([^"'\\]+)\1""", line):
        yield f"{line[: found.start()]}{found[1]}{found[2][:-1]}{found[1]}{line[found.end() :]}"


def swapped_arguments(line: str) -> Iterator[str]:
    """Two arguments are in the wrong order."""
    for found in re.finditer(r"(?<=\w\()([\w.]+), ([\w.]+)(?=[,)])", line):
        yield f"{line[: found.start()]}{found[2]}, {found[1]}{line[found.end() :]}"


def dropped_calls(line: str) -> Iterator[str]:
    """A value is taken as it is."""
    for found in re.finditer(r"(?<=[=( ])[\w.]+\(([\w.\[\]]+)\)", line):
        yield line[: found.start()] + found[1] + line[found.end() :]
    for found in re.finditer(r"(?<=\w)\.\w+\(\)", line):
        yield line[: found.start()] + line[found.end() :]


KEYWORDS = frozenset(
    [
        "if",
        "else",
        "for",
        "return",
        "func",
        "function",
        "const",
        "let",
        "var",
        "case",
        "switch",
        "break",
        "continue",
        "range",
        "nil",
        "null",
        "true",
        "false",
        "new",
        "this",
        "typeof",
        "err",
        "string",
        "int",
        "bool",
        "default",
        "throw",
        "of",
        "in",
        "undefined",
        "require",
        "import",
        "export",
        "class",
        "async",
        "await",
        "type",
        "struct",
        "map",
    ]
)
KINDS = {
    "word": swapped_words,
    "number": changed_numbers,
    "negation": negated,
    "part of a condition": cut_conditions,
    "missing statement": missing,
    "text": shorter_texts,
    "arguments": swapped_arguments,
    "call": dropped_calls,
}
"""The mistakes by name, without `other_names`, which needs the lines beside the line."""
NAME = "name"


def faults_of(texts: dict[str, str], seed: int) -> Iterator[tuple[str, str, int, str]]:
    """Yield faults in a random order without end, as kind, path, line from 1, and the new line; none twice."""
    chance = random.Random(seed)
    places = [
        (path, number)
        for path, text in sorted(texts.items())
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip() and not re.match(r"\s*(//|\*|/\*|import|package|\"use)", line)
    ]
    seen: set[tuple[str, int]] = set()
    while True:
        kind = chance.choice(sorted((*KINDS, NAME)))
        for path, number in chance.sample(places, len(places)):
            lines = texts[path].split("\n")
            line = lines[number - 1]
            beside = lines[max(0, number - 8) : number + 7]
            found = list(other_names(line, beside) if kind == NAME else KINDS[kind](line))
            if found and (path, number) not in seen:
                seen.add((path, number))
                yield kind, path, number, chance.choice(found)
                break


class Project:
    """A project at its HEAD, with an environment in which its tests run."""

    def __init__(self, clone: Path, scratch: Path) -> None:
        self.name = name_of(clone)
        self.scratch = scratch
        self.store, head = open_history(clone, scratch / "history.git")
        tree = self.store.git("rev-parse", f"{head}^{{tree}}").decode().strip()
        self.entries = {entry.path: entry for entry in self.store.list_tree(tree)}
        self.tree = self.store.write_tree(self.entries.values())
        self.suites = suites_of(self.store, self.tree)
        self.tests = files_of_tests(self.store, self.tree)
        self.texts = {
            path: self.store.get_blob(entry.sha).decode()
            for path, entry in self.entries.items()
            if path.endswith(CODE) and not self.tests.is_test(path) and not NO_PART.search(path)
        }

    async def prepare(self) -> None:
        """Build the environment, and find the tests that pass without a fault in each of two runs."""
        asked = SandboxSpec()
        self.backend = await choose_backend(asked, say)
        workspace = Workspace(self.store, self.tree)
        self.spec = await with_environment(
            asked, self.backend, workspace, Settings(), self.scratch / "state", say
        )
        first, second = await self.run(self.tree), await self.run(self.tree)
        self.green = frozenset(first.passed) & frozenset(second.passed)
        say(f"{self.name}: {len(self.green)} tests pass")

    async def run(self, tree: str) -> TestReport:
        """Run all tests of a tree in a fresh sandbox."""
        workspace = Workspace(self.store, tree)
        async with new_sandbox(self.backend, self.spec, workspace, lambda _: None) as sandbox:
            return await run_tests(sandbox, self.suites, tree_files(self.store, tree), timeout=240)

    def with_line(self, path: str, number: int, line: str) -> str:
        """Return the tree with another line; an empty one is removed."""
        lines = self.texts[path].split("\n")
        lines[number - 1 : number] = [line] if line else []
        entry = TreeEntry(path, self.entries[path].mode, self.store.put_blob("\n".join(lines).encode()))
        return self.store.write_tree({**self.entries, path: entry}.values())

    def patched(self, tree: str, patch: bytes) -> str | None:
        """Return a tree with a patch applied but with the tests as they were; None if it does not apply."""
        try:
            found = self.store.list_tree(self.store.apply(tree, patch, "--whitespace=nowarn"))
        except GitFailed:
            return None
        code = [entry for entry in found if not self.tests.is_test(entry.path)]
        own = [entry for path, entry in self.entries.items() if self.tests.is_test(path)]
        return self.store.write_tree([*code, *own])

    async def faults(self, most: int, seed: int) -> AsyncIterator[tuple[Row, str, list[str]]]:
        """Yield faults that turn tests red: the row, the tree and the red tests."""
        found = 0
        for kind, path, number, line in faults_of(self.texts, seed):
            if found == most:
                return
            tree = self.with_line(path, number, line)
            report = await self.run(tree)
            red = sorted(self.green - set(report.passed))
            builds = any("::" in ident for ident in report.red) and bool(report.passed)
            if report.timed_out or not red or not builds:
                continue
            found += 1
            before = self.texts[path].split("\n")[number - 1].strip()
            row = Row(self.name, path, number, kind, before, line.strip(), len(red))
            yield row, tree, sorted(report.red)

    async def repaired(self, row: Row, tree: str, red: list[str], seconds: float) -> Row:
        """Let the engine repair a fault in a new repository with one commit; return the completed row."""
        with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
            repo, issue = Path(name) / "repo", Path(name) / "ISSUE.md"
            repo.mkdir()
            write_out(self.store, tree, repo)
            commit_all(repo, "as it was")
            listed = "\n".join(f"- {ident}" for ident in red[:5])
            issue.write_text(
                f"{len(red)} tests fail, among them:\n\n{listed}\n\nFind the fault and repair it.\n"
            )
            fixed = await asyncio.to_thread(run_fix, issue, repo, seconds)
        gave_up = re.search(r"none of \d+ candidate changes|No change: [^.]*", fixed.text)
        row = replace(row, seconds=fixed.seconds, why=gave_up[0] if gave_up else fixed.said)
        row = replace(row, verified=fixed.exit == 0 and bool(fixed.patch))
        after = self.patched(tree, fixed.patch) if fixed.patch else None
        if after is None:
            return row
        report = await self.run(after)
        text = self.store.git("cat-file", "blob", f"{after}:{row.path}").decode()
        same = re.sub(r"\s", "", text) == re.sub(r"\s", "", self.texts[row.path])
        patch = fixed.patch.decode(errors="replace")
        return replace(row, fixed=self.green <= set(report.passed), same=same, patch=patch)


async def measure(clone: Path, options: argparse.Namespace, rows: list[Row]) -> None:
    """Seed and repair the faults of one project; print a line for each, and add it to `rows`."""
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as name:
        project = Project(clone, Path(name))
        await project.prepare()
        async for row, tree, red in project.faults(options.faults, options.seed):
            done = row if options.list else await project.repaired(row, tree, red, options.seconds)
            rows.append(done)
            print(line_of(done), flush=True)
            write_json(options.json, rows)


def line_of(row: Row) -> str:
    """Return a row as a line of the table in docs/benchmarks.md."""
    result = "yes" if row.fixed else "no"
    note = "" if row.fixed and row.same else "another change" if row.fixed else row.why[:90]
    change = f"`{row.before}` → {f'`{row.after}`' if row.after else 'nothing'}"
    return f"| {row.project} | {row.path}:{row.line} | {row.kind} | {change} | {row.red} | {result} | {row.seconds:.0f} | {note} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("clones", nargs="+", type=Path, metavar="CLONE")
    parser.add_argument("--faults", type=int, default=10, help="number of faults in each project")
    parser.add_argument("--seed", type=int, default=1, help="decides the faults")
    parser.add_argument("--seconds", type=float, default=300, help="wall time of each fix")
    parser.add_argument("--list", action="store_true", help="only seed the faults")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args()
    print(
        "| project | line | kind | the fault | red | fixed | seconds | note |\n|---|---|---|---|---|---|---|---|"
    )
    rows: list[Row] = []
    for clone in options.clones:
        asyncio.run(measure(clone, options, rows))
    for name in dict.fromkeys(row.project for row in rows):
        own = [row for row in rows if row.project == name]
        verified = sum(row.verified for row in own)
        wrong = sum(bool(row.patch) and not row.fixed for row in own)
        print(
            f"{name}: {sum(row.fixed for row in own)} of {len(own)} fixed, {verified} verified, {wrong} wrong"
        )


if __name__ == "__main__":
    main()
