"""Which files belong to the tests, and which decide how tests run, by their paths: one row for each test runner.

Python's rules depend on more than a path and are in `m3agent.tools.runners.python`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """What the path of a file says."""

    tests: str
    """Pattern of the files that belong to the tests: tests, their helpers and their data."""
    surroundings: str
    """Pattern of the files that decide which tests run, how they are built, or which libraries they use."""
    never_tests: str = r"(?!)"
    """Pattern of files that belong to no test, whatever `tests` says."""

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests."""
        return bool(re.search(self.tests, path) and not re.search(self.never_tests, path))

    def is_surrounding(self, path: str) -> bool:
        """Return whether a file decides how tests run."""
        return bool(re.search(self.surroundings, path))


CI = r"^(\.github/workflows/|\.circleci/|\.travis\.yml$|\.gitlab-ci\.yml$|azure-pipelines)"
"""Configuration of continuous integration; the options of C and C++ builds come from there."""
_C_TESTS = (
    r"(?i:(^|/)(tests?|testing|unittests?|unit_tests|gtest|googletest|t|spec)/)"
    r"|(?i:(^|/)tests?[._-][^/]*$|[._-]tests?[._-][^/]*$|unit_?tests?[^/]*$|(^|/)check_[^/]*\.c$)"
    r"|[a-z0-9]Tests?\.[A-Za-z+]+$|(^|/)Tests?[A-Z][^/]*$"
)
_C_SURROUNDINGS = (
    r"(^|/)(CMake(User)?Presets\.json|CTestCustom\.(cmake|ctest)(\.in)?|CTestConfig\.cmake"
    rf"|\.gdbinit|\.lsanignore|[^/]*\.supp)$|{CI}"
)
"""Build files (`CMakeLists.txt`, `meson.build`, `Makefile.am`) are not among them: a fix may add a source file. The
registrations of the two trees are compared instead (`m3agent.tools.runners.registrations`)."""
_C_BUILD = r"(^|/)CMakeLists\.txt$|(\.cmake|meson\.build|\.am|\.ac)$"
"""A fix may have to register its sources there."""
C = Rules(_C_TESTS, _C_SURROUNDINGS, _C_BUILD)

JS_CODE = r"\.[cm]?[jt]sx?$"
JS_NAMES = (
    rf"[.-](test|spec|e2e){JS_CODE}|(^|/)(test|spec){JS_CODE}|_test{JS_CODE}|(^|/)test-[^/]*{JS_CODE}|\.snap$"
)
"""Names of files with tests, and of snapshots."""
_JS_SURROUNDINGS = (
    r"(^|/)(node_modules|\.yarn)/|(?i:(^|/)("
    r"(jest|vitest|vite|mocha|ava|babel|rollup|webpack|tsup|swc|nyc|c8|karma|jasmine|lerna|turbo|nx)([.-][\w.-]*)?\."
    r"(config|workspace|setup|preset|projects|globals)\.([cm]?[jt]sx?|json5?)"
    r"|(jest|vitest|vite|mocha|ava|babel|rollup|webpack|tsup|karma)[.-](config|workspace|setup|preset|projects)[\w.-]*"
    r"|(setup|set-up)[._-]?tests?\.[cm]?[jt]sx?"
    r"|tests?[._-]?(setup|set-up)\.[cm]?[jt]sx?"
    r"|tsconfig[\w.-]*\.json|jsconfig\.json"
    r"|\.(mocharc|babelrc|swcrc|nycrc|c8rc|taprc)([.-][\w.-]*)?"
    r"|\.(npmrc|pnpmfile\.cjs|yarnrc|yarnrc\.yml|node-version|nvmrc|pnp\.[\w.]+|npmignore)"
    r"|\.env([.-][\w.-]+)?"
    r"|package\.json|package-lock\.json|npm-shrinkwrap\.json|pnpm-lock\.yaml|pnpm-workspace\.yaml|yarn\.lock"
    r"|bun\.lockb?|bunfig\.toml|lerna\.json|nx\.json|turbo\.json|mocha\.opts)$)"
)
"""A manifest, a lock file, a configuration, an installed package. Set-up files that a configuration names can have any name:
`m3agent.tools.runners.javascript.set_up` finds those with another name than usual."""
JS = Rules(
    rf"(^|/)(tests?|__tests__|__mocks__|__snapshots__|spec|e2e)/|{JS_NAMES}",
    _JS_SURROUNDINGS,
)

