"""Run tests of PHP (PHPUnit): a reporter of m3agent is in the process of the tests.

`reporters/phpunit.php` is the command of PHPUnit 9 with m3agent's listener; `reporters/phpunit_events.php` runs PHPUnit 10 and later.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

from m3agent.tools.runners.base import Command, Job, Preparation, Suite, Tree, Unit, is_skipped, own_folders
from m3agent.tools.runners.file_runner import FileRunner, no_lock_file, reporter
from m3agent.util.json_value import mapping

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
        parts = [part for block in _SUITE.findall(text) for part in _PART.findall(block)]
        chosen = {kind: _chosen(parts, kind, inner) for kind in ("directory", "file", "exclude")}
        named = chosen["directory"] | chosen["file"]
        if not named:
            tests = (path for path in inner if path.endswith("Test.php"))
            named = {path for path in tests if PHP_FOLDERS.intersection(path.split("/")[:-1])}
        named -= chosen["exclude"]
        return sorted(posixpath.join(root, path) for path in named if not is_skipped(path))

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Return Composer's commands. Without locked packages, only its autoloader is needed, which each run makes."""
        system = ("php-cli", *(f"php-{name}" for name in _EXTENSIONS), "composer", "phpunit")
        manifest, lock = suite.path("composer.json"), suite.path("composer.lock")
        if manifest not in tree.paths:
            return Preparation(system_packages=system)
        required = tree.json(manifest)
        names = {**mapping(required, "require"), **mapping(required, "require-dev")}
        if not any("/" in name for name in names):
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
        reporters = {"php": reporter("phpunit.php"), "events": reporter("phpunit_events.php")}
        return self.reporting(job, argv, {**reporters, "files": self.chosen(job)}, {})


def _configuration(tree: Tree, root: str) -> str:
    """Return the path of the configuration that PHPUnit uses in a folder; empty if it has none."""
    return next(iter(tree.present(*(posixpath.join(root, name) for name in CONFIGURATIONS))), "")


def _chosen(parts: Iterable[tuple[str, str, str]], kind: str, inner: Sequence[str]) -> set[str]:
    """Return the paths that the parts of a kind mean; a part has its kind, its attributes and its place."""
    chosen = set[str]()
    for _, attributes, given in (part for part in parts if part[0] == kind):
        place, suffix = posixpath.normpath(given), _SUFFIX.search(attributes)
        ends = (suffix[1],) if suffix else ("Test.php", ".phpt")
        if kind != "directory":
            chosen |= {place}.intersection(inner)
            ends = ("",)
        if kind != "file":
            chosen.update(path for path in inner if path.endswith(ends) and _below(path, place))
    return chosen


def _below(path: str, folder: str) -> bool:
    """Return whether a path is in a folder; the folder may have `*` for a part of a name, as PHPUnit allows."""
    if folder == ".":
        return True
    pattern = "[^/]*".join(map(re.escape, folder.split("*")))
    return bool(re.match(f"{pattern}/", path))
