"""Render a run's report as an HTML page, with a page of each session beside it.

Its plots are inline SVG: the verdicts by repository, and histograms of tokens, money and time.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jinja2 import Template
from markupsafe import Markup, escape

from m3agent.agent.report.page import render as render_session
from m3agent.agent.report.patch import FilePatch, parse_patch
from m3agent.agent.report.plot import LEFT, RIGHT, WIDTH, Axis, round_step
from m3agent.agent.report.reader import report_of
from m3agent.agent.report.template import page_environment
from m3agent.agent.report.text import duration, one_line, plain, price, short_count
from m3agent.agent.report.write import write_page
from m3agent.agent.session.log_reader import LOG, read_log
from m3agent.evals.data.results import FAILED, Attempt, AttemptRecord, Verdict
from m3agent.evals.data.run_folder import PATCH, RunFolder, config_hash
from m3agent.evals.report import wording
from m3agent.evals.report.counting import seconds_of, tokens_of
from m3agent.evals.report.model import RunComparison, RunReport
from m3agent.util.errors import M3AgentError, UsageError

MOST_PATCH = 6_000
"""Largest number of characters of a patch on the page; only the beginning of a longer one is shown."""

MOST_FAILED = 30
"""Largest number of failed tests that are listed for an attempt."""

REPORTS = Path(__file__).parent
"""Folder of the templates of runs and cards, and of their style."""
_SAY_EVERY = 2.0  # seconds
TONES: dict[Verdict, str] = {Verdict.RESOLVED: "good"} | dict.fromkeys(FAILED, "bad")
"""Colour class of a verdict; verdicts that say nothing about the agent have none."""
MOST_ROWS = 40
"""Largest number of repositories in the plot; the table lists all."""

STACK = (
    Verdict.RESOLVED,
    Verdict.UNRESOLVED,
    Verdict.EMPTY,
    Verdict.TIMEOUT,
    Verdict.ERROR,
    Verdict.INFRA,
    Verdict.INVALID,
)
"""Order of the verdicts, from left to right. The name of a verdict is its CSS class."""

_NAMES = 210  # width of the repositories' names
_ROW, _BAR = 24, 16
_TOP, _BOTTOM = 40, 170  # of a histogram's panel
_BINS = 14  # about the largest number of bins


@dataclass(frozen=True)
class SessionPage:
    """A session's page: its address relative to the report's, or the reason why it is missing."""

    link: str = ""
    problem: str = ""


@dataclass(frozen=True)
class AttemptRow:
    """An attempt on the page."""

    result: AttemptRecord
    label: str
    session: SessionPage
    patch: list[FilePatch]
    """The beginning of its patch."""
    patch_cut: int
    """Number of characters that are cut off."""
    patch_file: str
    """Path of its patch, relative to the run's folder."""


