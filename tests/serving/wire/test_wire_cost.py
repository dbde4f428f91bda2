"""The cost of parsing M3's output: the work grows linearly with the output, whatever it contains."""

import sys
from typing import Any

import pytest

from m3agent.serving.wire import StreamParser
from tests.conftest import others_later

NS = "]<]minimax[>["
INVOKE = f'{NS}<invoke name="f">'
TOOLS = [
    {"name": "f", "parameters": {"properties": {"content": {"type": "string"}, "n": {"type": "integer"}}}}
]
CASES = {
    "prose": ("", "if a[i] < b[j]: return [1, 2]\n", ""),
    "a long value": (f"{INVOKE}{NS}<content>", "if a[i] < b[j]: return [1, 2]\n", f"{NS}</content>{NS}</invoke>"),
    "a long value in M2's form": ('<invoke name="f"><parameter name="content">', "x </p>\n", "</parameter></invoke>"),
    "a long list of parameters": (INVOKE, f"{NS}<x>1{NS}</x>", f"{NS}</invoke>"),
    "namespace tokens": ("", NS, ""),
    "pieces of namespace tokens": ("", "]<]minimax[", ""),
    "tags that never end": ("", f"{NS}<aaaaaaaaaaaaaaa", ""),
    "one tag that never ends": (f"{NS}<", "aaaaaaaa", ""),
    "values in M2's form that never end": ('<invoke name="f"><parameter name="content">', "x </invoke> ", ""),
    "wrappers of nothing": ("", "<tool_call>\n", ""),
    "calls that are never closed": ("", INVOKE, ""),
    "calls in M2's form that are never closed": ("<minimax:tool_call>", '<invoke name="f">', ""),
    "parameters that are never closed": (INVOKE, f"{NS}<content>{NS}<n>", f"{NS}</invoke>"),
    "plain parameters that are never closed": (INVOKE, "<content>1<n>", f"{NS}</invoke>"),
    "elements that are never closed": (INVOKE, f"{NS}<x>", f"{NS}</invoke>"),
    "closing tags of nothing": (INVOKE, f"{NS}</content>{NS}</x>", f"{NS}</invoke>"),
    "plain ends of a value": (f"{INVOKE}{NS}<content>", f"x</invoke>{NS}</tool_call>", f"{NS}</invoke>"),
}  # fmt: skip


def work(text: str) -> int:
    """Count the characters given to the parser's readers and the function calls, for `text` in pieces of 8."""
    parser = StreamParser(TOOLS)
    counted = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal counted
        if event == "call":
            counted += 1
            if frame.f_code.co_name in ("_prose", "_call_body", "_plain_body"):
                counted += len(frame.f_locals["text"]) - frame.f_locals["position"]
        elif event == "c_call":
            counted += 1

    sys.setprofile(count)
    try:
        for start in range(0, len(text), 8):
            parser.feed(text[start : start + 8])
        parser.close()
    finally:
        sys.setprofile(None)
    return counted


QUICK = {"prose", "a long value", "namespace tokens", "calls that are never closed", "tags that never end"}


@pytest.mark.parametrize("name", others_later(CASES, QUICK))
def test_work_is_linear(name: str) -> None:
    start, middle, end = CASES[name]
    small, large = (work(start + middle * (size // len(middle)) + end) for size in (4_000, 32_000))
    assert large < 8 * small * 1.25


def test_a_counted_character_is_a_character() -> None:
    assert 1_000 <= work("x" * 1_000) < 3_000
