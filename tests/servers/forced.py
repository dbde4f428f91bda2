"""A real HTTP server on loopback that writes what a grammar demands, and parses it as an engine does, or wrongly.

It has its own parser of M3's markup, written from the description of the format: the checks must not be judged by the
parser that they use themselves.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any, Literal

from tests.servers.engine import Answer, EngineServer

MODEL = "minimax-m3"
NS = "]<]minimax[>["
THINK, END = "<mm:think>", "</mm:think>"
PIECE = 5
"""Characters in a delta."""

Fault = Literal[
    "no reasoning parser",
    "no tool parser",
    "leaks when streamed",  # think tags stay in the text if thinking is adaptive, as in vLLM 0.24
    "strings",  # all argument values are strings
    "lost newline",
    "entities",  # &amp; becomes &
    "one call",
    "empty",
    "error",
    "hangs",
    "cut",  # no finish reason
    "no grammar",
    "refuses grammars",
    "quoted tags",  # a think tag in the prompt ends the reasoning, unless thinking is enabled, as in vLLM up to 0.33
    "quoted tags always",  # the same although thinking is enabled, as with a template that does not open the tag
    "draft",  # takes no logit bias, as vLLM 0.24 with a draft
    "free first token",  # as if the prompt did not already contain the end of thinking
]
Mind = Literal["sensible", "random", "wrong value", "forgetful", "thoughtless", "muddled once"]

_NONSENSE = "ubi quaternion ]] lorem 漢漢 ,,, tarn"
_UNESCAPE = re.compile(r"\\(.)")
_ORDER = re.compile(r"station '([^']+)' and value ([0-9]+)")


class ForcedServer(EngineServer):
    """Serves chat completions: with a grammar the only text that matches it, otherwise the answer of its `mind`.

    With `in_reasoning` its grammar binds reasoning too. It recognises markers only by their token ids, as real engines
    do: if a request does not favour these ids, random weights spell the end of thinking with other tokens.
    """

    def __init__(
        self,
        *faults: Fault,
        flavour: Literal["vllm", "sglang", "trtllm"] = "vllm",
        in_reasoning: bool = False,
        mind: Mind = "sensible",
        window: int = 131_072,
        version: str = "0.24.0",
        encode: Callable[[str], list[int]] | None = None,
        metrics: str = "",
        settings: dict[str, Any] | None = None,
        key: str | None = None,
        **engine: Any,
    ) -> None:
        super().__init__(**engine)
        self.faults = frozenset(faults)
        self.flavour = flavour
        self.in_reasoning = in_reasoning
        self.mind = mind
        self.window = window
        self.version = version
        self.encode = encode
        self.metrics = metrics
        self.settings = settings
        self.key = key
        self.chats: list[dict[str, Any]] = []
        self._over = threading.Event()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        super().__exit__(*error)

    def get(self, path: str, headers: dict[str, str]) -> Answer:
        """Return pages that need no model."""
        if self.key and path.startswith("/v1") and headers.get("authorization") != f"Bearer {self.key}":
            return 401, '{"error": {"message": "Unauthorized"}}'
        match path:
            case "/v1/models":
                owner = "tensorrt_llm" if self.flavour == "trtllm" else self.flavour
                return json.dumps({"data": [{"id": MODEL, "owned_by": owner, "max_model_len": self.window}]})
            case "/version" if self.flavour != "sglang":
                return json.dumps({"version": self.version})
            case "/server_info" if self.settings is not None:
                return json.dumps({"version": self.version, **self.settings})
            case "/metrics" if self.metrics:
                return self.metrics
        return super().get(path, headers)

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """Return chat completions, or what `EngineServer` answers."""
        if path != "/v1/chat/completions":
            return super().post(path, body)
        self.chats.append(body)
        if "hangs" in self.faults:
            self._over.wait(30)
        if "error" in self.faults:
            return 500, '{"error": {"message": "the engine broke"}}'
        if "draft" in self.faults and "logit_bias" in body:
            return 400, '{"error": {"message": "logit_bias is not yet supported with speculative decoding"}}'
        pattern = self._pattern(body)
        if pattern is not None and "refuses grammars" in self.faults:
            return 400, '{"error": {"message": "guided decoding is not enabled"}}'
        text = self._written(body, pattern)
        kept = text[: 3 * body.get("max_tokens", self.window)]  # a token is three characters
        return self._answer(kept, body, "stop" if kept == text else "length")

    def _tokenize(self, prompt: str) -> dict[str, Any]:
        if self.encode is None:
            return super()._tokenize(prompt)
        tokens = self.encode(prompt)
        return {"count": len(tokens), "tokens": tokens}

    def _pattern(self, body: dict[str, Any]) -> str | None:
        found: str | None = None
        match self.flavour:
            case "vllm":
                found = body.get("structured_outputs", {}).get("regex")
            case "sglang":
                found = body.get("regex")
            case "trtllm":
                found = body.get("response_format", {}).get("regex")
        return found

    def _written(self, body: dict[str, Any], pattern: str | None) -> str:
        """Return the text that the model writes after the prompt."""
        if "empty" in self.faults:
            return ""
        thinking = body["chat_template_kwargs"]["thinking_mode"]
        if pattern is None:
            return self._own(body, thinking)
        if "no grammar" in self.faults:
            return _NONSENSE
        forced = _UNESCAPE.sub(lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), pattern)
        if thinking == "enabled" and not self.in_reasoning and "no reasoning parser" not in self.faults:
            return END + forced if self._favours(body, END) else _NONSENSE * 100
        if (thinking == "adaptive" or self.in_reasoning) and "free first token" in self.faults:
            return "Hm" + forced
        return forced

    def _favours(self, body: dict[str, Any], marker: str) -> bool:
        if self.encode is None:
            return "logit_bias" in body
        return str(self.encode(marker)[0]) in body.get("logit_bias", {})

    def _own(self, body: dict[str, Any], thinking: str) -> str:
        """Return what the model writes without a grammar."""
        asked, last = body["messages"][0]["content"], body["messages"][-1]
        muddled = self.mind == "muddled once" and len(self.chats) == 1
        if self.mind == "random" or muddled:
            return _NONSENSE * 20
        thought = "I look at the request." if thinking != "disabled" and self.mind != "thoughtless" else ""
        start = "" if thinking == "enabled" else THINK
        opening = f"{start}{thought}{END}" if thought or thinking == "enabled" else ""
        if last["role"] == "tool":
            reading = "nothing" if self.mind == "forgetful" else last["content"]
            kept = any(m.get("reasoning") or m.get("reasoning_content") for m in body["messages"])
            return f"{opening}It reads {reading if kept else 'I do not know what'}."
        name = body["tools"][0]["function"]["name"]
        if order := _ORDER.search(asked):
            value = int(order[2]) + (self.mind == "wrong value")
            arguments = _element("station", order[1]) + _element("value", str(value))
        else:
            station = re.search(r"station '([^']+)'", asked)
            arguments = _element("station", station[1] if station else "")
        call = f'{NS}<invoke name="{name}">{arguments}{NS}</invoke>\n'
        return f"{opening}{NS}<tool_call>\n{call}{NS}</tool_call>"

    def _answer(self, text: str, body: dict[str, Any], finish: str) -> Answer:
        reasoning, content, calls = self._parsed(text, body)
        if calls:
            finish = "tool_calls"
        field = "reasoning" if self.flavour == "vllm" else "reasoning_content"
        usage = {"prompt_tokens": 100, "completion_tokens": len(text) // 3}
        if not body["stream"]:
            message = {"role": "assistant", "content": content, field: reasoning, "tool_calls": calls}
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return json.dumps({"choices": [choice], "usage": usage})
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{field: reasoning[at : at + PIECE]} for at in range(0, len(reasoning), PIECE)]
        deltas += [{"content": content[at : at + PIECE]} for at in range(0, len(content), PIECE)]
        deltas += [{"tool_calls": [{"index": number, **call}]} for number, call in enumerate(calls)]
        events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        if "cut" not in self.faults:
            events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        return [*events, {"choices": [], "usage": usage}]

    def _parsed(self, text: str, body: dict[str, Any]) -> tuple[str, str, list[dict[str, Any]]]:
        """Return reasoning, content and calls, as the server's parsers split the text."""
        thinking = body["chat_template_kwargs"]["thinking_mode"]
        reasoning, content = "", text
        leaks = "leaks when streamed" in self.faults and body["stream"] and thinking == "adaptive"
        spelt = self._pattern(body) is not None and not self._favours(body, END)
        if END in str(body["messages"][0]["content"]) and (
            "quoted tags always" in self.faults or ("quoted tags" in self.faults and thinking != "enabled")
        ):
            content = text.replace(THINK, "").replace(END, "")
            leaks = True
        if "no reasoning parser" not in self.faults and not leaks:
            if thinking == "enabled":
                reasoning, _, content = (text, "", "") if spelt else text.partition(END)
            elif THINK in text and not spelt:
                before, _, rest = text.partition(THINK)
                reasoning, _, after = rest.partition(END)
                content = before + after
        content, block, inside = content.partition(f"{NS}<tool_call>")
        if "no tool parser" in self.faults:
            return reasoning, content + block + inside, []
        invokes = re.findall(
            rf'{re.escape(NS)}<invoke name="(.*?)">(.*?){re.escape(NS)}</invoke>', inside, re.DOTALL
        )
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
        calls = []
        for number, (name, inner) in enumerate(invokes[: 1 if "one call" in self.faults else None]):
            arguments = self._value(_members(inner), schemas[name])
            function = {"name": name, "arguments": json.dumps(arguments)}
            calls.append({"id": f"c{number}", "type": "function", "function": function})
        return reasoning, content, calls

    def _value(self, raw: Any, schema: dict[str, Any]) -> Any:
        """Return a value converted by its schema; `raw` is a text or a list of (name, raw)."""
        if isinstance(raw, str):
            if "lost newline" in self.faults:
                raw = raw.removesuffix("\n")
            if "entities" in self.faults:
                raw = raw.replace("&amp;", "&")
            plain = schema["type"] == "string" or "strings" in self.faults
            return raw if plain else json.loads(raw)
        if schema["type"] == "array":
            return [self._value(inner, schema["items"]) for _, inner in raw]
        return {name: self._value(inner, schema["properties"][name]) for name, inner in raw}


def _element(name: str, body: str) -> str:
    return f"{NS}<{name}>{body}{NS}</{name}>"


def _members(body: str) -> str | list[tuple[str, Any]]:
    """Return the elements of a body, or its text if it has none."""
    if NS not in body:
        return body
    stack: list[tuple[str, list[tuple[str, Any]], str]] = [("", [], "")]
    for piece in body.split(NS)[1:]:
        tag, _, text = piece[1:].partition(">")
        if not tag.startswith("/"):
            stack.append((tag, [], text))
            continue
        name, inner, said = stack.pop()
        stack[-1][1].append((name, inner or said))
    return stack[0][1]
