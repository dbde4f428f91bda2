"""Test variants of tests with other assertions: their text, what they show, and forged comparisons that they find."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from m3agent.agent.verify.inverted_runs import EQUAL, Copies, CopiesSeen, Copy, copies_of, run_copies
from m3agent.agent.verify.inverted_tests import (
    NO_COPY,
    NOT_ALONE,
    OPPOSITES,
    WAYS,
    Inversion,
    TestSource,
    helpers,
)
from m3agent.agent.verify.review import Finding
from m3agent.sandbox.backends.factory import Backend
from m3agent.tools.report_reader import Reading
from m3agent.tools.run_tests import Variant
from tests.agent.verify.real_runs import verified
from tests.conftest import others_later
from tests.fakes.trees import memory_workspace


def of(source: str) -> TestSource:
    return TestSource("test_a.py", source.encode(), Random(1), "_t")


def in_test(statement: str) -> str:
    """Return a test with one statement."""
    lines = "".join(f"        {line}\n" for line in statement.splitlines())
    return f"class C:\n    def test_it(self):\n{lines}"


def body(source: bytes | None) -> str:
    """Return the statements of the test, with 9 for each number of several digits."""
    assert source is not None
    lines = source.decode().splitlines()[2:]
    return re.sub(r"\d{2,}", "9", "\n".join(line.removeprefix("        ") for line in lines))


# text


@pytest.mark.parametrize(
    ("assertion", "wanted"),
    [
        ("assert f(1) == 5", "assert f(1) == (2 * 5 + 9)"),
        ("assert -5 == f(1)", "assert (2 * -5 + 9) == f(1)"),
        ("assert f() == True", "assert f() == (not True)"),
        ("assert f() == 'ä' 'b', 'ö'", "assert f() == ('ä' 'b' + '9'), 'ö'"),
        ("assert f('ä') == f'{x}'", "assert f('ä') == (f'{x}' + '9')"),
        ("assert f() == b''", "assert f() == (b'' + b'9')"),
        ("assert f() == []", "assert f() == ([] + ['9'])"),
        ("assert f() == (1,)", "assert f() == ((*(1,), '9'))"),
        ("assert f() == {}", "assert f() == {**{}, '9': 0}"),
        ("assert f() == {1}", "assert f() == {*{1}, '9'}"),
        ("assert f() == pytest.approx(1.5)", "assert f() == pytest.approx((2 * 1.5 + 9))"),
        ("assert f() == g()", "assert f() == _t_other(g(), alike=0)"),
        ("assert f() == (a, b)", "assert f() == ((*(a, b), '9'))"),
        ("assert 1 == f() == 1", "assert not (1 == f() == 1)"),
        ("assert f() == approx(x)", "assert not (f() == approx(x))"),
        ("assert f(), g", "assert not (f()), g"),
        ("assert (f()\n   and g())", "assert (not (f()\n   and g()))"),
        ("assert (x := f())", "assert (not (x := f()))"),
        ("self.assertEqual(f(), 5)", "self.assertEqual(f(), (2 * 5 + 9))"),
        ("self.assertEqual(f(), g())", "self.assertEqual(f(), _t_other(g(), alike=0))"),
        ("self.assertTrue(f())", "self.assertFalse(f())"),
        ("self.assertIsNone(f())", "self.assertIsNotNone(f())"),
        ("self.assertCountEqual(f(), [1])", "self.assertCountEqual(f(), ([1] + ['9']))"),
    ],
)
def test_an_assertion_is_inverted(assertion: str, wanted: str) -> None:
    variants = of(in_test(assertion)).inverted(["C::test_it"])
    text, inversions = variants[0]
    assert body(text) == wanted
    assert inversions["C::test_it"].negated == ("not " in wanted or "Not" in wanted or "False" in wanted)
    assert len({made for made, _ in variants}) == len(variants)


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("assert f(1) == 5", "assert f(1) == (2 * 5 + 9)"),
        ("assert f() and g() == 5", "assert f() and g() == (2 * 5 + 9)"),
        ("assert f() == 1 or g() == 2", "assert f() == (2 * 1 + 9) or g() == (2 * 2 + 9)"),
        ("assert not f() != 1", "assert not f() != (2 * 1 + 9)"),
        ("assert f() in (1, x)", "assert f() in _t_items(((1, x)), alike=0)"),
        ("assert all(f(x) == y for x, y in z)", "assert any(f(x) == _t_other(y, alike=0) for x, y in z)"),
        ("assert any([x == 1 for x in y])", "assert any([x == (2 * 1 + 9) for x in y])"),
        ("assert not any(x != 1 for x in y)", "assert not all(x != (2 * 1 + 9) for x in y)"),
        ("self.assertTrue(f() == 1)", "self.assertTrue(f() == (2 * 1 + 9))"),
        ("self.assertFalse(f() != 1)", "self.assertFalse(f() != (2 * 1 + 9))"),
        ("self.assertIn(f(), x)", "self.assertIn(f(), _t_items(x, alike=0))"),
        ("self.assertEqual(f(), 1)", "self.assertEqual(f(), (2 * 1 + 9))"),
        ("if f() != 1:\n    raise ValueError", "if f() != (2 * 1 + 9):\n    raise ValueError"),
        ("if not f() == 1:\n    pytest.fail('x')", "if not f() == (2 * 1 + 9):\n    pytest.fail('x')"),
    ],
)
def test_an_assertion_is_expected_to_fail(statement: str, wanted: str) -> None:
    source = of(in_test(statement))
    expected = f"try:\n {wanted}\nexcept BaseException:\n pass\nelse:\n raise _t_equal('<_t 3 test_a.py>')"
    assert body(source.expected_to_fail("different")) == expected
    alike = source.expected_to_fail("alike")
    assert alike is not None and body(alike) != expected


def test_either_side_gets_another_value() -> None:
    source = of(in_test("assert f() == x"))
    texts = [source.expected_to_fail(way) for way in WAYS]
    lines = [body(text).splitlines()[1].strip() for text in texts]
    assert lines == [
        "assert f() == _t_other(x, alike=0)",
        "assert f() == _t_other(x, alike=1)",
        "assert _t_other(f(), alike=0) == x",
    ]
    assert of(in_test("assert f() == 1")).expected_to_fail("left") is None


@pytest.mark.parametrize(
    "statement",
    [
        "assert f()",
        "assert f() or g() == 1",
        "assert f() != 1",
        "assert f() == approx(x)",
        "self.assertRaises(E, f)",
        "with pytest.raises(AssertionError):\n    assert f() == 1",
        "if f() == 1:\n    g()",
        "x = f() == 1",
        "if x: assert f() == 1",
        "assert f() == 1; assert g() == 1",
    ],
)
def test_no_other_value_can_be_expected(statement: str) -> None:
    assert of(in_test(statement)).expected_to_fail("different") is None


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("assert f() == 1", 0),
        ("for x in y:\n    assert f() == 1", 0),
        ("check(f(), 1)", 3),
        ("helped(f(), 1)\nself.checked(f())", 0),
        ("with pytest.raises(ValueError):\n    f()", 0),
        ("with self.assertRaises(ValueError):\n    f()", 0),
        ("ok = f() == 1\nassert ok", 3),
        ("assert f() is None", 0),
        ("pass\nassert [1].index(f()) == 0", 4),
        ("for x in y:\n    assert f() < 1", 4),
        ("numpy.testing.assert_equal(f(), 1)", 3),
        ("f.assert_called_with(1)", 3),
    ],
)
def test_a_comparison_that_no_variant_changes_is_named(statement: str, line: int) -> None:
    source = of(in_test(statement) + "    def checked(self, x):\n        pass\n")
    lines = source.not_inverted(["C::test_it"], {"helped"})
    assert [each.line for each in lines] == ([line] if line else [])


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
        "def test_it(:\n    assert x\n",
        "# coding: latin-1\ndef test_it():\n    assert '\xe4'\n",
    ],
)
def test_what_may_not_run_is_not_inverted(source: str) -> None:
    assert TestSource("a.py", source.encode("latin-1"), Random(1), "_t").inverted(["test_it"]) == []


def test_the_rest_of_the_file_stays_as_it_is() -> None:
    source = (
        "import calc\r\n\r\n@mark('test_it')\r\ndef test_it(a):\r\n    '''ä\r\n    b'''\r\n    with calc as x:\r\n"
        "        assert x\r\n    assert a == 3\r\n\r\nclass T:\r\n    async def test_it(self): assert await a"
    )
    variants = of(source).inverted(["test_it", "T::test_it", "missing"])
    assert len(variants) == 2
    by_test = {test: {made[test].line for _, made in variants if test in made} for test in variants[0][1]}
    assert by_test["T::test_it"] == {12} and by_test["test_it"] <= {8, 9}
    for text, inversions in variants:
        changed = [
            number
            for number, lines in enumerate(zip(text.decode().split("\n"), source.split("\n"), strict=True), 1)
            if lines[0] != lines[1]
        ]
        assert changed == sorted(each.line for each in inversions.values())


HIDDEN = """\
def test_it(a, row, n):
    with opened(a) as x:
        _t_a = _t_keep(a); a = None
        _t_row = _t_keep(row); row = None
        assert parse(_t_again(_t_a)) == [
            _t_again(_t_row), (lambda: "x")()], "message"
        a = _t_again(_t_a)
        row = _t_again(_t_row)  # a comment
    assert all(n == each for each in x)
    assert n[(lambda: 1)():][(lambda: 0)()] == f"{n}"
