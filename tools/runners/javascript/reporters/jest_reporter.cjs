"use strict";
// The module that jest loads as its reporter. The reporter itself was made before.

module.exports = require("./shared.cjs").reporterModule();
