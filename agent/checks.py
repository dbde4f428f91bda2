"""How checks are shown, for people and for programs."""

import json
from collections.abc import Sequence

from m3agent.agent.printable import printable_line, printable_text
from m3agent.serving.check.check import Check

MOST = 500
"""Characters of a detail: a model's or a server's words may be in it."""


def table(checks: Sequence[Check], *, failed: str = "missing", colour: bool = False) -> str:
    """The checks for people, one to a line, `failed` (7 letters at most) and what to do where one is not met."""
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
    """The checks as a JSON list."""
    told = ("name", "ok", "detail", "fix")
    return json.dumps([{name: getattr(check, name) for name in told} for check in checks], indent=2) + "\n"
