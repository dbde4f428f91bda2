"""Check that a draft changes the speed of a server and not its text.

A server writes some text at temperature 0 with its draft. Then the same server reads that text as a prompt and
says what it would have chosen at each place; no draft takes part in reading. So one server shows both, and
every token can be compared, also those after a difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from m3agent.serving.check.check import Check
from m3agent.serving.check.engine_state import complete, engine_state
from m3agent.serving.client.endpoint import Endpoint
from m3agent.serving.client.http import open_client
from m3agent.serving.errors import ModelServerError

if TYPE_CHECKING:
    import openai

NAME = "draft"
TOKENS = 64
"""Tokens that the server writes."""
NEAR_TIE = 0.1
"""Difference of log probabilities (nat) below which two tokens count as equal: batch shapes change the last digits."""
SHORT_ACCEPTED = 1.5
"""Mean tokens a step below which a draft gains nothing; published values for code are 2.8 and more."""
_FEW_DRAFTS = 1000  # drafts so far, below which the mean says little
_SECONDS = 120.0
# Text that continues in the obvious way, so that the draft's tokens are accepted and take part.
_PROMPT = "".join(f"def add_{number}(value):\n    return value + {number}\n\n\n" for number in range(1, 13))


async def draft_check(endpoint: Endpoint, *, api_key: str | None) -> list[Check]:
    """Check a running server with a draft; never raise because of the server's answers.

    Returns:
        The checks; none if the server has no draft or does not say so (only vLLM does).
    """
    state = await engine_state(endpoint, api_key=api_key)
    if state.drafts is None:
        return []
    async with open_client(endpoint.url, api_key, connect=10.0, read=_SECONDS) as client:
        try:
            same = await _compare(client, endpoint, api_key)
        except ModelServerError as error:
            same = Check(NAME, False, str(error))
        except (LookupError, TypeError, ValueError):
            same = Check(
                NAME, None, "not compared: the server does not report the log probabilities of a prompt"
            )
    after = await engine_state(endpoint, api_key=api_key)
    return [same, accepted_check(after.drafts, after.accepted)]


def accepted_check(drafts: float | None, accepted: float | None) -> Check:
    """Check how many tokens a step yields with the draft."""
    name, length = "accepted length", accepted_length(drafts, accepted)
    if length is None or drafts is None:
        return Check(name, None, "no drafts so far")
    detail = f"{length:.2f} tokens a step, of {drafts:,.0f} drafts"
    if drafts < _FEW_DRAFTS:
        return Check(name, None, f"{detail}: too few to tell")
    if length < SHORT_ACCEPTED:
        fix = "the draft does not fit the model, or prompts lack the chat template: start it with --draft off"
        return Check(name, False, f"{detail}: the draft costs more than it gains", fix)
    return Check(name, True, detail)


def accepted_length(drafts: float | None, accepted: float | None) -> float | None:
    """Return the mean tokens a step: those accepted and M3's own one; None without drafts."""
    return None if not drafts or accepted is None else accepted / drafts + 1


async def _compare(client: openai.AsyncOpenAI, endpoint: Endpoint, api_key: str | None) -> Check:
    async def ask(prompt: object, **more: object) -> dict[str, Any]:
        answer = await complete(client, endpoint, api_key, prompt, **more)
        choice = answer["choices"][0]
        if not isinstance(choice, dict):
            raise TypeError("a choice is an object")
        return choice

    written = await ask(_PROMPT, max_tokens=TOKENS, ignore_eos=True, return_token_ids=True)
    before, ids = list(written["prompt_token_ids"]), list(written["token_ids"])
    read = await ask([*before, *ids], max_tokens=1, prompt_logprobs=1)
    places = read["prompt_logprobs"][len(before) :]
    if not ids or len(places) != len(ids):
        raise ValueError("the log probabilities do not belong to the tokens")
    for place, (token, known) in enumerate(zip(ids, places, strict=True), start=1):
        best = max(entry["logprob"] for entry in known.values())
        gap = float(best - known[str(token)]["logprob"])
        if not gap < NEAR_TIE:
            detail = (
                f"token {place} of {len(ids)} is not what the model chooses without the draft: {gap:.2f} nat less likely; "
                "the engine verifies drafts wrongly"
            )
            fix = "start it with --draft off, and report the engine's version"
            return Check(NAME, False, detail, fix)
    return Check(NAME, True, f"{len(ids)} tokens are those that the model chooses without the draft")
