"""What the runners share whose suites are files with the names of tests, or whose tests a program of m3agent runs in the sandbox."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from m3agent.tools import in_sandbox
from m3agent.tools.runners.base import (
    Command,
    Job,
    Output,
    Reading,
    Runner,
    Suite,
    Tree,
    Unit,
    is_within,
    place_of,
)
from m3agent.tools.runners.records import explain_silence, read_records
from m3agent.util.portable_source import portable_file


def sandbox_file(name: str) -> bytes:
    """Return a file that is made for the inside of a sandbox, where the files that it imports lie beside it."""
    return _content(Path(in_sandbox.__path__[0], name))


def reporter(*names: str) -> bytes:
    """Return the text of a reporter, which may consist of several files of the folder `reporters`."""
    return b"".join(_content(Path(__file__).with_name("reporters").joinpath(name)) for name in names)


def _content(path: Path) -> bytes:
    if path.suffix != ".py":
        return path.read_bytes()
    return portable_file(path).replace("from m3agent.tools.in_sandbox.", "from ").encode()


class DrivenRunner(Runner):
    """A runner whose tests a program of `m3agent.tools.in_sandbox` builds and runs."""

    programs: ClassVar[tuple[str, ...]]
    """Files of the program: the first one starts, and imports the others."""
    plan: ClassVar[Mapping[str, object]] = {}
    """What the program gets beside the tests and the limits."""

    @abstractmethod
    def environment(self, job: Job) -> Mapping[str, str]:
        """Return the variables of the program."""

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command that builds and runs the targets: `package` or `package::test`."""
        work = job.work
        tests: dict[str, list[str]] = {}
        for target in job.targets:
            package, _, name = target.partition("::")
            tests.setdefault(package, []).extend([name] if name else [])
        report, key_file = f"{work}/report", f"{work}/key"
        paths = {"work": work, "report": report, "key_file": key_file}
        limits = {"per_test": job.limits.per_test, "total": job.limits.total}
        plan = {**paths, **self.plan, "tests": tests, **limits}
        files = {f"{work}/{name}": sandbox_file(name) for name in self.programs}
        return [
            Command(
                ("python3", f"{work}/{self.programs[0]}", f"{work}/plan.json"),
                cwd=job.suite.root,
                env={"PYTHONPATH": "", **self.environment(job)},
                files={**files, f"{work}/plan.json": json.dumps(plan).encode()},
                report=report,
                key_file=key_file,
            )
        ]

    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records of the program."""
        return read_records(job.suite, outputs)


class FileRunner(Runner):
    """A runner that finds its tests by the names of their files. m3agent's reporter writes records, unless `read` is another."""

    evidence: ClassVar[str] = "{count} test files such as {first}"
    canaries: ClassVar[bool] = True
    """Whether the reporter runs tests that cannot pass."""

    @abstractmethod
    def roots(self, tree: Tree) -> Iterable[str]:
        """Return the folders that may have a suite, in the order of the suites."""

    @abstractmethod
    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the sorted paths of the test files of a folder."""

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each folder with test files."""
        candidates = ((root, self.files(tree, root)) for root in self.roots(tree))
        return [
            Suite(self.name, root, self.evidence.format(count=len(files), first=files[0]))
            for root, files in candidates
            if files
        ]

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the files of the wanted tests; empty if one of them is in no test file."""
        mine = self.files(tree, suite.root)
        chosen: set[str] = set()
        for place in map(place_of, wanted):
            hits = [file for file in mine if place == "." or is_within(file, place)]
            if not hits:
                return ()
            chosen.update(hits)
        return tuple(sorted(chosen)) if len(chosen) < len(mine) else ()

    def inner_paths(self, tree: Tree, root: str) -> Iterator[str]:
        """Yield the paths below a root, relative to it, without those of deeper roots and those that are no single line."""
        start = f"{root}/" if root else ""
        deeper = tuple(f"{other}/" for other in self.roots(tree) if other != root and is_within(other, root))
        for path in tree.paths:
            if path.startswith(start) and not path.startswith(deeper) and "\n" not in path:
                yield path.removeprefix(start)

    def chosen(self, job: Job) -> list[str]:
        """Return the test files of a run, as paths relative to the suite's root."""
        return [job.suite.within(path) for path in job.targets or self.files(job.tree, job.suite.root)]

    def path(self, job: Job, end: str) -> str:
        """Return the absolute path of a file outside the work tree, by its end: `script`, `report`, `key`."""
        return f"{job.work}/{self.name}.{end}"

    def reporting(
        self, job: Job, argv: Sequence[str], files: Mapping[str, bytes | list[str]], env: Mapping[str, str]
    ) -> list[Command]:
        """Return the command whose reporter writes records.

        Args:
            files: Contents of the files that it needs, by their ends; of a list, each item is one line.
        """
        contents = {
            self.path(job, end): "\n".join(content).encode() if isinstance(content, list) else content
            for end, content in files.items()
        }
        report, key = self.path(job, "report"), self.path(job, "key")
        folder = job.suite.root
        return [Command(tuple(argv), cwd=folder, env=env, files=contents, report=report, key_file=key)]

    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records."""
        reading = read_records(job.suite, outputs, canaries=self.canaries)
        reading.problem = reading.problem or explain_silence(outputs)
        return reading


def no_lock_file(tree: Tree, manifest: str, lock: str) -> tuple[str, ...]:
    """Return the notice that a manifest has no lock file; none if it has one."""
    text = f"{manifest} has no lock file: the newest versions that it allows are installed"
    return () if lock in tree.paths else (text,)