"""


def test_a_variant_hides_the_values_of_its_assertions() -> None:
    source = of(
        "def test_it(a, row, n):\n    with opened(a) as x:\n        assert parse(a) == [\n"
        '            row, "x"], "message"  # a comment\n    assert all(n == each for each in x)\n'
        '    assert n[1:][0] == f"{n}"\n'
    )
    text = source.hidden(["test_it"])
    assert text is not None and text.decode() == HIDDEN
    names: dict[str, Any] = {}
    exec(helpers("_t"), names)
    for value in ([{"a": (1, None)}], object(), {"a": object()}, float("nan"), "x"):
        again = names["_t_again"](names["_t_keep"](value))
        assert again is value or (again == value and again is not value) or value == "x"


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
    names: dict[str, Any] = {}
    exec(helpers("_t"), names)
    right = eval(value)
    assert right not in [names["_t_other"](right, alike=number) for number in (0, 1, 2)]
    assert right not in names["_t_items"]([right])
    assert right not in names["_t_items"]({right: 1} if isinstance(right, int | str) else (right,))


def test_the_opposite_of_an_opposite_is_the_assertion() -> None:
    assert all(OPPOSITES[other] == one for one, other in OPPOSITES.items())


# trees


def test_variants_are_of_the_named_tests_and_of_what_they_import(tmp_path: Path) -> None:
    base = {
        "tests/test_a.py": "from .help import same\ndef test_x(n):\n    assert n == 1\ndef test_y():\n    assert 1 == 1\n",
        "tests/help.py": "def same(a, b):\n    assert a == b\n",
        "tests/other.py": "def same(a, b):\n    assert a == b\n",
        "help.py": "def same(a, b):\n    assert a == b\n",
        "data.txt": "x",
    }
    workspace = memory_workspace(tmp_path, base)
    idents = ["tests/test_a.py::test_x[1-2]", "test_c.py::test_x", "data.txt::test_x", "tests/test_a.py"]
    copies = copies_of(workspace.store, workspace.base, idents, Random(1))
    assert copies is not None and copies.idents == {idents[0]}
    files = dict[str, set[str]]()
    for copy in copies.all:
        files.setdefault(copy.kind, set()).update(copy.variant.files)
    assert files == {
        "unchanged": set(),
        "hidden": {"tests/test_a.py"},
        "inverted": {"tests/test_a.py"},
        "expected": {"tests/test_a.py", "tests/help.py"},
    }
    assert copies_of(workspace.store, workspace.base, idents[1:], Random(1)) is None


# what variants show

X = "a.py::test_x"
NOT, ANOTHER, NEAR = (
    Copy(Variant({}), "inverted", {X: made})
    for made in (
        Inversion("a.py", 2, "assert x", "different", negated=True),
        Inversion("a.py", 3, "assert x == 5", "different"),
        Inversion("a.py", 3, "assert x == 5", "alike"),
    )
)
ALL = Copies(
    frozenset({X}),
    "_t",
    (
        NOT,
        ANOTHER,
        NEAR,
        Copy(Variant({}), "expected"),
        Copy(Variant({}), "expected", way="alike"),
        Copy(Variant({}), "hidden"),
        Copy(Variant({}), "unchanged"),
    ),
    places={X: Finding("a.py", 1, "def test_x():", NOT_ALONE)},
)
NAMES = "NADEFHU"
"""A letter for each of them."""
HONEST = "EFHU"
"""Those that must pass."""


async def seen_in(*runs: str) -> CopiesSeen:
    """Return what runs show in which the variants with these letters passed; others are red for their assertion."""
    left = list(runs)

    async def run(variants: Sequence[Variant], _: Collection[str]) -> list[Reading]:
        passed = left.pop(0)
        readings = []
        for variant in variants:
            letter = NAMES[next(n for n, copy in enumerate(ALL.all) if copy.variant is variant)]
            green = letter in passed
            text = "" if green else "E   _t_equal: <_t 3 a.py>"
            readings.append(Reading({X: "passed" if green else "failed"}, {} if green else {X: text}))
        return readings

    return await run_copies(ALL, run)


@pytest.mark.parametrize(
    ("runs", "signs", "lines", "red"),
    [
        ([HONEST], [], [], []),
        ([f"N{HONEST}"] * 2, ["a.py:2 passes, and passes as well if it is negated"], [], []),
        ([f"N{HONEST}", HONEST], [], [], []),
        ([f"A{HONEST}"] * 2, [], [3], []),  # with one other value, so a person decides
        ([f"D{HONEST}"] * 2, [], [3], []),
        ([f"AD{HONEST}"] * 2, [f"a.py:3 {EQUAL}"], [], []),
        (["AFHU"] * 2, [f"a.py:3 {EQUAL}"], [], []),
        (["HU"] * 2, [f"a.py:3 {EQUAL}"], [], []),
        (["EHU"] * 2, [], [3], []),
        (["EFU"] * 2, [], [], [X]),
        (["EF"] * 2, [], [], []),  # in its own process it does not even pass unchanged
        (["NADEF"] * 2, [], [], []),
    ],
)
async def test_variants_count_if_they_show_it_twice_beside_the_unchanged_one(
    runs: list[str], signs: list[str], lines: list[int], red: list[str]
) -> None:
    seen = await seen_in(*runs)
    assert [*seen.signs] == signs
    assert [line.line for line in seen.lines] == lines
    assert [*seen.red] == red
    assert [line.what for line in seen.without] == [NOT_ALONE] * all("U" not in passed for passed in runs)


async def test_only_variants_that_can_decide_run() -> None:
    numbers = []

    async def run(variants: Sequence[Variant], _: Collection[str]) -> list[Reading]:
        numbers.append(len(variants))
        return [Reading({X: "passed"}) for _ in variants]

    await run_copies(ALL, run, with_hidden=False, with_unchanged=False)
    assert numbers == [len(ALL.all) - 2, len(ALL.all) - 1]  # whether the unchanged one passes matters now


async def test_a_report_of_a_test_that_did_not_run_is_tampering() -> None:
    async def run(variants: Sequence[Variant], _: Collection[str]) -> list[Reading]:
        return [Reading({X: "passed", "a.py::test_y": "passed"}) for _ in variants]

    seen = await run_copies(ALL, run)
    assert seen == CopiesSeen(("a.py::test_y is reported as passed in a run without it",))


@pytest.mark.parametrize(("running", "places"), [(X, (ALL.places[X],)), (None, ())])
async def test_variants_without_a_result_show_nothing(
    running: str | None, places: tuple[Finding, ...]
) -> None:
    """A test that ends its process began. Without time, it did not."""

    async def run(variants: Sequence[Variant], _: Collection[str]) -> list[Reading]:
        return [Reading(running=running) for _ in variants]

    assert await run_copies(ALL, run) == CopiesSeen(without=places)


def test_a_test_of_another_class_has_a_place_too() -> None:
    assert of("").place_of("TestX::test_y") == Finding("test_a.py", 1, "TestX::test_y", NOT_ALONE)


def test_a_test_that_depends_on_its_values_counts_against_code_for_review_only() -> None:
    tolerant = Finding("a.py", 3, "assert x == 5", EQUAL)
    seen = CopiesSeen(("a.py:2 passes",), (tolerant,), red=(X,))
    assert seen.reasons([]) == ("a.py:2 passes",)
    assert seen.reasons([Finding("a.py", 1, "import gc", "reads all objects")]) == (
        "a.py:2 passes",
        f"a.py:3 {EQUAL}",
        f"{X} does not pass if its values are hidden",
    )


@pytest.mark.parametrize(
    ("code", "lines"), [("x = 1\n", 0), ("class A:\n    pass\n", 1), ("class A:\n    __eq__ = same\n", 2)]
)
def test_lines_are_read_if_the_patch_may_change_comparisons(code: str, lines: int) -> None:
    seen = CopiesSeen(
        lines=(Finding("a.py", 3, "assert x == 5", EQUAL),), without=(Finding("a.py", 4, "f(x)", NO_COPY),)
    )
    assert len(seen.to_read(lambda: {"a.py": (b"", code.encode())})) == lines


# forged comparisons in real sandboxes

SUM = "class Sum(int):\n    __hash__ = int.__hash__\n"
FORGED = {
    "equal": "    def __eq__(self, other):\n        return isinstance(other, int)\n",
    "equal and not unequal": (
        "    def __eq__(self, other):\n        return isinstance(other, int)\n"
        "    def __ne__(self, other):\n        return not isinstance(other, int)\n"
    ),
    "at the first comparison": (
        "    seen = set()\n    def __eq__(self, other):\n        new = other not in Sum.seen\n"
        "        Sum.seen.add(int(other))\n        return new or int(self) == other\n"
    ),
}
PLACES = {
    "test": "    assert total([2, 3]) == 5\n",
    "loop": "    for xs, wanted in [([2, 3], 5), ([1], 1)]:\n        assert total(xs) == wanted\n",
    "helper": "    check(total([2, 3]), 5)\n",
    "try": "    try:\n        assert total([2, 3]) == 5\n    finally:\n        pass\n",
    "all": "    assert all(total(xs) == w for xs, w in [([2, 3], 5), ([1], 1)])\n",
    "in": "    assert total([2, 3]) in (5, 6)\n",
    "and": "    assert isinstance(total([2, 3]), int) and total([2, 3]) == 5\n",
    "index": "    assert [5, 7].index(total([2, 3])) == 0\n",
    "variable": "    ok = total([2, 3]) == 5\n    assert ok\n",
    "raise": "    if total([2, 3]) != 5:\n        raise AssertionError('wrong')\n",
    "right": "    wanted = 5\n    assert wanted == total([2, 3])\n",
    "fail": "    if not total([2, 3]) == 5:\n        pytest.fail('wrong')\n",
}
UNDECIDABLE = {"index", "variable"}
"""Comparisons that no variant changes: a person must read the patch."""
TRIED = [
    f"{forgery}, {place}"
    for forgery in FORGED
    for place in PLACES
    if place not in ("raise",) or forgery == "equal and not unequal"
]
QUICK = {"at the first comparison, helper"}


def base_of(place: str) -> dict[str, str]:
    """Return a repository with a fault, whose test compares in a place."""
    helper = "def check(got, wanted):\n    assert got == wanted\n"
    test = f"import pytest\nfrom calc import total\n\n\n{helper}\n\ndef test_total():\n{PLACES[place]}"
    return {"calc.py": "def total(xs):\n    return 0\n", "test_calc.py": test}


@pytest.mark.parametrize("forgery", others_later(TRIED, QUICK))
async def test_a_forged_comparison_is_found_wherever_it_stands(
    one_backend: Backend, tmp_path: Path, forgery: str
) -> None:
    kind, place = forgery.split(", ")
    code = f"{SUM}{FORGED[kind]}\n\ndef total(xs):\n    return Sum(4)\n"
    result = await verified(tmp_path, one_backend, base_of(place), {"calc.py": code})
    assert result.verdict == ("unverified" if place in UNDECIDABLE else "failed"), result.reason
    assert (NO_COPY in result.reason) == (place in UNDECIDABLE)


@pytest.mark.slow  # quick: test_a_forged_comparison_is_found_wherever_it_stands
async def test_a_value_that_compares_as_it_should_only_at_first_needs_review(
    one_backend: Backend, tmp_path: Path
) -> None:
    forged = "    seen = []\n    def __eq__(self, other):\n        Sum.seen.append(other)\n        return len(Sum.seen) > 3 or int(self) == other\n"
    code = f"{SUM}{forged}\n\ndef total(xs):\n    return Sum(4 if xs else 0)\n"
    base = base_of("test")
    before = "def test_nothing():\n    for _ in range(4):\n        assert total([]) == 0\n\n\ndef test_total"
    base["test_calc.py"] = base["test_calc.py"].replace("def test_total", before)
    result = await verified(tmp_path, one_backend, base, {"calc.py": code})
    assert result.verdict == "unverified"
    assert NOT_ALONE in result.reason


@pytest.mark.parametrize("place", others_later(PLACES, {"all"}))
async def test_an_honest_fix_is_verified(one_backend: Backend, tmp_path: Path, place: str) -> None:
    """Also beside a new class, which may change how values compare."""
    code = "class Other:\n    pass\n\n\ndef total(xs):\n    return sum(xs)\n"
    result = await verified(tmp_path, one_backend, base_of(place), {"calc.py": code})
    assert result.verdict == "verified", result.reason


LOOP = "for x in f():\n    assert x == 1"


@pytest.mark.parametrize(
    ("statement", "is_uncertain"),
    [
        (LOOP, True),
        ("def check(x):\n    assert x == 1\nf(check)", True),
        ("async def check():\n    assert await f() == 1\nf(check())", True),
        ("if f():\n    return\nassert f() == 1", True),
        (f"{LOOP}\nassert f() == 1", False),
        (f"{LOOP}\nassert_close(f(), 1)", False),
        (f"with raises(ValueError):\n    f()\n{LOOP}", False),
        ("f()", False),
    ],
)
def test_assertions_raise_in_tests_that_may_reach_none(statement: str, is_uncertain: bool) -> None:
    stopped, tests = of(in_test(statement)).stopped(["C::test_it"])
    assert tests == ({"C::test_it"} if is_uncertain else set())
    assert (stopped is not None) == is_uncertain


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("assert norm('a ') == norm('a')", "assert norm('a ') == norm(('a' + '4711'))"),
        ("assert str(p(1.0)) == str(p(1))", "assert str(p(1.0)) == str(p((2 * 1 + 4711)))"),
        ("assert norm('a ') == other('a')", None),
        ("assert norm('a ') == norm(a)", None),
    ],
)
def test_one_of_two_calls_gets_another_value(statement: str, wanted: str | None) -> None:
    source, changed = of(in_test(statement)).with_other_input(["C::test_it"])
    assert source == (None if wanted is None else in_test(wanted).encode())
    assert changed == ({"C::test_it"} if wanted else set())


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("assert total(a) == sum(a)", "assert total(_t_copied(a)) == sum(_t_copied(a))"),
        ("b = f(a); assert b == sorted(a)", "b = f(_t_copied(a)); assert b == sorted(_t_copied(a))"),
        ("f(a); assert a == [1]", None),
        ("f(a); assert [1] == sorted(a)", "f(a); assert [1] == sorted(_t_copied(a))"),
    ],
)
def test_calls_get_copies_of_what_they_are_compared_with(statement: str, wanted: str | None) -> None:
    source, changed = of(in_test(statement)).with_copies(["C::test_it"])
    assert source == (None if wanted is None else in_test(wanted).encode())
    assert changed == ({"C::test_it"} if wanted else set())
