"""Read the records that a reporter of m3agent writes from the process of the tests.

A record is one line with three fields, separated by tabs: its number (the first is 1), a JSON array, and the HMAC-SHA-256
of the first two fields with their tab, in hexadecimal. Code that finds the report can destroy it, but without the key it
cannot write a valid line, and a missing number ends the report.

The arrays:

- `["plan", unit]`: this unit will run.
- `["start", file, [name, ...]]`: a test begins. The names are those of its groups, outermost first, and its own.
- `["result", file, [name, ...], outcome, text]`: it ended. Outcomes are those of `m3agent.tools.runners.base`.
  Without names, it is the result of the file itself.
- `["unit", unit]`: the unit ended by itself.
- `["broken", unit, text]`: this unit could not be built.
- `["problem", text]`: why no test can run.
- `["tampering", text]`: a sign of tampering.
- `["canaries", added, ran, passed]`: the numbers of canaries, tests that cannot pass, in the process of the real tests. Code that
  forges passing tests also makes them pass. Their results are left out.
- `["end"]`: the runner ended by itself. Nothing follows.

Files and units are paths relative to the folder in which the command ran, or absolute.
"""

from __future__ import annotations

import hmac
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from m3agent.tools.base import readable
from m3agent.tools.runners.base import Outcome, Output, Reading, Suite, ident_of

OUTCOMES: Mapping[str, Outcome] = {outcome: outcome for outcome in get_args(Outcome)}
"""The outcomes by the words for them; every other word is an error."""
PASSED = "a test that cannot pass passed"
MISSING = "no test that must fail did fail"


def read_records(suite: Suite, outputs: Sequence[Output], *, canaries: bool = False) -> Reading:
    """Read the records of all commands of a run; it ended if each of them did.

    Args:
        canaries: Whether the reporter runs canaries. If no record counts them, that is a sign of tampering.
    """
    reading = Reading(ended=bool(outputs))
    counts = [0, 0, 0]
    for output in outputs:
        reading.ended &= _read(suite, output, reading, counts)
    added, ran, passed = counts
    green = any(result.outcome == "passed" for result in reading.results)
    if canaries and passed:
        reading.tampering.append(PASSED)
    elif canaries and reading.ended and (green or added) and not ran:
        reading.tampering.append(MISSING)
    return reading


def explain_silence(outputs: Sequence[Output]) -> str:
    """Return the last line that a command without a report wrote, as a sentence; empty if all commands have reports."""
    silent = next((output for output in outputs if not output.report and not output.timed_out), None)
    if silent is None:
        return ""
    lines = readable(silent.stderr or silent.stdout).strip().splitlines()
    return f"the test runner wrote no report: {lines[-1] if lines else 'it said nothing'}"


def authentic_lines(report: bytes, key: bytes) -> Iterator[bytes]:
    """Yield the lines of a report without their numbers and codes, up to the first one that is missing or not authentic."""
    number = 0
    for line in report.split(b"\n"):
        body, _, code = line.rpartition(b"\t")
        right = hmac.digest(key, body, "sha256").hex().encode()
        if not hmac.compare_digest(code, right):
            continue  # text of a program that found the report
        first, _, text = body.partition(b"\t")
        if first == str(number + 1).encode():
            number += 1
            yield text


def valid_records(report: bytes, key: bytes) -> Iterator[list[Any]]:
    """Yield the arrays of the records up to the first one that is missing, not authentic or not valid."""
    for text in authentic_lines(report, key):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(record, list) and record:
            yield record


def path_of(suite: Suite, file: str) -> str:
    """Return a file that a reporter names as a path of the repository."""
    if file.startswith("file://"):
        file = file.removeprefix("file://")
    if file.startswith(f"{suite.work_tree}/"):
        return posixpath.normpath(suite.in_tree(file))
    return posixpath.normpath(suite.path(file)) if not file.startswith("/") else file


def _read(suite: Suite, output: Output, reading: Reading, canaries: list[int]) -> bool:
    """Add one report to a reading and to the numbers of canaries; return whether it has an end."""
    for record in valid_records(output.report, output.key):
        match record:
            case ["plan", str(unit)]:
                reading.planned.add(path_of(suite, unit))
            case ["unit", str(unit)]:
                reading.reported.add(path_of(suite, unit))
            case ["start", str(file), [*names]]:
                reading.started.append(ident_of(path_of(suite, file), names))
            case ["result", str(file), [*names], str(outcome), str(text)]:
                reading.add(path_of(suite, file), names, OUTCOMES.get(outcome, "error"), text)
            case ["broken", str(unit), str(text)]:
                reading.add(path_of(suite, unit), [], "error", text)
            case ["problem", str(text)]:
                reading.problem = text
            case ["tampering", str(text)]:
                reading.tampering.append(text)
            case ["canaries", int(added), int(ran), int(passed)]:
                canaries[:] = map(sum, zip(canaries, (added, ran, passed), strict=True))
            case ["end"]:
                return True
            case _:
                pass  # another version's record
    return False
