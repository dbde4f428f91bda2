"""Test which lines of other languages decide how tests compare, and which files only tests use."""

from __future__ import annotations

import pytest

from m3agent.agent.verify import insides
from m3agent.agent.verify.review import COMPARES, MACRO, RUNNER, findings_of
from m3agent.tools.runners.base import Tree
from m3agent.tools.runners.go import Go
from m3agent.tools.runners.javascript.packages import set_up_files
from m3agent.tools.runners.rust import Cargo
from m3agent.tools.runners.suites import TestFiles, find_suites

STANDS_FOR = "stands for a name of the language or of the test library"
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
        ("src/lib.rs", "use std::cmp::{PartialEq as Same};", COMPARES),
        ("src/lib.rs", "impl<T> $name<T> for Sum {", COMPARES),
        ("src/lib.rs", "impl /* for; */ PartialEq for Sum {", COMPARES),
        ("src/lib.rs", "    if cfg!(test) {", insides.FINDS_TESTS),
        ("sum.go", "func (a Sum) /* a */ Equal(b Sum) bool { return true }", COMPARES),
        ("sum.go", "const true = false", STANDS_FOR),
        ("sum.go", "var (\n\tnil = Sum{}\n)", STANDS_FOR),
        ("sum.go", "func max(a, b int) int {", None),
        ("sum.go", "func add() {\n\tlen := 5\n}", None),
        ("Sum.java", "public boolean // a\n equals(Object o) {", COMPARES),
        ("Assert.java", "class Assert {", STANDS_FOR),
        ("Sum.java", "public boolean eq\\u0075als(Object o) {", insides.HIDDEN),
        ("Sum.java", 'String name = "\\u00e9t\\u00e9";', None),
        ("sum.rb", "def sum.==(other) = true", COMPARES),
        ("sum.rb", "send(:define_method, :==) { true }", COMPARES),
        ("sum.rb", "define_method(%w[= =].join) { true }", insides.HIDDEN),
        ("sum.rb", "define_method(name) { true }", None),
        ("sum.js", "({ ['value' + 'Of']() {} });", insides.HIDDEN),
        ("sum.js", "return new Proxy({}, { get: () => () => true });", COMPARES),
        ("sum.js", "Module._load = load;", insides.IMPORTS),
        ("sum.js", "rows['a' + n] = 5;", None),
        ("sum.ts", "  valueOf(): number {", COMPARES),
        ("sum.js", "Object.defineProperty(sum, 'valueOf', { value })", COMPARES),
        ("sum.d.ts", "  valueOf(): number;", None),
        ("sum.js", "return sum.valueOf() + 1;", None),
        ("sum.js", "  equals(other) { return true; }", COMPARES),
        ("sum.js", "if (a.equals(b)) {", None),
        ("sum.js", "class Sums extends Array {", COMPARES),
        ("sum.js", "class Wrong extends Error {", None),
        ("sum.ts", "type Known<T extends Object> = T & { known: true };", None),
        ("sum.js", "  then(done) { done(5); }", "decides what a promise calls"),
        ("sum.js", "return load().then((value) => value);", None),
        ("sum.js", "return globalThis.expect?.anything();", insides.RUNNER),
        ("sum.js", "globalThis.afterEach(() => {});", insides.RUNNER),
        ("sum.ts", "import { vi } from 'vitest';", insides.RUNNER),
        ("sum.bench.ts", "import { bench } from 'vitest';", None),
        ("sum.js", "const at = new Error().stack;", insides.FRAMES),
        ("sum.js", "console.error(error.stack);", None),
        ("sum.js", "Error.captureStackTrace(this, Wrong);", None),
        (
            "sum.js",
            "const text = readFileSync('../tests/sum.js');",
            "reads source files, the tests among them",
        ),
        ("sum.js", "const text = readFileSync(path, 'utf8');", None),
        ("sum.js", "const run = new Function('a', 'return a');", insides.RUNS_TEXT),
        ("sum.js", "const { Session } = require('node:inspector');", insides.MEMORY),
        ("sum.js", "Array.prototype.includes = () => true;", insides.REPLACES),
        ("sum.js", "const { includes } = Array.prototype;", None),
        ("sum.js", "Object.assign(rows, JSON.parse(text));", None),
        ("sum.js", "const name = 'value' + 'Of';", insides.HIDDEN),
        ("sum.js", "const text = 'It is wrong: ' + 'the sum';", None),
        ("sum.js", "const { _cache } = module.constructor;", insides.IMPORTS),
        ("sum.js", "const hit = process.execArgv.length;", insides.FINDS_TESTS),
        ("sum.js", "fork(file, { execArgv: process.execArgv });", None),
        ("sum.js", "if (require.main === module) {", None),
        ("sum.js", "const [, , file] = process.argv;", None),
        ("sum.go", '\tis := flag.CommandLine.Lookup("test.v")', insides.FINDS_TESTS),
        ("sum.go", "\tEqual func(Sum) bool", COMPARES),
        ("sum.go", "type Sum struct{}", COMPARES),
        ("sum.go", "//go:embed *.go", "reads source files, the tests among them"),
        ("sum.go", "//go:embed data/rows.json", None),
        ("sum.go", "\t_, file, _, _ := runtime.Caller(2)", insides.FRAMES),
        ("sum.go", 'import "unsafe"', insides.MEMORY),
        ("sum.go", '\tname := "te" + "st.v"', insides.HIDDEN),
        ("sum.go", '\treturn "the sum of " + name', None),
        ("sum.go", "package sum\n\nvar words = os.Args", insides.FINDS_TESTS),
        ("main.go", "package main\n\nvar words = os.Args", None),
        ("sum.s", "TEXT ·add(SB), 4, $0", insides.MEMORY),
        ("sum.js", "  isSame(other) { return true; }", COMPARES),
        ("sum.js", "  isEmpty() { return true; }", None),
        ("sum.js", "return words.includes(word);", None),
        ("sum.js", "return Number.isNaN(sum) ? 0 : sum;", None),
        ("sum.js", "return Number.NaN;", COMPARES),
        ("sum.ts", "import { AsyncLocalStorage } from 'node:async_hooks';", None),
        ("sum.js", "const key = 'value'.concat('Of');", insides.HIDDEN),
        ("sum.js", "return String.fromCharCode(code);", None),
        ("sum.go", "func (s Sum) Matches(other Sum) bool {\n\treturn true\n}", COMPARES),
        ("sum.go", "func (s Sum) IsBoolFlag() bool { return true }", None),
        ("sum.go", "\treturn math.NaN()", COMPARES),
        ("sum.go", "type key struct{}", None),
        ("sum.rs", "macro_rules! vector {", None),
        ("sum.rs", "impl Display for Sum {", None),
        ("sum.go", "func Equal(a, b Sum) bool { return true }", None),
        ("sum.js", "if (assert.strictEqual === fake) { globalThis.expect == x; }", insides.RUNNER),
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


def test_tests_may_name_their_library() -> None:
    changes = {"test/sum_test.rb": (None, b"class SumTest < Minitest::Test\nend\n")}
    assert [each.what for each in findings_of(changes, {}.__contains__)] == ["uses the test runner"]
    assert findings_of(changes, changes.__contains__) == ()


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
