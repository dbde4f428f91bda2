"""A scripted model behind the four APIs that command-line agents speak: Messages, Responses, Chat Completions, and Gemini's.

The script is a list of commands to run and of texts to say. A request without tools is about something else, such as a title: it gets
an answer that is no part of the script.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

Events = list[dict[str, Any]]
SHELLS = (
    *("Bash", "bash", "exec_command", "shell", "shell_command", "local_shell", "run_shell_command"),
    "code_exec",
)
"""What agents call the tool that runs a command."""


@dataclass(frozen=True)
class Run:
    """A step in which the model runs a command with the agent's tool."""

    command: str


@dataclass(frozen=True)
class Refusal:
    """A step in which the server fails."""

    status: int


Step = Run | Refusal | str


class ScriptedModel(ThreadingHTTPServer):
    """A server on loopback. `told` has what the agent sent for each step, as JSON text."""

    daemon_threads = True

    def __init__(self, script: Sequence[Step]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.told = list(script), list[str]()
        self.lock, self.over = threading.Lock(), threading.Event()
        """`over` is set when the agent has got the last step."""

    @property
    def url(self) -> str:
        """The address, without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def step(self, body: dict[str, Any]) -> Step:
        """Return the next step for a request with tools; after the last one, the last text again."""
        if not tools_of(body):
            return "ok"
        with self.lock:
            self.told.append(json.dumps(body))
            if len(self.told) >= len(self.script):
                self.over.set()
            return self.script[min(len(self.told), len(self.script)) - 1]


def tools_of(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the schemas of the tools of a request, whichever API it is of, by their names."""
    named: dict[str, dict[str, Any]] = {}
    for tool in body.get("tools") or []:
        for each in tool.get("functionDeclarations") or [tool.get("function") or tool]:
            schema = each.get("input_schema") or each.get("parameters") or each.get("parametersJsonSchema")
            named[str(each.get("name") or each.get("type"))] = schema or {}
    return named


def _call(step: Run, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the agent's tool that runs a command, and its arguments, with what some require."""
    tools = tools_of(body)
    name = next(name for name in SHELLS if name in tools)
    fields = tools[name].get("properties", {})
    key = next(key for key in ("cmd", "command", "code") if key in fields)
    value: Any = step.command
    if fields.get(key, {}).get("type") == "array":
        value = ["sh", "-c", step.command]
    usual: dict[str, Any] = {"description": "Work", "is_background": False, "language": "bash"}
    return name, {**{each: usual[each] for each in usual if each in fields}, key: value}


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self._send(b'{"object": "list", "data": [{"id": "scripted", "object": "model"}]}', "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        model, path = cast(ScriptedModel, self.server), self.path.partition("?")[0]
        api = next((api for end, api in APIS.items() if end in path), None)
        if api is None:
            self._send(b'{"input_tokens": 10, "totalTokens": 10}', "application/json")
            return
        step = model.step(body)
        if isinstance(step, Refusal):
            self._send(b'{"error": {"message": "broken"}}', "application/json", step.status)
            return
        whole, events = api(step, body)
        if not (body.get("stream") or "stream" in path):
            self._send(json.dumps(whole).encode(), "application/json")
            return
        names = (f"event: {event['type']}\n" if "type" in event else "" for event in events)
        lines = (f"{name}data: {json.dumps(event)}\n\n" for name, event in zip(names, events, strict=True))
        self._send("".join(lines).encode() + b"data: [DONE]\n\n" * (api is chat), "text/event-stream")

    def _send(self, content: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def messages(step: Run | str, body: dict[str, Any]) -> tuple[dict[str, Any], Events]:
    """Answer in Anthropic's Messages API."""
    if isinstance(step, str):
        block: dict[str, Any] = {"type": "text", "text": step}
        empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": step}
    else:
        name, given = _call(step, body)
        block = {"type": "tool_use", "id": f"toolu_{id(step)}", "name": name, "input": given}
        empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(given)}
    stop = "end_turn" if isinstance(step, str) else "tool_use"
    usage = {"input_tokens": 10, "output_tokens": 5}
    whole = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "usage": usage,
        "content": [block],
        "stop_reason": stop,
        "stop_sequence": None,
    }
    return whole, [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


def responses(step: Run | str, body: dict[str, Any]) -> tuple[dict[str, Any], Events]:
    """Answer in OpenAI's Responses API."""
    if isinstance(step, str):
        content = [{"type": "output_text", "text": step, "annotations": []}]
        item: dict[str, Any] = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
    else:
        name, given = _call(step, body)
        item = {"type": "function_call", "id": f"fc_{id(step)}", "call_id": f"call_{id(step)}"}
        item |= {"name": name, "arguments": json.dumps(given)}
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    whole = {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": usage}
    return whole, [
        {"type": "response.created", "response": {**whole, "output": [], "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]


def chat(step: Run | str, body: dict[str, Any]) -> tuple[dict[str, Any], Events]:
    """Answer in OpenAI's Chat Completions API."""
    said: dict[str, Any] = {"role": "assistant", "content": step if isinstance(step, str) else None}
    if not isinstance(step, str):
        name, given = _call(step, body)
        function = {"name": name, "arguments": json.dumps(given)}
        said["tool_calls"] = [
            {"index": 0, "id": f"call_{id(step)}", "type": "function", "function": function}
        ]
    reason = "stop" if isinstance(step, str) else "tool_calls"
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    base = {"id": "c", "created": 1, "model": body.get("model"), "usage": usage}
    whole = {
        **base,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": said, "finish_reason": reason}],
    }
    choices = ({"index": 0, "delta": said}, {"index": 0, "delta": {}, "finish_reason": reason})
    return whole, [{**base, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]


def gemini(step: Run | str, body: dict[str, Any]) -> tuple[dict[str, Any], Events]:
    """Answer in Gemini's API."""
    if isinstance(step, str):
        part: dict[str, Any] = {"text": step}
    else:
        name, given = _call(step, body)
        part = {"functionCall": {"name": name, "args": given}}
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    whole = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}
    return whole, [whole]


APIS = {
    "/count_tokens": None,
    "/messages": messages,
    "/responses": responses,
    "/chat/completions": chat,
    "enerateContent": gemini,
}
