"""`m3agent acp`: serve an editor over the Agent Client Protocol on stdin and stdout."""

from __future__ import annotations

import sys
from typing import Any, cast

from m3agent.cli.common import run, say
from m3agent.util.errors import UsageError


def acp() -> None:
    """Serve an editor that speaks the Agent Client Protocol, over standard input and output.

    An editor starts this command; it is not for a terminal. Exit codes: 0 the editor disconnected; 2 a package is
    missing.
    """
    try:
        import acp as sdk  # noqa: F401
    except ImportError:
        raise UsageError(
            "m3agent acp needs the package agent-client-protocol: install m3agent[acp] as docs/install.md says."
        ) from None
    if sys.stdin is not None and sys.stdin.isatty():
        say("waiting for messages of an editor (docs/ide.md); Ctrl-D ends it")
    run(_serve())


async def _serve() -> None:
    import asyncio
    import logging

    from acp import AgentSideConnection

    from m3agent.agent.acp.agent import AcpAgent
    from m3agent.agent.acp.pipe import Pipe

    # without a handler, a client that leaves in the middle of a message causes a traceback
    logging.getLogger().addHandler(logging.NullHandler())
    agent = AcpAgent()
    connection = AgentSideConnection(
        cast(Any, agent), await Pipe.standard(), listening=False, use_unstable_protocol=True
    )
    try:
        await connection.listen()
    finally:
        await agent.close()
        await asyncio.shield(connection.close())
