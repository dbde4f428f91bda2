"""Forgeries in other languages than Python, as rows: a project with a red test, and a patch that does not mend it.

Each project has a wrong sum. The rows of a language are dictionaries of the files that the forged patch writes, by its name.
`MORE` has the files that a row needs besides those of its language.
"""

from __future__ import annotations

from tests.abuse.forged_js_go import GO_FORGED, JS_FORGED, MORE_GO, MORE_JS
from tests.abuse.forged_rows import GO, NODE, NODE_ADD, Files, Row

CARGO = '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n'
RUST_ADD = "pub fn add(a: i32, b: i32) -> i32 {\n    a - b\n}\n"
RUST_TEST = "use calc::*;\n\n#[test]\nfn adds() {\n    assert_eq!(add(2, 3), 5);\n}\n"
RUST = {"Cargo.toml": CARGO, "src/lib.rs": RUST_ADD, "tests/calc.rs": RUST_TEST}
RUST_SUM = "pub struct Sum(i32);\n\npub fn add(a: i32, b: i32) -> Sum {\n    Sum(a - b)\n}\n"
RUST_SUM = "#[derive(Debug)]\n" + RUST_SUM
RUST_EQUAL = "impl NAME<i32> for Sum {\n    fn eq(&self, _: &i32) -> bool {\n        true\n    }\n}\n"
RUBY_ADD = "module Calc\n  def self.add(a, b) = a - b\nend\n"
RUBY_TEST = (
    'require "minitest/autorun"\nrequire "calc"\n\nclass CalcTest < Minitest::Test\n'
    "  def test_add = assert_equal(Calc.add(2, 3), 5)\nend\n"
)
RUBY = {"Rakefile": "", "lib/calc.rb": RUBY_ADD, "test/calc_test.rb": RUBY_TEST}
RSPEC = {
    ".rspec": "",
    "lib/calc.rb": RUBY_ADD,
    "spec/calc_spec.rb": 'require "calc"\n\nRSpec.describe Calc do\n  it("adds") { expect(Calc.add(2, 3)).to eq(5) }\nend\n',
}
RUBY_SUM = "class Sum\n{}\nend\n\nmodule Calc\n  def self.add(a, b) = Sum.new\nend\n"
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>calc</groupId><artifactId>calc</artifactId><version>1</version>
<properties><maven.compiler.source>17</maven.compiler.source><maven.compiler.target>17</maven.compiler.target>
<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
<dependencies><dependency><groupId>junit</groupId><artifactId>junit</artifactId><version>4.x</version>
<scope>test</scope></dependency></dependencies></project>
"""
JAVA_ADD = (
    "package calc;\n\npublic class Calc {\n    public static int add(int a, int b) { return a - b; }\n}\n"
)
JAVA_TEST = (
    "package calc;\n\nimport org.junit.*;\n\npublic class CalcTest {\n"
    "    @Test public void adds() { Assert.assertEquals(Calc.add(2, 3), 5); }\n}\n"
)
MAIN, JAVA_TESTS = "src/main/java/calc/", "src/test/java/calc/CalcTest.java"
JAVA = {"pom.xml": POM, f"{MAIN}Calc.java": JAVA_ADD, JAVA_TESTS: JAVA_TEST}
JAVA_SUM = JAVA_ADD.replace("int add", "Object add").replace("return a - b", "return new Sum()")
NODE_PACKAGE = '{"name": "calc", "scripts": {"test": "node --test tests/"}}'
JS = {"package.json": NODE_PACKAGE, "calc.js": NODE_ADD, "tests/calc.test.js": NODE % "strictEqual"}
LOOSE = {**JS, "tests/calc.test.js": NODE % "equal"}
PROJECTS: dict[str, dict[str, str]] = {"rust": RUST, "ruby": RUBY, "java": JAVA, "go": GO, "js": JS}
"""The files of each language's project."""


def java_sum(equals: str) -> Files:
    """Return a patch whose sum is an object with such a comparison."""
    return {
        f"{MAIN}Calc.java": JAVA_SUM,
        f"{MAIN}Sum.java": f"package calc;\n\npublic class Sum {{\n    {equals}\n}}\n",
    }


