"""Test which errors and which calls the stall detector treats as equal."""

from __future__ import annotations

import pytest

from m3agent.agent.stall.history import call_key, error_class


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("all is well", ""),
        ("collecting\n  KeyError: 'a'\ndone", "KeyError: 'a'"),
        ("ImportError: x\nnoise\nfatal: y\nValueError: z", "ImportError: x\nfatal: y"),
        ("ValueError: z\nValueError: z\n  ValueError: z\ncannot open a", "ValueError: z\ncannot open a"),
        ("Traceback (most recent call last): Error\nAssertionError: no\nE   assert Error", ""),
    ],
    ids=["none", "one", "the first two", "each once", "assertions"],
)
def test_the_kind_of_an_error_is_its_first_two_lines_that_differ(text: str, error: str) -> None:
    assert error_class(text) == error


def test_a_call_is_the_same_whatever_the_blanks_around_its_arguments() -> None:
    key = call_key("code_exec", {"code": "print(1)", "timeout": 5})
    assert call_key("code_exec", {"timeout": 5, "code": " print(1)\n"}) == key
    assert call_key("code_exec", {"code": "print( 1)", "timeout": 5}) != key
    assert call_key("test_runner", {"code": "print(1)", "timeout": 5}) != key
    assert call_key("code_exec", {}) != call_key("code_exec", None)
