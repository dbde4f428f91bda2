"""Run a new fix, given an issue, a folder and settings, or continue an earlier one as its session's log has it.

The command line and the Python API both use this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from m3agent.agent.certificate.statement import check_folder
from m3agent.agent.delivery.apply import HandOver
from m3agent.agent.fix.finalize import FixResult
from m3agent.agent.fix.orchestrate import check, fix
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.issue.attachments import load_attachments
from m3agent.agent.issue.images import fitting
from m3agent.agent.issue.load import Issue, issue_of, load_issue
from m3agent.agent.loop.inbox import Inbox
from m3agent.agent.loop.prompt import Answer, Proposes
from m3agent.agent.loop.resume import ResumePoint, used_embedded_engine
from m3agent.agent.mcp.config import configured
from m3agent.agent.repo.plain_folder import open_folder
from m3agent.agent.repo.repository import Repository, open_repository, origin_url
from m3agent.agent.session.events import QUESTION
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.session import Session
from m3agent.agent.settings.loader import load_settings, settings_of
from m3agent.agent.settings.options import Flags
from m3agent.agent.settings.settings import SETTINGS, Settings, state_dir
from m3agent.sandbox.backends.kinds import WITHOUT_ISOLATION
from m3agent.serving.client.messages import Delta
from m3agent.util.daemon_thread import in_background
from m3agent.util.errors import UsageError


def read_issue(
    spec: str,
    repository: Repository,
    settings: Settings,
    env: Mapping[str, str],
    say: Callable[[str], None],
    stdin: TextIO | None,
) -> Issue:
    """Return the issue that `spec` names. Blocking. Raises the errors of `load_issue`."""
    return load_issue(
        spec,
        stdin=stdin,
        origin=lambda: origin_url(repository),
        github_api=settings.github_api,
        env=env,
        say=say,
    )


def opened(folder: Path, settings: Settings, state: Path, *, again: bool = False) -> Repository:
    """Return the repository that contains a folder. Without isolation, the folder itself suffices.

    Args:
        again: A session resumes.

    Raises:
        UsageError: There is no repository.
        EnvironmentFault: Git is missing, or the repository is damaged.
    """
    if settings.sandbox == WITHOUT_ISOLATION:
        return open_folder(folder, state, again=again)
    return open_repository(folder)


async def new_fix(
    spec: str,
    repo: Path,
    flags: Mapping[str, object],
    hand_over: HandOver,
    *,
    attach: Sequence[Path] = (),
    certificate: Path | None = None,
    stdin: TextIO | None = None,
    env: Mapping[str, str] = os.environ,
    say: Callable[[str], None],
    sinks: Sequence[Callable[[Line], None]],
    listener: Callable[[str], Callable[[Delta], None]] = lambda _: lambda _: None,
    inbox: Inbox | None = None,
    proposes: Proposes = "",
    name: str | None = None,
) -> FixResult:
    """Read the issue and the settings, and run the fix.

    Args:
        flags: Settings that override all others.
        listener: Returns the callback for the streamed answers of a session, given its id.
        inbox: What the person says while the model works, and whom to ask; None for nobody.
        proposes: What the person wants to accept before the model works.
        name: The session's id; None for a new one.

    Raises M3AgentError: The input is missing or invalid. Later failures are results.
    """
    if certificate is not None:
        check_folder(certificate)
    state = state_dir(env)
    settings = load_settings(repo, flags, env).settings
    repository = await asyncio.to_thread(opened, repo, settings, state)

    def read() -> Issue:
        attached = load_attachments(attach, say=say)
        issue = read_issue(spec, repository, settings, env, say, stdin)
        return dataclasses.replace(issue, images=fitting((*attached, *issue.images), say))

    issue = await in_background(read)
    mcp = configured(repository, settings, state, env, say)
    request = FixRequest(
        *(issue, repository, settings),
        hand_over,
        None,
        mcp,
        certificate=certificate,
        inbox=inbox or Inbox(),
        proposes=proposes,
    )
    await check(request, state, say)
    with contextlib.closing(Session.create(state, sinks, name)) as session:
        return await fix(request, session, state, say=say, listener=listener)


async def new_question(
    question: str,
    repo: Path,
    flags: Mapping[str, object],
    *,
    say: Callable[[str], None],
    sinks: Sequence[Callable[[Line], None]],
    listener: Callable[[str], Callable[[Delta], None]],
) -> FixResult:
    """Answer a question about a repository. The arguments are those of `new_fix`; the answer is in the result's words.

    Raises M3AgentError: The input is missing or invalid. Later failures are results.
    """
    state = state_dir(os.environ)
    settings = load_settings(repo, {**flags, "attempts": 1}, os.environ).settings
    repository = await asyncio.to_thread(opened, repo, settings, state)
    mcp = configured(repository, settings, state, os.environ, say)
    about = issue_of(question.strip() + "\n", QUESTION)
    request = FixRequest(about, repository, settings, mcp=mcp, answer="only")
    await check(request, state, say)
    with contextlib.closing(Session.create(state, sinks)) as session:
        return await fix(request, session, state, say=say, listener=listener)


def request_of(
    point: ResumePoint,
    changed: Flags,
    hand_over: HandOver,
    state: Path,
    say: Callable[[str], None],
    inbox: Inbox | None = None,
) -> FixRequest:
    """Return the request that continues an earlier fix.

    Raises UsageError: The repository no longer exists, or another server is to continue a session of the embedded
    engine.
    """
    where, issue = point.started["repository"], point.started["issue"]
    folder = Path(where["root"] or where["git_dir"])
    settings = _settings(point, changed, folder)
    repository = opened(folder, settings, state, again=True)
    what = Issue(issue["title"], issue["text"], issue["source"], issue["digest"])
    mcp = configured(repository, settings, state, os.environ, say) if point.tools else ()
    proposes: Proposes = point.started.get("proposes", "")
    answer: Answer = "only" if issue["source"] == QUESTION else "no"
    return FixRequest(
        *(what, repository, settings, hand_over, point, mcp),
        answer=answer,
        proposes=proposes,
        inbox=inbox or Inbox(),
    )


def _settings(point: ResumePoint, changed: Flags, folder: Path) -> Settings:
    """Return the session's settings with the same server unless the user names another, and with the present keys.

    Keys are never logged, and where they may go is asked anew.
    """
    values = {name: value for name, value in point.started["settings"].items() if name in SETTINGS}
    if values.get("endpoint") is None:  # keep the server that the session found
        if used_embedded_engine(point.started):
            values["engine"] = "embedded"
        else:
            values |= {"endpoint": point.started["endpoint"]["url"], "engine": None}
    flags = {name: value for name, value in changed.items() if value is not None}
    if "endpoint" in flags and used_embedded_engine(point.started):
        raise UsageError(
            "the embedded engine made this session, and no language model can continue it: leave out --endpoint, or start "
            "again with m3agent fix"
        )
    now = load_settings(folder, flags, os.environ).settings
    values |= {name: getattr(now, name) for name in flags}
    return dataclasses.replace(settings_of(values), api_key=now.api_key, key_over_http=now.key_over_http)
