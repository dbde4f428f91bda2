"""Recorded agent runs to replay stall detectors on: multi-swe-bench/experiments, Java, verified.

The runs are not ours to publish. To get them:

    git clone --depth 1 https://github.com/multi-swe-bench/experiments RUNS

and give `RUNS/evaluation/java/verified` to the scripts here: 448 runs of SWE-agent with five models (76 MB).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WINDOWS = HERE / "windows.json"
SEED = 7
COUNT = 100
SHORTEST, LONGEST = 10, 24
"""Steps of a window: enough to see a loop, few enough to be read by a person."""


@dataclass(frozen=True)
class Step:
    """One turn: what the model thought, what it did, and what it observed."""

    thought: str
    action: str
    observation: str


@dataclass(frozen=True)
class Run:
    """One attempt at one instance. name: folder of the submission and instance; exit: how SWE-agent says it ended."""

    name: str
    steps: Sequence[Step]
    exit: str
    resolved: bool

    @property
    def outcome(self) -> str:
        """`resolved`, `unresolved` (a patch was submitted of its own will), or `other` (cost, context, errors)."""
        if self.resolved:
            return "resolved"
        return "unresolved" if self.exit == "submitted" else "other"


@dataclass(frozen=True)
class Window:
    """Part of a run: `steps` of it from number `first` (0 is the run's first)."""

    run: str
    first: int
    steps: int


def read_runs(folder: Path) -> Iterator[Run]:
    """All runs below `evaluation/java/verified`, by name. Raises SystemExit where there are none."""
    found = sorted(folder.glob("*/trajs/**/*.traj"))
    if not found:
        raise SystemExit(f"no runs below {folder}: give the folder evaluation/java/verified of the clone")
    resolved: dict[Path, set[str]] = {}
    for path in found:
        submission = folder / path.relative_to(folder).parts[0]
        if submission not in resolved:
            results = json.loads((submission / "results" / "results.json").read_text())
            resolved[submission] = set(results["resolved"])
        recorded = json.loads(path.read_text())
        steps = [
            Step(each["thought"], each["action"], each["observation"]) for each in recorded["trajectory"]
        ]
        ended = str(recorded["info"].get("exit_status"))
        yield Run(f"{submission.name}/{path.stem}", steps, ended, path.stem in resolved[submission])


def choose_windows(runs: Sequence[Run]) -> list[Window]:
    """A hundred windows, by chance alone: every resolved run that is long enough, the rest half and half of the others."""
    rng = random.Random(SEED)
    long_enough = [run for run in runs if len(run.steps) >= SHORTEST]
    groups = {
        outcome: [run for run in long_enough if run.outcome == outcome]
        for outcome in ("resolved", "unresolved", "other")
    }
    chosen = list(groups["resolved"])
    for outcome, share in (("other", (COUNT - len(chosen)) // 2), ("unresolved", COUNT)):
        chosen += rng.sample(groups[outcome], min(share, COUNT - len(chosen)))
    windows = []
    for run in chosen:
        steps = min(len(run.steps), LONGEST)
        windows.append(Window(run.name, rng.randint(0, len(run.steps) - steps), steps))
    rng.shuffle(windows)
    return windows


def read_windows() -> list[Window]:
    """The windows that were labelled."""
    return [Window(**each) for each in json.loads(WINDOWS.read_text())]


def read_labels(number: int) -> list[int | None]:
    """The onset steps of pass 1 or 2, by window; None where there is no stall."""
    labels = json.loads((HERE / f"labels-{number}.json").read_text())
    return [labels[str(window)] for window in range(COUNT)]


def kappa(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Cohen's kappa: how far two readers agree beyond what chance would make of their rates; 1 is always."""
    total = len(first)
    agreed = sum(a == b for a, b in zip(first, second, strict=True)) / total
    yes, also = sum(first) / total, sum(second) / total
    chance = yes * also + (1 - yes) * (1 - also)
    return (agreed - chance) / (1 - chance)
