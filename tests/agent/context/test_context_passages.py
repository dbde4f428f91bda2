"""Test which passages of a file an issue points at, and how an outline and passages are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.context.selection.passages import (
    Passage,
    find_passages,
    plain_outline,
    read_clues,
    write_outline,
    write_passages,
)

LINES = [f"value_{number} = compute({number})" for number in range(1, 201)]
LINES[49:53] = [
    "def parse_url(text):",
    "    if not text:",
    '        raise ValueError("no scheme in here")',
    "",
]
LINES[149:152] = ["class TestParseUrl(TestCase):", "    def test_empty(self):", "        assert 1"]
TEXT = "\n".join(LINES)
OUTLINE = "50\tdef parse_url(text)\n150\tclass TestParseUrl(TestCase)\n151\t  def test_empty(self)"


def found(issue: str, path: str = "pkg/url.py", outline: str = OUTLINE) -> list[Passage]:
    return find_passages(path, TEXT, outline, read_clues(issue))


@pytest.mark.parametrize(
    ("issue", "line"),
    [
        ("`parse_url` fails", 50),
        ("parse_url() fails", 50),
        ("ParseUrl fails", 50),
        ("It says 'no scheme in here'", 52),
        ("Traceback\nValueError: no scheme in here", 52),
        ("See value_177", 177),
        ('  File "/srv/app/pkg/url.py", line 120, in f', 120),
        ("pkg/url.py:120: error", 120),
        ("https://example.org/o/r/blob/main/pkg/url.py#L120", 120),
        (r"  File \"C:\app\pkg\url.py\", line 120".replace('\\"', '"'), 120),
    ],
)
def test_the_best_passage_holds_what_the_issue_names(issue: str, line: int) -> None:
    best = found(issue)[0]
    assert best.first <= line <= best.last <= best.first + 110


def test_a_definition_comes_with_its_body_and_its_test() -> None:
    issue = "parse_url() fails"
    assert found(issue)[0].first == 50
    assert any(passage.first == 150 for passage in found(issue))


def test_a_line_of_another_file_with_this_name_does_not_count() -> None:
    assert found("other/url.py:120: error", outline="1\tx") == found("nothing", outline="1\tx")
    assert found("url.py:120: error")[0].first == 116


def test_a_line_that_the_file_does_not_have_is_ignored() -> None:
    assert not found("pkg/url.py:99999: error", outline="9\tzzz")


def test_words_that_many_definitions_share_do_not_outweigh_a_name() -> None:
    outline = "\n".join(f"{number}\tdef value_{number}(compute)" for number in range(1, 201))
    best = find_passages("a.py", TEXT, outline, read_clues("def compute: value_77 is wrong"))[0]
    assert best.first == 77


def test_without_outline_and_clues_the_file_begins() -> None:
    assert found("", outline="") == [Passage(1, 40)]
    assert not found("")


def test_a_line_before_each_passage_names_its_lines() -> None:
    text = "a\nb\nc\nd\ne"
    assert write_passages(text, [Passage(4, 4), Passage(1, 2)], 100) == "… lines 1-2\na\nb\n… lines 4-4\nd"
    assert write_passages(text, [Passage(4, 4), Passage(1, 2)], 25) == "… lines 4-4\nd"
    assert write_passages(text, [Passage(1, 2), Passage(3, 4)], 100) == "… lines 1-4\na\nb\nc\nd"
    assert write_passages("x" * 10_000, [Passage(1, 1)], 2000).endswith("xxx…")


def test_a_long_outline_keeps_what_is_named_then_what_is_outer() -> None:
    outline = "\n".join(
        f"{number * 10}\tclass Part{number}\n{number * 10 + 1}\t  def turn_{number}(self)"
        for number in range(50)
    )
    assert write_outline(outline, read_clues(""), 10_000) == outline
    short = write_outline(outline, read_clues("turn_33() is wrong"), 200).split("\n")
    assert "331\t  def turn_33(self)" in short
    assert short[0] == "0\tclass Part0"
    assert [int(line.partition("\t")[0]) for line in short[:-1]] == sorted(
        int(line.partition("\t")[0]) for line in short[:-1]
    )
    assert short[-1] == f"(and {100 - len(short) + 1} more definitions)"


def test_files_without_a_parser_have_an_outline_by_patterns() -> None:
    text = "import os\n\nclass A:\n    def one(self):\n        pass\n\n\tdef two(self): pass\nLIMIT = 3\n"
    assert plain_outline(text) == "3\tclass A\n4\t  def one(self)\n7\t  def two(self): pass\n8\tLIMIT = 3"
    assert plain_outline("only prose here\n") == ""


words_of_both = st.sampled_from(
    [
        "parse_url",
        "x",
        "é",
        "class Foo:",
        "def parse_url(a):",
        "\t",
        "…",
        "'no scheme'",
        "a.py:3",
        "`b`",
        "12\t  y",
    ]
)
texts = st.lists(st.lists(words_of_both, max_size=5).map(" ".join), max_size=30).map("\n".join)


@given(issue=texts, text=texts, size=st.integers(0, 500))
def test_any_text_stays_within_the_size(issue: str, text: str, size: int) -> None:
    clues = read_clues(issue)
    outline = plain_outline(text)
    passages = find_passages("a.py", text, outline, clues)
    number = text.count("\n") + 1
    assert all(1 <= passage.first <= passage.last <= number for passage in passages)
    assert len(write_passages(text, passages, size).encode()) <= size
    assert len(write_outline(outline, clues, size).encode()) <= size
    assert find_passages("a.py", text, outline, read_clues(issue)) == passages
