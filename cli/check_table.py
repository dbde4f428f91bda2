"""Print checks as a table for people and as JSON for programs."""

import json
import sys
from collections.abc import Sequence

from rich.text import Text

from m3agent.agent.ui.result import LABEL, print_result
from m3agent.cli.common import print_bytes
from m3agent.serving.check.check import Check
from m3agent.util.sanitize import columns_of, printable_line, printable_text
from m3agent.util.table import LEAST, wrapped

MARK = 9
"""Characters of a mark."""
NARROW_INDENT = 4
"""Spaces before a detail that begins below its name, where a terminal has no room beside it."""
MOST = 500
"""The longest detail, in characters. It may contain a model's or a server's own words."""


def print_checks(checks: Sequence[Check], *, as_json: bool, failed: str = "missing") -> None:
    """Print the checks; `failed` is the word for a failed one in the table."""
    if as_json:
        print_bytes(json_of(checks).encode())
    else:
        print_result(table(checks, failed=failed, width=columns_of(sys.stdout)))


def table(checks: Sequence[Check], *, failed: str = "missing", width: int = 0) -> Text:
    """Return the checks for people, one on each line.

    Args:
        failed: The word for a failed check, at most 7 characters.
        width: Columns of the terminal, where long lines wrap below their beginning; 0 for no terminal.
    """
    marks = {True: ("✓ ok", "green"), False: (f"✗ {failed}", "red"), None: ("-", "yellow")}
    names = max(len(check.name) for check in checks)
    indent = MARK + 2 + names + 2
    if is_narrow := 0 < width < indent + LEAST:
        indent = NARROW_INDENT
    made = Text()
    for check in checks:
        mark, style = marks[check.ok]
        below = wrapped(printable_line(check.detail, MOST), width - indent)
        detail = "" if is_narrow else below.pop(0)
        made.append(f"{mark:<{MARK}}  ", style).append(f"{check.name:<{names}}", LABEL)
        made.append(f"  {detail}".rstrip() + "\n")
        made.append("".join(f"{'':<{indent}}{line}\n" for line in below))
        if check.fix:
            fix = wrapped(f"to fix: {printable_text(check.fix)}", width - indent)
            made.append("".join(f"{'':<{indent}}{line}\n" for line in fix), "yellow")
    return made


def json_of(checks: Sequence[Check]) -> str:
    """Return the checks as a JSON list."""
    fields = ("name", "ok", "detail", "fix")
    return json.dumps([{name: getattr(check, name) for name in fields} for check in checks], indent=2) + "\n"
