"""Fetch an issue with its comments and images from GitHub or GitLab."""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from m3agent.agent.errors import PermissionRefused, UsageError
from m3agent.agent.issue.images import IssueImage, fitting
from m3agent.agent.issue.load import MAX_BYTES, too_large
from m3agent.agent.issue.tracker.http import Api, Token, new_client, token_variable
from m3agent.agent.issue.tracker.images import find_images, load_images
from m3agent.agent.issue.tracker.names import TRACKERS, Reference, TrackerProject, gitlab_host
from m3agent.agent.util.sanitize import replace_unprintable

PAGE = 100
"""Comments in one page: the largest page size of both trackers."""

MAX_PAGES = 100

_GH_SECONDS = 10


@dataclass(frozen=True)
class FetchedIssue:
    """An issue as the tracker returns it.

    Attributes:
        title: The title.
        text: The body and the comments, without the title.
        images: The images in body and comments.
    """

    title: str
    text: str
    images: tuple[IssueImage, ...]


def fetch_issue(
    reference: Reference, *, env: Mapping[str, str], say: Callable[[str], None], timeout: float
) -> FetchedIssue:
    """Fetch title, body, comments (in their order) and images of an issue. Blocking.

    Args:
        reference: The issue.
        env: The environment variables that tokens are taken from.
        say: Receives progress messages for people.
        timeout: The longest silence of a server, in seconds.

    Raises:
        UsageError: The issue does not exist, is a pull request, or is too large.
        PermissionRefused: The tracker denies access.
        EnvironmentFault: The tracker does not answer, or answers with an error.
    """
    token = find_token(reference, env)
    say(f"fetching {reference.label} from {reference.host}")
    with new_client(reference.api, timeout) as client:
        api = Api(reference, token, client, say=say, timeout=timeout)
        read = _github if reference.kind == "github" else _gitlab
        title, parts = read(api, reference, say)
        text = "\n".join(parts)
        images = load_images(
            (_absolute(url, reference) for url in find_images(text)),
            client,
            base=f"{reference.web}/{reference.project}/",
            api=reference.api,
            say=say,
            timeout=timeout,
        )
    return FetchedIssue(title, text, fitting(images, say))


def find_token(reference: TrackerProject, env: Mapping[str, str]) -> Token | None:
    """Return the token for the API, or None.

    The token comes from the environment. For GitHub, the command `gh auth token` is the fallback.
    GITLAB_TOKEN is sent to one host only, because an issue's address may name any host; see `gitlab_host`.

    Raises:
        UsageError: The value that was found has characters that no token has.
    """
    if reference.kind == "gitlab" and reference.host != gitlab_host(env):
        return None
    for variable in TRACKERS[reference.kind].tokens:
        if value := env.get(variable, "").strip():
            return _checked(value, variable)
    gh = shutil.which("gh", path=env.get("PATH")) if reference.kind == "github" else None
    if gh is None:
        return None
    try:
        done = subprocess.run(
            [gh, "auth", "token", "--hostname", reference.host],
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


def _github(api: Api, reference: Reference, say: Callable[[str], None]) -> tuple[str, list[str]]:
    answer = api.get(f"{reference.project_api}/issues/{reference.number}")
    issue = _object(api, answer.json)
    title = _title(api, issue)
    if issue.get("pull_request"):
        raise UsageError(f"{reference.label} is a pull request: name its issue.")
    parts = _Parts(reference, _text(issue, "body"))
    if issue.get("comments") != 0:
        for comment in _pages(api, f"{_bare(answer.url)}/comments?per_page={PAGE}", parts):
            parts.add_comment(comment.get("user"), "login", _text(comment, "body"))
    return title, parts.texts


def _gitlab(api: Api, reference: Reference, say: Callable[[str], None]) -> tuple[str, list[str]]:
    answer = api.get(f"{reference.project_api}/issues/{reference.number}")
    issue = _object(api, answer.json)
    title = _title(api, issue)
    parts = _Parts(reference, _text(issue, "description"))
    notes = f"{_bare(answer.url)}/notes?sort=asc&order_by=created_at&per_page={PAGE}"
    try:
        for note in _pages(api, notes, parts):
            if not note.get("system"):
                parts.add_comment(note.get("author"), "username", _text(note, "body"))
    except PermissionRefused:
        # GitLab shows a public issue to everybody, but its comments only to requests with a token.
        if api.token is not None:
            raise
        say(
            f"{reference.host} shows comments only with a token, so they "
            f"are left out: set {token_variable(reference)}"
        )
    return title, parts.texts


class _Parts:
    """The text of the issue while it is collected: the body, then each comment under its author's name."""

    def __init__(self, reference: Reference, body: str) -> None:
        self._label = reference.label
        self._size = 0
        self.texts: list[str] = []
        self._add(body.strip())

    def add_comment(self, author: object, name_key: str, body: str) -> None:
        """Add a comment, unless its text is empty.

        The author of a deleted account is called `ghost`, as on GitHub.
        """
        if body.strip():
            name = _text(author, name_key) if isinstance(author, dict) else ""
            name = replace_unprintable(name, "").strip()[:100]
            self._add(f"\n## Comment by {name or 'ghost'}\n\n{body.strip()}")

    def _add(self, text: str) -> None:
        self._size += len(text.encode())
        self.check(self._size <= MAX_BYTES)
        self.texts.append(text + "\n")

    def check(self, small_enough: bool) -> None:
        """Raise the error for an issue that is too large, unless `small_enough`."""
        if not small_enough:
            raise too_large(f"The issue {self._label}")


def _pages(api: Api, url: str, parts: _Parts) -> Iterator[dict[str, Any]]:
    """Yield the entries of a list, page after page."""
    following: str | None = url
    pages = 0
    while following is not None:
        pages += 1
        parts.check(pages <= MAX_PAGES)
        answer = api.get(following)
        if not isinstance(answer.json, list):
            raise api.not_the_api()
        for entry in answer.json:
            yield _object(api, entry)
        following = answer.next


def _bare(url: str) -> str:
    return url.partition("?")[0].partition("#")[0]


def _object(api: Api, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise api.not_the_api()
    return value


def _title(api: Api, issue: dict[str, Any]) -> str:
    title = issue.get("title")
    if not isinstance(title, str):
        raise api.not_the_api()
    return _text(issue, "title")


def _text(entry: dict[str, Any], key: str) -> str:
    """Return a string from JSON, with `\\n` line ends.

    JSON may hold lone surrogates and NUL; both are replaced.
    """
    value = entry.get(key)
    if not isinstance(value, str):
        return ""
    value = value.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    return value.replace("\r\n", "\n").replace("\r", "\n")


def _absolute(url: str, reference: Reference) -> str:
    """Complete the address of a GitLab upload; return other addresses unchanged.

    GitLab writes these addresses relative to the project's page.
    """
    if reference.kind == "gitlab" and url.startswith("/uploads/"):
        return f"{reference.web}/{reference.project}{url}"
    return url
