"""Variants of tests in which values compare as Python's own types do."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from functools import total_ordering
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


@total_ordering
class Version:
    """An honest value with methods of its own."""

    def __init__(self, text: str) -> None:
        self.parts = [int(part) for part in text.split(".")]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.parts == other.parts

    def __lt__(self, other: Version) -> bool:
        return self.parts < other.parts

    def __hash__(self) -> int:
        return hash(tuple(self.parts))

    def __str__(self) -> str:
        return ".".join(map(str, self.parts))

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[int]:
        return iter(self.parts)

    def __contains__(self, part: object) -> bool:
        return part in self.parts

    def __bool__(self) -> bool:
        return any(self.parts)


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
    names: dict[str, Any] = {
        "Loose": Loose,
        "Point": Point,
        "Flip": Flip,
        "Version": Version,
        "pytest": pytest,
    }
    names["case"] = unittest.TestCase()
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
        "assert str(Version('1.2')) == '1.2' and '%s' % Version('1.2') == '1.2'",
        "assert len(Version('1.2')) == 2 and list(Version('1.2')) == [1, 2]",
        "assert [each for each in Version('1.2')] == [1, 2]",
        "assert Version('1.9') < Version('1.10') and Version('1') >= Version('1')",
        "assert max(Version('1'), Version('2')) == Version('2')",
        "assert sorted([Version('2'), Version('1')]) == [Version('1'), Version('2')]",
        "assert 2 in Version('1.2') and not Version('0')",
        "assert Version('1') in {Version('1')} and {Version('1')} == {Version('1')}",
        "assert {Version('1'): 1} == {Version('1'): 1}",
        "assert hash(Version('1')) == hash(Version('1'))",
        "assert hasattr(Version('1'), 'parts') and getattr(Version('1'), 'parts') == [1]",
        "assert type(Version('1')) == Version",
        "assert [each.parts for each in [Version('1')]] == [[1]]",
        "case.assertIn(2, Version('1.2'))",
        "case.assertLess(Version('1'), Version('2'))",
        "case.assertIsInstance(Version('1'), Version)",
        "case.assertCountEqual([Version('1')], [Version('1')])",
        "case.assertFalse(Version('0'))",
    ],
)
def test_an_honest_comparison_passes(body: str) -> None:
    assert passes(body)


def test_an_asserted_comprehension_leaves_the_other_comparisons_their_variant() -> None:
    body = "assert [each for each in [1]] == [1]; assert Loose('a ') == 'a'"
    assert not passes(body)
