"use strict";
// Compare functions that decide about tests with their state before the repository's code was loaded.
//
// `watch(objects)` returns a function that lists what was replaced since. It also makes assertions that must fail, about
// random values: code that replaced them would let every test pass. Nothing here notices code that changes the state of
// one test of the runner without replacing a function.

const assert = require("node:assert");
const { EventEmitter } = require("node:events");
const { randomUUID } = require("node:crypto");

const { apply, getOwnPropertyDescriptor, ownKeys } = Reflect;

const CORE = [
  ["assert", assert],
  ["assert.strict", assert.strict],
  ["EventEmitter.prototype", EventEmitter.prototype],
  ["Promise.prototype", Promise.prototype],
  ["Function.prototype", Function.prototype],
  ["JSON", JSON],
];

function watch(objects = []) {
  const known = [];
  for (const [name, object] of [...CORE, ...objects]) {
    for (const key of ownKeys(object)) {
      const value = getOwnPropertyDescriptor(object, key)?.value;
      if (typeof value === "function") known.push({ name, object, key, value });
    }
  }
  const falsehoods = [
    ["assert", () => assert(false)],
    ["assert.equal", () => assert.equal(randomUUID(), randomUUID())],
    ["assert.strictEqual", () => assert.strictEqual(randomUUID(), randomUUID())],
    ["assert.deepStrictEqual", () => assert.deepStrictEqual([randomUUID()], [randomUUID()])],
    ["assert.throws", () => assert.throws(() => {})],
  ];
  return () => {
    const signs = [];
    for (let index = 0; index < known.length; index++) {
      const { name, object, key, value } = known[index];
      if (getOwnPropertyDescriptor(object, key)?.value !== value) {
        signs[signs.length] = `the code under test replaced ${name}.${String(key)}`;
      }
    }
    for (let index = 0; index < falsehoods.length; index++) {
      const [name, must_fail] = falsehoods[index];
      let failed = false;
      try {
        apply(must_fail, undefined, []);
      } catch {
        failed = true;
      }
      if (!failed) signs[signs.length] = `${name} accepts what is false`;
    }
    return signs;
  };
}

module.exports = { watch };
