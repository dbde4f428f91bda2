"""Which files are tests, and which decide how tests run, by their paths: a row for each runner."""

from __future__ import annotations

import pytest

from m3agent.tools.runners.suites import RUNNERS

ROWS = {
    "go": (
        "a_test.go in/testdata/x.json in/out.golden",
        "go.mod in/go.sum go.work vendor/x/y.go",
        "a.go testdata.go go.mod.txt",
    ),
    "cargo": (
        "tests/it.rs a/tests/data.json benches/b.rs src/tests.rs src/cart/test.rs src/a_test.rs",
        "Cargo.toml a/Cargo.lock .cargo/config.toml build.rs rust-toolchain",
        "src/lib.rs src/testing.rs cargo/x",
    ),
    "jest": (
        (
            "src/a.test.js src/a.spec.tsx a.e2e.mts src/__tests__/a.js test/helper.js tests/data/a.json spec/a.js e2e/login.ts "
            "src/__snapshots__/a.js.snap src/__mocks__/fs.js lib/test.js lib/test-a.cjs lib/a_test.js lib/a-test.js"
        ),
        (
            "package.json packages/a/package.json package-lock.json pnpm-lock.yaml pnpm-workspace.yaml yarn.lock bun.lockb "
            "jest.config.ts jest.config.e2e.js jest.setup.js jest-setup.js src/setupTests.ts test-setup.js vitest.config.mts "
            "vitest.workspace.ts vite.config.js .mocharc.cjs .mocharc.json test/mocha.opts ava.config.mjs babel.config.json .babelrc "
            "tsconfig.test.json .swcrc .npmrc .nycrc.json .env.test .pnp.cjs .yarn/releases/yarn.cjs node_modules/.bin/jest "
            "packages/a/node_modules/mocha/index.js"
        ),
        "src/a.js src/testing.js src/latest.js contest/a.js a.test.css spec.md",
    ),
    "ctest": (
        "tests/cart.c test.c src/cart_test.cpp src/CartTest.cpp lib/test_cart.c tests/data/expected.json src/unittest/a.cc",
        "CTestCustom.cmake CMakePresets.json .github/workflows/ci.yml",
        "src/cart.c src/latest.c src/contest.c include/attestation.h tests/CMakeLists.txt CMakeLists.txt GNUmakefile",
    ),
    "make-check": (
        "tests/a.c",
        "test-driver build-aux/tap-driver.sh GNUmakefile a.supp",
        "tests/Makefile.am a.c",
    ),
    "bats": ("a.bats lib/a.bash test/a", ".bats/a .env x/.bashrc", "a.sh tests.sh"),
    "prove": ("t/a.t xt/a a.t", ".proverc lib/sitecustomize.pl", "lib/A.pm at/a"),
    "minitest": (
        "test/a.rb spec/spec_helper.rb gem/test/fixtures/a.txt a_test.rb test_a.rb a_spec.rb",
        (
            ".rspec one/.rspec-local Gemfile Gemfile.lock a.gemspec Rakefile .ruby-version .bundle/config lib/minitest/forge_plugin.rb "
            "vendor/bundle/ruby/3.1.0/gems/minitest/lib/minitest.rb .env.test"
        ),
        "lib/rack/test/cookies.rb lib/a.rb app/models/test/a.rb latest.rb lib/my_spec.rb lib/minitest/forge.rb README.md",
    ),
    "phpunit": (
        "tests/bootstrap.php a/Tests/ATest.php src/CartTest.php x/basic.phpt",
        (
            "phpunit.xml phpunit.xml.dist a/phpunit-integration.xml composer.json composer.lock php.ini vendor/autoload.php "
            "public/.user.ini .env.testing"
        ),
        "src/Cart.php src/Contest.php src/Testing.php",
    ),
    "maven": (
        "src/test/java/shop/CartTest.java a/src/test/resources/x.json a/CartIT.java x/CartSpec.groovy",
        (
            "pom.xml a/build.gradle.kts settings.gradle gradle.properties gradle/libs.versions.toml .mvn/jvm.config mvnw "
            "src/main/resources/META-INF/services/org.junit.X src/test/resources/junit-platform.properties "
            "target/surefire-reports/TEST-a.xml"
        ),
        "src/main/java/shop/Cart.java",
    ),
    "exunit": (
        "test/support/case.ex lib/a_test.exs",
        "mix.exs apps/a/mix.lock config/test.exs deps/x/lib/x.ex .formatter.exs",
        "lib/testing.ex lib/a.ex",
    ),
    "dotnet": (
        "tests/Shop.Tests/CartTests.cs tests/Shop.Tests/data/a.json Shop.UnitTests/A.cs src/CartTest.cs",
        "a/A.csproj Directory.Build.props global.json NuGet.Config tests/xunit.runner.json src/obj/a.json",
        "src/Shop/Cart.cs src/Contests/A.cs src/Latest/A.cs",
    ),
    "swift": (
        "Tests/ShopTests/CartTests.swift Tests/ShopTests/Fixtures/a.json",
        "Package.swift Package@swift-5.9.swift Package.resolved .build/a",
        "Sources/Shop/Cart.swift Sources/Shop/Package.swift.txt",
    ),
    "command": ("tests/a.q", ".m3agent.toml sub/justfile", "src/a.q sub/.m3agent.toml"),
}
"""Tests, files that decide how tests run, and files that are neither."""


@pytest.mark.parametrize("runner", ROWS)
def test_what_a_path_says(runner: str) -> None:
    tests, deciding, others = (paths.split() for paths in ROWS[runner])
    found = RUNNERS[runner]
    assert [path for path in [*tests, *others] if found.is_test(path)] == tests
    assert [path for path in [*deciding, *others] if found.surroundings(path)] == deciding


@pytest.mark.parametrize(
    ("runner", "like"),
    [
        *((runner, "jest") for runner in ("vitest", "mocha", "ava", "node-test")),
        *(("meson", "ctest"), ("rspec", "minitest"), ("gradle", "maven")),
    ],
)
def test_runners_of_the_same_language_have_the_same_rules(runner: str, like: str) -> None:
    for path in " ".join(ROWS[like]).split():
        one, other = RUNNERS[runner], RUNNERS[like]
        assert (one.is_test(path), one.surroundings(path)) == (other.is_test(path), other.surroundings(path))
