"""Test the copies of tests in which one assertion is inverted: their text, what they show, and the trees."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any

import pytest

from m3agent.agent.verify.inverted_runs import (
    EQUAL,
    CopiesSeen,
    InvertedTree,
    inverted_tree,
    run_copies,
)
from m3agent.agent.verify.inverted_tests import (
    HELPER,
    MOST_COPIES,
    OPPOSITES,
    OTHER,
    Copy,
    _copied,
    _kept,
    with_inverted_copies,
)
from m3agent.agent.verify.review import Finding
from tests.fakes.trees import files_of, memory_workspace

FIVE = Random(1).randrange(1000, 10_000)
"""The number that the first other value has."""


def copies_of(source: str, *tests: str) -> tuple[str, dict[str, Copy]]:
    text, copies = with_inverted_copies(source.encode(), tests, Random(1))
    return text.decode(), copies


def inverted(assertion: str, test: str = "test_it") -> str:
    """Return the only assertion of a test, inverted, with a very different value if it compares with one."""
    method = assertion.startswith("self.")
    start = "class C:\n  def test_it(self):\n" if method else "def test_it():\n"
    indent = "    "
    text, copies = copies_of(start + indent + assertion + "\n", "C::test_it" if method else test)
    assert [name.rpartition("::")[2] for name in copies][:2] == ["test_it_0", "test_it_1"]
    first = re.split(r"\n *def ", text.partition("test_it_1(")[2])[0].partition("\n")[2]
    return first.removesuffix("\n").removeprefix(indent)


@pytest.mark.parametrize(
    ("assertion", "wanted"),
    [
        ("assert f(1) == 5", f"assert f(1) == (2 * 5 + {FIVE})"),
        ("assert -5 == f(1)", f"assert (2 * -5 + {FIVE}) == f(1)"),
        ("assert f() == True", "assert f() == (not True)"),
        ("assert f() == None", "assert not (f() == None)"),
        ("assert f() == 'ä' 'b', 'ö'", f"assert f() == ('ä' 'b' + '{FIVE}'), 'ö'"),
        ("assert f('ä') == f'{x}'", f"assert f('ä') == (f'{{x}}' + '{FIVE}')"),
        ("assert f() == b''", f"assert f() == (b'' + b'{FIVE}')"),
        ("assert f() == []", f"assert f() == ([] + ['{FIVE}'])"),
        ("assert f() == ()", "assert not (f() == ())"),
        ("assert f() == (1,)", f"assert f() == ((*(1,), '{FIVE}'))"),
        ("assert f() == {}", f"assert f() == {{**{{}}, '{FIVE}': 0}}"),
        ("assert f() == {1}", f"assert f() == {{*{{1}}, '{FIVE}'}}"),
        ("assert f() == pytest.approx(1.5)", f"assert f() == pytest.approx((2 * 1.5 + {FIVE}))"),
        ("assert f() == g()", "assert not (f() == g())"),
        ("assert 1 == f() == 1", "assert not (1 == f() == 1)"),
        ("assert f(), g", "assert not (f()), g"),
        ("assert (f()\n       and g())", "assert (not (f()\n       and g()))"),
        ("assert (x := f())", "assert (not (x := f()))"),
        ("self.assertEqual(f(), 5)", f"self.assertEqual(f(), (2 * 5 + {FIVE}))"),
        ("self.assertEqual(f(), g())", "self.assertNotEqual(f(), g())"),
        ("self.assertTrue(f())", "self.assertFalse(f())"),
        ("self.assertIsNone(f())", "self.assertIsNotNone(f())"),
        ("self.assertCountEqual(f(), [1])", f"self.assertCountEqual(f(), ([1] + ['{FIVE}']))"),
    ],
)
def test_an_assertion_is_inverted(assertion: str, wanted: str) -> None:
    assert inverted(assertion) == wanted


@pytest.mark.parametrize(
    ("literal", "like"),
    [
        ("5", r"\(5 [+-]\d\)"),
        ("4711", r"\(4711 [+-]\d+\)"),
        ("'ab'", r"\(\('ab'\)\[:-1\] \+ '[ac-h]'\)"),
        ("b'ab'", r"\(\(b'ab'\)\[:-1\] \+ b'[ac-h]'\)"),
        ("[1]", r"another_value\(\[1\], alike=[12]\)"),
        ("(1,)", r"another_value\(\(\(1,\)\), alike=[12]\)"),
        ("{'a': [{'b': 'c'}]}", r"another_value\(\{.*\}, alike=[12]\)"),
    ],
)
def test_further_copies_compare_with_values_that_look_alike(literal: str, like: str) -> None:
    names: dict[str, Any] = {}
    exec(HELPER, names)
    for seed in range(20):
        source = f"def test_it():\n    assert f() == {literal}\n".encode()
        text, copies = with_inverted_copies(source, ["test_it"], Random(seed))
        values = [eval(literal)]
        for name in ("test_it_2", "test_it_3"):
            found = text.decode().partition(name)[2].partition(" == ")[2].partition("\n")[0]
            assert re.fullmatch(like, found), found
            values.append(eval(found, names))
        assert len({str(value) for value in values}) == 3
        assert len({len(str(value)) for value in values}) == 1
        assert len({type(value) for value in values}) == 1
        assert [copy.kept for copy in copies.values()] == [False] * 4 + [True]


@pytest.mark.parametrize(
    "value",
    [
        "5",
        "0",
        "True",
        "1e308",
        "float('inf')",
        "'a'",
        "''",
        "b''",
        "[1]",
        "()",
        "{}",
        "{1: 2}",
        "set()",
        "None",
    ],
)
def test_what_is_no_literal_is_compared_with_other_values(value: str) -> None:
    source = f"def test_it():\n    x = {value}\n    assert f() == x\n".encode()
    text, copies = with_inverted_copies(source, ["test_it"], Random(1))
    assert [copy.negated for copy in copies.values()] == [False, True, False, False, False]
    assert b"    assert f() == another_value(x)\n" in text
    for number in (1, 2):
        assert f"    assert f() == another_value(x, alike={number})\n".encode() in text
    names: dict[str, Any] = {}
    exec(HELPER, names)
    others = [names[OTHER](eval(value), alike=number) for number in (0, 1, 2)]
    assert eval(value) not in others


@pytest.mark.parametrize(
    "assertion", ["assert f() == pytest.approx(5, abs=3)", "assert 5 == approx(f(), abs=3)"]
)
def test_what_is_compared_approximately_has_very_different_values_only(assertion: str) -> None:
    text, copies = copies_of(f"def test_it():\n    {assertion}\n", "test_it")
    values = set(re.findall(r"\(2 \* 5 \+ \d{4}\)", text))
    assert (len(copies), len(values)) == (4, 2)


@pytest.mark.parametrize(
    "source",
    [
        "def test_it():\n    for x in y:\n        assert x\n",
        "def test_it():\n    if x:\n        assert x\n",
        "def test_it():\n    try:\n        assert x\n    except Exception:\n        pass\n",
        "def test_it():\n    with pytest.raises(AssertionError):\n        assert x\n",
        "def test_it():\n    with suppress(Exception):\n        assert x\n",
        "def test_it():\n    if x:\n        return\n    assert x\n",
        "def test_it():\n    def inner():\n        assert x\n    inner()\n",
        "def test_it():\n    yield\n    assert x\n",
        "@pytest.mark.xfail\ndef test_it():\n    assert x\n",
        "@unittest.expectedFailure\ndef test_it():\n    assert x\n",
        "def test_it():\n    self.client.get(x)\n",
        "def test_it():\n    pass\n",
        "def test_other():\n    assert x\n",
        "def test_it():\n    assert x\ndef test_it_1():\n    assert x\n",
        "def test_it(:\n    assert x\n",
        "# coding: latin-1\ndef test_it():\n    assert '\xe4'\n",
    ],
)
def test_what_may_not_run_is_not_inverted(source: str) -> None:
    encoded = source.encode("latin-1")
    assert with_inverted_copies(encoded, ["test_it"], Random(1)) == (encoded, {})


def test_the_rest_of_the_file_stays_as_it_is() -> None:
    source = (
        "import calc\r\n\r\n@mark('test_it')\r\ndef test_it(a):\r\n    '''ä\r\n    b'''\r\n    with calc as x:\r\n"
        "        assert x\r\n    def helper():\r\n        return 1\r\n    assert a == 3\r\n\r\nclass T:\r\n"
        "    async def test_it(self): assert await a"
    )
    text, copies = copies_of(source, "test_it", "T::test_it", "missing")
    assert {name: (copy.line, copy.negated) for name, copy in copies.items()} == {
        "test_it_0": (0, False),
        "test_it_1": (8, True),
        "test_it_2": (11, False),
        "test_it_3": (11, False),
        "test_it_4": (11, False),
        "test_it_5": (0, False),
        "T::test_it_0": (0, False),
        "T::test_it_1": (14, True),
    }
    assert text.startswith(source[: source.index("class T")].rstrip())
    assert "async def test_it_1(self): assert not (await a)\n" in text
    assert text.count("@mark('test_it')\r\n") == 7
    assert copies["test_it_2"].text == "assert a == 3"


def test_a_test_with_many_assertions_has_few_copies() -> None:
    source = "def test_it():\n" + "    assert x\n" * 50
    _, copies = copies_of(source, "test_it")
    assert len(copies) == MOST_COPIES + 1
    lines = [copy.line for copy in copies.values()]
    assert lines == sorted(lines)


KEPT_COPY = """\
def test_it_1(a, row, n):
    with opened(a) as x:
        kept_value_a = keep_value(a); a = None
        kept_value_row = keep_value(row); row = None
        assert parse(kept_value(kept_value_a)) == [
            kept_value(kept_value_row), (lambda: "x")()], "message"
        a = kept_value(kept_value_a)
        row = kept_value(kept_value_row)  # a comment
    assert all(n == each for each in x)
    assert n[(lambda: 1)():][(lambda: 0)()] == f"{n}"
