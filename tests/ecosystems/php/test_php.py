"""The runner of PHPUnit without a sandbox: detection, preparation."""

from __future__ import annotations

import json

import pytest

from m3agent.tools.runners.base import Job, Output, Suite
from m3agent.tools.runners.php import Phpunit
from tests.ecosystems.records import WORK, tree_of

NEEDS = json.dumps({"require-dev": {"phpunit/phpunit": "^9"}})


def found(files: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the test files of each suite."""
    tree = tree_of(files)
    result = {}
    for suite in Phpunit().detect(tree):
        (command,) = Phpunit().commands(Job(suite, tree, work=WORK), [])
        result[suite.root] = tuple(command.files[f"{WORK}/phpunit.files"].decode().split("\n"))
    return result


def configuration(inner: str) -> str:
    return f'<?xml version="1.0"?>\n<phpunit>\n<testsuites><testsuite name="all">{inner}</testsuite></testsuites></phpunit>'


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"composer.json": NEEDS, "tests/ATest.php": "", "src/BTest.php": ""}, {"": ("tests/ATest.php",)}),
        ({"composer.json": "{}", "tests/ATest.php": ""}, {}),
        ({"composer.json": "[]", "phpunit.xml": "", "tests/ATest.php": ""}, {"": ("tests/ATest.php",)}),
        ({"phpunit.xml.dist": "<broken", "tests/ATest.php": ""}, {"": ("tests/ATest.php",)}),
        (
            {
                "phpunit.xml": configuration("<directory>./tests/Unit/</directory>"),
                "tests/Unit/ATest.php": "",
                "tests/Slow/BTest.php": "",
            },
            {"": ("tests/Unit/ATest.php",)},
        ),
        (
            {
                "phpunit.xml": configuration(
                    '<directory suffix=".check.php">t</directory><file>src/Own.php</file><exclude>t/old</exclude>'
                    "<!-- <directory>src</directory> -->"
                ),
                "t/a.check.php": "",
                "t/old/b.check.php": "",
                "t/CTest.php": "",
                "src/Own.php": "",
                "src/DTest.php": "",
            },
            {"": ("src/Own.php", "t/a.check.php")},
        ),
        (
            {"phpunit.xml": configuration("<directory>src/*/Tests</directory>"), "src/A/Tests/ATest.php": "", "src/ATest.php": ""},
            {"": ("src/A/Tests/ATest.php",)},
        ),
        (
            {"a/composer.json": NEEDS, "a/tests/ATest.php": "", "b/phpunit.xml": "", "b/tests/BTest.php": ""},
            {"a": ("tests/ATest.php",), "b": ("tests/BTest.php",)},
        ),
        ({"vendor/x/phpunit.xml": "", "vendor/x/tests/ATest.php": "", "tests/x/phpunit.xml": "", "tests/x/BTest.php": ""}, {}),
    ],
)  # fmt: skip
def test_detection(files: dict[str, str], expected: dict[str, tuple[str, ...]]) -> None:
    assert found(files) == expected


def test_preparation() -> None:
    none = Phpunit().prepare(
        Suite("phpunit"), tree_of({"composer.json": '{"require": {"php": "^8", "ext-dom": "*"}}'})
    )
    assert none.commands == ()
    plan = Phpunit().prepare(
        Suite("phpunit", "p"), tree_of({"p/composer.json": NEEDS, "p/composer.lock": "{}"})
    )
    assert plan.inputs == ("p/composer.json", "p/composer.lock")
    assert {"--no-scripts", "--no-plugins"} <= set(plan.commands[0])
    assert plan.notices == ()
    unlocked = Phpunit().prepare(Suite("phpunit"), tree_of({"composer.json": NEEDS}))
    assert "no lock file" in unlocked.notices[0]


def test_the_autoloader_is_made_outside_the_tree() -> None:
    tree = tree_of({"composer.json": NEEDS, "tests/ATest.php": ""})
    build = Phpunit().build(Job(Suite("phpunit"), tree, work=WORK))
    assert build is not None
    assert build.env["COMPOSER_VENDOR_DIR"] == f"{WORK}/vendor"
    assert Phpunit().build(Job(Suite("phpunit"), tree_of({"phpunit.xml": ""}))) is None


def test_an_unsupported_version_is_explained() -> None:
    tree = tree_of({"composer.json": NEEDS, "tests/ATest.php": ""})
    job = Job(Suite("phpunit"), tree, work=WORK)
    (command,) = Phpunit().commands(job, [])
    assert {f"{WORK}/phpunit.php", f"{WORK}/phpunit.events"} <= set(
        command.files
    )  # one finds the other by its name
    said = b"m3agent: this version of PHPUnit is not supported: m3agent runs PHPUnit 9 and later\n"
    reading = Phpunit().read(job, [], [Output(command, 3, b"", stderr=said)])
    assert not reading.ended
    assert "not supported" in reading.problem
