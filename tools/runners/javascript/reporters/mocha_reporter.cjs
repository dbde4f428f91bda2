"use strict";
// The module that mocha loads as its reporter. The reporter itself was made before the repository's code was loaded.

module.exports = require("./shared.cjs").reporterModule();
