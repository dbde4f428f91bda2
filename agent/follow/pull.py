"""What a pull request looks like now, whichever server it is on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from m3agent.agent.errors import EnvironmentFault
from m3agent.agent.issue.tracker.fetch import MAX_PAGES, PAGE
from m3agent.agent.issue.tracker.http import Api
from m3agent.agent.issue.tracker.names import PullReference

MARK = "<!-- m3agent -->"
"""The first line of m3agent's own comments. Comments that begin with it are not read."""


@dataclass(frozen=True)
class Check:
    """A check of the last commit, as the server's continuous integration reports it.

    Attributes:
        key: Names the check and the commit.
        name: Its name.
        status: What is known of it.
        log: Where its log is; None if the server has none.
        said: What the check itself says in a few words.
    """

    key: str
    name: str
    status: Literal["running", "red", "green"]
    log: str | None
    said: str


@dataclass(frozen=True)
class Remark:
    """A comment, or a review, by a member of the project.

    Attributes:
        key: Names the remark.
        author: The member's name.
        text: The text.
        url: Its web page; empty if the server names none.
        place: The file and line that it is about; empty if it is about the whole.
        code: The code that it is about, as a part of a diff.
    """

    key: str
    author: str
    text: str
    url: str = ""
    place: str = ""
    code: str = ""


@dataclass(frozen=True)
class PullState:
    """A pull request at one moment.

    Attributes:
        state: Whether it is open.
        head: The id of its last commit.
        branch: The branch with the change.
        source: The project that has the branch; None if that is gone.
        target: The branch that it goes to.
        draft: Whether it is a draft.
        conflict: Whether it conflicts with its target; None if the server does not know yet.
        approved: Whether a member approves `head`, and no member asks for changes.
        checks: The checks of `head`.
        remarks: The remarks of members, oldest first.
        unread: The number of comments by others, which are not read.
    """

    state: Literal["open", "merged", "closed"]
    head: str
    branch: str
    source: str | None
    target: str
    draft: bool
    conflict: bool | None = None
    approved: bool = False
    checks: tuple[Check, ...] = ()
    remarks: tuple[Remark, ...] = ()
    unread: int = 0

    @property
    def running(self) -> list[Check]:
        """The checks that have not ended."""
        return [check for check in self.checks if check.status == "running"]

    @property
    def red(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == "red"]


class Reader(Protocol):
    """Reads pull requests of one kind of server, and answers on them. All methods block."""

    def look(self, api: Api, pull: PullReference) -> PullState:
        """Return the pull request as it is now."""
        ...

    def answer(self, api: Api, pull: PullReference, text: str) -> None:
        """Write a comment."""


def entries(api: Api, url: str, name: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the entries of a list, page after page.

    Args:
        api: The API.
        url: The address of the list.
        name: The field that has the list; None if the response is the list.

    Raises:
        EnvironmentFault: The response is no such list, or there are too many pages.
    """
    following: str | None = f"{url}{'&' if '?' in url else '?'}per_page={PAGE}"
    for _ in range(MAX_PAGES):
        assert following is not None
        answer = api.get(following)
        found = answer.json.get(name) if name is not None and isinstance(answer.json, dict) else answer.json
        if not isinstance(found, list):
            raise api.not_the_api()
        for entry in found:
            if not isinstance(entry, dict):
                raise api.not_the_api()
            yield entry
        following = answer.next
        if following is None:
            return
    raise EnvironmentFault(f"{url} has more than {MAX_PAGES} pages: they are not read.")


def part(value: object, *names: str) -> dict[str, Any]:
    """Return the object that names lead to; an empty object if it is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def words(value: object, *names: str) -> str:
    """Return the text that names lead to, with `\\n` line ends; an empty text if it is missing."""
    *above, last = names
    found = part(value, *above).get(last)
    if not isinstance(found, str):
        return ""
    return found.replace("\r\n", "\n").replace("\r", "\n")


def is_said(entry: object) -> bool:
    """Return whether a comment or review has a text that m3agent did not write."""
    text = words(entry, "body").strip()
    return bool(text) and not text.startswith(MARK) and isinstance(part(entry).get("id"), int)
