"""`serve warm` sends what a fix begins with, byte for byte."""

from __future__ import annotations

import json

import pytest

from tests.agent.scripted import DONE, UNTESTED, Fixes
from tests.command_line import run
from tests.servers.misbehaving import MODEL

pytestmark = pytest.mark.integration


def test_a_fix_begins_with_what_the_server_was_warmed_with(fixes: Fixes) -> None:
    repo = fixes.make_repo(UNTESTED)
    fixes(repo, [DONE, DONE, DONE], code=1)
    [first, *_] = [json.loads(chat.body) for chat in fixes.chats]
    fixes.model.reset()
    fixes.model.answers = [DONE]
    done = run("serve", "warm", "--repo", str(repo), "--endpoint", fixes.model.url, "--yes")
    assert done.returncode == 0, done.stderr
    [chat] = [json.loads(chat.body) for chat in fixes.chats]
    assert (chat["tools"], chat["model"], chat["max_tokens"]) == (first["tools"], MODEL, 1)
    assert chat["messages"][0] == first["messages"][0]
    assert "def add" in chat["messages"][1]["content"]
    assert first["messages"][1]["content"].startswith(chat["messages"][1]["content"])
    same = ("chat_template_kwargs", "thinking", "reasoning_effort")
    assert [chat.get(name) for name in same] == [first.get(name) for name in same]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("py", "def f():\n    return {}1\n".format("1 + " * 400)),
        ("txt", "Nothing here has signatures.\n" * 60),
    ],
    ids=["in part", "left out"],
)
def test_a_repository_that_does_not_fit_whole_is_refused(fixes: Fixes, suffix: str, text: str) -> None:
    repo = fixes.make_repo({f"m{number}.{suffix}": text for number in range(30)})
    options = ["--endpoint", fixes.model.url, "--yes", "--context-budget", "8000"]
    done = run("serve", "warm", "--repo", str(repo), *options)
    assert (done.returncode, fixes.chats) == (2, [])
