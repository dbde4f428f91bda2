"""What a client of GitHub or GitLab can do, and the data that it returns."""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal, TypeAlias

from m3agent.agent.forge.address import IssueReference, Project, PullReference
from m3agent.agent.forge.api import Api, TooLarge, words
from m3agent.util.errors import M3AgentError, UsageError
from m3agent.util.json_value import mapping
from m3agent.util.sanitize import replace_unprintable

MARK = "<!-- m3agent -->"
"""The first line of m3agent's own comments. Comments that begin with it are not read."""

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF = re.compile(r"(?!-)[^\s~^:?*\[\\\x00-\x20\x7f]+")

CheckStatus: TypeAlias = Literal["running", "red", "green"]
State: TypeAlias = Literal["open", "merged", "closed"]


@dataclass(frozen=True)
class Opened:
    """A project that takes pull requests."""

    project: Project
    """The project under its present name."""
    may_push: bool
    """Whether the token's owner may push to it, as far as the server says."""


@dataclass(frozen=True)
class Proposal:
    """A pull request to open."""

    title: str
    """One line."""
    body: str
    """The text, in Markdown."""
    draft: bool
    base: str
    """The branch that it goes to."""
    branch: str
    """The branch with the change."""
    fork: Project | None = None
    """The project that has `branch`; None if it is the project itself."""


@dataclass(frozen=True)
class Commits:
    """The commits of a pull request."""

    head: str
    """The id of its last commit."""
    target: str
    """The id of the last commit of the branch that it goes to."""
    branch: str
    """The name of that branch."""


@dataclass(frozen=True)
class Check:
    """A check of the last commit, as the server's continuous integration reports it."""

    key: str
    """Names the check and the commit."""
    name: str
    status: CheckStatus
    log: str | None
    """Where its log is; None if the server has none."""
    said: str
    """What the check itself says in a few words."""


@dataclass(frozen=True)
class Remark:
    """A comment, or a review, by a member of the project."""

    key: str
    """Names the remark."""
    author: str
    """The member's name."""
    text: str
    url: str = ""
    """Its web page; empty if the server names none."""
    place: str = ""
    """The file and line that it is about; empty if it is about the whole."""
    code: str = ""
    """The code that it is about, as a part of a diff."""


@dataclass(frozen=True)
class PullState:
    """A pull request at one moment."""

    state: State
    head: str
    """The id of its last commit."""
    branch: str
    """The branch with the change."""
    source: str | None
    """The project that has the branch; None if that is gone."""
    target: str
    """The branch that it goes to."""
    draft: bool
    conflict: bool | None = None
    """Whether it conflicts with its target; None if the server does not know yet."""
    approved: bool = False
    """Whether a member approves `head`, and no member asks for changes."""
    checks: tuple[Check, ...] = ()
    """The checks of `head`."""
    remarks: tuple[Remark, ...] = ()
    """The remarks of members, oldest first."""
    unread: int = 0
    """The number of comments by others, which are not read."""

    @property
    def running(self) -> list[Check]:
        """The checks that have not ended."""
        return [check for check in self.checks if check.status == "running"]

    @property
    def red(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == "red"]


