"""Serve a page that shows a run or a card while it is made. It only reads files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from m3agent.evals.card.model import CardReport
from m3agent.evals.card.page import as_json, render
from m3agent.util.errors import M3AgentError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

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
