"use strict";
// The runner of one test file in a worker of jest: it runs jest-circus with two canaries, tests that must fail, and signs
// the results.
//
// It notices code that makes all tests pass, that replaces the function of a test, or that removes a test's error. It does
// not notice code that changes jest's own state in another way for a single test. jest-jasmine2 runs without canaries.

const path = require("node:path");
const { createRequire } = require("node:module");
const { randomUUID } = require("node:crypto");
const { encode, mac } = require("./records.cjs");
const { takeSecret } = require("./shared.cjs");
const { core, keep, lock, lockTesters, noteIn, watch } = require("./guard.cjs");
const { canaryName } = require("./names.cjs");

const changed = watch();
let secret; // known in workers; see `use` for the process that starts them
let running = false;

// Return the real runner: that of the installed jest, wherever the package manager put it.
function findRunner(rootDir) {
  let load = createRequire(path.join(rootDir, "package.json"));
  for (const name of ["jest", "jest-cli", "@jest/core", "jest-config"]) {
    try {
      load = createRequire(load.resolve(`${name}/package.json`));
    } catch {
      // not a package of this version
    }
  }
  for (const name of ["jest-circus/runner", "jest-jasmine2"]) {
    try {
      const found = load(name);
      return { circus: name !== "jest-jasmine2", run: found.default ?? found };
    } catch {
      // not a runner of this version
    }
  }
  throw new Error("m3agent did not find the runner of jest");
}

// What the signature of a file's results covers.
function signed(file, result, signs) {
  const tests = (result.testResults ?? []).map(({ ancestorTitles, title, status }) => [...ancestorTitles, title, status]);
  return [file, tests, signs];
}

function allTests(block) {
  return block.children.flatMap((child) => (child.type === "describeBlock" ? allTests(child) : [child]));
}

// Look at the events of jest-circus.
function observe(environment, names, signs) {
  const functions = new Set();
  const failures = new Set();
  const handle = environment.handleTestEvent?.bind(environment);
  environment.handleTestEvent = async (event, state) => {
    switch (event.name) {
      case "add_test":
        functions.add(event.fn);
        break;
      case "run_start":
        for (const test of allTests(state.rootDescribeBlock)) {
          if (names.includes(test.name) && state.hasFocusedTests) test.mode = "only";
          if (!test.concurrent && !functions.has(test.fn)) signs.push("the code under test replaced a test");
        }
        break;
      case "test_fn_start":
        if (!event.test.concurrent && !functions.has(event.test.fn)) signs.push("the code under test replaced a test");
        break;
      case "test_fn_failure":
        failures.add(event.test);
        break;
      case "test_retry":
        failures.delete(event.test);
        break;
      case "test_done":
        if (failures.has(event.test) && event.test.errors.length === 0) {
          signs.push("the code under test removed the error of a test");
        }
        break;
      default:
    }
    await handle?.(event, state);
  };
}

async function runFile(globalConfig, config, environment, runtime, file, send) {
  if (running) throw new Error("this worker runs another file");
  running = true;
  try {
    secret ??= takeSecret();
    const { circus, run } = findRunner(config.rootDir);
    const names = [canaryName(), `${canaryName()} again`];
    const signs = [];
    lock("Object", environment.global.Object, noteIn(signs), ["is"], true); // what jest compares with
    const replaced = keep(core(environment.global));
    let setUp = config.setupFilesAfterEnv;
    if (circus) {
      const note = noteIn(signs);
      environment.global[Symbol.for("m3agent")] = {
        names,
        values: [randomUUID(), randomUUID()],
        lockTesters: () => lockTesters(environment.global, note),
        lock: (name, object, keys) => lock(name, object, note, keys, keys !== undefined),
      };
      setUp = [path.join(__dirname, "jest_canary.cjs"), ...setUp];
      observe(environment, names, signs);
    }
    const forward = send && ((kind, words) => {
      if (!names.includes(words[1]?.title)) send(kind, words);
    });
    const result = await run(globalConfig, { ...config, setupFilesAfterEnv: setUp }, environment, runtime, file, forward);
    if (circus) removeCanaries(result, names, signs);
    replaced(signs);
    signs.push(...changed());
    result.m3agent = { signs, code: mac(secret, encode(signed(file, result, signs))) };
    return result;
  } finally {
    running = false;
  }
}

function removeCanaries(result, names, signs) {
  const isCanary = (test) => test.ancestorTitles.length === 0 && names.includes(test.title);
  const canaries = result.testResults.filter(isCanary);
  if (result.testExecError) return;
  if (canaries.length !== names.length || canaries.some((test) => test.status !== "failed")) {
    signs.push("a test that must fail did not fail");
  }
  result.testResults = result.testResults.filter((test) => !isCanary(test));
  result.numFailingTests -= canaries.filter((test) => test.status === "failed").length;
}

module.exports = runFile;
module.exports.signed = signed;
module.exports.use = (given) => {
  secret ??= given;
};
