"""Parse errors of MiniMax's own API, which come with HTTP status 200."""

from collections.abc import Mapping
from typing import Any

# Codes of the API and the equivalent HTTP status. MiniMax's list of error codes says which are worth a retry.
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


def hosted_error(answer: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the error in a chunk or a whole answer: its HTTP status and the server's message.

    Return None if there is no error. An unknown code counts as a server fault, status 500.
    """
    said = answer.get("base_resp")
    code = said.get("status_code") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(code, int) or code == 0:
        return None
    return _STATUSES.get(code, 500), f"{said.get('status_msg') or 'an error'} ({code})"
