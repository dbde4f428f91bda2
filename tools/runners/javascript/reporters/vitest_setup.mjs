// The canaries of a file, and the signature of its results. vitest loads this file before each test file.

import { createRequire } from "node:module";
import { afterAll, chai, expect, test } from "vitest";

const load = createRequire(import.meta.url);
const { encode, mac } = load("./records.cjs");
const { lockTesters, noteIn, watch } = load("./guard.cjs");
const SHARED = "m3agent";

const { providedContext } = globalThis.__vitest_worker__;
const { secret, names, isolated } = providedContext[SHARED];
const changed = watch([], chai ? [["expect", chai.Assertion.prototype]] : []);
if (isolated) delete providedContext[SHARED]; // otherwise the next file needs it

const added = [];
lockTesters(globalThis, noteIn(added));

let file;
test(names[0], ({ task }) => {
  file = task.file;
  throw new Error(names[1]);
});
test(names[1], () => {
  expect(names[0]).toBe(names[1]);
});

// Hooks of this kind run in the opposite order, so this one is the last.
afterAll(() => {
  const signs = [...changed(), ...added];
  const passed = [];
  let canaries = 0;
  const visit = (task, above) => {
    const path = [...above, task.name];
    if (task.tasks) task.tasks.forEach((inner) => visit(inner, path));
    // not names.includes(): the code under test may have replaced it
    else if (path.length === 1 && (task.name === names[0] || task.name === names[1])) canaries += task.result?.state === "fail";
    else if (task.result?.state === "pass") passed.push(path);
  };
  if (file === undefined) return; // without a signature, the results do not count
  file.tasks.forEach((task) => visit(task, []));
  if (canaries !== names.length) signs.push("a test that must fail did not fail");
  file.meta[SHARED] = { signs, code: mac(secret, encode([file.filepath, passed, signs])) };
});
