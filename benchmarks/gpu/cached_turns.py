"""What our client adds to the wait for a turn whose prefix the engine has cached, at the lengths M3 is for.

    python -m benchmarks.gpu.cached_turns --url http://127.0.0.1:8000/v1 --tokens 131072,524288 [--turns 9] [--json FILE]

A conversation begins with real Python source of so many tokens. Then each turn appends a call and its result, and the
time from the call of a client to the first event of the answer is taken: with m3agent's client, with a bare HTTP request
whose body was encoded before the clock starts, and with the OpenAI SDK as everybody uses it. The three take turns within
one growing conversation, in changing order, so that each finds the same prefix cached and the same server. Cold is the
very first request. Medians; cached shares as the engine reports them. The weights of the engine may be random.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.common import write_json

from m3agent.serving.check.prefix_probe import examine
from m3agent.serving.client.client import Client
from m3agent.serving.client.endpoint import Endpoint, probe
from m3agent.serving.client.messages import Turn

MOST_RATIO = 1.15
LEAST_SHARE = 0.99
ANSWER_TOKENS = 8
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "file_read",
            "description": "Read lines of a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
            },
        },
    }
]
PARAMETERS: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": TOOLS,
    "tool_choice": "auto",
    "max_tokens": ANSWER_TOKENS,
    "temperature": 1.0,
    "top_p": 0.95,
}
TEMPLATE: dict[str, Any] = {"top_k": 40, "chat_template_kwargs": {"thinking_mode": "disabled"}}


@dataclass
class Asked:
    """The measurement of one request: seconds to the first event, and the tokens of the prompt."""

    first: float
    prompt: int | None
    cached: int | None


@dataclass
class Length:
    """The measurements at one length of the prompt.

    Attributes:
        tokens: Tokens of the first prompt.
        cold: Seconds of the first request.
        seconds: Seconds of each later request, by client.
        shares: Cached share of the prompt in each later request.
    """

    tokens: int
    cold: float = 0.0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    shares: list[float] = field(default_factory=list)


def python_source(characters: int) -> str:
    """Return real source code of that length, always the same: the standard library, then installed packages."""
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib"))
    texts, size = [], 0
    for path in (path for folder in folders for path in sorted(Path(folder).rglob("*.py"))):
        text = path.read_text(encoding="utf-8", errors="replace")
        texts.append(f'<file path="{path.name}">\n{text}\n</file>\n')
        size += len(texts[-1])
        if size >= characters:
            break
    return "".join(texts)[:characters]


async def ours(client: Client, messages: list[dict[str, Any]]) -> Asked:
    """Measure a request of m3agent's client."""
    called = time.perf_counter()
    turn = None
    async for item in client.complete(messages, TOOLS, max_tokens=ANSWER_TOKENS, thinking="disabled"):
        turn = item if isinstance(item, Turn) else turn
    wall = time.perf_counter() - called
    assert turn is not None
    assert turn.first_token_seconds is not None
    before = wall - turn.seconds  # time for encoding, before the request starts
    return Asked(before + turn.first_token_seconds, turn.usage.prompt, turn.usage.cached)


