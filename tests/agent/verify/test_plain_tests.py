"""Variants of tests in which values compare as Python's own types do."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from m3agent.agent.verify.inverted_tests import TestSource, helpers


class Loose(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return self.strip() == other


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point)


class Flip:
    calls = 0

    def __bool__(self) -> bool:
        Flip.calls += 1
        return Flip.calls % 2 == 1


def passes(body: str) -> bool:
    """Return whether a test passes with plain values, or has none."""
    source = TestSource("t.py", f"def test():\n    {body}\n".encode(), Random(1), "_t").plain()
    if source is None:
        return True
    names: dict[str, Any] = {"Loose": Loose, "Point": Point, "Flip": Flip, "pytest": pytest}
    exec(helpers("_t") + source.decode(), names)
    try:
        names["test"]()
    except (AssertionError, ValueError, names["_t_equal"]):
        return False
    return True


@pytest.mark.parametrize(
    "body",
    [
        "assert Loose('a ') == 'a'",
        "assert [Loose('a ')] == ['a']",
        "assert {'k': (Loose('a '),)} == {'k': ('a',)}",
        "found = Loose('a '); assert found == 'a'",
        "assert 'a' in [Loose('a ')]",
        "assert Point(1) == Point(2)",
        "assert len(Loose('a ')) == 1 or str(Loose('a ')) == 'a'",
        "assert Flip()",
        "if Loose('a ') != 'a': raise ValueError",
    ],
)
def test_a_lenient_comparison_is_seen(body: str) -> None:
    assert not passes(body)


@pytest.mark.parametrize(
    "body",
    [
        "assert Loose('a') == 'a'",
        "assert Loose(' a').strip() == 'a'",
        "assert Point(1) == Point(1) and Point(3).x == 3",
        "assert isinstance(Loose('a'), Loose)",
        "assert (lambda point: point.x)(Point(1)) == 1",
        "found = Point(1); assert found is found",
        "assert 0.1 + 0.2 == pytest.approx(0.3)",
        "assert f'{Loose(\"a\")}' == 'a'",
        "assert all(each > 1 for each in (2, 3))",
    ],
)
def test_an_honest_comparison_passes(body: str) -> None:
    assert passes(body)
