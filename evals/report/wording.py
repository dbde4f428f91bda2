"""Format the numbers of a report for people; the table and the page use the same texts."""

from __future__ import annotations

from collections.abc import Callable

from m3agent.agent.report.text import UNKNOWN, count, share
from m3agent.evals.report.counting import Amount, UsageSummary
from m3agent.evals.report.model import RunComparison, RunReport, Score
from m3agent.evals.report.statistics import CONFIDENCE, Interval
from m3agent.util.counted import counted

Shown = Callable[[float | None], str]
"""Formats a number, or None for an unknown one."""

LEVEL = f"{CONFIDENCE:.0%}"


def interval(value: Interval | None) -> str:
    """Format an interval: `13.8% to 60.9%`."""
    return "not defined" if value is None else f"{share(value.low)} to {share(value.high)}"


def rate(score: Score) -> str:
    """Format a rate: `33.3%`, or a range from the worst to the best case if attempts are missing."""
    if score.worst is None or score.best is None:
        return UNKNOWN
    low, high = score.worst.value, score.best.value
    return share(low) if score.missing == 0 else f"{share(low)} to {share(high)}"


def wilson_of(score: Score) -> str:
    """Format Wilson's interval of a score; it spans the worst and the best case if attempts are missing."""
    if score.worst is None or score.best is None:
        return UNKNOWN
    return interval(Interval(score.worst.wilson.low, score.best.wilson.high))


def clustered_of(score: Score) -> str:
    """Format the interval by repository of a score, or say why it is not defined.

    If attempts are missing, it spans the worst and the best case.
    """
    if score.worst is None or score.best is None:
        return UNKNOWN
    low, high = score.worst.clustered, score.best.clustered
    if low is not None and high is not None:
        return interval(Interval(low.low, high.high))
    if score.worst.clusters < 2:
        return f"{interval(None)}: there is only one repository"
    case = ", in the worst or the best case" if score.missing else ""
    return f"{interval(None)}: all repositories have the same rate{case}"


def difference(value: float) -> str:
    """Format a difference of two rates in percentage points: `+8.3`."""
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # adding 0.0 turns -0.0 into 0.0


def points(value: Interval | None) -> str:
    """Format an interval in percentage points: `-4.0 to +12.5`."""
    return "not defined" if value is None else f"{difference(value.low)} to {difference(value.high)}"


def chance(p: float | None) -> str:
    """Format a p value with two significant digits: `p = 0.031`."""
    return "not defined" if p is None else "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"


def size_of(report: RunReport) -> str:
    """Format the size of a run: `12 instances of 10 repositories`."""
    instances = counted(len(report.repos), "instance")
    return f"{instances} of {counted(len(report.repositories), 'repository', 'repositories')}"


def resolved_of(score: Score) -> str:
    """Format the number of resolved attempts: `4 of 12 attempts`."""
    return f"{count(score.resolved)} of {counted(score.attempts, 'attempt')}"


def least(shown: str, amount: Amount) -> str:
    """Return the amount `shown`, marked as a lower bound if it is unknown for some attempts."""
    return f"at least {shown}" if amount.unknown else shown


def phases(used: UsageSummary) -> list[tuple[str, Amount]]:
    """Return the names of the phases with their seconds."""
    return [
        ("environment", used.environment_seconds),
        ("agent", used.agent_seconds),
        ("grading", used.grade_seconds),
        ("tests of the grading", used.test_seconds),
    ]


def other_run(comparison: RunComparison) -> str:
    """Return the folder of the other run and its agent. The text is as untrusted as the run."""
    agent = comparison.agents[1]
    return f"{comparison.other} ({agent})" if comparison.other else agent


def not_compared(comparison: RunComparison) -> str:
    """Return which instances of the two runs are not compared, in parentheses; empty if all are compared."""
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


def missing_of(report: RunReport) -> str:
    """Return the start of a sentence about missing attempts.

    Example: `3 of 12 attempts have no result, 1 of them because the machine or the model server failed`.
    """
    total = len(report.repos) * report.config.attempts
    infra = sum(1 for result in report.results if result.verdict == "infra")
    why = f", {infra} of them because the machine or the model server failed" if infra else ""
    have = "has" if len(report.missing) == 1 else "have"
    return f"{len(report.missing):,} of {total:,} attempts {have} no result{why}"
