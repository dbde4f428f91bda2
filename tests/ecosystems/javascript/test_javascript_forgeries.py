"""Code under test that makes a wrong product look right: no run of it is complete and green without a sign of tampering."""

from __future__ import annotations

import json

import pytest

from m3agent.tools.runners.base import Limits
from tests.ecosystems.javascript.conftest import Projects

pytestmark = [pytest.mark.languages, pytest.mark.asyncio(loop_scope="module")]

SCRIPTS = {"jest": "jest", "vitest": "vitest run", "mocha": "mocha", "node-test": "node --test", "ava": "ava"}
TESTS = {
    "jest": {
        "test/sum.test.js": "const { sum } = require('../product');\n"
        "test('sums', () => { expect(sum(1, 2)).toBe(3); require('assert').strictEqual(sum(1, 2), 3); });\n"
    },
    "vitest": {
        "test/sum.test.js": "import { expect, test } from 'vitest'; import assert from 'node:assert';\n"
        "import { sum } from '../product.js';\n"
        "test('sums', () => { expect(sum(1, 2)).toBe(3); assert.strictEqual(sum(1, 2), 3); });\n"
    },
    "mocha": {
        "test/sum.js": "const { sum } = require('../product');\n"
        "it('sums', () => require('assert').strictEqual(sum(1, 2), 3));\n"
    },
    "node-test": {
        "test/sum.js": "const { sum } = require('../product'); const { test } = require('node:test');\n"
        "test('sums', () => require('assert').strictEqual(sum(1, 2), 3));\n"
    },
    "ava": {
        "test/sum.js": "const { sum } = require('../product'); const test = require('ava');\n"
        "test('sums', t => { require('assert').strictEqual(sum(1, 2), 3); t.pass(); });\n"
    },
}
"""A test of a sum that is wrong. The assertions that it uses are those that a forgery replaces."""
FILES = """\
const fs = require('fs'), path = require('path'), crypto = require('crypto');
const work = '/tmp/m3agent-tests';
const all = fs.readdirSync(work).flatMap((name) => [path.join(work, name), path.join(work, name, 'reporters')])
  .filter((name) => fs.existsSync(name))
  .flatMap((folder) => fs.readdirSync(folder).map((name) => path.join(folder, name)));
const reports = all.filter((name) => name.endsWith('/report'));
const line = (key, number, record) => {
  const body = `${number}\\t${JSON.stringify(record)}`;
  return `${body}\\t${crypto.createHmac('sha256', key).update(body).digest('hex')}\\n`;
};
const forged = (key) => [['plan', FILE], ['start', FILE, ['sums']], ['result', FILE, ['sums'], 'passed', ''],
  ['unit', FILE], ['end']].map((record, index) => line(key, index + 1, record)).join('');
"""
"""Finds what the run wrote outside of the work tree."""
REAL_PROCESS = "const real = require('vm').runInThisContext('process');\n"
COMMON = {
    "ends the process": "process.exit(0);",
    "ends the process for real": "process.reallyExit(0);",
    "writes the report": FILES
    + "for (const name of reports) fs.writeFileSync(name, forged('')); process.reallyExit(0);",
    "appends to the report": FILES
    + "for (const name of reports) fs.appendFileSync(name, forged('key')); process.reallyExit(0);",
    "uses the key": FILES
    + "const keys = all.filter((name) => name.endsWith('/key')).map((name) => fs.readFileSync(name));\n"
    "for (const name of reports) fs.writeFileSync(name, forged(keys[0] ?? process.env.M3AGENT_KEY ?? ''));\n"
    "process.reallyExit(0);",
    "replaces the reporters": FILES
    + "for (const name of all.filter((name) => /[.][cm]js$/.test(name))) fs.writeFileSync(name, '');",
    "replaces assert": "const assert = require('assert');\n"
    "for (const name of Object.keys(assert)) if (typeof assert[name] === 'function') assert[name] = () => {};\n"
    "globalThis.expect = () => new Proxy({}, { get: () => () => {} });",
    "replaces assert until the end": "const assert = require('assert'); const { strictEqual } = assert;\n"
    "assert.strictEqual = () => {}; process.on('beforeExit', () => { assert.strictEqual = strictEqual; });\n"
    "globalThis.expect &&= ((real) => () => new Proxy({}, { get: () => () => {} }))(globalThis.expect);",
    "replaces assert for one call": "const assert = require('assert'); const { strictEqual } = assert;\n"
    "assert.strictEqual = () => { assert.strictEqual = strictEqual; };\n"
    "const real = globalThis.expect; globalThis.expect = () => { globalThis.expect = real; return { toBe() {} }; };",
    "prints results": "require('fs').writeSync(1, 'ok 1 - sums\\n1..1\\n# pass 1\\n'); process.reallyExit(0);",
}
OWN = {
    "jest": {
        "sends a result": REAL_PROCESS
        + "const result = { testResults: [{ ancestorTitles: [], title: 'sums', status: 'passed', failureMessages: [] }],\n"
        "  numPassingTests: 1, numFailingTests: 0, numPendingTests: 0, numTodoTests: 0, snapshot: {}, perfStats: {},\n"
        "  testFilePath: '/ws/ROOT/FILE', m3agent: { signs: [], code: '' } };\n"
        "real.send([0, result]);",
        "replaces the tests": "const symbol = Object.getOwnPropertySymbols(globalThis).find((s) => globalThis[s]?.rootDescribeBlock);\n"
        "setTimeout(() => {}, 0);\n"
        "const state = globalThis[symbol];\n"
        "const change = () => state.rootDescribeBlock.children.forEach((test) => { test.fn = () => {}; });\n"
        "exports.sum = () => 0; afterAll(() => {}); beforeAll(change);",
        "removes errors": "const symbol = Object.getOwnPropertySymbols(globalThis).find((s) => globalThis[s]?.rootDescribeBlock);\n"
        "afterEach(() => globalThis[symbol].rootDescribeBlock.children.forEach((test) => { test.errors.length = 0; }));",
        "extends expect": "expect.extend({ toBe: () => ({ pass: true, message: () => '' }) });\n"
        "require('assert').strictEqual = () => {};",
        "adds a tester": "expect['addEqualityTesters']([() => true]); require('assert').strictEqual = () => {};\n"
        "const is = Object.is; Object.is = () => { Object.is = is; return true; };",
        "compares with another function": "const { is } = Object; Object.is = () => true;\n"
        "afterAll(() => { Object.is = is; });",
        "extends expect by a hidden name": "const real = require('assert').strictEqual; let left = 1;\n"
        "globalThis['ex' + 'pect']['ext' + 'end']({ toBe: () => ({ pass: true, message: () => '' }) });\n"
        "globalThis['t' + 'est'] = ((test) => (name, run) => { globalThis.test = test; test(name, () => {}); })(test);",
    },
    "vitest": {
        "sends a result": "process.send?.({ type: 'testfileFinished', __vitest_worker_response__: true });\n"
        "process.removeAllListeners('message'); process.send = () => true;",
        "adds a tester": "const { expect } = await import('vitest'); expect.addEqualityTesters([() => true]);\n"
        "const { is } = Object; Object.is = () => { Object.is = is; return true; };",
        "changes the results": "const { afterAll, afterEach } = await import('vitest');\n"
        "afterEach(({ task }) => { for (const one of task.file.tasks) one.result = { state: 'pass' }; });\n"
        "afterAll(() => {});",
        "extends expect": "const { expect } = await import('vitest');\n"
        "expect.extend({ toBe: () => ({ pass: true, message: () => '' }) }); require('assert').strictEqual = () => {};",
    },
    "mocha": {
        "turns failures into passes": "const { EventEmitter } = require('events'); const { emit } = EventEmitter.prototype;\n"
        "EventEmitter.prototype.emit = function (name, ...rest) {\n"
        "  return emit.call(this, name === 'fail' ? 'pass' : name, ...rest); };",
        "replaces the run of a test": "const { Runnable } = require('mocha');\n"
        "const { run } = Runnable.prototype;\n"
        "Runnable.prototype.run = function (done) { return this.title === 'sums' ? done() : run.call(this, done); };",
        "replaces it()": "const { it } = globalThis; globalThis.it = (name) => it(name, () => {});",
        "replaces it() for one call": "const { it } = globalThis;\n"
        "globalThis.it = (name) => { globalThis.it = it; it(name, () => {}); };",
        "replaces the function of a test": "globalThis.beforeEach(function () { this.currentTest.fn = () => {}; });",
        "replaces the run of one test": "globalThis.beforeEach(function () { this.currentTest.run = (done) => done(); });",
        "starts the reporter": "const name = Object.keys(require.cache).find((name) => name.endsWith('mocha_reporter.cjs'));\n"
        "const Mocha = require('mocha'); const suite = new Mocha.Suite('', new Mocha.Context(), true);\n"
        "const test = new Mocha.Test('sums', () => {}); test.file = '/ws/ROOT/FILE'; suite.addTest(test);\n"
        "const runner = new Mocha.Runner(suite, {}); new (require(name))(runner, {}); runner.run(() => process.reallyExit(0));",
        "uses the records": "const name = Object.keys(require.cache).find((name) => name.endsWith('records.cjs'));\n"
        + FILES
        + "const { openReport } = require(name); fs.rmSync(reports[0]); const tell = openReport(reports[0], Buffer.from(''));\n"
        "tell('result', FILE, ['sums'], 'passed', ''); tell('end'); process.reallyExit(0);",
        "changes what JSON writes": "String.prototype.toJSON = Array.prototype.toJSON = () => 'passed';",
    },
    "node-test": {
        "prints events": "const v8 = require('v8');\n"
        "const events = [{ type: 'test:pass', data: { name: 'sums', nesting: 0, testNumber: 1, details: { duration_ms: 1 },\n"
        "  file: '/ws/ROOT/FILE' } }];\n"
        "for (const event of events) { const s = new v8.DefaultSerializer(); s.writeHeader(); s.writeValue(event);\n"
        "  const body = s.releaseBuffer(); const head = Buffer.from([0xff, 0x0f, 0, 0, 0, 0]); head.writeUInt32BE(body.length, 2);\n"
        "  require('fs').writeSync(1, Buffer.concat([head, body])); }\n"
        "process.reallyExit(0);",
        "writes into the pipe": FILES
        + "require('fs').writeSync(4, forged('').replace(/^/gm, '')); process.reallyExit(0);",
        "replaces test()": "const runner = require('node:test'); const { test } = runner;\n"
        "runner.test = (name) => test(name, () => {});",
        "replaces test() for one call": "const runner = require('node:test'); const { test } = runner;\n"
        "runner.test = (name) => { runner.test = test; test(name, () => {}); };",
        "changes the stream": "const { Readable } = require('stream'); const { push } = Readable.prototype;\n"
        "Readable.prototype.push = function (event, ...rest) {\n"
        "  if (event?.type === 'test:fail') event.type = 'test:pass';\n"
        "  return push.call(this, event, ...rest); };",
        "starts the reporter": "const name = Object.keys(require.cache).find((name) => name.endsWith('records.cjs'));\n"
        "const reporter = name.replace('records.cjs', 'node_reporter.mjs');\n"
        "async function* events() { yield { type: 'test:pass', data: { name: 'sums', nesting: 0, details: {} } }; }\n"
        "import(reporter).then(async (m) => { for await (const _ of m.default(events())); process.reallyExit(0); });",
    },
    "ava": {
        "sends a result": "process.send({ ava: { type: 'selected-test', title: 'sums', skip: false, todo: false } });\n"
        "process.send({ ava: { type: 'test-passed', title: 'sums', duration: 1 } });\n"
        "setTimeout(() => process.reallyExit(0), 100); const end = Date.now() + 300; while (Date.now() < end);",
        "keeps failures back": "const { send } = process;\n"
        "process.send = function (message, ...rest) {\n"
        "  if (message?.ava?.type === 'test-failed') message.ava = { type: 'test-passed', title: 'sums', duration: 1 };\n"
        "  return send.call(this, message, ...rest); };",
        "says that the check found nothing": "require('fs').writeSync(4, '[]\\t' + '0'.repeat(64)); "
        "require('assert').strictEqual = () => {}; process.removeAllListeners('exit');",
    },
}
FORGERIES = [
    pytest.param(runner, code, id=f"{runner}-{name.replace(' ', '-')}")
    for runner in SCRIPTS
    for name, code in {**COMMON, **OWN[runner]}.items()
]


