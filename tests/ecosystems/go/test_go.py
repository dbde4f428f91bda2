"""Go's runner: detection and selection without a toolchain, and all kinds of tests with a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.tools.in_sandbox.go_tests import fill_cache
from m3agent.tools.runners.base import Limits, Suite, Tree
from m3agent.tools.runners.go import CACHE, Go
from m3agent.tools.test_report import TestReport
from tests.agent.repositories import write_files
from tests.ecosystems import records, table
from tests.ecosystems.table import MakeSandbox, real

GO = Go()
SUITE = Suite("go")


def tree_of(*paths: str) -> Tree:
    return records.tree_of(dict.fromkeys(paths, ""))


def test_each_module_with_tests_is_a_suite() -> None:
    tree = tree_of(
        *("go.mod", "a_test.go", "tools/go.mod", "tools/cli/c_test.go"),
        *("empty/go.mod", "empty/x.go", "vendor/v/go.mod", "vendor/v/v_test.go"),
        *("other/go.mod", "other/testdata/d_test.go", "other/_old/e_test.go", "other/.x/f_test.go"),
    )
    assert [(suite.root, suite.evidence) for suite in GO.detect(tree)] == [
        ("", "go.mod"),
        ("tools", "tools/go.mod"),
    ]
    assert GO.detect(tree_of("a_test.go")) == []


@pytest.mark.parametrize(
    ("wanted", "targets"),
    [
        (["a_test.go::TestA/x y", "a_test.go::TestB"], (".::TestA", ".::TestB")),
        (["a_test.go::TestA", "a_test.go"], (".",)),
        (["in"], ("./in/...",)),
        (["in", "in/deep/b_test.go::TestQ", "a.go"], ("./in/...", ".")),
        (["in/deep/testdata/q.txt"], ("./in/deep",)),
        (["in/deep/testdata"], ("./in/deep",)),
        ([".", "a_test.go::TestA"], ()),
        (["no/such.txt"], (".",)),
        ([], ()),
    ],
)
def test_the_smallest_targets_are_selected(wanted: list[str], targets: tuple[str, ...]) -> None:
    tree = tree_of("go.mod", "a.go", "a_test.go", "in/deep/b_test.go", "in/deep/testdata/q.txt")
    assert GO.select(SUITE, tree, wanted) == targets


def test_targets_of_a_module_in_a_folder_are_relative_to_it() -> None:
    tree = tree_of("tools/go.mod", "tools/c_test.go", "tools/in/d_test.go")
    suite = Suite("go", "tools")
    assert GO.select(suite, tree, ["tools/c_test.go::TestX", "tools/in/d_test.go"]) == ("./in", ".::TestX")
    assert GO.select(suite, tree, ["tools"]) == ()
    assert GO.select(suite, tree, ["elsewhere/x.txt"]) == ()


def test_the_environment_downloads_modules_unless_they_are_vendored() -> None:
    plain = GO.prepare(SUITE, tree_of("go.mod", "go.sum", "a_test.go"))
    assert plain.commands == (("go", "mod", "download"),)
    assert plain.inputs == ("go.mod", "go.sum")
    assert plain.keep == (plain.env["GOMODCACHE"], CACHE)
    assert (plain.env["GOFLAGS"], plain.env["GOPROXY"]) == ("-mod=mod", "off")
    vendored = GO.prepare(SUITE, tree_of("go.mod", "vendor/modules.txt"))
    assert (vendored.commands, vendored.keep) == ((), (CACHE,))
    assert "GOFLAGS" not in vendored.env


@pytest.mark.parametrize(
    "uses", ["use ./a\nuse ./b\n", 'use (\n\t./a\n  "./b" // of b\n)\n', "use ( ./a )\n"]
)
def test_a_module_of_a_workspace_sees_the_others(uses: str) -> None:
    tree = records.tree_of({"go.work": uses, "a/go.mod": "", "b/go.mod": "", "tools/go.mod": ""})
    plan = GO.prepare(Suite("go", "a"), tree)
    assert plan.inputs == ("a/go.mod", "b/go.mod", "go.work", "tools/go.mod")
    assert not {"GOFLAGS", "GOWORK"} & plan.env.keys()
    outside = GO.prepare(Suite("go", "tools"), tree)
    assert (outside.inputs, outside.env["GOWORK"]) == (("tools/go.mod",), "off")


def test_the_packages_that_a_module_imports_are_compiled_ahead() -> None:
    files = {
        "go.mod": "module x.test/own\nrequire (\n\tx.test/far v1.2.0 // indirect\n)\nrequire y.test/z v0.1.0\n",
        "a.go": 'package a\n\nimport (\n\t"fmt"\n\tq "x.test/far/in" // why\n\t"x.test/own/b"\n\t"x.test/farther/c"\n)\n',
        "b/b_test.go": 'package b\nimport . "y.test/z"\nvar list = []string{\n"x.test/far/list",\n}\n',
        "c/c.go": 'import "x.test/far/in"\n',
    }
    (command,) = GO.prepare(SUITE, records.tree_of(files)).warm
    assert command[4:] == ("x.test/far/in", "y.test/z")
    vendored = GO.prepare(SUITE, records.tree_of({**files, "vendor/modules.txt": ""}))
    alone = GO.prepare(SUITE, records.tree_of({"go.mod": "module x\n", "a.go": 'import "x/b"\n'}))
    assert (vendored.warm, alone.warm) == ((), ())


def test_the_environment_has_the_modules_that_replace_others() -> None:
    files = {
        "cmd/go.mod": "module x\nreplace (\n\ta.test/b v1 => ../b\n)\nreplace a.test/c => ./c // see ./d\n",
        "cmd/c/go.mod": "replace a.test/e => ../../e",
        "cmd/c/go.sum": "",
        **dict.fromkeys(("b/go.mod", "e/go.mod", "d/go.mod", "cmd/d/go.mod", "go.mod"), ""),
    }
    plan = GO.prepare(Suite("go", "cmd"), records.tree_of(files))
    assert plan.inputs == ("b/go.mod", "cmd/c/go.mod", "cmd/c/go.sum", "cmd/go.mod", "e/go.mod")


def test_a_build_cache_starts_with_links_to_the_prepared_one(tmp_path: Path) -> None:
    prepared, cache = tmp_path / "prepared", tmp_path / "cache"
    write_files(prepared, {"00/aa-d": "compiled", "ff/bb-a": "action", "README": "", "trim.txt": "1"})
    fill_cache(str(prepared), str(cache))
    assert (cache / "00/aa-d").read_text() == "compiled"
    assert (cache / "ff/bb-a").is_symlink()
    assert int((cache / "trim.txt").read_text()) > 1
    (cache / "00/cc-d").write_text("own")
    fill_cache(str(prepared), str(cache))
    assert (cache / "00/cc-d").read_text() == "own"
    fill_cache(str(tmp_path / "missing"), str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


MODULE = "module example.com/shop\n\ngo 1.19\n"
CART = """\
package shop

