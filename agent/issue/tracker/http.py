"""Send requests to a tracker's API, with limits on bytes and seconds.

Each error response becomes an error with a one-sentence message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from m3agent import __version__
from m3agent.agent.errors import EnvironmentFault, M3AgentError, PermissionRefused, UsageError
from m3agent.agent.issue.load import MAX_BYTES, quoted, too_large
from m3agent.agent.issue.tracker.names import TRACKERS, TrackerProject
from m3agent.agent.util.sanitize import replace_unprintable
from m3agent.serving.client.http import certificates_for, is_local, mask_key
from m3agent.serving.client.retry import api_policy

if TYPE_CHECKING:
    import httpx2

MAX_RESPONSE = 4 * MAX_BYTES
"""The largest response, in bytes: an issue of `MAX_BYTES` as JSON, with the other fields around it."""

LARGEST_LOG = 64 << 20
"""The largest log, in bytes."""
MOST_OF_LOG = 200_000
"""Characters of a log that are kept, from its end."""

_REDIRECTS = (301, 302, 307, 308)


class TooLarge(Exception):
    """The response has more bytes than the limit."""


class TooSlow(Exception):
    """The response took more seconds than the limit."""


class _Transient(EnvironmentFault):
    """A failure that a retry after a second may fix."""


class RateLimited(EnvironmentFault):
    """The tracker answers no further requests for now.

    Attributes:
        until: When it answers again, in seconds since 1970; None if it does not say.
    """

    def __init__(self, text: str, until: float | None) -> None:
        super().__init__(text)
        self.until = until


@dataclass(frozen=True)
class Token:
    """A key for an API and its source. The key is never shown."""

    value: str = field(repr=False)
    source: str


@dataclass(frozen=True)
class TrackerResponse:
    """A response of the API.

    Attributes:
        json: The decoded body.
        url: The address that sent the response (after a redirect).
        next: The address of the next page; None on the last page.
    """

    json: Any
    url: str
    next: str | None


def new_client(url: str, timeout: float) -> httpx2.Client:
    """Return an HTTP client that follows no redirects and uses no proxy for addresses on this machine.

    Args:
        url: An address on the server that the client will talk to.
        timeout: The longest silence, in seconds.
    """
    import httpx2

    return httpx2.Client(
        timeout=httpx2.Timeout(timeout, connect=min(timeout, 10.0)),
        trust_env=not is_local(url),
        verify=certificates_for(url),
        headers={"User-Agent": f"m3agent/{__version__}"},
    )


def read_bounded(response: httpx2.Response, limit: int, deadline: float) -> bytes:
    """Read the body of a response. At most one chunk beyond the limit is held in memory.

    Args:
        response: A response whose body is a stream.
        limit: The largest body, in bytes.
        deadline: The time of `time.monotonic()` by which the body must be complete.

    Raises:
        TooLarge: The body has more than `limit` bytes.
        TooSlow: The deadline passed.
    """
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise TooLarge
    data = bytearray()
    for piece in response.iter_bytes():
        data += piece
        if len(data) > limit:
            raise TooLarge
        if time.monotonic() > deadline:
            raise TooSlow
    return bytes(data)


def token_variable(reference: TrackerProject) -> str:
    """Return, as part of a sentence, which environment variables to set for a token."""
    variable = TRACKERS[reference.kind].tokens[0]
    if reference.kind == "gitlab" and reference.host != "gitlab.com":
        return f"GITLAB_HOST to {reference.host} and {variable}"
    return variable


class Api:
    """One tracker's API, for one issue or project.

    Args:
        reference: The issue or project.
        token: The key to send, or None.
        client: The HTTP client.
        say: Receives messages for people.
        timeout: The longest silence of the server, in seconds. A whole response may take three times as long.
    """

    def __init__(
        self,
        reference: TrackerProject,
        token: Token | None,
        client: httpx2.Client,
        *,
        say: Callable[[str], None],
        timeout: float,
    ) -> None:
        self._reference = reference
        self.token = token
        self._client = client
        self._say = say
        self._timeout = timeout
        self._name = TRACKERS[reference.kind].name
        self._host = urlsplit(reference.api).netloc
        self._variable = token_variable(reference)

    def get(self, url: str) -> TrackerResponse:
        """Return the response to GET `url`. Follow one redirect within the API's host.

        Raises:
            UsageError: The issue or project does not exist (any more), or the response is too large.
            PermissionRefused: The API denies access.
            EnvironmentFault: The API does not answer, limits the rate of requests, or answers with another
                error.
        """
        response, body = self._fetch(url)
        if response.status_code in _REDIRECTS:
            url = self._same_host(url, response.headers.get("location", ""), "redirects to")
            response, body = self._fetch(url)
            if response.status_code in _REDIRECTS:
                raise EnvironmentFault(f"{self._host} redirects in a loop for {self._reference.label}.")
        if response.status_code != 200:
            raise self._refusal(response, body)
        following = response.links.get("next", {}).get("url")
        if following is not None:
            following = self._same_host(url, following, "names a next page at")
        return TrackerResponse(self._parsed(body), url, following)

    def post(self, url: str, value: object) -> TrackerResponse:
        """Create `value` at `url` and return the response.

        The request is sent once, because a retry could create the object twice. After an `EnvironmentFault`
        it is unknown whether the object was created.

        Raises:
            UsageError, PermissionRefused, EnvironmentFault: As for `get`.
        """
        response, body = self._fetch_once(url, json.dumps(value).encode())
        if response.status_code not in (201, 202):  # 202: it is being made
            raise self._refusal(response, body)
        return TrackerResponse(self._parsed(body), url, None)

    def get_log(self, url: str) -> str:
        """Return the end of a text that a program wrote, such as the log of a test run.

        GitHub keeps logs on other hosts and redirects to a signed address there, which gets no token.

        Raises:
            UsageError, PermissionRefused, EnvironmentFault: As for `get`.
        """
        response, body = self._fetch(url, LARGEST_LOG)
        if response.status_code in _REDIRECTS:
            there = urljoin(url, response.headers.get("location", ""))
            here = urlsplit(self._reference.api)
            same = (here.scheme, here.netloc) == urlsplit(there)[:2]
            if not same and urlsplit(there).scheme != "https" and not is_local(url):
                raise EnvironmentFault(f"{self._host} names an address without https for a log.")
            response, body = self._fetch(there, LARGEST_LOG, token=same)
        if response.status_code != 200:
            raise self._refusal(response, body)
        return body.decode("utf-8", "replace")[-MOST_OF_LOG:]

    def not_the_api(self) -> EnvironmentFault:
        """Return the error for a server whose response is not from the expected API."""
        advice = (
            "check --github-api (GitHub Enterprise has its API under /api/v3)"
            if self._reference.kind == "github"
            else "check the address"
        )
        return EnvironmentFault(f"The server at {self._host} is not the API of {self._name}: {advice}.")

    def _parsed(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise self.not_the_api() from None

    def _same_host(self, base: str, link: str, does: str) -> str:
        """Resolve `link` against `base`, and refuse any address outside the API.

        The token must not reach another host.
        """
        here = urlsplit(self._reference.api)
        try:
            url = urljoin(base, link)
            there = urlsplit(url)
        except ValueError:
            raise EnvironmentFault(f"{self._host} {does} an invalid address.") from None
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            raise EnvironmentFault(
                f"{self._host} {does} another address ({quoted(there.netloc or url)}), which is not "
                "followed: give the issue's present address."
            )
        return url

    def _fetch(
        self, url: str, limit: int = MAX_RESPONSE, *, token: bool = True
    ) -> tuple[httpx2.Response, bytes]:
        def tell(error: BaseException) -> None:
            self._say(f"{str(error).rstrip('.')}; trying again")

        return api_policy(_Transient, tell)(self._fetch_once, url, limit=limit, token=token)

    def _fetch_once(
        self, url: str, sent: bytes | None = None, *, limit: int = MAX_RESPONSE, token: bool = True
    ) -> tuple[httpx2.Response, bytes]:
        import httpx2

        deadline = time.monotonic() + 3 * self._timeout
        method, headers = "GET", self._headers() if token else {}
        if sent is not None:
            method, headers = "POST", headers | {"Content-Type": "application/json"}
        try:
            with self._client.stream(method, url, headers=headers, content=sent) as response:
                body = read_bounded(response, limit, deadline)
        except TooLarge:
            raise too_large(f"The {self._reference.what}") from None
        except (TooSlow, httpx2.TimeoutException):
            raise EnvironmentFault(
                f"{self._host} did not answer in time: try again later{self._reference.instead}."
            ) from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise _Transient(f"The connection to {self._host} failed: {_reason(error)}.") from None
        except (httpx2.InvalidURL, ValueError):
            raise EnvironmentFault(f"{self._host} named an invalid address.") from None
        if response.status_code >= 500:
            raise _Transient(f"{self._host} has an internal error ({response.status_code}): try again later.")
        return response, body

    def _headers(self) -> dict[str, str]:
        tracker = TRACKERS[self._reference.kind]
        headers = dict(tracker.headers)
        if self.token is not None:
            header, before = tracker.auth
            headers[header] = before + self.token.value
        return headers

    def _refusal(self, response: httpx2.Response, body: bytes) -> M3AgentError:
        status, label, token = response.status_code, self._reference.label, self.token
        words = self._words(body)
        reset = _reset(response.headers)
        if status == 429 or (status == 403 and (reset is not None or "rate limit" in words.lower())):
            when = f"until {_local(reset)}" if reset is not None else "for now (wait a minute)"
            advice = "" if token else f"; a token in {self._variable} raises the limit"
            return RateLimited(
                f"{self._host} answers no further requests {when}: its rate limit is reached{advice}.", reset
            )
        if status == 404:
            advice = (
                f"or the token from {token.source} may not see it"
                if token
                else f"or it is private: then set {self._variable} to a token that may read it"
            )
            return UsageError(f"{self._host} has no {self._reference.what}, {advice}.")
        if status == 410:
            return UsageError(f"The {self._reference.what} was deleted.")
        if status == 401:
            advice = (
                f"does not accept the token from {token.source}: it is wrong or has expired"
                if token
                else f"asks for a token: set {self._variable}"
            )
            return PermissionRefused(f"{self._host} {advice}.")
        said = f" ({words})" if words else ""
        if status == 403:
            advice = (
                f"the token from {token.source}" if token else f"requests without a token in {self._variable}"
            )
            return PermissionRefused(f"{self._host} refuses {label} to {advice}{said}.")
        if status == 422:
            return PermissionRefused(f"{self._host} refuses this for {label}{said}.")
        return EnvironmentFault(f"{self._host} answered {status} for {label}{said}.")

    def _words(self, body: bytes) -> str:
        """Return the messages in an error's JSON as one short line, without the token."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            return ""
        if not isinstance(answer, dict):
            return ""
        details = answer.get("errors")
        told = [answer, *(details if isinstance(details, list) else [])]
        messages = [entry.get("message") for entry in told if isinstance(entry, dict)]
        message = ": ".join(text for text in messages if isinstance(text, str))
        message = mask_key(message, self.token.value if self.token else None)
        return replace_unprintable(message).strip()[:200].rstrip(".")


def _reset(headers: httpx2.Headers) -> float | None:
    """Return when the API accepts requests again, in seconds since 1970; None if the headers do not say."""
    wait = headers.get("retry-after", "")
    if wait.isdecimal():
        return time.time() + int(wait)
    for prefix in ("x-ratelimit", "ratelimit"):
        at = headers.get(f"{prefix}-reset", "")
        if headers.get(f"{prefix}-remaining") == "0" and at.isdecimal():
            return float(at)
    return None


def _local(seconds: float) -> str:
    """Return a time as text in this machine's time zone."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    except (OverflowError, OSError, ValueError):
        return "an invalid time"


def _reason(error: BaseException) -> str:
    """Return the root cause of a transport error, such as "Connection refused"."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return text.rstrip(".")