JAVA_TEST_FOLDER = r"(^|/)src/(test|it|integrationTest|testFixtures)/"
_JAVA = Rules(
    rf"{JAVA_TEST_FOLDER}|(^|/)\w*(Test|Tests|TestCase|IT|Spec)\.(java|kt|groovy)$",
    r"(^|/)(pom\.xml|build\.gradle(\.kts)?|settings\.gradle(\.kts)?|gradle\.properties|gradlew(\.bat)?|mvnw(\.cmd)?"
    r"|gradle\.lockfile|junit-platform\.properties|\.tool-versions|\.java-version|\.sdkmanrc|Makefile)$"
    r"|(^|/)(\.mvn|gradle|buildSrc|META-INF/services)/|(^|/)(target|build)/",
)
RUBY_TEST = r"(_test|_spec)\.rb$|(^|/)test_[^/]*\.rb$"
_RUBY_PRODUCT = r"^((?!(lib|app|ext)/)[^/]+/)*"
"""Folders above which no folder of product code is: below one, a folder may be named `test`, as in `lib/rack/test/`."""
_RUBY = Rules(
    rf"{_RUBY_PRODUCT}(spec|tests?|features)/|{_RUBY_PRODUCT}([^/]*(_test|_spec)|test_[^/]*)\.rb$",
    r"(^|/)(\.rspec(-local)?|Gemfile[^/]*|gems\.(rb|locked)|[^/]+\.gemspec|Rakefile|\.ruby-version|\.tool-versions"
    r"|\.env[^/]*|\.bundle/[^/]+|\.simplecov|Makefile|minitest/[^/]+_plugin\.rb|config/environments/test\.rb)$"
    r"|(^|/)vendor/bundle/",
)

RULES = {
    "go": Rules(
        r"(_test\.go|\.golden)$|(^|/)testdata/",
        r"(^|/)go\.(mod|sum|env|work(\.sum)?)$|(^|/)vendor/",
    ),
    "cargo": Rules(  # other files may have tests beside their code
        r"(^|/)(tests|benches)/|(^|/)([^/]*_)?tests?\.rs$",
        r"(^|/)(Cargo\.(toml|lock)|build\.rs|rust-toolchain(\.toml)?)$|(^|/)\.cargo/",
    ),
    **dict.fromkeys(("jest", "vitest", "mocha", "ava", "node-test"), JS),
    **dict.fromkeys(("ctest", "meson"), C),
    "make-check": Rules(
        _C_TESTS, rf"{_C_SURROUNDINGS}|(^|/)(test-driver|tap-driver\.sh|GNUmakefile)$", _C_BUILD
    ),
    "bats": Rules(
        r"\.(bats|bash)$|(^|/)(tests?|spec)/",
        r"(^|/)(\.batsrc|\.bash_profile|\.bashrc|\.env|\.bats)$|(^|/)\.bats/",
    ),
    "prove": Rules(r"\.t$|(^|/)x?t/", r"(^|/)(\.proverc|\.perldb|sitecustomize\.pl)$"),
    **dict.fromkeys(("minitest", "rspec"), _RUBY),
    "phpunit": Rules(
        r"(^|/)[Tt]ests?/|(Test\.php|\.phpt)$",
        r"(^|/)(phpunit[^/]*\.xml[^/]*|composer\.(json|lock)|auth\.json|php\.ini|\.user\.ini|\.env[^/]*|\.tool-versions|Makefile)$"
        r"|(^|/)vendor/",
    ),
    **dict.fromkeys(("maven", "gradle"), _JAVA),
    "exunit": Rules(
        r"(^|/)test/|_test\.exs$",
        r"(^|/)(mix\.(exs|lock)|\.formatter\.exs|config/(config|test|runtime)\.exs|\.tool-versions|\.env[^/]*|Makefile)$"
        r"|(^|/)(deps|_build)/",
    ),
    "dotnet": Rules(
        r"(?i:(^|/)([^/]*[.\-_])?((unit|integration|functional)[.\-_]?)?tests?/)|(^|/)\w*Tests?\.(cs|fs|vb)$",
        r"(?i:\.(csproj|fsproj|vbproj|sln|slnx|props|targets|runsettings|testsettings)$"
        r"|(^|/)(global\.json|nuget\.config|packages\.(lock\.json|config)|xunit\.runner\.json|testconfig\.json|\.tool-versions)$"
        r"|(^|/)(bin|obj|\.nuget)/)",
    ),
    "swift": Rules(
        r"(^|/)Tests/|Tests\.swift$",
        r"(^|/)(Package(@swift-[\d.]+)?\.swift|Package\.resolved|\.swift-version|\.tool-versions)$|(^|/)(\.build|\.swiftpm)/",
    ),
    "command": Rules(  # the names that most languages use
        _C_TESTS,
        r"^\.m3agent\.toml$|(^|/)((GNUm|M)akefile|justfile|Taskfile\.yml)$",
        _C_BUILD,
    ),
}
"""The rows by the name of the runner."""


def is_code(path: str) -> bool:
    """Return whether a file of JavaScript or TypeScript can contain tests: it is code, not declarations of types."""
    return bool(re.search(JS_CODE, path)) and not re.search(r"\.d\.[cm]?ts$", path)
