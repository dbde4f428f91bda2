"""Check that think tags which a prompt quotes do not end the reasoning.

Files, issues and earlier turns may quote `</mm:think>`. vLLM up to 0.33 looks for the end of the reasoning in the whole
prompt (vllm-project/vllm#46042, #50594). A quoted tag then ends the reasoning before it begins: thoughts arrive as text. With
thinking `enabled` the prompt ends with the opening tag, and the search gives the right result, if the mode reaches the
template. A proxy that drops or changes `chat_template_kwargs` prevents that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from m3agent.serving.check.check import Check
from m3agent.serving.check.dual_read import DualReading, faults, hear
from m3agent.serving.check.script import grammar, markup, wanted
from m3agent.serving.check.wire_check import LIMIT, marker_bias
from m3agent.serving.client.client import Client
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.errors import ModelServerError
from m3agent.serving.wire import ThinkingMode

NAME = "reasoning end"
_QUOTING = (
    "Which of these lines is the tag: <mm:think></mm:think> or </mm:think>? Think about it step by step."
)
_PLAIN = "Which of these lines is the tag: the first or the second? Think about it step by step."
_Ask: TypeAlias = Callable[..., Awaitable[DualReading]]  # `hear` of one client
_TOKENS = 24  # of an answer without a grammar: enough to see whether it begins as reasoning
_PINNED = """--default-chat-template-kwargs '{"thinking_mode":"enabled"}'"""


async def reasoning_check(
    endpoint: Endpoint, *, api_key: str | None, thinking: ThinkingMode = "enabled", limit: float = LIMIT
) -> list[Check]:
    """Check a running server; never raise because of the server's answers.

    Args:
        thinking: The mode that the user's settings choose. Only a fault in this mode, or in `enabled`, is a failure.

    Returns:
        One check; none for a server that does not pass a thinking mode to M3's template.
    """
    if not grammar(endpoint.flavour, ""):
        return []
    async with Client(endpoint, api_key=api_key, attempts=1) as client:
        ask = partial(hear, client, seconds=limit)
        try:
            check = await _enabled(ask)
            if not check.ok or thinking == "disabled":
                return [check]
            adaptive = await _adaptive(ask, endpoint, api_key)
            return [_with_adaptive(check, adaptive, pinned=thinking == "enabled")]
        except ModelServerError as error:
            return [Check(NAME, False, str(error))]


async def _enabled(ask: _Ask) -> Check:
    """Check the first tokens of a free answer: with thinking enabled they are reasoning."""
    quoting = await ask(_QUOTING, "enabled", max_tokens=_TOKENS)
    if quoting.plain.reasoning:
        return Check(NAME, True, "think tags in a prompt do not end the reasoning")
    if not quoting.plain.text:
        return Check(NAME, None, "the model wrote neither reasoning nor text")
    if (await ask(_PLAIN, "enabled", max_tokens=_TOKENS)).plain.reasoning:
        detail = "a think tag in the prompt ends the reasoning before it begins: thoughts arrive as text"
        fix = "use the model's own chat template, and a version without vllm-project/vllm#46042"
        return Check(NAME, False, detail, fix)
    detail = "with thinking enabled, an answer begins as text: there is no reasoning parser, or the mode does not reach the template"
    fix = (
        f"let proxies pass chat_template_kwargs, and start the server with its reasoning parser and {_PINNED}"
    )
    return Check(NAME, False, detail, fix)


async def _adaptive(ask: _Ask, endpoint: Endpoint, api_key: str | None) -> bool | None:
    """Return whether a forced message keeps its reasoning with thinking adaptive; None if that cannot be tried.

    True also if m3agent's client repairs the message.
    """
    text = markup("adaptive")
    forced: dict[str, object] = dict(grammar(endpoint.flavour, text))
    if bias := await marker_bias(endpoint, api_key):
        forced["logit_bias"] = bias
    try:
        heard = await ask(_QUOTING, "adaptive", max_tokens=len(text.encode()) + 16, **forced)
    except ModelServerError:
        return None  # for example: no grammar, or no logit bias beside a draft
    message = wanted("adaptive")
    if not faults(heard.plain, message) or heard.ours == message:
        return True
    return False if message.reasoning in heard.ours.text else None


def _with_adaptive(check: Check, adaptive: bool | None, *, pinned: bool) -> Check:
    """Add what was found about thinking adaptive, which is a failure only if the user's settings choose it."""
    if adaptive is not False:
        return check
    if pinned:
        return Check(NAME, True, f"{check.detail} while thinking is enabled; with adaptive they do")
    detail = "with thinking adaptive, a think tag in the prompt ends the reasoning before it begins: thoughts arrive as text"
    return Check(NAME, False, detail, "leave the setting thinking at enabled")
