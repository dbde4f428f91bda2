"""The bytes of a request, in which a conversation only ever grows at its end."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any


class RequestBody:
    """Serialises requests whose messages come first, each message once.

    Within a conversation the bytes of one request's messages are a prefix of the next one's, so a server's
    prefix cache holds; and a prefix of a million tokens (4 MB) is not encoded again for every turn.
    A message that was changed since it was sent, or another conversation, starts afresh.
    """

    def __init__(self) -> None:
        self._sent: list[dict[str, Any]] = []
        self._encoded = bytearray()

    def encode(self, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> bytes:
        """One JSON object: `messages`, then the other parameters in their order.

        Raises ValueError or TypeError for what JSON does not know; the next request is none the worse for it.
        """
        known = len(self._sent)
        # Cheap, however long the texts are: those that were not changed are the very same objects.
        if self._sent != [*messages[:known]]:
            self._sent, self._encoded, known = [], bytearray(), 0
        for message in messages[known:]:
            encoded = _json(message)
            if self._sent:
                self._encoded += b","
            self._encoded += encoded
            self._sent.append(deepcopy(dict(message)))  # copies no text
        ending = b"]," if parameters else b"]"
        return b"".join((b'{"messages":[', self._encoded, ending, _json(parameters)[1:]))


def _json(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from a file name or a model: UTF-8 has none
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
