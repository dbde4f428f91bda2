"""Whether a mutation's expression needs parentheses."""

from __future__ import annotations

import ast

import pytest

from m3agent.serving.embedded.source import AND, ATOM, BINDING, NOT, OR, POWER, bound

FACTOR, TERM = BINDING[ast.Mult], BINDING[ast.Add]


@pytest.mark.parametrize(
    ("text", "least", "expected"),
    [
        ("name", ATOM, "name"),
        ("'text'", ATOM, "'text'"),
        ("f(a).b[0]", ATOM, "f(a).b[0]"),
        ("(a, b)", ATOM, "(a, b)"),
        ("a, b", OR, "(a, b)"),
        ("2", ATOM, "(2)"),  # 2.real is a syntax error
        ("2", POWER, "2"),
        ("await a", ATOM, "(await a)"),
        ("-a", POWER, "(-a)"),
        ("-a", FACTOR, "-a"),
        ("a * b", FACTOR, "a * b"),
        ("a + b", FACTOR, "(a + b)"),
        ("a + b", TERM, "a + b"),
        ("a < b", TERM, "(a < b)"),
        ("not a", NOT, "not a"),
        ("a and b", NOT, "(a and b)"),
        ("a and b", AND, "a and b"),
        ("a or b", AND, "(a or b)"),
        ("a or b", OR, "a or b"),
        ("a if b else c", OR, "(a if b else c)"),
        ("lambda: a", OR, "(lambda: a)"),
    ],
)
def test_weaker_operators_get_parentheses(text: str, least: int, expected: str) -> None:
    assert bound(text, least) == expected
