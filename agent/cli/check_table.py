"""Format checks as a table for people and as JSON for programs."""

import json
from collections.abc import Sequence

from m3agent.agent.util.sanitize import printable_line, printable_text
from m3agent.serving.check.check import Check

MOST = 500
"""The longest detail, in characters. It may contain a model's or a server's own words."""


def table(checks: Sequence[Check], *, failed: str = "missing", colour: bool = False) -> str:
    """Return the checks for people, one on each line.

    Args:
        checks: The checks.
        failed: The mark of a failed check, at most 7 characters.
        colour: Colour the marks for a terminal.
    """
    width = max(len(check.name) for check in checks)
    lines: list[str] = []
    for check in checks:
        mark, code = {True: ("ok", 32), False: (failed, 31), None: ("-", 33)}[check.ok]
        start, end = (f"\x1b[{code}m", "\x1b[0m") if colour else ("", "")
        lines.append(f"{start}{mark:<7}{end}  {check.name:<{width}}  {printable_line(check.detail, MOST)}")
        if check.fix:
            lines.append(f"{'':<{7 + 2 + width}}  to fix: {printable_text(check.fix)}")
    return "\n".join(lines) + "\n"


def as_json(checks: Sequence[Check]) -> str:
    """Return the checks as a JSON list."""
    fields = ("name", "ok", "detail", "fix")
    return json.dumps([{name: getattr(check, name) for name in fields} for check in checks], indent=2) + "\n"
