"""Handle errors inside an answer or in its place, and answers that did not stream."""

import json
from collections.abc import Mapping
from typing import Any

from m3agent.serving.client.http import mask_key, refusal, reported
from m3agent.serving.client.stream.minimax_errors import hosted_error
from m3agent.serving.errors import EndpointRefused


def raise_if_error(answer: Mapping[str, Any], host: str, api_key: str | None) -> None:
    """Raise the error that an event or an answer reports, if any.

    The report may be in OpenAI's form, vLLM's older form, or MiniMax's.
    """
    if error := answer.get("error"):
        raise reported(error, host, api_key)
    if found := hosted_error(answer):
        status, text = found
        raise refusal(status, mask_key(text, api_key), host)
    if answer.get("object") == "error":
        raise reported(answer, host, api_key)


def whole_answer(body: bytes, kind: str, host: str, api_key: str | None) -> Mapping[str, Any]:
    """Return the answer of a server that does not stream, as one chunk.

    Args:
        body: The body of the response.
        kind: Its content type.
        host: Host of the server, for errors.
        api_key: Key to remove from errors.

    Raises:
        EndpointRefused: The body is not a chat completion.
        ModelServerError: The body reports an error.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        raise_if_error(answer, host, api_key)
    if not isinstance(answer, dict) or "choices" not in answer:
        said = mask_key(body.decode(errors="replace"), api_key)
        what = "a web page" if "html" in kind else f"something that is not a chat completion, {said}"
        raise EndpointRefused(200, what, host=host, advice="check the address; it usually ends in /v1")
    return answer
