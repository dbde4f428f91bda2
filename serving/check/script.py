"""The message that an engine is made to write, in M3's markup, and how each engine is made to write it.

Random weights write nonsense, and a real model writes what it likes. A grammar with one text in it makes both write that
text, through the engine's own tokenizer, reasoning parser and tool parser: what arrives can be compared to the letter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from m3agent.serving.endpoint import Flavour
from m3agent.serving.wire import Call, ThinkingMode, write

_SPECIAL = re.compile(r"([\\.^$*+?{}\[\]|()])")
_THINK, _END_THINK = "<mm:think>", "</mm:think>"

MARKERS = (_THINK, _END_THINK, "]<]minimax[>[")
"""Texts that are one token each in M3's vocabulary; parsers look for some of them by their ids."""


def _tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


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
    _tool("file_write", {"path": {"type": "string"}, "content": {"type": "string"}}),
    _tool(
        "plan",
        {
            "title": {"type": "string"},
            "steps": {"type": "array", "items": _STEP},
            "ratio": {"type": "number"},
            "strict": {"type": "boolean"},
        },
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
class Said:
    """A message: reasoning, visible text, and calls as (name, arguments); arguments that are no JSON stay a text."""

    reasoning: str
    text: str
    calls: tuple[tuple[str, Any], ...]


def wanted(thinking: ThinkingMode) -> Said:
    """What has to arrive; nothing is thought where thinking is disabled."""
    reasoning = "" if thinking == "disabled" else "The clock drifts: is `a < b`?\nI look first."
    return Said(reasoning, "Two calls, then I plan.", tuple((call.name, call.arguments) for call in _CALLS))


def markup(thinking: ThinkingMode) -> str:
    """The same as M3 writes it behind the prompt, which ends with the opening tag where thinking is enabled, and with
    the closing one where it is disabled."""
    said = wanted(thinking)
    text = write(said.reasoning, said.text, _CALLS)
    return text.removeprefix({"enabled": _THINK, "disabled": _END_THINK, "adaptive": ""}[thinking])


def expression(text: str) -> str:
    """A regular expression, in the notation of xgrammar and guidance, that matches `text` and nothing else."""
    return _SPECIAL.sub(r"\\\1", text).replace("\n", r"\n").replace("\t", r"\t")


def grammar(flavour: Flavour, text: str) -> dict[str, Any]:
    """The parameters of a chat request that make this engine write `text`; empty for one that cannot be made to.

    Sources: vLLM 0.24, entrypoints/openai/chat_completion/protocol.py; SGLang and TensorRT-LLM, their openai protocol.py.
    """
    pattern = expression(text)
    match flavour:
        case "vllm":
            return {"structured_outputs": {"regex": pattern}}
        case "sglang":
            return {"regex": pattern}
        case "trtllm":
            return {"response_format": {"type": "regex", "regex": pattern}}
    return {}
