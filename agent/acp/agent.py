"""Handle the requests of an ACP client, and turn expected failures into protocol errors in one sentence.

Nothing is started before the first prompt: editors also ask for the agent's capabilities on machines without
configuration, Docker or GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from acp import PROTOCOL_VERSION, RequestError
from acp.helpers import update_current_mode
from acp.schema import (
    AgentCapabilities,
    AuthenticateResponse,
    AuthMethodAgent,
    CloseSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionMode,
    SessionModeState,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
)

from m3agent import __version__
from m3agent.agent.acp.blocks import read_prompt
from m3agent.agent.acp.options import MODES, Option, checked, commands, options_of, shown
from m3agent.agent.acp.session import ClientSession
from m3agent.agent.acp.store import Mode, OpenSession, all_sessions, new_session, open_session
from m3agent.agent.exit_codes import FAILURES
from m3agent.agent.mcp.config import from_editor
from m3agent.agent.mcp.toolset import is_installed
from m3agent.agent.settings.settings import state_dir
from m3agent.util.errors import UsageError

if TYPE_CHECKING:
    from acp.interfaces import Client

    from m3agent.agent.acp.blocks import Block

McpServers: TypeAlias = Sequence[Any]
"""The MCP servers that a client passes on, as models of the SDK."""

PAGE = 50
"""Number of sessions in one page of the list."""
AUTH = "environment"
AFTER = 0.2
"""Seconds after which a client is told the commands of a new session."""


class AcpAgent:
    """The agent of one connection. The connection calls its methods for the client's requests."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._sessions: dict[str, ClientSession] = {}

    def on_connect(self, conn: Client) -> None:
        """Keep the client of the new connection."""
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        """Return the name, the version and the capabilities of the agent."""
        mcp = is_installed()
        return InitializeResponse(
            protocol_version=min(protocol_version, PROTOCOL_VERSION),
            agent_info=Implementation(name="m3agent", title="m3agent", version=__version__),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                mcp_capabilities=McpCapabilities(http=mcp, sse=mcp),
                prompt_capabilities=PromptCapabilities(image=True, embedded_context=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[
                AuthMethodAgent(
                    id=AUTH,
                    name="Settings of m3agent",
                    description="Name a model server with M3AGENT_ENDPOINT and M3AGENT_API_KEY or in m3agent's "
                    "settings file, or start one with `m3agent serve`; otherwise m3agent uses the embedded engine.",
                )
            ],
        )

    async def authenticate(self, method_id: str, **_: Any) -> AuthenticateResponse:
        """Accept the only method: settings on this machine name the model server, so no login is needed."""
        if method_id != AUTH:
            raise _refused(f"there is no authentication method {method_id[:80]!r}")
        return AuthenticateResponse()

    async def new_session(
        self, cwd: str, mcp_servers: McpServers | None = None, **_: Any
    ) -> NewSessionResponse:
        """Create a session in a folder."""
        folder = _folder(cwd)
        with _protocol_errors():
            kept = await asyncio.to_thread(new_session, state_dir(os.environ), str(folder))
        session = self._open(kept, mcp_servers)
        return NewSessionResponse(
            session_id=session.id, modes=_modes(kept), config_options=await self._options(session)
        )

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: McpServers | None = None, **_: Any
    ) -> LoadSessionResponse:
        """Open an existing session, and send the client everything that has happened in it."""
        session = await self._reopen(cwd, session_id, mcp_servers)
        await session.replay()
        return LoadSessionResponse(modes=_modes(session.kept), config_options=await self._options(session))

    async def resume_session(
        self, cwd: str, session_id: str, mcp_servers: McpServers | None = None, **_: Any
    ) -> ResumeSessionResponse:
        """Open an existing session."""
        session = await self._reopen(cwd, session_id, mcp_servers)
        return ResumeSessionResponse(modes=_modes(session.kept), config_options=await self._options(session))

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> ListSessionsResponse:
        """Return a page of the sessions of one folder or of all folders, newest first."""
        wanted = None if cwd is None else str(_folder(cwd))
        records = await asyncio.to_thread(lambda: list(all_sessions(state_dir(os.environ))))
        found = [r for r in records if wanted in (None, r.cwd) and (cursor is None or r.id < cursor)]
        page = found[:PAGE]
        return ListSessionsResponse(
            sessions=[
                SessionInfo(session_id=r.id, cwd=r.cwd, title=r.title or None, updated_at=r.updated)
                for r in page
            ],
            next_cursor=page[-1].id if len(found) > PAGE else None,
        )

    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        """Cancel the session's prompt and release the session, so that others can open it. Its files stay."""
        await self._close(self._session(session_id))
        return CloseSessionResponse()

    async def set_session_mode(self, mode_id: str, session_id: str, **_: Any) -> SetSessionModeResponse:
        """Set what happens with patches from now on."""
        session = self._session(session_id)
        if mode_id not in tuple(Mode):
            raise _refused(f"there is no mode {mode_id[:80]!r}: the modes are {', '.join(Mode)}")
        session.kept.write("mode", mode=mode_id)
        assert self._client is not None
        await self._client.session_update(session_id=session_id, update=update_current_mode(mode_id))
        return SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> SetSessionConfigOptionResponse:
        """Set an option from now on. The mode is one of them."""
        session = self._session(session_id)
        with _protocol_errors():
            chosen = checked(await self._choices(session), config_id, value)
        if config_id == "mode":
            await self.set_session_mode(chosen, session_id)
        else:
            session.kept.write("chosen", option=config_id, value=chosen)
        return SetSessionConfigOptionResponse(config_options=await self._options(session))

    async def _choices(self, session: ClientSession) -> list[Option]:
        with _protocol_errors():
            return options_of(await asyncio.to_thread(session.settings))

    async def _options(self, session: ClientSession) -> list[Any]:
        """Return the options of a session as the protocol has them."""
        return list(shown(await self._choices(session), session.kept.record))

    async def prompt(self, prompt: Sequence[Block], session_id: str, **_: Any) -> PromptResponse:
        """Work on a prompt to its end. One that arrives meanwhile steers this work, and ends with it."""
        session = self._session(session_id)
        try:
            if session.task is not None:
                with _protocol_errors():
                    session.steer(read_prompt(prompt))
                return await asyncio.shield(session.task)
            session.task = asyncio.ensure_future(_prompt(session, prompt))
            session.task.add_done_callback(lambda _: session.idle())
            return await session.task
        except asyncio.CancelledError:
            return PromptResponse(stop_reason="cancelled")

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Cancel the prompt that a session works on."""
        session = self._sessions.get(session_id)
        if session is not None and session.task is not None:
            session.task.cancel()

    async def close(self) -> None:
        """Close all sessions, because the client is gone. Their files stay."""
        for session in list(self._sessions.values()):
            await self._close(session)

    def _open(self, kept: OpenSession, mcp: McpServers | None) -> ClientSession:
        assert self._client is not None
        session = ClientSession(self._client, kept, state_dir(os.environ), from_editor(mcp or ()))
        self._sessions[session.id] = session
        # after the response that names the session: an editor may drop updates of sessions that it does not know
        asyncio.get_running_loop().call_later(AFTER, self._tell_commands, session)
        return session

    def _tell_commands(self, session: ClientSession) -> None:
        told = asyncio.ensure_future(session.client.session_update(session_id=session.id, update=commands()))
        told.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _reopen(self, cwd: str, session_id: str, mcp: McpServers | None) -> ClientSession:
        folder = str(_folder(cwd))
        session = self._sessions.get(session_id)
        if session is not None:
            kept = session.kept
        else:
            with _protocol_errors():
                kept = await asyncio.to_thread(open_session, state_dir(os.environ), session_id)
        if kept.record.cwd != folder:
            if session is None:
                kept.close()
            raise _refused(f"session {session_id} belongs to {kept.record.cwd}, not to {folder}")
        return session or self._open(kept, mcp)

    def _session(self, session_id: str) -> ClientSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise _refused(f"no session {session_id[:80]!r} is open here: load it, or start a new one")
        return session

    async def _close(self, session: ClientSession) -> None:
        if session.task is not None:
            session.task.cancel()
            await asyncio.wait([session.task])
        self._sessions.pop(session.id, None)
        session.kept.close()


async def _prompt(session: ClientSession, blocks: Sequence[Block]) -> PromptResponse:
    with _protocol_errors():
        return await session.prompt(read_prompt(blocks))


def _modes(kept: OpenSession) -> SessionModeState:
    return SessionModeState(
        current_mode_id=str(kept.record.mode),
        available_modes=[
            SessionMode(id=str(mode), name=name, description=words) for mode, name, words in MODES
        ],
    )


def _folder(cwd: str) -> Path:
    path = Path(cwd)
    if "\0" in cwd or not path.is_absolute() or not path.is_dir():
        raise _refused(f"cwd must be the absolute path of a folder, not {cwd[:200]!r}")
    return path


def _refused(sentence: str) -> RequestError:
    return RequestError(-32602, sentence)


@contextlib.contextmanager
def _protocol_errors() -> Iterator[None]:
    """Raise the expected failures of the work as protocol errors, in one sentence each."""
    try:
        yield
    except UsageError as error:
        raise _refused(str(error)) from None
    except FAILURES as error:
        raise RequestError(-32603, str(error)) from None
    except ConnectionError:
        raise RequestError(-32603, "the client disconnected") from None
