"""Test which tests an issue is about."""

from __future__ import annotations

import pytest

from m3agent.util.about_issue import IssueWords

FILES = {
    "test_cart.py": b"from shop.cart import count\n\ndef test_count(): assert count('abc') == 3\ndef test_none(): assert not ''\n",
    "test_money.py": b"import shop\n\nclass TestPrice:\n    def test_free(self): assert shop.is_free(60).total\n",
    "broken_test.py": b"def test_x(: is_free\n",
}
CART, NONE = "test_cart.py::test_count", "test_cart.py::test_none"
FREE = "test_money.py::TestPrice::test_free[60]"
BROKEN, UNREAD = "broken_test.py::test_x", "cart.spec.js::adds a pen"
EVERY = {CART, NONE, FREE, BROKEN, UNREAD}


@pytest.mark.parametrize(
    ("issue", "about"),
    [
        pytest.param("The count is one too low", {CART}, id="any word names imported code"),
        pytest.param("`total` is missing", {FREE}, id="code names an attribute"),
        pytest.param("The total is missing", set(), id="a plain word names no attribute"),
        pytest.param("is_free(60) is wrong", {FREE, BROKEN}, id="a file that is no Python counts as a whole"),
        pytest.param("test_none fails", {NONE}, id="a test"),
        pytest.param("See cart.spec.js", {UNREAD}, id="a file that was not read"),
        pytest.param("All of it is wrong", set(), id="no name"),
        pytest.param("!", EVERY, id="no word"),
        pytest.param(" \n", set(), id="no text"),
    ],
)
def test_an_issue_is_about_what_it_names(issue: str, about: set[str]) -> None:
    assert IssueWords(issue).tests(EVERY, FILES) == about
