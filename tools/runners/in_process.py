"""Run tests of Ruby (minitest, rspec), PHP (PHPUnit 9) and Elixir (ExUnit): a reporter of m3agent is in the process of the tests.

All files run in one process. Ruby's reporters load each file by itself, so a file that cannot be loaded is one red test, and the
others run. Mix compiles all test files before any test runs: if one of them cannot be compiled, all files of the run are red.
`reporters/phpunit.php` is PHPUnit's command with m3agent's listener. PHPUnit 10 and later have another interface, so a project with
one of them gets no results, and a sentence that says so.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from m3agent.tools.runners.base import (
    SKIPPED_FOLDERS,
    Command,
    Job,
    Output,
    Preparation,
    Reading,
    Suite,
    Tree,
    Unit,
    is_skipped,
    is_within,
    own_folders,
)
from m3agent.tools.runners.file_runner import FileRunner, no_lock_file, reporter

RUBY_FOLDERS = frozenset({"spec", "test", "tests", "features"})
BUNDLE = {"BUNDLE_PATH": "vendor/bundle", "BUNDLE_DISABLE_SHARED_GEMS": "true"}
MOST_READ = 40
"""Most test files whose text decides which library they use."""
_MANIFEST = re.compile(r"(Gemfile|Rakefile|\.rspec|[^/]+\.gemspec)$")
_MINITEST = re.compile(r"(?i)minitest|ActiveSupport::TestCase|rails/test_help")
_TEST = r"(_test|_spec)\.rb$|(^|/)test_[^/]*\.rb$"
_RSPEC = re.compile(r"\bRSpec\b|\brspec\b")


class _Ruby(FileRunner):
    """What both runners have in common. Subclasses say which files are theirs."""

    language = "Ruby"
    reporters: ClassVar[tuple[str, ...]]
    package: ClassVar[str]
    """Debian's package of the library, for projects without a Gemfile."""

    def roots(self, tree: Tree) -> Iterable[str]:
        """Return the folders with manifests, except those below folders of tests; the repository's root in any case."""
        manifests = (path for path in tree.paths if _MANIFEST.fullmatch(posixpath.basename(path)))
        return own_folders(["Rakefile", *manifests], SKIPPED_FOLDERS | RUBY_FOLDERS)

    def named(self, tree: Tree, root: str, pattern: str) -> list[str]:
        """Return the sorted paths below a root with such names in folders of tests."""
        named = (
            path for path in self.inner_paths(tree, root) if re.search(pattern, path) and not is_skipped(path)
        )
        tests = (path for path in named if RUBY_FOLDERS.intersection(path.split("/")[:-1]))
        return sorted(posixpath.join(root, path) for path in tests)

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the commands of Bundler, if there is a Gemfile. Without a network, it compiles what it has fetched."""
        gemfile = suite.path("Gemfile")
        if gemfile not in tree.paths:
            return Preparation(system_packages=("ruby", self.package))
        inputs = re.compile(r"(^|/)(Gemfile[^/]*|[^/]+\.gemspec|version\.rb|\.ruby-version)$")
        mine = (path for path in sorted(tree.paths) if is_within(path, suite.root))
        return Preparation(
            system_packages=("ruby", "ruby-dev", "bundler", "build-essential"),
            commands=(("bundle", "cache", "--no-install"),),
            offline_commands=(("bundle", "install", "--local"),),
            inputs=tuple(path for path in mine if inputs.search(suite.within(path))),
            keep=("vendor/bundle", "vendor/cache"),
            env=BUNDLE,
            notices=no_lock_file(tree, gemfile, f"{gemfile}.lock"),
        )

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command for all files."""
        suite, gemfile = job.suite, job.suite.path("Gemfile")
        bundle = (
            {"BUNDLE_GEMFILE": f"{suite.work_tree}/{gemfile}", **BUNDLE} if gemfile in job.tree.paths else {}
        )
        paths = (self.path(job, end) for end in ("rb", "report", "key", "known", "files"))
        known = [suite.within(path) for path in self.files(job.tree, suite.root)]
        return self.reporting(
            job,
            ("ruby", *paths, f"{job.limits.per_test:g}"),
            {
                "rb": reporter("records.rb", *self.reporters),
                "known": known,
                "files": [suite.within(path) for path in job.targets] or known,
            },
            {"PARALLEL_WORKERS": "1", "RAILS_ENV": "test", "RACK_ENV": "test", **bundle},
        )


