"""Render a run's report as an HTML page."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jinja2 import Template
from markupsafe import Markup

from m3agent.agent.report.patch import FilePatch, parse_patch
from m3agent.agent.report.template import page_environment
from m3agent.agent.report.text import duration, price, short_count
from m3agent.evals.data.results import FAILED, AttemptRecord, Verdict
from m3agent.evals.data.run_folder import PATCH, RunFolder, config_hash
from m3agent.evals.report import wording
from m3agent.evals.report.compare import RunComparison
from m3agent.evals.report.counting import Attempt
from m3agent.evals.report.model import RunReport
from m3agent.evals.report.plots import MOST_ROWS, STACK, histogram, verdict_bars
from m3agent.evals.report.sessions import SessionPage
from m3agent.evals.report.usage import seconds_of, tokens_of

MOST_PATCH = 6_000
"""Largest number of characters of a patch on the page; only the beginning of a longer one is shown."""

MOST_FAILED = 30
"""Largest number of failed tests that are listed for an attempt."""

TONES: dict[Verdict, str] = {Verdict.RESOLVED: "good"} | dict.fromkeys(FAILED, "bad")
"""Colour class of a verdict; verdicts that say nothing about the agent have none."""


@dataclass(frozen=True)
class AttemptRow:
    """An attempt on the page."""

    result: AttemptRecord
    label: str
    """Its name."""
    link: str
    """Address of its session's page; empty if there is none."""
    problem: str
    """Why its session has no page; empty otherwise."""
    patch: list[FilePatch]
    """The beginning of its patch."""
    patch_cut: int
    """Number of characters that are cut off."""
    patch_file: str
    """Path of its patch, relative to the run's folder."""


def rows(run: RunFolder, report: RunReport, sessions: Mapping[Attempt, SessionPage]) -> list[AttemptRow]:
    """Return a row for each attempt with a result, failures first; the patches are read from the disk."""
    found: list[AttemptRow] = []
    for result in report.results:
        session = sessions.get((result.instance_id, result.attempt), SessionPage())
        file = run.attempt(result.instance_id, result.attempt) / PATCH
        patch = _text(file)
        found.append(
            AttemptRow(
                result=result,
                label=report.label(result.instance_id, result.attempt),
                link=quote(session.link),
                problem=session.problem,
                patch=parse_patch(patch[:MOST_PATCH]) if patch.strip() else [],
                patch_cut=max(0, len(patch) - MOST_PATCH),
                patch_file=file.relative_to(run.path).as_posix(),
            )
        )
    return found


def _text(file: Path) -> str:
    """Return a patch as text; empty if the file cannot be read."""
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def render(report: RunReport, attempts: Sequence[AttemptRow], comparison: RunComparison | None = None) -> str:
    """Return a self-contained HTML page that is always valid UTF-8 when encoded."""
    return _template().render(
        report=report,
        rows=attempts,
        comparison=comparison,
        title=f"{'' if report.complete else 'incomplete: '}{wording.rate(report.score)} resolved: {report.config.agent}",
        hash=config_hash(report.config),
    )


@functools.cache
def _template() -> Template:
    environment = page_environment(Path(__file__).parent)
    environment.filters |= {
        "tone": lambda verdict: TONES.get(verdict, "plain"),
        "tokens_of": tokens_of,
        "seconds_of": seconds_of,
        "bars": _bars,
        "spread": _spread,
    }
    environment.globals |= {
        "wording": wording,
        "stack": STACK,
        "most_failed": MOST_FAILED,
        "most_rows": MOST_ROWS,
        "most_patch": MOST_PATCH,
    }
    return environment.get_template("run.html.jinja")


def _bars(report: RunReport) -> Markup:
    return verdict_bars([(repository.name, repository.verdicts) for repository in report.repositories])


def _spread(report: RunReport) -> list[Markup]:
    """Return the histograms of the known amounts of the counting attempts."""
    left_out = set(report.invalid)
    counted = [r for r in report.results if r.verdict is not Verdict.INFRA and r.instance_id not in left_out]

    def drawn(
        title: str,
        amount: Callable[[AttemptRecord], float | None],
        tick: Callable[[float], str],
        smallest: float,
    ) -> Markup:
        resolved, others = (
            [
                value
                for result in counted
                if (result.verdict is Verdict.RESOLVED) is good and (value := amount(result)) is not None
            ]
            for good in (True, False)
        )
        return histogram(title, resolved, others, tick, smallest=smallest)

    every = (
        drawn("tokens (prompt and completion)", tokens_of, short_count, 1),
        drawn("cost", lambda result: result.usage.cost, price, 0.0001),
        drawn("time", seconds_of, duration, 0.1),
    )
    return [svg for svg in every if svg]
