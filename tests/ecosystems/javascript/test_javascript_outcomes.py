"""Real test runners of JavaScript in real sandboxes: the outcome of each kind of test."""

from __future__ import annotations

import json

import pytest

from m3agent.tools.runners.base import Limits
from tests.ecosystems.javascript.conftest import Projects, table

pytestmark = [pytest.mark.languages, pytest.mark.asyncio(loop_scope="module")]

SHORT = Limits(total=90, per_test=2)
# ava's limit is the time without a new result, so the start of its processes counts as well.
AVA = Limits(total=90, per_test=15)


def manifest(script: str, **more: object) -> str:
    return json.dumps({"name": "project", "scripts": {"test": script}, **more})


DESCRIBED = """\
describe('cart', () => {
  it('adds', () => {});
  it('subtracts', () => { throw new Error('1 is not 2'); });
  it.skip('multiplies', () => {});
  TODO
  for (const n of [1, 2]) it(`counts ${n}`, () => { if (n === 2) throw new Error('two'); });
  it('twice', () => {});
  it('twice', () => { throw new Error('the second one'); });
  it('waits', () => new Promise((done) => setTimeout(done, 1e6)));
  describe('inner', () => {
    it('adds', () => {});
  });
});
describe('unready', () => {
  BEFORE(() => { throw new Error('no database'); });
  it('opens', () => {});
});
"""
"""Tests of each kind, for runners with `describe` and `it`."""
CASES = {
    "jest": {
        "package.json": manifest("jest"),
        "all.test.js": DESCRIBED.replace("TODO", "it.todo('divides');").replace("BEFORE", "beforeAll")
        + "test.failing('known', () => { throw new Error('known'); });\n"
        "test.failing('known no more', () => {});\n"
        "test.each([[1, 1], [1, 2]])('%i is %i', (a, b) => expect(a).toBe(b));\n"
        "test('pictures', () => expect({a: 1}).toMatchSnapshot());\n",
        "load.test.js": "require('./missing'); test('never', () => {});\n",
        "syntax.test.js": "test('never', () => {\n",
        "exit.test.js": "test('before', () => {}); test('exits', () => process.exit(0)); test('after', () => {});\n",
        "product.test.js": "const p = require('./product'); test('uses', () => p());\n",
        "product.js": "process.exit(0);\n",
        "empty.test.js": "\n",
        "src/inner.test.js": "test('inside', () => {});\n",
    },
    "vitest": {
        "package.json": manifest("vitest run"),
        "all.test.js": "import { beforeAll, describe, expect, it, test } from 'vitest';\n"
        + DESCRIBED.replace("TODO", "it.todo('divides');").replace("BEFORE", "beforeAll")
        + "test.fails('known', () => { throw new Error('known'); });\n"
        "test.fails('known no more', () => {});\n"
        "test.each([[1, 1], [1, 2]])('%i is %i', (a, b) => expect(a).toBe(b));\n"
        "test('pictures', () => expect({a: 1}).toMatchSnapshot());\n",
        "load.test.js": "import './missing'; import { test } from 'vitest'; test('never', () => {});\n",
        "syntax.test.js": "test('never', () => {\n",
        "exit.test.js": "import { test } from 'vitest';\ntest('before', () => {}); "
        "test('exits', () => process.exit(0)); test('after', () => {});\n",
        "product.test.js": "import { test } from 'vitest'; import p from './product'; test('uses', () => p());\n",
        "product.js": "process.exit(0); export default () => {};\n",
        "late.test.ts": "import { test } from 'vitest';\ntest('early', () => { setTimeout(() => { throw new Error('late'); }, 1); });\n"
        "test('waits for it', () => new Promise((done) => setTimeout(done, 50)));\n",
        "empty.test.js": "\n",
        "src/inner.test.js": "import { test } from 'vitest'; test('inside', () => {});\n",
    },
    "mocha": {
        "package.json": manifest("eslint . && nyc mocha --recursive --reporter dot"),
        "test/all.js": DESCRIBED.replace("TODO", "it('divides');").replace("BEFORE", "before")
        + "describe('each', () => {\n"
        "  beforeEach(() => { throw new Error('no disk'); });\n"
        "  it('reads', () => {}); it('writes', () => {});\n});\n"
        "it('tries again', function () { this.retries(2); this.test.n = (globalThis.n = (globalThis.n ?? 0) + 1);"
        " if (globalThis.n < 3) throw new Error('again'); });\n",
        "test/load.js": "require('./missing'); it('never', () => {});\n",
        "test/syntax.js": "it('never', () => {\n",
        "test/inner/module.mjs": "it('inside', () => {});\n",
    },
    "node-test": {
        "package.json": manifest("node --test"),
        "all.test.js": "const { before, describe, it } = require('node:test');\n"
        + DESCRIBED.replace("TODO", "it.todo('divides');").replace("BEFORE", "before")
        + "it('grows', { todo: true }, () => { throw new Error('later'); });\n"
        "it('outer', async (t) => { await t.test('good', () => {}); await t.test('bad', () => { throw new Error('b'); }); });\n",
        "load.test.js": "require('./missing'); require('node:test').test('never', () => {});\n",
        "load.test.mjs": "import './missing.mjs'; import test from 'node:test'; test('never', () => {});\n",
        "syntax.test.js": "it('never', () => {\n",
        "exit.test.js": "const test = require('node:test'); test('before', () => {}); test('exits', () => process.exit(0));\n",
        "product.test.js": "const test = require('node:test'); const p = require('./product'); test('uses', () => p());\n",
        "product.js": "process.exit(0);\n",
        "late.test.js": "const test = require('node:test');\ntest('early', () => { setTimeout(() => { throw new Error('late'); }, 1); });\n"
        "test('waits for it', () => new Promise((done) => setTimeout(done, 50)));\n",
        "loop.test.js": "const test = require('node:test'); test('loops', () => { for (;;); });\n",
        "empty.test.js": "\n",
        "test/inner.mjs": "import test from 'node:test'; test('inside', () => {});\n",
        "test/all.test.js": "const test = require('node:test'); test('test/all.test.js', () => {});\n",
    },
    "ava": {
        "package.json": manifest("xo && ava"),
        "all.test.js": "const test = require('ava');\n"
        "test('adds', t => t.pass());\n"
        "test('subtracts', t => t.is(1, 2));\n"
        "test('throws', () => { throw new Error('x'); });\n"
        "test.skip('multiplies', t => t.pass());\n"
        "test.todo('divides');\n"
        "test.failing('known', t => t.fail());\n"
        "test.failing('known no more', t => t.pass());\n"
        "for (const n of [1, 2]) test(`counts ${n}`, t => t.is(n, 1));\n"
        "test('asserts nothing', () => {});\n",
        "hook.test.js": "const test = require('ava'); test.before(() => { throw new Error('no database'); });\n"
        "test('opens', t => t.pass());\n",
        "load.test.js": "require('./missing'); require('ava')('never', t => t.pass());\n",
        "syntax.test.js": "test('never', () => {\n",
        "same.test.js": "const test = require('ava'); test('twice', t => t.pass()); test('twice', t => t.pass());\n",
        "exit.test.js": "const test = require('ava'); test.serial('before', t => t.pass());\n"
        "test.serial('exits', () => process.exit(0)); test.serial('after', t => t.pass());\n",
        "product.test.js": "const test = require('ava'); const p = require('./product'); test('uses', t => t.pass());\n",
        "product.js": "process.exit(0);\n",
        "empty.test.js": "\n",
        "waits.test.js": "const test = require('ava'); test('waits', () => new Promise(done => setTimeout(done, 1e6)));\n",
        "test/inner.js": "const test = require('ava'); test('inside', t => t.pass());\n",
    },
}
CART = {
    "passed": ["cart > adds", "cart > counts 1", "cart > inner > adds"],
    "failed": ["cart > subtracts", "cart > counts 2", "cart > twice", "cart > waits"],
    "skipped": ["cart > multiplies", "cart > divides"],
}


