"""Test which suites of a repository with several run for a patch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from m3agent.agent.verify import touched
from m3agent.agent.verify.patched_files import PatchedFiles
from m3agent.agent.verify.touched import suites_to_run
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.suites import suites_of
from tests.fakes.trees import memory_workspace

REGULAR, LINK = 0o100644, 0o120000
TESTED = '{"scripts": {"test": "node --test"}}\n'
SERVICE = {"service/calc.py": "x = 1\n", "service/test_calc.py": "import calc\n"}
WEB = {"web/package.json": TESTED, "web/add.js": "add\n", "web/add.test.js": "require('./add.js')\n"}
TOOL = {"tool/go.mod": "module tool\n", "tool/add.go": "package main\n", "tool/add_test.go": "package main\n"}
BASE = {**SERVICE, **WEB, **TOOL, "schema.json": "{}\n", "README.md": "Use web and tool.\n"}
ALL = "service tool web"
NAMES = {"pytest:.": "service", "go:tool": "tool", "node-test:web": "web"}


def workspace_of(folder: Path, files: Mapping[str, str]) -> Workspace:
    """Return a workspace over files; a text that starts with `-> ` is the target of a link."""
    workspace = memory_workspace(folder, {path: text for path, text in files.items() if text[:3] != "-> "})
    links = [(path, LINK, text[3:].encode()) for path, text in files.items() if text[:3] == "-> "]
    return Workspace(workspace.store, workspace.commit_changes(workspace.base, links, []))


def chosen(folder: Path, files: Mapping[str, str], changes: Mapping[str, str | None]) -> str:
    """Return the names of the suites that run for a patch, by their folders where `NAMES` has them."""
    workspace = workspace_of(folder, files)
    changed = [(path, REGULAR, text.encode()) for path, text in changes.items() if text is not None]
    deleted = [path for path, text in changes.items() if text is None]
    patch = workspace.patch(workspace.commit_changes(workspace.base, changed, deleted))
    suites = suites_of(workspace.store, workspace.base)
    found = suites_to_run(PatchedFiles(workspace, patch), suites)
    assert list(found) == [suite for suite in suites if suite in found], "their order is as before"
    return " ".join(sorted(NAMES.get(suite.name, suite.name) for suite in found))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("service/calc.py", "service"),
        ("service/test_calc.py", "service"),
        ("service/new/deep.py", "service"),
        ("web/add.js", "web"),
        ("web/index.html", "web"),
        ("web/package.json", "web"),
        ("web/README.md", "web"),
        ("tool/new.go", "tool"),
        ("tool/testdata/x.json", "tool"),
        ("web/add.js tool/add.go", "tool web"),
        ("service/calc.py tool/add.go", "service tool"),
        ("web/gen.py", "service web"),
        ("schema.json", ALL),
        ("README.md", ALL),
        ("other/add.js", ALL),
        ("service/page.html", ALL),
        ("website/add.js", ALL),
        (".github/workflows/ci.yml", ALL),
        ("package.json", ALL),
        ("go.work", ALL),
        ("web/add.js schema.json", ALL),
    ],
)
def test_suites_that_a_patch_touches(tmp_path: Path, changed: str, expected: str) -> None:
    assert chosen(tmp_path, BASE, dict.fromkeys(changed.split(), "new\n")) == expected


def test_a_deleted_file_counts(tmp_path: Path) -> None:
    assert chosen(tmp_path, BASE, {"tool/add.go": None}) == "tool"
    assert chosen(tmp_path, BASE, {"schema.json": None}) == ALL


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        # a file of another suite names the folder
        ({"web/e2e.test.js": "spawn('../tool/tool')\n"}, "tool web"),
        ({"web/e2e.test.js": "path.join(__dirname, '..', 'tool')\n"}, "tool web"),
        ({"web/package.json": '{"scripts": {"test": "node --test", "pretest": "cd ../tool && go build"}}'}, "tool web"),
        ({"service/run.py": "ROOT / 'tool' / 'bin'\n"}, "service tool"),
        ({"pyproject.toml": "include = ['tool']\n"}, "service tool"),
        ({"web/tool": "-> ../tool/data"}, "tool web"),
        ({"web/walk.js": "glob('../*/data.json')\n"}, "tool web"),
        # or what its manifest is called
        ({"tool/go.mod": "module example.com/acme\n", "web/a.js": "'example.com/acme/x'\n"}, "tool web"),
        ({"tool/npm/package.json": '{"name": "@acme/tool-kit"}', "web/a.js": "import '@acme/tool-kit/x'\n"}, "tool web"),
        ({"tool/py/pyproject.toml": "name = 'fast-lib'\n", "service/a.py": "import fast_lib\n"}, "service tool"),
        ({"tool/setup.cfg": "console_scripts =\n  runner = pkg.cli:main\n", "web/a.js": "spawn('runner')\n"}, "tool web"),
        # or a file between them does
        ({"scripts/build.sh": "cd tool\n", "web/a.js": "exec('../scripts/build.sh')\n"}, "tool web"),
        ({"Makefile": "all:\n\tcd tool; go build\n", "web/a.js": "exec('make -C .. all')\n"}, "tool web"),
        ({"tsconfig.base.json": '{"@x": ["tool/src"]}', "web/tsconfig.json": '"../tsconfig.base.json"'}, "tool web"),
        ({"latest": "-> tool", "web/a.js": "'../latest/x'\n"}, "tool web"),
        ({"package.json": '["tool", "web"]', "web/a.js": "require('../package.json')\n"}, "tool web"),
        ({"service/a.py": "'tool'\n", "web/a.js": "'service.a'\n"}, ALL),
        # a Python test may lie in the folder
        ({"tool/tests/test_it.py": "run('./it')\n"}, "service tool"),
        # these show nothing
        ({"web/a.js": "toolbox, my_tool, tools\n"}, "tool"),
        ({"web/README.md": "see ../tool\n", "web/yarn.lock": "tool@1\n", "web/package-lock.json": '"tool"'}, "tool"),
        ({"web/logo.bin": "\0 tool\n"}, "tool"),
        ({"package.json": '{"workspaces": ["tool", "web"]}', "web/a.js": "require('./package.json')\n"}, "tool"),
        ({"Makefile": "all:\n\tcd tool; go build\n", ".github/ci.yml": "cd tool; make\n"}, "tool"),
        ({"tests/test_it.py": "'tool'\n", "web/a.js": "'tests'\n"}, "service tool"),
        ({"assets/web/x.txt": "tool\n", "web/a.js": "'web'\n"}, "tool"),
        ({"src/x.txt": "tool\n", "service/a.py": "'src'\n"}, "tool"),
        ({"tool/gen.go": "'../web/add.js' and service\n"}, "tool"),
    ],
)  # fmt: skip
def test_dependents_of_a_suite(tmp_path: Path, more: dict[str, str], expected: str) -> None:
    assert chosen(tmp_path, {**BASE, **more}, {"tool/add.go": "new\n"}) == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"web/a.js": "exec('python ../service/run.py')\n"}, "service web"),
        ({"web/a.js": "exec('python -m service.run', {cwd: '..'})\n"}, "service web"),
        ({"service/src/app/x.py": "\n", "web/src/a.js": "'./src/b.js'\n"}, "service"),
        ({"pyproject.toml": "packages = ['service']\nserve = 'service.calc:x'\n", "web/a.js": "'serve'\n"}, "service web"),
    ],
)  # fmt: skip
def test_dependents_of_python_code(tmp_path: Path, more: dict[str, str], expected: str) -> None:
    assert chosen(tmp_path, {**BASE, **more}, {"service/calc.py": "new\n"}) == expected


def test_a_module_at_the_root_is_named_without_a_folder(tmp_path: Path) -> None:
    files = {**BASE, "run.py": "\n", "web/a.js": "exec('cd .. && python -m run')\n"}
    assert chosen(tmp_path, files, {"run.py": "new\n"}) == "service web"
    files = {**BASE, "setup.py": "\n", "web/a.js": "setup()\n"}
    assert chosen(tmp_path, files, {"setup.py": "new\n"}) == "service"


def test_a_new_file_in_a_folder_that_others_name(tmp_path: Path) -> None:
    files = {**BASE, "web/a.js": "exec('python -m jobs', {cwd: '..'})\n"}
    assert chosen(tmp_path, files, {"jobs/new.py": "new\n"}) == "service web"


def test_a_reference_that_the_patch_removes_counts(tmp_path: Path) -> None:
    files = {**BASE, "web/a.js": "'../tool'\n", "service/run.py": "'web'\n"}
    assert chosen(tmp_path, files, {"tool/add.go": "new\n", "web/a.js": "''\n"}) == ALL
    assert chosen(tmp_path, files, {"tool/add.go": "new\n", "web/a.js": None}) == ALL
    through = {**BASE, "web/a.js": "'../jobs'\n", "jobs/build.py": "'tool'\n"}
    assert chosen(tmp_path, through, {"tool/add.go": "new\n", "jobs/build.py": None}) == ALL


def test_packages_of_one_language(tmp_path: Path) -> None:
    """One imports the other by the name in its manifest, a third one has nothing to do with them."""
    files = {
        "packages/core/package.json": '{"name": "@acme/models", "scripts": {"test": "node --test"}}',
        "packages/core/a.test.js": "",
        "packages/app/package.json": '{"dependencies": {"@acme/models": "*"}, "scripts": {"test": "node --test"}}',
        "packages/app/b.test.js": "",
        "packages/docs/package.json": TESTED,
        "packages/docs/c.test.js": "require('./package.json')\n",
        "packages/tsconfig.json": "core\n",
        "package.json": '{"workspaces": ["packages/*"]}',
    }
    both = "node-test:packages/app node-test:packages/core"
    assert chosen(tmp_path, files, {"packages/core/x.js": "new\n"}) == both
    assert chosen(tmp_path, files, {"packages/app/x.js": "new\n"}) == "node-test:packages/app"
    assert chosen(tmp_path, files, {"packages/docs/x.js": "new\n"}) == "node-test:packages/docs"
    own = {**files, "packages/docs/x.js": "'packages'\n"}
    assert chosen(tmp_path, own, {"packages/core/x.js": "new\n"}) == both
    walking = {**files, "packages/docs/x.js": "glob(root + '/packages/*')\n"}
    assert chosen(tmp_path, walking, {"packages/core/x.js": "new\n"}) == f"{both} node-test:packages/docs"
    extended = {**files, "packages/docs/tsconfig.json": '"../tsconfig.json"'}
    assert chosen(tmp_path, extended, {"packages/core/x.js": "new\n"}) == f"{both} node-test:packages/docs"


def test_suites_in_each_others_folders_run_together(tmp_path: Path) -> None:
    files = {**BASE, "tool/sub/go.mod": "module sub\n", "tool/sub/a_test.go": "package sub\n"}
    assert chosen(tmp_path, files, {"tool/sub/a.go": "new\n"}) == "go:tool/sub tool"
    assert chosen(tmp_path, files, {"tool/add.go": "new\n"}) == "go:tool/sub tool"
    for dependent in ({"tool/sub/a.go": "'../../web'\n"}, {"tool/add.go": "'../web'\n"}):
        found = chosen(tmp_path, {**files, **dependent}, {"web/add.js": "new\n"})
        assert found == "go:tool/sub tool web"


def test_a_suite_in_the_folder_of_a_dependent_runs(tmp_path: Path) -> None:
    front = {"front/package.json": TESTED, "front/a.test.js": "require('../web')\n"}
    files = {**BASE, **front, "front/in/package.json": TESTED, "front/in/b.test.js": ""}
    assert chosen(tmp_path, files, {"web/add.js": "new\n"}) == "node-test:front node-test:front/in web"
    assert chosen(tmp_path, files, {"front/x.js": "new\n"}) == "node-test:front node-test:front/in"


def test_without_a_change_all_suites_run(tmp_path: Path) -> None:
    assert chosen(tmp_path, BASE, {}) == ALL


def test_a_suite_at_the_root_always_runs(tmp_path: Path) -> None:
    files = {**BASE, "tests/all.bats": "@test x {\n  true\n}\n"}
    assert chosen(tmp_path, files, {"web/add.js": "new\n"}) == "bats:. web"
    assert chosen(tmp_path, files, {"tests/all.bats": "new\n"}) == f"bats:. {ALL}"


@pytest.mark.parametrize("files", [SERVICE, TOOL, {"a.py": "", "test_a.py": ""}])
def test_a_single_suite_runs(tmp_path: Path, files: dict[str, str]) -> None:
    assert len(chosen(tmp_path, files, {"anything.txt": "new\n"}).split()) == 1
    assert len(chosen(tmp_path, files, {"tool/x.go": "new\n"}).split()) == 1


@pytest.mark.parametrize(("limit", "most"), [("MOST_BYTES", 50), ("MOST_FILES", 3)])
def test_all_suites_run_if_there_is_too_much_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(touched, limit, most)
    assert chosen(tmp_path, BASE, {"tool/add.go": "new\n"}) == ALL
