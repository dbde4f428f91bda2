"""Programs of `m3agent.tools.in_sandbox` that build and run the tests of another language inside the sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from m3agent.sandbox.portable_source import portable_file
from m3agent.tools import in_sandbox
from m3agent.tools.runners.base import Command, Limits, Output, Reading, Result, Suite
from m3agent.tools.runners.records import path_of, read_records, valid_records


def sandbox_file(name: str) -> bytes:
    """Return a file that is made for the inside of a sandbox."""
    path = Path(in_sandbox.__path__[0], name)
    return portable_file(path).encode() if path.suffix == ".py" else path.read_bytes()


def read_driver(suite: Suite, outputs: Sequence[Output]) -> Reading:
    """Read the records of a program that builds and runs tests inside the sandbox.

    Beside the usual records it writes `["broken", unit, text]`, a red result of a whole unit, and `["problem", text]`.
    """
    reading = read_records(suite, outputs)
    for output in outputs:
        for record in valid_records(output.report, output.key):
            match record:
                case ["broken", str(unit), str(text)]:
                    reading.results.append(Result(path_of(suite, unit), "error", text))
                case ["problem", str(text)]:
                    reading.problem = text
                case _:
                    pass
    return reading


def driver_command(
    files: Sequence[str],
    suite: Suite,
    targets: Sequence[str],
    limits: Limits,
    work: str,
    env: Mapping[str, str],
    more: Mapping[str, object] | None = None,
) -> Command:
    """Return the command that runs such a program.

    Args:
        files: Names of the program and of the files beside it.
        suite: The suite.
        targets: What to run, as `package` or `package::test`.
        limits: Time limits.
        work: Folder for the files, the report and the builds.
        env: Variables of the program.
        more: What the program gets in addition.
    """
    tests: dict[str, list[str]] = {}
    for target in targets:
        package, _, name = target.partition("::")
        tests.setdefault(package, []).extend([name] if name else [])
    report, key_file = f"{work}/report", f"{work}/key"
    plan = {
        "work": work,
        "report": report,
        "key_file": key_file,
        **(more or {}),
        "tests": tests,
        "per_test": limits.per_test,
        "total": limits.total,
    }
    beside = {f"{work}/{name}": sandbox_file(name) for name in files}
    return Command(
        ("python3", f"{work}/{files[0]}", f"{work}/plan.json"),
        cwd=suite.root or ".",
        env=env,
        files={**beside, f"{work}/plan.json": json.dumps(plan).encode()},
        report=report,
        key_file=key_file,
    )
