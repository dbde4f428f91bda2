"""Encode request bodies incrementally: a conversation only grows at its end."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any


class RequestBody:
    """Serialise requests with the messages first, and encode each message only once.

    Within a conversation, the bytes of one request's messages are a prefix of the next request's bytes. The
    server's prefix cache therefore hits, and a prefix of a million tokens (4 MB) is not encoded again for
    every turn. If a message that was already sent has changed, or another conversation begins, encoding
    starts again from the first message.
    """

    def __init__(self) -> None:
        self._sent: list[dict[str, Any]] = []
        self._encoded = bytearray()

    def encode(self, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> bytes:
        """Return one JSON object: `messages`, then the other parameters in their order.

        Raises:
            ValueError: A value has no form in JSON, such as NaN. The next request is not affected.
            TypeError: A value's type has no form in JSON. The next request is not affected.
        """
        known = len(self._sent)
        # Cheap for long texts too: unchanged messages are the same objects.
        if self._sent != [*messages[:known]]:
            self._sent, self._encoded, known = [], bytearray(), 0
        for message in messages[known:]:
            encoded = _json(message)
            if self._sent:
                self._encoded += b","
            self._encoded += encoded
            self._sent.append(deepcopy(dict(message)))  # strings are shared, not copied
        ending = b"]," if parameters else b"]"
        return b"".join((b'{"messages":[', self._encoded, ending, _json(parameters)[1:]))


def _json(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from a file name or a model; not valid in UTF-8
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
