"""What `sessions resume` and `fork` say before the model works on."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.agent.delivery.apply import HandOver
from m3agent.agent.fix import entry, orchestrate
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.ui.event_printer import Screen
from m3agent.cli.resume import NO_ADVICE, carried_on


class Silent:
    """A session that logs nothing."""

    def listen(self, sink: object) -> None:
        """Take a receiver of lines."""


@pytest.mark.parametrize(
    ("source", "tell", "told"),
    [
        ("embedded", "The bug is in the parser.", True),
        ("embedded", "", False),
        ("named", "Look there.", False),
    ],
)
async def test_the_embedded_engine_says_that_it_takes_no_advice(
    source: str, tell: str, told: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def nothing(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr(entry, "request_of", lambda *_: None)
    monkeypatch.setattr(orchestrate, "check", nothing)
    monkeypatch.setattr(orchestrate, "fix", nothing)
    point = ResumePoint({"endpoint": {"source": source, "description": ""}}, "t", tell=tell)
    hand_over = HandOver(apply=False, branch=None, pull_request=False)
    session: Any = Silent()
    with Screen(rows=False) as screen:
        await carried_on(session, [], point, {}, hand_over, screen)
    assert (capfd.readouterr().err == f"note: {NO_ADVICE}\n") is told
