"""Test which server and settings an earlier fix is continued with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.delivery.apply import HandOver
from m3agent.agent.fix.entry import request_of
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.settings.settings import Settings
from m3agent.util.errors import UsageError
from tests.agent.scripted import BUGGY, MakeRepo

FOUND = {"url": "http://127.0.0.1:8000/v1", "source": "record", "description": "vllm"}


def settings(repo: Path, found: dict[str, str], logged: dict[str, Any], **changed: object) -> Settings:
    started = {
        "repository": {"root": str(repo), "git_dir": str(repo / ".git")},
        "issue": {"title": "t", "text": "t", "source": "text", "digest": "d"},
        "endpoint": found,
        "settings": logged,
    }
    point = ResumePoint(started, "0" * 40)
    return request_of(point, changed, HandOver(), repo.parent / "state", lambda _: None).settings


def test_the_server_stays_the_same_unless_the_user_names_another(
    make_repo: MakeRepo, own_state: Path
) -> None:
    repo = make_repo(BUGGY)
    assert settings(repo, FOUND, {"max_turns": 7}, endpoint=None).endpoint == "http://127.0.0.1:8000/v1"
    moved = settings(repo, FOUND, {"max_turns": 7}, endpoint="http://127.0.0.1:9000/v1")
    assert (moved.endpoint, moved.engine, moved.max_turns) == ("http://127.0.0.1:9000/v1", None, 7)


def test_no_server_continues_the_embedded_engines_session(make_repo: MakeRepo, own_state: Path) -> None:
    repo, embedded = make_repo(BUGGY), {**FOUND, "source": "embedded"}
    assert settings(repo, embedded, {}, max_turns=9).engine == "embedded"
    with pytest.raises(UsageError, match="no language model can continue it: leave out --endpoint"):
        settings(repo, embedded, {}, endpoint="http://127.0.0.1:9000/v1")
