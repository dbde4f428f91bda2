"""Test whole fixes by models that slip and servers that stumble: each ends verified, and no request rewrites an earlier one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from m3agent import FixResult, fix
from m3agent.serving.client import retry
from tests.agent.scripted import ISSUE, MakeRepo
from tests.servers.misbehaving import MisbehavingServer, history_faults
from tests.servers.slips import CASES, NONE, SLIPS, Slip, SlippingServer, When

pytestmark = pytest.mark.integration

QUICK: Collection[tuple[str, When]] = {
    ("nothing", "once"),
    ("mirrored reasoning", "always"),
}
"""Rows that `make test` plays, too."""


def cells() -> list[Any]:
    """Return each row, and when it slips. The two repositories take turns."""
    made = []
    for slip in (NONE, *SLIPS):
        for when in slip.when:
            key = (slip.name, when)
            marks = [] if key in QUICK else [pytest.mark.slow]
            made.append(pytest.param(slip, when, id=f"{slip.name}, {when}", marks=marks))
    return made


def play(server: MisbehavingServer, slips: SlippingServer, make_repo: MakeRepo) -> FixResult:
    """Fix the mistake of a repository with a model that slips."""
    server.pages, server.answers = slips.pages, [slips]
    return fix(ISSUE, make_repo(slips.case.files), endpoint=server.url, reruns=0)


@pytest.mark.parametrize(("slip", "when"), cells())
def test_a_slip_costs_a_turn_and_not_the_fix(
    slip: Slip, when: When, server: MisbehavingServer, make_repo: MakeRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_LONGEST_ANSWER_BACKOFF", 0.02)
    case = CASES["calc" if when == "once" else "cart"]
    slips = SlippingServer(case, slip, when)
    result = play(server, slips, make_repo)
    assert result.status == "verified", result.reason
    assert f"+{case.new.rpartition(chr(10))[2]}".encode() in result.patch
    assert result.evidence is not None
    assert case.red in result.evidence.fixed
    assert slips.faults == []
    if when == "always":  # a right patch is verified even if the model did not come to its end
        assert slips.step == len(case.steps) - 1
    if slip.first == 0:  # else a summary takes the place of what was said
        assert history_faults([chat.body for chat in server.chats]) == []
