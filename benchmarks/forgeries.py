"""Grade each forged patch of the tests by our rules and by the official ones, to see which rules it fools.

    make bench-forgeries
    python -m benchmarks.forgeries

The small instance of the tests gets a row as the official harness needs it (an evaluation script, a log parser) and its
own image, which needs a base image (docs/eval.md). The program prints a table in Markdown. The exit status is 1 if our
own rules count any forgery as resolved, or if one of the two sets of rules does not count the real fix as resolved.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.common import say

from m3agent.agent.settings.settings import state_dir
from m3agent.evals.data.instance import Environment, Instance
from m3agent.evals.data.results import Grade, OfficialGrade, Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from tests.evals.calc_instance import FILES, FIXED, TO_FIX, TO_KEEP, diff, small_instance
from tests.evals.forgeries import FORGERIES

AS_OFFICIAL = """\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
export PYTHONPATH=/testbed
git status
git checkout {base} tests/test_calc.py
git apply -v - <<'EOF_TESTS'
{test_patch}EOF_TESTS
: '>>>>> Start Test Output'
pytest -rA tests/test_calc.py
: '>>>>> End Test Output'
git checkout {base} tests/test_calc.py
"""
"""An evaluation script as in official rows: it restores and patches test files, and runs tests between two markers."""


def instance_in(folder: Path) -> Instance:
    """Return the small instance with an environment and an official row."""
    instance = small_instance(folder)
    task = instance.task.model_copy(
        update={"environment": Environment(python="3.11", pip_packages=("pytest",), install="true")}
    )
    row = {
        "eval_script": AS_OFFICIAL.format(base="HEAD", test_patch=instance.answer.test_patch),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "FAIL_TO_PASS": list(TO_FIX),
        "PASS_TO_PASS": list(TO_KEEP),
    }
    return Instance(task=task, answer=instance.answer.model_copy(update={"row": row}))


async def graded(workers: int) -> dict[str, tuple[Grade, OfficialGrade | None]]:
    """Return both verdicts on every forgery and on the real fix."""
    state, room = state_dir(os.environ), asyncio.Semaphore(workers)

    grader = Grader(state, say, official=True)
    with tempfile.TemporaryDirectory() as folder:
        instance = instance_in(Path(folder) / "instance")
        image = await Environments(state, say).image(instance.task)

        async def one(
            name: str, files: dict[str, str | bytes]
        ) -> tuple[str, tuple[Grade, OfficialGrade | None]]:
            async with room:
                place = Path(folder) / name.replace(" ", "-").replace("/", "-")
                patch = diff(place / "patch", FILES, files)
                return name, await grader.grade(instance, patch, image, place)

        every = {"(the real fix)": {"calc.py": FIXED}, **FORGERIES}
        return dict(await asyncio.gather(*(one(name, dict(files)) for name, files in every.items())))


def main() -> None:
    found = asyncio.run(graded(os.cpu_count() or 1))
    print("| forgery | strict | why | official |\n|---|---|---|---|")
    for name, (strict, official) in found.items():
        fooled = (
            "-"
            if official is None or official.resolved is None
            else "resolved"
            if official.resolved
            else "unresolved"
        )
        reason = " ".join(strict.reason.split())[:100].replace("|", "\\|")
        if strict.undone and not strict.forged:
            reason = f"put back: {', '.join(strict.undone)[:60]}"
        print(f"| {name} | {strict.verdict} | {reason} | {fooled} |")
    resolved = [name for name, (strict, _) in found.items() if strict.verdict is Verdict.RESOLVED]
    fools = sum(bool(official and official.resolved) for _, official in found.values()) - 1
    print(
        f"\n{len(FORGERIES)} forgeries: {len(resolved) - 1} fool our rules, {fools} the official ones",
        file=sys.stderr,
    )
    real = found["(the real fix)"]
    sys.exit(resolved != ["(the real fix)"] or real[1] is None or not real[1].resolved)


if __name__ == "__main__":
    main()
