"""Run tests of Ruby (minitest, rspec): a reporter of m3agent is in the process of the tests.

All files run in one process. The reporters load each file by itself, so a file that cannot be loaded is one red test, and the others
run.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from m3agent.tools.runners.base import (
    SKIPPED_FOLDERS,
    Command,
    Job,
    Preparation,
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
