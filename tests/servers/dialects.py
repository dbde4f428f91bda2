"""One answer of M3 as each server streams it: with which fields, in which pieces, and between which other events.

Each dialect follows the server's source or documentation, or what its users recorded; the classes say which.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from m3agent.serving import wire

Chunk = dict[str, Any]

OPENAI = frozenset(
    {
        "messages",
        "model",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "max_tokens",
        "temperature",
        "top_p",
    }
)
TEMPLATE = OPENAI | {"top_k", "chat_template_kwargs"}


@dataclass(frozen=True)
class Answer:
    """The model's answer in one turn."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[wire.Call, ...] = ()

    @property
    def wire(self) -> str:
        """The text that the model writes."""
        return wire.write(self.reasoning, self.text, self.calls)

    @property
    def finish(self) -> str:
        return "tool_calls" if self.calls else "stop"


def pieces(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


class Dialect:
    """What all dialects share. `field` is where the server takes reasoning back, `flavour` the probe's name for it."""

    name: ClassVar[str]
    field: ClassVar[str] = "reasoning_content"
    flavour: ClassVar[str] = "unknown"
    accepts: ClassVar[frozenset[str]] = OPENAI
    done: ClassVar[bool] = True
    """Whether `[DONE]` ends the stream."""
    keep_alive: ClassVar[str] = ""
    """What the server sends between events."""

    def say(
        self, answer: Answer, size: int = 8, *, finish: str | None = None, tokens: int = 20
    ) -> list[Chunk]:
        """Return the chunks of an answer in pieces of `size` characters; `tokens` is the number in the usage."""
        return [
            *self.begin(),
            *self.think(answer.reasoning, size),
            *self.speak(answer.text, size),
            *self.call(answer.calls, size),
            *self.end(answer, finish or answer.finish, tokens),
        ]

    def leak(self, text: str, size: int = 8, *, finish: str = "stop", tokens: int = 20) -> list[Chunk]:
        """Return the chunks if the server takes all of the model's text for content."""
        end = self.end(Answer(text=text), finish, tokens)
        return [*self.begin(), *self.speak(text, size), *end]

    def leak_in_reasoning(
        self, text: str, answer: Answer, size: int = 8, *, finish: str = "stop"
    ) -> list[Chunk]:
        """Return the chunks if the server takes `text` for reasoning and `answer` for the rest."""
        whole = Answer(text, answer.text, answer.calls)
        return self.say(whole, size, finish=finish)

    def begin(self) -> list[Chunk]:
        return [self.chunk({"role": "assistant", "content": ""})]

    def think(self, text: str, size: int) -> list[Chunk]:
        return [self.chunk({self.field: piece}) for piece in pieces(text, size)]

    def speak(self, text: str, size: int) -> list[Chunk]:
        return [self.chunk({"content": piece}) for piece in pieces(text, size)]

    def call(self, calls: tuple[wire.Call, ...], size: int) -> list[Chunk]:
        """Return each call with its name and all arguments in one delta."""
        return [
            self.chunk({"tool_calls": [piece(index, made.name, arguments(made), f"call-{index}")]})
            for index, made in enumerate(calls)
        ]

    def end(self, answer: Answer, finish: str, tokens: int) -> list[Chunk]:
        return [self.chunk({}, finish), self.usage(tokens)]

    def chunk(self, delta: Chunk, finish: str | None = None) -> Chunk:
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1790000000,
            "model": "minimax-m3",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }

    def usage(self, tokens: int) -> Chunk:
        chunk = self.chunk({})
        counts = {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens}
        chunk |= {"choices": [], "usage": counts | {"prompt_tokens_details": {"cached_tokens": 64}}}
        return chunk


def arguments(call: wire.Call) -> str:
    return json.dumps(call.arguments, ensure_ascii=False)


def piece(index: int, name: str | None, text: str, identity: str | None) -> Chunk:
    """Return a piece of a call as an entry of `tool_calls`."""
    made: Chunk = {"index": index, "function": {"arguments": text}}
    if name is not None:
        made["function"]["name"] = name
    if identity is not None:
        made |= {"id": identity, "type": "function"}
    return made


class Vllm(Dialect):
    """vLLM 0.24: `reasoning`; a call is one delta, sent once the model has closed it; usage comes alone at the end."""

    name = "vllm"
    field = "reasoning"
    flavour = "vllm"
    accepts = TEMPLATE

    def chunk(self, delta: Chunk, finish: str | None = None) -> Chunk:
        chunk: Chunk = super().chunk(delta, finish)
        chunk["choices"][0] |= {"logprobs": None, "token_ids": None}
        return chunk


class Sglang(Dialect):
    """SGLang 0.5: every delta has every field, null if unused; arguments come in pieces."""

    name = "sglang"
    flavour = "sglang"
    accepts = TEMPLATE

    def call(self, calls: tuple[wire.Call, ...], size: int) -> list[Chunk]:
        return in_pieces(self, calls, size)

    def chunk(self, delta: Chunk, finish: str | None = None) -> Chunk:
        empty = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
        chunk: Chunk = super().chunk(empty | delta, finish) | {"usage": None}
        chunk["choices"][0] |= {"logprobs": None, "matched_stop": 200020 if finish == "stop" else None}
        return chunk

    def usage(self, tokens: int) -> Chunk:
        chunk: Chunk = super().usage(tokens)
        chunk["usage"] |= {"reasoning_tokens": 3}
        return chunk


