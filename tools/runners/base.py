"""What a test runner is: how m3agent finds the tests of an ecosystem, runs them and reads their results.

Each module beside this one has the runners of an ecosystem. `m3agent.tools.runners.run` does the same for all of them:

    suite = runner.detect(tree)[0]
    job = Job(suite, tree, runner.select(suite, tree, ["tests/test_cart.c"]), limits, work)
    units = runner.units(job, <output of runner.build(job)>)
    reading = runner.read(job, units, <outputs of runner.commands(job, units)>)

A runner does not touch the sandbox or the disk: it returns commands as data and reads bytes. So tests of a runner need
neither. All paths are relative to the repository's root, unless a field says otherwise.
"""

from __future__ import annotations

import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from m3agent.sandbox.backends.sandbox import ROOT
from m3agent.sandbox.declared.preparation import Preparation as Preparation  # noqa: PLC0414 - runners import it from here
from m3agent.sandbox.declared.toml_text import parse_toml
from m3agent.tools.runners.path_rules import RULES
from m3agent.util.json_value import json_object

MOST_TEXT = 4 << 20
"""Most bytes of a file that detection reads."""


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


SKIPPED_FOLDERS = words_of("node_modules vendor target build dist third_party third-party fixtures testdata")
"""Manifests in these folders belong to other projects, to build outputs or to the data of tests."""

NAMES = " > "
"""Between the names of a test's groups and its own name in an id."""
MOST_NAME = 500
"""Most characters of an id's part behind the file."""
_UNSTABLE = re.compile(r"\b0x[0-9a-f]{6,}|(?<=/tmp/)[\w.-]+")

Outcome = Literal["passed", "failed", "error", "skipped"]
"""`error`: the test could not run. A test that is expected to fail and does so is `skipped`; if it passes, `failed`."""
RED: frozenset[Outcome] = frozenset({"failed", "error"})


