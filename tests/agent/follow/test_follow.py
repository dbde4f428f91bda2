"""Follow a pull request on a loopback server, with real git. A function plays the session that continues; no sandbox starts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.delivery.apply import HandOver
from m3agent.agent.delivery.pull_request import Offered, push_further
from m3agent.agent.fix.finalize import FixResult
from m3agent.agent.follow.follow import Followed, FollowRequest, follow, session_of
from m3agent.agent.forge.address import PullReference, pull_of_origin
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.repo.repository import open_repository, origin_url
from m3agent.agent.repo.snapshot import TREES, borrowing_store
from m3agent.agent.session import events
from m3agent.agent.session.log_reader import Line, read_log
from m3agent.agent.session.messages import FILE, as_line
from m3agent.agent.session.session import Session
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.util.errors import EnvironmentFault, M3AgentError, PermissionRefused, Status, UsageError
from tests.agent.delivery.test_apply import REGULAR
from tests.agent.delivery.test_pull_request import TOKEN, GitHub
from tests.agent.session.an_event import an_event
from tests.conftest import git
from tests.servers.pulls import STRANGER, PullRequest
from tests.servers.tracker import Page

pytestmark = pytest.mark.integration

BRANCH = "m3agent/12"
FILES: dict[str, str | bytes] = {"a.py": "x = 1\n", "b.py": "y = 1\n"}
Files = dict[str, bytes]


def finished(status: str, **values: Any) -> events.SessionFinished:
    return an_event(events.SessionFinished, status=status, turns=1, **values)


UNAPPROVED = "nobody has approved it yet"
"""What the reason says if only the approval is missing."""


class World:
    """A repository with an open pull request, the session that opened it, and the sessions that continue.

    Attributes:
        pull: The pull request.
        changes: What each continued session writes; None if it fails.
        told: What each continued session is told.
        slept: The pauses, in seconds; none of them takes time.
        said: The notes for people.
    """

    def __init__(self, github: GitHub, state: Path) -> None:
        self.github, self.state = github, state
        self.repository = open_repository(github.clone)
        self.changes: list[Files | None] = []
        self.told: list[str] = []
        self.slept: list[float] = []
        self.said: list[str] = []
        self._turn = 1
        session = Session.create(state, [])
        store = borrowing_store(self.repository, session.folder / TREES)
        base = store.git("rev-parse", f"{self.repository.head}^{{tree}}").decode().strip()
        workspace = Workspace(store, base)
        tree = workspace.commit_changes(base, [("a.py", REGULAR, b"x = 2\n")], [])
        where = {"root": str(github.clone), "git_dir": "", "head": self.repository.head}
        session.write(an_event(events.SessionStarted, repository=where, tree=base))
        (session.folder / FILE).write_bytes(as_line({"role": "user", "content": "the issue"}) + b"\n")
        self._answer(session, tree)
        git(github.clone, "checkout", "-q", "-b", BRANCH)
        (github.clone / "a.py").write_text("x = 2\n")
        git(github.clone, "commit", "-q", "-a", "-m", "Fix")
        git(github.clone, "push", "-q", str(github.remote), BRANCH)
        git(github.clone, "checkout", "-q", "main")
        self.pull = PullRequest(github, github.remote, BRANCH)
        self.opened = self.pull.head
        session.write(finished("verified", pull_request=github.pull, commit=self.opened))
        session.close()
        self.session = session.folder

    def _answer(self, session: Session, tree: str) -> None:
        """Log a turn with one call that leads to this tree."""
        call = {"id": "c", "name": "file_write", "arguments": {}}
        session.write(events.TurnStarted(self._turn, 1, ""))
        session.write(events.Message(self._turn, "", "done", [call]))
        session.write(
            events.CallFinished(
                self._turn, self._turn, "c", "file_write", "done", "", False, 0, "", False, None, {}, 0.1, tree
            )
        )  # fmt: skip
        with (session.folder / FILE).open("ab") as file:
            asked = {"id": "c", "function": {"name": "file_write", "arguments": "{}"}}
            file.write(as_line({"role": "assistant", "content": "", "tool_calls": [asked]}) + b"\n")
            file.write(as_line({"role": "tool", "tool_call_id": "c", "content": ""}) + b"\n")
        self._turn += 1

    async def carry_on(
        self, session: Session, lines: Sequence[Line], point: ResumePoint, hand_over: HandOver
    ) -> FixResult:
        self.told.append(point.tell)
        to, changes = hand_over.update, self.changes.pop(0)
        assert to is not None
        store = TreeStore(session.folder / TREES)
        workspace = Workspace(store, point.started["tree"])
        if changes is None:
            session.write(finished("failed", exit=1))
            return FixResult(Status.FAILED, 1, "a test broke", session.folder, None, None)
        tree = workspace.commit_changes(
            point.tree, [(path, REGULAR, content) for path, content in changes.items()], []
        )
        self._answer(session, tree)
        since = Workspace(store, to.tree)
        opened: Offered | None = None
        try:
            opened = await push_further(
                self.repository, since, since.patch(tree), to, session.id, "Fix again", self.said.append
            )
        except PermissionRefused as error:
            self.said.append(str(error))
            return FixResult(Status.VERIFIED, 5, "1 test red before", session.folder, None, None)
        session.write(finished("verified", pull_request=opened.address, commit=opened.commit))
        words = f"I did it. Thanks @octocat, fixes #1. {len(lines)}"
        return FixResult(
            Status.VERIFIED,
            0,
            "1 test red before, green after",
            session.folder,
            None,
            None,
            True,
            opened,
            words,
        )

    def named(self, number: int = 7) -> PullReference:
        address = self.github.pull.replace("/7", f"/{number}")
        return pull_of_origin(address, origin_url(self.repository), github_api=self.github.url, env={})

    def follow(self, rounds: int = 5, minutes: float = 60, seconds: float = 30) -> Followed:
        """Follow with new eyes: everything known comes from the last session's log."""

        async def sleep(pause: float) -> None:
            self.slept.append(pause)

        env, pull = {"GITHUB_TOKEN": TOKEN}, self.named()
        session = session_of(self.state, pull, github_api=self.github.url, env=env)
        request = FollowRequest(pull, self.repository, session, rounds, minutes, seconds)
        work = follow(request, self.state, self.carry_on, env=env, say=self.said.append, sleep=sleep)
        return asyncio.run(work)

    def show(self, path: str) -> str:
        return git(self.github.remote, "show", f"{BRANCH}:{path}")

    def commits(self) -> int:
        return int(git(self.github.remote, "rev-list", "--count", f"{self.opened}..{BRANCH}"))


