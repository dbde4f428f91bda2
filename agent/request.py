"""What a fix is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from m3agent.agent.handover import HandOver
from m3agent.agent.issue import Issue
from m3agent.agent.other_tools import MayCall, yes
from m3agent.agent.repository import Repository
from m3agent.agent.resume import ResumePoint
from m3agent.agent.settings import Settings
from m3agent.tools.mcp.server import McpServer


@dataclass(frozen=True)
class FixRequest:
    """What to fix, where, and what to do with the patch. resume: where a session that ended before its time goes on; None
    for a new one. mcp: servers whose tools the model may use besides ours, and may_call: who is asked before each call."""

    issue: Issue
    repository: Repository
    settings: Settings
    hand_over: HandOver = field(default_factory=HandOver)
    resume: ResumePoint | None = None
    mcp: tuple[McpServer, ...] = ()
    may_call: MayCall = yes
