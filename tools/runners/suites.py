"""Find the suites of a tree, and name their tests.

Ids are `file::name`. If the repository has another suite than one at its root, each id starts with the suite's name:
`go:tools::tools/cli_test.go::TestCart`. Files in ids are always paths of the repository.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from m3agent.tools.runners.base import Runner, Suite, Tree
from m3agent.tools.test_report import TestReport

RUNNERS: Mapping[str, Runner] = {}
"""The runners by name, in the order in which suites are listed."""


def find_suites(tree: Tree) -> tuple[Suite, ...]:
    """Return all suites of a tree, those nearest to the root first."""
    found = [suite for runner in RUNNERS.values() for suite in runner.detect(tree)]
    return tuple(sorted(found, key=lambda suite: (suite.root.count("/") + bool(suite.root), suite.root)))


def prefix_of(suite: Suite, suites: Collection[Suite]) -> str:
    """Return the text before the ids of a suite's tests; empty for a single suite at the root."""
    return "" if len(suites) == 1 and not suite.root else f"{suite.name}::"


def suite_of(ident: str) -> str:
    """Return the name of the suite that an id starts with; empty if it starts with a file."""
    first = ident.partition("::")[0]
    return first if first.partition(":")[0] in RUNNERS and ":" in first else ""


def file_of(ident: str) -> str:
    """Return the path of the file that a test id names."""
    name = suite_of(ident)
    return (ident[len(name) + 2 :] if name else ident).partition("::")[0]


def with_prefix(report: TestReport, prefix: str) -> TestReport:
    """Return a report whose ids start with a text."""
    if not prefix:
        return report

    def ids(given: Iterable[str]) -> tuple[str, ...]:
        return tuple(prefix + ident for ident in given)

    return replace(
        report,
        passed=ids(report.passed),
        failed=ids(report.failed),
        errored=ids(report.errored),
        skipped=ids(report.skipped),
        errors={prefix + ident: text for ident, text in report.errors.items()},
    )