// Total adds prices.
func Total(prices ...int) int {
	sum := 0
	for _, price := range prices {
		sum += price
	}
	return sum
}
"""
EVERY_KIND = """\
package shop

import (
	"fmt"
	"testing"
)

func TestPasses(t *testing.T) {
	fmt.Println("--- PASS: TestGhost (0.00s)")
	fmt.Println("=== RUN   TestGhost")
}
func TestFails(t *testing.T)    { t.Errorf("got %d, want 3", Total(1, 1)) }
func TestFatal(t *testing.T)    { t.Fatal("no database") }
func TestSkipped(t *testing.T)  { t.Skip("not here") }
func TestParallel(t *testing.T) { t.Parallel() }
func TestTable(t *testing.T) {
	for _, name := range []string{"one", "two words", "a/b", "same", "same"} {
		t.Run(name, func(t *testing.T) {
			if name == "two words" {
				t.Error("bad")
			}
		})
	}
}
func FuzzTotal(f *testing.F) {
	f.Add(1)
	f.Add(2)
	f.Fuzz(func(t *testing.T, n int) {
		if n == 2 {
			t.Error("two")
		}
	})
}
func BenchmarkTotal(b *testing.B) {}
func helper()                     {}

/*
func TestCommented(t *testing.T) {}
*/
"""
EXTERNAL = """\
package shop_test

import (
	"fmt"
	"testing"

	"example.com/shop"
)

func TestPasses(t *testing.T) { fmt.Println(shop.Total()) }
func ExampleTotal() {
	fmt.Println(shop.Total(1, 2))
	// Output: 3
}
func Example_wrong() {
	fmt.Println(shop.Total(1, 2))
	// Output: 4
}
func Example_compiledOnly() {}
"""
PANICS = """\
package panics

import "testing"

func TestBefore(t *testing.T)    {}
func TestPanics(t *testing.T)    { t.Run("inside", func(t *testing.T) { var m map[string]int; m["a"] = 1 }) }
func TestAfter(t *testing.T)     {}
func TestParallelA(t *testing.T) { t.Parallel(); t.Run("x", func(t *testing.T) {}) }
func TestParallelB(t *testing.T) { t.Parallel() }
func TestParallelC(t *testing.T) { t.Parallel(); panic("late") }
"""
HANGS = """\
package hangs

