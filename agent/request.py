"""What a fix is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from m3agent.agent.handover import HandOver
from m3agent.agent.issue import Issue
from m3agent.agent.repository import Repository
from m3agent.agent.resume import ResumePoint
from m3agent.agent.settings import Settings


@dataclass(frozen=True)
class FixRequest:
    """What to fix, where, and what to do with the patch. resume: where a session that ended before its time goes on; None
    for a new one."""

    issue: Issue
    repository: Repository
    settings: Settings
    hand_over: HandOver = field(default_factory=HandOver)
    resume: ResumePoint | None = None
