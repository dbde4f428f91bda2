"""Serve an HTTP application of this process while a context is open."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any


@contextlib.asynccontextmanager
async def served(app: Any, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Yield the address of an ASGI application that runs in this event loop, such as `http://127.0.0.1:8000`.

    Port 0 is a free one. Raises OSError if the address is not available.
    """
    import uvicorn

    class Server(uvicorn.Server):
        """Leave the signal handlers alone: they belong to the process that runs the server."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's delay off only if the socket names its protocol: else each answer waits 40 ms for an ACK
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        server = Server(config)
        task = asyncio.create_task(server.serve([listener]))
        try:
            while not server.started:
                if task.done():
                    await task
                await asyncio.sleep(0.005)
            shown = f"[{host}]" if ":" in host else host
            yield f"http://{shown}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True
            await task
