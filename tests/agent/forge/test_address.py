"""Test which issue a name stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.forge.address import GITHUB_API, IssueReference, parse_reference, web_of
from m3agent.util.errors import UsageError

ENTERPRISE = "https://ghe.example.com/api/v3"


def parse(
    spec: str, *, api: str = GITHUB_API, origin: str | None = None, gitlab: str = ""
) -> IssueReference | None:
    return parse_reference(spec, github_api=api, origin=lambda: origin, env={"GITLAB_HOST": gitlab})


def named(spec: str, *, api: str = GITHUB_API, origin: str | None = None, gitlab: str = "") -> str:
    """Return the URL of the issue's web page."""
    reference = parse(spec, api=api, origin=origin, gitlab=gitlab)
    assert reference is not None
    return reference.url


def refused(spec: str, *, api: str = GITHUB_API, origin: str | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parse(spec, api=api, origin=origin)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    return sentence


@pytest.mark.parametrize(
    "spec",
    [
        "owner/my.repo-1#12",
        "https://github.com/owner/my.repo-1/issues/12",
        "http://github.com/owner/my.repo-1/issues/12/",
        "https://www.github.com/owner/my.repo-1/issues/12?notification=1#issuecomment-5",
        "github.com/owner/my.repo-1/issues/12",
        "https://someone:secret@github.com:443/owner/my.repo-1/issues/12",
    ],
)
def test_issues_on_github(spec: str) -> None:
    reference = IssueReference("github", GITHUB_API, "https://github.com", "owner/my.repo-1", 12)
    assert parse(spec) == reference
    assert reference.url == "https://github.com/owner/my.repo-1/issues/12"


@pytest.mark.parametrize(
    ("spec", "api", "web", "project"),
    [
        ("https://gitlab.com/a/b/-/issues/3", "https://gitlab.com/api/v4", "https://gitlab.com", "a/b"),
        ("https://gitlab.com/a/b/issues/3", "https://gitlab.com/api/v4", "https://gitlab.com", "a/b"),
        ("gitlab.com/a/b/c/-/work_items/3", "https://gitlab.com/api/v4", "https://gitlab.com", "a/b/c"),
        (
            "http://git.example.com:8443/a/b/-/issues/3#note_9",
            "https://git.example.com:8443/api/v4",
            "https://git.example.com:8443",
            "a/b",
        ),
        ("http://127.0.0.1:81/a/b/-/issues/3", "http://127.0.0.1:81/api/v4", "http://127.0.0.1:81", "a/b"),
    ],
)
def test_issues_on_gitlab(spec: str, api: str, web: str, project: str) -> None:
    assert parse(spec) == IssueReference("gitlab", api, web, project, 3)


@pytest.mark.parametrize(
    ("api", "web"),
    [
        (GITHUB_API, "https://github.com"),
        (ENTERPRISE, "https://ghe.example.com"),
        ("https://api.octo.ghe.com", "https://octo.ghe.com"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ],
)
def test_the_api_decides_which_host_is_github(api: str, web: str) -> None:
    assert web_of(api) == web
    expected = IssueReference("github", api, web, "o/r", 1)
    assert parse(f"{web}/o/r/issues/1", api=api) == expected
    assert parse("o/r#1", api=api) == expected


def test_another_github_than_the_one_set() -> None:
    assert "--github-api https://api.github.com" in refused("https://github.com/o/r/issues/1", api=ENTERPRISE)
    assert "--github-api https://ghe.example.com/api/v3" in refused("https://ghe.example.com/o/r/issues/1")


@pytest.mark.parametrize(
    "origin",
    [
        "git@github.com:owner/repo.git",
        "github.com:owner/repo",
        "org-1234@github.com:owner/repo.git",
        "ssh://git@github.com/owner/repo.git",
        "ssh://git@ssh.github.com:443/owner/repo.git",
        "https://github.com/owner/repo.git",
        "https://github.com/owner/repo/",
        "https://x-access-token:secret@GitHub.com/owner/repo.git",
        "git://github.com/owner/repo.git",
    ],
)
def test_a_number_of_the_origin_on_github(origin: str) -> None:
    assert named("#7", origin=origin) == "https://github.com/owner/repo/issues/7"


def test_a_number_of_other_origins() -> None:
    page = "https://gitlab.com/group/sub/repo/-/issues/7"
    assert named("#7", origin="git@gitlab.com:group/sub/repo.git") == page
    assert named("#7", origin="ssh://git@altssh.gitlab.com:443/group/sub/repo.git") == page
    assert named("#7", origin="https://gitlab.com/group/sub/repo.git") == page
    assert named("#7", origin="git@gitlab.gnome.org:a/b.git") == "https://gitlab.gnome.org/a/b/-/issues/7"
    own = "git@code.example.com:a/b.git"
    assert named("#7", origin=own, gitlab="code.example.com") == "https://code.example.com/a/b/-/issues/7"
    ghe = "ssh://git@ghe.example.com:2222/o/r.git"
    assert named("#7", origin=ghe, api=ENTERPRISE) == "https://ghe.example.com/o/r/issues/7"


@pytest.mark.parametrize(
    ("origin", "part"),
    [
        (None, "has none"),
        ("/srv/repos/repo.git", "a local one"),
        ("../repo", "a local one"),
        ("file:///srv/repo.git", "a local one"),
        ("https://someone:secret@codeberg.org/o/r.git", "on codeberg.org"),
        ("git@github.com.example.org:o/r.git", "on github.com.example.org"),
        ("https://notgithub.com/o/r", "on notgithub.com"),
        ("https://github.com/only", "on github.com"),
        ("https://github.com/../r", "on github.com"),
        ("http://[broken/o/r", "a local one"),
    ],
)
def test_origins_without_a_tracker(origin: str | None, part: str) -> None:
    sentence = refused("#7", origin=origin)
    assert part in sentence
    assert "#7" in sentence
    assert "secret" not in sentence


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("https://github.com/o/r/pull/5", "is a pull request"),
        ("https://github.com/o/r/pull/5/files", "is a pull request"),
        ("https://gitlab.com/o/r/-/merge_requests/5", "is a merge request"),
        ("https://github.com/o/r", "is not the address of an issue"),
        ("https://github.com/o/r/issues", "is not the address of an issue"),
        ("https://github.com/o/r/discussions/5", "is not the address of an issue"),
        ("https://github.com/../r/issues/5", "is not the address of an issue"),
        ("https://gitlab.com/o/r/-/boards/5", "is not the address of an issue"),
        ("https://gitlab.com/o/%2e%2e/-/issues/5", "is not the address of an issue"),
        ("https://github.com/o/r/issues/0", "from 1"),
        ("https://github.com/o/r/issues/new", "from 1"),
        ("o/r#0", "from 1"),
        ("#99999999999999999999", "from 1"),
        ("o/..#1", "no repository"),
        ("https://codeberg.org/o/r/issues/5", "--github-api https://codeberg.org/api/v3"),
    ],
)
def test_invalid_issue_names(spec: str, part: str) -> None:
    assert part in refused(spec)


@pytest.mark.parametrize(
    "spec",
    [
        "it fails",
        "a/b",
        "see #12",
        "a/b/c#1",
        "https://example.invalid/bug/1",
        "docs/github.com/x",
        "#x",
        "http://[",
    ],
)
def test_specs_that_are_not_tracker_names(spec: str) -> None:
    assert parse(spec) is None


@given(
    st.one_of(
        st.text(max_size=40), st.from_regex(r"https?://[\w.@:\[\]-]{0,12}/[\w/.#?%-]{0,30}", fullmatch=True)
    ),
    st.one_of(st.none(), st.text(max_size=30)),
)
def test_any_name_is_an_issue_nothing_or_one_sentence(spec: str, origin: str | None) -> None:
    for given_spec in (spec, "#1"):
        try:
            reference = parse(given_spec, origin=origin)
        except UsageError as error:
            assert str(error).endswith(".") and "\n" not in str(error)
        else:
            if reference is not None:
                assert reference.number > 0
                assert ".." not in reference.project.split("/")
                assert reference.api.startswith(("https://", "http://localhost", "http://127.", "http://["))