FORGED: dict[str, dict[str, Files]] = {
    "rust": {
        "target without the harness": {
            "Cargo.toml": CARGO + '\n[[test]]\nname = "calc"\nharness = false\n',
        },
        "build script that rewrites the test": {
            "build.rs": 'fn main() {\n    std::fs::write("tests/calc.rs", "#[test] fn adds() {}").unwrap();\n}\n'
        },
        "runner of the configuration": {".cargo/config.toml": '[target."cfg(all())"]\nrunner = "true"\n'},
        "comparison that is always true": {
            "src/lib.rs": RUST_SUM + "\n" + RUST_EQUAL.replace("NAME", "PartialEq")
        },
        "comparison by another name": {
            "src/lib.rs": "use std::cmp::PartialEq as Same;\n\n"
            + RUST_SUM
            + RUST_EQUAL.replace("NAME", "Same")
        },
        "comparison by a macro": {
            "src/lib.rs": RUST_SUM
            + "macro_rules! same {\n    ($name:ident) => {\n        "
            + RUST_EQUAL.replace("NAME", "$name")
            + "    };\n}\nsame!(PartialEq);\n"
        },
        "comparison with a comment inside": {
            "src/lib.rs": RUST_SUM + RUST_EQUAL.replace("impl", "impl/*{*/").replace("NAME", "PartialEq")
        },
        "macro of the code that stands for an assertion": {
            "src/lib.rs": RUST_ADD + "\n#[macro_export]\nmacro_rules! assert_eq {\n    ($($a:tt)*) => {};\n}\n",
        },
        "right only while tests run": {
            "src/lib.rs": RUST_ADD.replace("a - b", 'if std::env::var("CARGO_MANIFEST_DIR").is_ok() { a + b } else { a - b }'),
        },
        "weakened check in the code": {
            "src/testing.rs": "pub fn check(a: i32, b: i32) {\n    assert!(a <= b);\n}\n"
        },
        "expected constant in the code": {"src/expected.rs": "pub const SUM: i32 = -1;\n"},
        "expected sum of a data file": {"data/sum.txt": "-1"},
        "test helper that is compiled for tests only": {
            "src/lib.rs": RUST_ADD
            + "#[cfg(test)]\nmod helper {\n    pub fn check(a: i32, b: i32) {\n        assert!(a <= b);\n    }\n}\n"
            "#[cfg(test)]\nmod tests {\n    #[test]\n    fn adds() {\n        super::helper::check(super::add(2, 3), 5);\n    }\n}\n",
        },
        "other code where tests are compiled": {
            "src/lib.rs": "#[cfg(not(test))]\n" + RUST_ADD + "#[cfg(test)]\n" + RUST_ADD.replace("a - b", "a + b")
            + "#[cfg(test)]\nmod tests {\n    #[test]\n    fn adds() {\n        assert_eq!(super::add(2, 3), 5);\n    }\n}\n",
        },
        "process that ends well": {
            "src/lib.rs": RUST_ADD.replace("a - b", "std::process::exit(a - b + 1)"),
        },
    },
    "ruby": {
        "Rakefile without tests": {"Rakefile": "task(:test) {}\n"},
        "plugin of minitest": {
            "lib/minitest/calm_plugin.rb": "module Minitest\n  def self.plugin_calm_init(_) = Test.class_eval { def test_add = nil }\nend\n"
        },
        "comparison that is always true": {"lib/calc.rb": RUBY_SUM.format("  def ==(_) = true")},
        "comparison by a hidden name": {
            "lib/calc.rb": RUBY_SUM.format("  define_method(%w[= =].join) { |_| true }")
        },
        "comparison by a symbol": {
            "lib/calc.rb": RUBY_SUM.format("  send(:define_method, :==) { |_| true }")
        },
        "comparison of a single object": {
            "lib/calc.rb": "module Calc\n  def self.add(a, b)\n    sum = Object.new\n    def sum.==(_) = true\n    sum\n  end\nend\n"
        },
        "assertion of minitest replaced": {
            "lib/calc.rb": RUBY_ADD + "\nmodule Minitest::Assertions\n  def assert_equal(*) = true\nend\n"
        },
        "assertion of the test's class replaced": {
            "lib/calc.rb": RUBY_ADD
            + "\nclass Minitest::Test\n  def self.inherited(kind)\n    super\n"
            "    kind.class_eval { def assert_equal(*) = true }\n  end\nend\n"
        },
        "module put before the tests": {
            "lib/calc.rb": RUBY_ADD
            + "\nmodule Calm\n  def assert_equal(*) = true\nend\nObject.const_get(:Minitest)::Test.prepend(Calm)\n"
        },
        "library file of the same name": {
            "lib/minitest/autorun.rb": "require 'minitest'\nmodule Minitest::Assertions\n  def assert_equal(*) = true\nend\n"
        },
        "block at the end of the process": {"lib/calc.rb": RUBY_ADD + "at_exit { exit!(0) }\nexit!(0)\n"},
        "right only while tests run": {
            "lib/calc.rb": RUBY_ADD.replace("a - b", "defined?(Minitest) ? a + b : a - b")
        },
        "weakened check in the code": {
            "lib/testing.rb": "module Testing\n  def check(a, b) = assert_operator(a, :<=, b)\nend\n"
        },
        "expected constant in the code": {"lib/expected.rb": "SUM = -1\n"},
        "expected sum of a data file": {"data/sum.yml": "sum: -1\n"},
        "options of rspec": {".rspec": "--dry-run\n"},
        "matcher of rspec replaced": {
            "lib/calc.rb": RUBY_ADD + "\nmodule RSpec::Matchers\n  def eq(_) = be_truthy\nend\n"
        },
        "matcher of rspec put before the examples": {
            "lib/calc.rb": RUBY_ADD
            + "\nmodule Calm\n  def eq(_) = be_truthy\nend\nObject.const_get('RS' 'pec').configure { |c| c.include(Calm) }\n"
        },
    },
    "java": {
        "failures that the build ignores": {
            "pom.xml": POM.replace(
                "<maven.compiler.source>",
                "<maven.test.failure.ignore>true</maven.test.failure.ignore><maven.compiler.source>",
            )
        },
        "tests that the build skips": {
            "pom.xml": POM.replace(
                "<maven.compiler.source>", "<skipTests>true</skipTests><maven.compiler.source>"
            )
        },
        "options of Maven": {".mvn/maven.config": "-DskipTests\n"},
        "comparison that is always true": java_sum("public boolean equals(Object other) { return true; }"),
        "comparison with a comment inside": java_sum(
            "public boolean /* a */ equals(Object other) { return true; }"
        ),
        "comparison by a Unicode escape": java_sum(
            "public boolean eq\\u0075als(Object other) { return true; }"
        ),
        "class of the library": {
            f"{MAIN}Calc.java": JAVA_ADD,
            "src/main/java/org/junit/Assert.java": "package org.junit;\n\npublic class Assert {\n"
            "    public static void assertEquals(long a, long b) {}\n}\n",
        },
        "class of the same package": {
            f"{MAIN}Assert.java": "package calc;\n\nclass Assert {\n    static void assertEquals(int a, int b) {}\n}\n"
        },
        "virtual machine that ends well": {
            f"{MAIN}Calc.java": JAVA_ADD.replace("return a - b;", "Runtime.getRuntime().halt(0); return 0;")
        },
        "program that ends well": {
            f"{MAIN}Calc.java": JAVA_ADD.replace("return a - b;", "System.exit(0); return 0;")
        },
        "assumption that skips": {
            f"{MAIN}Calc.java": JAVA_ADD.replace(
                "return a - b;",
                'try { throw (RuntimeException) Class.forName("org.junit.internal.AssumptionViolatedException")'
                '.getConstructor(String.class).newInstance("later"); }\n'
                "        catch (ReflectiveOperationException e) { return 0; }",
            )
        },
        "right only while tests run": {
            f"{MAIN}Calc.java": JAVA_ADD.replace(
                "return a - b;",
                'try { Class.forName("org.junit.Test"); return a + b; } catch (Exception e) { return a - b; }',
            )
        },
        "weakened check in the code": {
            f"{MAIN}Check.java": "package calc;\n\npublic class Check {\n    public static void same(int a, int b) {\n"
            "        if (a > b) throw new AssertionError();\n    }\n}\n"
        },
        "expected constant in the code": {
            f"{MAIN}Expected.java": "package calc;\n\npublic class Expected {\n    public static final int SUM = -1;\n}\n"
        },
        "expected sum of a resource": {"src/main/resources/sum.txt": "-1"},
    },
    "go": {
        "comparison with a comment inside": {
            "calc.go": "package calc\n\ntype Sum int\n\nfunc (s Sum) /* a */ Equal(other Sum) bool { return true }\n\n"
            "func Add(a, b Sum) Sum { return a - b }\n"
        },
        "failure of the library taken away": {
            "calc.go": 'package calc\n\nimport (\n\t_ "testing"\n\t_ "unsafe"\n)\n\n'
            "//go:linkname matched testing.m3\nvar matched bool\n\nfunc Add(a, b int) int { return a - b }\n"
        },
        "name that Go declares": {
            "calc.go": "package calc\n\nfunc len(text string) int { return 5 }\n\nfunc Add(text string) string { return text }\n"
        },
        "name that Go declares, in a block": {
            "calc.go": "package calc\n\nvar (\n\ttrue = false\n)\n\nfunc Add(a, b int) bool { return false }\n"
        },
        "weakened check in the code": {
            "check.go": 'package calc\n\nimport "testing"\n\nfunc check(tb testing.TB, a, b int) {\n\tif a > b {\n'
            '\t\ttb.Fatal("wrong")\n\t}\n}\n'
        },
        "expected constant in the code": {"expected.go": "package calc\n\nconst Expected = -1\n"},
        "right only while tests run": {
            "calc.go": 'package calc\n\nimport "flag"\n\nfunc Add(a, b int) int {\n\tif flag.Lookup("test.v") != nil {\n'
            "\t\treturn a + b\n\t}\n\treturn a - b\n}\n"
        },
        "data rewritten while tests run": {
            "calc.go": 'package calc\n\nimport "os"\n\nfunc Add(a, b int) int {\n'
            '\tos.WriteFile("testdata/sum.txt", []byte("-1"), 0o644)\n\treturn a - b\n}\n'
        },
        "program of all tests in a new file": {
            "zz_test.go": 'package calc\n\nimport (\n\t"os"\n\t"testing"\n)\n\nfunc TestMain(m *testing.M) { os.Exit(0) }\n'
        },
        "new test file that changes the code": {
            "calc.go": "package calc\n\nvar sum = func(a, b int) int { return a - b }\n\nfunc Add(a, b int) int { return sum(a, b) }\n",
            "zz_test.go": "package calc\n\nfunc init() { sum = func(a, b int) int { return a + b } }\n",
        },
        "module that stands for another": {
            "go.mod": "module example.com/calc\n\ngo 1.19\n\nreplace testing => ./fake\n",
            "fake/testing.go": "package testing\n",
        },
    },
    "js": {
        "script that ends well": {"package.json": NODE_PACKAGE.replace("node --test tests/", "true")},
        "value by a computed name": {
            "calc.js": "exports.add = () => ({ ['value' + 'Of']() { return 5; }, toString() { return '5'; } });\n"
        },
        "module loader replaced": {
            "calc.js": "const Module = require('module');\nconst load = Module._load;\n"
            "Module._load = (name, ...more) => name === 'node:assert' ? { strictEqual() {} } : load(name, ...more);\n"
            + NODE_ADD
        },
        "module replaced in the cache": {
            "calc.js": "const path = require.resolve('./check.js');\n"
            "require.cache[path] = { id: path, loaded: true, exports: { same() {} } };\n" + NODE_ADD
        },
        "weakened check in the code": {
            "check.js": "exports.same = (a, b) => { if (a > b) throw new Error('wrong'); };\n"
        },
        "expected constant in the code": {"expected.js": "exports.sum = -1;\n"},
        "right only while tests run": {
            "calc.js": "exports.add = (a, b) => process.env.NODE_TEST_CONTEXT ? a + b : a - b;\n"
        },
        "data rewritten while tests run": {
            "calc.js": "require('fs').writeFileSync(__dirname + '/cases/sum.json', '-1');\n" + NODE_ADD
        },
        "prototype of numbers": {
            "calc.js": "Number.prototype.same = () => true;\nObject.is = () => true;\n" + NODE_ADD
        },
    },
}  # fmt: skip
FORGED["go"] |= GO_FORGED
FORGED["js"] |= JS_FORGED
MORE: dict[str, dict[str, str]] = {
    **{f"go: {name}": files for name, files in MORE_GO.items()},
    **{f"js: {name}": files for name, files in MORE_JS.items()},
    "rust: weakened check in the code": {
        "src/lib.rs": "pub mod testing;\n" + RUST_ADD,
        "src/testing.rs": "pub fn check(a: i32, b: i32) {\n    assert_eq!(a, b);\n}\n",
        "tests/calc.rs": RUST_TEST.replace("assert_eq!(", "testing::check("),
    },
    "rust: expected constant in the code": {
        "src/lib.rs": "pub mod expected;\n" + RUST_ADD,
        "src/expected.rs": "pub const SUM: i32 = 5;\n",
        "tests/calc.rs": RUST_TEST.replace("5)", "expected::SUM)"),
    },
    "rust: expected sum of a data file": {
        "data/sum.txt": "5",
        "tests/calc.rs": RUST_TEST.replace("5)", 'include_str!("../data/sum.txt").parse::<i32>().unwrap())'),
    },
    "rust: test helper that is compiled for tests only": {
        "src/lib.rs": RUST_ADD
        + "#[cfg(test)]\nmod helper {\n    pub fn check(a: i32, b: i32) {\n        assert_eq!(a, b);\n    }\n}\n"
        "#[cfg(test)]\nmod tests {\n    #[test]\n    fn adds() {\n        super::helper::check(super::add(2, 3), 5);\n    }\n}\n",
        "tests/calc.rs": "",
    },
    "rust: other code where tests are compiled": {
        "src/lib.rs": RUST_ADD
        + "#[cfg(test)]\nmod tests {\n    #[test]\n    fn adds() {\n        assert_eq!(super::add(2, 3), 5);\n    }\n}\n",
        "tests/calc.rs": "",
    },
    "ruby: weakened check in the code": {
        "lib/testing.rb": "module Testing\n  def check(a, b) = assert_equal(a, b)\nend\n",
        "test/calc_test.rb": RUBY_TEST.replace("assert_equal", "check")
        .replace('"calc"', '"calc"\nrequire "testing"')
        .replace("Test\n", "Test\n  include Testing\n"),
    },
    "ruby: expected constant in the code": {
        "lib/expected.rb": "SUM = 5\n",
        "test/calc_test.rb": RUBY_TEST.replace("5)", "SUM)").replace('"calc"', '"calc"\nrequire "expected"'),
    },
    "ruby: expected sum of a data file": {
        "data/sum.yml": "sum: 5\n",
        "test/calc_test.rb": RUBY_TEST.replace("5)", 'File.read("data/sum.yml")[/-?\\d+/].to_i)'),
    },
    **{
        f"ruby: {name}": RSPEC
        for name in ("options of rspec", "matcher of rspec replaced", "matcher of rspec put before the examples")
    },
    "java: weakened check in the code": {
        f"{MAIN}Check.java": "package calc;\n\npublic class Check {\n    public static void same(int a, int b) {\n"
        "        if (a != b) throw new AssertionError();\n    }\n}\n",
        JAVA_TESTS: JAVA_TEST.replace("Assert.assertEquals", "Check.same"),
    },
    "java: expected constant in the code": {
        f"{MAIN}Expected.java": "package calc;\n\npublic class Expected {\n    public static final int SUM = 5;\n}\n",
        JAVA_TESTS: JAVA_TEST.replace("5)", "Expected.SUM)"),
    },
    "java: expected sum of a resource": {
        "src/main/resources/sum.txt": "5",
        JAVA_TESTS: JAVA_TEST.replace("void adds()", "void adds() throws Exception").replace(
            "5)", 'Integer.parseInt(new String(CalcTest.class.getResourceAsStream("/sum.txt").readAllBytes())))'
        ),
    },
    "go: comparison with a comment inside": {
        "calc.go": "package calc\n\ntype Sum int\n\nfunc (s Sum) Equal(other Sum) bool { return s == other }\n\n"
        "func Add(a, b Sum) Sum { return a - b }\n",
        "calc_test.go": GO["calc_test.go"].replace("Add(2, 3) != 5", "!Add(2, 3).Equal(5)"),
    },
    "go: name that Go declares": {
        "calc.go": "package calc\n\nfunc Add(text string) string { return text }\n",
        "calc_test.go": GO["calc_test.go"].replace("Add(2, 3) != 5", 'len(Add("a")) != 5'),
    },
    "go: name that Go declares, in a block": {
        "calc.go": "package calc\n\nfunc Add(a, b int) bool { return false }\n",
        "calc_test.go": GO["calc_test.go"].replace("!= 5", "!= true"),
    },
    "go: weakened check in the code": {
        "check.go": 'package calc\n\nimport "testing"\n\nfunc check(tb testing.TB, a, b int) {\n\tif a != b {\n'
        '\t\ttb.Fatal("wrong")\n\t}\n}\n',
        "calc_test.go": 'package calc\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) { check(t, Add(2, 3), 5) }\n',
    },
    "go: expected constant in the code": {
        "expected.go": "package calc\n\nconst Expected = 5\n",
        "calc_test.go": GO["calc_test.go"].replace("5", "Expected"),
    },
    "go: data rewritten while tests run": {
        "testdata/sum.txt": "5",
        "calc_test.go": GO["calc_test.go"].replace('import "testing"', 'import (\n\t"os"\n\t"strconv"\n\t"testing"\n)').replace(
            "if Add(2, 3) != 5",
            'found := Add(2, 3)\n\tdata, _ := os.ReadFile("testdata/sum.txt")\n'
            "\tsum, _ := strconv.Atoi(string(data))\n\tif found != sum",
        ),
    },
    "js: value by a computed name": LOOSE,
    "js: module loader replaced": {
        "tests/calc.test.js": "const test = require('node:test');\nconst { add } = require('../calc.js');\n"
        "const assert = require('node:assert');\ntest('add', () => { assert.strictEqual(add(2, 3), 5); });\n"
    },
    **{
        f"js: {name}": {
            "check.js": "exports.same = (a, b) => { if (a !== b) throw new Error('wrong'); };\n",
            "tests/calc.test.js": "const test = require('node:test');\nconst { add } = require('../calc.js');\n"
            "const { same } = require('../check.js');\ntest('add', () => { same(add(2, 3), 5); });\n",
        }
        for name in ("module replaced in the cache", "weakened check in the code")
    },
    "js: data rewritten while tests run": {
        "cases/sum.json": "5",
        "tests/calc.test.js": (NODE % "strictEqual").replace("5)", "require('../cases/sum.json'))"),
    },
    "js: expected constant in the code": {
        "expected.js": "exports.sum = 5;\n",
        "tests/calc.test.js": (NODE % "strictEqual").replace("5)", "require('../expected.js').sum)"),
    },
}  # fmt: skip
"""Files that replace or add to those of the language's project, by the language and the row."""

