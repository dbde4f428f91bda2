"""Check whether tokenizer, grammar and both parsers carry M3's messages; any weights will do.

The engine is forced to write one message (see `script`). The result is compared exactly, in two forms: as the
server's own parsers return it, and as m3agent's client reads it. The client repairs known faults of servers.
So there are three outcomes: correct; wrong but repaired by the client; lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from m3agent.serving.check.check import Check
from m3agent.serving.check.dual_read import DualReading, faults, hear
from m3agent.serving.check.prefix_probe import Findings, examine, examined_checks
from m3agent.serving.check.script import MARKERS, ScriptedMessage, grammar, markup, wanted
from m3agent.serving.client.client import Client
from m3agent.serving.client.endpoint import Endpoint, Flavour
from m3agent.serving.client.http import open_client
from m3agent.serving.client.tokenize import token_ids
from m3agent.serving.errors import (
    DeadlineExceeded,
    EndpointRefused,
    EndpointUnreachable,
    ModelServerError,
    shorten,
)
from m3agent.serving.plan.engines import ENGINES
from m3agent.serving.wire import ThinkingMode

LIMIT = 120.0
"""Time limit of one answer in seconds.

A server's first answers may wait half a minute for kernels to compile.
"""

EXAMINE_SECONDS = 60.0

_Outcome: TypeAlias = tuple[str, bool | None, list[str]]
"""The way of the request (streamed or whole), the verdict of `_judge`, and the faults."""

_TASTE = 24  # tokens of the first short answer
_FAVOURED = 100.0  # largest logit bias that engines accept
# Most characters that the model may write before the grammar applies. It is one token, unless thinking is disabled.
_LOOSE = 40
_MODES: tuple[tuple[str, ThinkingMode], ...] = (
    ("no thinking", "disabled"),
    ("thinking adaptive", "adaptive"),
    ("thinking enabled", "enabled"),
)


async def wire_check(
    endpoint: Endpoint,
    *,
    api_key: str | None,
    context: int | None,
    tokenizer: Path | None,
    listen: Callable[[str], None] = lambda _: None,
    findings: Findings | None = None,
    limit: float = LIMIT,
) -> list[Check]:
    """Check a server that has just started; never raise because of the server's answers.

    Args:
        context: Context window in tokens that the server was started with; None if the user named none.
        tokenizer: The model's tokenizer.json or its folder; None if it is not on this machine.
        findings: Results of an examination; None makes the function examine the server.
    """
    checks: list[Check] = []
    if not grammar(endpoint.flavour, ""):
        detail = f"not tried: {endpoint.host} is not vLLM, SGLang or TensorRT-LLM"
        checks += [Check(name, None, detail) for name, _ in _MODES]
    else:
        bias = await marker_bias(endpoint, api_key)
        async with Client(endpoint, api_key=api_key, attempts=1) as client:
            silent = False
            for name, thinking in _MODES:
                if silent:  # a further attempt would only wait for the same timeout
                    checks.append(Check(name, None, "not tried"))
                    continue
                listen(f"a message forced by a grammar, {name}")
                trial = _Trial(client, name, thinking, bias, limit)
                checks.append(await trial.check())
                silent, bias = trial.silent, trial.bias
    checks.append(context_check(endpoint, context))
    listen("token ids")
    checks.append(await ids_check(endpoint, api_key=api_key, tokenizer=tokenizer))
    if findings is None:
        listen("prefix cache and tokenizer")
        findings = await examine(endpoint, api_key=api_key, timeout=min(limit, EXAMINE_SECONDS))
    return [*checks, *examined_checks(endpoint, findings)]


def context_check(endpoint: Endpoint, context: int | None) -> Check:
    """Check whether the context window is the wanted one."""
    name, length = "context", endpoint.max_model_len
    if length is None:
        return Check(name, None, "the server does not report its context window")
    if context is None:
        return Check(name, None, f"{length:,} tokens; no window was requested")
    if length == context:
        return Check(name, True, f"{length:,} tokens, as requested")
    fix = "check --max-model-len (SGLang: --context-length) in the server's command"
    return Check(name, False, f"{length:,} tokens, {context:,} were requested", fix)


async def marker_bias(endpoint: Endpoint, api_key: str | None) -> dict[str, float]:
    """Return a logit bias for the tokens of M3's markers; empty if the server does not report token ids.

    Random weights may spell a marker with other tokens, and parsers recognise only the marker's own token id.
    """
    async with open_client(endpoint.url, api_key, connect=CONNECT_SECONDS, read=SECONDS) as client:
        try:
            markers = [await token_ids(client, endpoint, marker, api_key) for marker in MARKERS]
        except ModelServerError:
            return {}
    return {str(ids[0]): _FAVOURED for ids in markers if ids is not None and len(ids) == 1}


@dataclass
class _Trial:
    """One message in one thinking mode, requested streamed and whole."""

    _client: Client
    _name: str
    _thinking: ThinkingMode
    bias: dict[str, float]  # empty after the server has refused it
    _limit: float
    silent: bool = False  # True if the server did not answer at all

    def __post_init__(self) -> None:
        self._wanted = wanted(self._thinking)
        self._flavour: Flavour = self._client.endpoint.flavour

    async def check(self) -> Check:
        """Request the message twice and compare it."""
        outcomes: list[_Outcome] = []
        how = "streamed"
        try:
            # Most servers apply no grammar while the model thinks. A few tokens show that. The short answer uses no
            # logit bias, because a free model would write the favoured end of thinking at once.
            if self._thinking == "enabled" and not self._is_bound(await self._ask(stream=True, taste=True)):
                return self._free()
            for how in ("streamed", "whole"):
                outcomes.append((how, *self._judge(await self._ask(stream=how == "streamed"))))
        except EndpointRefused as error:
            if self.bias and "logit_bias" in error.text:  # vLLM takes none beside a draft (0.24.0, measured)
                self.bias = {}
                return await self.check()
            if self._flavour == "trtllm" and error.status in (400, 422):
                fix = "set guided_decoding_backend: xgrammar in its options to enable this check"
                return Check(self._name, None, f"it accepts no grammar: {shorten(error.text)}", fix)
            return Check(self._name, False, f"{how}: {error}")
        except ModelServerError as error:
            self.silent = isinstance(error, EndpointUnreachable | DeadlineExceeded)
            return Check(self._name, False, f"{how}: {error}")
        return self._verdict(outcomes)

    async def _ask(self, *, stream: bool, taste: bool = False) -> DualReading:
        """Return the answer, or with `taste` its first few tokens."""
        text = markup(self._thinking)
        forced = grammar(self._flavour, text)
        if self.bias and not taste:
            forced["logit_bias"] = self.bias
        return await hear(
            self._client,
            "Fix the clock.",
            self._thinking,
            # With random weights each byte may become a token.
            max_tokens=_TASTE if taste else len(text.encode()) + 16,
            seconds=self._limit,
            stream=stream,
            **forced,
        )

    def _is_bound(self, heard: DualReading) -> bool:
        """Return whether the grammar controls the answer: part of the message stands near its beginning."""
        firsts = [text[:12] for text in (self._wanted.reasoning, self._wanted.text) if text]
        return any(first in heard.beginning[: _LOOSE + len(first)] for first in firsts)

    def _free(self) -> Check:
        detail = "not tried: this server applies no grammar during thinking"
        how = """--structured-outputs-config '{"enable_in_reasoning": true}' enables this check"""
        return Check(self._name, None, detail, how if self._flavour == "vllm" else "")

    def _judge(self, heard: DualReading) -> tuple[bool | None, list[str]]:
        """Compare the answer with the message.

        Returns:
            True if it is correct, None if the client repairs it, False if something is lost; and the faults.
        """
        wrong = faults(heard.plain, self._wanted)
        if not wrong:
            reason = heard.finish
            return True, [] if reason == "tool_calls" else [f"its finish reason is {reason!r}"]
        if self._fits_loosely(heard.plain):
            return True, ["as written, after the model's own token"]
        if heard.ours == self._wanted or self._fits_loosely(heard.ours):
            return None, wrong
        if not heard.beginning:
            return False, ["the answer is empty"]
        if not self._is_bound(heard):
            return False, [f"the answer does not follow the grammar: {shorten(heard.beginning[:60])!r}"]
        # Losses come first. The other faults follow, so that the user can fix all at once.
        return False, list(dict.fromkeys([*faults(heard.ours, self._wanted), *wrong]))

    def _fits_loosely(self, said: ScriptedMessage) -> bool:
        """Return whether the message is complete after one token of the model's own.

        With thinking adaptive, the grammar begins after the first token. So it does in vLLM 0.24 with a draft and thinking
        enabled, measured with random weights.
        """
        more = len(said.reasoning) + len(said.text) - len(self._wanted.reasoning) - len(self._wanted.text)
        return (
            self._thinking != "disabled"
            and more <= _LOOSE
            and said.calls == self._wanted.calls
            and said.reasoning.endswith(self._wanted.reasoning)
            and said.text.endswith(self._wanted.text)
        )

    def _verdict(self, outcomes: list[_Outcome]) -> Check:
        if all(right and not notes for _, right, notes in outcomes):
            parts = (
                "text and both calls" if self._thinking == "disabled" else "reasoning, text and both calls"
            )
            return Check(self._name, True, f"{parts} as written, streamed and whole")
        ways_by_words: dict[str, list[str]] = {}
        for how, right, notes in outcomes:
            words = "; ".join(notes) or "as written"
            ways_by_words.setdefault(f"{words} (m3agent corrects it)" if right is None else words, []).append(
                how
            )
        detail = "; ".join(f"{' and '.join(ways)}: {words}" for words, ways in ways_by_words.items())
        lost = any(right is False for _, right, _ in outcomes)
        return Check(self._name, not lost, detail, self._remedy(outcomes))

    def _remedy(self, outcomes: list[_Outcome]) -> str:
        """Return the options for missing or wrong parsers.

        If a parser is right at least once, it is installed. Then the fault is the engine's, and no option
        fixes it.
        """
        if any(right for _, right, _ in outcomes):
            return ""
        notes = " ".join(note for _, _, found in outcomes for note in found)
        options = []
        if "reasoning" in notes or "think tags" in notes:
            options.append(ENGINES[self._flavour].reasoning_parser)
        if "call" in notes:
            options.append(ENGINES[self._flavour].tool_parser)
        return f"start it with {' '.join(options)}" if options else ""


CONNECT_SECONDS, SECONDS = 10.0, 30.0
"""Timeouts in seconds of a connection, and of one answer of `/tokenize`."""
_FILE = "tokenizer.json"
_FIX = "use the checkpoint's own tokenizer, without a fast one (VLLM_USE_FASTOKENS, --tokenizer-backend)"

SAMPLES = (
    "def f(x: int) -> dict[str, int]:\n    return {'a': x ** 2, \"b\": 0x1F}  # etc.\n\n\nclass A:\n\tpass\r\n",
    "if (a<b&&c>=d){std::vector<int> v{1,2};}// <div class='x'>&amp;</div> \\d+\\.\\w*",
    "漢字とかな交じり文。한국어 텍스트, это русский, עברית, ไทย, Đặng Thị",
    "🙂🙃 👩‍👩‍👧‍👦 🇩🇪 e\u0301 é ﬁ \u200b\u00a0\ufeff x",
    " \n  \n\t\t\n        x   y\t z\n\n\n\n   \n" + " " * 37 + "end" + "\n" * 9,
    "1234567890 3.14159 1e-9 1,000,000 v0.24.0 'tis don't WE'LL ALLCAPS camelCaseName snake_case_name",
    "".join(f"a{marker}b {marker}\n" for marker in (*MARKERS, "]~b]user\n", "[e~[", "]<]image[>[")),
)
"""Code, many scripts, emoji, runs of white space, numbers, and the texts of special tokens."""


async def ids_check(endpoint: Endpoint, *, api_key: str | None, tokenizer: Path | None) -> Check:
    """Compare the token ids of `SAMPLES`.

    Args:
        tokenizer: The model's tokenizer.json or its folder; None if it is not on this machine.
    """
    name = "token ids"
    if tokenizer is None:
        return Check(name, None, f"not compared: the model's {_FILE} is not on this machine")
    try:
        right = await asyncio.to_thread(_reference, tokenizer / _FILE if tokenizer.is_dir() else tokenizer)
    except ImportError:
        fix = "install m3agent[serve] as docs/install.md says"
        return Check(name, None, "not compared: Hugging Face's tokenizers is not installed", fix)
    except ValueError as error:
        return Check(name, None, f"not compared: {tokenizer} cannot be read ({error})")
    async with open_client(endpoint.url, api_key, connect=CONNECT_SECONDS, read=SECONDS) as client:
        for sample, wanted in zip(SAMPLES, right, strict=True):
            try:
                got = await token_ids(client, endpoint, sample, api_key)
            except ModelServerError as error:
                return Check(name, None, f"not compared: {error}")
            if got is None:
                return Check(name, None, "not compared: the server does not return token ids")
            if got != wanted:
                return Check(name, False, _difference(sample, got, wanted), _FIX)
    return Check(name, True, f"{sum(map(len, right)):,} ids equal those of {_FILE}")


def _difference(sample: str, got: list[int], wanted: list[int]) -> str:
    """Describe the first place where the ids of a sample differ."""
    pairs = enumerate(zip(got, wanted, strict=False))
    at = next((place for place, (a, b) in pairs if a != b), min(len(got), len(wanted)))
    return f"not the ids of {_FILE}: {got[at : at + 3]} for {wanted[at : at + 3]}, token {at} of {sample[:20]!r}…"


def _reference(path: Path) -> list[list[int]]:
    """Return the correct ids of each sample."""
    from tokenizers import Tokenizer

    try:
        data = path.read_bytes()
        reference = Tokenizer.from_buffer(data)
    except OSError as error:
        raise ValueError(error.strerror or error) from None
    reference.no_truncation()
    reference.no_padding()
    return [encoding.ids for encoding in reference.encode_batch(list(SAMPLES), add_special_tokens=False)]
