"""Run commands as steps in a sandbox, and read what each left behind (`m3agent.tools.in_sandbox.steps` executes them).

Another process than the tests executes the steps, and code under test can neither read nor trace it.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from m3agent.tools.runners.base import Command, Job, Output, Reading, Runner, Unit
from m3agent.tools.runners.file_runner import sandbox_file
from m3agent.tools.runners.records import valid_records
from m3agent.util.json_value import mapping

MOST_REASON = 4000
"""Most characters of an error text."""
_COMPILER_ERROR = re.compile(r"^.*\b(?:error|undefined reference|multiple definition)\b.*$", re.MULTILINE)


def steps_command(steps: Sequence[Mapping[str, Any]], work: str, name: str) -> Command:
    """Return the command that executes steps (`m3agent.tools.in_sandbox.steps`).

    Args:
        work: Folder for the files that it needs.
        name: Name of its files in this folder.
    """
    job, key, report = (f"{work}/{name}.{kind}" for kind in ("json", "key", "report"))
    driver, witness = f"{work}/steps.py", f"{work}/witness.c"
    return Command(
        ("python3", "-I", "-S", driver, job, key, report),
        files={
            driver: sandbox_file("steps.py"),
            f"{work}/record_writer.py": sandbox_file("record_writer.py"),
            witness: sandbox_file("witness.c"),
            job: json.dumps({"steps": steps, "witness": f"{work}/witness.so"}).encode(),
        },
        report=report,
        key_file=key,
        env={"TMPDIR": work},
    )


def read_steps(output: Output) -> tuple[dict[str, dict[str, Any]], bool]:
    """Return what each step left behind, by its name, and whether all steps are there."""
    done: dict[str, dict[str, Any]] = {}
    for record in valid_records(output.report, output.key):
        match record:
            case ["step", str(name), dict(what)]:
                done[name] = what
            case ["end"]:
                return done, True
            case _:
                pass
    return done, False


def text_of(done: Mapping[str, Any], name: str = "output") -> str:
    """Return a text of a step; empty if it has none."""
    value = done.get(name)
    return value if isinstance(value, str) else ""


def files_in(done: Mapping[str, Mapping[str, Any]], step: str) -> dict[str, str]:
    """Return the files that a step collected, by their absolute paths."""
    files = mapping(done.get(step), "files")
    return {str(path): str(text) for path, text in files.items()}


def add_end(
    reading: Reading, file: str, step: Mapping[str, Any], *, red: bool, complete: bool = True, text: str = ""
) -> None:
    """Add how the program of a file ended, as far as its results do not say so.

    Args:
        red: Whether one of its results is red.
        complete: Whether its report is complete.
        text: Why it could not run; empty for the end of its output.
    """
    if step.get("timed_out"):
        reading.add(file, [], "error", "timed out")
    elif not complete or (step.get("exit") != 0 and not red):
        reading.add(file, [], "error", text or text_of(step)[-2000:])
    elif step.get("exit") == 0 and red:
        reading.tampering.append(f"{file}: it ended with 0 although a test failed")


class StepRunner(Runner):
    """A runner whose command executes steps, and which reads what each left behind."""

    @abstractmethod
    def read_done(self, job: Job, done: Mapping[str, Mapping[str, Any]], reading: Reading) -> None:
        """Add what the steps left behind, by their names, to a reading."""

    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read what the steps left behind."""
        reading = Reading(ended=bool(outputs))
        for output in outputs:
            done, ended = read_steps(output)
            reading.ended &= ended
            self.read_done(job, done, reading)
        return reading


def first_errors(text: str) -> str:
    """Return a build's output from its first error on, cut."""
    error = _COMPILER_ERROR.search(text)
    return text[error.start() if error else 0 :].strip()[:MOST_REASON]
