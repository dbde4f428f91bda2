"""Optional parameters that a server refuses are left out; answers that are none are asked for again."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from m3agent.serving.client.client import RetryNote
from m3agent.serving.client.retry import refused_parameter, without
from m3agent.serving.client.server_errors import response_error
from m3agent.serving.errors import EndpointRefused, NoAnswer
from tests.servers.misbehaving import MisbehavingServer, Received, Reply
from tests.serving.talk import FINE, ask, client, endpoint

SENT = {
    "model": "m",
    "stream": True,
    "stream_options": {},
    "tools": [],
    "tool_choice": "auto",
    "max_tokens": 5,
    "temperature": 1,
    "top_k": 40,
    "thinking": {"type": "adaptive"},
    "reasoning": {"enabled": True},
    "chat_template_kwargs": {"thinking_mode": "enabled"},
}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Unrecognized request argument supplied: chat_template_kwargs", "chat_template_kwargs"),
        ("[{'type': 'extra_forbidden', 'loc': ('body', 'top_k'), 'msg': 'Extra inputs'}]", "top_k"),
        ("property 'top_k' is unsupported", "top_k"),
        ('json: unknown field "top_k"', "top_k"),
        ("Invalid JSON payload received. Unknown name thinking_mode", "chat_template_kwargs"),
        ("stream_options.include_usage is not supported", "stream_options"),
        ("Unsupported value: 'temperature' does not support 1 with this model.", "temperature"),
        ("temperature must be below 1", "temperature"),
        ("invalid params, thinking is not supported", "thinking"),
        ("`thinking.type`: wrong value", "thinking"),
        ("No endpoints found that support the provided 'tool_choice' value", "tool_choice"),
        ("Unknown parameter: reasoning", "reasoning"),
        ("'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", "max_tokens"),
        ("The reasoning_content in the thinking mode must be passed back to the API.", None),
        ("Expected a thinking block before the reasoning of the next message", None),
        ("max_tokens is too large", None),
        ("'model' is unknown", None),
        ("tools are not supported", None),
        ("input is sensitive", None),
        ("min_p is not supported", None),
        ("[{'type': 'missing', 'loc': ('body',), 'msg': 'x', 'input': 'def sample(top_k)'}]", None),
        ('{"errors": [{"why": "x", "input": {"top_k": 1}}]}', None),
        ("Invalid schema for function 'x': 'temperature' is required", None),
        ("Invalid parameter: messages[3].content has no field 'reasoning'", None),
        ("tools.0.input_schema: 'temperature' is no type", None),
        ("the model `top_k` does not exist", None),
        ("the model 'm' does not take the parameter 'top_k'", "top_k"),
    ],
)
def test_the_parameter_that_an_error_names(text: str, name: str | None) -> None:
    assert refused_parameter(EndpointRefused(400, text, host="h"), SENT) == name
    assert refused_parameter(EndpointRefused(401, text, host="h"), SENT) is None


def test_the_parameter_may_stand_beside_the_message() -> None:
    named = EndpointRefused(400, "Unsupported value", host="h", parameter="stream_options.include_usage")
    assert refused_parameter(named, SENT) == "stream_options"


def test_the_place_beside_the_message_goes_first() -> None:
    elsewhere = EndpointRefused(400, "'top_k' is wrong", host="h", parameter="messages[1].content")
    assert refused_parameter(elsewhere, SENT) is None


def test_what_is_not_there_is_a_parameter_only_if_the_server_says_so() -> None:
    for text, parameter, name in (
        ("no model `top_k`", "", None),
        ("'top_k' was not found", "", None),
        ("wrong", "top_k", "top_k"),
        ("No endpoints found that support the provided 'tool_choice' value", "", "tool_choice"),
    ):
        assert refused_parameter(EndpointRefused(404, text, host="h", parameter=parameter), SENT) == name


@pytest.mark.parametrize(
    ("loc", "told", "name"),
    [
        (["body", "top_k"], "top_k: Extra inputs are not permitted", "top_k"),
        (["body", "thinking", "type"], "thinking.type: Extra inputs are not permitted", "thinking"),
        (["body", "messages", 0, "content", "thinking"], "messages.0.content.thinking: Extra", None),
        (["body"], "Extra inputs", None),
        (None, "Extra inputs", None),
    ],
)
def test_a_list_of_errors_counts_without_what_it_repeats(loc: Any, told: str, name: str | None) -> None:
    listed = [
        {
            "type": "x",
            "loc": loc,
            "msg": "Extra inputs are not permitted",
            "input": "def sample(min_p, top_k)",
        }
    ]
    error = response_error(httpx2.Response(422, json={"detail": listed}), "h", None)
    assert isinstance(error, EndpointRefused)
    assert error.text.startswith(told) and "sample" not in error.text
    assert refused_parameter(error, SENT) == name


def test_a_parameter_with_another_name_is_renamed() -> None:
    assert without({"max_tokens": 5, "top_k": 1}, {"max_tokens", "top_k"}) == {"max_completion_tokens": 5}
    assert without({"max_tokens": 5}, {"max_tokens", "max_completion_tokens"}) == {}


class Picky:
    """Answers only requests without these parameters, and names one at a time."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def __call__(self, request: Received) -> Any:
        for name in self.refused:
            if name in request.json:
                return Reply(400, {"error": {"message": f"Unknown parameter: '{name}'."}})
        return FINE


