"""Test that no TOML text of a stranger takes long, or raises anything but ValueError."""

from __future__ import annotations

import pytest

from m3agent.sandbox.declared.declared import read_declared
from m3agent.sandbox.declared.toml_text import MOST_PARTS, parse_toml
from m3agent.sandbox.declared.types import Files
from tests.conftest import later

LONG_KEY = f"more than {MOST_PARTS} parts"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"x = {'9' * 5000}", "too many digits"),
        ("x = " + "[" * 5000, "nested too deeply"),
        ("a." * 50_000 + "b = 1", LONG_KEY),
        later("[" + "a . " * 50_000 + "b]", LONG_KEY),
        later("x = {" + "'a'.\t" * 50_000 + "b = 1}", LONG_KEY),
        ("x" * 100_000, "Expected '='"),
        ("x = ", "Invalid value"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        parse_toml(text)
    assert "\n" not in str(caught.value)
    found = read_declared(Files(["pyproject.toml"], lambda _: text.encode()))
    assert found.notices[0].startswith("pyproject.toml: not valid TOML (")


def test_what_is_read() -> None:
    parts = ".".join(["a"] * (MOST_PARTS - 1))
    assert parse_toml(f"x.y = '{'1. ' * 10}'\n[{parts}]\nz = 0x10\n")["x"] == {"y": "1. " * 10}
