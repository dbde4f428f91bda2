"use strict";
// Write the records that m3agent.tools.runners.records reads.
//
// All functions are taken at load, before any code of the repository can replace them. The key exists only in the memory
// of this process: its file is deleted before the repository's code is loaded.

const fs = require("node:fs");
const { createHmac } = require("node:crypto");

const { openSync, readFileSync, unlinkSync, writeSync } = fs;
const { apply, getPrototypeOf } = Reflect;
const { isArray } = Array;
const { stringify } = JSON;
const { from } = Buffer;
const hmac = getPrototypeOf(createHmac("sha256", "any"));
const { update, digest } = hmac;

// Text is written one string at a time, because a function toJSON of the repository's code cannot change a string.
function encode(value) {
  if (!isArray(value)) return stringify(`${value}`);
  let text = "[";
  for (let index = 0; index < value.length; index++) text += (index ? "," : "") + encode(value[index]);
  return `${text}]`;
}

function mac(key, text) {
  const code = createHmac("sha256", key);
  apply(update, code, [text]);
  return apply(digest, code, ["hex"]);
}

// Return the key in a file, and delete the file.
function takeKey(file) {
  const key = from(readFileSync(file, "latin1"), "hex");
  unlinkSync(file);
  return key;
}

// Return a function that writes one record to a descriptor: tell("start", file, [name]).
function recordsTo(out, key) {
  let number = 0;
  return (...record) => {
    number += 1;
    const body = `${number}\t${encode(record)}`;
    writeSync(out, `${body}\t${mac(key, body)}\n`);
  };
}

function openReport(report, key) {
  return recordsTo(openSync(report, "wx", 0o600), key);
}

// Return the authentic records of a text, as a process with this key wrote them.
function readRecords(text, key) {
  const records = [];
  for (const line of text.split("\n")) {
    const [number, body, code] = line.split("\t");
    if (number !== `${records.length + 1}` || code !== mac(key, `${number}\t${body}`)) continue;
    records.push(JSON.parse(body));
  }
  return records;
}

module.exports = { encode, mac, openReport, readRecords, recordsTo, takeKey };
