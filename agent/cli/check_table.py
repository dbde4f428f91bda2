"""Format checks as a table for people and as JSON for programs."""

import json
from collections.abc import Sequence

from m3agent.agent.util.sanitize import printable_line, printable_text
from m3agent.agent.util.table import wrapped
from m3agent.serving.check.check import Check

MOST = 500
"""The longest detail, in characters. It may contain a model's or a server's own words."""


def table(checks: Sequence[Check], *, failed: str = "missing", colour: bool = False, width: int = 0) -> str:
    """Return the checks for people, one on each line.

    Args:
        checks: The checks.
        failed: The mark of a failed check, at most 7 characters.
        colour: Colour the marks for a terminal.
        width: Columns of the terminal, where long lines wrap below their beginning; 0 for no terminal.
    """
    names = max(len(check.name) for check in checks)
    indent = 7 + 2 + names + 2
    lines: list[str] = []
    for check in checks:
        mark, code = {True: ("ok", 32), False: (failed, 31), None: ("-", 33)}[check.ok]
        start, end = (f"\x1b[{code}m", "\x1b[0m") if colour else ("", "")
        detail, *below = wrapped(printable_line(check.detail, MOST), width - indent)
        if check.fix:
            below += wrapped(f"to fix: {printable_text(check.fix)}", width - indent)
        lines.append(f"{start}{mark:<7}{end}  {check.name:<{names}}  {detail}")
        lines += [f"{'':<{indent}}{line}" for line in below]
    return "\n".join(lines) + "\n"


def as_json(checks: Sequence[Check]) -> str:
    """Return the checks as a JSON list."""
    fields = ("name", "ok", "detail", "fix")
    return json.dumps([{name: getattr(check, name) for name in fields} for check in checks], indent=2) + "\n"