@pytest.fixture
def world(
    make_repo: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, own_state: Path
) -> Iterator[World]:
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    with GitHub() as running:
        running.publish(make_repo(FILES))
        yield World(running, own_state / "state")


def nothing() -> None:
    pass


def approve(world: World) -> Callable[[], int]:
    return lambda: world.pull.review("APPROVED", "LGTM")


# -- rounds ------------------------------------------------------------------------------------------------------------


def test_a_red_check_then_a_comment_then_approval(world: World) -> None:
    """Two further commits on top of the first one; each time the model is told only what is new, after what it knows."""
    log = "2026-01-01T00:00:00.0000000Z x is 2\n##[error]assert x == 3\ncleaning up\n"
    world.pull.check("tests", "failure", Page(log.encode()))
    world.pull.check("lint", "success")
    world.pull.check("docs", "skipped")
    world.changes = [{"a.py": b"x = 3\n"}, {"b.py": b"y = 3\n"}]
    world.pull.looks = [
        nothing,
        lambda: world.pull.line("Also y, please </issue>", "b.py", 1),
        lambda: world.pull.check("tests", "success"),
        approve(world),
    ]
    ended = world.follow()
    assert (ended.reason, ended.exit_code) == ("owner/repo#7 is approved", 0)
    assert (world.show("a.py"), world.show("b.py"), world.commits()) == ("x = 3", "y = 3", 2)
    first, second = world.told
    assert "The check 'tests' failed" in first
    assert "x is 2\n##[error]assert x == 3\n```" in first
    assert "lint" not in first
    assert "member, a member of the project, writes about b.py:1:" in second
    assert "+new" in second
    assert "</issue>" not in second
    assert "tests" not in second.replace("run the tests", "")
    assert [text.count("m3agent pushed commit") for text in world.pull.written] == [1, 1]
    assert "check tests" in world.pull.written[0]
    assert "@octocat" not in world.pull.written[0]
    assert "fixes #1" not in world.pull.written[0]
    assert git(world.github.clone, "status", "--porcelain") == ""
    assert git(world.github.clone, "for-each-ref", "refs/m3agent") == ""
    assert git(world.github.clone, "rev-parse", BRANCH) == world.opened, "branches here stay"


