"""Test offering a patch: real git over real HTTP, to a loopback server that plays GitHub's pages, API and repositories.

`gh` is not available here: a test that needs it uses a program of that name that prints what `gh auth token` would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from m3agent.agent.delivery import pull_request as offering
from m3agent.agent.delivery import push as pushing
from m3agent.agent.delivery.pr_text import Work
from m3agent.agent.delivery.pull_request import Destination, Offered, destination, offer
from m3agent.agent.issue.load import Issue
from m3agent.agent.repo.repository import open_repository
from m3agent.agent.verify.verify import Verification
from m3agent.util.errors import EnvironmentFault, M3AgentError, PermissionRefused
from tests.agent.delivery.test_apply import REGULAR, Made
from tests.agent.delivery.test_pr_text import evidence
from tests.agent.scripted import BUGGY, FIX, TEST, UNTESTED, events, of_type, one_sentence, run_there, says
from tests.command_line import Process, run
from tests.conftest import git, later
from tests.servers.loopback import QuietHandler
from tests.servers.misbehaving import MisbehavingServer
from tests.servers.tracker import Page, TrackerServer

pytestmark = pytest.mark.integration

MakeRepo = Callable[..., Path]

TOKEN = "ghp_0123456789abcdef"
PULLS = "/repos/owner/repo/pulls"
COMPARE = "/owner/repo/compare/main...m3agent/12?expand=1"


class GitHub(TrackerServer):
    """GitHub with one repository, `owner/repo`, stored at `remote` and cloned at `clone`."""

    clone: Path
    remote: Path

    def publish(self, repo: Path) -> None:
        """Make a bare clone of `repo` the GitHub repository, and its `origin`."""
        self.clone, self.remote = repo, repo.parent / "github.git"
        self.git = self.remote
        git(repo.parent, "clone", "-q", "--bare", str(repo), str(self.remote))
        git(repo, "remote", "add", "origin", f"{self.url}/owner/repo.git")
        git(
            repo, "fetch", "-q", str(self.remote), "+refs/heads/*:refs/remotes/origin/*"
        )  # quicker than by HTTP
        self.add_issue(12, title="Sums are wrong")
        self.pages["/repos/owner/repo"] = Page({"full_name": "owner/repo", "archived": False})
        self.pages[f"POST {PULLS}"] = Page({"html_url": self.pull}, 201)
        self.pages[PULLS] = Page([])

    @property
    def pull(self) -> str:
        return f"{self.url}/owner/repo/pull/7"

    @property
    def opened(self) -> list[dict[str, Any]]:
        """The pull requests that the API was asked for."""
        return [json.loads(v.body) for v in self.visits if v.method == "POST" and v.path == PULLS]

    @property
    def pushed(self) -> list[str]:
        """The branches of the repository except main."""
        return [name for name in branches(self.remote) if name != "main"]

    @property
    def issue(self) -> Issue:
        return Issue("Sums are wrong", "", f"{self.url}/owner/repo/issues/12", "0" * 64)

    async def destination(self, branch: str | None = None) -> Destination:
        return await destination(open_repository(self.clone), self.issue, branch, self.url, lambda _: None)

    async def offer(
        self,
        verdict: Verification | None = None,
        branch: str | None = None,
        *,
        issue: Issue | None = None,
        api: str | None = None,
        path: str = "a.py",
    ) -> Offered:
        """Offer a patch to one file."""
        store = self.clone.parent / f"trees{time.monotonic_ns()}.git"
        made = Made(self.clone, store, [(path, REGULAR, b"x = 2\n")], [])
        work = Work(issue or self.issue, made.patch.paths, verdict or evidence(), "It was 1.", "M3")
        options: dict[str, Any] = {"branch": branch, "github_api": api or self.url, "say": lambda _: None}
        return await offer(made.repository, made.workspace, made.patch, work, **options)

    def arguments(self, server: MisbehavingServer, issue: str, *more: str) -> list[str]:
        where = ["--repo", str(self.clone), "--github-api", self.url, "--endpoint", server.url]
        return ["fix", issue, *where, "--pr", *more]

    def fix(self, server: MisbehavingServer, issue: str, *more: str) -> subprocess.CompletedProcess[str]:
        return run(*self.arguments(server, issue, *more))


def branches(repo: Path) -> list[str]:
    return git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()


@contextlib.contextmanager
def published(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    """Run a GitHub with this repository, for a user with a token."""
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    with GitHub() as running:
        running.publish(repo)
        yield running


@pytest.fixture
def github(make_repo: MakeRepo, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    with published(make_repo({**BUGGY, "a.py": "x = 1\n"}), monkeypatch) as running:
        yield running


@pytest.fixture
def untested(make_repo: MakeRepo, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    with published(make_repo(UNTESTED), monkeypatch) as running:
        yield running


def refuses(status: int, message: str, *errors: str) -> Page:
    return Page({"message": message, "errors": [{"message": error} for error in errors]}, status)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


# -- from the command line -----------------------------------------------------------------------------------


def test_a_verified_patch_becomes_a_pull_request(
    server: MisbehavingServer, github: GitHub, own_state: Path
) -> None:
    (github.clone / "notes.txt").write_text("mine\n")
    server.answers = [TEST, FIX, TEST, says("add() subtracted. Fixes #1, thanks @octocat.")]
    done = github.fix(server, "owner/repo#12")
    assert done.returncode == 0, done.stderr
    assert "+    return a + b" in done.stdout
    assert github.pushed == ["m3agent/12"] == [b for b in branches(github.clone) if b != "main"]
    assert git(github.clone, "rev-parse", "m3agent/12^") == git(github.clone, "rev-parse", "main")
    assert "return a + b" in git(github.remote, "show", "m3agent/12:calc.py")
    (asked,) = github.opened
    text = asked.pop("body")
    assert asked == {"title": "Fix: Sums are wrong", "head": "m3agent/12", "base": "main", "draft": False}
    assert "\nFixes #12\n" in text
    assert "verified" in text
    assert "Red before, green with the patch (1):\n\n```text\ntest_calc.py::test_add\n```" in text
    assert "Files changed (1):\n\n```text\ncalc.py\n```" in text
    assert "uncommitted changes to 1 file that" in text
    assert "#1," not in text
    assert "@octocat" not in text
    last = events(own_state)[-1]
    assert (last["pull_request"], last["exit"]) == (github.pull, 0)
    assert f"opened pull request {github.pull}" in done.stderr
    assert git(github.clone, "status", "--porcelain") == "?? notes.txt"
    assert TOKEN not in done.stdout + done.stderr + text
    assert not [p for p in own_state.rglob("*") if p.is_file() and TOKEN.encode() in p.read_bytes()]
    to_api = [v for v in github.visits if v.path.startswith("/repos/")]
    assert {v.headers["authorization"] for v in to_api} == {f"Bearer {TOKEN}"}
    assert not [v for v in github.visits if v not in to_api and TOKEN in v.headers.get("authorization", "")]


async def test_an_unverified_patch_is_a_draft_that_says_so(github: GitHub) -> None:
    git(github.clone, "checkout", "-q", "--detach")
    await github.offer(evidence("unverified", fixed=()), "mine/add")
    assert github.pushed == ["mine/add"]
    (asked,) = github.opened
    assert (asked["draft"], asked["base"], asked["title"]) == (True, "main", "Fix: Sums are wrong")
    assert asked["body"].startswith("**Nothing has checked this patch**")


async def test_files_that_run_once_pushed_are_not_pushed(github: GitHub) -> None:
    with pytest.raises(PermissionRefused, match=r"--pr refused: \.github/workflows/x\.yml may run automatic"):
        await github.offer(path=".github/workflows/x.yml")
    assert (github.pushed, github.opened, branches(github.clone)) == ([], [], ["main"])


def test_a_refusal_is_one_sentence_and_costs_nothing(server: MisbehavingServer, github: GitHub) -> None:
    git(github.clone, "commit", "-q", "--allow-empty", "-m", "not pushed")
    done = github.fix(server, "#12")
    assert done.returncode == 5
    assert "would hold commits that you have not pushed" in one_sentence(done)
    done = github.fix(server, "#12", "--apply")
    assert done.returncode == 2
    assert "--apply and --pr are two ways" in one_sentence(done)
    assert server.requests == []
    assert (github.pushed, github.opened, branches(github.clone)) == ([], [], ["main"])


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_ended_between_push_and_pull_request(
    server: MisbehavingServer, untested: GitHub, own_state: Path, by: signal.Signals
) -> None:
    reached = threading.Event()

    def wait(handler: QuietHandler) -> None:
        reached.set()
        untested.silent(handler)

    good, untested.pages[f"POST {PULLS}"] = untested.pages[f"POST {PULLS}"], wait
    server.answers = [FIX, says("Not tested: there are no tests.")]
    process = Process(*untested.arguments(server, "#12"))
    assert reached.wait(120)
    process.send_signal(by)
    _, stderr = process.communicate()
    assert process.returncode == (130 if by is signal.SIGINT else -signal.SIGKILL)
    assert b"Traceback" not in stderr
    assert untested.pushed == ["m3agent/12"]
    assert len(of_type(own_state, "verify")) == 1
    untested.pages[f"POST {PULLS}"] = good
    server.answers = [says("Not tested: there are no tests.")]
    session = events(own_state)[0]["session"]
    done = run_there("sessions", "resume", session, "--pr")
    assert done.returncode == 1, done.stderr
    assert untested.pushed == ["m3agent/12", "m3agent/12-2"], "the first stays as it is"
    assert [asked["head"] for asked in untested.opened] == ["m3agent/12", "m3agent/12-2"]
    assert f"opened pull request {untested.pull}" in done.stderr


# -- refused before any change -------------------------------------------------------------------------------


def page(path: str, answer: Page) -> Callable[[GitHub], object]:
    return lambda github: github.pages.update({path: answer})


def origin(url: str, *more: str) -> Callable[[GitHub], object]:
    return lambda github: git(
        github.clone, "remote", "set-url", *more, "origin", url.replace("HERE", github.url)
    )


def on_origin(*args: str) -> Callable[[GitHub], object]:
    return lambda github: git(github.remote, *args)


def commit_more(github: GitHub) -> None:
    git(github.clone, "commit", "-q", "--allow-empty", "-m", "not pushed")


REPO = "/repos/owner/repo"
REFUSALS: list[tuple[Callable[[GitHub], object], str | None, int, str]] = [
    (lambda g: git(g.clone, "remote", "remove", "origin"), None, 2, "has none: use --branch NAME"),
    (
        origin("git@gitlab.com:owner/repo.git"),
        None,
        5,
        "--pr needs a token for gitlab.com: set GITLAB_TOKEN or use",
    ),
    (origin("https://me:secret@example.com/o/r"), None, 2, "origin is on example.com: use"),
    (origin("../github.git"), None, 2, "origin is a local one"),
    (origin("HERE/other/repo.git", "--push"), None, 2, "pushed to another place"),
    (commit_more, None, 5, "would hold commits that you have not pushed"),
    (lambda g: git(g.clone, "branch", "x"), "x", 2, "branch x exists already: choose"),
    (on_origin("branch", "x"), "x", 2, "branch x exists already on origin"),
    (on_origin("branch", "m3agent"), None, 2, "beside branch m3agent on origin"),
    (on_origin("branch", "x/y"), "x", 2, "beside branch x/y on origin"),
    (on_origin("update-ref", "-d", "refs/heads/main"), None, 2, "origin has no branch"),
    (lambda _: None, "a..b", 2, "is not a branch name"),
    (lambda g: setattr(g, "password", "secret"), None, 5, "could not read Username"),
    (page(REPO, refuses(401, "Bad credentials")), None, 5, "does not accept the token from GITHUB_TOKEN"),
    (page(REPO, refuses(404, "Not Found")), None, 2, "has no repository owner/repo, or the token from"),
    (page(REPO, Page({"full_name": "owner/repo", "archived": True})), None, 2, "is archived"),
    (page(REPO, Page(["<html>"])), None, 3, "is not the API of GitHub"),
    (page(REPO, Page({"full_name": "../.."})), None, 3, "is not the API of GitHub"),
    (origin("HERE/owner/none.git"), None, 5, "the branches of origin cannot be listed: repository"),
    (lambda _: os.environ.pop("GITHUB_TOKEN"), None, 5, "--pr needs a token for 127.0.0.1"),
]


@pytest.mark.parametrize(("change", "branch", "code", "part"), REFUSALS, ids=[r[3][:30] for r in REFUSALS])
async def test_impossible_pull_requests_are_refused_first(
    github: GitHub, change: Callable[[GitHub], object], branch: str | None, code: int, part: str
) -> None:
    change(github)
    before = branches(github.clone), branches(github.remote)
    with pytest.raises(M3AgentError) as caught:
        await github.destination(branch)
    assert part in str(caught.value)
    assert caught.value.exit_code == code
    assert "secret" not in str(caught.value)
    assert (branches(github.clone), branches(github.remote)) == before
    assert github.opened == []


async def test_a_check_changes_nothing(github: GitHub) -> None:
    before = git(github.remote, "for-each-ref"), git(github.clone, "for-each-ref")
    to = await github.destination()
    assert (to.project.project, to.base, to.branch) == ("owner/repo", "main", "m3agent/12")
    assert (git(github.remote, "for-each-ref"), git(github.clone, "for-each-ref")) == before
    assert {v.path for v in github.visits if v.method == "POST"} <= {"/owner/repo.git/git-upload-pack"}


async def test_a_repository_that_was_renamed(github: GitHub) -> None:
    github.pages["/repos/owner/repo"] = Page(status=301, headers={"Location": "/repositories/1"})
    github.pages["/repositories/1"] = Page({"full_name": "owner/other"})
    assert (await github.destination()).project.project == "owner/other"


async def test_a_gh_that_is_logged_in_gives_the_token(
    github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin/gh", f'echo "$@" > "{tmp_path}/asked"; echo ghp_from_gh')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.delenv("GITHUB_TOKEN")
    assert (await github.offer()).address == github.pull
    assert (tmp_path / "asked").read_text() == f"auth token --hostname {github.host}\n"
    (posted,) = [v for v in github.visits if v.path == PULLS]
    assert posted.headers["authorization"] == "Bearer ghp_from_gh"


async def test_the_base(github: GitHub) -> None:
    """The base is the checked-out branch if origin has it, else origin's default, if need be as last fetched."""
    git(github.clone, "checkout", "-q", "-b", "mine")
    assert (await github.destination()).base == "main"
    git(github.remote, "branch", "mine")
    assert (await github.destination()).base == "mine"
    git(github.clone, "checkout", "-q", "main")
    other = github.clone.parent / "other"
    git(github.clone.parent, "clone", "-q", str(github.remote), str(other))
    git(other, "commit", "-q", "--allow-empty", "-m", "newer")
    git(other, "push", "-q", "origin", "HEAD")
    assert (await github.destination()).base == "main", "being behind does not matter"


