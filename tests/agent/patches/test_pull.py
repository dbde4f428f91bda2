"""Verify pull requests: real git over HTTP, to a loopback server that plays GitHub or GitLab."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from m3agent.agent.certificate.build import Change
from m3agent.agent.patches.change import Source, read_change
from m3agent.agent.repo.repository import open_repository
from m3agent.util.errors import EnvironmentFault, M3AgentError, PermissionRefused, UsageError
from tests.conftest import git
from tests.servers.tracker import Page, TrackerServer

pytestmark = pytest.mark.integration

MakeRepo = Callable[..., Path]
OLD, NEW = {"a.py": "1\n", "b.py": "1\n"}, {"a.py": "2\n", "b.py": "1\n"}


class Hub(TrackerServer):
    """GitHub with `owner/repo`, cloned at `clone`: pull request 7 changes a.py, and main has gone on since."""

    clone: Path

    def publish(self, repo: Path) -> None:
        self.clone, self.git = repo.parent / "clone", repo.parent / "hub.git"
        git(repo, "checkout", "-q", "-b", "fork")
        (repo / "a.py").write_text("2\n")
        git(repo, "commit", "-q", "-a", "-m", "the pull request")
        self.head = git(repo, "rev-parse", "HEAD")
        git(repo, "checkout", "-q", "main")
        (repo / "b.py").write_text("2\n")
        git(repo, "commit", "-q", "-a", "-m", "main goes on")
        self.tip = git(repo, "rev-parse", "HEAD")
        git(
            repo.parent, "clone", "-q", "--bare", "--branch=main", "--single-branch", str(repo), str(self.git)
        )
        for ref in ("refs/pull/7/head", "refs/merge-requests/7/head"):
            git(repo, "push", "-q", str(self.git), f"fork:{ref}")
        git(repo.parent, "clone", "-q", f"{self.url}/owner/repo.git", str(self.clone))
        self.describe(self.head)

    def describe(self, head: str) -> None:
        base = {"sha": self.tip, "ref": "main"}
        self.pages["/repos/owner/repo/pulls/7"] = Page({"head": {"sha": head}, "base": base})
        merge = {"diff_refs": {"head_sha": head, "start_sha": self.tip}, "target_branch": "main"}
        self.pages["/api/v4/projects/owner%2Frepo/merge_requests/7"] = Page(merge)

    @property
    def pull(self) -> str:
        return f"{self.url}/owner/repo/pull/7"

    def change(self, address: str = "", base: str | None = None, api: str = "") -> Change:
        folder = self.clone.parent / f"trees-{len(list(self.clone.parent.iterdir()))}"
        folder.mkdir()
        source = Source(pull_request=address or self.pull, base=base)
        env = {"GITLAB_HOST": self.host, "PATH": ""}
        return asyncio.run(
            read_change(
                source,
                open_repository(self.clone),
                folder,
                github_api=api or self.url,
                env=env,
                say=lambda _: None,
            )
        )


@pytest.fixture
def hub(make_repo: MakeRepo) -> Iterator[Hub]:
    with Hub() as running:
        running.publish(make_repo({"a.py": "1\n", "b.py": "1\n"}))
        yield running


def files(found: Change, tree: str) -> dict[str, str]:
    entries = found.workspace.entries(tree)
    return {path: found.workspace.store.get_blob(entry.sha).decode() for path, entry in entries.items()}


def test_a_pull_request_is_compared_with_where_it_left_its_branch(hub: Hub) -> None:
    """Nothing of it reaches the user's repository: no object, no reference."""
    before = {path: path.read_bytes() for path in (hub.clone / ".git").rglob("*") if path.is_file()}
    found = hub.change()
    assert (files(found, found.patch.base), files(found, found.patch.tree)) == (OLD, NEW)
    assert (found.origin.kind, found.origin.commit) == ("pull request", hub.head)
    assert {path: path.read_bytes() for path in (hub.clone / ".git").rglob("*") if path.is_file()} == before
    assert all("authorization" not in visit.headers for visit in hub.visits)


def test_another_base(hub: Hub) -> None:
    assert files(hub.change(base="HEAD~1"), hub.change(base="HEAD~1").patch.base) == OLD


def test_a_merge_request_of_gitlab(hub: Hub) -> None:
    address = f"{hub.url}/owner/repo/-/merge_requests/7"
    found = hub.change(address, api="https://api.github.com")
    assert (files(found, found.patch.base), files(found, found.patch.tree)) == (OLD, NEW)


def test_a_branch_of_origin_moves_only_when_the_user_fetches(hub: Hub) -> None:
    """Fetching the base must not move the user's idea of origin/main."""
    old = git(hub.clone, "rev-parse", "HEAD~1")
    git(hub.clone, "update-ref", "refs/remotes/origin/main", old)
    assert not hub.change().patch.empty
    assert git(hub.clone, "rev-parse", "origin/main") == old


def test_a_shallow_clone_that_lacks_the_common_commit_says_so(hub: Hub) -> None:
    full = hub.clone
    hub.clone = full.parent / "shallow"
    git(full.parent, "clone", "-q", "--depth=1", f"{hub.url}/owner/repo.git", str(hub.clone))
    with pytest.raises(UsageError, match="this clone is shallow: fetch more with 'git fetch --unshallow'"):
        hub.change()


@pytest.mark.parametrize(
    ("page", "kind", "sentence"),
    [
        (Page({"message": "Not Found"}, 404), UsageError, "owner/repo#7"),
        (Page({"message": "Bad credentials"}, 401), PermissionRefused, "asks for a token: set GITHUB_TOKEN"),
        (Page({"head": {"sha": "x"}, "base": {}}), EnvironmentFault, "is not the API of GitHub"),
        (Page([]), EnvironmentFault, "is not the API of GitHub"),
        (
            Page({"head": {"sha": "0" * 40}, "base": {"sha": "0" * 40, "ref": "--upload-pack=x"}}),
            EnvironmentFault,
            "is not the API of GitHub",
        ),
        (
            Page({"head": {"sha": "0" * 40}, "base": {"sha": "0" * 40, "ref": "gone"}}),
            M3AgentError,
            "cannot be fetched from origin",
        ),
    ],
)
def test_what_cannot_be_fetched_is_one_sentence(
    hub: Hub, page: Page, kind: type[M3AgentError], sentence: str
) -> None:
    hub.pages["/repos/owner/repo/pulls/7"] = page
    with pytest.raises(kind) as error:
        hub.change()
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pull_request_that_was_pushed_to_meanwhile(hub: Hub) -> None:
    hub.describe("1" * 40)
    with pytest.raises(EnvironmentFault, match="the pull request changed while it was fetched: try again"):
        hub.change()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("{url}/owner/other/pull/7", "owner/other#7 is not of this repository's origin"),
        ("{url}/owner/repo/issues/7", "is not the address of a pull request, which looks like"),
        ("{url}/owner/repo/pull/0", "is not the address of a pull request"),
        ("https://github.com/owner/repo/pull/7", "is not the address of a pull request"),
        ("7", "is not the address of a pull request"),
        ("{url}/pull/7", "is not the address of a pull request"),
    ],
)
def test_another_address(hub: Hub, address: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        hub.change(address.format(url=hub.url))
    assert sentence in str(error.value)
