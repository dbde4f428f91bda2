"""Draw a card as one self-contained HTML page and as JSON, and serve both while a run or a card is made."""

from __future__ import annotations

import asyncio
import functools
import json
import shlex
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from jinja2 import Template

from m3agent.agent.report.template import page_environment
from m3agent.agent.report.text import UNKNOWN
from m3agent.evals.card.model import BLAME, FORMAT, CardReport
from m3agent.evals.report import wording
from m3agent.evals.report.page import REPORTS, TONES
from m3agent.util.counted import counted
from m3agent.util.errors import M3AgentError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request


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


LOCAL = ("127.0.0.1", "localhost")
"""Names by which a browser on this machine may ask. Another name is a page of somebody else that was led here."""
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "x-frame-options": "DENY"}


def watched(card_of: Callable[[], CardReport], refresh: int) -> Starlette:
    """Return an application with the page at `/` and the figures at `/report.json`."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import Response
    from starlette.routing import Route

    async def answer(draw: Callable[[CardReport], bytes], media_type: str) -> Response:
        try:
            card = await asyncio.to_thread(card_of)
        except M3AgentError as error:  # the folder is being written, or was removed
            return Response(str(error), 503, HEADERS | {"retry-after": str(refresh)}, "text/plain")
        return Response(draw(card), 200, HEADERS, media_type)

    async def page(_: Request) -> Response:
        return await answer(
            lambda card: render(card, refresh=refresh if card.missing else 0).encode(), "text/html"
        )

    async def figures(_: Request) -> Response:
        return await answer(as_json, "application/json")

    return Starlette(
        routes=[Route("/", page), Route("/report.json", figures)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL))],
    )
