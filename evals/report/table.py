"""A run's report as a table on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from m3agent.agent.report.text import UNKNOWN, count, duration, price, share
from m3agent.evals.data.results import Verdict
from m3agent.evals.report import wording
from m3agent.evals.report.counting import Amount, UsageSummary
from m3agent.evals.report.model import RunComparison, RunReport, Score
from m3agent.util.counted import counted, first_of
from m3agent.util.sanitize import printable_line
from m3agent.util.table import fitting, wrapped, wrapping

MOST_FAILURES = 200
"""Most unresolved attempts that are listed below the numbers."""

MOST_IDS = 20
"""Most ids in one line."""


def table(report: RunReport, comparison: RunComparison | None = None, width: int = 0) -> str:
    """Return the report as text for people, without characters that could control a terminal.

    Args:
        width: Columns of the terminal; 0 for no terminal.
    """
    repositories, left_out = fitting(
        [("REPOSITORY", "RESOLVED", "ATTEMPTS", "RATE", "WILSON", "INVALID", "COST"), *_rows(report)],
        width,
        ("INVALID", "WILSON", "COST", "RATE"),
    )
    if left_out:
        repositories += f"too narrow for {', '.join(left_out)}: --json has them\n"
    blocks = [
        _head(report, width),
        wrapping([*_rates(report), *_amounts(report.used, has_tokens=not _is_embedded(report))], width),
        repositories,
    ]
    if comparison is not None:
        blocks.append(compared(comparison, width))
    failures = [result for result in report.results if result.verdict is not Verdict.RESOLVED]
    if failures:
        rows = [("NOT RESOLVED", "VERDICT", "REASON")]
        rows += [
            (
                printable_line(report.config.label(result.instance_id, result.attempt), 60),
                str(result.verdict),
                printable_line(result.reason, 120),
            )
            for result in failures[:MOST_FAILURES]
        ]
        more = len(failures) - MOST_FAILURES
        blocks.append(wrapping(rows, width) + (f"and {more:,} more\n" if more > 0 else ""))
    return "\n".join(blocks)


def _head(report: RunReport, width: int) -> str:
    attempts = report.config.attempts
    each = counted(attempts, "attempt")
    agent = printable_line(report.config.agent) + (", engine embedded" if _is_embedded(report) else "")
    lines = [f"{agent}: {wording.size_of(report)}, {each} at each"]
    if not report.complete:
        lines.append(
            f"INCOMPLETE: {wording.missing_of(report)}. Rates are ranges: those attempts all failed, to all resolved."
        )
    lines += [f"note: {printable_line(note, 500)}" for note in report.notes]
    return "".join(f"{part}\n" for line in lines for part in wrapped(line, width))


def _rates(report: RunReport) -> Iterable[tuple[str, str]]:
    yield from _score("resolved", report.score)
    if report.invalid:
        yield "invalid, left out", f"{len(report.invalid):,}{_ids(report.invalid)}"
        yield from _score("resolved, invalid ones as not resolved", report.over_all)
    for row in report.pass_k:
        yield f"pass@{row.k}", f"{share(row.one.value)} (Wilson {wording.interval(row.one.wilson)})"
        yield f"pass^{row.k}", f"{share(row.all_of.value)} (Wilson {wording.interval(row.all_of.wilson)})"
    counts = ", ".join(f"{number:,} {verdict}" for verdict, number in report.verdicts.items() if number)
    yield "attempts by verdict", counts or "none"
    if (agreement := report.agreement) is not None:
        agree = agreement.both + agreement.neither
        yield "official rules", f"agree on {agree:,}; unknown for {agreement.unknown:,}"
        yield (
            "resolved only by m3agent's rules",
            f"{len(agreement.only_strict):,}{_ids(agreement.only_strict)}",
        )
        yield (
            "resolved only by the official rules",
            f"{len(agreement.only_official):,}{_ids(agreement.only_official)}",
        )
    for name, ids in (
        ("patches with paths put back", report.undone),
        ("tampering noticed", report.forged),
        ("patches that need review", report.review),
    ):
        if ids:
            yield name, f"{len(ids):,}{_ids(ids)}"


def _score(name: str, score: Score) -> Iterable[tuple[str, str]]:
    instances = counted(score.instances, "instance")
    yield name, f"{wording.rate(score)} of {instances} ({wording.resolved_of(score)})"
    yield f"  {wording.LEVEL} interval, Wilson", wording.wilson_of(score)
    yield f"  {wording.LEVEL} interval, by repository", wording.clustered_of(score)


def _is_embedded(report: RunReport) -> bool:
    """Return whether the engine `embedded` made the attempts, which is no language model."""
    return report.config.settings.get("engine") == "embedded"


def _amounts(used: UsageSummary, *, has_tokens: bool) -> Iterable[tuple[str, str]]:
    if has_tokens:
        yield "cost", _amount(used.cost, price)
        yield "tokens", _amount(used.tokens, count)
        yield "  prompt", _amount(used.prompt_tokens, count)
        yield "  completion", _amount(used.completion_tokens, count)
        unknown = f" (unknown for {counted(used.cache.unknown, 'attempt')})" if used.cache.unknown else ""
        yield "prompt from the server's cache", f"{share(used.cache.share)}{unknown}"
    yield "turns", _amount(used.turns, count)
    yield "stalls", _stalls(used)
    yield "time", _amount(used.seconds, duration)
    for name, amount in wording.phases(used):
        yield f"  {name}", _amount(amount, duration)


def _amount(amount: Amount, shown_as: wording.Shown) -> str:
    if amount.total is None:
        return UNKNOWN
    parts = [f"{wording.least(shown_as(amount.total), amount)} in all", f"{shown_as(amount.median)} median"]
    if amount.per_resolved is not None:
        parts.append(f"{wording.least(shown_as(amount.per_resolved), amount)} per resolved")
    unknown = f" (unknown for {counted(amount.unknown, 'attempt')})" if amount.unknown else ""
    return ", ".join(parts) + unknown


def _stalls(used: UsageSummary) -> str:
    stalls = used.stalls
    if not stalls.known:
        return UNKNOWN
    kinds = "".join(
        f"; {printable_line(kind, 60)} {times:,} in {attempts:,}"
        for kind, (times, attempts) in stalls.kinds.items()
    )
    return f"{stalls.attempts:,} of {stalls.known:,} attempts{kinds}"


def _rows(report: RunReport) -> Iterable[tuple[str, ...]]:
    for repository in report.repositories:
        score = repository.score
        cost = repository.used.cost
        yield (
            printable_line(repository.name, 50),
            count(score.resolved),
            count(score.attempts),
            wording.rate(score),
            wording.wilson_of(score),
            count(repository.invalid),
            UNKNOWN if cost.total is None else wording.least(price(cost.total), cost),
        )


def compared(comparison: RunComparison, width: int = 0) -> str:
    """The comparison's lines, for a terminal of `width` columns if it is not 0."""
    notes = (wrapped(f"note: {printable_line(note, 500)}", width) for note in comparison.notes)
    lines = [f"{line}\n" for note in notes for line in note]
    rows = [
        ("compared with", printable_line(wording.other_run(comparison))),
        ("instances that both have", f"{count(comparison.instances)}{wording.not_compared(comparison)}"),
    ]
    if comparison.paired is not None and comparison.rates is not None:
        test = comparison.paired
        rows += [
            ("resolved, this and the other", " and ".join(map(share, comparison.rates))),
            ("difference", f"{wording.difference(test.difference)} points"),
            (f"  {wording.LEVEL} interval, {test.method}", wording.points(test.interval)),
            (f"  {wording.LEVEL} interval, by repository", wording.points(test.clustered)),
            (test.test, wording.chance(test.p)),
        ]
        rows += [
            (name, f"{len(ids):,}{_ids(ids)}")
            for name, ids in (("won", comparison.won), ("lost", comparison.lost))
        ]
        costs = (price(used.cost.total) for used in comparison.used)
        rows.append(("cost, this and the other", " and ".join(costs)))
    return "".join(lines) + wrapping(rows, width)


def _ids(ids: tuple[str, ...]) -> str:
    """`: a, b`, and how many more there are."""
    if not ids:
        return ""
    return f": {printable_line(first_of(ids, MOST_IDS), 2000)}"