def cart(file: str) -> dict[str, str]:
    return {f"{file}::{name}": outcome for outcome, names in CART.items() for name in names}


EXPECTED: dict[str, dict[str, str]] = {
    "jest": {
        **cart("all.test.js"),
        "all.test.js::unready > opens": "failed",
        "all.test.js::known": "skipped",
        "all.test.js::known no more": "failed",
        "all.test.js::1 is 1": "passed",
        "all.test.js::1 is 2": "failed",
        "all.test.js::pictures": "failed",
        "load.test.js": "errored",
        "syntax.test.js": "errored",
        "exit.test.js": "errored",
        "product.test.js": "errored",
        "empty.test.js": "errored",
        "src/inner.test.js::inside": "passed",
    },
    "vitest": {
        **cart("all.test.js"),
        "all.test.js::unready": "errored",
        "all.test.js::unready > opens": "errored",
        "all.test.js::known": "skipped",
        "all.test.js::known no more": "failed",
        "all.test.js::1 is 1": "passed",
        "all.test.js::1 is 2": "failed",
        "all.test.js::pictures": "failed",
        "load.test.js": "errored",
        "syntax.test.js": "errored",
        "exit.test.js::before": "passed",
        "exit.test.js::exits": "failed",
        "exit.test.js::after": "passed",
        "product.test.js": "errored",
        "late.test.ts": "errored",
        "late.test.ts::early": "passed",
        "late.test.ts::waits for it": "passed",
        "empty.test.js": "errored",
        "src/inner.test.js::inside": "passed",
    },
    "mocha": {
        **cart("test/all.js"),
        'test/all.js::unready > "before all" hook for "opens"': "errored",
        'test/all.js::each > "before each" hook for "reads"': "errored",
        "test/all.js::each > reads": "errored",
        "test/all.js::tries again": "passed",
        "test/load.js": "errored",
        "test/syntax.js": "errored",
        "test/inner/module.mjs::inside": "passed",
    },
    "node-test": {
        "all.test.js": "errored",
        **{f"all.test.js::{name}": "passed" for name in ("cart > adds", "cart > counts 1")},
        **{f"all.test.js::{name}": "failed" for name in CART["failed"]},
        **{f"all.test.js::{name}": "skipped" for name in CART["skipped"]},
        "load.test.js": "errored",
        "load.test.mjs": "errored",
        "syntax.test.js": "errored",
        "exit.test.js": "errored",
        "product.test.js": "errored",
        "late.test.js": "errored",
        "late.test.js::early": "passed",
        "late.test.js::waits for it": "passed",
        "loop.test.js": "errored",
        "test/inner.mjs::inside": "passed",
        "test/all.test.js::test/all.test.js": "passed",
    },
    "ava": {
        **{f"all.test.js::{name}": "passed" for name in ("adds", "counts 1")},
        **{
            f"all.test.js::{name}": "failed"
            for name in ("subtracts", "throws", "counts 2", "known no more", "asserts nothing")
        },
        **{f"all.test.js::{name}": "skipped" for name in ("multiplies", "divides", "known")},
        "hook.test.js::before hook": "errored",
        "hook.test.js::opens": "errored",
        "load.test.js": "errored",
        "syntax.test.js": "errored",
        "same.test.js": "errored",
        "exit.test.js": "errored",
        **{f"exit.test.js::{name}": "errored" for name in ("exits", "after")},
        "exit.test.js::before": "passed",
        "product.test.js": "errored",
        "empty.test.js": "errored",
        "waits.test.js": "errored",
        "waits.test.js::waits": "failed",
        "test/inner.js::inside": "passed",
    },
}


@pytest.mark.parametrize("runner", CASES)
async def test_each_kind_of_test_has_its_outcome(projects: Projects, runner: str) -> None:
    report = await projects.run(runner, CASES[runner], limits=AVA if runner == "ava" else SHORT)
    found = table(report)
    if runner == "jest":  # a process that ends does not say reliably which of its tests had begun
        found = {ident: outcome for ident, outcome in found.items() if not ident.startswith("exit.test.js::")}
    assert found == EXPECTED[runner], report.output
    assert not report.timed_out
    assert report.complete == (runner != "jest")
    assert report.signs.forged == ()
    assert all(report.errors[ident].strip() for ident in report.red)
