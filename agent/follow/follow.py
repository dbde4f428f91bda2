"""Follow a pull request: wait for checks and remarks, let the session continue, and push what it changes.

Each continuation is a round. It is a fork of the session, so the model gets the same messages as before, with the news at the
end. The whole patch is verified again. A round pushes one commit on top of the branch, never by force.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from m3agent.agent.delivery.apply import HandOver, PullUpdate
from m3agent.agent.delivery.pull_request import address_of
from m3agent.agent.delivery.push import ORIGIN, fetch, heads_of
from m3agent.agent.fix.finalize import FixResult
from m3agent.agent.follow import text
from m3agent.agent.forge.address import Project, PullReference, parse_pull_request
from m3agent.agent.forge.api import RateLimited, find_token
from m3agent.agent.forge.client import Check, Client, PullState, Remark
from m3agent.agent.forge.connection import connected
from m3agent.agent.loop.resume import ResumePoint, rebased, resume_point
from m3agent.agent.repo.repository import GitCommandFailed, Repository
from m3agent.agent.repo.snapshot import TREES, objects_of
from m3agent.agent.session import log_reader
from m3agent.agent.session.catalog import session_folders
from m3agent.agent.session.events import Proposal, PullFollowed
from m3agent.agent.session.fork import fork
from m3agent.agent.session.log_reader import LOG, Line, read_ends, read_log
from m3agent.agent.session.session import Session
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.util.daemon_thread import in_background
from m3agent.util.errors import (
    EXIT_CODES,
    HANDED_OVER,
    EnvironmentFault,
    M3AgentError,
    PermissionRefused,
    Status,
    UsageError,
)
from m3agent.util.json_value import strings

LIMITED_SECONDS = 60.0
"""The wait in seconds if the server limits requests and does not say for how long. GitHub asks for a minute at least."""
MOST_FAULTS = 5
"""How often in a row the server may fail to answer."""

T = TypeVar("T")
CarryOn = Callable[[Session, Sequence[Line], ResumePoint, HandOver], Awaitable[FixResult]]
"""Continues a session from a point of its log."""


@dataclass(frozen=True)
class FollowRequest:
    """What to follow, and how long."""

    pull: PullReference
    repository: Repository
    """The user's repository, whose origin the pull request belongs to."""
    session: Path
    """The folder of the last session that pushed to it."""
    rounds: int
    """The most rounds, counted from the opening of the pull request."""
    minutes: float
    """The longest time, in minutes."""
    seconds: float
    """The time between two looks, in seconds."""


@dataclass(frozen=True)
class Followed:
    """Why following ended."""

    reason: str
    """The reason, in one clause."""
    exit_code: int


def session_of(state: Path, pull: PullReference, *, github_api: str, env: Mapping[str, str]) -> Path:
    """Return the folder of the last session that opened a pull request or pushed to it.

    Raises:
        UsageError: No session did.
    """
    wanted, pushed = (pull.web, pull.project.lower(), pull.number), list[tuple[str, Path]]()
    for folder in session_folders(state):
        with contextlib.suppress(OSError, UsageError):
            ends = read_ends(folder / LOG)
            address = "" if ends is None else log_reader.text(ends[1], "pull_request")
            found = parse_pull_request(address, github_api=github_api, env=env)
            if ends is not None and (found.web, found.project.lower(), found.number) == wanted:
                pushed.append((log_reader.text(ends[1], "ts"), folder))
    if not pushed:
        raise UsageError(
            f"no session here opened {pull.what}: name one with --session, or open a pull request with m3agent fix --pr"
        )
    return max(pushed)[1]


