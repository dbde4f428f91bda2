"""Judge each forged patch of the tests as `fix` does, on both kinds of sandbox, and as `eval grade` does.

    make bench-forgeries [ARGS="[--only WORD ...] [--official] [--json FILE]"]
    python -m benchmarks.forgeries

The program prints a table in Markdown, and how many forgeries of each kind got each verdict. --official adds the verdict
of the official rules; that takes images, which need a base image (docs/eval.md). The exit status is 1 if a forgery is
verified or resolved, or if a right fix is not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import say, write_json

from m3agent.agent.settings.settings import state_dir
from m3agent.evals.data.instance import Environment, Instance
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.official import official_grade
from m3agent.sandbox.backends.factory import Backend
from tests.abuse.forgeries import FORGERIES, HONEST
from tests.abuse.forgery_judges import Files, base_of, graded, instance_of, verified
from tests.abuse.forgery_targets import Target
from tests.evals.calc_instance import diff

JUDGES = ("fix, docker", "fix, bwrap", "grade", "official")
GOOD = frozenset({"verified", "resolved"})
MOST_REASON = 90  # characters
AS_OFFICIAL = """\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
export PYTHONPATH=/testbed
git status
git checkout {base} {tests}
git apply -v - <<'EOF_TESTS'
{test_patch}EOF_TESTS
: '>>>>> Start Test Output'
pytest -rA {tests}
: '>>>>> End Test Output'
git checkout {base} {tests}
"""
"""An evaluation script as in official rows: it restores and patches test files, and runs tests between two markers."""


@dataclass(frozen=True)
class Row:
    """One judgement.

    Attributes:
        name: The forgery, or the right fix.
        kind: Kind of the forgery; `honest` for a right fix.
        judge: One of `JUDGES`.
        verdict: The verdict, or `error` if the judge failed.
        reason: Why.
        seconds: Wall time.
    """

    name: str
    kind: str
    judge: str
    verdict: str
    reason: str
    seconds: float

    @property
    def wrong(self) -> bool:
        """Whether a forgery is believed, a right fix is not, or a judge failed."""
        believed = self.verdict in GOOD
        return (believed != (self.kind == "honest") or self.verdict == "error") and self.judge != "official"


async def judge(name: str, kind: str, files: Files, target: Target, by: str) -> Row:
    """Judge a patch once."""
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as scratch:
        folder, started = Path(scratch), asyncio.get_running_loop().time()
        try:
            verdict, reason = await _judged(files, target, by, folder)
        except Exception as error:  # noqa: BLE001 - a judge that a forgery breaks is a result
            verdict, reason = "error", repr(error)
        seconds = round(asyncio.get_running_loop().time() - started, 1)
    return Row(name, kind, by, verdict, " ".join(reason.split()), seconds)


async def _judged(files: Files, target: Target, by: str, folder: Path) -> tuple[str, str]:
    if by.startswith("fix"):
        backend: Backend = "docker" if by.endswith("docker") else "bwrap"
        found = await verified(files, target, backend, folder)
        return found.verdict, found.reason
    if by == "grade":
        grade = await graded(files, target, folder)
        undone = f"put back: {', '.join(grade.undone)}; " if grade.undone else ""
        return "tampering" if grade.forged else str(grade.verdict), undone + grade.reason
    instance = _official_instance(target, folder / "instance")
    image = await Environments(state_dir(os.environ), say).image(instance.task)
    patch = diff(folder / "patch", base_of(target), files)
    official = await official_grade(instance, patch, image, folder)
    return {True: "resolved", False: "unresolved", None: "error"}[official.resolved], ""


def _official_instance(target: Target, folder: Path) -> Instance:
    """Return a target as an instance with an environment and an official row."""
    instance = instance_of(target, folder)
    environment = Environment(python="3.11", pip_packages=("pytest",), install="true")
    script = AS_OFFICIAL.format(base="HEAD", tests=target.tests, test_patch=instance.answer.test_patch)
    row = {
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "FAIL_TO_PASS": list(target.to_fix),
        "PASS_TO_PASS": list(target.to_keep),
    }
    return Instance(
        task=instance.task.model_copy(update={"environment": environment}),
        answer=instance.answer.model_copy(update={"row": row}),
    )


def patches() -> Iterator[tuple[str, str, Files, Target]]:
    """Yield the right fixes and the forgeries: name, kind, files, target."""
    for name, target in HONEST.items():
        yield f"*the right fix of {name}*", "honest", {target.module: target.fixed}, target
    for name, forged in FORGERIES.items():
        yield name, forged.kind, forged.files, forged.target


async def judge_all(judges: tuple[str, ...], only: list[str], workers: int) -> list[Row]:
    """Judge all patches, or those with one of the words `only` in their names."""
    room = asyncio.Semaphore(workers)

    async def one(name: str, kind: str, files: Files, target: Target, by: str) -> Row:
        async with room:
            row = await judge(name, kind, files, target, by)
        say(
            f"{'WRONG ' if row.wrong else ''}{by}: {name}: {row.verdict} ({row.seconds:g} s): {row.reason[:150]}"
        )
        return row

    wanted = [patch for patch in patches() if not only or any(word in patch[0] for word in only)]
    return await asyncio.gather(*(one(*patch, by) for patch in wanted for by in judges))


def tables(rows: list[Row], judges: tuple[str, ...]) -> str:
    """Return the judgements, and their numbers by kind, as Markdown."""
    found = {(row.name, row.judge): row for row in rows}
    lines = [f"| forgery | kind | {' | '.join(judges)} | why |", "|---|---|" + "---|" * (len(judges) + 1)]
    for name, kind in dict.fromkeys((row.name, row.kind) for row in rows):
        of_name = [found[name, by] for by in judges]
        verdicts = [f"**{one.verdict}**" if one.wrong else one.verdict for one in of_name]
        reason = next((one.reason for one in of_name if one.reason), "")[:MOST_REASON].replace("|", "\\|")
        lines.append(f"| {name} | {kind} | {' | '.join(verdicts)} | {reason} |")
    lines += ["", "| kind | judge | verdict | patches |", "|---|---|---|---|"]
    numbers = Counter((row.kind, row.judge, row.verdict) for row in rows)
    lines += [f"| {' | '.join(key)} | {number} |" for key, number in sorted(numbers.items())]
    return "\n".join(lines)


def main() -> None:
    """Judge the patches and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--judges", nargs="+", default=list(JUDGES[:3]), choices=JUDGES)
    parser.add_argument("--official", action="store_true", help="also grade by the official rules")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    judges = (*options.judges, *(["official"] if options.official else []))
    rows = asyncio.run(judge_all(judges, options.only, options.workers))
    print(tables(rows, judges))
    write_json(options.json, rows)
    sys.exit(any(row.wrong for row in rows))


if __name__ == "__main__":
    main()
