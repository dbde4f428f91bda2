"""The issue for the agent: the author's description of the fault and the errors of failing tests, but not the fix."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.evals.create.history import Commit
from m3agent.evals.create.mine import MinedCommit
from m3agent.evals.create.statement import cleaned_message, first_error, seen_by_users, statement_of

PATCH = """diff --git a/src/shop/prices.py b/src/shop/prices.py
--- a/src/shop/prices.py
+++ b/src/shop/prices.py
@@ -1,2 +1,2 @@
 def total(items):
-    return sum(items[1:])
+    return sum(item.price for item in items)
"""
PLAIN = MinedCommit(
    Commit("1" * 40, "2" * 40, (), datetime(2024, 1, 1, tzinfo=UTC), ""),
    "2" * 40,
    PATCH,
    "",
    ("src/shop/prices.py", "tests/test_prices.py"),
    ("tests/test_prices.py",),
    frozenset({"test_total_of_all"}),
    (),
    3,
)
ERRORS = {
    "tests/test_prices.py::TestTotal::test_total_of_all[two]": "def test():\n>   x\nE   assert 3 == 5\n"
}


def saying(*messages: str) -> MinedCommit:
    return replace(PLAIN, messages=messages)


def test_a_message_that_describes_the_fault_is_the_statement() -> None:
    message = (
        "Totals leave out the first item\n\nA basket of two items costs what the second one does, since 1.4.\n"
        "I would expect the sum of both.\n\nFixes #12\n"
    )
    assert statement_of(saying(message), ERRORS) == (message, "message")


def test_trailers_merge_lines_and_marks_for_machines_stay_out() -> None:
    message = (
        "Merge pull request #7 from someone/fix-totals\n\nTotals leave out the first item [skip ci]\n\n"
        "Signed-off-by: A B <a@b>\nCo-authored-by: C D <c@d>\nReviewed-By: E\nChange-Id: I123\n(cherry picked from commit 1)\n"
    )
    assert cleaned_message(saying(message)) == "Totals leave out the first item"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("Fix the sum in src/shop/prices.py for baskets", "Fix the sum for baskets"),
        ("Fix the sum in `prices.py`", "Fix the sum"),
        ("src/shop/prices.py", ""),
        ("* tests/test_prices.py: new", "* new"),
        ("return sum(item.price for item in items)", ""),
        ("It now says `return sum(item.price for item in items)`.", ""),
        ("Adds test_total_of_all.", ""),
        ("Totals of 3.5 and e.g. 4.py5 stay", "Totals of 3.5 and e.g. 4.py5 stay"),
        ("- totals (of all) are wrong", "- totals (of all) are wrong"),
    ],
)
def test_what_gives_the_fix_away_stays_out(line: str, kept: str) -> None:
    said = cleaned_message(saying(f"Wrong totals here\n\n{line}\n"))
    assert said.removeprefix("Wrong totals here").strip().replace("*: new", "* new") == kept


def test_a_diff_in_a_message_stays_out_and_what_follows_it_does_not() -> None:
    said = cleaned_message(saying(f"Wrong totals here\n\n{PATCH}\nThat was all.\n"))
    assert said == "Wrong totals here\n\nThat was all."


def test_a_title_alone_is_followed_by_what_failing_tests_raise() -> None:
    text, source = statement_of(saying("Wrong totals of baskets (#12)\n\nCloses #11\n"), ERRORS)
    assert source == "message and tests"
    assert text.startswith("Wrong totals of baskets (#12)\n\nCloses #11\n\nThis is what I see:\n")
    assert "- `TestTotal::test_total_of_all` fails:\n\n  ```\n  assert 3 == 5\n  ```\n" in text
    assert "test_prices" not in text and "item.price" not in text


def test_titles_of_a_squashed_branch_describe_nothing() -> None:
    text, source = statement_of(
        saying("Wrong totals of baskets\n\n* fix lint\n\n* and once more fix lint\n"), ERRORS
    )
    assert source == "message and tests" and "lint" not in text


def test_where_a_message_says_nothing_the_error_is_the_title() -> None:
    text, source = statement_of(saying("Merge branch 'topic'\n", "fix\n", "tests\n"), ERRORS)
    assert source == "tests" and text.startswith("assert 3 == 5\n")


def test_of_a_merge_the_first_message_that_says_something_counts() -> None:
    assert (
        cleaned_message(saying("Merge branch 'topic'\n", "wip\n", "Totals leave out items\n"))
        == "Totals leave out items"
    )


def test_errors_are_quoted_without_locations() -> None:
    text = (
        "E   ImportError: cannot import name 'x' from 'shop' (/home/me/src/shop/__init__.py)\n"
        "tests/test_prices.py:12: ImportError\n"
    )
    assert first_error(text) == ["ImportError: cannot import name 'x' from 'shop' ()"]
    assert first_error("tests/test_a.py:3: in f\n  x\nValueError: no <object at 0x7f00aa>\n") == [
        "ValueError: no <object at 0x>"
    ]
    assert first_error("timed out") == []


def test_of_many_failing_tests_some_are_listed_and_the_rest_counted() -> None:
    said = seen_by_users({f"t.py::test_{number}": "" for number in range(8)})
    assert said.count("fails.") == 5 and said.endswith("3 more fail in the same way or a similar one.")


@given(st.text(max_size=300), st.dictionaries(st.text(max_size=30), st.text(max_size=100), max_size=3))
def test_any_message_and_any_error_give_a_statement_without_the_patch(
    message: str, errors: dict[str, str]
) -> None:
    text, source = statement_of(saying(message, f"x\n{PATCH}"), errors)
    assert source in {"message", "message and tests", "tests"} and text.strip()
    assert "item.price" not in text