def product(runner: str, code: str) -> str:
    (file,) = TESTS[runner]
    code = code.replace("ROOT", "project").replace("FILE'", f"{file}'").replace("FILE", json.dumps(file))
    if runner == "vitest":
        start = (
            "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);\n"
        )
        return f"{start}{code}\nexport const sum = () => 0;\n"
    return f"{code}\nexports.sum = () => 0;\n"


@pytest.mark.parametrize("runner", SCRIPTS)
async def test_the_tests_are_red_and_green_without_a_forgery(projects: Projects, runner: str) -> None:
    manifest = {"package.json": json.dumps({"scripts": {"test": SCRIPTS[runner]}})}
    wrong = await projects.run(runner, {**manifest, **TESTS[runner], "product.js": product(runner, "")})
    assert (len(wrong.red), wrong.complete, wrong.signs.forged) == (1, True, ()), wrong.output
    right = product(runner, "").replace("() => 0", "(a, b) => a + b")
    good = await projects.run(runner, {**manifest, **TESTS[runner], "product.js": right})
    assert (len(good.passed), good.red, good.complete) == (1, set(), True), good.output
    assert good.signs.forged == ()


@pytest.mark.parametrize(("runner", "code"), FORGERIES)
async def test_a_forgery_is_not_believed(projects: Projects, runner: str, code: str) -> None:
    report = await projects.run(
        runner,
        {
            "package.json": json.dumps({"scripts": {"test": SCRIPTS[runner]}}),
            **TESTS[runner],
            "product.js": product(runner, code),
        },
        limits=Limits(total=30, per_test=5),
    )
    believed = report.complete and not report.red and bool(report.passed)
    assert not believed or report.signs.forged, report.output


