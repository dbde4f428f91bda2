"""Chaos: fixes that are each hit by one random fault, and what their users find afterwards.

    make bench-chaos [ARGS="--runs 20"]
    python -m benchmarks.chaos [--runs 200] [--seed 0] [--kinds harness,disk,...] [--only NUMBER] [--json FILE]

Each run is `m3agent fix` on a repository of its own with a scripted model. At a random moment the harness, the
container, dockerd or the model's server gets SIGKILL, the answer breaks off, or the disk is full; then the fault is put
right, and the session resumed until it ends. `run.py` has what must hold after each process and at the end; anything
else is a violation, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.chaos.faults import KINDS, Plan, barred, plan_of
from benchmarks.chaos.run import Result, play
from benchmarks.common import say, write_json


def plans(seed: int, runs: int, kinds: Sequence[str]) -> Iterator[Plan]:
    """Return the first `runs` plans of these kinds."""
    return itertools.islice(
        (p for p in (plan_of(seed, n) for n in itertools.count()) if p.kind in kinds), runs
    )


def table(results: Sequence[Result]) -> str:
    """Return the results by kind as a table in Markdown."""
    lines = [
        "| fault | runs | not hit | went on | resumed | restarted | refused | violations | median s | worst s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in (*KINDS, "all"):
        of = [each for each in results if kind in (each.plan.kind, "all")]
        if not of:
            continue
        hit = [each for each in of if each.seconds is not None]
        hows = [
            sum(each.how == how for each in hit) for how in ("at once", "resumed", "restarted", "refused")
        ]
        wrong = sum(bool(each.violations) for each in of)
        took = [each.seconds for each in hit if each.seconds is not None]
        times = [f"{median(took):.1f}", f"{max(took):.1f}"] if took else ["", ""]
        cells = [kind, len(of), len(of) - len(hit), *hows, wrong, *times]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="one run, alone")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the runs' folders there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--kinds: there is no {', '.join(sorted(unknown))}")
    if options.runs < 1:
        parser.error("--runs: there must be one at least")
    without = barred()
    chosen = [plan_of(options.seed, options.only)] if options.only is not None else None
    chosen = chosen or list(plans(options.seed, options.runs, kinds))
    results: list[Result] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="m3agent-chaos-") as scratch:
        for place, plan in enumerate(chosen, 1):
            if why := without.get(plan.kind) or without.get(plan.backend):
                say(f"{place}/{len(chosen)} run {plan.number} ({plan}): skipped: {why}")
                continue
            result = play(plan, (options.keep or Path(scratch)) / f"run-{plan.number}")
            results.append(result)
            took = "not hit" if result.seconds is None else f"{result.how}, {result.seconds:.1f} s"
            say(f"{place}/{len(chosen)} run {plan.number} ({plan}): {took}; exits {result.ends}")
            for violation in result.violations:
                say(f"  VIOLATION ({plan.kind}): {violation}")
            if result.violations:
                say(f"  again: python -m benchmarks.chaos --seed {options.seed} --only {plan.number}")
    wrong = sum(bool(each.violations) for each in results)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    print(
        f"{today}: seed {options.seed}, {len(results)} runs in {time.monotonic() - started:.0f} s, {wrong} with "
        f"violations; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n\n{table(results)}"
    )
    write_json(options.json, results)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
