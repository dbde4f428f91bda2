"""Build the log events of a fix."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from m3agent import __version__
from m3agent.agent.context.types import Context
from m3agent.agent.endpoint.choice import ModelServer
from m3agent.agent.fix.ranking import Rank
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.loop.limits import Variation
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.loop.tool_executor import PendingCall
from m3agent.agent.session import events
from m3agent.agent.session.messages import Conversation
from m3agent.agent.session.session import Session
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.backends.factory import Backend
from m3agent.sandbox.network.proxy import NetworkRequest
from m3agent.tools.test_report import TestReport
from m3agent.util.errors import M3AgentError


def session_started(
    request: FixRequest,
    backend: Backend,
    server: ModelServer,
    tree: str,
    dirty: int,
    variation: Variation,
    group: str,
) -> events.SessionStarted:
    """Return the first event of a session; `group` is the session id of the first attempt."""
    repository, issue = request.repository, request.issue
    return events.SessionStarted(
        m3agent=__version__,
        repository={
            "root": str(repository.root) if repository.root else None,
            "git_dir": str(repository.git_dir),
            "head": repository.head,
            "branch": repository.branch,
            "bare": repository.bare,
            "shallow": repository.shallow,
            "dirty": dirty,
        },
        issue={
            "title": issue.title,
            "source": issue.source,
            "digest": issue.digest,
            "text": issue.text,
            "images": [
                {"name": i.name, "media_type": i.media_type, "bytes": len(i.data), "digest": i.digest}
                for i in issue.images
            ],
        },
        endpoint={"url": server.url, "source": server.source, "description": server.description},
        sandbox={"backend": backend, "image": request.settings.image, "memory": request.settings.memory},
        settings=request.settings.public(),
        tree=tree,
        proposes=request.proposes,
        attempt={**dataclasses.asdict(variation), "group": group} if variation.of > 1 else None,
    )


def context_packed(context: Context, seconds: float) -> events.ContextPacked:
    """Return the event for the packed repository."""
    dropped = dict(Counter(reason for _, reason in context.dropped))
    return events.ContextPacked.of(
        context, files=len(context.files), dropped=dropped, seconds=round(seconds, 3)
    )


def session_resumed(
    point: ResumePoint, messages: Conversation, pending: Sequence[PendingCall]
) -> events.SessionResumed:
    """Return the event for a resumed session."""
    return events.SessionResumed(
        m3agent=__version__,
        messages=len(messages),
        tree=point.tree,
        interrupted=[each.call.id for each in pending if each.is_cut_off],
    )


def log_requests(session: Session, where: Literal["session", "verify"]) -> Callable[[NetworkRequest], None]:
    """Return a callback that logs the network requests of a sandbox."""

    def log(request: NetworkRequest) -> None:
        with contextlib.suppress(M3AgentError):  # if the log cannot be written, the next event fails as well
            session.write(events.NetworkRequest(where=where, **dataclasses.asdict(request)))

    return log


def log_verification(
    session: Session, evidence: Verification, number: int, by: Literal["gate", "end"]
) -> None:
    """Log the test runs of a verification and its verdict; `number` counts the session's verifications from 1."""
    runs: tuple[tuple[Literal["before", "after"], TestReport, str], ...] = (
        ("before", evidence.before, evidence.old_tree),
        ("after", evidence.after, evidence.new_tree),
    )
    for where, report, tree in runs:
        session.write(events.TestFinished.of(report, where=where, call=None, tree=tree))
    others: dict[str, Any] = {"repeats": evidence.repeats.runs, "repeat_seconds": evidence.repeats.seconds}
    session.write(events.Verify.of(evidence, new=list(evidence.new_tests), round=number, by=by, **others))


def attempt_chosen(ranks: Sequence[Rank], sessions: Sequence[Session]) -> events.AttemptChosen:
    """Return the event for the chosen attempt.

    Args:
        sessions: Sessions of all attempts, in the order of their numbers.
    """
    ranking = [{**dataclasses.asdict(rank), "session": sessions[rank.number - 1].id} for rank in ranks]
    return events.AttemptChosen(chosen=ranks[0].number, ranking=ranking)
