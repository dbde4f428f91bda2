"use strict";
// The canaries of a file, in the context of its tests.

const { expect, test } = require("@jest/globals");

const key = Symbol.for("m3agent");
const { names, values } = globalThis[key];
delete globalThis[key];

test(names[0], () => {
  throw new Error(values[0]);
});
test(names[1], () => {
  expect(values[0]).toBe(values[1]);
});
