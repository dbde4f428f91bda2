"""Run a thousand instances on a Ray cluster of processes, kill nodes and the driver on the way, and count the results.

    python -m benchmarks.cluster [--instances 1000] [--nodes 8] [--every 45] [--speed 20] [--seed 1] [--json FILE]

The cluster has --nodes nodes; the first one is the head and is never killed. The driver makes attempts as `m3agent eval run --cluster` does. The
agent and the grader are stand-ins that only wait: recorded durations divided by --speed (`cluster_driver.py`). Every --every
seconds, something is killed with SIGKILL: all processes of a node, which starts again 5 s later, or the driver, which starts
again at once. Which one is drawn from the seed. If the driver ends with attempts that failed with their node, it starts again,
as a user repeats the command.

At the end, these must hold:

- Each instance has one result, and the result comes from a grading that took place.
- No instance was graded again after its result was stored. A grading whose result was lost with a killed process is repeated.
- The last tenth of the attempts did not take more time or more of the driver's memory than the first tenth (reported).

The exit status is 1 if one of the first two does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cluster_driver import GRADINGS, SAMPLES, count_results, instances_of
from benchmarks.common import parser_of, say, write_json

from m3agent.evals.data.run_folder import RESULT, RunFolder
from tests.servers.ray_nodes import RayNodes, ray_nodes

ROOT = Path(__file__).resolve().parent.parent
AWAY_SECONDS = 5.0
"""How long a killed node is away."""
WORKERS_PER_NODE = 2


class Simulation:
    """One run with its kills."""

    def __init__(self, cluster: RayNodes, folder: Path, options: argparse.Namespace) -> None:
        self.cluster = cluster
        self.folder = folder
        self.options = options
        self.chance = random.Random(options.seed)
        self.kills: list[tuple[float, str]] = []
        self.starts = 0
        self.began = time.time()

    def run(self) -> None:
        """Start the driver until every attempt has a result, and kill on the way."""
        options = self.options
        driver = self.drive()
        due = time.time() + options.every
        while True:
            try:
                code = driver.wait(timeout=max(0.1, due - time.time()))
            except subprocess.TimeoutExpired:
                due = time.time() + options.every
                if self.chance.random() < 1 / 3:
                    self.note("driver")
                    driver.kill()
                    driver.wait()
                    driver = self.drive()
                else:
                    self.lose(self.chance.randrange(1, options.nodes))
                continue
            if code == 0:
                return
            if code != 1:
                say((self.folder / "driver.log").read_text()[-3000:])
                raise SystemExit(f"the driver ended with exit code {code}")
            driver = self.drive()

    def drive(self) -> subprocess.Popen[bytes]:
        """Start the driver."""
        options = self.options
        self.starts += 1
        run = str(self.folder / "run")
        command = [sys.executable, "-m", "benchmarks.cluster_driver", run, self.cluster.address]
        command += ["--instances", str(options.instances), "--speed", str(options.speed)]
        command += ["--workers", str(options.nodes * WORKERS_PER_NODE), "--seed", str(options.seed)]
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def lose(self, number: int) -> None:
        """Kill a node and start it again a little later."""
        self.note(f"node {number}")
        self.cluster.lose(number)
        time.sleep(AWAY_SECONDS)
        self.cluster.start(number)

    def note(self, what: str) -> None:
        """Remember a kill and print it."""
        done = count_results(self.folder / "run")
        self.kills.append((round(time.time() - self.began, 1), what))
        say(f"{self.kills[-1][0]:7.1f} s: {done} results; killed {what}")


def lines_of(path: Path) -> Iterator[list[Any]]:
    """Yield the lines of a file of JSON lines."""
    for line in path.read_text().splitlines():
        yield json.loads(line)


def judged(folder: Path, wanted: int) -> tuple[dict[str, object], list[str]]:
    """Return figures of the run and what is wrong with it."""
    run = RunFolder.read(folder / "run")
    gradings: dict[str, list[tuple[str, float]]] = {}
    for ident, token, at in lines_of(folder / GRADINGS):
        gradings.setdefault(ident, []).append((token, at))
    wrong = []
    results = {result.instance_id: result for result in run.results()}
    for instance in instances_of(wanted):
        result = results.get(instance.id)
        if result is None or result.grade is None:
            wrong.append(f"{instance.id} has no result")
            continue
        made = gradings.get(instance.id, [])
        if result.grade.reason not in [token for token, _ in made]:
            wrong.append(f"the result of {instance.id} comes from no grading")
        stored = (run.attempt(instance.id, 1) / RESULT).stat().st_mtime
        if again := [at for _, at in made if at > stored]:
            wrong.append(f"{instance.id} was graded {len(again)} times after its result was stored")
    return {
        "results": len(results),
        "gradings": sum(map(len, gradings.values())),
        "repeated": sum(len(made) - 1 for made in gradings.values()),
        **driver_figures(folder),
    }, wrong


def driver_figures(folder: Path) -> dict[str, object]:
    """Return memory (MiB) and seconds per attempt of the driver process that stored most results, early and late.

    Early and late are the first and the last third of its samples, after the first ten seconds.
    """
    by_process: dict[int, list[tuple[float, float, int]]] = {}
    for process, at, memory, done in lines_of(folder / SAMPLES):
        by_process.setdefault(process, []).append((at, memory, done))
    longest = max(by_process.values(), key=lambda samples: samples[-1][2])[10:]
    third = max(2, len(longest) // 3)
    found: dict[str, object] = {}
    for name, part in (("early", longest[:third]), ("late", longest[-third:])):
        (first, _, before), (last, _, after) = part[0], part[-1]
        found[f"memory_{name}"] = round(statistics.median(memory for _, memory, _ in part), 1)
        found[f"seconds_per_result_{name}"] = round((last - first) / max(1, after - before), 3)
    return {**found, "memory_most": max(m for part in by_process.values() for _, m, _ in part)}


def main() -> None:
    """Run the simulation and print its figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--instances", type=int, default=1000, help="number of instances")
    parser.add_argument("--nodes", type=int, default=8, help="number of nodes")
    parser.add_argument("--every", type=float, default=45, help="seconds between two kills")
    parser.add_argument("--speed", type=float, default=20, help="how many times faster than recorded")
    parser.add_argument("--seed", type=int, default=1, help="seed of the kills and durations")
    parser.add_argument("--json", type=Path, help="file for the figures and the kills")
    options = parser.parse_args()
    # Ray takes a token of the user for the head, but not for the other nodes.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    with tempfile.TemporaryDirectory(prefix="m3agent-cluster-") as name:
        folder = Path(name)
        with ray_nodes(folder, options.nodes, cpus=WORKERS_PER_NODE, env=env) as cluster:
            simulation = Simulation(cluster, folder, options)
            simulation.run()
            seconds = round(time.time() - simulation.began, 1)
        figures, wrong = judged(folder, options.instances)
    figures = {"seconds": seconds, "driver_starts": simulation.starts, **figures}
    for key, value in figures.items():
        print(f"{key}: {value}")
    for fault in wrong[:20]:
        print(f"WRONG: {fault}")
    if options.json:
        kills = [{"seconds": at, "killed": what} for at, what in simulation.kills]
        write_json(options.json, {**figures, "wrong": wrong, "kills": kills})
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
