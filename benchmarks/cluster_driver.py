"""The driver of `benchmarks/cluster.py`: `evaluate` as in `m3agent eval run --cluster`, with stand-ins for agent and grader.

    python -m benchmarks.cluster_driver RUN ADDRESS --instances N --workers W --speed S --seed N

RUN is the run's folder. Its parent gets `gradings.jsonl` and `driver.jsonl`. A grading adds a line when it begins: the
instance, a token, and the time. The grade's reason is the token, so that a result shows from which grading it comes.
The driver adds a line every second: the time, its memory in MiB, and how many results it stored since it started.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common import parser_of, say

from m3agent.cli.common import run
from m3agent.evals.code.checkout import BRANCH, LeakProof
from m3agent.evals.data.instance import Answer, Instance, Source, Task
from m3agent.evals.data.results import Grade, OfficialGrade, RunConfig, Verdict
from m3agent.evals.data.run_folder import RESULT
from m3agent.evals.run.evaluate import evaluate
from m3agent.evals.run.parts import Assignment, AttemptParts, Delivery

AGENT_SECONDS = (72, 7, 8, 8, 5, 7, 18, 18, 53, 39, 11, 11, 8, 12, 15, 10, 6, 5, 6, 6)
"""Seconds of 20 fixes of QuixBugs with the embedded engine, recorded on 2026-11-20 (docs/benchmarks.md)."""
GRADE_SECONDS = 2.1
"""Seconds to grade an instance, the average of 13 mined instances on 2026-11-22."""
LOG_BYTES = 200_000
"""Size of an attempt's session log, which comes back from the node."""
GRADINGS, SAMPLES = "gradings.jsonl", "driver.jsonl"


@dataclass(frozen=True)
class StandIn:
    """Environments, agent and grader that only take time.

    Attributes:
        folder: Where gradings are noted.
        speed: The recorded seconds are divided by this.
        seed: Seed of the durations.
    """

    folder: Path
    speed: float
    seed: int
    shares_prefix: bool = False

    async def image(self, task: Task) -> str:
        """See `AttemptParts.image`."""
        return f"image-of-{task.instance_id}"

    async def work(self, given: Assignment) -> Delivery:
        """See `EvaluatedAgent.work`."""
        chance = random.Random(f"{self.seed} {given.task.instance_id}")
        await asyncio.sleep(chance.choice(AGENT_SECONDS) / self.speed)
        session = given.folder / "session"
        session.mkdir()
        (session / "events.jsonl").write_bytes(chance.randbytes(LOG_BYTES))
        return Delivery("verified", patch=f"a patch of {given.task.instance_id}\n".encode(), session=session)

    async def grade(
        self,
        instance: Instance,
        patch: bytes,
        image: str,
        folder: Path,
    ) -> tuple[Grade, OfficialGrade | None]:
        """See `AttemptParts.grade`."""
        token = uuid.uuid4().hex
        add_line(self.folder / GRADINGS, [instance.id, token, time.time()])
        await asyncio.sleep(GRADE_SECONDS / self.speed)
        resolved = random.Random(instance.id).random() < 0.5
        return Grade(verdict=Verdict.RESOLVED if resolved else Verdict.UNRESOLVED, reason=token), None


def parts_of(folder: Path, speed: float, seed: int, _: Callable[[str], None]) -> AttemptParts:
    """Return the parts of an attempt; a node calls it."""
    stand_in = StandIn(folder, speed, seed)
    seconds = {"environment": 60.0, "tests": 60.0}
    return AttemptParts(checked_out, stand_in.image, stand_in.grade, stand_in, seconds)


def checked_out(_: Task, folder: Path) -> LeakProof:
    """Make an empty checkout, which has no other history."""
    folder.mkdir()
    return LeakProof(head="", matches=None, commits=1, refs=(BRANCH,), objects=0, reachable=0)


def add_line(path: Path, line: object) -> None:
    """Append a line of JSON with a single write, so that lines of several processes do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def memory() -> float:
    """Return the resident memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1)


def count_results(run_folder: Path) -> int:
    """Return how many attempts of a run have a result."""
    return sum(1 for _ in run_folder.glob(f"attempts/*/*/{RESULT}"))


def sample(run_folder: Path, ended: threading.Event) -> None:
    """Note memory and number of results once a second."""
    before = count_results(run_folder)
    while not ended.wait(1):
        done = count_results(run_folder) - before
        add_line(run_folder.parent / SAMPLES, [os.getpid(), time.time(), memory(), done])


def instances_of(count: int) -> list[Instance]:
    """Return this many instances, ten at each commit. A source with https is checked out by the node itself."""
    source = Source(kind="git", location="https://example.invalid/made-up.git")
    return [
        Instance(
            task=Task(
                instance_id=f"made-up-{number:05}",
                repo=f"made/up-{number // 100}",
                base_commit=f"{number // 10:040x}",
                statement="It is slow.",
                source=source,
            ),
            answer=Answer(patch="x", fail_to_pass=("test_a.py::test_a",)),
        )
        for number in range(count)
    ]


def main() -> None:
    """Make the attempts that the run lacks."""
    parser = parser_of(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("address")
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--speed", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    output: Path = options.run.absolute()
    instances = instances_of(options.instances)
    config = RunConfig(
        data="made-up",
        instances=tuple(instance.id for instance in instances),
        agent="stand-in",
        attempts=1,
        timeouts={"agent": 60.0},
    )
    parts = partial(parts_of, output.parent, options.speed, options.seed)
    ended = threading.Event()
    threading.Thread(target=sample, args=(output, ended), daemon=True).start()
    workers, cluster = options.workers, options.address
    folder = evaluate(config, instances, output, parts, say, run, workers=workers, cluster=cluster)
    ended.set()
    raise SystemExit(1 if folder.left() else 0)


if __name__ == "__main__":
    main()
