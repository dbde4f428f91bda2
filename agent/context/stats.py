"""Summarise a context's contents and omissions as a table for people."""

from __future__ import annotations

from collections import defaultdict

from m3agent.agent.context.types import Context
from m3agent.util.sanitize import printable_line

_ROWS = 20
PATH = 4096  # most characters of a path


def table(context: Context) -> str:
    """Return files and tokens by type, and omitted files by reason and type.

    The largest groups come first.
    """
    approx = "" if context.exact else "≈"
    kept: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for file in context.files:
        kind = _type(file.path)
        if file.part != "whole":
            kind += f" ({file.part})"
        row = kept[kind]
        row[0], row[1], row[2] = row[0] + 1, row[1] + file.tokens, row[2] + file.bytes
    rows: list[tuple[str, ...]] = [("shown", "files", "tokens", "bytes")]
    ranked = sorted(kept.items(), key=lambda item: (-item[1][1], item[0]))
    for kind, (files, tokens, size) in ranked[:_ROWS]:
        rows.append((kind, f"{files:,}", f"{approx}{tokens:,}", f"{size:,}"))
    if others := ranked[_ROWS:]:
        files, tokens, size = (sum(row[column] for _, row in others) for column in range(3))
        rows.append((f"({len(others)} more types)", f"{files:,}", f"{approx}{tokens:,}", f"{size:,}"))
    text = _aligned(rows)
    left_out: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path, reason in context.dropped:
        left_out[reason][_type(path)] += 1
    if left_out:
        rows = [("left out", "files", "types")]
        for reason, types in sorted(left_out.items(), key=lambda item: (-sum(item[1].values()), item[0])):
            named = sorted(types, key=lambda kind: (-types[kind], kind))
            shown = ", ".join(f"{kind} {types[kind]:,}" for kind in named[:6])
            more = f" and {len(named) - 6} more" if len(named) > 6 else ""
            rows.append((reason, f"{sum(types.values()):,}", shown + more))
        text += "\n" + _aligned(rows)
    if context.redacted:
        text += "\nsecrets redacted in\n" + "".join(
            f"  {printable_line(path, PATH)}\n" for path in context.redacted
        )
    return text


def _type(path: str) -> str:
    name = path.rstrip("/").rpartition("/")[2]
    stem, dot, suffix = name.rpartition(".")
    return printable_line(f".{suffix}" if dot and stem else name)


def _aligned(rows: list[tuple[str, ...]]) -> str:
    """Return aligned columns: the first and the `types` column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        for column, cell in enumerate(row[1:], start=1):
            words = rows[0][column] == "types"
            cells.append(cell if words else cell.rjust(widths[column]))
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
