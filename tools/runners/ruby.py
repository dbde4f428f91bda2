"""Run tests of Ruby: minitest and rspec.

All files run in one process, as with `rake test` and `rspec`. The reporters `reporters/minitest.rb` and
`reporters/rspec.rb` load each file by itself, so a file that cannot be loaded is one red test, and the others run.
"""

from __future__ import annotations

import posixpath
import re
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar

from m3agent.tools.runners.base import (
    SKIPPED_FOLDERS,
    Command,
    Limits,
    Output,
    Preparation,
    Reading,
    Runner,
    Suite,
    Tree,
    Unit,
)
from m3agent.tools.runners.canaries import read_with_canaries, reporter

TEST_FOLDERS = frozenset({"spec", "test", "tests", "features"})
PRODUCT_FOLDERS = frozenset({"lib", "app", "ext"})
"""Folders of product code; a folder below them may be named `test`, as in `lib/rack/test/`."""
MOST_READ = 40
"""Most test files whose text decides which library they use."""
_MANIFEST = re.compile(r"(Gemfile|Rakefile|\.rspec|[^/]+\.gemspec)$")
_TEST_NAME = re.compile(r"(_test|_spec)\.rb$|^test_[^/]*\.rb$")
_SURROUNDINGS = re.compile(
    r"(^|/)(\.rspec(-local)?|Gemfile[^/]*|gems\.(rb|locked)|[^/]+\.gemspec|Rakefile|\.ruby-version|\.tool-versions"
    r"|\.env[^/]*|\.bundle/[^/]+|\.simplecov|Makefile|minitest/[^/]+_plugin\.rb|config/environments/test\.rb)$"
    r"|(^|/)vendor/bundle/"
)
_MINITEST = re.compile(r"(?i)minitest|ActiveSupport::TestCase|rails/test_help")
_RSPEC = re.compile(r"\bRSpec\b|\brspec\b")


class _Ruby(Runner):
    """What both runners have in common. Subclasses say which files are theirs."""

    language = "Ruby"
    reporters: ClassVar[tuple[str, ...]]
    package: ClassVar[str]
    """Debian's package of the library, for projects without a Gemfile."""

    @abstractmethod
    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the paths of the test files of a folder with a manifest."""

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each folder with a manifest or without any, if it has test files of this library."""
        found = []
        for root in _roots(tree):
            mine = self.files(tree, root)
            if mine:
                found.append(Suite(self.name, root, f"{len(mine)} test files such as {mine[0]}"))
        return found

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return the commands of Bundler, if there is a Gemfile. Without a network, it compiles what it has fetched."""
        gemfile = suite.path("Gemfile")
        if gemfile not in tree.paths:
            return Preparation(system_packages=("ruby", self.package))
        inputs = [
            path
            for path in sorted(tree.paths)
            if re.search(
                r"(^|/)(Gemfile[^/]*|[^/]+\.gemspec|version\.rb|\.ruby-version)$", suite.within(path)
            )
            and (not suite.root or path.startswith(f"{suite.root}/"))
        ]
        notices: tuple[str, ...] = ()
        if f"{gemfile}.lock" not in tree.paths:
            notices = (f"{gemfile} has no lock file: the newest versions that it allows are installed",)
        return Preparation(
            system_packages=("ruby", "ruby-dev", "bundler", "build-essential"),
            commands=(("bundle", "cache", "--no-install"),),
            offline_commands=(("bundle", "install", "--local"),),
            inputs=tuple(inputs),
            keep=("vendor/bundle", "vendor/cache"),
            env={"BUNDLE_PATH": "vendor/bundle", "BUNDLE_DISABLE_SHARED_GEMS": "true"},
            notices=notices,
        )

    def is_test(self, path: str) -> bool:
        """Return whether a file is a test or a helper of tests."""
        *folders, name = path.split("/")
        outside = [folder for folder in folders if folder in TEST_FOLDERS or folder in PRODUCT_FOLDERS]
        return (bool(outside) and outside[0] in TEST_FOLDERS) or bool(_TEST_NAME.search(name) and not outside)

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides which tests run, or which libraries they use."""
        return bool(_SURROUNDINGS.search(path))

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the files of the wanted tests; empty if one of them is in no test file."""
        mine = self.files(tree, suite.root)
        found: set[str] = set()
        for one in wanted:
            path = posixpath.normpath(one.partition("::")[0])
            hits = [file for file in mine if path in (".", file) or file.startswith(f"{path}/")]
            if not hits:
                return ()
            found.update(hits)
        return tuple(sorted(found)) if len(found) < len(mine) else ()

    def commands(
        self,
        suite: Suite,
        tree: Tree,
        targets: Sequence[str],
        units: Sequence[Unit],
        limits: Limits,
        work: str,
    ) -> list[Command]:
        """Return one command for all files."""
        known = self.files(tree, suite.root)
        selected = targets or known
        paths = {name: f"{work}/{self.name}.{name}" for name in ("rb", "report", "key", "known", "files")}
        arguments = [paths[name] for name in ("rb", "report", "key", "known", "files")]
        return [
            Command(
                ("ruby", *arguments, f"{limits.per_test:g}"),
                cwd=suite.root or ".",
                env={
                    "PARALLEL_WORKERS": "1",
                    "RAILS_ENV": "test",
                    "RACK_ENV": "test",
                    **_bundle(suite, tree),
                },
                files={
                    paths["rb"]: reporter("records.rb", *self.reporters),
                    paths["known"]: "\n".join(map(suite.within, known)).encode(),
                    paths["files"]: "\n".join(map(suite.within, selected)).encode(),
                },
                report=paths["report"],
                key_file=paths["key"],
            )
        ]

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records."""
        return read_with_canaries(suite, outputs)


