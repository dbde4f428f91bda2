"""A client that talks to the misbehaving server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from m3agent.serving.client.client import Client
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.messages import Delta, Turn
from tests.servers.misbehaving import MODEL, MisbehavingServer, Stream, delta, finish, usage
from tests.serving.fold import TOOLS

HELLO = [{"role": "user", "content": "hello"}]
FINE = Stream([delta(content="fine"), finish("stop"), usage(5, 1)])


def endpoint(url: str, **fields: Any) -> Endpoint:
    values: dict[str, Any] = {
        "model": MODEL,
        "flavour": "vllm",
        "version": "0.24.0",
        "max_model_len": None,
        "reasoning_field": "reasoning",
        "local": True,
    }
    return Endpoint(url=url, **(values | fields))


def client(server: MisbehavingServer, **options: Any) -> Client:
    key = options.pop("api_key", None)
    at = options.pop("endpoint", None) or endpoint(server.url)
    return Client(
        at,
        api_key=key,
        **{"attempts": 1, "backoff": 0.01, "idle_timeout": 60, "retry_seconds": 60, **options},
    )


async def ask(
    made: Client, messages: Sequence[dict[str, Any]] = HELLO, **options: Any
) -> tuple[list[Delta], Turn]:
    """Send a request. Return the deltas, and the Turn, which must come once and last."""
    options.setdefault("tools", TOOLS)
    items = [item async for item in made.complete(messages, **options)]
    turn = items.pop()
    assert isinstance(turn, Turn)
    return [item for item in items if isinstance(item, Delta)], turn


async def answer(server: MisbehavingServer, *answers: Any, **options: Any) -> Turn:
    """Script the server to give `answers`, send one request, and return its Turn."""
    server.answers = [*answers]
    async with client(server, attempts=len(answers)) as made:
        return (await ask(made, **options))[1]


def calls(turn: Turn) -> list[tuple[str, dict[str, Any] | None]]:
    return [(made.name, made.arguments) for made in turn.message.calls]
