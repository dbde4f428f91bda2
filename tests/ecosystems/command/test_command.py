"""A repository's own command without a sandbox."""

from __future__ import annotations

import json

import pytest

from m3agent.tools.runners.command import CommandRunner
from m3agent.tools.runners.suites import find_suites, needs_of
from tests.ecosystems.records import tree_of

RUNNER = CommandRunner()


def test_detection() -> None:
    (suite,) = RUNNER.detect(
        tree_of({"pyproject.toml": '[tool.m3agent.tests]\ncommand = "make t"\nreport = "tap"\n'})
    )
    assert suite.evidence == "tests.command in pyproject.toml"
    assert json.loads(suite.options["command"]) == ["sh", "-c", "make t"]
    own = '[tests]\ncommand = ["a", "{report}"]\nreport = "junit"\nfile = "./out/r.xml"\n'
    (suite,) = RUNNER.detect(tree_of({".m3agent.toml": own, "pyproject.toml": "[tool.m3agent.tests]\n"}))
    assert suite.evidence == "tests.command in .m3agent.toml"
    assert suite.options["file"] == "out/r.xml"


def test_packages_of_a_runner_that_nobody_knows_are_installed() -> None:
    """tape is no runner of m3agent, but a command can run it."""
    manifest = '{"devDependencies": {"tape": "5"}, "scripts": {"test": "tape test/*.js"}}'
    table = '[tests]\ncommand = "npx tape test/*.js"\nreport = "tap"\n'
    tree = tree_of(
        {".m3agent.toml": table, "package.json": manifest, "package-lock.json": "", "test/a.js": ""}
    )
    (suite,) = find_suites(tree)
    (needs,) = needs_of(tree, [suite])
    assert needs.preparation.commands[0][:2] == ("npm", "ci")
    assert needs.preparation.inputs == ("package.json", "package-lock.json")
    assert not RUNNER.prepare(suite, tree_of({".m3agent.toml": table})).commands


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tests = 3",
        '[tests]\ncommand = "a"',
        '[tests]\ncommand = "a"\nreport = "xml"',
        '[tests]\ncommand = " "\nreport = "tap"',
        '[tests]\ncommand = []\nreport = "tap"',
        '[tests]\ncommand = ["a", 3]\nreport = "tap"',
        "[tests\n",
    ],
)
def test_incomplete_configuration_is_no_suite(text: str) -> None:
    assert RUNNER.detect(tree_of({".m3agent.toml": text})) == []


def test_report_outside_the_tree_is_not_read() -> None:
    text = '[tests]\ncommand = "a"\nreport = "junit"\nfile = "../../etc/passwd"\n'
    (suite,) = RUNNER.detect(tree_of({".m3agent.toml": text}))
    assert "file" not in suite.options
