"""A repository with a Python service, a front end in JavaScript and a tool in Go."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.kinds import Backend
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.suites import suites_of

REGULAR = 0o100644
FILES: dict[str, str | bytes] = {
    "service/calc.py": "def add(a, b):\n    return a - b\n",
    "service/test_calc.py": "from calc import add\n\ndef test_add():\n    assert add(2, 3) == 5\n",
    "web/package.json": '{"scripts": {"test": "node --test"}}\n',
    "web/add.js": "exports.add = (a, b) => a - b;\n",
    "web/add.test.js": "const test = require('node:test');\nconst { equal } = require('node:assert');\n"
    "const { add } = require('./add.js');\ntest('adds', () => equal(add(2, 3), 5));\n"
    "test('is a function', () => equal(typeof add, 'function'));\n",
    "tool/go.mod": "module tool\n\ngo 1.19\n",
    "tool/add.go": "package tool\n\nfunc Add(a, b int) int { return a - b }\n",
    "tool/add_test.go": 'package tool\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) {\n'
    '\tif Add(2, 3) != 5 {\n\t\tt.Fatal("not 5")\n\t}\n}\n',
}
PYTHON = "pytest:.::service/test_calc.py::test_add"
JAVASCRIPT = "node-test:web::web/add.test.js::adds"
GO = "go:tool::tool/add_test.go::TestAdd"

pytestmark = [
    pytest.mark.languages,
    pytest.mark.skipif(
        None in (shutil.which("go", path="/usr/bin"), shutil.which("node", path="/usr/bin")),
        reason="Go or node is missing in /usr/bin",
    ),
]


@pytest.mark.parametrize(
    ("changed", "fixed", "verdict"),
    [
        (["service/calc.py"], [PYTHON], "verified"),
        (["tool/add.go", "web/add.js"], [GO, JAVASCRIPT], "verified"),
        (["tool/add.go", "break"], [GO], "failed"),
    ],
    ids=["one", "two", "one fixed and one broken"],
)
async def test_the_tests_of_each_part_count(
    changed: list[str],
    fixed: list[str],
    verdict: str,
    workspace_of: Callable[[dict[str, str | bytes]], Workspace],
    one_backend: Backend,
    tmp_path: Path,
) -> None:
    workspace = workspace_of(FILES)
    contents = {
        path: str(FILES[path]).replace("a - b", "a + b").encode() for path in changed if path != "break"
    }
    if "break" in changed:
        contents["web/add.js"] = b"exports.sum = (a, b) => a - b;\n"
    edits = [(path, REGULAR, content) for path, content in contents.items()]
    patch = workspace.patch(workspace.commit_changes(workspace.base, edits, []))

    def fresh(of: Workspace) -> Sandbox:
        return new_sandbox(one_backend, SandboxSpec(), of, print)

    suites = suites_of(workspace.store, workspace.base)
    assert [suite.name for suite in suites] == ["pytest:.", "go:tool", "node-test:web"]
    runs = TreeRuns(workspace.store, fresh, tmp_path, suites=suites)
    found: Verification = await verify(workspace, patch, runs)
    assert (found.verdict, sorted(found.fixed)) == (verdict, sorted(fixed)), found.reason
    assert {ident.partition("::")[0] for ident in found.after.ids} == {suite.name for suite in suites}