async def test_a_bare_repository(github: GitHub, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(github.remote), "bare.git")
    github.clone = tmp_path / "bare.git"
    git(github.clone, "remote", "set-url", "origin", f"{github.url}/owner/repo.git")
    assert (await github.offer()).address == github.pull
    assert github.pushed == ["m3agent/12"]


# -- offering ------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_second_one_takes_another_branch(github: GitHub) -> None:
    for expected in (["m3agent/12"], ["m3agent/12", "m3agent/12-2"]):
        await github.offer()
        assert github.pushed == expected
    assert [asked["head"] for asked in github.opened] == ["m3agent/12", "m3agent/12-2"]
    with pytest.raises(M3AgentError, match="exists already"):
        await github.offer(branch="m3agent/12")
    assert len(github.opened) == 2


async def test_only_the_branch_is_pushed_with_the_users_credentials_and_no_hooks(
    github: GitHub, own_state: Path, tmp_path: Path
) -> None:
    github.password = "hunter2"
    program(tmp_path / "helper", "echo username=me; echo password=hunter2")
    git(github.clone, "config", "--global", "credential.helper", str(tmp_path / "helper"))
    git(github.clone, "config", "push.followTags", "true")
    git(github.clone, "config", "--add", "remote.origin.push", "+refs/heads/*:refs/heads/*")
    git(github.clone, "tag", "-a", "v1", "-m", "mine")
    for name in ("pre-push", "reference-transaction"):
        program(github.clone / ".git/hooks" / name, f"touch '{tmp_path}/ran'")
    await github.offer()
    assert git(github.remote, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/m3agent/12",
        "refs/heads/main",
    ]
    assert not (tmp_path / "ran").exists()


