"""Send requests to the API of GitHub or GitLab, with limits on bytes and seconds.

Each error response becomes an error with a one-sentence message.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urljoin, urlsplit

from m3agent import __version__
from m3agent.agent.forge.address import Project, gitlab_host
from m3agent.serving.client.http import certificates_for, is_local, mask_key
from m3agent.serving.client.retry import api_policy
from m3agent.util.errors import EnvironmentFault, M3AgentError, PermissionRefused, UsageError
from m3agent.util.json_value import json_object, mapping, mappings
from m3agent.util.sanitize import quoted, replace_unprintable

if TYPE_CHECKING:
    import httpx2

API_SECONDS = 20.0
"""The longest silence of a server, in seconds. A whole response may take three times as long."""
PAGE = 100
"""Entries in one page: the largest page size of both."""
MAX_PAGES = 100
MAX_RESPONSE = 4 << 20
"""The largest response, in bytes: the largest issue that m3agent takes as JSON, with the other fields around it."""

LARGEST_LOG = 64 << 20
"""The largest log, in bytes."""
MOST_OF_LOG = 200_000
"""Characters of a log that are kept, from its end."""

_GH_SECONDS = 10
_REDIRECTS = (301, 302, 307, 308)


# By status, and whether a token was sent; None for either
_REFUSALS: Mapping[tuple[int, bool | None], tuple[type[M3AgentError], str]] = {
    (401, True): (
        PermissionRefused,
        "{host} does not accept the token from {source}: it is wrong or has expired.",
    ),
    (401, False): (PermissionRefused, "{host} asks for a token: set {variable}."),
    (403, True): (PermissionRefused, "{host} refuses {label} to the token from {source}{reason}."),
    (403, False): (
        PermissionRefused,
        "{host} refuses {label} to requests without a token in {variable}{reason}.",
    ),
    (404, True): (UsageError, "{host} has no {what}, or the token from {source} may not see it."),
    (404, False): (
        UsageError,
        "{host} has no {what}, or it is private: then set {variable} to a token that may read it.",
    ),
    (410, None): (UsageError, "The {what} was deleted."),
    (422, None): (PermissionRefused, "{host} refuses this for {label}{reason}."),
}
_OTHER: tuple[type[M3AgentError], str] = EnvironmentFault, "{host} answered {status} for {label}{reason}."


class TooLarge(UsageError):
    """There are more bytes or pages than the limit."""


class TooSlow(Exception):
    """The response took more seconds than the limit."""


class _Transient(EnvironmentFault):
    """A failure that a retry after a second may fix."""


class RateLimited(EnvironmentFault):
    """The server answers no further requests for now."""

    def __init__(self, text: str, until: float | None) -> None:
        super().__init__(text)
        self.until = until
        """When it answers again, in seconds since 1970; None if it does not say."""


@dataclass(frozen=True)
class Token:
    """A key for an API and its source. The key is never shown."""

    value: str = field(repr=False)
    source: str


@dataclass(frozen=True)
class ApiResponse:
    """A response of the API."""

    json: Any
    """The decoded body."""
    url: str
    """The address that sent the response (after a redirect)."""
    next: str | None
    """The address of the next page; None on the last page."""


def find_token(project: Project, env: Mapping[str, str]) -> Token | None:
    """Return the token for the API, or None. Blocking.

    The token comes from the environment. For GitHub, the command `gh auth token` is the fallback.
    GITLAB_TOKEN is sent to one host only, because an issue's address may name any host; see `gitlab_host`.

    Raises:
        UsageError: The value that was found has characters that no token has.
    """
    if project.server.host_variable and project.host != gitlab_host(env):
        return None
    for variable in project.server.tokens:
        if value := env.get(variable, "").strip():
            return _checked(value, variable)
    program, *rest = project.server.login or ("",)
    login = program and shutil.which(program, path=env.get("PATH"))
    if not login:
        return None
    try:
        done = subprocess.run(
            [login, *rest, "token", "--hostname", project.host],
            cwd="/",  # not in the repository: `gh` starts git
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_GH_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):  # `gh` does not work here
        return None
    value = done.stdout.decode(errors="replace").strip()
    return _checked(value, "'gh auth token'") if done.returncode == 0 and value else None


def _checked(value: str, source: str) -> Token:
    if not value.isascii() or not value.isprintable() or " " in value:
        raise UsageError(f"{source} gives an invalid token: it has characters that a token cannot have.")
    return Token(value, source)


def read_bounded(response: httpx2.Response, limit: int, deadline: float) -> bytes:
    """Read the body of a response. At most one chunk beyond the limit is held in memory.

    Args:
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