import "testing"

func TestBefore(t *testing.T) {}
func TestLoops(t *testing.T)  { for { } }
func TestWaits(t *testing.T)  { select {} }
func TestAfter(t *testing.T)  { t.Run("sub", func(t *testing.T) {}) }
"""
EXITS = """\
package exits

import (
	"os"
	"syscall"
	"testing"
)

func TestBefore(t *testing.T) {}
func TestExits(t *testing.T)  { os.Exit(0) }
func TestReally(t *testing.T) { syscall.Exit(0) }
func TestAfter(t *testing.T)  {}
"""
FILES = {
    "go.mod": MODULE,
    "cart.go": CART,
    "cart_test.go": EVERY_KIND,
    "external_test.go": EXTERNAL,
    "panics/panics_test.go": PANICS,
    "hangs/hangs_test.go": HANGS,
    "exits/exits_test.go": EXITS,
    "unbuilt/unbuilt.go": "package unbuilt\n\nfunc Name() string { return 1 }\n",
    "unbuilt/unbuilt_test.go": 'package unbuilt\n\nimport "testing"\n\nfunc TestName(t *testing.T) { Name() }\n',
    "depends/depends_test.go": (
        'package depends\n\nimport (\n"testing"\n"example.com/shop/unbuilt"\n)\n\n'
        "func TestName(t *testing.T) { unbuilt.Name() }\n"
    ),
    "syntax/syntax_test.go": "package syntax\n\nfunc TestBroken(t *testing.T {\n",
    "missing/missing_test.go": (
        'package missing\n\nimport (\n"testing"\n"example.net/nowhere"\n)\n\n'
        "func TestName(t *testing.T) { nowhere.Go() }\n"
    ),
    "vet/vet_test.go": (
        'package vet\n\nimport (\n"fmt"\n"testing"\n)\n\n'
        'func TestName(t *testing.T) { fmt.Printf("%d\\n", "text") }\n'
    ),
    "tags/kept_test.go": 'package tags\n\nimport "testing"\n\nfunc TestKept(t *testing.T) {}\n',
    "tags/gone_test.go": (
        '//go:build ignore\n\npackage tags\n\nimport "testing"\n\nfunc TestGone(t *testing.T) {}\n'
    ),
    "main/main_test.go": (
        'package main\n\nimport (\n"os"\n"testing"\n)\n\nfunc TestMain(m *testing.M) { os.Exit(0) }\n'
        "func TestNever(t *testing.T) {}\n"
    ),
    "leaks/leaks_test.go": (
        'package leaks\n\nimport (\n"os"\n"testing"\n)\n\n'
        "func TestMain(m *testing.M) { m.Run(); os.Exit(3) }\nfunc TestFine(t *testing.T) {}\n"
    ),
    "untested/untested.go": "package untested\n",
}


async def run(
    sandbox_of: MakeSandbox, files: dict[str, str], wanted: tuple[str, ...] = (), root: str = ""
) -> TestReport:
    limits = Limits(240, 5)
    return await table.run(sandbox_of, GO, files, wanted, limits=limits, memory=2 << 30, root=root)


@real("go")
async def test_every_kind(sandbox_of: MakeSandbox) -> None:
    report = await run(sandbox_of, FILES)
    assert set(report.passed) == {
        "cart_test.go::TestPasses",
        "cart_test.go::TestParallel",
        "cart_test.go::TestTable/one",
        "cart_test.go::TestTable/a/b",
        "cart_test.go::TestTable/same",
        "cart_test.go::TestTable/same#01",
        "cart_test.go::FuzzTotal/seed#0",
        "external_test.go::TestPasses",
        "external_test.go::ExampleTotal",
        "panics/panics_test.go::TestBefore",
        "panics/panics_test.go::TestAfter",
        "panics/panics_test.go::TestParallelA",
        "panics/panics_test.go::TestParallelA/x",
        "panics/panics_test.go::TestParallelB",
        "hangs/hangs_test.go::TestBefore",
        "hangs/hangs_test.go::TestAfter",
        "hangs/hangs_test.go::TestAfter/sub",
        "exits/exits_test.go::TestBefore",
        "exits/exits_test.go::TestAfter",
        "tags/kept_test.go::TestKept",
        "leaks/leaks_test.go::TestFine",
    }
    assert set(report.failed) == {
        "cart_test.go::TestFails",
        "cart_test.go::TestFatal",
        "cart_test.go::TestTable",
        "cart_test.go::TestTable/two_words",
        "cart_test.go::FuzzTotal",
        "cart_test.go::FuzzTotal/seed#1",
        "external_test.go::Example_wrong",
        "panics/panics_test.go::TestPanics",
        "panics/panics_test.go::TestPanics/inside",
        "panics/panics_test.go::TestParallelC",
        "hangs/hangs_test.go::TestLoops",
        "hangs/hangs_test.go::TestWaits",
        "exits/exits_test.go::TestExits",
        "exits/exits_test.go::TestReally",
    }
    assert set(report.skipped) == {"cart_test.go::TestSkipped"}
    assert set(report.errored) == {
        "unbuilt",
        "depends",
        "syntax",
        "missing",
        "vet",
        "main",
        "main/main_test.go::TestNever",
        "leaks",
    }
    assert not report.signs.forged
    assert not report.complete  # the tests of `main` did not run
    for ident, text in (
        ("cart_test.go::TestFails", "cart_test.go:12: got 2, want 3"),
        ("cart_test.go::TestTable/two_words", "bad"),
        ("external_test.go::Example_wrong", "got:\n3\n\nwant:\n4"),
        ("panics/panics_test.go::TestPanics/inside", "panic: assignment to entry in nil map"),
        ("panics/panics_test.go::TestParallelC", "panic: late"),
        ("hangs/hangs_test.go::TestLoops", "timed out after 5 s"),
        ("exits/exits_test.go::TestExits", "panic: unexpected call to os.Exit(0) during test"),
        ("exits/exits_test.go::TestReally", "the test process ended during this test with status 0"),
        ("unbuilt", "unbuilt/unbuilt.go:3:29: cannot use 1"),
        ("depends", "unbuilt/unbuilt.go:3:29: cannot use 1"),
        ("syntax", "syntax/syntax_test.go:3:30: "),
        ("missing", "example.net/nowhere"),
        ("vet", "Printf format %d has arg"),
        ("leaks", "it ended with status 3 although no test failed"),
    ):
        assert text in report.errors[ident], ident


@real("go")
async def test_parts_of_a_module_in_a_folder(sandbox_of: MakeSandbox) -> None:
    files = {f"tools/{path}": text for path, text in FILES.items()}
    wanted = ("tools/cart_test.go::TestPasses", "tools/tags", "tools/panics/panics_test.go::TestAfter")
    report = await run(sandbox_of, files, wanted, "tools")
    assert report.complete
    assert report.passed == (
        "tools/cart_test.go::TestPasses",
        "tools/external_test.go::TestPasses",
        "tools/panics/panics_test.go::TestAfter",
        "tools/tags/kept_test.go::TestKept",
    )
    assert not report.red


@real("go")
async def test_modules_of_a_workspace_and_vendored_modules(sandbox_of: MakeSandbox) -> None:
    test = 'package {0}\n\nimport (\n"testing"\n"{1}"\n)\n\nfunc TestOne(t *testing.T) {{ {2}.Total() }}\n'
    files = {
        "go.work": "go 1.19\n\nuse (\n./shop\n./tools\n)\n",
        "shop/go.mod": MODULE,
        "shop/cart.go": CART,
        "tools/go.mod": "module example.com/tools\n\ngo 1.19\n\nrequire example.com/shop v1.0.0\n",
        "tools/a_test.go": test.format("tools", "example.com/shop", "shop"),
    }
    report = await run(sandbox_of, files, root="tools")
    assert (report.passed, report.complete) == (("tools/a_test.go::TestOne",), True)
    files["go.work"] = "go 1.19\n\nuse ./shop\n"  # the module `tools` is not in the workspace
    files["tools/go.mod"] += "replace example.com/shop => ../shop\n"
    report = await run(sandbox_of, files, root="tools")
    assert (report.passed, report.complete) == (("tools/a_test.go::TestOne",), True)
    files = {
        "go.mod": "module example.com/own\n\ngo 1.19\n\nrequire example.net/far v1.0.0\n",
        "a_test.go": test.format("own", "example.net/far", "far"),
        "vendor/modules.txt": "# example.net/far v1.0.0\n## explicit\nexample.net/far\n",
        "vendor/example.net/far/far.go": CART.replace("package shop", "package far"),
        "vendor/example.net/far/far_test.go": "package far\n\nfunc broken(\n",
    }
    report = await run(sandbox_of, files)
    assert (report.passed, report.red, report.complete) == (("a_test.go::TestOne",), set(), True)


@real("go")
async def test_a_module_that_cannot_be_read(sandbox_of: MakeSandbox) -> None:
    report = await run(sandbox_of, {**FILES, "go.mod": "modul example.com/shop\n"})
    assert not report.complete
    assert not report.passed
    assert "unknown directive: modul" in report.output
