"""JavaScript and TypeScript: jest, vitest, mocha, `node --test` and ava."""

from m3agent.tools.runners.javascript.packages import restored_manifest
from m3agent.tools.runners.javascript.runners import JAVASCRIPT

__all__ = ["JAVASCRIPT", "restored_manifest"]
