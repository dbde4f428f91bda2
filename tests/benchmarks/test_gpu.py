"""The benchmarks for a machine with a GPU, against a server that follows their grammar as the engine does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu.appliance import unexpected
from benchmarks.gpu.planted import FAULTS, PlantingProxy
from benchmarks.gpu.proxy import ScriptingProxy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from m3agent.serving.check.prefix_checks import partial_prefix_check
from m3agent.serving.check.reasoning_check import reasoning_check
from m3agent.serving.check.script import expression
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.wire import Call, write
from tests.cli.test_serve import Machine
from tests.servers.forced import ForcedServer
from tests.servers.loopback import LoopbackServer, QuietHandler
from tests.servers.prefixes import PrefixServer

ROOT = Path(__file__).resolve().parents[2]


class GrammarServer(LoopbackServer):
    """Answers with the text that the regular expression in a request matches, as content in pieces of seven characters.

    With `encode`, it reports the ids of the tokens. Its cache holds only whole prompts. The other pages are those that an examination and the benchmarks need of vLLM.
    """

    def __init__(self, encode: Callable[[str], list[int]] | None = None) -> None:
        self.encode = encode
        self.asked: list[bytes] = []
        self.begun: set[str] = set()
        server = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                self._send(
                    {
                        "data": [{"id": "m3", "owned_by": "vllm", "max_model_len": 1048576}],
                        "version": "0.24.0",
                    }
                )

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = json.loads(body)
                if self.path == "/tokenize":
                    self._send({"count": len(request["prompt"]) // 4})
                elif self.path == "/v1/chat/completions":
                    beginning = str(
                        request["messages"][-1 if len(request["messages"]) == 1 else 1]["content"]
                    )
                    known = beginning in server.begun
                    server.begun.add(beginning)
                    server.asked.append(body)
                    self._stream(request, len(body) // 4, known)
                else:
                    self.send_error(404)

            def _send(self, answer: dict[str, Any]) -> None:
                self.answer(200, json.dumps(answer).encode())

            def _stream(self, request: dict[str, Any], prompt: int, known: bool) -> None:
                text = said(request.get("structured_outputs", {}).get("regex", "nonsense"))
                pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
                events: list[dict[str, Any]] = [
                    {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
                    for piece in pieces
                ]
                if request.get("return_token_ids") and server.encode is not None:
                    for event, piece in zip(events, pieces, strict=True):
                        event["choices"][0]["token_ids"] = server.encode(piece)
                    events[0]["prompt_token_ids"] = server.encode(rendered(request["messages"]))
                events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
                details = {"cached_tokens": prompt if known else 0}
                usage = {"prompt_tokens": prompt, "completion_tokens": 7, "prompt_tokens_details": details}
                events.append({"choices": [], "usage": usage})
                data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
                self.answer(200, data.encode(), {"Content-Type": "text/event-stream"})

        super().__init__(Handler)

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"


def rendered(messages: list[dict[str, Any]]) -> str:
    """Return a conversation as one text, as a chat template does that repeats each answer as the model wrote it."""
    text = ""
    for message in messages:
        content = message["content"]
        if message["role"] == "assistant":
            made = [call["function"] for call in message.get("tool_calls", ())]
            calls = [Call(call["name"], json.loads(call["arguments"])) for call in made]
            content = write(message.get("reasoning", ""), content, calls)
        text += f"<{message['role']}>{content}"
    return f"{text}<assistant>"


def said(pattern: str) -> str:
    """Return the only text that a regular expression made by `expression` matches."""
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), pattern)


def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.gpu.{script}", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    "text",
    ["", "a.b*c", "x\n\ty\\n", "]<]minimax[>[<tool_call>", "(a|b)+?{2}^$ & é # - ~", write("r", "t", [])],
)
def test_an_expression_matches_its_text_alone(text: str) -> None:
    assert re.fullmatch(expression(text), text)
    assert said(expression(text)) == text
    assert not re.fullmatch(expression(text), text + "x")


@pytest.mark.integration
def test_the_proxy_adds_the_line_and_nothing_else() -> None:
    lines = [write("one", "", [Call("f", {"x": "é\n"})]), write("two", "end", [])]
    with GrammarServer() as server, ScriptingProxy(server.url, lines) as proxy:
        for assistants in (0, 1, 5):
            messages = [
                {"role": "user", "content": "ü"},
                *[{"role": "assistant", "content": ""}] * assistants,
            ]
            body = json.dumps({"messages": messages, "model": "m3"}, ensure_ascii=False).encode()
            request = urllib.request.Request(f"{proxy.url}/chat/completions", body, method="POST")
            with urllib.request.urlopen(request) as answer:
                assert answer.headers["Content-Type"] == "text/event-stream"
                assert answer.read() == proxy.answers[-1]
            assert server.asked[-1].startswith(body[:-1] + b",")
            told = json.loads(server.asked[-1])["structured_outputs"]["regex"]
            assert said(told) == lines[min(assistants, 1)]
        assert len(proxy.requests) == 3


@pytest.mark.slow
def test_a_scripted_fix(tmp_path: Path) -> None:
    with GrammarServer() as server:
        done = run("fix", "--url", server.url, "--json", str(tmp_path / "fix.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "call markup in content" in done.stdout
    assert json.loads((tmp_path / "fix.json").read_text())["faults"] == []


@pytest.mark.slow
def test_cached_turns(tmp_path: Path) -> None:
    with GrammarServer() as server:
        args = ("--url", server.url, "--tokens", "20000", "--turns", "3", "--json", str(tmp_path / "c.json"))
        done = run("cached_turns", *args)
    assert "cached share 1.0000 at least" in done.stdout, done.stdout + done.stderr
    [found] = json.loads((tmp_path / "c.json").read_text())
    assert {name: len(each) for name, each in found["seconds"].items()} == dict.fromkeys(
        ("m3agent", "bare", "openai sdk"), 3
    )


@pytest.fixture
def byte_tokenizer(tmp_path: Path) -> Tokenizer:
    """Return a tokenizer with one token for each byte, which is also in tokenizer.json."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: ident for ident, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("faithful", [True, False])
