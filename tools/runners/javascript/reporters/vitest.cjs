"use strict";
// vitest: tests run in workers, the reporter in the process that starts them.
//
// vitest_setup.mjs runs in a worker before each test file. It adds canaries, tests that must fail, and signs the list of
// the tests that passed. So messages that code under test sends to this process do not count. It does not notice code that
// changes vitest's own state for a single test. Without isolation, such code can also read the secret of the signature.

const path = require("node:path");
const { pathToFileURL } = require("node:url");
const { randomBytes } = require("node:crypto");
const { encode, mac, openReport, takeKey } = require("./records.cjs");
const { textOf } = require("./shared.cjs");
const { canaryName } = require("./names.cjs");

const SETUP = path.join(__dirname, "vitest_setup.mjs");
const SHARED = "m3agent";

// Return a test's names, those of its groups first.
function namesOf(task) {
  const names = [];
  for (let at = task; at && at !== task.file; at = at.suite) {
    if (at.name) names.unshift(at.name); // version 1 has a group without a name around each file
  }
  return names;
}

function allTasks(suite) {
  return suite.tasks.flatMap((task) => (task.tasks ? [task, ...allTasks(task)] : [task]));
}

function errorsOf(task) {
  return (task.result?.errors ?? []).map(textOf).join("\n");
}

function outcomeOf(task) {
  const state = task.result?.state;
  if (state === "pass") return task.fails ? "skipped" : "passed";
  if (state === "fail") return "failed";
  for (let at = task.suite; at; at = at.suite) {
    if (at.result?.errors?.length) return "error"; // a hook of its group failed
  }
  return task.mode === "run" ? "error" : "skipped";
}

module.exports = async ({ args, packageFolder, settings }) => {
  const key = takeKey(settings.key);
  const tell = openReport(settings.report, key);
  const secret = randomBytes(32).toString("hex");
  const names = [canaryName(), `${canaryName()} again`];
  const isCanary = (task) => names.includes(task.name) && namesOf(task).length === 1;
  const reported = new Set();

  function reportFile(file) {
    if (reported.has(file.filepath)) return;
    reported.add(file.filepath);
    const tasks = allTasks(file).filter((task) => !isCanary(task));
    const text = errorsOf(file);
    for (const task of tasks) {
      if (task.tasks) {
        if (errorsOf(task)) tell("result", file.filepath, namesOf(task), "error", errorsOf(task));
      } else {
        const outcome = outcomeOf(task);
        const why = errorsOf(task) || (outcome === "error" ? "it did not run: a hook of its group failed" : "");
        tell("result", file.filepath, namesOf(task), outcome, why);
      }
    }
    if (text || tasks.length === 0) tell("result", file.filepath, [], "error", text || "no tests");
    const { signs = [], code } = file.meta[SHARED] ?? {};
    const passed = tasks.filter((task) => !task.tasks && task.result?.state === "pass").map(namesOf);
    if (code === mac(secret, encode([file.filepath, passed, signs]))) {
      for (const sign of signs) tell("tampering", sign);
    } else if (!text && file.pool !== "typescript") {
      tell("tampering", "the results of a file are not those of its worker");
    }
    tell("unit", file.filepath);
  }

  let unit = path.resolve("package.json");
  function end(files, errors) {
    for (const error of errors) tell("result", error.VITEST_TEST_PATH ?? unit, [], "error", textOf(error));
    if (files === reported.size) tell("end");
  }

  const old = { files: true }; // versions before 3 call only the methods at the end
  const reporter = {
    onInit(vitest) {
      for (const project of vitest.projects ?? []) {
        project.config.setupFiles.unshift(SETUP);
        const { isolate, poolOptions = {} } = project.config;
        const isolated = isolate !== false && Object.values(poolOptions).every((pool) => pool?.isolate !== false);
        project.provide(SHARED, { secret, names, isolated });
      }
    },
    onTestRunStart(modules) {
      old.files = false;
      for (const { moduleId } of modules) {
        unit = moduleId;
        tell("plan", moduleId);
      }
      this.planned = new Set(modules.map(({ moduleId }) => moduleId)).size;
    },
    onTestCaseReady({ task }) {
      if (!isCanary(task) && task.mode === "run") tell("start", task.file.filepath, namesOf(task));
    },
    onTestModuleEnd({ task }) {
      reportFile(task);
    },
    onTestRunEnd(modules, errors, reason) {
      for (const { task } of modules) reportFile(task); // version 3 does not report a file that cannot be loaded
      if (reason !== "interrupted") end(this.planned, errors);
    },
    onFinished(files = [], errors = []) {
      if (!old.files) return;
      for (const file of files) tell("plan", file.filepath);
      files.forEach(reportFile);
      end(files.length, errors);
    },
  };

  const folder = packageFolder("vitest");
  const { parseCLI, startVitest } = await import(pathToFileURL(path.join(folder, "dist", "node.js")).href);
  const { filter, options } = parseCLI(["vitest", "run", ...args], { allowUnknownOptions: true });
  process.env.TEST = process.env.VITEST = "true";
  process.env.NODE_ENV ??= "test";
  const vitest = await startVitest("test", filter, {
    ...options,
    run: true,
    watch: false,
    bail: 0,
    update: false,
    coverage: { enabled: false },
    reporters: [reporter],
  });
  await vitest?.close();
  process.exit();
};
