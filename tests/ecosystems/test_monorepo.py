"""A repository with a Python service, a front end in JavaScript and a tool in Go."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from m3agent.agent.verify.tree_runs import TreeRuns
from m3agent.agent.verify.verify import Verification, verify
from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.kinds import Backend
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.backends.sandboxes_ahead import SandboxesAhead
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.suites import suite_of, suites_of

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
CLIENT: dict[str, str | bytes] = {
    "client/package.json": '{"dependencies": {"web": "file:../web"}, "scripts": {"test": "node --test"}}\n',
    "client/sum.test.js": "const test = require('node:test');\nconst { equal } = require('node:assert');\n"
    "const { add } = require('../web/add.js');\ntest('sums', () => equal(add(5, 0), 5));\n",
}
"""A package that uses the front end's code. Its test passes before the patch."""
PYTHON = "pytest:.::service/test_calc.py::test_add"
JAVASCRIPT = "node-test:web::web/add.test.js::adds"
GO = "go:tool::tool/add_test.go::TestAdd"
SERVICE, WEB, TOOL = "pytest:.", "node-test:web", "go:tool"

pytestmark = [
    pytest.mark.languages,
    pytest.mark.skipif(
        None in (shutil.which("go", path="/usr/bin"), shutil.which("node", path="/usr/bin")),
        reason="Go or node is missing in /usr/bin",
    ),
]


Verified = Callable[[Mapping[str, str | bytes], Mapping[str, str]], Awaitable[Verification]]


@pytest.fixture
def verified(
    workspace_of: Callable[[dict[str, str | bytes]], Workspace], one_backend: Backend, tmp_path: Path
) -> Verified:
    """Return what verifies changes of files, with the files before them."""

    async def run(files: Mapping[str, str | bytes], changes: Mapping[str, str]) -> Verification:
        workspace = workspace_of(dict(files))
        edits = [(path, REGULAR, text.encode()) for path, text in changes.items()]
        patch = workspace.patch(workspace.commit_changes(workspace.base, edits, []))

        def fresh(of: Workspace) -> Sandbox:
            return new_sandbox(one_backend, SandboxSpec(), of, print)

        suites = suites_of(workspace.store, workspace.base)
        return await verify(
            workspace, patch, TreeRuns(SandboxesAhead(workspace.store, fresh), tmp_path, suites=suites)
        )

    return run


def ran_in(found: Verification) -> set[str]:
    """Return the suites with a result on both trees."""
    both = [{suite_of(ident) for ident in report.ids} for report in (found.before, found.after)]
    assert both[0] == both[1]
    return both[0]


RIGHT = {
    path: str(FILES[path]).replace("a - b", "a + b")
    for path in ("service/calc.py", "tool/add.go", "web/add.js")
}


@pytest.mark.parametrize(
    ("changes", "ran", "fixed", "verdict"),
    [
        (["service/calc.py"], [SERVICE], [PYTHON], "verified"),
        (["tool/add.go"], [TOOL], [GO], "verified"),
        (["tool/add.go", "web/add.js"], [TOOL, WEB], [GO, JAVASCRIPT], "verified"),
        (["web/add.js", "notes.txt"], [SERVICE, TOOL, WEB], [JAVASCRIPT], "verified"),
        (["tool/add.go", "break"], [TOOL, WEB], [GO], "failed"),
    ],
    ids=["one", "another one", "two", "a shared file", "one fixed and one broken"],
)
async def test_the_suites_that_a_patch_affects_run(
    changes: list[str], ran: list[str], fixed: list[str], verdict: str, verified: Verified
) -> None:
    contents = {path: RIGHT.get(path, "") for path in changes if path != "break"}
    if "break" in changes:
        contents["web/add.js"] = "exports.sum = (a, b) => a - b;\n"
    found = await verified(FILES, contents)
    assert (found.verdict, sorted(found.fixed)) == (verdict, sorted(fixed)), found.reason
    assert ran_in(found) == set(ran)
    assert {*found.left_out} == {SERVICE, TOOL, WEB} - {*ran}


@pytest.mark.parametrize(
    ("code", "verdict", "broken"),
    [
        (RIGHT["web/add.js"], "verified", ()),
        ("exports.add = (a, b) => b && a + b;\n", "failed", ("node-test:client::client/sum.test.js::sums",)),
    ],
    ids=["right", "wrong for the dependent"],
)
async def test_the_suite_of_a_dependent_runs_too(
    code: str, verdict: str, broken: tuple[str, ...], verified: Verified
) -> None:
    found = await verified({**FILES, **CLIENT}, {"web/add.js": code})
    assert (found.verdict, found.fixed, found.broken) == (verdict, (JAVASCRIPT,), broken), found.reason
    assert ran_in(found) == {"node-test:client", WEB}
    assert {*found.left_out} == {SERVICE, TOOL}