async def test_by_ssh(github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(
        tmp_path / "ssh",
        f'for last; do :; done; last=${{last%% *}}; exec git "${{last#git-}}" "{github.remote}"',
    )
    monkeypatch.setenv("GIT_SSH_COMMAND", shlex.quote(str(tmp_path / "ssh")))
    git(github.clone, "remote", "set-url", "origin", "git@127.0.0.1:owner/repo.git")
    assert (await github.offer()).address == github.pull
    assert github.pushed == ["m3agent/12"]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_remote_that_never_answers(
    github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    os.mkfifo(tmp_path / "never")
    program(tmp_path / "ssh", f"echo $$ > '{tmp_path}/pid'; cat '{tmp_path}/never'")
    monkeypatch.setenv("GIT_SSH_COMMAND", shlex.quote(str(tmp_path / "ssh")))
    monkeypatch.setattr(pushing, "SECONDS", 60.0 if cancelled else 0.3)
    git(github.clone, "remote", "set-url", "origin", "git@127.0.0.1:owner/repo.git")
    task = asyncio.ensure_future(github.destination())
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
        assert not task.done()
        await asyncio.sleep(0.01)
    if cancelled:
        task.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else EnvironmentFault) as caught:
        await task
    assert cancelled or "did not answer 'git ls-remote' within 0.3 seconds" in str(caught.value)
    stat = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    deadline = time.monotonic() + 60
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "what git started goes with it"


async def test_uncommitted_changes_are_not_offered(github: GitHub) -> None:
    (github.clone / "a.py").write_text("mine\n")
    with pytest.raises(PermissionRefused, match=r"--pr refused: a\.py has uncommitted changes"):
        await github.offer()
    assert (github.pushed, branches(github.clone), github.visits) == ([], ["main"], [])


# -- a fork, and GitLab --------------------------------------------------------------------------------------


def may_not_push(github: GitHub) -> None:
    permissions = {"pull": True, "push": False}
    project = {"full_name": "owner/repo", "archived": False, "permissions": permissions}
    github.pages["/repos/owner/repo"] = Page(project)
    github.pages["POST /repos/owner/repo/forks"] = Page({"full_name": "me/repo-1"}, 202)


async def test_without_the_right_to_push_the_branch_goes_to_a_fork(
    github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork is ready only at the second look, because GitHub makes it in the background."""
    may_not_push(github)
    monkeypatch.setattr(offering, "FORK_SECONDS", 0.0)
    fork = github.clone.parent / "fork.git"
    git(github.clone.parent, "clone", "-q", "--bare", str(github.remote), str(fork))
    looks: list[str] = []

    def making(handler: QuietHandler) -> None:
        looks.append(handler.path)
        github.forks["me/repo-1"] = fork
        handler.send_error(404)

    github.pages["/me/repo-1.git/info/refs"] = making
    assert (await github.offer()).address == github.pull
    [asked] = github.opened
    assert (asked["head"], asked["base"]) == ("me:m3agent/12", "main")
    assert len(looks) == 1
    assert github.pushed == []
    assert git(fork, "show", "m3agent/12:a.py") == "x = 2"


async def test_a_check_makes_no_fork(github: GitHub) -> None:
    may_not_push(github)
    assert (await github.destination()).from_fork
    assert not [visit for visit in github.visits if visit.method == "POST" and "forks" in visit.path]


async def test_a_branch_that_the_fork_has_is_not_touched(github: GitHub) -> None:
    may_not_push(github)
    fork = github.clone.parent / "fork.git"
    git(github.clone.parent, "clone", "-q", "--bare", str(github.remote), str(fork))
    git(fork, "branch", "m3agent/12")
    github.forks["me/repo-1"] = fork
    with pytest.raises(PermissionRefused, match="branch m3agent/12 exists already on me/repo-1"):
        await github.offer()
    assert git(fork, "rev-parse", "m3agent/12") == git(fork, "rev-parse", "main")
    assert github.opened == []


async def test_a_fork_that_names_another_server(github: GitHub) -> None:
    may_not_push(github)
    github.pages["POST /repos/owner/repo/forks"] = Page({"full_name": "../../evil.example/x"}, 202)
    with pytest.raises(EnvironmentFault, match="is not the API of GitHub"):
        await github.offer()


@pytest.mark.parametrize("verdict", ["verified", "unverified"])
async def test_a_merge_request_on_gitlab(
    github: GitHub, monkeypatch: pytest.MonkeyPatch, verdict: Literal["verified", "unverified"]
) -> None:
    monkeypatch.setenv("GITLAB_HOST", github.host)
    monkeypatch.setenv("GITLAB_TOKEN", TOKEN)
    project, page = "/api/v4/projects/owner%2Frepo", f"{github.url}/owner/repo/-/merge_requests/3"
    github.pages[project] = Page({"path_with_namespace": "owner/repo", "archived": False})
    github.pages[f"POST {project}/merge_requests"] = Page({"web_url": page}, 201)
    issue = Issue("Sums are wrong", "", f"{github.url}/owner/repo/-/issues/12", "0" * 64)
    done = await github.offer(evidence(verdict=verdict), issue=issue, api="https://api.github.com")
    assert (done.address, github.pushed) == (page, ["m3agent/12"])
    assert done.commit == git(github.remote, "rev-parse", "m3agent/12")
    [sent] = [v for v in github.visits if v.method == "POST" and v.path.endswith("/merge_requests")]
    assert sent.headers["private-token"] == TOKEN
    asked = json.loads(sent.body)
    assert asked["title"] == ("" if verdict == "verified" else "Draft: ") + "Fix: Sums are wrong"
    assert (asked["source_branch"], asked["target_branch"]) == ("m3agent/12", "main")
    assert "\nCloses #12\n" in asked["description"]


# -- failures half-way ---------------------------------------------------------------------------------------


async def test_a_push_that_a_hook_rejects_leaves_the_branch(github: GitHub) -> None:
    program(github.remote / "hooks/pre-receive", "echo 'GH006: protected branch' >&2; exit 1")
    with pytest.raises(PermissionRefused) as caught:
        await github.offer()
    assert str(caught.value) == (
        "the patch is committed to branch m3agent/12 here, but its push failed (origin rejects branch m3agent/12: "
        "[remote rejected] (pre-receive hook declined): GH006: protected branch); push it with 'git push origin "
        f"m3agent/12' and open the pull request at {github.url}{COMPARE}"
    )
    assert (github.pushed, github.opened) == ([], [])
    assert git(github.clone, "show", "m3agent/12:a.py") == "x = 2"


async def test_login_in_an_address_is_not_printed(
    github: GitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(github.clone, "remote", "set-url", "origin", f"http://me:hunter2@{github.host}/owner/repo.git")
    github.password = "another"
    with pytest.raises(PermissionRefused, match="The requested URL returned error: 403") as caught:
        await github.destination()
    assert "hunter2" not in str(caught.value)
    program(
        tmp_path / "ssh", "echo 'Warning: a key' >&2; echo 'no way to http://me:hunter2@host/' >&2; exit 1"
    )
    monkeypatch.setenv("GIT_SSH_COMMAND", shlex.quote(str(tmp_path / "ssh")))
    git(github.clone, "remote", "set-url", "origin", "git@127.0.0.1:owner/repo.git")
    with pytest.raises(EnvironmentFault, match=r"listed: no way to http://host/$"):
        await github.destination()


@pytest.mark.parametrize(
    ("page", "kind", "part"),
    [
        (refuses(401, "Bad credentials"), PermissionRefused, "does not accept the token"),
        later(refuses(403, "Resource not accessible"), PermissionRefused, "(Resource not accessible)"),
        later(refuses(404, "Not Found"), PermissionRefused, "may not see it"),
        (
            refuses(422, "Validation Failed", f"no {TOKEN}"),
            PermissionRefused,
            "(Validation Failed: no [key])",
        ),
        later(Page(b"<html>", 502), EnvironmentFault, "an internal error (502)"),
        later(Page(b"<html>", 201), EnvironmentFault, "is not the API of GitHub"),
        (Page({"html_url": "https://evil.example/"}, 201), EnvironmentFault, "is not the API of GitHub"),
        ("cut", EnvironmentFault, "The connection to 127.0.0.1"),
    ],
)
async def test_a_pull_request_that_cannot_be_opened(
    github: GitHub, page: Page | str, kind: type[M3AgentError], part: str
) -> None:
    github.pages[f"POST {PULLS}"] = page if isinstance(page, Page) else getattr(github, page)
    with pytest.raises(kind) as caught:
        await github.offer()
    text = str(caught.value)
    assert text.startswith("branch m3agent/12 is pushed, but the pull request could not be opened (")
    assert part in text
    assert text.endswith(f"open it at {github.url}{COMPARE}")
    assert TOKEN not in text
    assert github.pushed == ["m3agent/12"]
    assert len(github.opened) == 1, "it is asked for once"


@pytest.mark.parametrize("page", [refuses(422, "Validation Failed", "A pull request already exists"), "cut"])
async def test_one_that_is_open_is_found_and_no_second_opened(github: GitHub, page: Page | str) -> None:
    github.pages[f"POST {PULLS}"] = page if isinstance(page, Page) else getattr(github, page)
    github.pages[f"{PULLS}?state=open&head=owner%3Am3agent%2F12"] = Page([{"html_url": github.pull}])
    assert (await github.offer()).address == github.pull
    assert len(github.opened) == 1
