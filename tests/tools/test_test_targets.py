"""Which tests a call of `test_runner` names."""

from __future__ import annotations

import pytest

from m3agent.tools.test_targets import BadTargets, Targets, has_title, matches, targets_in

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
