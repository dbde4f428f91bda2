"""Errors of model servers: one class for each kind, with a one-sentence message that names the host."""

import re
from typing import ClassVar

_MOST_WORDS = 300  # characters of a server's message
_RETRIABLE_STATUSES = frozenset({408, 409, 429})
BUSY = frozenset({429, 529})
"""Statuses of a server that has too many requests at the moment; a limit per minute passes within minutes."""
_SPENT = re.compile(
    r"insufficient[ _](?:quota|balance|credit|fund)|exceeded your current quota|(?:credit|account) balance|check your plan and billing",
    re.IGNORECASE,
)
"""Words of servers whose account has no money left. Waiting does not help."""


def shorten(text: str, limit: int = _MOST_WORDS) -> str:
    """Return a server's message as one printable line of at most `limit` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


class TableError(Exception):
    """A table of facts that comes with m3agent was changed and cannot be read. The message says where and what to do."""


class ModelServerError(Exception):
    """The base of all errors of model servers.

    Attributes:
        retriable: Whether the same request may succeed later.
        retry_after: The seconds that the server asked to wait; None if it did not ask.
    """

    retriable = False
    retry_after: float | None = None


class _WithReason(ModelServerError):
    sentence: ClassVar[str]
    """The message, with the names of the host and of the reason in braces."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(self.sentence.format(host=host, reason=shorten(reason)))
        self.reason = reason


class EndpointUnreachable(_WithReason):
    """No server answers: the connection was refused, the host was not found, or the server stayed silent."""

    retriable = True
    sentence = "No answer from a model server at {host}: {reason}; start the server or correct --endpoint."


class EndpointRefused(ModelServerError):
    """A server answered with an error, or with something other than the expected response.

    Attributes:
        status: The HTTP status.
        text: The server's message.
        parameter: The request's parameter that the server names as the cause; empty if it names none.
    """

    def __init__(
        self,
        status: int,
        text: str,
        *,
        host: str,
        advice: str = "",
        retry_after: float | None = None,
        parameter: str = "",
    ) -> None:
        usual = "see the server's log" if status >= 500 else "it rejects this request"
        advice = advice or _ADVICE.get(status, usual)
        said = f": {shorten(text)}" if text.strip() else ""
        super().__init__(f"The model server at {host} answered {status}{said}; {advice}.")
        self.status = status
        self.text = text
        self.parameter = parameter
        self.retry_after = retry_after
        may_pass = status in _RETRIABLE_STATUSES or status >= 500
        self.retriable = may_pass and _SPENT.search(text) is None


class NoAnswer(EndpointRefused):
    """A server answered with status 200, and sent nothing, a web page or something else that is no chat completion.

    A proxy does that while the server behind it restarts; so does an address that is not a model server's.
    """

    def __init__(self, text: str, *, host: str) -> None:
        super().__init__(200, text, host=host, advice="check the address; it usually ends in /v1")
        self.retriable = True


class ParameterRefused(ModelServerError):
    """A server refused an optional parameter, which the next attempt leaves out."""

    retriable = True
    retry_after = 0.0

    def __init__(self, error: EndpointRefused, name: str) -> None:
        super().__init__(f"{error} It no longer gets {name}.")


class WrongModel(ModelServerError):
    """The user did not name one of the models that a server serves."""

    def __init__(self, host: str, why: str, names: str) -> None:
        super().__init__(f"The model server at {host} {why}: name one of {shorten(names)} with --model.")


class StreamCut(_WithReason):
    """The stream of an answer ended too early. No part of the answer may be used."""

    retriable = True
    sentence = (
        "The answer from the model server at {host} broke off: {reason}; "
        "try again, and if it happens again see the server's log."
    )


class ContextTooLong(ModelServerError):
    """The prompt and the answer do not fit in the model's context window.

    Attributes:
        limit: The size of the window in tokens; None if unknown.
        asked: The size of the request in tokens; None if unknown.
    """

    def __init__(self, limit: int | None, asked: int | None, *, host: str = "the endpoint") -> None:
        wanted = f"{asked:,} tokens were requested" if asked is not None else "more tokens were requested"
        window = f"{limit:,}" if limit is not None else "fewer"
        super().__init__(
            f"The model server at {host} takes {window} tokens, and {wanted}; "
            "lower --context-budget or serve the model with a longer context."
        )
        self.limit = limit
        self.asked = asked


class ServerDied(_WithReason):
    """A server that had answered before stopped, and did not come back while we waited."""

    sentence = (
        "The model server at {host} died while it answered: {reason}; "
        "see its log, start it again, and resume the session."
    )


class DeadlineExceeded(ModelServerError):
    """The answer was not complete by the caller's deadline.

    This is a limit of the run, not a fault of the server.
    """

    def __init__(self, host: str) -> None:
        super().__init__(f"The model server at {host} did not finish its answer within the time limit.")


_ADVICE = {
    402: "the key's account has no credit left: top it up or use another key",
    404: "check the address (it usually ends in /v1) and the model's name",
    **dict.fromkeys((401, 403), "set M3AGENT_API_KEY to a key that this server accepts"),
    **dict.fromkeys(BUSY, "it limits requests: wait or use another key"),
}
