// The reporter of one test file for node:test. node_child.mjs loads it before the file.

import { createRequire } from "node:module";
import { randomUUID } from "node:crypto";
import { Readable } from "node:stream";

const load = createRequire(import.meta.url);
const { recordsTo } = load("./records.cjs");
const { takeSecret, textOf } = load("./shared.cjs");
const { watch } = load("./guard.cjs");

const tell = recordsTo(4, takeSecret(3));
export const first = randomUUID(); // name of the test that makes node start this reporter before the file
const changed = watch([["Readable.prototype", Readable.prototype]], [["node:test", load("node:test")]]);
process.on("uncaughtExceptionMonitor", (error) => tell("thrown", textOf(error)));

let begin;
export const begun = new Promise((resolve) => {
  begin = resolve;
});
let used = false;

function outcomeOf(type, data) {
  if (data.skip !== undefined || data.todo !== undefined) return "skipped";
  if (type === "test:pass") return "passed";
  return data.details?.error?.failureType === "hookFailed" ? "error" : "failed";
}

export default async function* report(source) {
  if (used) throw new Error("there is one report for each process");
  used = true;
  begin();
  const names = [];
  for await (const { type, data } of source) {
    if (data?.name === first) continue;
    if (type === "test:dequeue" || type === "test:start") {
      names.length = data.nesting;
      names[data.nesting] = data.name;
      tell("began", names);
    } else if (type === "test:pass" || type === "test:fail") {
      const isSuite = data.details?.type === "suite";
      const error = data.details?.error;
      if (isSuite && (type === "test:pass" || error?.failureType === "subtestsFailed")) continue;
      const path = [...names.slice(0, data.nesting), data.name];
      tell("result", path, outcomeOf(type, data), error ? textOf(error.cause ?? error) : "");
    }
  }
  for (const sign of changed()) tell("tampering", sign);
  tell("ended");
}