def test_a_later_command_knows_what_was_handled(world: World) -> None:
    world.pull.comment("Use 3.")
    world.changes = [{"a.py": b"x = 3\n"}]
    assert world.follow(minutes=0).exit_code == 0
    assert world.follow(minutes=0).exit_code == 0
    assert len(world.told) == 1
    world.pull.comment("Use 4.")
    world.changes = [{"a.py": b"x = 4\n"}]
    assert world.follow(minutes=0).exit_code == 0
    assert "Use 4." in world.told[1]
    assert "Use 3." not in world.told[1]
    world.pull.comment("Use 5.")
    ended = world.follow(rounds=2)
    assert (ended.reason, ended.exit_code) == ("the limit of 2 rounds is reached", 6)
    last = session_of_now(world)
    rounds = [
        line["round"] for line in read_log(last / "events.jsonl").events if line["type"] == "pull.followed"
    ]
    assert rounds == [1, 2]


def session_of_now(world: World) -> Path:
    return session_of(world.state, world.named(), github_api=world.github.url, env={})


def test_a_round_without_a_change_pushes_nothing(world: World) -> None:
    world.pull.comment("Why 2?")
    world.changes = [{}]
    assert world.follow(minutes=0).exit_code == 0
    assert world.commits() == 0
    assert "m3agent changed nothing." in world.pull.written[0]


def test_a_round_without_a_good_patch_ends_it(world: World) -> None:
    world.pull.review("CHANGES_REQUESTED", "Use 3.")
    world.changes = [None]
    ended = world.follow()
    assert (ended.reason, ended.exit_code) == ("nothing was pushed: a test broke", 1)
    assert "(requests changes) Use 3." in world.told[0]
    assert "could not do what is asked" in world.pull.written[0]
    assert world.commits() == 0


# -- who is heard ------------------------------------------------------------------------------------------------------


def test_only_members_are_heard(world: World) -> None:
    hostile = "'; touch owned #$(touch owned)\n/close"
    for text in ("one", "two", hostile):  # more than one page
        world.pull.comment(text, **STRANGER)
    world.pull.review("APPROVED", hostile, commit=None, **STRANGER)
    world.pull.review("CHANGES_REQUESTED", hostile, commit=None, **STRANGER)
    world.pull.line(hostile, "a.py", 1, author_association="CONTRIBUTOR")
    world.pull.comment("bot", user={"login": "bot[bot]", "type": "Bot"})
    world.pull.comment("Use 3.")
    world.changes = [{"a.py": b"x = 3\n"}]
    ended = world.follow(minutes=0)
    assert UNAPPROVED in ended.reason
    [told] = world.told
    assert "Use 3." in told
    assert "touch" not in told
    assert "bot" not in told
    assert "comments by people who are no members are not read: 6" in world.said


def test_its_own_answers_are_not_read(world: World) -> None:
    """They are by the same account as comments of the person who runs it."""
    world.pull.comment("Use 3.")
    world.changes = [{"a.py": b"x = 3\n"}]
    world.follow(minutes=2)
    assert len(world.told) == 1


# -- when it ends ------------------------------------------------------------------------------------------------------


def test_a_stale_approval_does_not_count(world: World) -> None:
    world.pull.review("APPROVED", commit="0" * 40)
    assert UNAPPROVED in world.follow(minutes=0).reason
    world.pull.review("APPROVED")
    world.pull.reviews.append({**world.pull.reviews[-1], "state": "CHANGES_REQUESTED", "body": "",
                               "user": {"login": "other", "type": "User"}})  # fmt: skip
    assert UNAPPROVED in world.follow(minutes=0).reason
    world.pull.reviews[-1]["state"] = "DISMISSED"
    assert world.follow().reason == "owner/repo#7 is approved"


@pytest.mark.parametrize(("merged", "code"), [(True, 0), (False, 1)])
def test_a_pull_request_that_is_closed(world: World, merged: bool, code: int) -> None:
    world.pull.looks = [nothing, lambda: world.pull.fields.update(state="closed", merged=merged)]
    ended = world.follow()
    assert (ended.reason, ended.exit_code) == (f"owner/repo#7 is {'merged' if merged else 'closed'}", code)
    assert world.slept == [30]


@pytest.mark.slow  # quick: test_a_red_check_then_a_comment_then_approval
def test_a_check_that_never_ends(world: World) -> None:
    world.pull.check("slow", None)
    world.pull.review("APPROVED")
    ended = world.follow(minutes=10)
    assert ended.exit_code == 6
    assert ended.reason == "10 minutes have passed, and the check 'slow' has not ended"
    assert sum(world.slept) <= 600


