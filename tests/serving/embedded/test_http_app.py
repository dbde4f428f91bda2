"""The small server inside of this process."""

from __future__ import annotations

import asyncio
import gc
import socket

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from m3agent.serving.embedded.http_app import served

pytestmark = pytest.mark.integration


def delays_of_connections_at(port: int) -> list[int]:
    """Return TCP_NODELAY of each connection that this process accepted at a port."""
    sockets = [
        each.get_extra_info("socket") for each in gc.get_objects() if isinstance(each, asyncio.Transport)
    ]
    return [
        each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for each in sockets
        if each is not None and each.fileno() >= 0 and each.getsockname()[1] == port
    ]


async def test_an_answer_in_two_pieces_waits_for_no_acknowledgement() -> None:
    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(delays_of_connections_at(request.url.port or 0))

    async with served(Starlette(routes=[Route("/", answer)])) as address, httpx2.AsyncClient() as http:
        assert (await http.get(address)).json() == [1]
