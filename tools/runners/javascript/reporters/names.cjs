"use strict";
// Names of canaries: tests that must fail. They look like any other test, so that code cannot make an exception of them.

const { randomInt } = require("node:crypto");

const DOINGS = ["handles", "returns", "accepts", "keeps", "parses", "rejects", "ignores", "restores"];
const THINGS = ["an empty list", "nested values", "unknown options", "the default", "long names", "missing keys"];
const WHEN = ["twice in a row", "after an error", "without arguments", "in strict mode", "with a prefix", "at the end"];

const one = (list) => list[randomInt(list.length)];

module.exports = { canaryName: () => `${one(DOINGS)} ${one(THINGS)} ${one(WHEN)}` };