async def follow(
    request: FollowRequest,
    state: Path,
    carry_on: CarryOn,
    *,
    env: Mapping[str, str],
    say: Callable[[str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Followed:
    """Follow a pull request until it is approved, merged or closed, or a limit is reached.

    Raises:
        UsageError, PermissionRefused, EnvironmentFault: The pull request cannot be read, or a round could not begin.
    """
    token = await in_background(lambda: find_token(request.pull, env))
    if token is None:
        raise PermissionRefused(
            f"{request.pull.what} is followed with a token for {request.pull.host}: set {request.pull.token_variable}"
        )
    with connected(request.pull, token, say) as client:
        return await _Follower(request, state, carry_on, client, say, sleep).run()


class _Follower:
    """Follows one pull request. The log of its last session says what was handled before."""

    def __init__(
        self,
        request: FollowRequest,
        state: Path,
        carry_on: CarryOn,
        client: Client,
        say: Callable[[str], None],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._request, self._state, self._carry_on = request, state, carry_on
        self._client, self._say, self._sleep = client, say, sleep
        self._pull, self._repository = request.pull, request.repository
        self._session = request.session
        self._left = 60 * request.minutes
        self._since = time.monotonic()
        lines = read_log(self._session / LOG).events
        before = [line for line in lines if line["type"] == PullFollowed.type]
        self._rounds = len(before)
        self._handled = {key for line in before for key in strings(line, "handled")}
        self._replaced = {log_reader.text(line, "head") for line in before}
        self._commit = log_reader.text(lines[-1], "commit") if lines else ""
        self._replaced.discard(self._commit)
        self._unread = 0

    async def run(self) -> Followed:
        """Look, act and wait, until there is a reason to end."""
        while True:
            seen = await self._look()
            if seen.state != "open":
                merged = seen.state == "merged"
                return Followed(f"{self._pull.label} is {seen.state}", 0 if merged else 1)
            if ended := await self._act(seen):
                return ended

    async def _act(self, seen: PullState) -> Followed | None:
        """Do what an open pull request needs, or wait; return why following ends, if it does."""
        if seen.head in self._replaced:  # the server does not show the last push yet
            return await self._wait(seen)
        red = [check for check in seen.red if check.key not in self._handled]
        remarks = [remark for remark in seen.remarks if remark.key not in self._handled]
        conflict = seen.conflict is True and f"conflict:{seen.head}" not in self._handled
        if red or remarks or conflict:
            if self._rounds >= self._request.rounds:
                return Followed(f"the limit of {self._request.rounds} rounds is reached", _LIMIT)
            return await self._round(seen, red, remarks, conflict=conflict)
        if seen.approved and not seen.running:
            return Followed(f"{self._pull.label} is approved", 0)
        return await self._wait(seen)

    async def _look(self) -> PullState:
        faults = 0
        while True:
            try:
                seen = await self._ask(lambda: self._client.look(self._pull))
            except RateLimited:
                raise
            except EnvironmentFault as error:
                faults += 1
                if faults == MOST_FAULTS or not self._has(self._request.seconds):
                    raise
                self._say(str(error))
                await self._pause(self._request.seconds)
            else:
                if seen.unread > self._unread:
                    self._say(f"comments by people who are no members are not read: {seen.unread}")
                self._unread = seen.unread
                return seen

    async def _ask(self, question: Callable[[], T]) -> T:
        """Return what the server answers. If it limits requests, wait for as long as it asks."""
        while True:
            try:
                return await in_background(question)
            except RateLimited as limited:
                wait = LIMITED_SECONDS if limited.until is None else max(1.0, limited.until - time.time() + 1)
                if not self._has(wait):
                    raise
                self._say(str(limited))
                await self._pause(wait)

    def _has(self, seconds: float) -> bool:
        """Return whether so much time is left."""
        return time.monotonic() - self._since + seconds <= self._left

    async def _pause(self, seconds: float) -> None:
        """Sleep, and count the time even if the clock does not move meanwhile."""
        begun = time.monotonic()
        await self._sleep(seconds)
        self._left -= max(0.0, seconds - (time.monotonic() - begun))

    async def _wait(self, seen: PullState) -> Followed | None:
        """Wait until the next look; return why following ends if no time is left."""
        if self._has(self._request.seconds):
            await self._pause(self._request.seconds)
            return None
        limit = f"{self._request.minutes:g} minutes have passed"
        if seen.running:
            return Followed(f"{limit}, and the check '{seen.running[0].name}' has not ended", _LIMIT)
        if seen.red or seen.conflict:
            return Followed(f"{limit}, and {'a check is red' if seen.red else 'there is a conflict'}", _LIMIT)
        return Followed(f"{limit}; no check is red and no remark is open, but nobody has approved it yet", 0)

    async def _round(
        self, seen: PullState, red: Sequence[Check], remarks: Sequence[Remark], *, conflict: bool
    ) -> Followed | None:
        """Let the session continue with the news, and answer; return why following ends, if it does."""
        remote = self._remote(seen)
        await fetch(self._repository, [self._pull.ref], objects_of(self._repository))
        if not self._git_agrees("cat-file", "-e", f"{seen.head}^{{commit}}"):
            self._say(f"{self._pull.what} changed while it was fetched")
            return None
        ours = self._commit
        if ours and not self._git_agrees("merge-base", "--is-ancestor", ours, seen.head):
            return Followed(
                f"somebody replaced commit {ours[:12]} of branch {seen.branch}: m3agent does not work on "
                "top of that",
                PermissionRefused.exit_code,
            )
        tip = await self._tip(seen.target) if conflict else None
        logs = await self._logs(red)
        started = await asyncio.to_thread(self._start, seen, tip)
        news = text.for_model(self._pull.label, red, logs, remarks, started.conflicting if conflict else None)
        self._rounds += 1
        parts = [f"red checks: {len(red)}", f"new remarks of members: {len(remarks)}"]
        keys = [*(check.key for check in red), *(remark.key for remark in remarks)]
        if conflict:
            parts.append(f"a conflict with {seen.target}")
            keys.append(f"conflict:{seen.head}")
        self._say(f"round {self._rounds} of at most {self._request.rounds}: {', '.join(parts)}")
        self._handled.update(keys)
        to = PullUpdate(self._pull.url, remote, seen.branch, seen.head, tip, started.tree, seen.draft)
        with contextlib.closing(started.session) as session:
            session.write(PullFollowed(self._pull.url, self._rounds, seen.head, keys))
            point = rebased(started.point, started.tree, news)
            point = replace(point, started={**point.started, "tree": started.base})
            result = await self._carry_on(session, started.lines, point, HandOver(update=to))
        said = text.answer(result, red, remarks, self._rounds, self._request.rounds, seen.head)
        try:
            await self._ask(lambda: self._client.answer(self._pull, said))
        except M3AgentError as error:
            self._say(f"the answer could not be written on {self._pull.what}: {error}")
        if result.opened is None:
            return _without_push(result, seen.target if conflict else None)
        if result.opened.commit != seen.head:
            self._replaced.add(seen.head)
        self._session, self._commit = result.session, result.opened.commit
        return None

    def _remote(self, seen: PullState) -> str:
        """Return where the branch is pushed to. Raises UsageError if nobody can push to it."""
        if seen.source is None:
            raise UsageError(f"the project with branch {seen.branch} of {self._pull.what} cannot be found")
        if seen.source.lower() == self._pull.project.lower():
            return ORIGIN
        source = Project(self._pull.kind, self._pull.api, self._pull.web, seen.source)
        return address_of(self._repository, source)

    def _git_agrees(self, *args: str) -> bool:
        """Return whether a question to git has the answer yes."""
        try:
            self._repository.git(*args)
        except GitCommandFailed:
            return False
        return True

    async def _tip(self, branch: str) -> str:
        """Fetch the target branch, and return its last commit."""
        heads = await heads_of(self._repository)
        if branch not in heads.ids:
            raise UsageError(f"origin has no branch {branch}, which {self._pull.what} goes to")
        await fetch(self._repository, [f"refs/heads/{branch}"], objects_of(self._repository))
        return heads.ids[branch]

    async def _logs(self, checks: Sequence[Check]) -> dict[str, str]:
        """Return what failed checks printed, by key; where there is no log, what they say themselves."""
        logs = {}
        for check in checks:
            logs[check.key] = check.said
            if (url := check.log) is not None:
                try:
                    printed = await self._ask(lambda url=url: self._client.api.get_log(url))  # type: ignore[misc]
                    logs[check.key] = printed or check.said
                except M3AgentError as error:
                    self._say(f"the log of check '{check.name}' cannot be read: {error}")
        return logs

    def _start(self, seen: PullState, tip: str | None) -> _Started:
        """Fork the session, from the files that the pull request has now. Blocking.

        Args:
            tip: A commit that it conflicts with; None without a conflict.
        """
        log = read_log(self._session / LOG)
        before = log.events[0]
        base, commit = before["tree"], before["repository"]["head"]
        store = TreeStore(self._session / TREES, only_read=True)
        earlier = _last_tree(log.events, base)
        tree = carried(store, earlier, self._commit or seen.head, seen.head)
        change = Workspace(store, base).patch(tree).text.decode("utf-8", "replace")
        moved = dict[str, str]()
        if tip is not None:
            proposed = {line["tree"] for line in log.events if line["type"] == Proposal.type}
            moved = {test: carried(store, test, commit, tip) for test in proposed}
            tree = base = carried(store, base, commit, tip)
            commit = tip
        session, lines = fork(self._state, log, None, (commit, base), moved)
        point = resume_point(lines)
        # the rules about answers and verdicts of the earlier fix do not count for this round
        point = replace(point, rounds=0, accepted_answer=None, returned={})
        return _Started(session, lines, point, base, tree, change)


@dataclass(frozen=True)
class _Started:
    """A session that continues in a round."""

    session: Session
    """The session, open."""
    lines: Sequence[Line]
    """The lines of its log."""
    point: ResumePoint
    """Where it continues."""
    base: str
    """The tree that its patch starts from."""
    tree: str
    """The state of the work tree to continue with."""
    conflicting: str
    """The patch so far."""


_LIMIT = EXIT_CODES[Status.LIMIT]


def _without_push(result: FixResult, conflicting: str | None) -> Followed:
    """Return why following ends after a round that pushed nothing; `conflicting` is the branch with a conflict."""
    if result.status in HANDED_OVER and result.exit_code > 1:
        return Followed("the push was refused, as the error says", result.exit_code)
    why = "nothing was pushed" if conflicting is None else f"the conflict with {conflicting} is not resolved"
    return Followed(f"{why}: {result.reason}", result.exit_code or 1)


def carried(store: TreeStore, tree: str, old: str, new: str) -> str:
    """Return a tree with the changes between two commits. Other files keep what the session has, such as line ends.

    Args:
        store: Holds the tree, and can read the commits.
    """
    if old == new:
        return tree
    changed = {path for _, path in store.changed_paths(*(_tree(store, commit) for commit in (old, new)))}
    kept = [entry for entry in store.list_tree(tree) if entry.path not in changed]
    return store.write_tree([*kept, *(entry for entry in store.list_tree(new) if entry.path in changed)])


def _tree(store: TreeStore, commit: str) -> str:
    return store.git("rev-parse", f"{commit}^{{tree}}").decode().strip()


def _last_tree(lines: Sequence[Line], base: str) -> str:
    """Return the last state of the work tree that a log names."""
    ends = ("call.finished", "session.resumed")
    trees = (log_reader.text(line, "tree") for line in reversed(lines) if line["type"] in ends)
    return next(filter(None, trees), base)
