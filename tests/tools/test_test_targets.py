"""Which tests a call of `test_runner` names, and which a wrong path or id may mean."""

from __future__ import annotations

import pytest

from m3agent.tools.test_targets import (
    MOST,
    BadTargets,
    Targets,
    has_title,
    matches,
    names_of_tests,
    near_names,
    near_paths,
    targets_in,
)

FILES = ["tests/test_a.py", "tests/test_b.py", "tests/odd name.py", "web/a.test.ts", "setup.py"]


@pytest.mark.parametrize(
    ("text", "paths", "keyword"),
    [
        ("tests/test_a.py", ["tests/test_a.py"], ""),
        ("tests/odd name.py", ["tests/odd name.py"], ""),
        ("tests/test_a.py tests/test_b.py::test_x", ["tests/test_a.py", "tests/test_b.py::test_x"], ""),
        ("tests/test_a.py, tests/test_b.py", ["tests/test_a.py", "tests/test_b.py"], ""),
        ("tests/test_a.py::test_x[a b] tests", ["tests/test_a.py::test_x[a b]", "tests"], ""),
        ("web/a.test.ts::adds two numbers", ["web/a.test.ts::adds two numbers"], ""),
        ("tests/test_a.py -k 'one or two'", ["tests/test_a.py"], "one or two"),
        ("-k one tests", ["tests"], "one"),
        ("-k=one", ["."], "one"),
        ("python -m pytest -q -x tests --tb=short -k a", ["tests"], "a"),
        ("pytest", ["."], ""),
        ("no/such.py", ["no/such.py"], ""),
        (".", ["."], ""),
    ],
)
def test_paths_ids_and_expressions(text: str, paths: list[str], keyword: str) -> None:
    assert targets_in(text, FILES) == Targets(tuple(paths), keyword)


@pytest.mark.parametrize("text", ["--help", "tests/test_a.py -p evil", "--rootdir=/ tests", "-c x"])
def test_other_options_are_refused(text: str) -> None:
    with pytest.raises(BadTargets):
        targets_in(text, FILES)


@pytest.mark.parametrize(
    ("ident", "title", "result"),
    [
        ("a.test.ts::math > adds", "adds", True),
        ("a.test.ts::math > adds", "math > adds", True),
        ("a.test.ts::math > really adds", "adds", True),  # jest joins groups and titles by blanks
        ("a.test.ts::math > readds", "adds", False),
        ("a.test.ts::math > adds", "subtracts", False),
        ("t.py::TestA::test_x[1]", "test_x", True),
        ("t.py::TestA::test_xy", "test_x", False),
    ],
)
def test_titles(ident: str, title: str, result: bool) -> None:
    assert has_title(ident, title) == result


@pytest.mark.parametrize(
    ("keyword", "result"), [("one", True), ("two", False), ("two or ONE", True), ("one and not math", False)]
)
def test_expressions(keyword: str, result: bool) -> None:
    assert matches("a.test.ts::math > one", keyword) == result


REPOSITORY = [
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
    assert next(iter(near_paths(path, REPOSITORY)), None) == first


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