@pytest.mark.integration
async def test_the_server_is_asked_again_without_them(server: MisbehavingServer) -> None:
    server.answers = [Picky("chat_template_kwargs", "top_k")]
    at, notes = endpoint(server.url), list[RetryNote]()
    async with client(server, endpoint=at, attempts=6, on_retry=notes.append) as made:
        assert (await ask(made))[1].message.text == "fine"
        assert len(server.chats) == 3
        assert [note.wait_seconds for note in notes] == [0, 0]
        await ask(made)
    async with client(server, endpoint=at, attempts=1) as another:
        await ask(another)
    assert len(server.chats) == 5, "it is remembered for this server"


@pytest.mark.integration
async def test_a_server_that_refuses_for_another_reason(server: MisbehavingServer) -> None:
    server.answers = [Reply(400, {"error": {"message": "'messages' is wrong"}})]
    async with client(server, attempts=3) as made:
        with pytest.raises(EndpointRefused, match="'messages' is wrong"):
            await ask(made)
    assert len(server.chats) == 1


NO_ANSWERS = {
    "empty": Reply(200),
    "json, empty": Reply(200, "", {"content-type": "application/json"}),
    "a web page": Reply(200, "<html>restarting</html>"),
    "text": Reply(200, "ok"),
    "no choices": Reply(200, {"id": "x", "object": "chat.completion"}),
}


@pytest.mark.integration
@pytest.mark.parametrize("no_answer", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
async def test_an_answer_that_is_none(server: MisbehavingServer, no_answer: Reply) -> None:
    server.answers = [no_answer, FINE]
    async with client(server, attempts=2, retry_seconds=300) as made:
        assert (await ask(made))[1].message.text == "fine"
        server.answers = [*[no_answer] * 4, FINE]
        assert (await ask(made))[1].message.text == "fine", "more patience after it has answered"
    server.answers = [no_answer]
    async with client(server, attempts=2) as made:
        with pytest.raises(NoAnswer, match="usually ends in /v1"):
            await ask(made)


@pytest.mark.integration
@pytest.mark.parametrize(
    "busy",
    [
        Reply(429, {"error": {"message": "slow down"}}),
        Reply(529, {"error": {"message": "overloaded"}}),
        *(Reply(200, {"base_resp": {"status_code": code, "status_msg": "limit"}}) for code in (1002, 1039)),
    ],
)
async def test_a_busy_server_is_asked_until_the_time_is_over(server: MisbehavingServer, busy: Reply) -> None:
    server.answers = [*[busy] * 5, FINE]
    notes: list[RetryNote] = []
    async with client(server, attempts=2, retry_seconds=300, on_retry=notes.append) as made:
        assert (await ask(made))[1].message.text == "fine"
    assert len(notes) == 5
