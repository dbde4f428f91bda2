"""Measure whether a prompt below the whole repository shows the code that a fix changed, and its tests.

    python -m benchmarks.visibility REPO ... [--cases 10] [--tokens 5000,...] [--peers FOLDER] [--json FILE] [--misses]

The cases are upstream fixes; the issue is the commit's message, and the repository is the parent commit. A fix is a commit
that is no merge, whose title mentions a fix, a bug or a regression (and not style) or whose message closes an issue, and that
changes at most twelve files: one to three modules and one or more test files, all of which existed before. Left out are:

- fixes whose message says nothing: fewer than eight words in all, and none of them an identifier,
- fixes that change nothing but comments and docstrings of the code.

The code counts as visible if every changed range is: all changed lines, or, where lines are only added, one of the lines
beside them. Comments and docstrings do not count. The tests count as visible if each changed test file is whole, or its
relevant tests are visible: the tests that the fix changes, and where it only adds tests, a test that uses a changed
definition, or else the one beside.

The text of m3agent is what `m3agent context --budget N --issue FILE` gives. With --peers, repomix and aider are installed in
FOLDER, and all count with o200k_base. Repomix has no budget: its text ends where the budget does. Aider's text is its
repository map, for the names and files that aider finds in the issue. It consists of lines without numbers: a line is visible
if the map has a line with this text under the file. A map shows no bodies; so the table also says how often the definitions
around the changed code are named. Without --peers, 3 bytes count as a token.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from unittest import mock

from benchmarks.common import write_json
from benchmarks.context_peers import (
    AIDER_MAP,
    Packer,
    install_aider,
    install_repomix,
    o200k_ranks,
    o200k_tokenizer,
)
from benchmarks.selection import FIX, Fix, History

from m3agent.agent.context import overflow
from m3agent.agent.context.checkout import Checkout
from m3agent.agent.context.languages import is_code
from m3agent.agent.context.pack import arranged, collect
from m3agent.agent.context.packer import PackOptions
from m3agent.agent.context.selection.definitions import Definitions
from m3agent.agent.context.selection.kinds import FileKind, kind_of
from m3agent.agent.context.tokenizer.counter import open_counter
from m3agent.agent.context.tokenizer.source import TokenizerSource, find_tokenizer
from m3agent.agent.repo.repository import open_repository

BUDGETS = (5_000, 10_000, 20_000, 40_000, 80_000)
MOST_MODULES = 3
FEWEST_WORDS = 8
CLOSES = re.compile(r"\b(?:fix(?:e[sd])?|close[sd]?|resolve[sd]?):? (?:issue )?(?:#\d|http)", re.IGNORECASE)
IDENTIFIER = re.compile(r"`|\w_\w|[a-z][A-Z]|\w\(\)|\w\.\w|\b__\w+__")
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@", re.MULTILINE)
CHUNK = re.compile(
    r'^<(?P<tag>file|passages) path="(?P<path>[^"]+)"[^>]*>\n(?P<body>.*?)^</(?P=tag)>$',
    re.MULTILINE | re.DOTALL,
)
PACKED = re.compile(r'^<file path="([^"]+)">\n', re.MULTILINE)
PASSAGE = re.compile(r"^… lines (\d+)-(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Changed:
    """One changed file of a fix."""

    path: str
    lines: Sequence[str]
    """Its lines before the fix."""
    ranges: tuple[tuple[int, int], ...]
    """First line and number of lines of each change; no lines for an addition after that line."""
    documentation: frozenset[int]
    """Lines of docstrings, comments and blank lines."""


@dataclass(frozen=True)
class Case:
    """A fix with what must be visible."""

    repository: str
    fix: Fix
    code: tuple[Changed, ...]
    tests: tuple[Changed, ...]
    names: frozenset[str]
    """Names of the changed definitions."""


@dataclass
class Shown:
    """What a text shows of each file."""

    whole: set[str] = field(default_factory=set)
    lines: dict[str, set[int]] = field(default_factory=dict)

    def has(self, path: str, wanted: Iterable[int]) -> bool:
        return path in self.whole or self.lines.get(path, set()).issuperset(wanted)


def cases_of(history: History, number: int) -> list[Case]:
    """Return the last usable fixes of a repository."""
    found: list[Case] = []
    for fix in history.fixes(number * 40):
        case = _case(history, fix)
        if case is not None:
            found.append(case)
            if len(found) == number:
                break
    return found


def _case(history: History, fix: Fix) -> Case | None:
    title = fix.message.partition("\n")[0]
    is_fix = FIX.search(title) or CLOSES.search(fix.message)
    if not is_fix or says_nothing(fix.message) or len(fix.sources) > MOST_MODULES:
        return None
    files = [path for path in fix.others if kind_of(path) is FileKind.TEST]
    code = _all_changed(history, fix, fix.sources)
    tests = _all_changed(history, fix, (path for path in files if is_code(path.rpartition("/")[2])))
    if not code or not tests:
        return None
    names = frozenset(name for each in code for _, name in _definitions(each) if not name.startswith("__"))
    repository = history.repo.resolve()
    name = repository.parent.name if repository.name in ("repo", ".git") else repository.name
    return Case(name, fix, tuple(code), tuple(tests), names)


def says_nothing(message: str) -> bool:
    """Return whether a message has fewer than eight words and no identifier."""
    return len(message.split()) < FEWEST_WORDS and not IDENTIFIER.search(message)


def _all_changed(history: History, fix: Fix, paths: Iterable[str]) -> list[Changed]:
    """Return those files of which the fix changes lines that the parent has."""
    return [each for path in sorted(paths) if (each := _changed(history, fix, path)).ranges]


def _changed(history: History, fix: Fix, path: str) -> Changed:
    text = history.read(f"{fix.parent}:{path}").decode(errors="replace")
    lines = text.split("\n")
    documentation = frozenset(_documentation(text, lines))
    diff = history.git("diff", "-U0", "--no-renames", fix.parent, fix.commit, "--", path)
    ranges = [(int(start), int(number or 1)) for start, number in HUNK.findall(diff)]
    kept = tuple(
        (start, number) for start, number in ranges if not _only_documentation(start, number, documentation)
    )
    return Changed(path, lines, kept, documentation)


def _documentation(text: str, lines: Sequence[str]) -> Iterable[int]:
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            yield number
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
                ast.get_docstring(node, clean=False) is not None
            ):
                yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def _only_documentation(start: int, number: int, documentation: frozenset[int]) -> bool:
    wanted = range(start, start + number) if number else (start, start + 1)
    return documentation.issuperset(wanted)


def _definitions(changed: Changed) -> Iterable[tuple[int, str]]:
    """Yield line and name of each definition around the changes of a file."""
    for start, number in changed.ranges:
        indent = 1000
        for place in range(max(start, start + number - 1), 0, -1):
            line = changed.lines[place - 1]
            match = re.match(r"([ \t]*)(?:async +)?(?:def|class) +(\w+)", line)
            if match and len(match[1]) < indent:
                indent = len(match[1])
                yield place, match[2]


def sees(changed: Changed, shown: Shown) -> bool:
    """Return whether every changed range of a file is visible."""
    return changed.path in shown.whole or all(
        _sees_range(changed, start, number, shown) for start, number in changed.ranges
    )


def _sees_range(changed: Changed, start: int, number: int, shown: Shown) -> bool:
    if number:
        return shown.has(changed.path, set(range(start, start + number)) - changed.documentation)
    before = start
    while before > 1 and not changed.lines[before - 1].strip():
        before -= 1
    after = start + 1
    while after < len(changed.lines) and not changed.lines[after - 1].strip():
        after += 1
    return shown.has(changed.path, {before}) or shown.has(changed.path, {after})


def sees_tests(changed: Changed, names: frozenset[str], shown: Shown) -> bool:
    """Return whether a test file is whole, or its relevant tests are visible."""
    if changed.path in shown.whole:
        return True
    edited = [(start, number) for start, number in changed.ranges if number]
    if edited:
        return all(_sees_range(changed, start, number, shown) for start, number in edited)
    uses = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b") if names else None
    using = [n for n, line in enumerate(changed.lines, start=1) if uses and uses.search(line)]
    using = [n for n in using if not re.match(r"\s*(?:from|import)\b", changed.lines[n - 1])]
    if using:
        return any(shown.has(changed.path, {number}) for number in using)
    return sees(changed, shown)


Contestant = Callable[[Case, History, Sequence[int]], Iterator[tuple[int, Shown]]]
"""Yields what it shows in each budget."""


def shown_by_us(
    case: Case, history: History, budgets: Sequence[int], *, folder: str, tokenizer: TokenizerSource | None
) -> Iterator[tuple[int, Shown]]:
    """Yield what m3agent shows; the repository is read, and the files near the issue are divided, once for all budgets."""
    repository = open_repository(history.repo)
    checkout = Checkout(repository.host_git, case.fix.parent, shallow=False)
    packing = collect(checkout, PackOptions(issue=case.fix.message, cache=folder, tokenizer=tokenizer))
    packing.order()
    dropped = packing.dropped
    with mock.patch.object(overflow, "Definitions", cache(Definitions)):
        for tokens in budgets:
            packing.room, packing.dropped = tokens, [*dropped]
            context = arranged(packing)
            assert context.tokens <= tokens
            yield tokens, read_shown(context.text)
    packing.save()


def contestants_of(peers: Path | None, tools: Sequence[str], folder: str) -> dict[str, Contestant]:
    """Return these programs; without a folder for the others, only m3agent."""
    if peers is None:
        return {"m3agent": partial(shown_by_us, folder=folder, tokenizer=None)}
    tokenizer = find_tokenizer(str(o200k_tokenizer(peers)), env={}, cache=str(peers))
    assert tokenizer is not None
    contestants: dict[str, Contestant] = {}
    if "m3agent" in tools:
        contestants["m3agent"] = partial(shown_by_us, folder=folder, tokenizer=tokenizer)
    if "repomix" in tools:
        count = open_counter(tokenizer).count
        contestants["repomix"] = partial(shown_by_repomix, packer=install_repomix(peers), count=count)
    if "aider" in tools:
        contestants["aider"] = partial(shown_by_aider, python=install_aider(peers), ranks=o200k_ranks(peers))
    return contestants


@contextlib.contextmanager
def checked_out(history: History, commit: str) -> Iterator[Path]:
    """Provide a clone in which a commit is checked out."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "repo"
        history.git("clone", "--quiet", "--shared", "--no-checkout", str(history.repo.resolve()), str(place))
        subprocess.run(["git", "-C", str(place), "checkout", "--quiet", "--detach", commit], check=True)
        yield place


