"""Test which runners are recognised that m3agent cannot start."""

from __future__ import annotations

import pytest

from m3agent.tools.runners.base import Tree
from m3agent.tools.runners.unsupported import described


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"deno.json": "{}"}, "Deno (deno.json)"),
        ({"package.json": '{"scripts": {"test": "bun test"}}'}, "Bun (package.json)"),
        ({"src/a.test.ts": "import {test} from 'bun:test'"}, "Bun (src/a.test.ts)"),
        ({"karma.conf.js": ""}, "Karma (karma.conf.js)"),
        ({"web/package.json": '{"scripts": {"test:unit": "ng test"}}'}, "Karma (web/package.json)"),
        ({"spec/support/jasmine.json": "{}"}, "Jasmine (spec/support/jasmine.json)"),
        ({"package.json": '{"scripts": {"test": "c8 tap test/*.js"}}'}, "tap (package.json)"),
        ({"app/src/commonTest/kotlin/CartTest.kt": ""}, "Kotlin"),
        ({"build.sbt": ""}, "Scala's sbt (build.sbt)"),
        ({"deno.json": "", "karma.conf.js": ""}, "Deno (deno.json), Karma (karma.conf.js)"),
        ({"package.json": '{"scripts": {"build": "tap"}, "name": "tap"}'}, ""),
        ({"package.json": '{"scripts": {"test": "mocha"}, "devDependencies": {"karma": "1"}}'}, ""),
        ({"node_modules/x/karma.conf.js": ""}, ""),
        ({"src/a.test.ts": ""}, ""),
        ({}, ""),
    ],
)
def test_a_runner_is_named_with_what_shows_it(files: dict[str, str], said: str) -> None:
    found = described(Tree(files.keys(), lambda path: files[path].encode()))
    assert found.startswith(said) if said else not found
