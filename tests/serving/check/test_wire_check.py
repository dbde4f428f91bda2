"""The wire check's verdicts on a server with correct parsers, and on each kind of wrong parser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from m3agent.serving.check.check import Check
from m3agent.serving.check.prefix_probe import Findings
from m3agent.serving.check.script import TOOLS, ScriptedMessage, markup, wanted
from m3agent.serving.check.wire_check import wire_check
from m3agent.serving.client.endpoint import Endpoint, Flavour, probe
from m3agent.serving.wire import ThinkingMode, parse
from tests.conftest import later
from tests.servers.forced import END, Fault, ForcedServer

pytestmark = pytest.mark.integration

WIRE = ("no thinking", "thinking adaptive", "thinking enabled")
NOTHING = Findings()
Encode = Callable[[str], list[int]]


async def checked(
    server: ForcedServer,
    *,
    tokenizer: Path | None = None,
    context: int | None = None,
    findings: Findings | None = NOTHING,
    limit: float = 20,
) -> dict[str, Check]:
    endpoint = await probe(server.url, api_key=None, model=None)
    found = await wire_check(
        endpoint, api_key=None, context=context, tokenizer=tokenizer, findings=findings, limit=limit
    )
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


@pytest.mark.parametrize("thinking", ["adaptive", "enabled", "disabled"])
def test_the_message_is_one_that_our_own_parser_reads(thinking: ThinkingMode) -> None:
    right = wanted(thinking)
    read = parse(markup(thinking), TOOLS, thinking)
    assert (
        ScriptedMessage(read.reasoning, read.text, tuple((call.name, call.arguments) for call in read.calls))
        == right
    )
    assert bool(right.reasoning) == (thinking != "disabled")


@pytest.mark.parametrize("flavour", ["vllm", "sglang", "trtllm"])
async def test_a_server_that_is_right(
    flavour: Literal["vllm", "sglang", "trtllm"], encode: Encode, tokenizer_file: Path
) -> None:
    with ForcedServer(flavour=flavour, in_reasoning=True, encode=encode) as server:
        found = await checked(server, tokenizer=tokenizer_file, context=131_072)
    words = "text and both calls as written, streamed and whole"
    assert found["no thinking"] == Check("no thinking", True, words)
    for name in WIRE[1:]:
        assert found[name] == Check(name, True, f"reasoning, {words}")
    assert found["context"].detail == "131,072 tokens, as requested"
    assert "ids equal those of tokenizer.json" in found["token ids"].detail


async def test_tokens_of_markers_are_favoured_and_more_is_not_sent(encode: Encode) -> None:
    with ForcedServer(in_reasoning=True, encode=encode) as server:
        await checked(server)
    assert len(server.chats) == 7
    favoured = [chat.get("logit_bias") for chat in server.chats]
    assert favoured.count(None) == 1  # the request in which the model may answer freely
    assert {str(encode(END)[0]): 100.0}.items() <= (favoured[0] or {}).items()
    taste = server.chats[favoured.index(None)]
    assert taste["max_tokens"] < 100
    assert taste["chat_template_kwargs"] == {"thinking_mode": "enabled"}


async def test_a_server_with_a_draft_takes_no_logit_bias(encode: Encode) -> None:
    with ForcedServer("draft", in_reasoning=True, encode=encode) as server:
        found = await checked(server)
    assert [found[name].ok for name in WIRE] == [True, True, True]


@pytest.mark.parametrize(("flavour", "option"), [("vllm", "enable_in_reasoning"), ("sglang", "")])
async def test_a_grammar_that_does_not_bind_thinking(
    flavour: Literal["vllm", "sglang"], option: str, encode: Encode
) -> None:
    with ForcedServer(flavour=flavour, encode=encode) as server:
        found = await checked(server)
    check = found["thinking enabled"]
    assert (check.ok, check.detail) == (None, "not tried: this server applies no grammar during thinking")
    assert option in check.fix and bool(option) == bool(check.fix)
    assert found["thinking adaptive"].ok and found["no thinking"].ok


@pytest.mark.parametrize(
    ("faults", "name", "words", "option"),
    [
        (
            ["no reasoning parser"],
            "thinking adaptive",
            "streamed and whole: the reasoning is inside the text (m3agent corrects it)",
            "start it with --reasoning-parser minimax_m3",
        ),
        (
            ["no tool parser"],
            "no thinking",
            "streamed and whole: calls are inside the text as markup (m3agent corrects it)",
            "start it with --tool-call-parser minimax_m3 --enable-auto-tool-choice",
        ),
        (
            ["no reasoning parser", "no tool parser"],
            "thinking enabled",
            "streamed and whole: the reasoning is inside the text; "
            + "calls are inside the text as markup (m3agent corrects it)",
            "start it with --reasoning-parser minimax_m3 --tool-call-parser minimax_m3 --enable-auto-tool-choice",
        ),
        (
            ["leaks when streamed"],
            "thinking adaptive",
            "streamed: the reasoning is inside the text (m3agent corrects it); whole: as written",
            "",  # the server already has the parser
        ),
    ],
)
async def test_fault_that_the_client_corrects_is_noted_but_no_failure(
    faults: list[Fault], name: str, words: str, option: str
) -> None:
    with ForcedServer(*faults, in_reasoning=True) as server:
        check = (await checked(server))[name]
    assert check == Check(name, True, words, option)


@pytest.mark.parametrize(
    ("flavour", "fault", "words"),
    [
        ("sglang", "strings", "'lines' of entry 1 of 'steps' of call 2 is '3', not 3"),
        ("vllm", "lost newline", "'content' of call 1 lost the newline at its end"),
        ("vllm", "entities", "'content' of call 1 has "),
        ("vllm", "one call", "1 call received, not 2"),
    ],
)
async def test_lost_values_fail_the_check(
    fault: Fault, words: str, flavour: Literal["vllm", "sglang"]
) -> None:
    option = {"vllm": "--tool-call-parser minimax_m3", "sglang": "--tool-call-parser minimax-m3"}[flavour]
    with ForcedServer(fault, flavour=flavour, in_reasoning=True) as server:
        found = await checked(server)
    for name in WIRE:
        assert found[name].ok is False
        assert f"streamed and whole: {words}" in found[name].detail
        assert option in found[name].fix


async def test_all_that_is_wrong_is_named_at_once() -> None:
    with ForcedServer("strings", "no reasoning parser") as server:
        check = (await checked(server))["thinking adaptive"]
    assert check.ok is False
    assert check.detail.endswith("is '3', not 3; the reasoning is inside the text")
    assert "--reasoning-parser minimax_m3 --tool-call-parser minimax_m3" in check.fix


async def test_a_token_that_the_grammar_lets_through() -> None:
    with ForcedServer("free first token") as server:
        found = await checked(server)
    words = "streamed and whole: as written, after the model's own token"
    assert found["thinking adaptive"] == Check("thinking adaptive", True, words)
    assert found["no thinking"].detail == "text and both calls as written, streamed and whole"


async def test_a_token_before_reasoning_that_the_grammar_lets_through() -> None:
    """vLLM 0.24 with a draft does this."""
    with ForcedServer("free first token", in_reasoning=True) as server:
        found = await checked(server)
    words = "streamed and whole: as written, after the model's own token"
    assert found["thinking enabled"] == Check("thinking enabled", True, words)
    assert found["no thinking"].ok is False, "without thinking, the grammar binds the first token"


async def test_an_empty_answer() -> None:
    with ForcedServer("empty") as server:
        found = await checked(server)
    assert found["no thinking"] == Check("no thinking", False, "streamed and whole: the answer is empty")


async def test_an_engine_that_ignores_its_grammar() -> None:
    with ForcedServer("no grammar") as server:
        check = (await checked(server))["no thinking"]
    assert check.ok is False
    assert "the answer does not follow the grammar: 'ubi quaternion" in check.detail


async def test_an_engine_that_takes_no_grammar() -> None:
    with ForcedServer("refuses grammars", flavour="trtllm") as server:
        check = (await checked(server))["no thinking"]
    assert check.ok is None
    assert "it accepts no grammar: guided decoding is not enabled" in check.detail
    assert "guided_decoding_backend" in check.fix
    with ForcedServer("refuses grammars") as server:
        check = (await checked(server))["no thinking"]
    assert check.ok is False
    assert "answered 400: guided decoding is not enabled" in check.detail


async def test_a_server_that_breaks() -> None:
    with ForcedServer("error") as server:
        found = await checked(server)
    for name in WIRE:
        assert found[name].ok is False
        assert "answered 500: the engine broke" in found[name].detail
    with ForcedServer("cut") as server:
        found = await checked(server)
    assert "the stream ended without a finish reason" in found["no thinking"].detail


async def test_a_server_that_hangs_is_waited_for_once() -> None:
    with ForcedServer("hangs") as server:
        found = await checked(server, limit=0.3)
        assert len(server.chats) == 1
    assert found["no thinking"].ok is False
    assert "did not finish its answer within the time limit" in found["no thinking"].detail
    assert found["thinking adaptive"] == Check("thinking adaptive", None, "not tried")


async def test_a_window_of_another_length() -> None:
    with ForcedServer(window=65_536) as server:
        check = (await checked(server, context=131_072))["context"]
        unasked = (await checked(server))["context"]
    assert (check.ok, check.detail) == (False, "65,536 tokens, 131,072 were requested")
    assert "--max-model-len" in check.fix
    assert unasked == Check("context", None, "65,536 tokens; no window was requested")


async def test_other_ids(encode: Encode, tokenizer_file: Path) -> None:
    def other(text: str) -> list[int]:
        ids = encode(text)
        return ids if "漢" not in text else [*ids[:4], ids[4] + 1, *ids[5:]]

    with ForcedServer(encode=other) as server:
        check = (await checked(server, tokenizer=tokenizer_file.parent))["token ids"]
    assert check.ok is False
    assert "token 4 of '漢字" in check.detail
    assert "VLLM_USE_FASTOKENS" in check.fix


async def test_ids_that_cannot_be_compared(tokenizer_file: Path, tmp_path: Path) -> None:
    with ForcedServer() as server:
        assert "is not on this machine" in (await checked(server))["token ids"].detail
        broken = tmp_path / "tokenizer.json"
        broken.write_text("{}")
        check = (await checked(server, tokenizer=broken))["token ids"]
        assert check.ok is None and "cannot be read" in check.detail
    with ForcedServer(missing=("/tokenize",)) as server:
        check = (await checked(server, tokenizer=tokenizer_file))["token ids"]
    assert check.ok is None and "not compared" in check.detail


@pytest.mark.parametrize(
    ("engine", "name", "option"),
    [
        ({"caching": False}, "prefix cache", "--enable-prefix-caching"),
        ({"reporting": False}, "cached tokens", "--enable-prompt-tokens-details"),
        later({"tokenizer_seconds": 20.0}, "tokenizer", "VLLM_USE_FASTOKENS=1"),
    ],
)
async def test_cache_and_tokenizer(engine: dict[str, Any], name: str, option: str) -> None:
    with ForcedServer(**engine) as server:
        found = await checked(server, findings=None)
    assert found[name].ok is False and option in found[name].fix
    others = {"prefix cache", "cached tokens"} - {name}  # the tokenizer may be slow: the machine may be busy
    assert all(found[other].ok for other in others)


async def test_a_slow_tokenizer() -> None:
    with ForcedServer() as server:
        found = await checked(server, findings=Findings(tokenizer_seconds=20.1))
        assert found["tokenizer"].ok is False and "VLLM_USE_FASTOKENS=1" in found["tokenizer"].fix
        assert (await checked(server, findings=Findings(tokenizer_seconds=1.0)))["tokenizer"].ok


async def test_unknown_results_of_the_examination() -> None:
    with ForcedServer() as server:
        found = await checked(server)
        assert "/v1/completions" not in server.paths  # the check does not repeat the examination
    for name in ("prefix cache", "cached tokens", "tokenizer"):
        assert (found[name].ok, found[name].detail) == (None, "unknown")


@pytest.mark.parametrize("flavour", ["minimax", "openrouter", "unknown"])
async def test_hosted_apis_are_not_forced(flavour: Flavour) -> None:
    with ForcedServer() as server:
        endpoint = Endpoint(server.url, "m3", flavour, None, None, "reasoning", True)
        found = await wire_check(endpoint, api_key=None, context=None, tokenizer=None)
        assert server.chats == []
    assert {check.ok for check in found} == {None}
