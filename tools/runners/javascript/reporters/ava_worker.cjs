"use strict";
// The check of a process of ava at its end, loaded before everything else in it.

const fs = require("node:fs");
const { encode, mac } = require("./records.cjs");
const { SECRET, takeSecret } = require("./shared.cjs");
const { watch } = require("./guard.cjs");

const secret = takeSecret();
const { writeSync } = fs;
const { send } = process;
const changed = watch();

process.on("exit", () => {
  const signs = changed();
  if (process.send !== send) signs.push("the code under test replaced process.send");
  const text = encode(signs);
  writeSync(SECRET, `${text}\t${mac(secret, text)}`);
});