class Client(ABC):
    """A client of one kind of server. All methods that send a request block.

    They raise UsageError, PermissionRefused and EnvironmentFault as `Api.get` does.
    """

    body: ClassVar[str]
    """The field with the text of an issue."""
    full_name: ClassVar[str]
    """The field with the present name of a project."""
    page: ClassVar[str]
    """The field with the web page of a pull request."""
    pull_fields: ClassVar[tuple[tuple[str, ...], ...]]
    """The ways to the last commit, the branch and the target branch in a pull request."""
    commit_fields: ClassVar[tuple[tuple[str, ...], ...]]
    """The ways to the values of `Commits` in a pull request."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def issue(self, reference: IssueReference, most: int) -> tuple[str, str]:
        """Return the title of an issue, and its body and comments in their order.

        Raises:
            TooLarge: The body and the comments have more than `most` bytes, or their list has no end.
            UsageError: The issue does not exist, or is a pull request.
        """
        answer = self.api.get(f"{reference.project_api}/issues/{reference.number}")
        found = mapping(answer.json)
        if not isinstance(found.get("title"), str):
            raise self.api.not_the_api()
        if found.get("pull_request"):
            raise UsageError(f"{reference.label} is a pull request: name its issue.")
        comments = self._comments(found, answer.url.partition("?")[0].partition("#")[0])
        texts, size = list[str](), 0
        for text in _texts(words(found, self.body), comments):
            size += len(text.encode())
            if size > most:
                raise TooLarge
            texts.append(text)
        return words(found, "title"), "\n".join(texts)

    def issues(self, project: Project, query: str, most: int) -> list[int]:
        """Return the numbers of the open issues of a project that a query finds, the oldest first.

        Args:
            query: In the words of the tracker, such as `label:bug`.
            most: Most issues.

        Raises:
            UsageError: The tracker has no such query.
        """
        numbers = islice(self._numbers(project, query), most)
        return list(dict.fromkeys(number for number in numbers if type(number) is int and number > 0))

    def present(self, project: Project) -> Opened:
        """Return a project as it is now. Raises UsageError if it cannot be read or is archived."""
        found = self.api.get(project.project_api).json
        now = self._named(project, found)
        if found.get("archived") is True:
            raise UsageError(f"--pr: {now.project} is archived and takes no pull requests; use --branch NAME")
        return Opened(now, may_push=mapping(found, "permissions").get("push") is not False)

    def commits(self, pull: PullReference) -> Commits:
        """Return the commits of a pull request."""
        found = self.api.get(pull.pull_api).json
        commits = Commits(*(words(found, *way) for way in self.commit_fields))
        if not (
            _COMMIT.fullmatch(commits.head)
            and _COMMIT.fullmatch(commits.target)
            and _REF.fullmatch(commits.branch)
        ):
            raise self.api.not_the_api()
        return commits

    def fork(self, project: Project) -> Project:
        """Return the fork of the token's owner. The server makes a missing fork, and may need some time for it."""
        raise UsageError(f"--pr: you may not push to {project.project}: push to your fork by hand")

    def open(self, project: Project, what: Proposal) -> str:
        """Open the pull request, or find the open one for this branch; return its address."""
        url = f"{project.project_api}/{project.server.pulls}"
        value, search = self._proposed(project, what)
        try:
            return self._page(project, self.api.post(url, value).json)
        except M3AgentError:
            # The request may have succeeded although the response was lost, or other automation was faster.
            with contextlib.suppress(M3AgentError):
                pulls = self.api.get(f"{url}?{search}").json
                if isinstance(pulls, list) and pulls:
                    return self._page(project, pulls[0])
            raise

    def look(self, pull: PullReference) -> PullState:
        """Return the pull request as it is now; of one that has ended, only what it says itself."""
        now = mapping(self.api.get(pull.pull_api).json)
        head, branch, target = (words(now, *way) for way in self.pull_fields)
        if not head:
            raise self.api.not_the_api()
        state, source = self._state(pull, now)
        seen = PullState(state, head, branch, source, target, now.get("draft") is True)
        return self._news(pull, now, seen) if state == "open" else seen

    def answer(self, pull: PullReference, text: str) -> None:
        """Write a comment on a pull request."""
        comments = pull.server.comments.format(number=pull.number)
        self.api.post(f"{pull.project_api}/{comments}", {"body": text})

    @abstractmethod
    def _numbers(self, project: Project, query: str) -> Iterator[object]:
        """Yield the numbers of the open issues that a query finds, the oldest first."""

    @abstractmethod
    def _proposed(self, project: Project, what: Proposal) -> tuple[dict[str, Any], str]:
        """Return the request that opens a pull request, and the search for the open one."""

    @abstractmethod
    def _state(self, pull: PullReference, now: dict[str, Any]) -> tuple[State, str | None]:
        """Return the state of a pull request, and the project with its branch."""

    @abstractmethod
    def _news(self, pull: PullReference, now: dict[str, Any], seen: PullState) -> PullState:
        """Return an open pull request with its checks and remarks."""

    @abstractmethod
    def _comments(self, issue: dict[str, Any], page: str) -> Iterator[tuple[str, str]]:
        """Yield author and text of the comments on an issue, which is at the address `page`."""

    def _named(self, project: Project, found: object) -> Project:
        """Return the project that a response names. Raises EnvironmentFault if it names none on this server."""
        present = project.beside(words(found, self.full_name))
        if present is None:
            raise self.api.not_the_api()
        return present

    def _page(self, project: Project, value: object) -> str:
        url = mapping(value).get(self.page)
        if not isinstance(url, str) or not url.isprintable() or not url.startswith(f"{project.web}/"):
            raise self.api.not_the_api()
        return url


def _texts(body: str, comments: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the body of an issue, then each comment that is not empty, under its author's name.

    The author of a deleted account is called `ghost`, as on GitHub.
    """
    yield f"{body.strip()}\n"
    for author, text in comments:
        if text.strip():
            name = replace_unprintable(author, "").strip()[:100]
            yield f"\n## Comment by {name or 'ghost'}\n\n{text.strip()}\n"


def place_in(path: str, line: object) -> str:
    """Return a file, with the line if it is known."""
    return f"{path}:{line}" if path and isinstance(line, int) else path


def is_written(entry: object) -> bool:
    """Return whether a comment or review has a text that m3agent did not write."""
    text = words(entry, "body").strip()
    return bool(text) and not text.startswith(MARK) and isinstance(mapping(entry).get("id"), int)
