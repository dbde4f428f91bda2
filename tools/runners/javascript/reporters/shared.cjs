"use strict";
// Small things that several runners need.

const childProcess = require("node:child_process");
const fs = require("node:fs");
const { syncBuiltinESMExports } = require("node:module");

const SECRET = 4; // the descriptor of a worker's secret

// Return an error as text.
function textOf(error) {
  const { name = "Error", message = String(error), stack = "" } = error ?? {};
  return `${stack}`.includes(message) ? `${stack}` : `${name}: ${message}\n${stack}`;
}

// Give each process that `fork` starts a secret, through a pipe: nobody can read it a second time. `onEnd` gets the child, its
// exit code and what it wrote into the pipe.
function shareSecret(secret, onEnd = () => {}) {
  const { fork } = childProcess;
  childProcess.fork = (file, ...rest) => {
    const words = rest.find(Array.isArray) ?? [];
    const options = rest.find((given) => given && !Array.isArray(given)) ?? {};
    const how = options.silent ? "pipe" : "inherit";
    const child = fork(file, words, { ...options, stdio: [how, how, how, "ipc", "pipe"] });
    const pipe = child.stdio[SECRET];
    let text = "";
    pipe.setEncoding("latin1").on("data", (piece) => {
      text += piece;
    });
    pipe.on("error", () => {}); // the process may end before it reads
    pipe.end(secret.toString("hex"));
    child.on("close", (code) => onEnd(code, text));
    return child;
  };
  syncBuiltinESMExports();
}

// Return the secret of this process. The descriptor stays open, for an answer.
function takeSecret(descriptor = SECRET) {
  return Buffer.from(fs.readFileSync(descriptor, "latin1"), "hex");
}

// A runner loads its reporter by path. Return a module whose constructor is the one that `use` got first.
function reporterModule() {
  let used;
  const Reporter = function (...args) {
    return new used(...args);
  };
  Reporter.use = (given) => {
    used ??= given;
  };
  return Reporter;
}

module.exports = { SECRET, reporterModule, shareSecret, takeSecret, textOf };
