"""Which suites a tree has, and which of their files contain wanted tests, for the runners that go by names of files."""

from __future__ import annotations

import json

import pytest

from m3agent.tools.runners.base import Suite
from m3agent.tools.runners.suites import RUNNERS
from tests.ecosystems.records import runner_of, tree_of

MINITEST, RSPEC = "require 'minitest/autorun'\n", "RSpec.describe('x') {}\n"
PHPUNIT = json.dumps({"require-dev": {"phpunit/phpunit": "^9"}})
JAVA = "src/test/java/shop/CartTest.java"
SWIFT = 'targets: [.target(name: "Shop"), .testTarget(name: "ShopTests", dependencies: ["Shop"])]'
PERL = "use strict;\nuse Test::More tests => 2;\n"
CTEST = "enable_testing()\nadd_test(NAME a COMMAND a)\n"
MESON = "project('a', 'c')\n"


def empty(*paths: str) -> dict[str, str]:
    return dict.fromkeys(paths, "")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"test/test_a.rb": MINITEST}, ["minitest:."]),
        ({"test/a_test.rb": "require 'test_helper'\n", "test/test_helper.rb": MINITEST}, ["minitest:."]),
        ({"test/a_test.rb": "class A < ActiveSupport::TestCase\nend\n"}, ["minitest:."]),
        ({"test/a_test.rb": "require 'test/unit'\n"}, []),
        ({"spec/a_spec.rb": RSPEC}, ["rspec:."]),
        ({"spec/a_spec.rb": "describe('x') {}\n", ".rspec": ""}, ["rspec:."]),
        ({"spec/a_spec.rb": MINITEST}, ["minitest:."]),
        ({"spec/a_spec.rb": RSPEC, "test/a_test.rb": MINITEST}, ["minitest:.", "rspec:."]),
        ({"spec/a_spec.rb": RSPEC, "Gemfile": "gem 'minitest'\n"}, ["rspec:."]),
        (
            {
                "one/Gemfile": "",
                "one/test/a_test.rb": MINITEST,
                "two/x.gemspec": "",
                "two/spec/a_spec.rb": RSPEC,
            },
            ["minitest:one", "rspec:two"],
        ),
        ({"test/fixtures/app/test/a_test.rb": MINITEST, "vendor/gem/test/a_test.rb": MINITEST}, []),
        ({"lib/a_test.rb": MINITEST, "a_spec.rb": RSPEC}, []),
        (empty("mix.exs", "test/a_test.exs"), ["exunit:."]),
        (empty("mix.exs", "test/test_helper.exs"), []),
        (empty("mix.exs", "apps/a/mix.exs", "apps/a/test/a_test.exs", "apps/b/mix.exs"), ["exunit:apps/a"]),
        (empty("deps/x/mix.exs", "test/fixtures/x/mix.exs", "test/fixtures/x/test/a_test.exs"), []),
        (empty("pom.xml", JAVA), ["maven:."]),
        (empty("pom.xml"), []),
        (empty("pom.xml", "a/pom.xml", f"a/{JAVA}"), ["maven:."]),
        (empty("a/pom.xml", f"a/{JAVA}", "b/build.gradle", f"b/{JAVA}"), ["maven:a", "gradle:b"]),
        (empty("settings.gradle.kts", "app/build.gradle.kts", f"app/{JAVA}"), ["gradle:."]),
        (empty("pom.xml", "build.gradle", JAVA), ["maven:."]),
        (empty("pom.xml", "build.gradle", "gradlew", JAVA), ["gradle:."]),
        (empty("pom.xml", "src/test/java/shop/Helper.java"), []),
        (empty("src/test/resources/x/pom.xml", f"src/test/resources/x/{JAVA}"), []),
        (empty("build.gradle", "src/test/kotlin/CartTest.kt"), ["gradle:."]),
        ({"Package.swift": SWIFT}, ["swift:."]),
        ({"kit/Package.swift": SWIFT}, ["swift:kit"]),
        ({"Package.swift": 'targets: [.target(name: "Shop")]'}, []),
        ({".build/checkouts/a/Package.swift": SWIFT}, []),
        ({"one/t/a.t": PERL, "two/t/b.t": "#!/usr/bin/perl -w\n"}, ["prove:one", "prove:two"]),
        ({"t/a.t": PERL, "lib/A.pm": "", "dist/B/t/b.t": PERL, "t/deep/t/c.t": PERL}, ["prove:."]),
        ({"t/a.t": "#!/bin/sh\necho 1..0\n", "a.t": PERL}, []),
        ({"test/bats/c.bats": "@test", "vendor/d.bats": "@test", "a.sh": ""}, []),
        ({"CMakeLists.txt": "project(a)", "tests/CMakeLists.txt": CTEST}, ["ctest:."]),
        (
            {"a/CMakeLists.txt": CTEST, "b/CMakeLists.txt": "project(b)", "c/d/CMakeLists.txt": CTEST},
            ["ctest:a", "ctest:c/d"],
        ),
        ({"CMakeLists.txt": "project(a)\n# enable_testing()\n#[[\nadd_test(a b)\n]]\n"}, []),
        ({"third_party/x/CMakeLists.txt": CTEST, "build/CMakeLists.txt": CTEST}, []),
        ({"CMakeLists.txt": "include(CTest)\n"}, ["ctest:."]),
        ({"src/a.c": "add_test"}, []),
        ({"meson.build": MESON, "tests/meson.build": "  test('a', a)\n"}, ["meson:."]),
        ({"meson.build": MESON, "subprojects/x/meson.build": MESON + "test('a', a)\n"}, ["meson:."]),
        ({"meson.build": MESON}, []),
        ({"meson.build": MESON + "test('a', a)\n", "CMakeLists.txt": CTEST}, ["ctest:."]),
        ({"a/configure.ac": "", "a/Makefile.am": "  TESTS += x\n", "a/b/configure.ac": ""}, ["make-check:a"]),
        ({"configure.ac": "", "Makefile.am": "bin_PROGRAMS = a\n"}, []),
        ({"configure.ac": "", "Makefile.am": "TESTS = a\n", "CMakeLists.txt": CTEST}, ["ctest:."]),
    ],
)
def test_suites(files: dict[str, str], expected: list[str]) -> None:
    found = [suite.name for runner in RUNNERS.values() for suite in runner.detect(tree_of(files))]
    assert found == expected


