"""A complete and correct row of SWE-bench, which tests then modify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.agent.repositories import write_files

GOLD = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def half(n):
-    return n // 3
+    return n // 2
"""
TESTS = """\
diff --git a/tests/test_calc.py b/tests/test_calc.py
--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -1,1 +1,2 @@
 from calc import half
+def test_half(): assert half(4) == 2
"""
SHARED = Path(__file__).parents[2].parent / "shared" / "data"
"""Real benchmark data, in a folder beside the repository if it exists."""


def a_row(**changes: Any) -> dict[str, Any]:
    """Return a complete row with these changes. A field set to `...` is left out."""
    row: dict[str, Any] = {
        "repo": "someone/calc",
        "instance_id": "someone__calc-1",
        "base_commit": "1" * 40,
        "patch": GOLD,
        "test_patch": TESTS,
        "problem_statement": "half(4) is 1",
        "hints_text": "a-hint-that-is-secret",
        "created_at": "2020-06-29T21:51:15Z",
        "version": "1.2",
        "FAIL_TO_PASS": '["tests/test_calc.py::test_half"]',
        "PASS_TO_PASS": '["tests/test_calc.py::test_other"]',
        "environment_setup_commit": "2" * 40,
        "environment": {"python": "3.11"},
        **changes,
    }
    return {name: value for name, value in row.items() if value is not ...}


def write_rows(path: Path, *rows: dict[str, Any]) -> str:
    """Write the rows as a .jsonl file, and return its path as text."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_program(folder: Path, name: str, code: str, gold: str, test: str, issue: str) -> Path:
    """Add a program to a benchmark folder like QuixBugs, and return the folder."""
    program = {f"{name}.py": code, f"test_{name}.py": test, "ISSUE.md": issue}
    write_files(folder / "programs" / name, program)
    write_files(folder / "gold", {f"{name}.py": gold})
    return folder