def bare(endpoint: Endpoint, messages: list[dict[str, Any]]) -> Asked:
    """Measure a request on an open connection whose bytes are encoded before the clock starts."""
    parts = urlsplit(endpoint.url)
    body = json.dumps({"messages": messages, "model": endpoint.model, **PARAMETERS, **TEMPLATE}).encode()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
    connection.connect()
    called = time.perf_counter()
    connection.request("POST", f"{parts.path}/chat/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    first = 0.0
    usage: dict[str, Any] = {}
    for line in answer:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - called
            usage = json.loads(line[6:]).get("usage") or usage
    connection.close()
    return Asked(
        first, usage.get("prompt_tokens"), (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    )


async def sdk(endpoint: Endpoint, messages: list[dict[str, Any]]) -> Asked:
    """Measure a request of the OpenAI SDK."""
    import openai

    async with openai.AsyncOpenAI(base_url=endpoint.url, api_key="none", timeout=600) as client:
        await client.models.list()  # opens the connection, because the other clients have an open one
        create: Any = client.chat.completions.create
        called = time.perf_counter()
        stream = await create(messages=messages, model=endpoint.model, extra_body=TEMPLATE, **PARAMETERS)
        first, usage = 0.0, None
        async for chunk in stream:
            first = first or time.perf_counter() - called
            usage = chunk.usage or usage
    details = usage.prompt_tokens_details if usage is not None else None
    return Asked(first, usage.prompt_tokens if usage else None, details.cached_tokens if details else None)


def grow(messages: list[dict[str, Any]], turn: int) -> None:
    """Append a call and its result, about 500 tokens, as a turn of an agent would."""
    arguments = json.dumps({"path": f"src/module_{turn}.py"})
    call = {
        "id": f"call_{turn}",
        "type": "function",
        "function": {"name": "file_read", "arguments": arguments},
    }
    result = "".join(f"{n}\tvalue_{turn}_{n} = compute({n}, scale={turn})\n" for n in range(1, 31))
    messages.append({"role": "assistant", "content": f"I read module {turn}.", "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def measure(endpoint: Endpoint, text: str, tokens: int, turns: int) -> Length:
    """Measure one conversation: a cold request, then `turns` rounds with one request of each client."""
    found = Length(tokens)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": f"{text}\nFix the bug."},
    ]
    async with Client(endpoint, api_key=None) as client:
        asked = await ours(client, messages)
        found.cold, found.tokens = asked.first, asked.prompt or tokens
        ways: list[tuple[str, Callable[[], Any]]] = [
            ("m3agent", lambda: ours(client, messages)),
            ("bare", lambda: asyncio.to_thread(bare, endpoint, messages)),
            ("openai sdk", lambda: sdk(endpoint, messages)),
        ]
        for turn in range(turns):
            for name, way in ways[turn % 3 :] + ways[: turn % 3]:
                grow(messages, len(messages))
                asked = await way()
                found.seconds.setdefault(name, []).append(asked.first)
                if asked.cached is not None and asked.prompt:
                    found.shares.append(asked.cached / asked.prompt)
    return found


async def run(options: argparse.Namespace) -> int:
    """Measure all lengths and print the table."""
    endpoint = await probe(options.url, api_key=None, model=None)
    findings = await examine(endpoint, api_key=None, timeout=60)
    print(f"{endpoint.flavour} {endpoint.version}, window {endpoint.max_model_len}, {findings}", flush=True)
    lengths: list[Length] = []
    for tokens in options.tokens:
        text = python_source(5 * tokens)
        text = text[: int(len(text) * tokens / await asyncio.to_thread(count, endpoint, text))]
        lengths.append(await measure(endpoint, text, tokens, options.turns))
        print(row(lengths[-1]), flush=True)
    write_json(options.json, lengths)
    return 0 if all(map(fine, lengths)) else 1


def count(endpoint: Endpoint, text: str) -> int:
    """Return the number of a text's tokens, as the server counts them."""
    parts = urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
    body = json.dumps({"model": endpoint.model, "prompt": text})
    connection.request("POST", "/tokenize", body, {"Content-Type": "application/json"})
    return int(json.loads(connection.getresponse().read())["count"])


def ratio(length: Length) -> float:
    """Return the median time of m3agent's client divided by that of the bare request."""
    return median(length.seconds["m3agent"]) / median(length.seconds["bare"])


def fine(length: Length) -> bool:
    """Return whether the measurements at a length meet the targets."""
    return ratio(length) <= MOST_RATIO and min(length.shares, default=0.0) >= LEAST_SHARE


def row(length: Length) -> str:
    """Return the measurements at a length as a line of text."""
    waits = ", ".join(f"{name} {median(each):.3f}" for name, each in length.seconds.items())
    return (
        f"{length.tokens:>9,} tokens: cold {length.cold:.2f} s; cached turns, s to the first event: {waits};"
        f" ours/bare {ratio(length):.3f}; cached share {min(length.shares, default=0):.4f} at least"
        f" [{'met' if fine(length) else 'MISSED'}]"
    )


def main() -> int:
    """Read the options and run the benchmark."""
    parser = argparse.ArgumentParser(
        description="the wait for a cached turn, through our client and without it"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument(
        "--tokens", type=lambda text: [int(each) for each in text.split(",")], default=[131_072]
    )
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the numbers there")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
