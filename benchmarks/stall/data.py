"""Recorded agent runs to replay stall detectors on: multi-swe-bench/experiments, Java, verified.

The runs belong to others, so they are not part of this repository. To get them:

    git clone --depth 1 https://github.com/multi-swe-bench/experiments RUNS

Then pass `RUNS/evaluation/java/verified` to the scripts here: 448 runs of SWE-agent with five models (76 MB).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WINDOWS = HERE / "windows.json"
COUNT = 100


@dataclass(frozen=True)
class Step:
    """One turn: what the model thought, what it did, and what it observed."""

    thought: str
    action: str
    observation: str


@dataclass(frozen=True)
class Run:
    """One attempt at one instance.

    Attributes:
        name: Folder of the submission, and the instance.
        steps: Its turns.
        exit: How it ended, in SWE-agent's words.
        resolved: Whether its patch resolved the instance.
    """

    name: str
    steps: Sequence[Step]
    exit: str
    resolved: bool

    @property
    def outcome(self) -> str:
        """`resolved`, `unresolved` (the model submitted a patch), or `other` (cost, context, errors)."""
        if self.resolved:
            return "resolved"
        return "unresolved" if self.exit == "submitted" else "other"


@dataclass(frozen=True)
class Window:
    """A part of a run: `steps` steps, from the step with index `first`."""

    run: str
    first: int
    steps: int


def read_runs(folder: Path) -> Iterator[Run]:
    """Yield all runs below `evaluation/java/verified`, sorted by path. Raises SystemExit if there are no runs."""
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


def read_windows() -> list[Window]:
    """Return the labelled windows."""
    return [Window(**each) for each in json.loads(WINDOWS.read_text())]


def read_labels(number: int) -> list[int | None]:
    """Return the step at which the stall begins, by window, as reader 1 or 2 labelled it; None without a stall."""
    labels = json.loads((HERE / f"labels-{number}.json").read_text())
    return [labels[str(window)] for window in range(COUNT)]
