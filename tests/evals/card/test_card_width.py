"""A card on a phone: three agents fit, more agents scroll within their tables, and the page never scrolls sideways."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.evals.card.model import report_on
from m3agent.evals.card.page import render
from scripts.docs import browser
from tests.evals.report.made import result, run_folder

AGENTS = (
    "m3agent 0.1.0",
    "mini-swe-agent 2.4.6",
    "qwen-code 0.15.10",
    "claude-code 2.1.0",
    "openhands 1.2.3",
)
NAME = "more-itertools__more-itertools-8ff2d60e1462"
PHONE = """
  const root = page.document.documentElement;
  page.document.querySelectorAll(".wide").forEach((wide) => { wide.scrollLeft = 1000; });
  const wide = [...page.document.querySelectorAll(".wide")];
  const names = [...page.document.querySelectorAll(".card tr:last-child th, .attempts tr:last-child td:first-child")];
  return [root.scrollWidth, wide.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.firstElementChild.className).join(" "),
    names.filter((name) => name.getBoundingClientRect().left < 0).length];
"""
"""Returns the page's width, the tables that scroll, and the names of rows that are out of sight when all are scrolled."""


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")
@pytest.mark.parametrize(("agents", "scrolling"), [(3, "pairs"), (5, "card pairs attempts of-card")])
def test_only_a_wide_table_scrolls_and_its_names_stay(agents: int, scrolling: str, tmp_path: Path) -> None:
    results = [result(f"{NAME}{n}", verdict) for n, verdict in enumerate(("resolved", "unresolved", "empty"))]
    folders = [
        run_folder(tmp_path / agent.split()[0], results, agent=agent, command=("agent", "x" * 300))
        for agent in AGENTS[:agents]
    ]
    page = tmp_path / "card.html"
    page.write_text(render(report_on(folders)))
    assert browser.evaluate(page, PHONE, width=390) == f"390,{scrolling},0"
