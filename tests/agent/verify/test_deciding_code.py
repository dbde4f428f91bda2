"""Test which lines of other languages decide how tests compare, and which files only tests use."""

from __future__ import annotations

import pytest

from m3agent.agent.verify.review import COMPARES, MACRO, RUNNER, findings_of
from m3agent.tools.runners.base import Tree
from m3agent.tools.runners.go import Go
from m3agent.tools.runners.javascript.packages import set_up_files
from m3agent.tools.runners.rust import Cargo
from m3agent.tools.runners.suites import TestFiles, find_suites

EQUALS = (
    "impl PartialEq for Sum {\n    fn eq(&self, other: &Sum) -> bool {\n        self.0 == other.0\n    }\n}\n"
)
LATER = "\nfn other() -> bool {\n    false\n}\n"


def found(before: str, after: str, path: str = "src/lib.rs") -> list[tuple[int, str]]:
    changes = {path: (before.encode(), after.encode())}
    return [(line.line, line.what) for line in findings_of(changes)]


@pytest.mark.parametrize(
    ("path", "line", "what"),
    [
        ("src/lib.rs", "impl PartialEq<Other> for Sum {", COMPARES),
        ("src/lib.rs", "    macro_rules! assert_eq {", MACRO),
        ("src/lib.rs", "pub(crate) use fake as assert_eq;", MACRO),
        ("sum.go", "func (a Sum) Equal(b Sum) bool { return true }", COMPARES),
        ("sum.go", "func (e Failure) Is(target error) bool { return true }", COMPARES),
        ("src/lib.rs", "impl Termination for Sum {", COMPARES),
        ("sum.js", "expect.addEqualityTesters([() => true]);", RUNNER),
        ("sum.hpp", "bool operator==(const Sum&) const { return true; }", COMPARES),
        ("Sum.java", "  public boolean equals(Object o) { return true; }", COMPARES),
        ("Sum.kt", "override fun equals(other: Any?) = true", COMPARES),
        ("Sum.cs", "public static bool operator ==(Sum a, Sum b) => true;", COMPARES),
        ("sum.rb", "def ==(other) = true", COMPARES),
        ("sum.rb", "define_method(:==) { |_| true }", COMPARES),
        ("src/lib.rs", "impl PartialEq\n    for Sum {", COMPARES),
        ("src/lib.rs", "macro_rules! make { ($n:ident) => { macro_rules! $n { } } }", MACRO),
        ("Sum.swift", "static func == (a: Sum, b: Sum) -> Bool { true }", COMPARES),
        ("sum.ts", "  asymmetricMatch() { return true; }", COMPARES),
        ("sum.js", "static [Symbol.hasInstance]() { return true; }", COMPARES),
        ("sum.js", "expect.extend({ toBe: () => ({ pass: true }) });", RUNNER),
        ("sum.mjs", "globalThis['expect'] = fake;", RUNNER),
        ("sum.js", "assert.strictEqual = () => {};", RUNNER),
        ("sum.rs", "macro_rules! vector {", None),
        ("sum.rs", "impl Display for Sum {", None),
        ("sum.go", "func Equal(a, b Sum) bool { return true }", None),
        ("sum.js", "if (assert.strictEqual === fake) { globalThis.expect == x; }", None),
        ("sum.py", "assert.strictEqual = 1", None),
        ("Sum.java", "if (a.equals(b)) {", None),
    ],
)
def test_lines(path: str, line: str, what: str | None) -> None:
    assert found("", f"{line}\n", path) == ([] if what is None else [(1, what)])


@pytest.mark.parametrize(
    ("path", "line", "what"),
    [
        ("sum.js", "expect.extend({ toBe: () => ({ pass: true }) });", RUNNER),
        ("sum.rb", "def ==(other) = true", COMPARES),
        ("src/lib.rs", "impl PartialEq for Sum {", COMPARES),
    ],
)
def test_a_first_line_that_names_python_hides_nothing(path: str, line: str, what: str) -> None:
    assert found("", f"#!/usr/bin/env -S node python\n{line}\n", path) == [(2, what)]


