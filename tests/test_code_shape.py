"""Measures of the code's shape."""

from __future__ import annotations

from scripts.quality.shape import shape

FILES = {
    "agent/loop.py": '''
from m3agent.tools import base

def outer(a, b, c, d, e, f):
    """Say nothing.

    At length.
    """
    found = [x for x in a if x and b and c]  # why
    def inner():
        if d:
            return e
    return inner if f else found
''',
    "tools/base.py": "ONE = 1\n",
    "serving/rows.toml": "[[row]]\nname = 1\n",
    "tests/test_loop.py": 'def test() -> None:\n    assert "a sentence for people of the world" in text\n    assert x == 1\n',
}


def test_the_shape_of_files() -> None:
    rows = shape(FILES, ("agent", "tools", "serving")).rows()
    assert (rows["lines"], rows["lines of tables"], rows["files"]) == ("14", "2", "2")
    assert rows["functions"] == "2"
    # outer: the comprehension and its `if`, two operands of `and`, the conditional expression; inner: an `if`
    assert rows["branch points per 100 function lines"] == f"{100 * 6 / (10 + 3 - 4):.1f}"
    assert rows["functions with more than 5 parameters"] == "1"
    assert rows["modules with one importer"] == "1"
    assert rows["assignments to found, one, said"] == "1"
    assert rows["comments per 1,000 lines"] == f"{1000 / 11:.1f}"


def test_sentences_in_tests() -> None:
    assert shape(FILES, ("tests",)).rows()["assertions that quote a sentence"] == "1"


def test_equal_passages_are_repeats() -> None:
    passage = "\n".join(f"value_{number} = {number}" for number in range(8))
    files = {"agent/a.py": f"def f(): pass\n{passage}\n", "agent/b.py": f"def g(): pass\n{passage}\n"}
    assert shape(files, ("agent",)).rows()["repeated lines"] == "3"
