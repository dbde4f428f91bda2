"""The host's side of the protocol, without a sandbox: a cancellation is never lost."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from m3agent.sandbox.errors import SandboxDied, SandboxError
from m3agent.sandbox.protocol.channel import Channel
from m3agent.sandbox.protocol.supervisor import FRAME


async def _died() -> SandboxError:
    return SandboxDied("the stream ended")


def frame(**fields: object) -> bytes:
    header = json.dumps(fields).encode()
    return FRAME.pack(len(header), 0) + header


async def is_cancelled(asks: bool, steps: int) -> bool:
    """Return whether work ends that is cancelled `steps` steps of the event loop after its answer was sent."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    channel = Channel(reader, writer, multiplexed=False, why_dead=_died)

    async def work() -> None:
        await (channel.ask("ping") if asks else channel.boot(60))
        await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    theirs.sendall(frame(id=1, ev="done") if asks else frame(id=0, ev="hello"))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=30)
    is_over = task.cancelled()
    task.cancel()
    theirs.close()
    await channel.ended()
    await channel.close()
    writer.close()
    return is_over


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("asks", [True, False], ids=["answer", "hello"])
def test_a_cancellation_that_comes_with_the_answer_is_not_lost(asks: bool, steps: int) -> None:
    assert asyncio.run(is_cancelled(asks, steps))
