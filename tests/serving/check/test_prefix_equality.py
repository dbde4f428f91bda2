"""The checks of cached and restored prefixes against a server that reuses them rightly and wrongly."""

from __future__ import annotations

import pytest

from m3agent.serving.check.check import Check
from m3agent.serving.check.prefix_checks import LENGTH, STEPS, partial_prefix_check, restored_prefix_check
from m3agent.serving.client.endpoint import Endpoint
from tests.servers.prefixes import PrefixFault, PrefixServer

pytestmark = pytest.mark.integration


def endpoint(server: PrefixServer, version: str = "0.33.0") -> Endpoint:
    return Endpoint(server.url, "m3", "vllm", version, server.window, "reasoning", local=True)


async def partial(server: PrefixServer, version: str = "0.33.0") -> Check:
    (check,) = await partial_prefix_check(endpoint(server, version), api_key=None)
    return check


async def restored(server: PrefixServer) -> Check:
    (check,) = await restored_prefix_check(endpoint(server), api_key=None)
    return check


async def test_prefixes_that_end_anywhere_in_a_block_pass() -> None:
    with PrefixServer() as server:
        check = await partial(server)
        assert check.ok, check
        assert "7 prefixes" in check.detail and "2,432 tokens from the cache" in check.detail
        assert sorted(set(server.read)) == sorted({384 + step for step in STEPS})


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("drops a block", "the server counted 319 of 447 tokens"),
        ("wrong tail", "after 447 tokens the answer from the cache differs by"),
        ("reuses too much", "446 tokens came from the cache, which can have only 384"),
    ],
)
async def test_wrong_reuse_is_found_with_its_place_and_what_to_do(fault: PrefixFault, cause: str) -> None:
    with PrefixServer(fault) as server:
        check = await partial(server)
    assert check.ok is False
    assert cause in check.detail
    assert "--no-enable-prefix-caching" in check.fix and "proxy" in check.fix


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("no salt", "ignores cache_salt"),
        ("deaf", "log probabilities by only 0 nat"),
        ("silent", "no tokens came from the cache, or the server does not report them"),
        ("no logprobs", "does not report log probabilities"),
    ],
)
async def test_what_cannot_be_compared_is_not_judged(fault: PrefixFault, reason: str) -> None:
    with PrefixServer(fault) as server:
        check = await partial(server)
    assert check.ok is None
    assert reason in check.detail


async def test_a_window_that_is_too_small_or_a_server_that_refuses_is_not_judged() -> None:
    with PrefixServer(window=500) as server:
        assert "window of 500 tokens is too small" in (await partial(server)).detail
        server.window, server.missing = 131_072, ("/v1/completions",)
        assert (await partial(server)).ok is None
        server.missing = ("/tokenize",)
        assert "token ids" in (await partial(server)).detail


async def test_with_a_draft_the_last_block_may_be_computed_again_before_0_33() -> None:
    with PrefixServer(draft=True) as server:
        assert (await partial(server, "0.32.1")).ok
        newer = await partial(server)
    assert newer.ok is None
    assert "256 of 384 tokens came from the cache" in newer.detail


async def test_differences_of_the_batch_s_shape_are_no_fault() -> None:
    with PrefixServer(noise=0.05) as server:
        assert (await partial(server)).ok


async def test_one_prompt_that_differs_by_chance_is_no_fault() -> None:
    with PrefixServer(noise=0.2, unlucky=True, capacity=100_000) as server:
        check = await partial(server)
        assert check.ok, check
        server.unlucky = False
        assert (await partial(server)).ok is False


async def test_with_a_host_cache_a_prompt_that_ends_with_a_block_may_count_as_cached_whole() -> None:
    with PrefixServer(host_cache=True) as server:
        check = await partial(server)
    assert check.ok and "2,560 tokens from the cache" in check.detail, check


async def test_a_restored_prefix_may_differ_as_much_as_one_that_never_left_the_gpus() -> None:
    with PrefixServer(host_cache=True, dev=True, noise=0.2) as server:
        assert (await restored(server)).ok
    with PrefixServer("wrong restore", host_cache=True, dev=True, noise=0.2) as server:
        assert (await restored(server)).ok is False


@pytest.mark.parametrize("dev", [True, False])
async def test_a_prefix_comes_back_from_the_host_cache(dev: bool) -> None:
    with PrefixServer(host_cache=True, dev=dev) as server:
        check = await restored(server)
        assert check.ok, check
        assert f"512 of {LENGTH:,} tokens" in check.detail
        assert (max(server.read) > LENGTH) is not dev, "a flood only where there is no reset"


@pytest.mark.parametrize(
    ("fault", "cause", "remedy"),
    [
        ("wrong restore", "comes back wrong: after 582 tokens", "without --host-cache"),
        ("loses", "the host cache had nothing", "--host-cache more GB"),
    ],
)
async def test_wrong_restoring_is_found(fault: PrefixFault, cause: str, remedy: str) -> None:
    with PrefixServer(fault, host_cache=True, dev=True) as server:
        check = await restored(server)
    assert check.ok is False
    assert cause in check.detail and remedy in check.fix


async def test_servers_without_a_host_cache_or_without_eviction_are_not_judged() -> None:
    with PrefixServer(dev=True) as server:
        assert "no host cache" in (await restored(server)).detail
    with PrefixServer("keeps", host_cache=True) as server:
        assert "did not leave the GPUs" in (await restored(server)).detail
    with PrefixServer("no logprobs", host_cache=True) as server:
        assert (await restored(server)).ok is None


async def test_other_engines_have_no_such_check() -> None:
    with PrefixServer() as server:
        other = Endpoint(server.url, "m3", "sglang", None, None, "reasoning_content", local=True)
        assert await partial_prefix_check(other, api_key=None) == []
        assert await restored_prefix_check(other, api_key=None) == []
        assert server.read == []
