"""The tables of docs/serving.md equal the planner's results."""

from __future__ import annotations

from scripts.docs import serving_page


def test_the_tables_are_current() -> None:
    assert serving_page.page() == serving_page.PAGE.read_text(), (
        "stale: write it again with `make docs-pages`"
    )
