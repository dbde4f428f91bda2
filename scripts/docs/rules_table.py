"""Write the table of the rules of the verdict into docs/fix.md: `make docs-pages`."""

from __future__ import annotations

from pathlib import Path

from m3agent.agent.verify.rules import RULES
from scripts.docs.settings_page import renewed

PAGE = Path(__file__).parents[2] / "docs" / "fix.md"


def table() -> str:
    """Return the table, as Markdown."""
    rows = "".join(f"| `{rule.name}` | {rule.verdict} | {rule.when} |\n" for rule in RULES)
    return "| rule | verdict | it matches if this holds |\n|---|---|---|\n" + rows


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(), table()))
