"""Numbers of a report as people read them; the table and the page say them the same."""

from __future__ import annotations

from collections.abc import Callable

from m3agent.agent.report.text import UNKNOWN, count, share
from m3agent.evals.report.amounts import Amount, Used
from m3agent.evals.report.compare import Comparison
from m3agent.evals.report.model import Report, Score
from m3agent.evals.report.statistics import CONFIDENCE, Interval

Shown = Callable[[float | None], str]
"""How a number is written, also an unknown one."""

LEVEL = f"{CONFIDENCE:.0%}"


def interval(value: Interval | None) -> str:
    """`13.8% to 60.9%`."""
    return "not defined" if value is None else f"{share(value.low)} to {share(value.high)}"


def rate(score: Score) -> str:
    """`33.3%`, or from the worst to the best where attempts are missing."""
    if score.worst is None or score.best is None:
        return UNKNOWN
    low, high = score.worst.value, score.best.value
    return share(low) if score.missing == 0 else f"{share(low)} to {share(high)}"


def wilson_of(score: Score) -> str:
    """Wilson's interval of a score: where attempts are missing, from the worst one's low to the best one's high end."""
    if score.worst is None or score.best is None:
        return UNKNOWN
    return interval(Interval(score.worst.wilson.low, score.best.wilson.high))


def clustered_of(score: Score) -> str:
    """The same of the interval by repository."""
    if score.worst is None or score.best is None:
        return UNKNOWN
    low, high = score.worst.clustered, score.best.clustered
    return interval(None if low is None or high is None else Interval(low.low, high.high))


def difference(value: float) -> str:
    """A difference of two rates in percentage points: `+8.3`."""
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # 0.0 takes the sign from what is rounded to nothing


def points(value: Interval | None) -> str:
    """`-4.0 to +12.5`, percentage points."""
    return "not defined" if value is None else f"{difference(value.low)} to {difference(value.high)}"


def chance(p: float | None) -> str:
    """`p = 0.031`, two digits that mean something."""
    return "not defined" if p is None else "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"


def counted(number: int, one: str, several: str) -> str:
    """`1 instance`, `12 instances`."""
    return f"{count(number)} {one if number == 1 else several}"


def size_of(report: Report) -> str:
    """`12 instances of 10 repositories`."""
    instances = counted(len(report.repos), "instance", "instances")
    return f"{instances} of {counted(len(report.repositories), 'repository', 'repositories')}"


def resolved_of(score: Score) -> str:
    """`4 of 12`."""
    return f"{count(score.resolved)} of {count(score.attempts)}"


def least(shown: str, amount: Amount) -> str:
    """An amount as `shown`, said to be the least where some attempts do not know it."""
    return f"at least {shown}" if amount.unknown else shown


def phases(used: Used) -> list[tuple[str, Amount]]:
    """The phases of attempts with their seconds."""
    return [
        ("environment", used.environment_seconds),
        ("agent", used.agent_seconds),
        ("grading", used.grade_seconds),
        ("tests of the grading", used.test_seconds),
    ]


def not_compared(comparison: Comparison) -> str:
    """What of the two runs is not compared, in parentheses; empty where all is."""
    parts = [
        f"{len(ids):,} {what}"
        for ids, what in (
            (comparison.only_here, "are in this run only"),
            (comparison.only_there, "in the other only"),
            (comparison.left_out, "invalid or incomplete in one of them"),
        )
        if ids
    ]
    return f" ({'; '.join(parts)})" if parts else ""


def missing_of(report: Report) -> str:
    """What is missing, as the beginning of a sentence: `3 of 12 attempts have no result (1 kept from one by ...)`."""
    total = len(report.repos) * report.config.attempts
    infra = sum(1 for result in report.results if result.verdict == "infra")
    why = f", {infra} of them because the machine or the model server failed" if infra else ""
    have = "has" if len(report.missing) == 1 else "have"
    return f"{len(report.missing):,} of {total:,} attempts {have} no result{why}"
