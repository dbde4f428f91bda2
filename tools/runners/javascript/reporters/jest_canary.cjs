"use strict";
// The canaries of a file, in the context of its tests, and the locks on what the tests call.

const { expect, test } = require("@jest/globals");

const key = Symbol.for("m3agent");
const { names, values, lock, lockTesters } = globalThis[key];
delete globalThis[key];

const matchers = globalThis[Symbol.for("$$jest-matchers-object")]?.matchers;
if (matchers) lock("expect", matchers);
lockTesters();
lock("", globalThis, ["expect", "test", "it", "describe", "beforeAll", "beforeEach", "afterEach", "afterAll"]);

test(names[0], () => {
  throw new Error(values[0]);
});
test(names[1], () => {
  expect(values[0]).toBe(values[1]);
});
