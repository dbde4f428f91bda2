"""The network of a build: only the proxy, as in a sandbox with `--allow-net`.

A container without a network runs the supervisor, whose tunnel leads to the proxy on the host. The build's container shares
the network namespace of that container. So it needs no python3 of its own, and it has no route to the host, to the engine's
bridge or to any other address.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from m3agent.sandbox.backends.docker_machine import DockerMachine
from m3agent.sandbox.backends.sandbox import START_TIMEOUT, SandboxLimits
from m3agent.sandbox.errors import EnvironmentBuildFailed, SandboxError
from m3agent.sandbox.images.indexes import Indexes
from m3agent.sandbox.network.network import Network
from m3agent.sandbox.network.proxy import Caps, NetworkRequest, Proxy, Refusals
from m3agent.sandbox.network.upstream import Upstream

LIMITS = SandboxLimits(memory=256 << 20, cpus=1.0, pids=16)
CAPS = Caps(bytes=16 << 30, requests=100_000)
"""More than a sandbox may move: the largest common dependency, torch with its libraries, has several GiB."""
REFUSALS = Refusals(
    "is not allowed for a build: it reaches the ports 80 and 443 of public hosts, and the indexes that you configured",
    "a build reaches such an address only if your own configuration of pip, uv or apt names the host",
)
MOST_TOLD = 5  # refused hosts that people are told of


@contextlib.contextmanager
def build_network(indexes: Indexes, say: Callable[[str], None]) -> Iterator[str]:
    """Open a network for a build; yield the engine's network mode for its container. Blocking; takes half a second.

    Args:
        indexes: Where packages come from; these hosts may be reached at any address.
        say: Receives a note for each of the first hosts that were refused.

    Raises:
        EnvironmentBuildFailed: The network did not start.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True, name="m3agent-build-network")
    thread.start()
    opened = _opened(indexes, _teller(say))
    try:
        try:
            mode = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result()
        except SandboxError as error:
            raise EnvironmentBuildFailed(f"a build's network did not start: {error}") from None
        try:
            yield mode
        finally:
            asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.asynccontextmanager
async def _opened(indexes: Indexes, tell: Callable[[NetworkRequest], None]) -> AsyncIterator[str]:
    machine = DockerMachine(None, LIMITS, lambda _: None)
    upstream = Upstream({name: value for name, value in indexes.proxies.items() if name.islower()})
    proxy = Proxy(indexes.hosts, log=tell, caps=CAPS, refusals=REFUSALS, upstream=upstream)
    network = Network(proxy)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(machine.destroy)
        channel = await machine.start()
        stack.push_async_callback(channel.close)
        await channel.boot(START_TIMEOUT)
        await network.open(channel)
        stack.push_async_callback(network.close)
        yield f"container:{machine.container}"


def _teller(say: Callable[[str], None]) -> Callable[[NetworkRequest], None]:
    told: set[str] = set()

    def tell(request: NetworkRequest) -> None:
        if request.verdict == "refused" and request.host not in told and len(told) < MOST_TOLD:
            told.add(request.host)
            say(f"network of the build: refused: {request.reason}")

    return tell