def shown_by_repomix(
    case: Case, history: History, budgets: Sequence[int], *, packer: Packer, count: Callable[[str], int]
) -> Iterator[tuple[int, Shown]]:
    """Yield what stands in repomix's text before the budget ends."""
    with checked_out(history, case.fix.parent) as place:
        output = place.parent / "packed.xml"
        subprocess.run(packer.pack(place, output), check=True, capture_output=True)
        text = output.read_text()
    starts = [0, *(match.start() for match in PACKED.finditer(text)), len(text)]
    for tokens in budgets:
        shown, left = Shown(), tokens
        for start, end in pairwise(starts):
            part = text[start:end]
            used = count(part)
            match = PACKED.match(part)
            if match and used <= left:
                shown.whole.add(match[1])
            elif match:
                # the same share of its characters as of its tokens
                cut = part[: max(0, left) * len(part) // used]
                shown.lines[match[1]] = set(range(1, cut.count("\n")))
            left -= used
            if left <= 0:
                break
        yield tokens, shown


def shown_by_aider(
    case: Case, history: History, budgets: Sequence[int], *, python: Path, ranks: Path
) -> Iterator[tuple[int, Shown]]:
    """Yield the lines of aider's repository map."""
    with checked_out(history, case.fix.parent) as place:
        for tokens in budgets:
            made = subprocess.run(
                [python, "-c", AIDER_MAP, str(place), str(tokens)],
                input=case.fix.message,
                env={**os.environ, "TIKTOKEN_CACHE_DIR": str(ranks.parent)},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            yield tokens, shown_in_map(made, (*case.code, *case.tests))


def shown_in_map(made: str, files: Iterable[Changed]) -> Shown:
    """Return the lines of some files that stand in aider's repository map."""
    shown = Shown()
    for file in files:
        block = re.search(rf"^{re.escape(file.path)}:\n((?:[│⋮].*\n?)*)", made, re.MULTILINE)
        here = {line[1:].rstrip() for line in block[1].split("\n")} if block else set()
        shown.lines[file.path] = {n for n, line in enumerate(file.lines, start=1) if line.rstrip() in here}
    return shown


def read_shown(text: str) -> Shown:
    """Return what a text in m3agent's format shows."""
    shown = Shown()
    for match in CHUNK.finditer(text):
        if match["tag"] == "file":
            shown.whole.add(match["path"])
        else:
            numbers = shown.lines.setdefault(match["path"], set())
            for first, last in PASSAGE.findall(match["body"]):
                numbers.update(range(int(first), int(last) + 1))
    return shown


@dataclass
class Row:
    """The result of one case in one budget."""

    tool: str
    repository: str
    commit: str
    title: str
    tokens: int
    code: bool
    tests: bool
    named: bool
    """Whether the first lines of all definitions around the changes of the code are visible."""


def measure(
    history: History, number: int, budgets: Sequence[int], contestants: Mapping[str, Contestant]
) -> list[Row]:
    return [
        Row(
            tool,
            case.repository,
            case.fix.commit[:10],
            case.fix.message.partition("\n")[0],
            tokens,
            all(sees(each, shown) for each in case.code),
            all(sees_tests(each, case.names, shown) for each in case.tests),
            all(shown.has(each.path, {line for line, _ in _definitions(each)}) for each in case.code),
        )
        for case in cases_of(history, number)
        for tool, contestant in contestants.items()
        for tokens, shown in contestant(case, history, budgets)
    ]


def report(rows: Sequence[Row]) -> str:
    """Return the shares as a table."""
    budgets = sorted({row.tokens for row in rows})
    lines = [f"{'tokens':46}" + "".join(f"{tokens:>15,}" for tokens in budgets)]
    repositories = [*dict.fromkeys(row.repository for row in rows), ""]
    for tool, repository in product(dict.fromkeys(row.tool for row in rows), repositories):
        chosen = [row for row in rows if row.tool == tool and repository in ("", row.repository)]
        number = len({(row.repository, row.commit) for row in chosen})
        cells = ""
        for tokens in budgets:
            fit = [row for row in chosen if row.tokens == tokens]
            for share in ("code", "tests", "named"):
                cells += f"{statistics.fmean(getattr(row, share) for row in fit):>5.0%}"
        label = f"{tool}, {repository or 'all'} ({number}), code, tests, named"
        lines.append(f"{label:46}{cells}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("repositories", nargs="+", metavar="REPO", type=Path)
    parser.add_argument("--cases", type=int, default=10, help="fixes of each repository")
    parser.add_argument("--tokens", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--misses", action="store_true", help="name the fixes whose code is not visible")
    parser.add_argument(
        "--peers", type=Path, metavar="FOLDER", help="compare with repomix and aider, installed here"
    )
    parser.add_argument("--tools", default="m3agent,repomix,aider", help="what to compare, with --peers")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    budgets = [int(number) for number in arguments.tokens.split(",")]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        contestants = contestants_of(arguments.peers, arguments.tools.split(","), folder)
        for repo in arguments.repositories:
            rows += measure(History(repo, None), arguments.cases, budgets, contestants)
    print(report(rows))
    if arguments.misses:
        for row in rows:
            if not row.code:
                print(f"{row.tool} {row.tokens:>7,} {row.repository:20.20} {row.commit} {row.title:.80}")
    write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
