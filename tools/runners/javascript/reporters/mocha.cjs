"use strict";
// mocha: tests run in the process of the reporter.
//
// Canaries are two suites of tests that must fail, added when the run begins: they show code that makes every test pass.
// The guard shows replaced functions of mocha, its prototypes included, and of its tests. Code that changes the state of one test
// without replacing any function is not noticed.

const assert = require("node:assert");
const path = require("node:path");
const childProcess = require("node:child_process");
const { EventEmitter } = require("node:events");
const { createRequire, syncBuiltinESMExports } = require("node:module");
const { randomInt, randomUUID } = require("node:crypto");
const { pathToFileURL } = require("node:url");
const fs = require("node:fs");
const { openReport, takeKey } = require("./records.cjs");
const { lock, watch } = require("./guard.cjs");
const { canaryName } = require("./names.cjs");
const { takeSecret, textOf } = require("./shared.cjs");

const { on } = EventEmitter.prototype;
const { apply } = Reflect;
const { hasOwn } = Object;
const exit = process.exit.bind(process);
const { setImmediate } = globalThis;
const GLOBALS = ["describe", "context", "it", "specify", "suite", "test", "before", "after", "beforeEach", "afterEach"];

// mocha starts itself a second time if options for node are given. Make that process run this file, and hand it the key.
function followSecondProcess(settings, key) {
  const { spawn } = childProcess;
  childProcess.spawn = (command, words, options) => {
    const at = words?.findIndex((word) => /[\\/]mocha[\\/]lib[\\/]cli[\\/]cli\.c?js$/.test(word)) ?? -1;
    childProcess.spawn = spawn;
    syncBuiltinESMExports();
    if (at < 0) return spawn(command, words, options);
    const second = JSON.stringify({ ...settings, cli: words[at] });
    const run = path.join(__dirname, "run.cjs");
    const child = spawn(command, [...words.slice(0, at), run, second, ...words.slice(at + 1)], {
      ...options,
      stdio: ["inherit", "inherit", "inherit", "pipe"],
    });
    child.stdio[3].end(key.toString("hex"));
    return child;
  };
  syncBuiltinESMExports();
}

module.exports = ({ args, packageFolder, program, settings, start }) => {
  const second = settings.cli !== undefined;
  const key = second ? takeSecret(3) : takeKey(settings.key);
  const folder = packageFolder("mocha");
  const load = createRequire(path.join(folder, "package.json"));
  if (!second) followSecondProcess(settings, key);

  let tell; // opened by the process that runs the tests
  const record = (...fields) => {
    tell ??= openReport(settings.report, key);
    tell(...fields);
  };

  const loaded = load("./index.js");
  const Mocha = loaded.default ?? loaded;
  const { Runner, Suite, Test, Runnable, Hook, Context } = Mocha;
  const { create } = Suite;
  let genuine; // the instance that the command line made, because code under test can make others
  for (const name of ["loadFiles", "loadFilesAsync"]) {
    const method = Mocha.prototype[name];
    Mocha.prototype[name] = function (...rest) {
      genuine ??= this;
      return apply(method, this, rest);
    };
  }
  const signs = watch([
    ["Mocha.prototype", Mocha.prototype],
    ["Runner.prototype", Runner.prototype],
    ["Suite.prototype", Suite.prototype],
    ["Test.prototype", Test.prototype],
    ["Runnable.prototype", Runnable.prototype],
    ["Hook.prototype", Hook.prototype],
    ["Context.prototype", Context.prototype],
  ]);

  // A file that cannot be loaded is one red test; mocha itself would run nothing at all.
  const files = new Set();
  let loading = false; // a file, so that a global that is set is replaced by the code under test
  const loader = ["lib/nodejs/esm-utils.cjs", "lib/nodejs/esm-utils.js", "lib/esm-utils.js"].find((name) =>
    fs.existsSync(path.join(folder, name)),
  );
  if (loader !== undefined) {
    const utilities = load(`./${loader}`);
    const loadFiles = utilities.loadFilesAsync;
    utilities.loadFilesAsync = async (list, before, ...rest) => {
      for (const file of list) files.add(path.resolve(file));
      for (const file of files) record("plan", file);
      for (const file of list) {
        const prepare = (name) => {
          before(name); // sets the globals
          lock("", globalThis, (sign) => loading && record("tampering", sign), GLOBALS);
          loading = true;
        };
        try {
          await loadFiles([file], prepare, ...rest);
        } catch (error) {
          record("result", path.resolve(file), [], "error", textOf(error));
        }
        loading = false;
      }
    };
  }

  class Reporter {
    constructor(runner) {
      if (runner.suite !== genuine?.suite) {
        record("tampering", "the code under test started the reporter");
        return;
      }
      const listen = (event, listener) => apply(on, runner, [event, listener]);
      const canaries = new Map();
      const functions = new Map(); // of each test, as it was declared
      let running = null; // the test that began and has no result
      let hookFailed = false;

      const fileOf = (test) => test.file ?? test.parent?.file ?? [...files][0] ?? "package.json";
      const namesOf = (test) => test.titlePath();
      const finish = (test, outcome, text) => {
        if (canaries.has(test)) {
          canaries.set(test, outcome);
          return;
        }
        if (running === test) running = null;
        record("result", fileOf(test), namesOf(test), outcome, text);
      };

      listen("start", () => {
        runner.suite.eachTest((test) => functions.set(test, test.fn));
        const failing = [
          () => {
            throw new Error(`expected ${randomUUID()}`);
          },
          () => assert.strictEqual(randomUUID(), randomUUID()),
        ];
        for (const run of failing) {
          const suite = apply(create, Suite, [runner.suite, canaryName()]);
          const test = new Test(canaryName(), run);
          suite.addTest(test);
          canaries.set(test, "none");
        }
        // One runs last, the other at any place.
        const { suites } = runner.suite;
        const [moved] = suites.splice(suites.length - 2, 1);
        suites.splice(randomInt(suites.length), 0, moved);
      });
      listen("test", (test) => {
        if (canaries.has(test)) return;
        if (!(test._retriedTest ?? test.retriedTest?.())) record("start", fileOf(test), namesOf(test));
        running = test;
      });
      listen("pass", (test) => {
        const isOther = functions.has(test) && functions.get(test) !== test.fn;
        if (isOther || hasOwn(test, "run")) record("tampering", "the code under test replaced a test");
        finish(test, "passed", "");
      });
      listen("pending", (test) => finish(test, "skipped", ""));
      listen("fail", (test, error) => {
        const isHook = test.type === "hook";
        if (isHook) {
          hookFailed = true;
          if (running !== null) finish(running, "error", textOf(error));
        }
        finish(test, isHook ? "error" : "failed", textOf(error));
      });
      listen("end", () => {
        for (const sign of signs()) record("tampering", sign);
        for (const outcome of canaries.values()) {
          if (outcome === "failed" || (outcome === "none" && hookFailed)) continue;
          record("tampering", "a test that must fail did not fail");
        }
        for (const file of files) record("unit", file);
        record("end");
        setImmediate(exit); // timers of tests that hang would keep the process alive
      });
    }
  }

  require("./mocha_reporter.cjs").use(Reporter);
  if (second) {
    process.argv = [process.argv[0], settings.cli, ...args];
    import(pathToFileURL(settings.cli).href).then((cli) => (cli.main ?? cli.default.main)(args));
  } else {
    const reporter = path.join(__dirname, "mocha_reporter.cjs");
    start(program(folder).file, [...args, "--reporter", reporter, "--no-bail", "--no-parallel"]);
  }
};
