"""Run tests of PHP: PHPUnit 9.

The reporter `reporters/phpunit.php` is PHPUnit's command with m3agent's listener. PHPUnit 10 and later have another
interface, so a project with one of them gets no results, and a sentence that says so.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence

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

TEST_FOLDERS = frozenset({"test", "tests", "Test", "Tests"})
CONFIGURATIONS = ("phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml")
"""In the order in which PHPUnit looks for them."""
_SUITE = re.compile(r"<testsuite\b.*?</testsuite\s*>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_PART = re.compile(r"<(directory|file|exclude)\b([^>]*)>\s*([^<]*?)\s*</\1\s*>")
_SUFFIX = re.compile(r"""\bsuffix\s*=\s*["']([^"']+)""")
_SURROUNDINGS = re.compile(
    r"(^|/)(phpunit[^/]*\.xml[^/]*|composer\.(json|lock)|auth\.json|php\.ini|\.user\.ini|\.env[^/]*|\.tool-versions|Makefile)$"
    r"|(^|/)vendor/"
)
_EXTENSIONS = ("mbstring", "xml")
"""Extensions that PHPUnit needs and Debian has in packages of their own."""


class Phpunit(Runner):
    """PHPUnit."""

    name = "phpunit"
    language = "PHP"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each folder with a configuration of PHPUnit, or with a composer.json that needs it."""
        found = []
        for root in _roots(tree):
            mine = _files(tree, root)
            if mine:
                found.append(Suite(self.name, root, f"{len(mine)} test files such as {mine[0]}"))
        return found

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
            inputs=tuple(path for path in (manifest, lock) if path in tree.paths),
            keep=("vendor",),
            env={"COMPOSER_ALLOW_SUPERUSER": "1", "COMPOSER_NO_INTERACTION": "1"},
            notices=()
            if lock in tree.paths
            else (f"{manifest} has no lock file: the newest versions that it allows are installed",),
        )

    def is_test(self, path: str) -> bool:
        """Return whether a file is a test or a helper of tests."""
        *folders, name = path.split("/")
        return bool(TEST_FOLDERS.intersection(folders)) or name.endswith(("Test.php", ".phpt"))

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides which tests run, or which libraries they use."""
        return bool(_SURROUNDINGS.search(path))

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the files of the wanted tests; empty if one of them is in no test file."""
        mine = _files(tree, suite.root)
        found: set[str] = set()
        for one in wanted:
            path = posixpath.normpath(one.partition("::")[0])
            hits = [file for file in mine if path in (".", file) or file.startswith(f"{path}/")]
            if not hits:
                return ()
            found.update(hits)
        return tuple(sorted(found)) if len(found) < len(mine) else ()

    def build(self, suite: Suite, tree: Tree, targets: Sequence[str], work: str) -> Command | None:
        """Return the command that makes Composer's autoloader outside the tree, if the environment has none."""
        if suite.path("composer.json") not in tree.paths:
            return None
        script = (
            "[ -f vendor/autoload.php ] || "
            "composer dump-autoload --dev --no-scripts --no-plugins --no-interaction --quiet"
        )
        return Command(
            ("sh", "-c", script),
            cwd=suite.root or ".",
            env={
                "COMPOSER_VENDOR_DIR": f"{work}/vendor",
                "COMPOSER_HOME": f"{work}/composer",
                "COMPOSER_DISABLE_NETWORK": "1",
            },
            # It wants to have certificates although it does not use the network.
            files={f"{work}/composer/config.json": b'{"config": {"disable-tls": true}}'},
            seconds=60,
        )

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
        selected = targets or _files(tree, suite.root)
        script, report, key, listed = (f"{work}/phpunit.{end}" for end in ("php", "report", "key", "files"))
        configuration = _configuration(tree, suite.root)
        return [
            Command(
                (
                    *("php", "-d", "memory_limit=-1", "-d", "zend.assertions=1", script, report, key, listed),
                    *(f"{limits.per_test:g}", f"{work}/vendor/autoload.php", suite.within(configuration)),
                ),
                cwd=suite.root or ".",
                files={
                    script: reporter("phpunit.php"),
                    listed: "\n".join(map(suite.within, selected)).encode(),
                },
                report=report,
                key_file=key,
            )
        ]

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records."""
        return read_with_canaries(suite, outputs)


def _configuration(tree: Tree, root: str) -> str:
    """Return the path of the configuration that PHPUnit uses in a folder; empty if it has none."""
    prefix = f"{root}/" if root else ""
    return next((prefix + name for name in CONFIGURATIONS if prefix + name in tree.paths), "")


def _roots(tree: Tree) -> list[str]:
    """Return the folders with tests of PHPUnit, except those inside folders of tests."""
    found = set()
    for path in tree.named("composer.json", *CONFIGURATIONS):
        folder, _, name = path.rpartition("/")
        if TEST_FOLDERS.isdisjoint(folder.split("/")) and (
            name != "composer.json" or "phpunit" in tree.text(path)
        ):
            found.add(folder)
    return sorted(found)


def _files(tree: Tree, root: str) -> list[str]:
    """Return the sorted paths of a folder's test files, as its configuration names them."""
    prefix = f"{root}/" if root else ""
    deeper = tuple(f"{other}/" for other in _roots(tree) if other != root and other.startswith(prefix))
    mine = [
        path for path in tree.paths if path.startswith(prefix) and not (deeper and path.startswith(deeper))
    ]
    inner = [path[len(prefix) :] for path in mine if "\n" not in path and path.endswith((".php", ".phpt"))]
    text = _COMMENT.sub("", tree.text(_configuration(tree, root)))
    parts = [part for block in _SUITE.findall(text) for part in _PART.findall(block)]
    found = set()
    for kind, attributes, given in parts:
        suffix = _SUFFIX.search(attributes)
        place = posixpath.normpath(given)
        if kind == "file":
            found |= {path for path in inner if path == place}
        elif kind == "directory":
            ends = (suffix[1],) if suffix else ("Test.php", ".phpt")
            found |= {path for path in inner if path.endswith(ends) and _below(path, place)}
    if not found:
        found = {
            path
            for path in inner
            if path.endswith("Test.php") and TEST_FOLDERS.intersection(path.split("/")[:-1])
        }
    excluded = [posixpath.normpath(given) for kind, _, given in parts if kind == "exclude"]
    return sorted(
        prefix + path
        for path in found
        if SKIPPED_FOLDERS.isdisjoint(path.split("/")[:-1])
        and not any(path == one or _below(path, one) for one in excluded)
    )


def _below(path: str, folder: str) -> bool:
    """Return whether a path is in a folder; the folder may have `*` for a part of a name, as PHPUnit allows."""
    if folder == ".":
        return True
    pattern = "[^/]*".join(map(re.escape, folder.split("*")))
    return bool(re.match(f"{pattern}/", path))
