"""Tests that m3agent recognises and cannot run: their runners, and how a repository shows that it uses one.

A repository in which only such tests are found is not one without tests, so people are told the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from m3agent.tools.runners.base import Tree, is_skipped

MOST_READ = 50
"""Most files of one kind that are read."""
_SCRIPT = r'"test[\w:.-]*"\s*:\s*"[^"]*\b{}\b'
"""A script of package.json that calls a program."""


class Unsupported(NamedTuple):
    """A runner that m3agent cannot start."""

    name: str
    paths: str
    """Pattern of the paths that show it."""
    text: str = ""
    """Pattern that such a file contains; empty if the path is enough."""


_PACKAGE = r"(?:.*/)?package\.json"
ROWS = (
    Unsupported("Deno", r"(?:.*/)?deno\.jsonc?"),
    Unsupported("Bun", _PACKAGE, _SCRIPT.format("bun(?: run)? test")),
    Unsupported("Bun", r".*\.test\.[jt]sx?", r"[\"']bun:test[\"']"),
    Unsupported("Karma", r"(?:.*/)?karma\.conf\.[cm]?[jt]s"),
    Unsupported("Karma", _PACKAGE, _SCRIPT.format("(?:karma|ng test)")),
    Unsupported("Jasmine", r"(?:.*/)?spec/support/jasmine\.\w+"),
    *(
        Unsupported(name, _PACKAGE, _SCRIPT.format(program))
        for name, program in {
            "Jasmine": "jasmine",
            "tap": "tap",
            "tape": "tape",
            "QUnit": "qunit",
            "uvu": "uvu",
            "Lab": "lab",
            "Playwright": "playwright",
            "Cypress": "cypress",
            "Web Test Runner": "(?:wtr|web-test-runner)",
        }.items()
    ),
    Unsupported("Kotlin Multiplatform", r"(?:.*/)?src/\w+Test/kotlin/.+\.kt"),
    Unsupported("Kotlin", r"(?:.*/)?(?:\w*Test|\w*Tests|\w*Spec)\.kt"),
    Unsupported("Scala's sbt", r"(?:.*/)?build\.sbt"),
    Unsupported("Clojure", r"(?:.*/)?(?:project\.clj|deps\.edn)"),
    Unsupported("Haskell", r"(?:.*/)?(?:stack\.yaml|cabal\.project|[^/]+\.cabal)"),
    Unsupported("OCaml's dune", r"(?:.*/)?dune-project"),
    Unsupported("Erlang", r"(?:.*/)?rebar\.config"),
    Unsupported("Dart", r"(?:.*/)?pubspec\.yaml"),
    Unsupported("Zig", r"(?:.*/)?build\.zig"),
    Unsupported("Crystal", r"(?:.*/)?shard\.yml"),
    Unsupported("Julia", r"(?:.*/)?test/runtests\.jl"),
    Unsupported("R", r"(?:.*/)?tests/testthat(?:\.R|/.+)"),
    Unsupported("Lua's busted", r"(?:(?:.*/)?\.busted|.*_spec\.lua)"),
    Unsupported("Bazel", r"(?:.*/)?(?:MODULE\.bazel|WORKSPACE(?:\.bazel)?)"),
)
"""The runners. A name may have several rows."""


def found_in(tree: Tree) -> Mapping[str, str]:
    """Return the runners that a tree uses, each with the path that shows it."""
    paths = [path for path in sorted(tree.paths) if not is_skipped(path)]
    found = dict[str, str]()
    for row in ROWS:
        matches = re.compile(row.paths, re.DOTALL).fullmatch
        named = [path for path in paths if matches(path)][:MOST_READ]
        text = re.compile(row.text)
        shows = next((path for path in named if not row.text or text.search(tree.text(path))), None)
        if shows is not None:
            found.setdefault(row.name, shows)
    return found


def described(tree: Tree) -> str:
    """Return the runners for people: `Deno (deno.json), Karma (karma.conf.js)`; empty if there are none."""
    return ", ".join(f"{name} ({path})" for name, path in sorted(found_in(tree).items()))
