"""Define the request for a fix: what to fix, where, and what to do with the patch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from m3agent.agent.delivery.apply import HandOver
from m3agent.agent.issue.load import Issue
from m3agent.agent.loop.inbox import Ask, Inbox
from m3agent.agent.loop.prompt import Answer, Proposes
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.mcp.toolset import MayCall, yes
from m3agent.agent.repo.repository import Repository
from m3agent.agent.settings.settings import Settings
from m3agent.tools.mcp.server import McpServer


@dataclass(frozen=True)
class FixRequest:
    """What to fix, where, and what to do with the patch."""

    issue: Issue
    repository: Repository
    settings: Settings
    hand_over: HandOver = field(default_factory=HandOver)
    resume: ResumePoint | None = None
    """Where to continue a session that ended early; None for a new session."""
    mcp: tuple[McpServer, ...] = ()
    """MCP servers whose tools the model may use besides m3agent's own tools."""
    may_call: MayCall = yes
    """Asked before each call of an MCP server's tool; the call is made if it returns True."""
    answer: Answer = "no"
    """Whether an answer without a change is a result: not at all, if the user asked something, or only an answer is."""
    proposes: Proposes = ""
    """What the person wants to accept before the model works; empty for nothing."""
    inbox: Inbox = field(default_factory=Inbox)
    """What the person says while the model works, and whom to ask."""
    certificate: Path | None = None
    """Where to write the certificate of the verification; None for nowhere."""

    @property
    def ask(self) -> Ask | None:
        """Asks the person; None if nobody can answer, or nobody wants to be asked (`--yes`)."""
        return None if self.settings.yes else self.inbox.ask