class Tree:
    """The plain files of a git tree, as data.

    Args:
        paths: Paths of all files.
        read: Returns the content of a file.
        read_many: Returns the contents of many files at once; None to read them one by one.
    """

    def __init__(
        self,
        paths: Collection[str],
        read: Callable[[str], bytes],
        read_many: Callable[[Sequence[str]], Iterable[bytes]] | None = None,
    ) -> None:
        self.paths = frozenset(paths)
        self._read = read
        self._read_many = read_many or (lambda paths: map(read, paths))

    def contents(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield files with their contents. They must be in the tree."""
        return zip(paths, self._read_many(paths), strict=True)

    def text(self, path: str) -> str:
        """Return a file's text; empty if it is missing or larger than `MOST_TEXT`."""
        if path not in self.paths:
            return ""
        content = self._read(path)
        return "" if len(content) > MOST_TEXT else content.decode("utf-8-sig", "replace")

    def json(self, path: str) -> dict[str, Any]:
        """Return the object in a JSON file; empty if it is missing or invalid."""
        return json_object(self.text(path) or "{}")

    def toml(self, path: str) -> dict[str, Any]:
        """Return the tables of a TOML file; empty if it is missing or invalid."""
        try:
            return parse_toml(self.text(path))
        except ValueError:
            return {}

    def below(self, folder: str, *ends: str) -> list[str]:
        """Return the sorted paths of the files in a folder with one of these ends."""
        return sorted(path for path in self.paths if path.endswith(ends) and is_within(path, folder))

    def present(self, *paths: str) -> tuple[str, ...]:
        """Return those of some paths that have a file."""
        return tuple(path for path in paths if path in self.paths)

    def named(self, *names: str) -> list[str]:
        """Return the sorted paths of the files with one of these names, outside of `SKIPPED_FOLDERS`."""
        near = (path for path in self.paths if path.endswith(names))  # few of many
        return sorted(path for path in near if path.rpartition("/")[2] in names and not is_skipped(path))


def own_folders(paths: Iterable[str], others: Collection[str]) -> list[str]:
    """Return the sorted folders of files, without those that lie in one of these folders, given by their names."""
    folders = set(map(posixpath.dirname, paths))
    return sorted(folder for folder in folders if not {*others} & {*folder.split("/")})


def is_skipped(path: str) -> bool:
    """Return whether a file lies in one of `SKIPPED_FOLDERS`."""
    return not SKIPPED_FOLDERS.isdisjoint(path.split("/")[:-1])


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is a folder or lies in it. The repository's root, an empty folder, contains everything."""
    return not folder or path == folder or path.startswith(f"{folder}/")


def above(folder: str) -> Iterator[str]:
    """Yield the folders above a folder, up to the repository's root."""
    while folder:
        folder = posixpath.dirname(folder)
        yield folder


def topmost(folders: Iterable[str]) -> list[str]:
    """Return the sorted folders that lie in none of the others."""
    every = set(folders)
    return sorted(folder for folder in every if every.isdisjoint(above(folder)))


def ident_of(file: str, names: Sequence[str]) -> str:
    """Return a test's id from its file and its names; one line, without texts that differ in every run.

    Without names, the id is that of the file itself, such as one that cannot be loaded.
    """
    if not names:
        return file
    name = NAMES.join(" ".join(str(part).split()) for part in names)
    return f"{file}::{_UNSTABLE.sub('*', name)[:MOST_NAME]}"


def place_of(ident: str) -> str:
    """Return the file or folder of an id; `.` for the repository's root."""
    return posixpath.normpath(ident.partition("::")[0])


@dataclass(frozen=True)
class Suite:
    """Tests that one command runs."""

    runner: str
    root: str = ""
    """Folder in which the command runs; empty for the repository's root."""
    evidence: str = ""
    """Why the suite exists, for people: `scripts.test in package.json`."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Facts for the runner itself, such as the package manager."""
    work_tree: str = ROOT
    """Absolute path of the repository in the sandbox."""

    @property
    def name(self) -> str:
        """The first part of the suite's test ids if the repository has several suites: `go:tools/cli`."""
        return f"{self.runner}:{self.root or '.'}"

    @property
    def folder(self) -> str:
        """The suite's root as an absolute path in the sandbox."""
        return posixpath.normpath(f"{self.work_tree}/{self.root}")

    def within(self, path: str) -> str:
        """Return a path of the repository relative to the suite's root."""
        return path.removeprefix(f"{self.root}/") if self.root else path

    def path(self, inner: str) -> str:
        """Return a path relative to the suite's root as a path of the repository."""
        return f"{self.root}/{inner}" if self.root else inner

    def in_tree(self, absolute: str) -> str:
        """Return an absolute path in the sandbox as a path of the repository; unchanged if it is outside of it."""
        return absolute.removeprefix(f"{self.work_tree}/")


@dataclass(frozen=True)
class Limits:
    """Time limits of a run, in seconds."""

    total: float = 300.0
    per_test: float = 10.0


@dataclass(frozen=True)
class Job:
    """A run of a suite, or of a part of it."""

    suite: Suite
    tree: Tree
    targets: Sequence[str] = ()
    """What `Runner.select` chose; empty for the whole suite."""
    limits: Limits = field(default_factory=Limits)
    work: str = ""
    """Absolute path of a folder in the sandbox, outside the work tree."""


@dataclass(frozen=True)
class Command:
    """A command in the sandbox."""

    argv: tuple[str, ...]
    cwd: str = ""
    """Working directory; empty for the work tree."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of the sandbox and `CI=1`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files that are written before the command starts, outside the work tree: absolute path to content."""
    report: str | None = None
    """Absolute path of the report that the command writes, a new file; None if standard output is the report."""
    key_file: str | None = None
    """Absolute path of a file that gets a new random key, in hexadecimal. m3agent's reporter reads and
    deletes it before it loads any code of the repository. See `m3agent.tools.runners.records`.
    """
    seconds: float | None = None
    """Time limit of this command; None for what is left of the whole run."""


@dataclass(frozen=True)
class Output:
    """What a command left behind.

    Attributes:
        command: The command.
        exit: Exit status; a negative number is a signal.
        report: Content of the report, or standard output; empty if the report is missing.
        stdout, stderr: Head and tail of the two streams.
        timed_out: Whether a time limit ended the command.
        key: Key of the report's authentication codes.
    """

    command: Command
    exit: int
    report: bytes
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    key: bytes = b""


@dataclass(frozen=True)
class Unit:
    """A package, program or file that must report by itself."""

    name: str
    """First part of the ids of its tests: a path of the repository. If the unit reports no result, the unit
    itself is a red test with this id.
    """
    built: bool = True
    text: str = ""
    """The compiler's first errors if it could not."""
    program: str = ""
    """Absolute path of its program, if it is one."""

    def registration(self) -> dict[str, Any]:
        """Return what the build system says about the tests of the unit, as JSON can hold it; empty if nothing."""
        return {}


@dataclass(frozen=True)
class Result:
    """The result of a test."""

    ident: str
    """`file::name`, with a path of the repository; without the suite's name."""
    outcome: Outcome
    text: str = ""
    """Error text of a test that failed or could not run."""


@dataclass
class Reading:
    """What the reports of a run say."""

    results: list[Result] = field(default_factory=list)
    """The results in the order of the report. If an id occurs more than once, the worst outcome counts."""
    started: list[str] = field(default_factory=list)
    planned: set[str] = field(default_factory=set)
    """Names of the units that must report, as the runner itself listed them."""
    reported: set[str] = field(default_factory=set)
    """Names of the units that reported their end."""
    ended: bool = False
    """Whether the runner's own end record arrived."""
    problem: str = ""
    """Why the results cannot be used, in one sentence; empty if nothing is wrong."""
    tampering: list[str] = field(default_factory=list)
    """Signs that the code under test tampered with the run, as sentences."""

    @property
    def is_red(self) -> bool:
        """Whether a test failed or could not run."""
        return any(result.outcome in RED for result in self.results)

    def add(self, file: str, names: Sequence[str], outcome: Outcome, text: str = "") -> None:
        """Add the result of a test; see `ident_of`."""
        self.results.append(Result(ident_of(file, names), outcome, text))


class Ecosystem(ABC):
    """The tests of a language: how their suites are found, and which files belong to them."""

    name: str
    """Its name, the start of suite names: letters, digits and hyphens."""
    language: ClassVar[str]

    @abstractmethod
    def detect(self, tree: Tree) -> list[Suite]:
        """Return the suites of a tree, from names and contents of files only."""

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return what the environment of a suite needs."""
        return Preparation()

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests, by its path."""
        return RULES[self.name].is_test(path)

    def helpers(self, tree: Tree) -> Collection[str]:
        """Return the files that only tests use although their paths do not say so, by what they contain or who names them."""
        return ()

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides how tests run. Verification undoes a patch's changes to it.

        Args:
            base: All paths of the tree without the patch.
        """
        return RULES[self.name].is_surrounding(path)

    def restored(self, path: str, base: bytes | None, patched: bytes | None) -> bytes | None:
        """Return the content of a file that decides how tests run, for a test run with the patch.

        Args:
            base, patched: Its content without and with the patch; None where it is missing.

        Returns:
            The content; None if the file must be missing. By default the one without the patch.
        """
        return base

    def combined(self, path: str, code: bytes, tests: bytes) -> bytes | None:
        """Return a file with the code of one version and the tests of another, for languages with tests beside the code.

        Args:
            path: The file. It does not belong to the tests as a whole.

        Returns:
            None if neither version has tests.

        Raises:
            ValueError: Tests and code cannot be separated.
        """
        return None


class Runner(Ecosystem):
    """A test runner whose commands run in the sandbox."""

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the smallest targets that contain the wanted tests; empty for the whole suite.

        Args:
            wanted: Ids, files or folders, without the suite's name.
        """
        return ()

    def build(self, job: Job) -> Command | None:
        """Return the command that builds the targets; None if nothing is built."""
        return None

    def units(self, job: Job, output: Output) -> list[Unit]:
        """Return the units of a build, also those that could not be built."""
        return []

    @abstractmethod
    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return the commands that run the targets. Each has a report of its own, a path in the job's folder."""

    @abstractmethod
    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the reports. A report that is missing or unreadable is a run that did not end, never an error."""
