"""What a patch may change in a package.json."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from m3agent.tools.runners.javascript import JAVASCRIPT, restored_manifest

JEST = JAVASCRIPT["jest"]


def restored(base: Mapping[str, object], patched: Mapping[str, object]) -> dict[str, object]:
    found = json.loads(restored_manifest(json.dumps(base), json.dumps(patched)))
    assert isinstance(found, dict)
    return found


def test_a_patch_may_change_what_does_not_decide_about_tests() -> None:
    base = {"version": "1.0.0", "dependencies": {"a": "1"}, "scripts": {"test": "jest"}}
    patched = {
        "version": "1.0.1",
        "dependencies": {"a": "2", "b": "1"},
        "exports": "./a.js",
        "scripts": {"test": "jest"},
    }
    text = json.dumps(patched, indent=4) + "\n\n"
    assert restored_manifest(json.dumps(base), text) == text


@pytest.mark.parametrize(
    "key", ["scripts", "jest", "mocha", "ava", "vitest", "type", "imports", "workspaces", "devDependencies"]
)
def test_settings_of_tests_are_the_bases(key: str) -> None:
    base, patched = {"name": "a", key: {"x": "1"}}, {"name": "b", key: {"x": "2"}}
    assert restored(base, patched) == {"name": "b", key: {"x": "1"}}  # changed
    assert restored(base, {"name": "b"}) == {"name": "b", key: {"x": "1"}}  # removed
    assert restored({"name": "a"}, patched) == {"name": "b"}  # added


def test_a_test_runner_does_not_become_another_dependency() -> None:
    base = {"devDependencies": {"jest": "30"}, "dependencies": {"a": "1"}}
    patched = {"dependencies": {"a": "1", "b": "1", "jest": "file:./fake"}, "devDependencies": {"jest": "30"}}
    assert restored(base, patched)["dependencies"] == {"a": "1", "b": "1"}


@pytest.mark.parametrize("broken", ["", "{", "[]", "null", "[" * 100_000])
def test_a_broken_manifest_stays_as_it_is(broken: str) -> None:
    whole = '{"scripts": {"test": "jest"}}'
    assert restored_manifest(whole, broken) == broken
    assert restored_manifest(broken, whole) == whole


def test_the_text_keeps_its_form() -> None:
    patched = '{\n\t"name": "ä",\n\t"type": "module"\n}\n'
    assert restored_manifest("{}", patched) == '{\n\t"name": "ä"\n}\n'


def test_only_manifests_are_restored_by_key() -> None:
    base, patched = b'{"type": "module", "version": "1"}', b'{"type": "commonjs", "version": "2"}'
    content = JEST.restored("app/package.json", base, patched)
    assert content is not None
    assert json.loads(content) == {"type": "module", "version": "2"}
    assert (
        JEST.restored("package.json", None, patched) is None
    )  # a new one could change the type of all files below it
    assert JEST.restored("package.json", base, None) == base
    assert JEST.restored("package.json", base, b"\xff") == b"\xff"
    assert JEST.restored("package-lock.json", base, patched) == base
