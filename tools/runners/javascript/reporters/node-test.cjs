"use strict";
// node --test: each file runs in a process of its own, with the reporter in it.
//
// `node --test` itself believes what a test process prints, so code under test could print results. Here the process sends
// records through a pipe, with a key that it reads before it loads the file. There are no canary tests, because code
// cannot reach the functions of the runner; node_reporter.mjs checks the assertions instead. A file without any sign of
// life for the time limit is ended. A file without tests, such as a helper in the folder of tests, has no result.

const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { spawn } = require("node:child_process");
const { randomBytes } = require("node:crypto");
const { openReport, readRecords, takeKey } = require("./records.cjs");

const CHILD = path.join(__dirname, "node_child.mjs");
const REPORTER = path.join(__dirname, "node_reporter.mjs");
const START = 10; // seconds that the start of a process may take on a busy machine
const MOST_ERROR = 4000; // characters of a process's standard error in an error text

module.exports = async ({ settings }) => {
  const tell = openReport(settings.report, takeKey(settings.key));
  const { files, nodeOptions = [], seconds } = settings;
  for (const file of files) tell("plan", file);
  const waiting = [...files];
  const worker = async () => {
    for (let file = waiting.shift(); file !== undefined; file = waiting.shift()) await runFile(file);
  };
  await Promise.all(Array.from({ length: os.availableParallelism?.() ?? 2 }, worker));
  tell("end");

  function runFile(file) {
    if (!fs.existsSync(file)) {
      tell("result", file, [], "error", "there is no such file");
      return Promise.resolve();
    }
    return new Promise((resolve) => {
      const key = randomBytes(32);
      const env = { ...process.env };
      delete env.NODE_TEST_CONTEXT;
      const own = ["--import", CHILD, `--test-reporter=${REPORTER}`, "--test-reporter-destination=stderr"];
      const child = spawn(process.execPath, [...nodeOptions, ...own, file], {
        env,
        stdio: ["ignore", "inherit", "pipe", "pipe", "pipe"],
      });
      const [, , stderr, keyPipe, reportPipe] = child.stdio;
      keyPipe.on("error", () => {});
      keyPipe.end(key.toString("hex"));
      let text = "";
      let error = "";
      let silent = false;
      let timer;
      const alive = () => {
        clearTimeout(timer);
        timer = setTimeout(() => {
          silent = true;
          child.kill("SIGKILL");
        }, (text === "" ? START + seconds : seconds) * 1000);
      };
      alive();
      reportPipe.setEncoding("utf8").on("data", (piece) => {
        text += piece;
        alive();
      });
      stderr.setEncoding("utf8").on("data", (piece) => {
        process.stderr.write(piece);
        error = (error + piece).slice(-MOST_ERROR);
      });
      child.on("exit", () => {
        clearTimeout(timer);
        // A process that the file started may keep the pipes open.
        setTimeout(() => [stderr, reportPipe].forEach((stream) => stream.destroy()), 1000).unref();
      });
      child.on("close", (code) => {
        pass(file, readRecords(text, key), code, error, silent);
        resolve();
      });
    });
  }

  // Pass the records of a file on.
  function pass(file, records, code, error, silent) {
    let last = null; // the test that began last
    let red = false;
    let ended = false;
    let thrown = "";
    for (const [kind, ...fields] of records) {
      if (kind === "began") last = fields[0];
      else if (kind === "thrown") thrown ||= fields[0];
      else if (kind === "ended") ended = true;
      else if (kind === "tampering") tell("tampering", fields[0]);
      else if (kind === "result") {
        const [names, outcome, text] = fields;
        red ||= outcome === "failed" || outcome === "error";
        tell("result", file, names, outcome, text);
      }
    }
    if (silent) {
      if (last !== null) tell("result", file, last, "failed", `timed out: no sign of life for ${seconds} s`);
      tell("result", file, [], "error", "it was ended after its time limit; its other tests did not run");
    } else if (ended && code !== 0 && !red) {
      tell("result", file, [], "error", thrown || error || `the process ended with ${code}`);
    } else if (ended) {
      if (thrown) tell("result", file, [], "error", thrown);
      tell("unit", file);
    } else {
      tell("result", file, [], "error", thrown || `the process ended early with ${code}\n${error}`);
    }
  }
};
