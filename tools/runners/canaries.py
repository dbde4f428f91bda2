"""Read records of a reporter that runs canaries: tests that cannot pass, in the process of the real tests.

Code that forges passing tests also makes canaries pass. The reporter leaves their results out and writes one more record
before the end: `["canaries", added, ran, passed]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from m3agent.tools.base import readable
from m3agent.tools.runners.base import Output, Reading, Suite
from m3agent.tools.runners.records import read_records, valid_records

PASSED = "a test that cannot pass passed"
MISSING = "no test that must fail did fail"


def reporter(*names: str) -> bytes:
    """Return the text of a reporter, which may consist of several files of the folder `reporters`."""
    folder = files("m3agent.tools.runners") / "reporters"
    return b"".join((folder / name).read_bytes() for name in names)


def read_with_canaries(suite: Suite, outputs: Sequence[Output]) -> Reading:
    """Read the records of all commands of a run, and judge its canaries."""
    reading = read_records(suite, outputs)
    green = any(result.outcome == "passed" for result in reading.results)
    added = ran = passed = 0
    for output in outputs:
        for record in valid_records(output.report, output.key):
            match record:
                case ["canaries", int(one), int(two), int(three)]:
                    added, ran, passed = added + one, ran + two, passed + three
    if passed:
        reading.tampering.append(PASSED)
    elif reading.ended and (green or added) and not ran:
        reading.tampering.append(MISSING)
    reading.problem = explain_silence(outputs)
    return reading


def explain_silence(outputs: Sequence[Output]) -> str:
    """Return the last line that a command without a report wrote, as a sentence; empty if all commands have reports."""
    silent = next((output for output in outputs if not output.report and not output.timed_out), None)
    if silent is None:
        return ""
    said = readable(silent.stderr or silent.stdout).strip().splitlines()
    return f"the test runner wrote no report: {said[-1] if said else 'it said nothing'}"
