"use strict";
// jest: tests run in worker processes, the reporter in the process that starts them.
//
// A worker runs jest_worker.cjs, which adds the canaries and signs the results of each file with a secret. So messages that
// code under test sends to this process do not count. jest before version 29 runs a single file in this process.

const path = require("node:path");
const { randomBytes } = require("node:crypto");
const { encode, mac, openReport, takeKey } = require("./records.cjs");
const { shareSecret } = require("./shared.cjs");
const worker = require("./jest_worker.cjs");

const OUTCOMES = { passed: "passed", failed: "failed" };

module.exports = ({ args, packageFolder, program, settings, start }) => {
  const key = takeKey(settings.key);
  const tell = openReport(settings.report, key);
  const secret = randomBytes(32);
  const { version, file } = program(packageFolder("jest"));
  const canStayInWorkers = Number.parseInt(version, 10) >= 29;
  if (!canStayInWorkers) worker.use(secret);
  shareSecret(secret);

  class Reporter {
    constructor() {
      this.open = new Map();
      this.files = 0;
    }

    onTestFileStart({ path: name }) {
      this.open.set(name, new Set());
      tell("plan", name);
    }

    onTestCaseStart({ path: name }, { ancestorTitles, title }) {
      const names = [...ancestorTitles, title];
      const open = this.open.get(name);
      const known = encode(names);
      if (open === undefined || open.has(known)) return; // a retry, or another test of this name
      open.add(known);
      tell("start", name, names);
    }

    onTestFileResult({ path: name }, result) {
      this.files += 1;
      const { signs = [], code } = result.m3agent ?? {};
      if (code !== mac(secret, encode(worker.signed(name, result, signs)))) {
        tell("result", name, [], "error", result.failureMessage ?? result.testExecError?.message ?? "no result");
        if (!result.testExecError) tell("tampering", "the code under test sent results of its own");
        return;
      }
      for (const sign of signs) tell("tampering", sign);
      for (const { ancestorTitles, title, status, failing, failureMessages } of result.testResults) {
        const outcome = failing && status === "passed" ? "skipped" : (OUTCOMES[status] ?? "skipped");
        tell("result", name, [...ancestorTitles, title], outcome, (failureMessages ?? []).join("\n"));
      }
      const { added = 0, updated = 0 } = result.snapshot ?? {};
      if (added + updated > 0) tell("result", name, [], "failed", "the tests wrote snapshots instead of comparing them");
      tell("unit", name);
    }

    onRunComplete(_, results) {
      const all = results.numTotalTestSuites === this.files && !results.wasInterrupted && !results.runExecError;
      if (all) tell("end");
    }

    getLastError() {}
  }

  require("./jest_reporter.cjs").use(Reporter);
  const options = [
    "--ci",
    "--bail=0",
    "--coverage=false",
    "--watchman=false",
    "--maxWorkers=2",
    `--reporters=${path.join(__dirname, "jest_reporter.cjs")}`,
    `--testRunner=${path.join(__dirname, "jest_worker.cjs")}`,
    ...(canStayInWorkers ? ["--workerIdleMemoryLimit=4GB"] : []),
  ];
  start(file, [...options, ...args]);
};