def rows(run: RunFolder, report: RunReport, sessions: Mapping[Attempt, SessionPage]) -> list[AttemptRow]:
    """Return a row for each attempt with a result, failures first; the patches are read from the disk."""
    made: list[AttemptRow] = []
    for result in report.results:
        session = sessions.get((result.instance_id, result.attempt), SessionPage())
        file = run.attempt(result.instance_id, result.attempt) / PATCH
        patch = _text(file)
        made.append(
            AttemptRow(
                result=result,
                label=report.config.label(result.instance_id, result.attempt),
                session=session,
                patch=parse_patch(patch[:MOST_PATCH]) if patch.strip() else [],
                patch_cut=max(0, len(patch) - MOST_PATCH),
                patch_file=file.relative_to(run.path).as_posix(),
            )
        )
    return made


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
    environment = page_environment(REPORTS)
    environment.filters |= {
        "tone": lambda verdict: TONES.get(verdict, "plain"),
        "tokens_of": tokens_of,
        "seconds_of": seconds_of,
        "bars": lambda report: verdict_bars([(one.name, one.verdicts) for one in report.repositories]),
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


def _spread(report: RunReport) -> list[Markup]:
    """Return the histograms of the known amounts of the counting attempts."""

    def drawn(
        title: str,
        amount: Callable[[AttemptRecord], float | None],
        tick: Callable[[float], str],
        smallest: float,
    ) -> Markup:
        resolved, others = (
            [
                value
                for result in report.counting
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


def folder_of(page: Path) -> Path:
    """Return the folder of a report's session pages: `report_files` for `report.html`."""
    return page.with_name(f"{page.stem}_files")


def write_sessions(
    run: RunFolder, report: RunReport, page: Path, say: Callable[[str], None]
) -> dict[Attempt, SessionPage]:
    """Write a page for each attempt with a session log.

    An unreadable log is reported in the result and stops nothing.

    Raises:
        UsageError: The folder's path is taken by something else.
        EnvironmentFault: A page cannot be written.
    """
    logged = [(result, result.session) for result in report.results if result.session is not None]
    if not logged:
        return {}
    folder = folder_of(page)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is for the sessions' pages, and it is not a folder: name another page")
    pages: dict[Attempt, SessionPage] = {}
    told_at = time.monotonic()
    for number, (result, session) in enumerate(logged, 1):
        pages[result.instance_id, result.attempt] = _write_one(run, result, session, folder)
        if time.monotonic() - told_at > _SAY_EVERY:
            told_at = time.monotonic()
            say(f"{number:,} of {len(logged):,} sessions' pages are written")
    return pages


def _write_one(run: RunFolder, result: AttemptRecord, session: str, folder: Path) -> SessionPage:
    root = run.path.resolve()
    source = (root / session).resolve()
    if not source.is_relative_to(root):  # the run may come from another person
        return SessionPage(problem="the session is outside the run's folder: ignored")
    if not (source / LOG).is_file():
        return SessionPage(problem="the session's log does not exist")
    try:
        shown = render_session([report_of(read_log(source / LOG), source)])
    except M3AgentError as error:
        return SessionPage(problem=str(error))
    name = f"{result.instance_id}-{result.attempt}.html"
    folder.mkdir(exist_ok=True)
    write_page(folder / name, shown.encode())
    return SessionPage(link=quote(f"{folder.name}/{name}"))


def verdict_bars(rows: Sequence[tuple[str, Mapping[Verdict, int]]]) -> Markup:
    """Return a plot with a bar of verdicts for each repository; empty if there are no attempts."""
    drawn = [(name, counts) for name, counts in rows if sum(counts.values())][:MOST_ROWS]
    if not drawn:
        return Markup("")
    scale = (WIDTH - _NAMES - RIGHT - 40) / max(sum(counts.values()) for _, counts in drawn)
    height = len(drawn) * _ROW + 4
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Verdicts of each repository">'
    ]
    for index, (name, counts) in enumerate(drawn):
        y = index * _ROW + (_ROW - _BAR) / 2
        label = escape(plain(one_line(name, 32)))
        parts += [f'<text x="{_NAMES - 8}" y="{y + 12:.1f}" text-anchor="end">{label}</text>']
        x = float(_NAMES)
        for verdict in STACK:
            if count := counts.get(verdict, 0):
                told = escape(f"{plain(one_line(name, 200))}: {count:,} {verdict}")
                place = f'x="{x:.1f}" y="{y:.1f}" width="{count * scale:.1f}" height="{_BAR}"'
                parts += [f'<rect class="{verdict}" {place}><title>{told}</title></rect>']
                x += count * scale
        parts += [f'<text x="{x + 6:.1f}" y="{y + 12:.1f}">{sum(counts.values()):,}</text>']
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  # numbers, and texts escaped above


def histogram(
    title: str,
    resolved: Sequence[float],
    others: Sequence[float],
    tick: Callable[[float], str],
    *,
    smallest: float = 1,
) -> Markup:
    """Return a histogram of an amount per attempt; empty if there are no values.

    Attempts that resolved their instance are drawn below the others.

    Args:
        smallest: Smallest width of a bin. A value on an edge belongs to the bin above it.
    """
    values = [*resolved, *others]
    if not values:
        return Markup("")
    width = round_step(max(values) / _BINS, smallest)
    bins = int(max(values) / width) + 1
    good, bad = _counts(resolved, width, bins), _counts(others, width, bins)
    axis = Axis(max(a + b for a, b in zip(good, bad, strict=True)), _TOP, _BOTTOM)
    slot = (WIDTH - LEFT - RIGHT) / bins
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {_BOTTOM + 36}" role="img" aria-label="{escape(title)} of each attempt">',
        *axis.drawn(f"attempts by {escape(title)}"),
    ]
    for index, (below, above) in enumerate(zip(good, bad, strict=True)):
        if below + above:
            span = f"{tick(index * width)} to {tick((index + 1) * width)}"
            told = escape(f"{span}: {below:,} resolved, {above:,} not")
            middle = LEFT + slot * (index + 0.5)
            parts += [f"<g><title>{told}</title>"]
            parts += axis.bar(Verdict.RESOLVED, middle, slot * 0.86, 0, below)
            parts += axis.bar(Verdict.UNRESOLVED, middle, slot * 0.86, below, below + above)
            parts += ["</g>"]
    every = 1 if bins <= 8 else 2
    for edge in range(0, bins + 1, every):
        parts += [
            f'<text x="{LEFT + slot * edge:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{escape(tick(edge * width))}</text>'
        ]
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  # numbers, and texts escaped above


def _counts(values: Sequence[float], width: float, bins: int) -> list[int]:
    counts = [0] * bins
    for value in values:
        counts[min(int(value / width), bins - 1)] += 1
    return counts
