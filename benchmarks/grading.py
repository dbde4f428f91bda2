"""Compare our grading with the official harness: verdicts and overhead on the same rows and images, in one run.

    make bench-grading ARGS="ROWS [--patches gold,harmless] [--workers 2] [--ids A,B] [--peers-dir DIR] [--json FILE]"

ROWS is a file of rows with all fields that the official rules need (see docs/eval.md). Building the images is not
measured. The contestants take turns:

- `official`: swebench 5.0.2's `run_evaluation`, as its command line starts it
- `ours, official rules`: the same scripts in the same images, graded by the same package, but run by m3agent
- `ours, strict`: our own rules

Test seconds are those of the processes that run tests. For the first two contestants that is the evaluation script (for
the official one, its logs give the time). Overhead is wall seconds minus test seconds divided by the number of workers.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.common import parser_of, say, write_json
from benchmarks.peers import python_with

from m3agent.agent.settings.settings import state_dir
from m3agent.evals.data.instance import Instance
from m3agent.evals.data.load import load
from m3agent.evals.data.results import Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.official import official_grade
from m3agent.evals.grade.validate import HARMLESS
from m3agent.sandbox.backends.engine import connect
from m3agent.util.concurrency import some_at_a_time

PINNED = "swebench==5.0.2"
RUNTIME = re.compile(r"Test runtime: ([0-9_]+\.[0-9]+) seconds")

Round = dict[str, Any]


def patches_of(instances: Sequence[Instance], kind: str) -> dict[str, bytes]:
    if kind == "gold":
        return {i.id: i.answer.reference for i in instances}
    return {i.id: HARMLESS for i in instances}


async def images_of(instances: Sequence[Instance], workers: int) -> dict[str, str]:
    """Return every image. Build missing images, and tag each with the name in its row."""
    environments = Environments(state_dir(os.environ), say)

    async def one(instance: Instance) -> tuple[str, str]:
        return instance.id, await environments.image(instance.task)

    images = dict(await some_at_a_time(workers, one, instances))
    with closing(connect()) as api:
        for instance in instances:
            repository, _, tag = str(instance.answer.row["image"]).partition(":")
            api.tag(images[instance.id], repository, tag or "latest", force=True)
    return images


def round_of(wall: float, tests: float, workers: int, resolved: Iterable[str]) -> Round:
    """Return the result of a contestant's round."""
    return {"wall": wall, "tests": tests, "overhead": wall - tests / workers, "resolved": sorted(resolved)}


async def ours(
    instances: Sequence[Instance],
    patches: dict[str, bytes],
    images: dict[str, str],
    workers: int,
    *,
    strict: bool,
) -> Round:
    grader = Grader(state_dir(os.environ), say)
    started = time.monotonic()

    async def one(instance: Instance) -> tuple[str, bool, float]:
        with tempfile.TemporaryDirectory() as folder:
            patch, image = patches[instance.id], images[instance.id]
            if strict:
                grade = await grader.strict(instance, patch, image, Path(folder))
                return instance.id, grade.verdict is Verdict.RESOLVED, grade.test_seconds
            official = await official_grade(instance, patch, image, Path(folder))
            return instance.id, bool(official.resolved), official.test_seconds

    done = await some_at_a_time(workers, one, instances)
    wall = time.monotonic() - started
    tests = sum(seconds for _, _, seconds in done)
    return round_of(wall, tests, workers, (ident for ident, resolved, _ in done if resolved))


def peer(
    python: Path, rows: Path, instances: Sequence[Instance], patches: dict[str, bytes], workers: int
) -> Round:
    """Run the official harness once, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        predictions = Path(folder) / "predictions.jsonl"
        lines = [
            {"instance_id": i.id, "model_name_or_path": "bench", "model_patch": patches[i.id].decode()}
            for i in instances
        ]
        predictions.write_text("".join(json.dumps(line) + "\n" for line in lines))
        argv = [str(python), "-m", "swebench.harness.run_evaluation", "-d", str(rows), "-s", "test"]
        argv += ["-p", str(predictions), "-id", "bench", "--max_workers", str(workers)]
        argv += ["-i", *(i.id for i in instances)]
        started = time.monotonic()
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        wall = time.monotonic() - started
        reports = list(Path(folder).glob("*.bench.json"))
        if not reports:
            sys.exit(f"the official harness left no report: {done.stderr[-2000:]}")
        report = json.loads(reports[0].read_text())
        logs = Path(folder).glob("logs/run_evaluation/bench/*/*/run_instance.log")
        tests = sum(float(m[1].replace("_", "")) for log in logs for m in RUNTIME.finditer(log.read_text()))
        return round_of(wall, tests, workers, report["resolved_ids"])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--patches", default="gold,harmless")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ids", default="")
    parser.add_argument("--rounds", type=int, default=1)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--peers-dir", type=Path, default=cache / "m3agent-benchmarks", metavar="DIR")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.peers_dir.mkdir(parents=True, exist_ok=True)
    instances = load(str(options.rows), ids=[i for i in options.ids.split(",") if i])
    python = python_with(options.peers_dir / "swebench", [PINNED])
    images = asyncio.run(images_of(instances, options.workers))
    found: list[Round] = []
    for number in range(options.rounds):
        for kind in options.patches.split(","):
            patches = patches_of(instances, kind)
            contestants = {
                "official": lambda p=patches: peer(
                    python, options.rows.absolute(), instances, p, options.workers
                ),
                "ours, official rules": lambda p=patches: asyncio.run(
                    ours(instances, p, images, options.workers, strict=False)
                ),
                "ours, strict": lambda p=patches: asyncio.run(
                    ours(instances, p, images, options.workers, strict=True)
                ),
            }
            order = list(contestants) if number % 2 == 0 else list(reversed(contestants))
            for name in order:
                say(f"round {number + 1}: {name}, {kind}")
                found.append({"round": number + 1, "patches": kind, "name": name, **contestants[name]()})
    print(f"{'':24}{'patches':>10}{'resolved':>10}{'wall s':>9}{'tests s':>9}{'overhead s':>12}")
    for one in found:
        print(
            f"{one['name']:24}{one['patches']:>10}{len(one['resolved']):>7}/{len(instances)}"
            f"{one['wall']:>9.1f}{one['tests']:>9.1f}{one['overhead']:>12.1f}"
        )
    for kind in options.patches.split(","):
        same = {
            tuple(one["resolved"]) for one in found if one["patches"] == kind and "official" in one["name"]
        }
        print(f"verdicts by the official rules, {kind}: {'equal' if len(same) == 1 else 'they differ'}")
    write_json(options.json, found)


if __name__ == "__main__":
    main()
