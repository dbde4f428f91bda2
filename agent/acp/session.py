"""Run the prompts of one client session, and hand over their patches.

The first prompt starts a fix. Each later prompt continues the last fix, or starts a new one if the model never answered
in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acp import RequestError
from acp.helpers import update_agent_message_text, update_tool_call, update_user_message_text
from acp.schema import AllowedOutcome, PermissionOption, PromptResponse, ToolCallStart, ToolCallUpdate, Usage

from m3agent.agent.acp.blocks import AcpPrompt
from m3agent.agent.acp.options import USUAL
from m3agent.agent.acp.store import Mode, OpenSession
from m3agent.agent.acp.updates import STEPS, Update, Updates, diffs, plan
from m3agent.agent.certificate.statement import Statement
from m3agent.agent.context.neutralise import harmless
from m3agent.agent.delivery.apply import apply_to_work_tree
from m3agent.agent.endpoint.choice import required_model_server
from m3agent.agent.exit_codes import FAILURES
from m3agent.agent.fix.finalize import Change, FixResult
from m3agent.agent.fix.orchestrate import check, fix
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.issue.images import fitting
from m3agent.agent.loop.inbox import NO_ADVICE, Inbox
from m3agent.agent.loop.prompt import ANSWERS
from m3agent.agent.loop.resume import ResumePoint, rebased, resume_point, used_embedded_engine
from m3agent.agent.loop.turn_events import answer_of
from m3agent.agent.mcp.config import configured
from m3agent.agent.mcp.toolset import is_installed
from m3agent.agent.patches.change import Source
from m3agent.agent.patches.outcome import explained
from m3agent.agent.patches.verification import VerifyRequest, verify_patch
from m3agent.agent.repo.repository import Repository, open_repository
from m3agent.agent.repo.snapshot import workspace_of
from m3agent.agent.session.events import SessionStarted
from m3agent.agent.session.fork import fork
from m3agent.agent.session.log_reader import LOG, Line, SessionLog, read_log
from m3agent.agent.session.session import Session
from m3agent.agent.session.usage import Totals
from m3agent.agent.settings.loader import load_settings
from m3agent.agent.settings.settings import Settings
from m3agent.tools.mcp.server import McpServer
from m3agent.util.errors import HANDED_OVER, EnvironmentFault, M3AgentError, Status, UsageError
from m3agent.util.sanitize import printable_line

if TYPE_CHECKING:
    from acp.interfaces import Client

StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]
FLUSH_SECONDS = 10.0
"""Longest wait for a client that has stopped reading."""
PERMISSION_SECONDS = 1800.0
"""Longest wait for a permission. Then it counts as refused: a patch stays in the session's folder."""
ALLOW, ALWAYS, REJECT = "allow", "always", "reject"


