"""Handle errors inside an answer or in its place, and answers that did not stream."""

import json
from collections.abc import Mapping
from typing import Any

from m3agent.serving.client.http import mask_key, refusal, reported
from m3agent.serving.errors import NoAnswer

# Codes of MiniMax's own API and the equivalent HTTP status. MiniMax's list of error codes says which are worth a retry.
_STATUSES = {
    1001: 408,  # timeout
    1002: 429,  # rate limit
    1004: 401,  # not authorized
    1008: 402,  # insufficient balance
    1026: 400,  # the input is sensitive
    1027: 400,  # the output is sensitive
    1039: 429,  # token limit, of tokens a minute
    1041: 429,  # connection limit
    2013: 400,  # invalid parameters; a context that is too long, too
    2049: 401,  # invalid key
    2056: 402,  # the plan is used up
}


def raise_if_error(answer: Mapping[str, Any], host: str, api_key: str | None) -> None:
    """Raise the error that an event or an answer reports, if any.

    The report may be in OpenAI's form, vLLM's older form, or MiniMax's.
    """
    if error := answer.get("error"):
        raise reported(error, host, api_key)
    if answer.get("base_resp") and (found := hosted_error(answer)):
        status, text = found
        raise refusal(status, mask_key(text, api_key), host)
    if answer.get("object") == "error":
        raise reported(answer, host, api_key)


def whole_answer(body: bytes, kind: str, host: str, api_key: str | None) -> Mapping[str, Any]:
    """Return the answer of a server that does not stream, as one chunk.

    Raises:
        NoAnswer: The body is not a chat completion.
        ModelServerError: The body reports an error.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        raise_if_error(answer, host, api_key)
    if not isinstance(answer, dict) or "choices" not in answer:
        said = mask_key(body.decode(errors="replace").strip(), api_key)
        is_page = "html" in kind or "<html" in said[:2000].lower()
        what = f"something that is not a chat completion, {said}" if said else "nothing"
        raise NoAnswer("a web page" if is_page else what, host=host)
    return answer


def hosted_error(answer: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return MiniMax's own error, which comes with HTTP status 200: the equivalent status and the server's message.

    Return None if there is no error. An unknown code counts as a server fault, status 500.
    """
    said = answer.get("base_resp")
    code = said.get("status_code") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(code, int) or code == 0:
        return None
    return _STATUSES.get(code, 500), f"{said.get('status_msg') or 'an error'} ({code})"
