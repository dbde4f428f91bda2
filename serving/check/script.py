"""The message that an engine is forced to write in M3's markup, and the way to force each engine.

Random weights write nonsense, and a real model writes what it wants. A grammar that allows only one text
makes both write that text. It passes the engine's own tokenizer, reasoning parser and tool parser, so the
result can be compared exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from m3agent.serving.client.endpoint import Flavour
from m3agent.serving.wire import Call, ThinkingMode, write

_SPECIAL = re.compile(r"([\\.^$*+?{}\[\]|()])")
_THINK, _END_THINK = "<mm:think>", "</mm:think>"

MARKERS = (_THINK, _END_THINK, "]<]minimax[>[")
"""Texts that are one token each in M3's vocabulary; parsers find some of them by their token ids."""


def tool(name: str, description: str, **properties: str | dict[str, Any]) -> dict[str, Any]:
    """Return a tool for a request; a property that is a text has the type of this name."""
    schemas = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in properties.items()}
    parameters = {"type": "object", "properties": schemas, "required": list(schemas)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


_STEP = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "lines": {"type": "integer"},
        "done": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}

TOOLS = [
    tool("file_write", "file_write", path="string", content="string"),
    tool(
        *("plan", "plan"),
        title="string",
        steps={"type": "array", "items": _STEP},
        ratio="number",
        strict="boolean",
    ),
]

_CODE = 'if a < b && "x" != \'y\':\n\tprint("é &amp; 日本 🙂 \\d{2}")\n'
_CALLS = (
    Call("file_write", {"path": "src/ünï/日.py", "content": _CODE}),
    Call(
        "plan",
        {
            "title": 'say "5" & <go>',
            "steps": [
                {"name": "first", "lines": 3, "done": True, "tags": ["a", "b c"]},
                {"name": "2", "lines": 0, "done": False, "tags": ["<x>"]},
            ],
            "ratio": 0.25,
            "strict": False,
        },
    ),
)


@dataclass(frozen=True)
class ScriptedMessage:
    """A message."""

    reasoning: str
    text: str
    calls: tuple[tuple[str, Any], ...]
    """Calls as (name, arguments); arguments that are not JSON stay text."""


def wanted(thinking: ThinkingMode) -> ScriptedMessage:
    """Return the message that has to arrive; it has no reasoning if thinking is disabled."""
    reasoning = "" if thinking == "disabled" else "The clock drifts: is `a < b`?\nI look first."
    return ScriptedMessage(
        reasoning, "Two calls, then I plan.", tuple((call.name, call.arguments) for call in _CALLS)
    )


def markup(thinking: ThinkingMode) -> str:
    """Return the message as M3 writes it after the prompt.

    The prompt ends with the opening think tag if thinking is enabled, and with the closing one if it is
    disabled.
    """
    message = wanted(thinking)
    text = write(message.reasoning, message.text, _CALLS)
    return text.removeprefix({"enabled": _THINK, "disabled": _END_THINK, "adaptive": ""}[thinking])


def expression(text: str) -> str:
    """Return a regular expression, as xgrammar and guidance read it, that matches only `text`."""
    return _SPECIAL.sub(r"\\\1", text).replace("\n", r"\n").replace("\t", r"\t")


def grammar(flavour: Flavour, text: str) -> dict[str, Any]:
    """Return the parameters of a chat request that force this engine to write `text`; empty if it has none.

    Sources: vLLM 0.24, entrypoints/openai/chat_completion/protocol.py; SGLang and TensorRT-LLM, their openai
    protocol.py.
    """
    pattern = expression(text)
    grammars: dict[Flavour, dict[str, Any]] = {
        "vllm": {"structured_outputs": {"regex": pattern}},
        "sglang": {"regex": pattern},
        "trtllm": {"response_format": {"type": "regex", "regex": pattern}},
    }
    return grammars.get(flavour, {})
