"""Names of tests that a wrong path or node id may mean."""

from __future__ import annotations

import pytest

from m3agent.tools.test_targets import MOST, names_of_tests, near_names, near_paths

FILES = [
    "pack/more.py",
    "tests/test_more.py",
    "tests/test_recipes.py",
    "tests/deep/test_io.py",
    "docs/conf.py",
    "LICENSE",
]
SOURCE = """\
import unittest
class InterleaveEvenlyTests(unittest.TestCase):
    def test_equal_lengths(self): pass
    async def test_not_iterable(self): pass
    def helper(self): pass
class Data:
    size = 1
class TestOuter:
    class TestInner:
        def test_deep(self): pass
def test_plain(): pass
def helper(): pass
"""
NAMES = [
    "InterleaveEvenlyTests",
    "InterleaveEvenlyTests::test_equal_lengths",
    "InterleaveEvenlyTests::test_not_iterable",
    "TestOuter",
    "TestOuter::TestInner",
    "TestOuter::TestInner::test_deep",
    "test_plain",
]


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("tests/test_mor.py", "tests/test_more.py"),
        ("test_more.py", "tests/test_more.py"),
        ("test/test_io.py", "tests/deep/test_io.py"),
        ("pack/more.py", "tests/test_more.py"),
        ("tests/test_recipe.py", "tests/test_recipes.py"),
        ("test", "tests"),
        ("test/deep", "tests/deep"),
        ("zzz.py", None),
    ],
)
def test_near_paths(path: str, first: str | None) -> None:
    assert next(iter(near_paths(path, FILES)), None) == first


def test_names_of_tests_are_those_of_the_source() -> None:
    assert names_of_tests(SOURCE) == NAMES
    assert names_of_tests("def broken(:\n") == names_of_tests("\0") == []


@pytest.mark.parametrize(
    ("wanted", "first"),
    [
        ("InterleaveEvenly", "InterleaveEvenlyTests"),
        ("InterleaveEvenly::test_equal_lengths", "InterleaveEvenlyTests::test_equal_lengths"),
        ("test_equal_length", "InterleaveEvenlyTests::test_equal_lengths"),
        ("TestOther::test_deep", "TestOuter::TestInner::test_deep"),
        ("test_plain[1-2]", "test_plain"),
        ("TEST_PLAIN", "test_plain"),
        ("nothing_like_it", None),
    ],
)
def test_near_names(wanted: str, first: str | None) -> None:
    assert next(iter(near_names(wanted, NAMES)), None) == first


def test_few_names_are_suggested() -> None:
    assert len(near_names("test_number", [f"test_number_{n}" for n in range(50)])) == MOST
