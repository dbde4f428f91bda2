"use strict";
// Start a test runner of the repository with a reporter of m3agent:
//
//   node run.cjs SETTINGS ARGUMENT...
//
// SETTINGS is JSON: runner, report, key (the file with the key), files, seconds, nodeOptions. The package of the runner is
// the nearest one in node_modules, as for programs that npm starts.

const fs = require("node:fs");
const path = require("node:path");
const { spawnSync } = require("node:child_process");
const { pathToFileURL } = require("node:url");

const MISSING = 97;

// Return the folder of an installed package, from the working directory upwards.
function packageFolder(name) {
  for (let folder = process.cwd(); ; folder = path.dirname(folder)) {
    const found = path.join(folder, "node_modules", name);
    if (fs.existsSync(path.join(found, "package.json"))) return fs.realpathSync(found);
    if (folder === path.dirname(folder)) break;
  }
  process.stderr.write(`m3agent: the package ${name} is not installed in node_modules\n`);
  return process.exit(MISSING);
}

// Return a package's version and the path of its program.
function program(folder) {
  const { bin, version, name } = JSON.parse(fs.readFileSync(path.join(folder, "package.json"), "utf8"));
  return { version, file: path.join(folder, typeof bin === "string" ? bin : bin[name]) };
}

// A limit on the address space, as in some sandboxes, has no room for what V8 reserves for each WebAssembly memory. Then this
// program runs a second time, with an option that its own child processes get as well. Older versions lack the option.
function runsAgain() {
  const option = "--disable-wasm-trap-handler";
  const { NODE_OPTIONS = "", ...env } = process.env;
  if (NODE_OPTIONS.includes(option) || !process.allowedNodeEnvironmentFlags.has(option)) return false;
  if (/^Max address space +unlimited/m.test(fs.readFileSync("/proc/self/limits", "utf8"))) return false;
  const { status } = spawnSync(process.execPath, [...process.execArgv, ...process.argv.slice(1)], {
    env: { ...env, NODE_OPTIONS: `${NODE_OPTIONS} ${option}` },
    stdio: "inherit",
  });
  process.exitCode = status ?? 1;
  return true;
}

// Run a program in this process.
async function start(file, words) {
  process.argv = [process.argv[0], file, ...words];
  await import(pathToFileURL(file).href);
}

// Each module takes the key at once.
function main() {
  const [settingsText, ...args] = process.argv.slice(2);
  const settings = JSON.parse(settingsText);
  require(`./${settings.runner}.cjs`)({ args, packageFolder, program, settings, start });
}

if (!runsAgain()) main();
