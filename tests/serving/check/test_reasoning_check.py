"""The check of the reasoning's end against servers that look for think tags in the prompt, and proxies that change the mode."""

from __future__ import annotations

from typing import Any

import pytest

from m3agent.serving.check.check import Check
from m3agent.serving.check.reasoning_check import reasoning_check
from m3agent.serving.client.endpoint import Endpoint, Flavour
from m3agent.serving.wire import ThinkingMode
from tests.servers.engine import Answer
from tests.servers.forced import Fault, ForcedServer, Mind

pytestmark = pytest.mark.integration


class ModeChangingServer(ForcedServer):
    """A server behind a proxy that replaces the thinking mode of each request."""

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        if "chat_template_kwargs" in body:
            body["chat_template_kwargs"] = {"thinking_mode": "adaptive"}
        return super().post(path, body)


async def checked(
    server: ForcedServer, thinking: ThinkingMode = "enabled", flavour: Flavour = "vllm"
) -> Check:
    at = Endpoint(server.url, "m3", flavour, "0.33.0", 131_072, "reasoning", local=True)
    (check,) = await reasoning_check(at, api_key=None, thinking=thinking, limit=10)
    return check


@pytest.mark.parametrize("mind", ["sensible", "random"])
async def test_a_sound_server_passes(mind: Mind) -> None:
    with ForcedServer(mind=mind) as server:
        for thinking in ("enabled", "adaptive"):
            check = await checked(server, thinking)
            assert check.ok, check
            assert "adaptive" not in check.detail


async def test_a_server_that_reads_tags_in_the_prompt_passes_while_thinking_is_pinned() -> None:
    with ForcedServer("quoted tags", mind="random") as server:
        pinned, adaptive = await checked(server), await checked(server, "adaptive")
    assert pinned.ok and "with adaptive they do" in pinned.detail
    assert adaptive.ok is False
    assert "before it begins" in adaptive.detail and "thinking at enabled" in adaptive.fix


@pytest.mark.parametrize(
    ("fault", "cause", "remedy"),
    [
        ("quoted tags always", "a think tag in the prompt ends the reasoning", "chat template"),
        ("no reasoning parser", "there is no reasoning parser", "--default-chat-template-kwargs"),
        ("error", "500", ""),
    ],
)
async def test_faults_have_a_cause_and_a_remedy(fault: Fault, cause: str, remedy: str) -> None:
    with ForcedServer(fault, mind="random") as server:
        check = await checked(server)
    assert check.ok is False
    assert cause in check.detail and remedy in check.fix


async def test_a_proxy_that_drops_the_thinking_mode_is_found() -> None:
    with ModeChangingServer("quoted tags", mind="random") as server:
        check = await checked(server)
    assert check.ok is False
    assert "the mode does not reach the template" in check.detail
    assert "let proxies pass chat_template_kwargs" in check.fix


async def test_reasoning_that_our_client_repairs_is_no_fault() -> None:
    with ForcedServer("leaks when streamed") as server:
        assert (await checked(server, "adaptive")).ok


async def test_a_model_that_does_not_think_is_not_judged() -> None:
    with ForcedServer("empty") as server:
        assert (await checked(server)).ok is None


async def test_servers_without_a_thinking_mode_have_no_such_check() -> None:
    with ForcedServer() as server:
        at = Endpoint(server.url, "m3", "unknown", None, None, "reasoning", local=True)
        assert await reasoning_check(at, api_key=None) == []
        assert server.chats == []
