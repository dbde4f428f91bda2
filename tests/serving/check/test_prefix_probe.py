"""The findings of an examination of a server, and its messages."""

from __future__ import annotations

from unittest import mock

import pytest

from m3agent.serving.check.prefix_probe import Findings, examine
from m3agent.serving.client.endpoint import Endpoint, Flavour
from tests.servers.engine import EngineServer
from tests.servers.misbehaving import MisbehavingServer, Silence

pytestmark = pytest.mark.integration


def endpoint(url: str, flavour: Flavour = "vllm", window: int | None = None) -> Endpoint:
    return Endpoint(
        url=url,
        model="m3",
        flavour=flavour,
        version=None,
        max_model_len=window,
        reasoning_field="reasoning",
        local=True,
    )


@pytest.mark.parametrize(
    ("caching", "reporting", "missing", "found"),
    [
        (True, True, (), (True, True)),
        (False, True, (), (False, True)),
        (True, False, (), (True, False)),  # known from the metrics
        (False, False, (), (False, False)),
        (True, False, ("/metrics",), (None, False)),
        (True, True, ("/v1/completions",), (None, None)),
    ],
)
async def test_the_prefix_cache(
    caching: bool, reporting: bool, missing: tuple[str, ...], found: tuple[bool | None, bool | None]
) -> None:
    with EngineServer(caching=caching, reporting=reporting, missing=missing) as server:
        findings = await examine(endpoint(server.url), api_key=None)
        assert (findings.prefix_caching, findings.cached_tokens) == found
        again = await examine(endpoint(server.url), api_key=None)
        assert (again.prefix_caching, again.cached_tokens) == found  # not affected by the first


async def test_it_touches_no_conversation() -> None:
    with EngineServer() as server:
        await examine(endpoint(server.url), api_key=None)
        assert "/v1/chat/completions" not in server.paths
        assert len(server.prompts) == 2
        assert server.prompts[0].splitlines()[0] == server.prompts[1].splitlines()[0]


async def test_the_ranks_with_a_cache_of_their_own() -> None:
    with EngineServer() as server:
        assert (await examine(endpoint(server.url), api_key=None)).ranks == 1
        page = "".join(
            f'vllm:cache_config_info{{engine="{rank}",block_size="128",num_gpu_blocks="9"}} 1.0\n'
            for rank in range(4)
        )
        with mock.patch.object(server, "get", lambda path, _: page if path == "/metrics" else None):
            assert (await examine(endpoint(server.url), api_key=None)).ranks == 4


@pytest.mark.slow
async def test_the_speed_of_the_tokenizer() -> None:
    with EngineServer(tokenizer_seconds=20) as server:
        slow = (await examine(endpoint(server.url), api_key=None, timeout=60)).tokenizer_seconds
    with EngineServer() as server:
        fast = (await examine(endpoint(server.url), api_key=None, timeout=60)).tokenizer_seconds
    assert slow is not None
    assert fast is not None
    assert slow > 20 > fast
    with EngineServer(missing=("/tokenize",)) as server:
        assert (await examine(endpoint(server.url), api_key=None)).tokenizer_seconds is None


async def test_a_small_window_is_not_overrun() -> None:
    with EngineServer() as server:
        findings = await examine(endpoint(server.url, window=1000), api_key=None)
        assert max(map(len, server.prompts)) < 2100
    assert findings.prefix_caching


@pytest.mark.parametrize("flavour", ["embedded", "unknown"])
async def test_other_kinds_of_servers_are_not_probed(flavour: Flavour) -> None:
    with EngineServer() as server:
        assert await examine(endpoint(server.url, flavour), api_key=None) == Findings()
        assert server.paths == []


async def test_a_server_that_does_not_answer_costs_little_time(server: MisbehavingServer) -> None:
    server.pages["/v1/completions"] = Silence()
    assert await examine(endpoint(server.url), api_key=None, timeout=0.2) == Findings()
    server.pages["/v1/completions"] = "not JSON"
    server.pages["/tokenize"] = {"tokens": "what"}
    assert await examine(endpoint(server.url), api_key=None) == Findings()
    assert await examine(endpoint("http://127.0.0.1:9/v1"), api_key=None) == Findings()


@pytest.mark.parametrize(
    ("findings", "flavour", "tokens", "words"),
    [
        (Findings(True, True, 0.2), "vllm", 10**6, []),
        (Findings(None, None, None), "vllm", 10**6, []),
        (Findings(False, True, None), "vllm", 10, ["--enable-prefix-caching"]),
        (Findings(False, False, None), "sglang", 10, ["--disable-radix-cache"]),
        (Findings(True, False, None), "vllm", 10, ["--enable-prompt-tokens-details"]),
        (Findings(None, False, None), "sglang", 10, ["--enable-cache-report"]),
        (Findings(True, True, 2.1), "vllm", 10**6, ["2.1 s of each turn", "VLLM_USE_FASTOKENS=1"]),
        (Findings(True, True, 2.1), "sglang", 500_000, ["1.1 s of each turn", "--tokenizer-backend"]),
        (Findings(True, True, 2.1), "trtllm", 10_000, []),
    ],
)
def test_advice(findings: Findings, flavour: Flavour, tokens: int, words: list[str]) -> None:
    said = findings.advice(endpoint("http://gpu:8000/v1", flavour), tokens)
    assert len(said) == (1 if words else 0)
    assert all(word in said[0] for word in words)
    assert all("gpu:8000" in sentence for sentence in said)
