"""A repository's tests by script: what a run of them in a sandbox in memory reports is told by its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from m3agent.tools import in_sandbox_runner
from tests.fakes.machine import Command, Done

RUNNER = Path(in_sandbox_runner.__file__).read_text()


@dataclass(frozen=True)
class Run:
    """One run of tests. outcomes: `passed`, `failed`, `error` or `skipped` by id; complete: whether it came to its end."""

    outcomes: Mapping[str, str]
    complete: bool = True
    seconds: float = 1.0


@dataclass
class Suite:
    """A script for a `MemoryMachine`: the runner of tests, with the outcomes that `run` gives for files and targets."""

    run: Callable[[Mapping[str, str], Sequence[str]], Run]
    _reports: dict[str, bytes] = field(default_factory=dict)
    """Of runs that were not read yet, by the path in the sandbox, which is another one for each run."""

    async def __call__(self, command: Command) -> Done | None:
        match command.argv:
            case ["python3", "-c", program, "pytest", report, _, *targets] if program == RUNNER:
                done = self.run(command.files.texts(), targets)
                only = in_sandbox_runner.Selection(command.stdin.decode()) if command.stdin else None
                lines = [
                    {"id": ident, "outcome": outcome, "seconds": 0.0, "text": f"{ident} {outcome}"}
                    for ident, outcome in done.outcomes.items()
                    if only is None
                    or (
                        ident.partition("::")[0] not in only.ignore and ("::" not in ident or only.has(ident))
                    )
                ]
                ended = [{"end": 0}] if done.complete else []
                text = "".join(f"{json.dumps(line)}\n" for line in [*lines, *ended])
                self._reports[report] = text.encode()
                return Done(stdout=b"ran\n", seconds=done.seconds)
            case ["sh", "-c", program, "sh", report] if "cat" in program:
                return Done(stdout=self._reports.pop(report))
        return None
