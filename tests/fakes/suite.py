"""A repository's tests by script: what a run of them in a sandbox in memory reports is told by its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from m3agent.tools.in_sandbox.runner import Selection
from tests.fakes.machine import Command, Done
from tests.tools.report_lines import report_of, request_of


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
        if (given := request_of(command)) is not None:
            request = given["request"]
            done = self.run(command.files.texts(), request["targets"])
            selection = Selection(request)
            lines = [
                ("result", ident, outcome, "0.0", f"{ident} {outcome}")
                for ident, outcome in done.outcomes.items()
                if ident.partition("::")[0] not in selection.ignore
                and ("::" not in ident or selection.has(ident))
            ]
            ended = [("end", "0", "")] if done.complete else []
            self._reports[given["report"]] = report_of([*lines, *ended], bytes.fromhex(given["key"]))
            return Done(stdout=b"ran\n", seconds=done.seconds)
        match command.argv:
            case ["sh", "-c", program, "sh", report] if "cat" in program:
                return Done(stdout=self._reports.pop(report, b""))
        return None