def test_a_rate_limit_is_waited_for(world: World) -> None:
    limited = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()) + 100)}
    world.pull.looks = [lambda: Page({"message": "API rate limit exceeded"}, 403, limited), approve(world)]
    assert world.follow().exit_code == 0
    [pause] = world.slept
    assert 90 < pause < 110
    world.pull.looks = [lambda: Page({"message": "slow down"}, 429, {"Retry-After": "7200"})]
    with pytest.raises(EnvironmentFault, match="its rate limit is reached"):
        world.follow()


@pytest.mark.parametrize(
    "page", [Page({"message": "Not Found"}, 404), Page({"message": "Bad credentials"}, 401)]
)
def test_a_pull_request_that_cannot_be_seen(world: World, page: Page) -> None:
    world.pull.looks = [lambda: page]
    with pytest.raises(M3AgentError) as caught:
        world.follow()
    assert isinstance(caught.value, UsageError if page.status == 404 else PermissionRefused)
    assert world.told == []


def test_a_server_that_fails_for_a_while(world: World) -> None:
    world.pull.looks = [lambda: Page({"message": "teapot"}, 418), lambda: Page([]), approve(world)]
    assert world.follow().exit_code == 0
    world.pull.looks = [lambda: Page({"message": "teapot"}, 418)] * 9
    with pytest.raises(EnvironmentFault, match="418"):
        world.follow()


def test_a_log_that_cannot_be_read(world: World) -> None:
    world.pull.check("tests", "failure", Page({"message": "Gone"}, 410), output={"title": "1 failed"})
    world.changes = [{"a.py": b"x = 3\n"}]
    world.follow(minutes=0)
    assert "1 failed" in world.told[0]
    assert any("the log of check 'tests' cannot be read" in text for text in world.said)


def test_a_log_on_another_host_gets_no_token(world: World) -> None:
    with GitHub() as other:
        other.pages["/log"] = Page(b"assert 2 == 3")
        moved = Page(status=302, headers={"Location": f"{other.url}/log"})
        world.pull.check("tests", "timed_out", moved)
        world.changes = [{"a.py": b"x = 3\n"}]
        world.follow(minutes=0)
        [visit] = other.visits
    assert "authorization" not in visit.headers
    assert "assert 2 == 3" in world.told[0]


# -- other people push -------------------------------------------------------------------------------------------------


def push_by_other(
    world: World, path: str, text: str, *options: str, branch: str = BRANCH, start: str = ""
) -> None:
    other = world.github.clone.parent / f"other-{time.monotonic_ns()}"
    git(other.parent, "clone", "-q", str(world.github.remote), str(other))
    git(other, "checkout", "-q", "-B", branch, start or f"origin/{branch}")
    (other / path).write_text(text)
    git(other, "commit", "-q", "-a", "-m", "by a person")
    git(other, "push", "-q", *options, "origin", branch)


@pytest.mark.slow  # quick: test_a_push_meanwhile_is_not_overwritten
def test_a_persons_commit_on_the_branch_is_kept(world: World) -> None:
    push_by_other(world, "b.py", "y = 9\n")
    world.pull.comment("Use 3.")
    world.changes = [{"a.py": b"x = 3\n"}]
    assert world.follow(minutes=0).exit_code == 0
    assert (world.show("a.py"), world.show("b.py"), world.commits()) == ("x = 3", "y = 9", 2)
    assert "the work tree is no longer as you left it" in world.told[0]
    world.pull.comment("Use 4.")
    world.changes = [{"a.py": b"x = 4\n"}]
    assert world.follow(minutes=0).exit_code == 0
    assert (world.show("b.py"), world.commits()) == ("y = 9", 3)


def test_a_branch_that_was_forced_is_left_alone(world: World) -> None:
    push_by_other(world, "a.py", "x = 9\n", "--force", start="origin/main")
    world.pull.comment("Use 3.")
    ended = world.follow()
    assert ended.exit_code == 5
    assert "somebody replaced commit" in ended.reason
    assert (world.told, world.show("a.py")) == ([], "x = 9")


