// Start the reporter of node:test before the test file is loaded: node itself starts it at the first test.

import test from "node:test";
import { begun, first } from "./node_reporter.mjs";

test(first, () => {});
await begun;
