"""Continue an earlier fix: with the same repository, issue, server and settings, as its session's log has them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from m3agent.agent.delivery.apply import HandOver
from m3agent.agent.fix.entry import opened
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.issue.load import Issue
from m3agent.agent.loop.resume import ResumePoint, used_embedded_engine
from m3agent.agent.mcp.config import configured
from m3agent.agent.settings.loader import load_settings, settings_of
from m3agent.agent.settings.options import Flags
from m3agent.agent.settings.settings import SETTINGS, Settings
from m3agent.util.errors import UsageError


def request_of(
    point: ResumePoint,
    changed: Flags,
    hand_over: HandOver,
    state: Path,
    say: Callable[[str], None],
) -> FixRequest:
    """Return the request that continues an earlier fix.

    Args:
        point: Where the session continues.
        changed: The settings that the user changes.
        hand_over: What to do with the patch.
        state: The state folder.
        say: Receives notes for people.

    Raises:
        UsageError: The repository no longer exists, or another server is to continue a session of the embedded engine.
    """
    where, issue = point.started["repository"], point.started["issue"]
    folder = Path(where["root"] or where["git_dir"])
    settings = _settings(point, changed, folder)
    repository = opened(folder, settings, state, again=True)
    what = Issue(issue["title"], issue["text"], issue["source"], issue["digest"])
    mcp = configured(repository, settings, state, os.environ, say) if point.tools else ()
    return FixRequest(what, repository, settings, hand_over=hand_over, resume=point, mcp=mcp)


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
