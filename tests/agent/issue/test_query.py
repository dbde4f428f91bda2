"""Find issues by a query on a loopback server that plays GitHub or GitLab."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from m3agent.agent.issue.query import found_issues, is_query
from m3agent.util.errors import UsageError
from tests.servers.tracker import Page, TrackerServer

pytestmark = pytest.mark.integration
ON_GITHUB, ON_GITLAB = "/search/issues", "/api/v4/projects/owner%2Frepo/issues"


@pytest.fixture
def tracker() -> Iterator[TrackerServer]:
    with TrackerServer() as server:
        yield server


def search(tracker: TrackerServer, query: str, most: int = 20, *, gitlab: bool = False) -> list[str]:
    """Return the paths of the issues that a query finds."""
    origin = f"{tracker.url}/owner/repo.git"
    api, env = ("https://api.github.com", {"GITLAB_HOST": tracker.host}) if gitlab else (tracker.url, {})
    found = found_issues(query, most, origin, github_api=api, env={"PATH": "", **env}, say=lambda _: None)
    return [address.removeprefix(f"{tracker.url}/owner/repo") for address in found]


def asked(tracker: TrackerServer) -> dict[str, list[str]]:
    return parse_qs(urlsplit(tracker.paths[-1]).query)


def test_on_github_the_query_is_in_its_own_words(tracker: TrackerServer) -> None:
    tracker.pages[ON_GITHUB] = Page({"items": [{"number": number} for number in (3, 5, 5, 8)]})
    assert search(tracker, 'crash label:"good first issue"', 3) == ["/issues/3", "/issues/5"]
    assert asked(tracker)["q"] == ['repo:owner/repo is:issue is:open crash label:"good first issue"']
    search(tracker, "is:closed label:bug")
    assert "is:open" not in asked(tracker)["q"][0]


def test_what_is_no_number_of_an_issue_is_passed_over(tracker: TrackerServer) -> None:
    numbers = (True, -5, 0, "7", None, 9)
    tracker.pages[ON_GITHUB] = Page({"items": [{"number": number} for number in numbers]})
    assert search(tracker, "label:bug") == ["/issues/9"]


def test_on_gitlab_it_has_labels_and_words(tracker: TrackerServer) -> None:
    tracker.pages[ON_GITLAB] = Page([{"iid": 4}, {"iid": 6}])
    found = search(tracker, 'label:bug label:"good first issue" crash in add', gitlab=True)
    assert found == ["/-/issues/4", "/-/issues/6"]
    sent = asked(tracker)
    assert (sent["labels"], sent["search"], sent["state"]) == (
        ["bug,good first issue"],
        ["crash in add"],
        ["opened"],
    )


@pytest.mark.parametrize(
    ("query", "gitlab", "reason"),
    [
        ("repo:other/one label:bug", False, "leave out repo:"),
        ('label:"bug', True, "quotation mark"),
        ("author:me", True, "label:NAME and words"),
    ],
)
def test_a_query_that_the_tracker_does_not_have(
    tracker: TrackerServer, query: str, gitlab: bool, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        search(tracker, query, gitlab=gitlab)
    assert tracker.visits == []


@pytest.mark.parametrize(("origin", "reason"), [(None, "has none"), ("/srv/repo.git", "has a local one")])
def test_without_a_tracker(origin: str | None, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        found_issues("label:bug", 1, origin, github_api="https://api.github.com", env={}, say=lambda _: None)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("label:bug", True),
        ("crash label:bug", True),
        ("issues.txt", False),
        ("C:\\issues", False),
        ("a b", False),
    ],
)
def test_a_query_has_a_term(text: str, is_one: bool) -> None:
    assert is_query(text) is is_one
