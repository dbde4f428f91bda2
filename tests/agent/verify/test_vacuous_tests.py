"""Test that tests which cannot fail show no fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.agent.verify.rules import Verdict
from m3agent.agent.verify.vacuous_tests import vacuous_tests
from m3agent.sandbox.backends.factory import Backend
from tests.agent.verify.real_runs import verified

IMPORT = "from calc import total\n"


def names_in(source: str) -> list[str]:
    """Return the tests of a file that cannot fail."""
    return [*vacuous_tests("test_calc.py", (IMPORT + source).encode())]


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "assert True",
        "assert True, 'works'",
        "assert 1 == 1",
        "assert not False",
        "assert total is total",
        "assert total or True",
        "total; assert True",
        "x = 1; assert x == 1",
        "assert len([1]) == 1",
        "assert isinstance(1, object)",
        "\n    for n in range(3):\n        assert n < 3",
    ],
)
def test_a_test_that_cannot_fail(body: str) -> None:
    assert names_in(f"def test_a():\n    {body}\n") == ["test_a"]
    assert names_in(f"async def test_a(tmp_path):\n    {body}\n") == ["test_a"]


GO, RUST = "func TestA(t *testing.T) {{{}}}\n", "#[test]\nfn a() {{{}}}\n"
JS = "test('a', () => {{{}}});\n"


@pytest.mark.parametrize(
    ("path", "test", "names"),
    [
        ("a_test.go", GO.format(" _ = calc.Total "), ["TestA"]),
        ("a_test.go", GO.format('\n\t// Sums.\n\tt.Log("sum")\n\tassert.True(t, true)\n'), ["TestA"]),
        ("a_test.go", GO.format("\n\tcalc.Total()\n"), []),
        ("a_test.go", GO.format('\n\turl := "http://a"; check(t, url)\n'), []),
        ("a_test.go", GO.format("") + "func TestMain(m *testing.M) { run(m) }\n", []),
        ("tests/a.rs", RUST.format("\n    let _ = calc::TOTAL;\n    assert!(true);\n"), ["a"]),
        ("tests/a.rs", RUST.format(" assert_eq!(1, 1); "), ["a"]),
        ("tests/a.rs", RUST.format(" let _ = calc::A - calc::B; "), []),
        ("tests/a.rs", RUST.format(" calc::total!{} "), []),
        ("a.test.ts", JS.format(" expect(true).toBe(true); "), ["a"]),
        ("a.test.js", JS.format(" assert.strictEqual(1, 1); calc.total; "), ["a"]),
        ("a.test.js", JS.format(" expect(total).toBe(1); "), []),
        ("a.test.js", "beforeEach(() => total());\n" + JS.format(""), []),
        ("a.test.js", JS.format(" for (const a of calc) {} "), []),
    ],
)
def test_other_languages(path: str, test: str, names: list[str]) -> None:
    assert [*vacuous_tests(path, test.encode())] == names


@pytest.mark.parametrize(
    "body",
    [
        "assert total([1]) == 1",
        "assert total",
        "total([1])",
        "assert total([1]) or True",
        "import calc",
        "from calc import other",
        "raise ValueError",
        "assert open('data').read()",
        "assert __doc__",
    ],
)
def test_a_test_that_may_fail(body: str) -> None:
    assert names_in(f"def test_a():\n    {body}\n") == []


def test_what_runs_around_a_test_may_fail() -> None:
    passing = "def test_a(self):\n        self.assertTrue(True)\n"
    assert names_in(f"class TestA:\n    {passing}") == ["TestA::test_a"]
    assert names_in(f"class TestA:\n    def setUp(self):\n        total()\n    {passing}") == []
    assert names_in("class TestA:\n    def test_a(self):\n        self.check()\n") == []
    assert names_in("def test_a(case):\n    pass\n") == []
    assert (
        names_in("import pytest\n@pytest.fixture(autouse=True)\ndef x(): total()\ndef test_a(): pass\n") == []
    )
    assert names_in("def test_a(:\n") == []


CODE = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "test_calc.py": "from calc import add\ndef test_add():\n    assert add(1, 2) == 3\n",
}
TOTAL = "def total(values):\n    return sum(values)\n"
SHOWS = "def test_total():\n    assert total([1, 2]) == 3\n"
IDLE = "def test_idle():\n    assert True\n"


@pytest.mark.parametrize("path", ["test_total.py", "test_calc.py"])
@pytest.mark.parametrize(("tests", "verdict"), [(IDLE, "unverified"), (IDLE + SHOWS, "verified")])
async def test_an_added_test_that_cannot_fail_shows_no_fix(
    path: str, tests: str, verdict: Verdict, one_backend: Backend, tmp_path: Path
) -> None:
    """It is red without the patch, because its file imports a new name."""
    changes = {"calc.py": CODE["calc.py"] + TOTAL, path: IMPORT + CODE.get(path, "") + tests}
    evidence = await verified(tmp_path, one_backend, CODE, changes)
    assert evidence.verdict == verdict
    if verdict == "unverified":
        assert (
            evidence.reason
            == f"{path}::test_idle cannot fail, so no test shows that the patch fixes the issue"
        )
