"""Render the reports of sessions as one HTML page."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from m3agent.agent.report.model import SessionReport
from m3agent.agent.report.plot import legend, plot
from m3agent.agent.report.template import page_environment
from m3agent.agent.session.catalog import NOT_FINISHED
from m3agent.agent.session.log_reader import LOG
from m3agent.util.errors import Status

_LINK = re.compile(r"https://[A-Za-z0-9.-]+(?::\d+)?/[A-Za-z0-9._~/#?=&%+-]*")

TONES: dict[str, str] = {
    Status.VERIFIED: "good",
    Status.ANSWERED: "good",
    Status.UNVERIFIED: "warn",
    Status.EMPTY: "warn",
    Status.LIMIT: "warn",
    Status.PROPOSED: "warn",
    Status.STALLED: "warn",
    Status.INTERRUPTED: "warn",
    NOT_FINISHED: "warn",
}
"""Tone (colour) of a status; all other statuses are failures and get the tone `bad`."""

ORDER = (
    Status.ERROR,
    Status.FAILED,
    Status.STALLED,
    Status.LIMIT,
    Status.PROPOSED,
    Status.INTERRUPTED,
    NOT_FINISHED,
    Status.EMPTY,
    Status.UNVERIFIED,
    Status.ANSWERED,
    Status.VERIFIED,
)
"""Order of several sessions: those that need attention come first."""


SHORT = 100
"""Most characters of an argument that shares a line with others; it must not contain line breaks."""


@dataclass(frozen=True)
class Drawing:
    """The plot of a session with its legend."""

    svg: Markup
    legend: list[tuple[str, str]]


def render(reports: Sequence[SessionReport]) -> str:
    """Render one HTML page, which UTF-8 can always encode. Several sessions are sorted, failures first."""
    several = len(reports) > 1
    ordered = sorted(reports, key=lambda report: report.id, reverse=True)
    ordered.sort(key=lambda report: ORDER.index(report.status) if report.status in ORDER else 0)
    anchored = [(report, f"s{index}-" if several else "") for index, report in enumerate(ordered, 1)]
    return _template().render(
        reports=anchored,
        title=f"{len(reports)} sessions"
        if several
        else f"{reports[0].shown_status}: {reports[0].title or reports[0].id}",
    )


@functools.cache
def _template() -> Template:
    environment = page_environment()
    environment.filters |= {
        "tone": lambda status: TONES.get(status, "bad"),
        "by_length": _by_length,
        "safe_link": _safe_link,
        "drawing": _drawing,
    }
    environment.globals |= {"log_name": LOG}
    return environment.get_template("page.html.jinja")


def _drawing(report: SessionReport, prefix: str) -> Drawing:
    tokens = [dataclasses.replace(turn.tokens, anchor=prefix + turn.anchor) for turn in report.turns]
    return Drawing(plot(tokens), legend(tokens))


def _by_length(arguments: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Split a call's arguments into short ones, which share a line, and long ones; non-strings are shown as JSON."""
    parts: dict[str, list[tuple[str, str]]] = {"short": [], "long": []}
    for name, value in arguments.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        parts["long" if len(shown) > SHORT or "\n" in shown else "short"].append((name, shown))
    return parts


def _safe_link(source: str) -> str:
    """Return the address if it is a plain https address that is safe in a link; else an empty string."""
    return source if _LINK.fullmatch(source) and len(source) < 500 else ""