def test_only_definitions_that_are_new_count() -> None:
    assert found(EQUALS, f"// Sums.\n{EQUALS}{LATER}") == [], (
        "what comes before and after it does not belong to it"
    )
    assert found(EQUALS, EQUALS.replace("self.0 == other.0", "true")) == [(1, COMPARES)]
    assert found(EQUALS, "") == []
    split = EQUALS.replace(" for Sum {", "\nfor Sum\nwhere\n    T: Eq,\n{")
    assert found(split, split.replace("self.0 == other.0", "true")) == [(1, COMPARES)]
    moved = {"a.rs": (EQUALS.encode(), None), "b.rs": (None, EQUALS.encode())}
    assert findings_of(moved) == ()
    copied = {"a.rs": (None, EQUALS.encode()), "b.rs": (EQUALS.encode(), EQUALS.encode())}
    assert [line.path for line in findings_of(copied)] == ["a.rs"]
    assert found(EQUALS, EQUALS + EQUALS) == [(6, COMPARES)]


def test_they_need_review() -> None:
    (line,) = findings_of({"src/lib.rs": (b"", EQUALS.encode())})
    assert (line.path, line.line, line.text, line.what) == (
        "src/lib.rs",
        1,
        "impl PartialEq for Sum {",
        COMPARES,
    )


def tree(files: dict[str, str]) -> Tree:
    return Tree(files, lambda path: files[path].encode())


GO = {
    "go.mod": "module shop\n",
    "shop.go": "package shop\n// like testing.T\n",
    "shop_test.go": "package shop\n",
    "internal/check/check.go": 'package check\nimport "testing"\nfunc Equal(t testing.TB, a, b int) { t.Helper() }\n',
    "bench.go": "package shop\nfunc Run(n int, b *testing.B) {}\n",
}
RUST = {
    "Cargo.toml": "[package]\n",
    "src/lib.rs": "#[cfg(test)]\nmod util;\n#[cfg(test)] pub(crate) mod more;\nmod shop;\n#[test]\nfn a() {}\n",
    "src/util.rs": "",
    "src/util/inner.rs": "",
    "src/more/mod.rs": "",
    "src/shop.rs": "#[cfg(test)]\n#[path_less]\nmod helpers;\n",
    "src/shop/helpers.rs": "",
    "src/helpers.rs": "",
}
JAVASCRIPT = {
    "package.json": '{"main": "./index.js", "exports": {"require": "./index.js"}, "jest": {"setupFilesAfterEnv": '
    '["<rootDir>/lib/prepare"]}, "scripts": {"test": "mocha --require ./lib/hooks.js -r \\"./no\\""}}',
    "vitest.config.ts": "test: { setupFiles: ['./src/begin.ts'], alias: { '@': './src/index.ts' } }",
    **dict.fromkeys(("index.js", "lib/prepare.js", "lib/hooks.js", "src/begin.ts", "src/index.ts"), ""),
    "sub/package.json": '{"mocha": {"file": "./all.js"}}',
    "sub/all.js": "",
}


def test_files_that_only_tests_use() -> None:
    assert {*Go().helpers(tree(GO))} == {"internal/check/check.go", "bench.go"}
    assert {*Cargo().helpers(tree(RUST))} == {
        *("src/util.rs", "src/util/inner.rs", "src/more/mod.rs"),
        "src/shop/helpers.rs",
    }
    assert set_up_files(tree(JAVASCRIPT)) == {
        *("lib/prepare.js", "lib/hooks.js", "src/begin.ts"),
        "sub/all.js",
    }


def test_they_belong_to_the_tests_and_hold_none() -> None:
    files = TestFiles(find_suites(tree(GO)), tree=tree(GO))
    assert files.is_test("internal/check/check.go") and not files.has_tests("internal/check/check.go")
    assert files.is_test("shop_test.go") and files.has_tests("shop_test.go")
    assert not files.is_test("shop.go")
    assert not TestFiles(find_suites(tree(GO))).is_test("bench.go"), "without a tree, only paths tell"
