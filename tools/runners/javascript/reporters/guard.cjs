"use strict";
// Compare functions that decide about tests with their state before the repository's code was loaded.
//
// `watch(objects, locked)` returns a function that lists what was replaced since. It also makes assertions that must fail, about
// random values: code that replaced them would let every test pass. Code can restore what it replaced before anybody looks. So the
// functions of `locked` objects, those of `assert` among them, become accessors that note each assignment (`lock`). Nothing here
// notices code that changes the state of one test of the runner without replacing a function.

const assert = require("node:assert");
const { EventEmitter } = require("node:events");
const { randomUUID } = require("node:crypto");
const util = require("node:util");

const { apply, defineProperty, getOwnPropertyDescriptor, ownKeys } = Reflect;

const KINDS = ["Array", "Function", "Map", "Number", "Object", "Promise", "RegExp", "Set", "String"];

// Return the objects that hold the language's own functions. A realm is a global object: jest gives tests another one.
function core(realm) {
  const kinds = KINDS.filter((name) => realm[name]?.prototype);
  return [
    ["JSON", realm.JSON],
    ["Reflect", realm.Reflect],
    ...kinds.flatMap((name) => [[name, realm[name]], [`${name}.prototype`, realm[name].prototype]]),
  ].filter(([, object]) => object);
}

// Return a function that adds to a list which functions of the objects were replaced since. It calls no method.
function keep(objects) {
  const known = [];
  for (const [name, object] of objects) {
    for (const key of ownKeys(object)) {
      const value = getOwnPropertyDescriptor(object, key)?.value;
      if (typeof value === "function") known.push({ name, object, key, value });
    }
  }
  return (signs) => {
    for (let index = 0; index < known.length; index++) {
      const { name, object, key, value } = known[index];
      if (getOwnPropertyDescriptor(object, key)?.value !== value) {
        signs[signs.length] = `the code under test replaced ${name}.${String(key)}`;
      }
    }
  };
}

// Let each assignment to a function of an object be noted. The object works as before. A proxy, as jest's global object is, cannot
// have properties that cannot be configured.
function lock(name, object, note, keys = ownKeys(object), configurable = false) {
  for (const key of keys) {
    const descriptor = getOwnPropertyDescriptor(object, key);
    if (typeof descriptor?.value !== "function" || !descriptor.configurable || !descriptor.writable) continue;
    const { enumerable } = descriptor;
    let { value } = descriptor;
    const get = () => value;
    const set = function (next) {
      if (this !== object && this !== undefined) {
        defineProperty(this, key, { value: next, writable: true, enumerable, configurable: true });
        return;
      }
      if (next !== value) note(`the code under test replaced ${name ? `${name}.` : ""}${String(key)}`);
      value = next;
    };
    defineProperty(object, key, { get, set, enumerable, configurable });
  }
}

// Let jest and vitest note that code adds a way of comparing values: it may call everything equal.
function lockTesters(holder, note) {
  const testers = holder[Symbol.for("$$jest-matchers-object")]?.customEqualityTesters;
  if (!testers) return;
  const { push } = testers;
  const value = (...rest) => {
    note("the code under test added a way of comparing values");
    return apply(push, testers, rest);
  };
  defineProperty(testers, "push", { value, enumerable: false });
}

// Return a function that adds a sign to a list once. It calls no method: code under test can replace those of arrays.
function noteIn(signs) {
  return (sign) => {
    for (let index = 0; index < signs.length; index++) if (signs[index] === sign) return;
    signs[signs.length] = sign;
  };
}

function watch(objects = [], locked = []) {
  let noted = [];
  const note = (sign) => noteIn(noted)(sign);
  for (const [name, object] of [["assert", assert], ["assert.strict", assert.strict], ...locked]) lock(name, object, note);
  lock("Object", Object, note, ["is"]); // what jest and vitest compare with
  const others = [["EventEmitter.prototype", EventEmitter.prototype], ["util", util]];
  const replaced = keep([...core(globalThis), ...others, ...objects]);
  const falsehoods = [
    ["assert", () => assert(false)],
    ["assert.equal", () => assert.equal(randomUUID(), randomUUID())],
    ["assert.strictEqual", () => assert.strictEqual(randomUUID(), randomUUID())],
    ["assert.deepStrictEqual", () => assert.deepStrictEqual([randomUUID()], [randomUUID()])],
    ["assert.throws", () => assert.throws(() => {})],
  ];
  return () => {
    const signs = noted;
    noted = [];
    replaced(signs);
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

module.exports = { core, keep, lock, lockTesters, noteIn, watch };