def test_evidence() -> None:
    bats: dict[str, str] = {"test/b.bats": "@test", "test/a.bats": "@test"}
    for runner, files, evidence in (
        ("bats", bats, "test/a.bats is a test of bats"),
        ("prove", {"t/a.t": "", "t/b.t": PERL}, "t/b.t is a Perl test"),
        (
            "minitest",
            {"test/a_test.rb": MINITEST, "test/b_test.rb": ""},
            "2 test files such as test/a_test.rb",
        ),
    ):
        assert [suite.evidence for suite in RUNNERS[runner].detect(tree_of(files))] == [evidence]


FILES = {
    "minitest": ("p/{}_test.rb", "p/test/shared.rb", {"p/Gemfile": "gem 'minitest'"}),
    "phpunit": ("p/{}Test.php", "p/test/Shared.php", {"p/composer.json": PHPUNIT}),
    "exunit": ("p/{}_test.exs", "p/lib/a.ex", {"p/mix.exs": ""}),
    "maven": ("p/src/test/java/{}Test.java", "p/pom.xml", {"p/pom.xml": ""}),
    "bats": ("p/{}.bats", "p/test/shared.bash", {}),
    "prove": ("p/t/{}.t", "p/t/shared.pm", {}),
}
"""For suites in `p`: the form of a test file's path, the path of a file that is not a test, and further files."""


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("wanted", "targets"),
    [
        (["a::ATest > x"], ["a"]),
        (["a", "deep"], ["a", "deep/b"]),
        (["a", "missing"], None),
        (["shared"], None),
        (["."], None),
        ([], None),
    ],
)
def test_selection(name: str, wanted: list[str], targets: list[str] | None) -> None:
    form, shared, others = FILES[name]
    folder = "test/" if name in ("minitest", "phpunit", "exunit", "bats") else ""
    paths = {key: form.format(f"{folder}{key}") for key in ("a", "deep/b", "c", "missing")}
    paths |= {"shared": shared, ".": ".", "deep": form.format(f"{folder}deep/b").rpartition("/")[0]}
    tree = tree_of({paths[key]: PERL for key in ("a", "deep/b", "c")} | {shared: ""} | others)
    idents = [paths[one.partition("::")[0]] + "".join(one.partition("::")[1:]) for one in wanted]
    found = runner_of(name).select(Suite(name, "" if name == "bats" else "p"), tree, idents)
    assert found == tuple(paths[key] for key in targets or ())