"""


def test_a_copy_hides_the_values_of_its_assertions() -> None:
    source = (
        "def test_it(a, row, n):\n    with opened(a) as x:\n        assert parse(a) == [\n"
        '            row, "x"], "message"  # a comment\n    assert all(n == each for each in x)\n'
        '    assert n[1:][0] == f"{n}"\n'
    )
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    lines = source.encode().splitlines(keepends=True)
    assert _copied(lines, function, "test_it_1", _kept(function, lines)).decode() == KEPT_COPY
    names: dict[str, Any] = {}
    exec(HELPER, names)
    for value in ([{"a": (1, None)}], object(), {"a": object()}, float("nan"), "x"):
        again = names["kept_value"](names["keep_value"](value))
        assert again is value or (again == value and again is not value) or value == "x"


def test_a_copy_with_hidden_values_passes(tmp_path: Path) -> None:
    source = (
        "import pytest\n@pytest.mark.parametrize('row', [{'a': 1}])\ndef test_it(row):\n    row['b'] = 2\n"
        "    assert dict(row) == row == {'a': 1, 'b': 2}\n    row['c'] = 3\n    assert row == {'a': 1, 'b': 2, 'c': 3}\n"
    )
    text, copies = copies_of(source, "test_it")
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    (kept,) = (name for name, copy in copies.items() if copy.kept)
    namespace[kept]({"a": 1})


@pytest.mark.integration
def test_each_copy_of_a_passing_test_fails(tmp_path: Path) -> None:
    """Real pytest and unittest: only the unchanged copies pass."""
    assertions = [
        "assert 5 == abs(-5)",
        "assert [1, 2] == list((1, 2))",
        "assert abs(-5) != 4",
        "assert 1 in [1]",
        "self.assertEqual(abs(-5), 5)",
        "self.assertAlmostEqual(0.1 + 0.2, 0.3)",
        "self.assertIn(1, [1])",
        "self.assertIsNone(None)",
        "self.assertGreater(2, 1)",
        "self.assertLess(1, 2)",
        "self.assertRegex('a', 'a')",
        "self.assertIsInstance(1, int)",
        "self.assertIs(1, 1)",
        "self.assertFalse(0)",
        "self.assertDictEqual({}, dict())",
    ]
    tests = "".join(f"    def test_{n}(self):\n        {text}\n" for n, text in enumerate(assertions))
    source = "import unittest\nclass C(unittest.TestCase):\n" + tests
    names = [f"C::test_{n}" for n in range(len(assertions))]
    text, copies = copies_of(source, *names)
    others = [copy for copy in copies.values() if copy.line and not copy.negated]
    assert len(others) == 3 * 3 + 2 * 2, "three literals have values that look alike, two have not"
    kept = {name for name, copy in copies.items() if copy.kept}
    assert len(kept) == 13, "two have no literal"
    (tmp_path / "test_c.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rp", "test_c.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    passed = {line.partition("::")[2] for line in done.stdout.splitlines() if line.startswith("PASSED")}
    assert passed == {*names, *(f"{name}_0" for name in names), *kept}


def test_the_opposite_of_an_opposite_is_the_assertion() -> None:
    assert all(OPPOSITES[other] == one for one, other in OPPOSITES.items())


# trees


def test_a_tree_has_the_copies_of_the_named_tests_only(tmp_path: Path) -> None:
    base = {
        "test_a.py": "def test_x(n):\n    assert n\ndef test_y():\n    assert 1\n",
        "test_b.py": "def test_x():\n    assert 1\n",
        "data.txt": "x",
    }
    workspace = memory_workspace(tmp_path, base)
    store = workspace.store
    idents = ["test_a.py::test_x[1-2]", "test_c.py::test_x", "data.txt::test_x", "test_a.py"]
    found = inverted_tree(store, workspace.base, idents, Random(1))
    assert found is not None
    assert sorted(found.copies) == [f"test_a.py::test_x_{number}[1-2]" for number in range(3)]
    files = files_of(workspace, found.tree)
    assert {path for path in files if files[path] != base[path]} == {"test_a.py"}
    assert inverted_tree(store, workspace.base, idents[1:], Random(1)) is None


# what copies show

SAME, NOT = Copy("test_x"), Copy("test_x", 2, "assert x", negated=True)
ANOTHER, ALIKE, ONLY = (Copy("test_x", 3, "assert x == 5"),) * 2 + (Copy("test_x", 4, "assert y == 6"),)
COPIES = {f"a.py::test_x_{number}": copy for number, copy in enumerate([SAME, NOT, ANOTHER, ALIKE, ONLY])}


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        (["0", "0"], ""),
        (["01234", "01234"], "134"),
        (["01", "01"], "1"),
        (["01", "0"], ""),
        (["023", "023"], "3"),
        (["023", "02"], "2"),  # only one other value, so a person decides
        (["03", "03"], "5"),  # and if only values that look alike pass
        (["12", "12"], "0"),  # the test depends on its name
        (["12", "0"], ""),  # or on chance
        (["012", "12"], ""),
        (["", ""], "0"),
    ],
)
async def test_copies_count_if_they_pass_twice_beside_the_unchanged_one(runs: list[str], wanted: str) -> None:
    left = list(runs)

    async def passed(idents: Collection[str]) -> tuple[list[str], Collection[str]]:
        return [ident for number in left.pop(0) if (ident := f"a.py::test_x_{number}") in idents], idents

    seen = await run_copies(InvertedTree("tree", COPIES), passed)
    assert seen.signs == (
        *["a.py:2 passes, and passes as well if it is negated"] * ("1" in wanted),
        *["a.py:3 passes as well if it expects another value"] * 2 * ("3" in wanted),
    )
    assert seen.lines == (
        *[Finding("a.py", 3, "assert x == 5", EQUAL)] * ("2" in wanted or "5" in wanted),
        *[Finding("a.py", 4, "assert y == 6", EQUAL)] * ("4" in wanted),
    )
    assert seen.red == ("a.py::test_x_0",) * ("0" in wanted)


async def test_a_report_of_a_test_that_did_not_run_is_tampering() -> None:
    async def passed(idents: Collection[str]) -> tuple[list[str], Collection[str]]:
        return ["a.py::test_x", *idents], idents

    seen = await run_copies(InvertedTree("tree", COPIES), passed)
    assert seen == CopiesSeen(("a.py::test_x is reported as passed in a run without it",))


async def test_copies_without_a_result_show_nothing() -> None:
    async def passed(_: Collection[str]) -> tuple[list[str], list[str]]:
        return [], []

    assert await run_copies(InvertedTree("tree", COPIES), passed) == CopiesSeen()


def test_a_test_that_depends_on_its_name_counts_against_code_for_review_only() -> None:
    tolerant = Finding("a.py", 3, "assert x == 5", EQUAL)
    seen = CopiesSeen(("a.py:2 passes",), (tolerant,), red=("a.py::test_x_0",))
    assert seen.reasons([]) == ("a.py:2 passes",)
    assert seen.reasons([Finding("a.py", 1, "import gc", "reads all objects")]) == (
        "a.py:2 passes",
        f"a.py:3 {EQUAL}",
        "a.py::test_x_0, a copy with the same assertions, does not pass",
    )
