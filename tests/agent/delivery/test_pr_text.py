"""Test the text of pull requests, and that nothing strangers wrote has an effect there."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt  # installed with rich

from m3agent import __version__
from m3agent.agent.certificate import build
from m3agent.agent.delivery import pr_text
from m3agent.agent.forge.address import Project
from m3agent.agent.issue.load import Issue
from m3agent.agent.verify.verify import Verification
from m3agent.tools.test_report import TestReport

PROJECT = Project("github", "https://api.github.com", "https://github.com", "owner/repo")
REPORT = TestReport((), (), (), (), {}, True, False, 1.0, 0, "", False)
HOSTILE = [
    "Fixes #1",
    "closes other/repo#22",
    "RESOLVES GH-3",
    "fixed https://github.com/owner/repo/issues/4",
    "@octocat @org/team",
    "```\nFixes #5\n```",
    "~~~~\n<!-- </details><script>alert(1)</script>",
    "[x](javascript:alert(1)) ![y](https://evil.example/z.png) www.evil.example",
    "Fixes \u200b#\u20606\x1b[2K\r@\x00octocat\u2028@you\u202e",
    "`" * 40,
    "\udcff\ud800 `@in-code` | a | b |\n|-|-|\n# Title\n> Verified\n\n    indented @x",
]
# What GitHub acts on in a text or a commit message.
LIVE = re.compile(r"@\w|#\d|\bgh-\d|/(?:issues|pull|discussions)/\d", re.IGNORECASE)


def issue(title: str = "Sums are wrong", source: str = "text") -> Issue:
    return Issue(title, title, source, "0123456789abcdef" * 4)


def evidence(verdict: Literal["verified", "unverified"] = "verified", **sets: Any) -> Verification:
    values: dict[str, Any] = {
        "reason": "1 test red before, green after", "fixed": ("t.py::test_a",), "broken": (), "still_red": (),
        "new_tests": (), "flaky": (), "before": REPORT, "after": REPORT, "old_tree": "", "new_tree": "", "seconds": 1.0, **sets,
    }  # fmt: skip
    return Verification(verdict, **values)


def outside_code(markdown: str) -> str:
    """Return the visible text of a document without its code blocks."""
    tokens = MarkdownIt("commonmark").parse(markdown)
    assert {t.type for t in tokens} <= {
        "paragraph_open", "paragraph_close", "inline", "heading_open", "heading_close", "fence",
    }  # fmt: skip
    inner = [child for token in tokens for child in token.children or []]
    assert {t.type for t in inner} <= {"text", "softbreak", "strong_open", "strong_close", "code_inline"}
    return "\n".join(t.content for t in tokens if t.type == "inline")


def test_a_verified_patch() -> None:
    work = pr_text.Work(
        issue(source="https://github.com/owner/repo/issues/12"),
        ["a.py", "b c.py"],
        evidence(new_tests=tuple(f"t.py::test_{n}" for n in range(40))),
        "It was the sign.\n\nNow it is right.",
        "MiniMax-M3",
        uncommitted=2,
    )
    text = pr_text.body(work, PROJECT)
    assert text.startswith("A program made this patch.")
    assert "\n\nFixes #12\n\n## Evidence\n\n```text\nverified: 1 test red before, green after\n```\n" in text
    assert "Red before, green with the patch (1):\n\n```text\nt.py::test_a\n```" in text
    assert "Tests that the patch adds (40, the first 30):" in text
    assert "t.py::test_29\n```" in text
    assert "Broken" not in text
    assert "still red" not in text
    assert "uncommitted changes to 2 files that this pull request does not hold" in text
    assert "Files changed (2):\n\n```text\na.py\nb c.py\n```" in text
    assert "which nobody has checked:\n\n```text\nIt was the sign.\n\nNow it is right.\n```" in text
    assert "Whoever merges it answers for it, also for its licence and its origin.\n\nMade by" in text
    assert text.endswith(
        f"Made by m3agent {__version__} with `MiniMax-M3`. The model's licence: {build.M3_LICENCE}\n"
    )


@pytest.mark.parametrize(("isolated", "where"), [(True, "fresh sandboxes"), (False, "fresh copies")])
def test_the_first_line_says_where_the_tests_ran(*, isolated: bool, where: str) -> None:
    work = pr_text.Work(issue(), ["a.py"], evidence(), "", "", isolated=isolated)
    opening = pr_text.body(work, PROJECT).splitlines()[0]
    assert opening.startswith(f"A program made this patch. In {where}, tests turned from red to green")


def test_the_title_keeps_the_blanks_of_the_issue() -> None:
    assert pr_text.title('count("a  b") is 4') == 'Fix: count("a  b") is 4'


def test_an_unverified_one_says_so_in_its_first_line() -> None:
    work = pr_text.Work(issue(), ["a.py"], evidence("unverified", fixed=(), broken=("t.py::b",)), "", "")
    text = pr_text.body(work, PROJECT)
    assert text.splitlines()[0].startswith("**Nothing has checked this patch**")
    assert "Broken (1):\n\n```text\nt.py::b\n```" in text
    assert "with `a model without a name`. m3agent does not know the model's licence" in text


hostile = st.one_of(
    st.sampled_from(HOSTILE), st.text(), st.lists(st.sampled_from([*"`~#@/1 \n<>", "gh-", "x"])).map("".join)
)


@given(*[hostile] * 7, st.lists(hostile, max_size=3))
def test_nothing_that_strangers_wrote_does_anything(
    title: str, words: str, path: str, test: str, reason: str, model: str, source: str, more: list[str]
) -> None:
    shown = evidence(reason=reason, fixed=(test, *more), broken=tuple(more))
    work = pr_text.Work(issue(title, source), [path, *more], shown, words, model)
    text = pr_text.body(work, PROJECT)
    assert not LIVE.search(text)
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    assert len(text) < 60_000
    last = MarkdownIt("commonmark").parse(text)[-2].children or []
    assert [t.type for t in last] == ["text", "code_inline", "text"], "a model's name cannot end its code"
    plain = outside_code(text)
    empty = pr_text.Work(issue(), ["p"], evidence(fixed=("t", *more), broken=tuple(more)), "", "m")
    ours = outside_code(pr_text.body(empty, PROJECT)).splitlines()
    count = 1 + len(more)
    ours = [re.sub(r"Files changed \(1\)", f"Files changed ({count})", line) for line in ours]
    assert plain.splitlines()[:-1] == ours[:-1], "only our own words stand outside of code"
    line = pr_text.title(title)
    assert line.startswith("Fix:")
    assert line.isprintable()
    assert len(line) <= pr_text.TITLE_LENGTH
    assert not LIVE.search(line)
    message = pr_text.commit_message(issue(title), "verified")
    assert not LIVE.search(message)
    assert message.splitlines() == [line, "", f"Made by m3agent {__version__}; verdict: verified."]


def test_secrets_in_the_models_message_are_replaced() -> None:
    key = "ghp_" + "a8Fk2LmQ9xZt7RvB3nWc" + "5YhJ1dGs0PqE6uTi"
    work = pr_text.Work(issue(f"Token {key}"), ["a.py"], evidence(), f"The token {key} was wrong.", "m")
    assert key not in pr_text.body(work, PROJECT) + pr_text.title(work.issue.title)


@pytest.mark.slow
def test_long_texts_are_cut() -> None:
    entries = tuple(f"{'x' * 5000}{n}" for n in range(500))
    sets: dict[str, Any] = {"fixed": entries, "broken": entries, "still_red": entries, "new_tests": entries}
    work = pr_text.Work(
        issue("t" * 5000), entries, evidence(**sets, reason="r" * 5000), "w" * 9**6, "m" * 5000
    )
    assert len(pr_text.body(work, PROJECT)) < 60_000
    longest = "t" * (pr_text.TITLE_LENGTH - 5)
    assert pr_text.title(longest) == f"Fix: {longest}"
    assert pr_text.title(longest + "t") == f"Fix: {longest[:-1]}…"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("https://github.com/owner/repo/issues/12", "Fixes #12"),
        ("https://github.com/Owner/Repo/issues/12", "Fixes #12"),
        ("https://github.com/other/repo/issues/12", "Fixes other/repo#12"),
        ("https://gitlab.com/owner/repo/-/issues/12", ""),
        ("https://github.com.evil.example/owner/repo/issues/12", ""),
        ("https://github.com/owner/repo/issues/12\nFixes #1", ""),
        ("#12", ""),
        ("issue.md", ""),
        ("-", ""),
    ],
)
def test_which_issue_is_closed(source: str, line: str) -> None:
    assert pr_text.closes(issue(source=source), PROJECT) == line


@pytest.mark.parametrize(
    ("title", "source", "taken", "name"),
    [
        ("x", "https://github.com/owner/repo/issues/12", set(), "m3agent/12"),
        ("x", "https://gitlab.com/g/s/r/-/issues/3", {"m3agent/3", "m3agent/3-2"}, "m3agent/3-3"),
        ("Fix: add() is *wrong*!", "text", set(), "m3agent/fix-add-is-wrong"),
        ("a" * 39 + " bcd", "-", set(), "m3agent/" + "a" * 39),
        ("../../x.lock", "text", set(), "m3agent/x-lock"),
        ("数が違う", "text", set(), "m3agent/0123456789ab"),
    ],
)
def test_names_of_branches(title: str, source: str, taken: set[str], name: str) -> None:
    assert pr_text.branch_name(issue(title, source), taken) == name


@given(hostile, st.sets(st.integers(1, 5)))
def test_any_title_makes_a_name_that_git_takes(title: str, numbers: set[int]) -> None:
    first = pr_text.branch_name(issue(title), set())
    taken = {first if n == 1 else f"{first}-{n}" for n in numbers}
    name = pr_text.branch_name(issue(title), taken)
    assert name not in taken
    assert re.fullmatch(r"m3agent/[a-z0-9]+(-[a-z0-9]+)*", name)
    assert len(name) < 60
