"""Draw a card as one self-contained HTML page, and as JSON."""

from __future__ import annotations

import functools
import json
import shlex
from dataclasses import asdict

from jinja2 import Template

from m3agent.agent.report.template import page_environment
from m3agent.agent.report.text import UNKNOWN
from m3agent.evals.card.model import BLAME, FORMAT, CardReport
from m3agent.evals.report import wording
from m3agent.evals.report.page import REPORTS, TONES
from m3agent.util.counted import counted


def as_json(card: CardReport) -> bytes:
    """Return a card as JSON."""
    return json.dumps({"format": FORMAT, **asdict(card)}, indent=2, default=str).encode() + b"\n"


def render(card: CardReport, *, refresh: int = 0) -> str:
    """Return a card as a page."""
    names = ", ".join(agent.name for agent in card.agents)
    return _template().render(card=card, title=f"Harness card: {names}", refresh=refresh)


@functools.cache
def _template() -> Template:
    environment = page_environment(REPORTS)
    environment.filters |= {
        "tone": lambda verdict: TONES.get(verdict, "plain"),
        "toml": lambda config: json.dumps(config, indent=2),
        "shell": lambda command: shlex.join(command),
        "of": lambda part, whole: f"{part:,} of {whole:,}" if whole else UNKNOWN,
        "counted": counted,
    }
    environment.globals |= {"wording": wording, "blames": BLAME}
    return environment.get_template("card.html.jinja")