class Minitest(_Ruby):
    """minitest, also in the style of specs, and Rails' tests."""

    name = "minitest"
    reporters = ("minitest.rb",)
    package = "ruby-minitest"

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the test files, if they or the manifests name minitest and not only rspec."""
        found = _files(tree, root, _TEST_NAME)
        specs = [path for path in found if path.endswith("_spec.rb")]
        if specs and _RSPEC.search(_texts(tree, root, specs)):
            found = [path for path in found if not path.endswith("_spec.rb")]
        return found if found and _MINITEST.search(_texts(tree, root, found)) else []


class Rspec(_Ruby):
    """rspec."""

    name = "rspec"
    reporters = ("rspec.rb",)
    package = "ruby-rspec"

    def files(self, tree: Tree, root: str) -> list[str]:
        """Return the specs, if they or the manifests name rspec."""
        found = _files(tree, root, re.compile(r"_spec\.rb$"))
        return found if found and _RSPEC.search(_texts(tree, root, found)) else []


def _roots(tree: Tree) -> list[str]:
    """Return the folders with manifests, except those below folders of tests; the root of the repository in any case."""
    folders = {""}
    for path in tree.paths:
        folder, _, name = path.rpartition("/")
        parts = folder.split("/")
        if _MANIFEST.fullmatch(name) and not (SKIPPED_FOLDERS | TEST_FOLDERS).intersection(parts):
            folders.add(folder)
    return sorted(folders)


def _files(tree: Tree, root: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the sorted paths below a root with such names in folders of tests, without those of deeper roots."""
    deeper = [
        f"{other}/"
        for other in _roots(tree)
        if other != root and other.startswith(f"{root}/" if root else "")
    ]
    found = []
    for path in tree.paths:
        if (root and not path.startswith(f"{root}/")) or path.startswith(tuple(deeper)) or "\n" in path:
            continue
        folders = path.removeprefix(f"{root}/" if root else "").split("/")[:-1]
        if (
            pattern.search(path.rpartition("/")[2])
            and TEST_FOLDERS.intersection(folders)
            and SKIPPED_FOLDERS.isdisjoint(folders)
        ):
            found.append(path)
    return sorted(found)


def _texts(tree: Tree, root: str, found: Sequence[str]) -> str:
    """Return the texts that say which library the tests use: manifests, helpers, and some of the tests."""
    prefix = f"{root}/" if root else ""
    helpers = [
        path
        for path in sorted(tree.paths)
        if path.startswith(prefix)
        and (
            _MANIFEST.fullmatch(path[len(prefix) :])
            or re.fullmatch(r"(spec|tests?)/([^/]*helper|minitest_[^/]*)\.rb", path[len(prefix) :])
        )
    ]
    return "\n".join(
        ("rspec" if path.endswith(".rspec") else tree.text(path)) for path in [*helpers, *found[:MOST_READ]]
    )


def _bundle(suite: Suite, tree: Tree) -> dict[str, str]:
    """Return the variables with which Bundler finds the gems of the environment."""
    if suite.path("Gemfile") not in tree.paths:
        return {}
    return {
        "BUNDLE_GEMFILE": f"{suite.work_tree}/{suite.path('Gemfile')}",
        "BUNDLE_PATH": "vendor/bundle",
        "BUNDLE_DISABLE_SHARED_GEMS": "true",
    }