class Api:
    """The API of a server, for one project, issue or pull request. As a context manager it closes its connections.

    It follows no redirects by itself, and uses no proxy for addresses on this machine.

    Args:
        timeout: The longest silence of the server, in seconds. A whole response may take three times as long.
    """

    def __init__(
        self, project: Project, token: Token | None, say: Callable[[str], None], timeout: float = API_SECONDS
    ) -> None:
        import httpx2

        self.project = project
        self.token = token
        self.say = say
        self.http = httpx2.Client(
            timeout=httpx2.Timeout(timeout, connect=min(timeout, 10.0)),
            trust_env=not is_local(project.api),
            verify=certificates_for(project.api),
            headers={"User-Agent": f"m3agent/{__version__}"},
        )
        self._timeout = timeout
        self._host = urlsplit(project.api).netloc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def get(self, url: str) -> ApiResponse:
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
                raise EnvironmentFault(f"{self._host} redirects in a loop for {self.project.label}.")
        if response.status_code != 200:
            raise self._refusal(response, body)
        following = response.links.get("next", {}).get("url")
        if following is not None:
            following = self._same_host(url, following, "names a next page at")
        return ApiResponse(self._parsed(body), url, following)

    def pages(self, url: str, name: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the entries of a list, page after page.

        Args:
            name: The field that has the list; None if the response is the list.

        Raises:
            TooLarge: There are more than `MAX_PAGES` pages.
            EnvironmentFault: The response is no such list. All other errors are those of `get`.
        """
        following: str | None = f"{url}{'&' if '?' in url else '?'}per_page={PAGE}"
        for _ in range(MAX_PAGES):
            assert following is not None
            answer = self.get(following)
            found = mapping(answer.json).get(name) if name is not None else answer.json
            if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
                raise self.not_the_api()
            yield from found
            following = answer.next
            if following is None:
                return
        raise TooLarge(f"{url} has more than {MAX_PAGES} pages: they are not read.")

    def post(self, url: str, value: object) -> ApiResponse:
        """Create `value` at `url` and return the response.

        The request is sent once, because a retry could create the object twice. After an `EnvironmentFault`
        it is unknown whether the object was created.

        Raises:
            UsageError, PermissionRefused, EnvironmentFault: As for `get`.
        """
        response, body = self._fetch_once(url, json.dumps(value).encode())
        if response.status_code not in (201, 202):  # 202: it is being made
            raise self._refusal(response, body)
        return ApiResponse(self._parsed(body), url, None)

    def get_log(self, url: str) -> str:
        """Return the end of a text that a program wrote, such as the log of a test run.

        GitHub keeps logs on other hosts and redirects to a signed address there, which gets no token.

        Raises:
            UsageError, PermissionRefused, EnvironmentFault: As for `get`.
        """
        response, body = self._fetch(url, LARGEST_LOG)
        if response.status_code in _REDIRECTS:
            there = urljoin(url, response.headers.get("location", ""))
            here = urlsplit(self.project.api)
            same = (here.scheme, here.netloc) == urlsplit(there)[:2]
            if not same and urlsplit(there).scheme != "https" and not is_local(url):
                raise EnvironmentFault(f"{self._host} names an address without https for a log.")
            response, body = self._fetch(there, LARGEST_LOG, token=same)
        if response.status_code != 200:
            raise self._refusal(response, body)
        return body.decode("utf-8", "replace")[-MOST_OF_LOG:]

    def not_the_api(self) -> EnvironmentFault:
        """Return the error for a server whose response is not from the expected API."""
        server = self.project.server
        return EnvironmentFault(
            f"The server at {self._host} is not the API of {server.name}: {server.advice}."
        )

    def _parsed(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise self.not_the_api() from None

    def _same_host(self, base: str, link: str, does: str) -> str:
        """Resolve `link` against `base`, and refuse any address outside the API.

        The token must not reach another host.
        """
        here = urlsplit(self.project.api)
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
            self.say(f"{str(error).rstrip('.')}; trying again")

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
            with self.http.stream(method, url, headers=headers, content=sent) as response:
                body = read_bounded(response, limit, deadline)
        except TooLarge:
            raise TooLarge(
                f"{self._host} sends more than {limit >> 20} MiB about {self.project.what}."
            ) from None
        except (TooSlow, httpx2.TimeoutException):
            raise EnvironmentFault(
                f"{self._host} did not answer in time: try again later{self.project.instead}."
            ) from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise _Transient(f"The connection to {self._host} failed: {_reason(error)}.") from None
        except (httpx2.InvalidURL, ValueError):
            raise EnvironmentFault(f"{self._host} named an invalid address.") from None
        if response.status_code >= 500:
            raise _Transient(f"{self._host} has an internal error ({response.status_code}): try again later.")
        return response, body

    def _headers(self) -> dict[str, str]:
        server = self.project.server
        headers = dict(server.headers)
        if self.token is not None:
            header, before = server.auth
            headers[header] = before + self.token.value
        return headers

    def _refusal(self, response: httpx2.Response, body: bytes) -> M3AgentError:
        status, token, variable = response.status_code, self.token, self.project.token_variable
        reason = self._words(body)
        reset = _reset(response.headers)
        if status == 429 or (status == 403 and (reset is not None or "rate limit" in reason.lower())):
            when = f"until {_local(reset)}" if reset is not None else "for now (wait a minute)"
            advice = "" if token else f"; a token in {variable} raises the limit"
            return RateLimited(
                f"{self._host} answers no further requests {when}: its rate limit is reached{advice}.", reset
            )
        kind, text = _REFUSALS.get((status, token is not None)) or _REFUSALS.get((status, None), _OTHER)
        return kind(
            text.format(
                host=self._host,
                what=self.project.what,
                label=self.project.label,
                source=token and token.source,
                variable=variable,
                status=status,
                reason=f" ({reason})" if reason else "",
            )
        )

    def _words(self, body: bytes) -> str:
        """Return the messages in an error's JSON as one short line, without the token."""
        answer = json_object(body)
        messages = [entry.get("message") for entry in (answer, *mappings(answer, "errors"))]
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


def words(value: object, *names: str) -> str:
    """Return the text that names lead to in a response, with `\\n` line ends; an empty text if it is missing.

    JSON may hold lone surrogates and NUL; both are replaced.
    """
    *above, last = names
    found = mapping(value, *above).get(last)
    if not isinstance(found, str):
        return ""
    found = found.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    return found.replace("\r\n", "\n").replace("\r", "\n")