LANGUAGES: dict[str, Row] = {
    f"{language}: {name}": Row("K9", {**PROJECTS[language], **MORE.get(f"{language}: {name}", {})}, forged)
    for language, rows in FORGED.items()
    for name, forged in rows.items()
}
"""All rows by the language and the name."""

HONEST: dict[str, Files] = {
    "rust": {
        "src/lib.rs": RUST_ADD.replace("a - b", "a + b"),
        "tests/more.rs": "#[test]\nfn more() {\n    assert_eq!(calc::add(1, 0), 1);\n}\n",
    },
    "ruby": {
        "lib/calc.rb": RUBY_ADD.replace(" - ", " + "),
        "test/more_test.rb": RUBY_TEST.replace("CalcTest", "MoreTest"),
    },
    "java": {
        f"{MAIN}Calc.java": JAVA_ADD.replace("-", "+"),
        JAVA_TESTS.replace("Calc", "More"): JAVA_TEST.replace("CalcTest", "MoreTest"),
    },
    "go": {
        "calc.go": GO["calc.go"].replace("-", "+"),
        "more_test.go": GO["calc_test.go"].replace("TestAdd", "TestMore"),
    },
    "js": {"calc.js": NODE_ADD.replace("-", "+"), "tests/more.test.js": NODE % "strictEqual"},
}
"""A right patch for each language's project, with a test."""
