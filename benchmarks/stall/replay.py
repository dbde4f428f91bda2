"""Replay our stall detector and the peers' rules on recorded runs, and compare them with the labels.

    python -m benchmarks.stall.replay RUNS/evaluation/java/verified

`data.py` says how to get the runs. In a recorded run no model reacts to a detector. So a row counts the runs on which a
detector would have fired (for ours also those that it would have ended), not the effect on the runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import parser_of
from benchmarks.stall.data import Run, Window, read_labels, read_runs, read_windows
from benchmarks.stall.moves import moves
from benchmarks.stall.peers import PEERS, Detector, Move

from m3agent.agent.stall import QUIET, ObservedCall, StallDetector, Thresholds

NEAR = 2
"""Steps before or after a labelled onset within which an alarm counts as on time."""
Recorded = Sequence[tuple[Move, ObservedCall]]


@dataclass(frozen=True)
class Row:
    """One detector on all runs: for each run the steps on which it fires."""

    name: str
    alarms: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Score:
    """The comparison of a detector with one reader's labels.

    Attributes:
        found: Stalls with an alarm in their window that is at most `NEAR` steps before the onset.
        on_time: Those of them whose first alarm is within `NEAR` steps of the onset.
        stalls: All labelled stalls.
        delays: Steps from each onset to its alarm.
        false: Windows without a stall in which the detector fires.
        clear: All windows without a stall.
    """

    found: int
    on_time: int
    stalls: int
    delays: Sequence[int]
    false: int
    clear: int


def peer_alarms(recorded: Recorded, make: Callable[[], Detector]) -> list[int]:
    """Return the steps on which a peer's rules fire."""
    detector = make()
    return [at for at, (move, _) in enumerate(recorded) if detector.fires(move)]


def our_alarms(recorded: Recorded, thresholds: Thresholds, *, ends: bool = False) -> list[int]:
    """Return the steps on which our detector fires; with `ends`, those on which it would have ended the run."""
    detector = StallDetector(thresholds)
    alarms = []
    for at, (move, seen) in enumerate(recorded):
        verdicts = [
            detector.hear(move.thought),
            detector.answered(reasoning="", text=move.thought, calls=1, finish="tool_calls"),
            detector.see(seen),
        ]
        if any(verdict is not None and (not ends or verdict.action == "stop") for verdict in verdicts):
            alarms.append(at)
    return alarms


def score(names: Sequence[str], row: Row, windows: Sequence[Window], labels: Sequence[int | None]) -> Score:
    """Compare the alarms in each labelled window with its label."""
    by_run = dict(zip(names, row.alarms, strict=True))
    on_time = false = 0
    delays = []
    for window, onset in zip(windows, labels, strict=True):
        inside = [at for at in by_run[window.run] if window.first <= at < window.first + window.steps]
        if onset is None:
            false += bool(inside)
        elif later := [at for at in inside if at >= onset - NEAR]:
            delays.append(later[0] - onset)
            on_time += abs(inside[0] - onset) <= NEAR
    stalls = sum(onset is not None for onset in labels)
    return Score(len(delays), on_time, stalls, delays, false, len(labels) - stalls)


def table(runs: Sequence[Run], lengths: Sequence[int], rows: Sequence[Row]) -> str:
    """Return two tables in Markdown: by outcome of the runs, and compared with both readers' labels."""
    return "\n".join([*_by_outcome(runs, lengths, rows), "", *_by_label(runs, rows)])


def _by_outcome(runs: Sequence[Run], lengths: Sequence[int], rows: Sequence[Row]) -> Iterator[str]:
    outcomes = ("other", "unresolved", "resolved")
    totals = [sum(run.outcome == outcome for run in runs) for outcome in outcomes]
    heads = " | ".join(f"{outcome} ({total})" for outcome, total in zip(outcomes, totals, strict=True))
    yield f"| Detector | {heads} | steps after the first alarm |"
    yield "|-|-|-|-|-|"
    for row in rows:
        hit = [
            sum(bool(at) for run, at in zip(runs, row.alarms, strict=True) if run.outcome == outcome)
            for outcome in outcomes
        ]
        saved = sum(length - at[0] - 1 for length, at in zip(lengths, row.alarms, strict=True) if at)
        yield f"| {row.name} | {' | '.join(map(str, hit))} | {saved:,} |"


def _by_label(runs: Sequence[Run], rows: Sequence[Row]) -> Iterator[str]:
    yield f"| Detector | found | within ±{NEAR} | median delay | false alarms |"
    yield "|-|-|-|-|-|"
    windows, names = read_windows(), [run.name for run in runs]
    for row in rows:
        both = [score(names, row, windows, read_labels(number)) for number in (1, 2)]
        cells = (
            " / ".join(f"{each.found} of {each.stalls}" for each in both),
            " / ".join(str(each.on_time) for each in both),
            " / ".join(f"{statistics.median(each.delays):g}" if each.delays else "-" for each in both),
            " / ".join(f"{each.false} of {each.clear}" for each in both),
        )
        yield f"| {row.name} | {' | '.join(cells)} |"


def main() -> None:
    """Read the runs, replay everything, print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("runs", type=Path, help="evaluation/java/verified of the clone")
    runs = list(read_runs(parser.parse_args().runs))
    recorded = [list(moves(run.steps)) for run in runs]
    rows = [Row(name, [peer_alarms(each, make) for each in recorded]) for name, make in PEERS.items()]
    for name, thresholds in (("m3agent, default", Thresholds()), ("m3agent, quiet", QUIET)):
        rows.append(Row(name, [our_alarms(each, thresholds) for each in recorded]))
        rows.append(Row(f"{name}, ends", [our_alarms(each, thresholds, ends=True) for each in recorded]))
    print(table(runs, [len(each) for each in recorded], rows))


if __name__ == "__main__":
    main()
