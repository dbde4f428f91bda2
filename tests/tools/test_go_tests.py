"""What the Go runner does before and after the go command; tests/ecosystems/go runs it with real Go."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.tools.in_sandbox.go_tests import Package, fill_cache, replaced, sections
from m3agent.tools.in_sandbox.test_process import Problem
from tests.agent.repositories import write_files

TESTING = """\
package testing

import (
	"fmt"
	"os"
)

func tRunner(t *T, fn func(t *T)) {
	fn(t)
}

func (t *T) report() {
}

func (m *M) Run() (code int) {
	ok := runTests(m.deps.MatchString, m.tests, deadline)
}
"""
FUZZ = "package testing\n\nfunc fRunner(f *F, fn func(*F)) {\n}\n\nfunc (f *F) report() {\n}\n"
RUN_EXAMPLE = "package testing\n\nfunc runExample(eg InternalExample) (ok bool) {\n}\n"
EXAMPLE = (
    "package testing\n\nfunc (eg *InternalExample) processRunResult(stdout string, timeSpent time.Duration, "
    "finished bool, recovered any) (passed bool) {\n}\n"
)
SOURCE = {"testing.go": TESTING, "fuzz.go": FUZZ, "run_example.go": RUN_EXAMPLE, "example.go": EXAMPLE}
"""The places in Go's package `testing` that the runner changes, as Go 1.19 has them."""


def changed(folder: Path, source: dict[str, str]) -> dict[str, str]:
    """Return the changed files of the package, by name."""
    write_files(folder / "go", source)
    (folder / "work").mkdir()
    found = replaced(str(folder / "go"), "go1.19", str(folder / "work"), "mabc")
    return {Path(path).name: Path(new).read_text() for path, new in found.items()}


def test_each_place_is_changed_once(tmp_path: Path) -> None:
    found = changed(tmp_path, SOURCE)
    assert found.keys() == SOURCE.keys()
    assert "\tok := mabcRunTests(m.deps.MatchString, m.tests, deadline)\n" in found["testing.go"]
    assert "(code int) {\n\tdefer mabcDone()\n" in found["testing.go"]
    assert "(fn func(t *T)) {\n\tmabcStart(t.name)\n" in found["testing.go"].replace("(t *T, fn", "(fn")
    assert "report() {\n\tmabcResult(&f.common)\n" in found["fuzz.go"]
    assert "{\n\tmabcStart(eg.Name)\n" in found["run_example.go"]
    assert "{\n\tdefer func() { mabcExample(eg, stdout, passed) }()\n" in found["example.go"]
    assert not any("m3agent" in text.partition("// Set by the linker")[0] for text in found.values())


def test_the_reporter_and_its_imports_are_in_the_package_once(tmp_path: Path) -> None:
    text = changed(tmp_path, SOURCE)["testing.go"]
    assert text.count('\t"fmt"\n') == text.count('\t"os"\n') == text.count('\t"syscall"\n') == 1
    assert "func mabcWrite(" in text
    assert text.count("package testing") == 1


def test_a_go_without_fuzz_tests(tmp_path: Path) -> None:
    old = {name: text for name, text in SOURCE.items() if name != "fuzz.go"}
    assert changed(tmp_path, old).keys() == old.keys()


@pytest.mark.parametrize("name", SOURCE)
@pytest.mark.parametrize("times", [0, 2])
def test_a_package_that_looks_otherwise_is_a_problem(tmp_path: Path, name: str, times: int) -> None:
    body = SOURCE[name].partition("\n\n")[2]
    with pytest.raises(Problem, match=r"does not know the package testing of go1\.19"):
        changed(tmp_path, {**SOURCE, name: "package testing\n\n" + body * times})


def test_the_tests_of_a_package_have_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main = (
        "var tests = []testing.InternalTest{\n\t{\"TestAdd\", _test.TestAdd},\n\t{\"TestOut\", _xtest.TestOut},\n}\n\n"
        "var fuzzTargets = []testing.InternalFuzzTarget{\n}\n\n"
        "var examples = []testing.InternalExample{\n\t{\"ExampleAdd\", _test.ExampleAdd, \"5\\n\", false},\n}\n"
    )  # fmt: skip
    write_files(
        tmp_path,
        {
            "calc/a_test.go": 'package calc\n\n/* func TestOut( */\nfunc TestAdd(t *testing.T) {\n\ts := "func ExampleAdd("\n}\n',
            "calc/b_test.go": "package calc\n\nfunc ExampleAdd() {\n}\n",
            "calc/out_test.go": "package calc_test\n\nfunc TestOut(t *testing.T) {\n}\n",
            "made/_testmain.go": main,
        },
    )
    entry = {
        "Dir": str(tmp_path / "calc"),
        "ImportPath": "example.org/calc",
        "TestGoFiles": ["a_test.go", "b_test.go"],
        "XTestGoFiles": ["out_test.go"],
    }
    package = Package(entry)
    package.collected(str(tmp_path / "made"))
    assert package.unit == "calc"
    assert package.tests == [
        ("calc/a_test.go", "TestAdd"),
        ("calc/out_test.go", "TestOut"),
        ("calc/b_test.go", "ExampleAdd"),
    ]


def test_errors_belong_to_their_packages() -> None:
    text = "note\n# a [a.test]\na.go:1: x\n# b\nb.go:2: y\n# a\na.go:1: x\n# a\na.go:3: z\n"
    assert sections(text) == {"a": "a.go:1: x\na.go:3: z\n", "b": "b.go:2: y\n"}


def test_a_cache_links_into_the_prepared_one(tmp_path: Path) -> None:
    write_files(tmp_path / "prepared", {"0a/entry": "x", "README": "y"})
    fill_cache(str(tmp_path / "prepared"), str(tmp_path / "cache"))
    assert (tmp_path / "cache/0a/entry").readlink() == tmp_path / "prepared/0a/entry"
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"0a", "trim.txt"}
    (tmp_path / "cache/0a/entry").unlink()
    fill_cache(str(tmp_path / "prepared"), str(tmp_path / "cache"))
    assert not list((tmp_path / "cache/0a").iterdir()), "a cache that is there stays"