class TensorRtLlm(Dialect):
    """TensorRT-LLM 1.3: omits null fields, sends the finish reason with the last words, and ends lines with a space."""

    name = "trtllm"
    flavour = "trtllm"
    accepts = TEMPLATE

    def begin(self) -> list[Chunk]:
        return [self.chunk({"role": "assistant"})]

    def think(self, text: str, size: int) -> list[Chunk]:
        return [self.chunk({"content": "", self.field: piece}) for piece in pieces(text, size)]

    def speak(self, text: str, size: int) -> list[Chunk]:
        return [self.chunk({"content": piece, self.field: ""}) for piece in pieces(text, size)]

    def call(self, calls: tuple[wire.Call, ...], size: int) -> list[Chunk]:
        return in_pieces(self, calls, size)

    def say(
        self, answer: Answer, size: int = 8, *, finish: str | None = None, tokens: int = 20
    ) -> list[Chunk]:
        return self._joined(super().say(answer, size, finish=finish, tokens=tokens))

    def leak(self, text: str, size: int = 8, *, finish: str = "stop", tokens: int = 20) -> list[Chunk]:
        return self._joined(super().leak(text, size, finish=finish, tokens=tokens))

    def _joined(self, chunks: list[Chunk]) -> list[Chunk]:
        *rest, last, end, usage = chunks
        last["choices"][0]["finish_reason"] = end["choices"][0]["finish_reason"]
        return [*rest, last, usage]

    def chunk(self, delta: Chunk, finish: str | None = None) -> Chunk:
        chunk: Chunk = super().chunk(delta, finish)
        if finish is None:
            del chunk["choices"][0]["finish_reason"]
        return chunk


class Dynamo(Dialect):
    """NVIDIA Dynamo: sends annotations as comments and as separate events, and has its own parsers behind `nvext`."""

    name = "dynamo"
    keep_alive = 'event: tool_call_dispatch\ndata: {"choice_index": 0}\n\n: worker_id=7\n\n'

    def chunk(self, delta: Chunk, finish: str | None = None) -> Chunk:
        empty = {"function_call": None, "tool_calls": None, "role": "assistant", "refusal": None}
        chunk: Chunk = super().chunk(empty | delta, finish) | {
            "system_fingerprint": None,
            "nvext": {"timing": None},
        }
        chunk["choices"][0]["logprobs"] = None
        return chunk


class MiniMax(Dialect):
    """MiniMax's own API with `reasoning_split`: the same reasoning in two fields, and the whole message at the end.

    Users see increments in the details (MiniMax-AI/MiniMax-M2#95).
    """

    name = "minimax"
    field = "reasoning_details"
    flavour = "minimax"
    accepts = OPENAI - {"tool_choice", "max_tokens"} | {
        "max_completion_tokens",
        "reasoning_split",
        "thinking",
    }
    done = False

    def begin(self) -> list[Chunk]:
        return [self.chunk({"role": "assistant", "content": "", "name": "MiniMax AI", "audio_content": ""})]

    def think(self, text: str, size: int) -> list[Chunk]:
        return [
            self.chunk({"role": "", "reasoning_content": piece, "reasoning_details": self.details(piece)})
            for piece in pieces(text, size)
        ]

    def details(self, text: str) -> list[Chunk]:
        entry = {"type": "reasoning.text", "id": "reasoning-text-1", "format": "MiniMax-response-v1"}
        return [entry | {"index": 0, "text": text}]

    def end(self, answer: Answer, finish: str, tokens: int) -> list[Chunk]:
        message = {
            "role": "assistant",
            "content": answer.text,
            "reasoning_content": answer.reasoning,
            "reasoning_details": self.details(answer.reasoning),
            "tool_calls": [
                piece(n, call.name, arguments(call), f"call-{n}") for n, call in enumerate(answer.calls)
            ],
        }
        last = self.usage(tokens)
        choice = {"index": 0, "message": self.whole(message), "finish_reason": finish}
        last |= {"object": "chat.completion", "choices": [choice]}
        return [self.chunk({"role": "", "content": ""}, finish), last]

    def whole(self, message: Chunk) -> Chunk:
        return message

    def chunk(self, delta: Chunk, finish: str | None = None) -> Chunk:
        chunk: Chunk = super().chunk(delta, finish)
        counts = {"total_tokens": 0, "total_characters": 0}
        return chunk | {
            "usage": counts,
            "input_sensitive": False,
            "output_sensitive": False,
            "base_resp": None,
        }

    def usage(self, tokens: int) -> Chunk:
        return super().usage(tokens) | {"base_resp": {"status_code": 0, "status_msg": ""}}


