"""Programs that run tests inside the sandbox: those of `m3agent.tools.in_sandbox` and the reporters beside this file."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from m3agent.tools import in_sandbox
from m3agent.tools.runners.base import Command, Job, Output, Reading, Runner, Unit
from m3agent.tools.runners.records import read_records
from m3agent.util.portable_source import portable_file


def sandbox_file(name: str) -> bytes:
    """Return a file that is made for the inside of a sandbox, where the files that it imports lie beside it."""
    path = Path(in_sandbox.__path__[0], name)
    if path.suffix != ".py":
        return path.read_bytes()
    return portable_file(path).replace("from m3agent.tools.in_sandbox.", "from ").encode()


def reporter(*names: str) -> bytes:
    """Return the text of a reporter, which may consist of several files of the folder `reporters`."""
    return b"".join(Path(__file__).with_name("reporters").joinpath(name).read_bytes() for name in names)


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
                cwd=job.suite.root or ".",
                env={"PYTHONPATH": "", **self.environment(job)},
                files={**files, f"{work}/plan.json": json.dumps(plan).encode()},
                report=report,
                key_file=key_file,
            )
        ]

    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records of the program."""
        return read_records(job.suite, outputs)
