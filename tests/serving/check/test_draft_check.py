"""The check of a draft against servers that verify drafts rightly and wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.serving.check.draft_check import accepted_check, draft_check
from m3agent.serving.client.endpoint import Endpoint
from tests.servers.engine import Answer, EngineServer

pytestmark = pytest.mark.integration

TOKENS = 64


class DraftingServer(EngineServer):
    """vLLM with a draft: it writes the token ids 100, 101, ... and reads them with log probabilities.

    At the places in `wrong` the token that it wrote is less likely than another by so many nat.
    """

    def __init__(
        self, wrong: dict[int, float] | None = None, *, metrics: str | None = None, reports: bool = True
    ) -> None:
        super().__init__()
        self.wrong = wrong or {}
        self.reports = reports
        self.bodies: list[dict[str, Any]] = []
        drafts = "vllm:spec_decode_num_drafts_total"
        accepted = "vllm:spec_decode_num_accepted_tokens_total"
        self.page = f"{drafts} 2000\n{accepted} 3560\n" if metrics is None else metrics

    def get(self, path: str, headers: dict[str, str]) -> Answer:
        return self.page if path == "/metrics" else super().get(path, headers)

    def _complete(self, prompt: Any) -> dict[str, Any]:
        prompt_ids = [7, 8, 9]
        if isinstance(prompt, str):
            written = list(range(100, 100 + TOKENS))
            return {"choices": [{"prompt_token_ids": prompt_ids, "token_ids": written, "text": "x"}]}
        assert prompt[:3] == prompt_ids
        if not self.reports:
            return {"choices": [{"text": "x"}]}
        known: list[Any] = [None, {"8": {"logprob": -1.0}}, {"9": {"logprob": -1.0}}]
        for place, token in enumerate(prompt[3:]):
            entry = {str(token): {"logprob": -0.2 - self.wrong.get(place, 0.0), "rank": 1}}
            known.append({**entry, "5": {"logprob": -0.2 if place in self.wrong else -3.0}})
        return {"choices": [{"text": "x", "prompt_logprobs": known}]}


def endpoint(server: EngineServer) -> Endpoint:
    return Endpoint(server.url, "m3", "vllm", "0.33.0", 131_072, "reasoning", local=True)


async def test_a_draft_that_keeps_the_text_passes() -> None:
    with DraftingServer() as server:
        same, length = await draft_check(endpoint(server), api_key=None)
    assert (same.ok, length.ok) == (True, True)
    assert "64 tokens are those" in same.detail
    assert "2.78 tokens a step" in length.detail


async def test_a_wrong_token_is_found_with_its_place_and_what_to_do() -> None:
    with DraftingServer({40: 0.8}) as server:
        same, _ = await draft_check(endpoint(server), api_key=None)
    assert same.ok is False
    assert "token 41 of 64" in same.detail
    assert "0.80 nat less likely" in same.detail
    assert "--draft off" in same.fix


async def test_a_near_tie_is_no_difference() -> None:
    with DraftingServer({3: 0.05, 60: 0.09}) as server:
        same, _ = await draft_check(endpoint(server), api_key=None)
    assert same.ok is True


async def test_a_server_that_does_not_report_log_probabilities_is_not_judged() -> None:
    with DraftingServer(reports=False) as server:
        same, _ = await draft_check(endpoint(server), api_key=None)
    assert same.ok is None
    with DraftingServer() as server:
        server.missing = ("/v1/completions",)
        refused, _ = await draft_check(endpoint(server), api_key=None)
    assert refused.ok is False
    assert "404" in refused.detail


async def test_a_server_without_a_draft_has_no_such_check() -> None:
    with DraftingServer(metrics="") as server:
        assert await draft_check(endpoint(server), api_key=None) == []
        assert server.paths == []


@pytest.mark.parametrize(
    ("drafts", "accepted", "ok"),
    [
        (None, None, None),
        (0.0, 0.0, None),
        (999.0, 0.0, None),
        (5000.0, 2000.0, False),
        (5000.0, 9000.0, True),
    ],
)
def test_accepted_length(drafts: float | None, accepted: float | None, ok: bool | None) -> None:
    check = accepted_check(drafts, accepted)
    assert check.ok is ok
    assert bool(check.fix) is (ok is False)