class Minitest(_Ruby):
    """minitest, also in the style of specs, and Rails' tests."""

    name = "minitest"
    reporters = ("minitest.rb",)
    package = "ruby-minitest"

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the test files, if they or the manifests name minitest and not only rspec."""
        tests = self.named(tree, root, _TEST)
        specs = [path for path in tests if path.endswith("_spec.rb")]
        if specs and _RSPEC.search(_texts(tree, root, specs)):
            tests = [path for path in tests if not path.endswith("_spec.rb")]
        return tests if tests and _MINITEST.search(_texts(tree, root, tests)) else []


class Rspec(_Ruby):
    """rspec."""

    name = "rspec"
    reporters = ("rspec.rb",)
    package = "ruby-rspec"

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the specs, if they or the manifests name rspec."""
        specs = self.named(tree, root, r"_spec\.rb$")
        return specs if specs and _RSPEC.search(_texts(tree, root, specs)) else []


def _texts(tree: Tree, root: str, found: Sequence[str]) -> str:
    """Return the texts that say which library the tests use: manifests, helpers, and some of the tests."""
    helper = re.compile(rf"{_MANIFEST.pattern}|(spec|tests?)/([^/]*helper|minitest_[^/]*)\.rb")
    start = f"{root}/" if root else ""
    own = (path for path in sorted(tree.paths) if path.startswith(start))
    helpers = [path for path in own if helper.fullmatch(path, len(start))]
    return "\n".join(
        ("rspec" if path.endswith(".rspec") else tree.text(path)) for path in [*helpers, *found[:MOST_READ]]
    )


