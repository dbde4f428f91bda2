"""M3's markup, written by hand."""

from __future__ import annotations

NS = "]<]minimax[>["


def element(name: str, body: str) -> str:
    return f"{NS}<{name}>{body}{NS}</{name}>"


def invoke(name: str, *elements: str) -> str:
    return f'{NS}<invoke name="{name}">{"".join(elements)}{NS}</invoke>\n'


def block(*invokes: str) -> str:
    return f"{NS}<tool_call>\n{''.join(invokes)}{NS}</tool_call>"