@dataclass
class ClientSession:
    """A session of an ACP client."""

    client: Client
    kept: OpenSession
    """The session's record on the disk."""
    state: Path
    """The state folder."""
    mcp: Sequence[McpServer] = ()
    """MCP servers that the client passed on."""
    task: asyncio.Task[PromptResponse] | None = None
    """The prompt that the session works on; None if it is idle."""
    _inbox: Inbox | None = None
    """Takes what the person says while the model works; None if it does not."""
    _is_embedded: bool = False
    """Whether the embedded engine works, which takes no advice."""
    _allowed: set[str] = field(default_factory=set)
    """Names of MCP tools that may be called without asking again."""

    @property
    def id(self) -> str:
        """The id that the client uses."""
        return self.kept.record.id

    def idle(self) -> None:
        """Take note that the prompt has ended."""
        self.task = None

    def steer(self, said: AcpPrompt) -> None:
        """Pass a message on to the model that works.

        Raises UsageError: No language model works, or the message is more than plain text.
        """
        if self._inbox is not None and self._is_embedded:
            raise UsageError(NO_ADVICE)
        if self._inbox is None or said.command or said.images or not self._inbox.put(said.text):
            raise UsageError(
                "this session is working on another prompt: wait until it finishes, or cancel it"
            )

    def settings(self) -> Settings:
        """Return the settings in force, with what the person chose in the editor. Raises UsageError."""
        chosen = {name: value for name, value in self.kept.record.chosen.items() if value != USUAL}
        return load_settings(Path(self.kept.record.cwd), {"attempts": 1, **chosen}, os.environ).settings

    async def prompt(self, asked: AcpPrompt) -> PromptResponse:
        """Work on a prompt to its end. After a cancellation nothing keeps running, and the files stay on the disk.

        Raises:
            M3AgentError: The prompt failed. This and the other errors in `FAILURES` have a message of one sentence.
        """
        self.kept.write("prompt", text=asked.text, title=asked.title, images=len(asked.images))
        sender = _Sender(self.client, self.id)
        try:
            repository = await asyncio.to_thread(open_repository, Path(self.kept.record.cwd))
            work = self._verify if asked.command == "verify" else self._fix
            status, said = await work(repository, asked, sender)
            if said:
                sender.tell(update_agent_message_text(f"\n\n{said}"))
            self.kept.write("ended", status=str(status), said=said)
            stop: StopReason = "max_turn_requests" if status is Status.LIMIT else "end_turn"
            return PromptResponse(stop_reason=stop, usage=sender.usage())
        except asyncio.CancelledError:
            self._ended(Status.INTERRUPTED, "(cancelled)")
            raise
        except FAILURES as error:
            self._ended(Status.ERROR, str(error))
            raise
        finally:
            await sender.flush(FLUSH_SECONDS)

    def _ended(self, status: Status, said: str) -> None:
        """Record how a prompt ended early, if that can be written. An error is already being raised."""
        with contextlib.suppress(M3AgentError):
            self.kept.write("ended", status=str(status), said=said)

    async def _fix(self, repository: Repository, asked: AcpPrompt, sender: _Sender) -> tuple[Status, str]:
        """Answer a prompt with the model, and hand over its patch. Return the status, and what the person hears last."""
        result = await self._work(repository, asked, sender)
        said = ""
        if result.status is not Status.ANSWERED:
            said = f"**{str(result.status).capitalize()}**: {result.reason}"
        if result.status in HANDED_OVER and result.change is not None:
            said += await self._hand_over(repository, result, result.change, sender)
        sender.tell(plan(len(STEPS), isolated=result.isolated))
        return result.status, said

    async def _verify(self, repository: Repository, _: AcpPrompt, sender: _Sender) -> tuple[Status, str]:
        """Verify the uncommitted changes of the work tree. Return the status, and what the person hears last."""
        request = VerifyRequest(Source(), repository, await asyncio.to_thread(self.settings))
        note = Updates(repository.root or repository.git_dir, self.state, sender.tell).note
        made = await verify_patch(request, self.state, env=os.environ, say=note)
        if not isinstance(made, Statement):
            return Status.EMPTY, "There are no uncommitted changes to verify."
        return Status(made.predicate.verdict), f"```text\n{explained(made)}```"

    async def _work(self, repository: Repository, asked: AcpPrompt, sender: _Sender) -> FixResult:
        settings = await asyncio.to_thread(self.settings)
        if asked.is_plain_question:
            # the other engine would repair
            await asyncio.to_thread(required_model_server, settings, self.state)
        session, lines = await asyncio.to_thread(self._open)
        updates = Updates(repository.root or repository.git_dir, session.folder, sender.tell)
        with contextlib.closing(session):
            point = None
            if lines:
                now = (await asyncio.to_thread(workspace_of, repository, session.folder, updates.note)).base
                wanted = harmless(asked.wanted)
                tell = ANSWERS["only"].format(wanted) if asked.is_question else wanted
                point = rebased(resume_point(lines), now, tell)
            self.kept.write("fix", session=session.id)
            session.listen(updates.see)
            session.listen(sender.count)
            session.listen(functools.partial(self._see, updates.note))
            if point is not None:
                self._note_limits(point, asked, updates.note)
            images = fitting(asked.images, updates.note)
            issue = dataclasses.replace(asked.issue(), images=images)
            servers = self._mcp_servers(settings, updates.note)
            request = FixRequest(
                issue,
                repository,
                settings,
                resume=point,
                mcp=configured(repository, settings, self.state, os.environ, updates.note, servers),
                may_call=functools.partial(self._may_call, sender),
                answer="only" if asked.is_question else "allowed",
            )
            await check(request, self.state, updates.note)
            self._inbox = request.inbox
            try:
                result = await fix(
                    request, session, self.state, say=updates.note, listener=lambda _: updates.hear
                )
            finally:
                self._inbox = None
        if result.status is Status.ERROR:
            kind = UsageError if result.exit_code == UsageError.exit_code else EnvironmentFault
            raise kind(result.reason)
        return result

    def _open(self) -> tuple[Session, list[Line]]:
        """Create a session, or fork the last one that the model answered in; return it with the lines of its log."""
        earlier = self._earlier_log()
        if earlier is None:
            return Session.create(self.state, []), []
        return fork(self.state, earlier, None)

    def _note_limits(self, point: ResumePoint, asked: AcpPrompt, note: Callable[[str], None]) -> None:
        """Tell the person what a further prompt of a session cannot have."""
        if asked.images:
            note("images are accepted only with the first prompt: these are left out")
        if used_embedded_engine(point.started):
            self._is_embedded = True
            note(NO_ADVICE)

    def _mcp_servers(self, settings: Settings, note: Callable[[str], None]) -> Sequence[McpServer]:
        """Return the editor's MCP servers, as far as they can be used."""
        if not self.mcp or not settings.mcp or is_installed():
            return self.mcp
        note(
            "the editor's MCP servers are left out: they need m3agent[mcp], installed as docs/install.md says"
        )
        return ()

    def _see(self, note: Callable[[str], None], line: Line) -> None:
        """Learn which engine works. What was said before that gets an answer, too."""
        if line["type"] == SessionStarted.type:
            self._is_embedded = used_embedded_engine(line)
            if self._is_embedded and self._inbox is not None and self._inbox.drop():
                note(NO_ADVICE)

    def _earlier_log(self) -> SessionLog | None:
        """Return the log of the last fix; None without a fix, and if the model never answered in it."""
        if (name := self.kept.record.last_fix) is not None:
            with contextlib.suppress(UsageError):
                log = read_log(self.state / "sessions" / name / LOG)
                if any(line.get("type") == "message" for line in log.events):
                    return log
        return None

    async def _hand_over(
        self, repository: Repository, result: FixResult, change: Change, sender: _Sender
    ) -> str:
        """Apply the patch if the mode or the person allows it; return a sentence that says what was done."""
        mode, patch = self.kept.record.mode, change.patch
        where = f"the patch is {result.session / 'patch.diff'}"
        if mode is Mode.READ_ONLY:
            return f"\n\nNothing was written because the mode is read-only; {where}."
        if mode is Mode.ASK or patch.runs_later:
            answer = await self._ask(repository, result, change, sender)
            if answer == ALWAYS:
                self.kept.write("mode", mode=str(Mode.AUTO))
            elif answer != ALLOW:
                self.kept.write("declined")
                return f"\n\nNothing was written; {where}."
        try:
            await asyncio.to_thread(
                apply_to_work_tree, repository, change.workspace, patch, over_uncommitted=True
            )
        except M3AgentError as error:
            self.kept.write("declined")
            return f"\n\nThe patch could not be applied: {error}."
        self.kept.write("applied", paths=list(patch.paths))
        return f"\n\nWritten to the work tree: {', '.join(patch.paths)}."

    async def _ask(self, repository: Repository, result: FixResult, change: Change, sender: _Sender) -> str:
        """Ask the person whether to apply the patch; return ALLOW, ALWAYS or REJECT."""
        patch, workspace = change.patch, change.workspace
        root = repository.root or repository.git_dir
        shown = await asyncio.to_thread(
            diffs, workspace.store, root, patch.base, patch.tree, list(patch.paths)
        )
        title = f"Write the {result.status} patch to {len(patch.paths)} files"
        if patch.runs_later:
            title += f" ({', '.join(patch.runs_later)} will run automatically later)"
        call = ToolCallUpdate(
            tool_call_id=f"{result.session.name}-patch",
            title=printable_line(title, 200),
            kind="edit",
            status="pending",
            content=shown,
        )
        words = ("Write it", "Write it, and do not ask again in this session", "Leave my files alone")
        return await self._permission(call, words, sender)

    async def _may_call(self, sender: _Sender, name: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether a tool may be called that works outside the sandbox; ask the person if necessary."""
        if self.kept.record.mode is Mode.AUTO or name in self._allowed:
            return True
        call = ToolCallUpdate(
            tool_call_id=f"{self.id}-permission-{secrets.token_hex(8)}",
            title=f"Call {name}, outside the sandbox",
            kind="other",
            status="pending",
            raw_input=dict(arguments),
        )
        answer = await self._permission(call, ("Call it", "Always call this tool", "Do not call it"), sender)
        if answer == ALWAYS:
            self._allowed.add(name)
        return answer in (ALLOW, ALWAYS)

    async def _permission(self, call: ToolCallUpdate, words: tuple[str, str, str], sender: _Sender) -> str:
        """Ask the person; `words` are the labels of ALLOW, ALWAYS and REJECT. Without an answer, return REJECT."""
        allow, always, reject = words
        options = [
            PermissionOption(option_id=ALLOW, name=allow, kind="allow_once"),
            PermissionOption(option_id=ALWAYS, name=always, kind="allow_always"),
            PermissionOption(option_id=REJECT, name=reject, kind="reject_once"),
        ]
        # announced first: an editor may not know a call that only a permission names
        sender.tell(ToolCallStart(session_update="tool_call", **call.model_dump(exclude={"session_update"})))
        await sender.flush()
        chosen = REJECT
        with contextlib.suppress(TimeoutError, RequestError):  # nobody answers, or the editor cannot ask
            async with asyncio.timeout(PERMISSION_SECONDS):
                answer = await self.client.request_permission(
                    session_id=self.id, tool_call=call, options=options
                )
            if isinstance(answer.outcome, AllowedOutcome):
                chosen = answer.outcome.option_id
        ended: Literal["completed", "failed"] = "completed" if chosen in (ALLOW, ALWAYS) else "failed"
        sender.tell(update_tool_call(call.tool_call_id, status=ended))
        return chosen

    async def replay(self) -> None:
        """Send the client everything that has happened in this session."""
        sender = _Sender(self.client, self.id)
        await asyncio.to_thread(self._tell_all, sender)  # a long session has thousands of changes to read
        await sender.flush()

    def _tell_all(self, sender: _Sender) -> None:
        root = Path(self.kept.record.cwd)
        for entry in self.kept.record.entries:
            match entry["kind"]:
                case "prompt":
                    sender.tell(update_user_message_text(entry["text"]))
                case "fix":
                    folder = self.state / "sessions" / entry["session"]
                    updates = Updates(root, folder, sender.tell, replay=True)
                    for line in _own_lines(folder):
                        updates.see(line)
                case "ended":
                    sender.tell(update_agent_message_text(f"\n\n{entry['said']}"))


class _Sender:
    """Sends updates to the client in order, and adds up the tokens of a prompt."""

    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self._session_id = session_id
        self._waiting: asyncio.Queue[Update] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._used = Totals()

    def tell(self, update: Update) -> None:
        """Queue an update, from any thread; it is sent soon, in the background."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.tell, update)
            return
        self._waiting.put_nowait(update)
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._send())

    def count(self, line: Line) -> None:
        """Add the tokens of a log line, if it has any."""
        if line["type"] == "turn.finished":
            self._used.add(answer_of(line), line["price"])

    def usage(self) -> Usage | None:
        """Return the tokens used so far; None if no answer was logged."""
        used = self._used
        if not used.turns:
            return None
        return Usage(
            total_tokens=(used.prompt or 0) + (used.completion or 0),
            input_tokens=used.prompt or 0,
            output_tokens=used.completion or 0,
            thought_tokens=used.reasoning or 0,
            cached_read_tokens=used.cached or 0,
        )

    async def flush(self, seconds: float | None = None) -> None:
        """Wait until all updates are sent or the client is gone, at most for `seconds`; None means no limit."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)

    async def _send(self) -> None:
        while not self._waiting.empty():
            update = self._waiting.get_nowait()
            with contextlib.suppress(ConnectionError):  # the client is gone, which also ends the fix
                await self._client.session_update(session_id=self._session_id, update=update)


def _own_lines(folder: Path) -> list[Line]:
    """Return the log lines of a fix, without those copied from the fix that it continues."""
    try:
        lines = list(read_log(folder / LOG).events)
    except UsageError:
        return []
    own = max((n for n, line in enumerate(lines) if line.get("type") == "session.forked"), default=-1)
    return lines[own + 1 :]