PHP_FOLDERS = frozenset({"test", "tests", "Test", "Tests"})
CONFIGURATIONS = ("phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml")
"""In the order in which PHPUnit looks for them."""
_SUITE = re.compile(r"<testsuite\b.*?</testsuite\s*>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_PART = re.compile(r"<(directory|file|exclude)\b([^>]*)>\s*([^<]*?)\s*</\1\s*>")
_SUFFIX = re.compile(r"""\bsuffix\s*=\s*["']([^"']+)""")
_EXTENSIONS = ("mbstring", "xml")
"""Extensions that PHPUnit needs and Debian has in packages of their own."""


class Phpunit(FileRunner):
    """PHPUnit."""

    name = "phpunit"
    language = "PHP"

    def roots(self, tree: Tree) -> Iterable[str]:
        """Return the folders with a configuration of PHPUnit, or with a composer.json that needs it; none in folders of tests."""
        manifests = tree.named("composer.json", *CONFIGURATIONS)
        own = (
            path for path in manifests if not path.endswith("composer.json") or "phpunit" in tree.text(path)
        )
        return own_folders(own, PHP_FOLDERS)

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return a folder's test files, as its configuration names them."""
        inner = [path for path in self.inner_paths(tree, root) if path.endswith((".php", ".phpt"))]
        text = _COMMENT.sub("", tree.text(_configuration(tree, root)))
        named, excluded = set[str](), set[str]()
        for kind, attributes, given in (
            part for block in _SUITE.findall(text) for part in _PART.findall(block)
        ):
            place, suffix = posixpath.normpath(given), _SUFFIX.search(attributes)
            below = {path for path in inner if _below(path, place)}
            if kind == "directory":
                ends = (suffix[1],) if suffix else ("Test.php", ".phpt")
                named |= {path for path in below if path.endswith(ends)}
            else:
                here = {place}.intersection(inner)
                named, excluded = (
                    (named | here, excluded) if kind == "file" else (named, excluded | here | below)
                )
        if not named:
            folders = {path: set(path.split("/")[:-1]) for path in inner if path.endswith("Test.php")}
            named = {path for path, above in folders.items() if above & PHP_FOLDERS}
        return sorted(posixpath.join(root, path) for path in named - excluded if not is_skipped(path))

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return Composer's commands. Without locked packages, only its autoloader is needed, which each run makes."""
        system = ("php-cli", *(f"php-{name}" for name in _EXTENSIONS), "composer", "phpunit")
        manifest, lock = suite.path("composer.json"), suite.path("composer.lock")
        if manifest not in tree.paths:
            return Preparation(system_packages=system)
        required = tree.json(manifest)
        names = {
            name
            for key in ("require", "require-dev")
            for name in (required.get(key) if isinstance(required.get(key), dict) else None) or {}
            if "/" in name
        }
        if not names:
            return Preparation(system_packages=system)
        command = ("composer", "install", "--no-scripts", "--no-plugins", "--no-interaction", "--prefer-dist")
        return Preparation(
            system_packages=(*system, "unzip"),
            commands=(command,),
            inputs=tree.present(manifest, lock),
            keep=("vendor",),
            env={"COMPOSER_ALLOW_SUPERUSER": "1", "COMPOSER_NO_INTERACTION": "1"},
            notices=no_lock_file(tree, manifest, lock),
        )

    def build(self, job: Job) -> Command | None:
        """Return the command that makes Composer's autoloader outside the tree, if the environment has none."""
        if job.suite.path("composer.json") not in job.tree.paths:
            return None
        script = (
            "[ -f vendor/autoload.php ] || "
            "composer dump-autoload --dev --no-scripts --no-plugins --no-interaction --quiet"
        )
        return Command(
            ("sh", "-c", script),
            cwd=job.suite.root,
            env={
                "COMPOSER_VENDOR_DIR": f"{job.work}/vendor",
                "COMPOSER_HOME": f"{job.work}/composer",
                "COMPOSER_DISABLE_NETWORK": "1",
            },
            # It wants to have certificates although it does not use the network.
            files={f"{job.work}/composer/config.json": b'{"config": {"disable-tls": true}}'},
            seconds=60,
        )

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command for all files."""
        configuration = job.suite.within(_configuration(job.tree, job.suite.root))
        paths = (self.path(job, end) for end in ("php", "report", "key", "files"))
        argv = (
            *("php", "-d", "memory_limit=-1", "-d", "zend.assertions=1", *paths, f"{job.limits.per_test:g}"),
            *(f"{job.work}/vendor/autoload.php", configuration),
        )
        return self.reporting(job, argv, {"php": reporter("phpunit.php"), "files": self.chosen(job)}, {})


def _configuration(tree: Tree, root: str) -> str:
    """Return the path of the configuration that PHPUnit uses in a folder; empty if it has none."""
    return next(iter(tree.present(*(posixpath.join(root, name) for name in CONFIGURATIONS))), "")


def _below(path: str, folder: str) -> bool:
    """Return whether a path is in a folder; the folder may have `*` for a part of a name, as PHPUnit allows."""
    if folder == ".":
        return True
    pattern = "[^/]*".join(map(re.escape, folder.split("*")))
    return bool(re.match(f"{pattern}/", path))


_CANARY = """\
defmodule Case{number}Test do
  use ExUnit.Case
  test "value" do
    value = {first}
    assert value == {second}
  end
end
"""


class Exunit(FileRunner):
    """ExUnit. Each mix.exs with test files has a suite; in an umbrella, those of its applications."""

    name = "exunit"
    language = "Elixir"

    def roots(self, tree: Tree) -> Iterable[str]:
        """Return the folders with a mix.exs, except those in folders of tests."""
        return own_folders(tree.named("mix.exs"), ("test",))

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the test files in the folder `test` of a root."""
        tests = tree.below(posixpath.join(root, "test"), "_test.exs")
        return [path for path in tests if "\n" not in path and not is_skipped(path)]

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return Mix's commands; without dependencies there is nothing to fetch."""
        manifest, lock = suite.path("mix.exs"), suite.path("mix.lock")
        if lock not in tree.paths:
            return Preparation(system_packages=("elixir",))
        return Preparation(
            system_packages=("elixir", "erlang-dev", "git"),
            commands=(("mix", "local.hex", "--force"), ("mix", "deps.get", "--only", "test")),
            inputs=(manifest, lock),
            keep=("deps",),
            env={"MIX_ENV": "test"},
        )

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        """Return one command for all files, and a canary."""
        script, report, key, listed = (self.path(job, end) for end in ("exs", "report", "key", "files"))
        files, number = self.chosen(job), 2 + secrets.randbelow(900)
        (command,) = self.reporting(
            job,
            (
                *("elixir", "-r", script, "-S", "mix", "test", "--formatter", "M3agent.Formatter"),
                *("--formatter", "ExUnit.CLIFormatter", "--no-color", "--seed", "0"),
                *("--timeout", f"{job.limits.per_test * 1000:.0f}", *files),
                canary := f"{job.work}/case{number}_test.exs",
            ),
            {"exs": reporter("exunit.exs"), "files": files},
            {
                "MIX_ENV": "test",
                "MIX_BUILD_PATH": f"{job.work}/build",
                "HEX_OFFLINE": "1",
                "M3AGENT_REPORT": f"{report}\n{key}\n{listed}\n{canary}",
            },
        )
        text = _CANARY.format(number=number, first=number, second=number + 1 + secrets.randbelow(90))
        return [replace(command, files={**command.files, canary: text.encode()})]

    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records. Without any, all planned files are red: one of them may not compile."""
        reading = super().read(job, units, outputs)
        if not reading.planned and outputs:
            reading.planned = set(map(job.suite.path, self.chosen(job)))
        return reading
