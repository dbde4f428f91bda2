"use strict";
// ava: each file runs in a process of its own, the reporter in the process that starts them.
//
// ava's own reporter for TAP is replaced by one that writes records. ava_worker.cjs checks a process of tests at its end: a
// process that ends by itself without that check is a sign of tampering. There are no canaries, because ava starts as soon
// as the first test is declared. So code that changes ava's assertions is not noticed, nor code that sends results of its
// own to this process and leaves the real ones out without replacing a function.

const path = require("node:path");
const { pathToFileURL } = require("node:url");
const { randomBytes } = require("node:crypto");
const { mac, openReport, takeKey } = require("./records.cjs");
const { shareSecret } = require("./shared.cjs");

function errorText(error) {
  const { name = "Error", message = "", formattedDetails = [], formattedError = "", originalError, stack } = error ?? {};
  const details = formattedDetails.map(({ label, formatted }) => `${label}\n${formatted}`);
  const said = message || originalError?.message || formattedError;
  return [`${name}: ${said}`, ...details, stack ?? originalError?.stack ?? ""].join("\n");
}

module.exports = async ({ args, packageFolder, program, settings, start }) => {
  const key = takeKey(settings.key);
  const tell = openReport(settings.report, key);
  const secret = randomBytes(32);
  shareSecret(secret, (code, text) => {
    const [signs, given] = text.split("\t");
    if (given === mac(secret, signs)) JSON.parse(signs).forEach((sign) => tell("tampering", sign));
    else if (code === 0) tell("tampering", "a test process ended without the check at its end");
  });

  const folder = packageFolder("ava");
  const { default: Reporter } = await import(pathToFileURL(path.join(folder, "lib/reporters/tap.js")).href);
  const open = new Map(); // by file: tests that must still report, by title
  const declaring = new Set(); // files with a test
  let ended = false;

  function result({ testFile, title }, outcome, text = "") {
    const waiting = open.get(testFile);
    const left = (waiting?.get(title) ?? 0) - 1;
    if (left > 0) waiting.set(title, left);
    else waiting?.delete(title);
    tell("result", testFile, [title], outcome, text);
  }

  function fileError({ testFile }, text) {
    tell("result", testFile ?? "package.json", [], "error", text);
  }

  function close({ testFile }, text) {
    for (const [title, times] of open.get(testFile) ?? []) {
      for (let count = 0; count < times; count++) tell("result", testFile, [title], "error", text);
    }
    open.delete(testFile);
  }

  function change(event) {
    switch (event.type) {
      case "selected-test":
        declaring.add(event.testFile);
        if (event.skip || event.todo) {
          tell("result", event.testFile, [event.title], "skipped", "");
        } else {
          const waiting = open.get(event.testFile);
          waiting.set(event.title, (waiting.get(event.title) ?? 0) + 1);
          tell("start", event.testFile, [event.title]);
        }
        break;
      case "test-passed":
        result(event, event.knownFailing ? "skipped" : "passed");
        break;
      case "test-failed":
        result(event, "failed", errorText(event.err));
        break;
      case "hook-failed":
        tell("result", event.testFile, [event.title], "error", errorText(event.err));
        break;
      case "timeout":
        for (const [testFile, titles] of event.pendingTests) {
          for (const title of titles) result({ testFile, title }, "failed", `timed out after ${event.period} ms`);
          fileError({ testFile }, "it was ended after its time limit");
        }
        break;
      case "process-exit":
        fileError(event, "its code ended the process");
        break;
      case "missing-ava-import":
        fileError(event, "no tests: it does not import ava");
        break;
      case "uncaught-exception":
      case "unhandled-rejection":
      case "internal-error":
        fileError(event, errorText(event.err));
        break;
      case "worker-failed":
        fileError(event, event.err ? errorText(event.err) : `its process ended with ${event.nonZeroExitCode ?? event.signal}`);
        close(event, "the process ended before this test");
        break;
      case "worker-finished":
        if (!declaring.has(event.testFile)) fileError(event, "no tests: its process ended early, or it declares none");
        if (event.forcedExit) fileError(event, "its process was ended");
        close(event, "it did not run: a hook failed, or the process ended");
        tell("unit", event.testFile);
        break;
      case "end":
        ended = true;
        break;
      default:
    }
  }

  Reporter.prototype.startRun = (plan) => {
    for (const file of plan.files) {
      open.set(file, new Map());
      tell("plan", file);
    }
    plan.status.on("stateChange", change);
  };
  Reporter.prototype.endRun = () => {};
  process.on("exit", () => ended && tell("end"));

  const { version, file } = program(folder);
  const processes = Number.parseInt(version, 10) >= 4 ? ["--no-worker-threads"] : [];
  const worker = `--node-arguments=--require ${path.join(__dirname, "ava_worker.cjs")}`;
  await start(file, ["--tap", ...processes, "--no-fail-fast", worker, ...args]);
};