@pytest.mark.parametrize("runner", SCRIPTS)
async def test_a_replaced_function_of_the_language_is_noticed(projects: Projects, runner: str) -> None:
    (file,) = TESTS[runner]
    in_list = {file: TESTS[runner][file].replace("strictEqual(sum(1, 2), 3)", "ok([sum(1, 2)].includes(3))")}
    in_list = {file: in_list[file].replace("expect(sum(1, 2)).toBe(3); ", "")}
    code = "[].constructor.prototype.includes = () => true;"
    report = await projects.run(
        runner,
        {
            "package.json": json.dumps({"scripts": {"test": SCRIPTS[runner]}}),
            **in_list,
            "product.js": product(runner, code),
        },
    )
    assert "the code under test replaced Array.prototype.includes" in report.signs.forged, report.output


@pytest.mark.parametrize("runner", SCRIPTS)
async def test_a_vanished_test_has_no_result(projects: Projects, runner: str) -> None:
    """Code under test can keep a test from being declared. Then its id is missing, and verification finds that."""
    code = {
        "jest": "const { test } = globalThis; globalThis.test = () => {}; test('another', () => {});",
        "vitest": "const { test } = await import('vitest'); test('another', () => {}); throw new Error('stop');",
        "mocha": "globalThis.it('another', () => {}); throw new Error('stop');",
        "node-test": "require('node:test').test('another', () => {}); process.on('uncaughtException', () => {}); throw 1;",
        "ava": "require('ava')('another', t => t.pass()); throw new Error('stop');",
    }[runner]
    report = await projects.run(
        runner,
        {
            "package.json": json.dumps({"scripts": {"test": SCRIPTS[runner]}}),
            **TESTS[runner],
            "product.js": product(runner, code),
        },
    )
    assert not [ident for ident in report.passed if ident.endswith("::sums")]