def test_prompts_of_a_fix_only_grow(tmp_path: Path, byte_tokenizer: Tokenizer, faithful: bool) -> None:
    def encode(text: str) -> list[int]:
        if not faithful:  # a template that drops earlier reasoning
            text = re.sub(
                r"One test fails: the fourth van.*?try it\.(?=.*<assistant>$)", "", text, flags=re.DOTALL
            )
        return list(byte_tokenizer.encode(text).ids)

    with GrammarServer(encode) as server:
        done = run("training", "--url", server.url, "--tokenizer", str(tmp_path / "tokenizer.json"))
    assert done.returncode == (0 if faithful else 1), done.stdout + done.stderr
    assert "10 of 10 turns have tokens" in done.stdout
    assert done.stdout.count("| equal | equal | equal |") == (9 if faithful else 8)


@pytest.mark.integration
@pytest.mark.parametrize("name", FAULTS)
async def test_each_planted_fault_fails_its_check(name: str) -> None:
    check, path, change = FAULTS[name]
    servers = {"partial prefix": PrefixServer(), "reasoning end": ForcedServer("quoted tags", mind="random")}
    with servers[check] as server, PlantingProxy(server.url, path, change) as proxy:
        at = [
            Endpoint(url, "m3", "vllm", "0.33.0", 131_072, "reasoning", local=True)
            for url in (server.url, proxy.url)
        ]
        run = partial_prefix_check if check == "partial prefix" else reasoning_check
        (sound,), (planted,) = [await run(endpoint, api_key=None) for endpoint in at]
    assert sound.ok, sound
    assert planted.ok is False and planted.fix, planted
    assert proxy.planted


def result(**checks: bool | None) -> dict[str, Any]:
    named = {name.replace("_", " "): ok for name, ok in checks.items()}
    rows = {name: {"ok": ok, "detail": "why", "fix": "" if ok else "do so"} for name, ok in named.items()}
    return {"exit": 0, "seconds": 1.0, "said": "", "planted": 3, "checks": rows}


def test_what_an_appliance_run_does_not_expect() -> None:
    good = result(reasoning_end=True, partial_prefix=True, restored_prefix=True, tool_call=False)
    faults = {name: result(**{check.replace(" ", "_"): False}) for name, (check, _, _) in FAULTS.items()}
    found = {"sound": good, "faults": faults}
    assert unexpected(found, evict=True) == []
    assert unexpected({**found, "sound": None}, evict=False)
    bad = result(reasoning_end=False, partial_prefix=None)
    assert unexpected({**found, "sound": bad}, evict=False) == [
        "reasoning end failed on the sound engine: why",
        "partial prefix was not decided on the sound engine: why",
    ]
    missed = {"a block wrong": None, "a block dropped": good, "thinking adaptive": good | {"planted": 0}}
    wrong = unexpected({**found, "faults": missed}, evict=False)
    assert [line.partition(":")[0] for line in wrong] == list(FAULTS)


@pytest.mark.slow
@pytest.mark.integration
def test_an_appliance_run_from_start_to_end(tmp_path: Path) -> None:
    machine, out = Machine(tmp_path), tmp_path / "out"
    machine.play |= {"prefixes": True, "faults": ["quoted tags"], "mind": "random"}
    words = ["--out", str(out), "--seconds", "170", "--", *machine.words()[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.appliance", *words],
        cwd=ROOT,
        env={**os.environ, **machine.env()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "appliance.json").read_text())
    assert found["unexpected"] == []
    assert found["faults"]["a block wrong"]["checks"]["partial prefix"]["ok"] is False
    assert (out / "engine.log").stat().st_size and (out / "serve.log").stat().st_size
    assert not machine.holders(), "the engine has ended"