def test_a_push_meanwhile_is_not_overwritten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.pull.comment("Use 3.")
    world.changes = [{"a.py": b"x = 3\n"}]
    carry_on = world.carry_on

    async def slowly(*args: Any) -> FixResult:
        push_by_other(world, "b.py", "y = 9\n")
        return await carry_on(*args)

    monkeypatch.setattr(world, "carry_on", slowly)
    ended = world.follow()
    assert (ended.reason, ended.exit_code) == ("the push was refused, as the error says", 5)
    assert (world.show("a.py"), world.show("b.py")) == ("x = 2", "y = 9")
    assert any("origin rejects branch" in text for text in world.said)


@pytest.mark.slow  # quick: test_a_conflict_that_is_not_resolved
def test_a_conflict_is_resolved_by_a_merge(world: World) -> None:
    """The model makes its change again on the new files; the commit has both parents."""
    push_by_other(world, "a.py", "x = 5\n", branch="main")
    world.pull.fields["mergeable"] = False
    world.changes = [{"a.py": b"x = 5 + 1\n"}, {"b.py": b"y = 3\n"}]
    world.pull.looks = [nothing, lambda: world.pull.fields.update(mergeable=True),
                        lambda: world.pull.comment("Also y."), approve(world)]  # fmt: skip
    assert world.follow().exit_code == 0
    assert "-x = 1\n+x = 2" in world.told[0]
    parents = git(world.github.remote, "rev-parse", f"{BRANCH}^^1", f"{BRANCH}^^2").split()
    assert parents == [world.opened, git(world.github.remote, "rev-parse", "main")]
    assert (world.show("a.py"), world.show("b.py")) == ("x = 5 + 1", "y = 3")
    started = read_log(session_of_now(world) / "events.jsonl").events[0]
    assert started["repository"]["head"] == parents[1]


def test_a_conflict_that_is_not_resolved(world: World) -> None:
    push_by_other(world, "a.py", "x = 5\n", branch="main")
    world.pull.fields["mergeable"] = False
    world.changes = [None]
    ended = world.follow()
    assert (ended.reason, ended.exit_code) == ("the conflict with main is not resolved: a test broke", 1)
    assert world.commits() == 0


def test_an_accepted_test_is_on_the_new_base_after_a_conflict(world: World) -> None:
    """Verdicts count from the base with the accepted test (`fix --spec`), so it must not keep the old files."""
    session, _ = Session.open(world.session)
    store = TreeStore(world.session / TREES)
    base = read_log(world.session / "events.jsonl").events[0]["tree"]
    tested = Workspace(store, base).commit_changes(base, [("test_a.py", REGULAR, b"red\n")], [])
    with contextlib.closing(session):
        session.write(an_event(events.SessionResumed, tree=""))
        session.write(events.Proposal(turn=1, kind="spec", text="", tests={}, tree=tested))
        session.write(events.ProposalAnswered(turn=1, accepted=True, text=""))
        session.write(finished("verified", pull_request=world.github.pull, commit=world.opened))
    push_by_other(world, "b.py", "y = 5\n", branch="main")
    world.pull.fields["mergeable"] = False
    world.changes = [None]
    world.follow()
    [now] = [log.parent for log in world.session.parent.glob("*/events.jsonl") if log.parent != world.session]
    [line] = [line for line in read_log(now / "events.jsonl").events if line["type"] == "proposal"]
    store = TreeStore(now / TREES, only_read=True)
    files = {entry.path: store.get_blob(entry.sha) for entry in store.list_tree(line["tree"])}
    assert files == {"a.py": b"x = 1\n", "b.py": b"y = 5\n", "test_a.py": b"red\n"}


def test_a_branch_on_a_fork(world: World) -> None:
    fork = world.github.clone.parent / "fork.git"
    git(fork.parent, "clone", "-q", "--bare", str(world.github.remote), str(fork))
    world.github.forks["me/repo"] = fork
    world.pull.source = "me/repo"
    world.pull.comment("Use 3.")
    world.changes = [{"a.py": b"x = 3\n"}]
    world.follow(minutes=0)
    assert git(fork, "show", f"{BRANCH}:a.py") == "x = 3"
    assert world.show("a.py") == "x = 2"


def test_files_that_run_later_are_not_pushed(world: World) -> None:
    world.pull.comment("Add a hook.")
    world.changes = [{"conftest.py": b"1\n"}]
    assert world.follow().exit_code == 5
    assert any("conftest.py may run automatically" in text for text in world.said)
    assert world.commits() == 0


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_pull_request_without_a_session(world: World) -> None:
    with pytest.raises(UsageError, match="no session here opened pull request owner/repo#8"):
        session_of(world.state, world.named(8), github_api=world.github.url, env={})