class MiniMaxCumulative(MiniMax):
    """As MiniMax documents it: the details and the content of each chunk repeat everything sent so far."""

    name = "minimax-cumulative"

    def think(self, text: str, size: int) -> list[Chunk]:
        ends = range(size, len(text) + size, size)
        return [
            self.chunk({"reasoning_content": text[:end], "reasoning_details": self.details(text[:end])})
            for end in ends
            if text
        ]

    def speak(self, text: str, size: int) -> list[Chunk]:
        return [self.chunk({"content": text[:end]}) for end in range(size, len(text) + size, size) if text]


class MiniMaxInline(MiniMax):
    """MiniMax's own API without `reasoning_split`: `<think>` in the content, and the same text as reasoning."""

    name = "minimax-inline"
    reasoning_too: ClassVar[bool] = True

    def think(self, text: str, size: int) -> list[Chunk]:
        if not text:
            return []
        marks = [self.chunk({"content": mark}) for mark in ("<think>\n", "\n</think>\n\n")]
        both = [
            self.chunk({"content": piece} | ({"reasoning_content": piece} if self.reasoning_too else {}))
            for piece in pieces(text, size)
        ]
        return [marks[0], *both, marks[1]]

    def whole(self, message: Chunk) -> Chunk:
        thought = message["reasoning_content"]
        del message["reasoning_details"]
        if not self.reasoning_too:
            del message["reasoning_content"]
        return message | {"content": f"<think>\n{thought}\n</think>\n\n{message['content']}"}


class MiniMaxTags(MiniMaxInline):
    """Like `MiniMaxInline`, but the reasoning is in the content only."""

    name = "minimax-tags"
    reasoning_too = False


class OpenRouter(Dialect):
    """OpenRouter: comments while it waits, reasoning as text and as details in one delta, and the cost in the usage."""

    name = "openrouter"
    field = "reasoning"
    flavour = "openrouter"
    accepts = OPENAI | {"reasoning"}
    keep_alive = ": OPENROUTER PROCESSING\n\n"

    def think(self, text: str, size: int) -> list[Chunk]:
        entry = {"type": "reasoning.text", "format": "unknown", "index": 0}
        return [
            self.chunk({"content": "", "reasoning": piece, "reasoning_details": [entry | {"text": piece}]})
            for piece in pieces(text, size)
        ]

    def call(self, calls: tuple[wire.Call, ...], size: int) -> list[Chunk]:
        return in_pieces(self, calls, size)

    def chunk(self, delta: Chunk, finish: str | None = None) -> Chunk:
        chunk: Chunk = super().chunk({"role": "assistant"} | delta, finish) | {"provider": "Minimax"}
        chunk["choices"][0] |= {"native_finish_reason": finish, "logprobs": None}
        return chunk

    def usage(self, tokens: int) -> Chunk:
        chunk: Chunk = super().usage(tokens)
        chunk |= {"choices": self.chunk({"content": ""})["choices"]}
        chunk["usage"] |= {"cost": 0.0012, "completion_tokens_details": {"reasoning_tokens": 3}}
        return chunk


class LlamaCpp(Dialect):
    """llama.cpp's server: null content in the first delta, and timings beside the usage."""

    name = "llamacpp"
    flavour = "unknown"

    def begin(self) -> list[Chunk]:
        return [self.chunk({"role": "assistant", "content": None})]

    def call(self, calls: tuple[wire.Call, ...], size: int) -> list[Chunk]:
        return in_pieces(self, calls, size)

    def usage(self, tokens: int) -> Chunk:
        return super().usage(tokens) | {"timings": {"cache_n": 64, "prompt_n": 36, "predicted_n": tokens}}


def in_pieces(dialect: Dialect, calls: tuple[wire.Call, ...], size: int) -> list[Chunk]:
    """Return each call with its name first, then its arguments in pieces without name and id."""
    chunks: list[Chunk] = []
    for index, made in enumerate(calls):
        chunks.append(dialect.chunk({"tool_calls": [piece(index, made.name, "", f"call-{index}")]}))
        for text in pieces(arguments(made), size):
            nameless: Chunk = {"index": index, "id": None, "function": {"name": None, "arguments": text}}
            chunks.append(dialect.chunk({"tool_calls": [nameless]}))
    return chunks


DIALECTS: tuple[Dialect, ...] = (
    Vllm(),
    Sglang(),
    TensorRtLlm(),
    Dynamo(),
    MiniMax(),
    MiniMaxCumulative(),
    MiniMaxInline(),
    MiniMaxTags(),
    OpenRouter(),
    LlamaCpp(),
)


def frames(chunks: list[Chunk], dialect: Dialect, *, newline: str = "\n") -> list[bytes]:
    """Return the chunks as events of a stream, with the server's keep-alives and end mark."""
    events = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks]
    if dialect.keep_alive:
        events = [part for event in events for part in (dialect.keep_alive, event)]
    if dialect.done:
        events.append("data: [DONE]\n\n")
    return [event.replace("\n", newline).encode() for event in events]


def writes(sent: list[bytes], size: int) -> list[bytes]:
    """Return the same bytes in writes of another size, which may join events and split characters."""
    whole = b"".join(sent)
    return [whole[start : start + size] for start in range(0, len(whole), size)]
