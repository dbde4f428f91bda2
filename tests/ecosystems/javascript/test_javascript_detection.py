"""Which suites a JavaScript repository has, how its packages are installed, and which arguments its runner gets."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from m3agent.tools.runners.base import Job, Preparation, Suite, Tree
from m3agent.tools.runners.javascript import JAVASCRIPT
from m3agent.tools.runners.javascript.detect import calls_of
from m3agent.tools.runners.javascript.packages import manager_of
from m3agent.tools.runners.suites import find_suites

TESTS = {"test/a.test.js": ""}


def tree_of(files: Mapping[str, object]) -> Tree:
    contents = {
        path: (content if isinstance(content, str) else json.dumps(content)).encode()
        for path, content in files.items()
    }
    return Tree(contents, contents.__getitem__)


def scripts(test: str, **others: str) -> dict[str, object]:
    return {"scripts": {"test": test, **others}}


def suites_of(files: Mapping[str, object]) -> dict[str, Suite]:
    return {suite.name: suite for suite in find_suites(tree_of(files))}


def arguments(suite: Suite, tree: Tree, *wanted: str) -> list[str]:
    runner = JAVASCRIPT[suite.runner]
    targets = runner.select(suite, tree, wanted)
    (command,) = runner.commands(Job(suite, tree, targets, work="/tmp/work"), ())
    start = command.argv.index("/tmp/work/reporters/run.cjs")
    return list(command.argv[start + 2 :])


@pytest.mark.parametrize(
    ("script", "others", "found"),
    [
        ("jest", {}, ["jest:."]),
        ("eslint . && nyc --reporter=lcov mocha", {}, ["mocha:."]),
        (
            "npm run lint && npm run unit",
            {"lint": "eslint .", "unit": "cross-env A=1 vitest run"},
            ["vitest:."],
        ),
        ("pnpm lint && vitest run --typecheck", {"lint": "eslint ."}, ["vitest:."]),
        ("yarn unit", {"unit": "xo && c8 ava"}, ["ava:."]),
        ("run-s lint test:*", {"lint": "eslint .", "test:unit": "mocha"}, ["mocha:."]),
        ("node --test", {}, ["node-test:."]),
        ("node --import tsx --test 'test/**/*.ts'", {}, ["node-test:."]),
        ("tsx --test", {}, ["node-test:."]),
        ("node --expose-gc node_modules/mocha/bin/mocha.js", {}, ["mocha:."]),
        ("NODE_OPTIONS=--experimental-vm-modules npx jest", {}, ["jest:."]),
        ("mocha && node --test", {}, ["mocha:.", "node-test:."]),
        ("jest && npm run check:type:ts", {"check:type:ts": "tsc"}, ["jest:."]),
        ("npm test", {}, []),  # it calls itself
        ("npm run a", {"a": "npm run b", "b": "npm run a"}, []),
        ("echo 'no tests' && exit 1", {}, []),
        ("eslint 'src/jest", {}, []),
        ("eslint jest.config.js", {}, []),
        ("npm run unit --workspaces", {"unit": "jest"}, ["jest:."]),  # by the other script
        ("npm run build --workspaces", {"build": "jest"}, []),
    ],
)
def test_the_script_names_the_runner(script: str, others: dict[str, str], found: list[str]) -> None:
    assert sorted(suites_of({"package.json": scripts(script, **others), **TESTS})) == found


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"package.json": {"devDependencies": {"vitest": "4"}}, **TESTS}, ["vitest:."]),
        ({"package.json": {"devDependencies": {"jest": "30"}}, "src/a.js": ""}, []),  # no test file
        ({"package.json": {}, ".mocharc.yml": "", **TESTS}, ["mocha:."]),
        ({"package.json": {}, **TESTS}, []),
        ({"package.json": "{", **TESTS}, []),
        ({"package.json": {"scripts": "jest", "devDependencies": []}, **TESTS}, []),
        ({"package.json": scripts("jest", unit="mocha"), **TESTS}, ["jest:."]),
        ({"package.json": {"scripts": {"test:unit": "mocha"}}, **TESTS}, ["mocha:."]),
        ({"app/package.json": scripts("jest"), "app/a.spec.ts": ""}, ["jest:app"]),
        ({"test/fixtures/p/package.json": scripts("jest"), "test/fixtures/p/a.test.js": ""}, []),
        ({"examples/p/package.json": scripts("jest"), "examples/p/a.test.js": ""}, []),
        ({"node_modules/p/package.json": scripts("jest"), "node_modules/p/a.test.js": ""}, []),
    ],
)
def test_where_the_runner_is_found(files: dict[str, object], found: list[str]) -> None:
    assert sorted(suites_of(files)) == found


MEMBERS = {
    "packages/a/package.json": scripts("vitest run"),
    "packages/a/a.test.ts": "",
    "packages/b/package.json": scripts("mocha"),
    "packages/b/test/b.js": "",
    "tools/c/package.json": scripts("vitest run"),
    "tools/c/c.test.ts": "",
}


@pytest.mark.parametrize(
    ("root", "found"),
    [
        ({"package.json": {"workspaces": ["packages/*"], **scripts("npm test --workspaces")}}, "abc"),
        ({"package.json": {"workspaces": {"packages": ["packages/*"]}, **scripts("vitest run")}}, ".bc"),
        (
            {
                "package.json": scripts("vitest run"),
                "pnpm-workspace.yaml": "packages:\n  - 'packages/*'  # all\n",
            },
            ".bc",
        ),
        ({"package.json": {"workspaces": ["packages/**", "!packages/a"], **scripts("vitest run")}}, ".abc"),
        ({"package.json": {"workspaces": ["packages/*"], "devDependencies": {"vitest": "4"}}}, "abc"),
        (
            {"package.json": {"workspaces": ["packages/*"], **scripts("npm run unit -ws", unit="vitest")}},
            "abc",
        ),
    ],
)
def test_a_workspace_is_one_suite_if_its_root_runs_the_tests(root: dict[str, object], found: str) -> None:
    names = {".": "vitest:.", "a": "vitest:packages/a", "b": "mocha:packages/b", "c": "vitest:tools/c"}
    assert sorted(suites_of({**root, **MEMBERS})) == sorted(names[letter] for letter in found)


@pytest.mark.parametrize(
    ("files", "manager", "command"),
    [
        ({"package-lock.json": ""}, "npm", "npm ci --ignore-scripts --no-audit --no-fund"),
        ({"npm-shrinkwrap.json": ""}, "npm", "npm ci --ignore-scripts --no-audit --no-fund"),
        ({}, "npm", "npm install --ignore-scripts --no-audit --no-fund"),
        (
            {"pnpm-lock.yaml": "lockfileVersion: '6.0'\n"},
            "pnpm",
            "npx --yes pnpm@8.15.9 install --frozen-lockfile --ignore-scripts",
        ),
        (
            {"yarn.lock": "# yarn lockfile v1\n"},
            "yarn",
            "npx --yes yarn@1.22.22 install --frozen-lockfile --ignore-scripts --non-interactive",
        ),
        (
            {"yarn.lock": "__metadata:\n  version: 8\n", ".yarnrc.yml": "nodeLinker: pnp\nyarnPath: x\n"},
            "yarn",
            "env YARN_NODE_LINKER=node-modules YARN_IGNORE_PATH=1 npx --yes @yarnpkg/cli-dist@4.9.2 install --immutable --mode=skip-build",
        ),
        (
            {"yarn.lock": "__metadata:\n  version: 8\n", ".yarnrc.yml": "a: 1\nnodeLinker: 'node-modules'\n"},
            "yarn",
            "npx --yes @yarnpkg/cli-dist@4.9.2 install --immutable --mode=skip-build",
        ),
        ({"bun.lockb": ""}, "bun", "npm install --ignore-scripts --no-audit --no-fund"),
    ],
)
def test_how_packages_are_installed(files: dict[str, object], manager: str, command: str) -> None:
    tree = tree_of({"package.json": scripts("jest"), **TESTS, **files})
    (suite,) = find_suites(tree)
    assert manager_of(tree, suite.root) == manager
    plan = JAVASCRIPT["jest"].prepare(suite, tree)
    assert [" ".join(words) for words in plan.commands] == [command]
    assert set(plan.inputs) == {"package.json", *files} - {"bun.lockb"}
    assert (plan.keep, plan.system_packages) == (("node_modules",), ("nodejs", "npm"))
    assert bool(plan.notices) == (manager == "bun")


def test_the_repository_names_the_version_of_its_package_manager() -> None:
    manifest = {"packageManager": "pnpm@9.1.0+sha512.abc", **scripts("jest")}
    tree = tree_of({"package.json": manifest, **TESTS, "pnpm-lock.yaml": "", ".npmrc": ""})
    (suite,) = find_suites(tree)
    plan = JAVASCRIPT["jest"].prepare(suite, tree)
    assert plan.commands[0][2] == "pnpm@9.1.0"
    assert set(plan.inputs) == {"package.json", "pnpm-lock.yaml", ".npmrc"}
    hostile = tree_of({"package.json": {**scripts("jest"), "packageManager": "npm@1.2.3; rm -rf /"}, **TESTS})
    assert manager_of(hostile, "") == "npm"


@pytest.mark.parametrize(
    ("script", "env"),
    [
        ("TZ=UTC vitest", {"TZ": "UTC"}),
        ("cross-env TZ=Asia/Tokyo LC_ALL=de_DE.UTF-8 NO_COLOR=1 vitest run", {"TZ": "Asia/Tokyo", "LC_ALL": "de_DE.UTF-8", "NO_COLOR": "1"}),
        ("export TZ=UTC B=2 && A=1 vitest", {"TZ": "UTC", "B": "2", "A": "1"}),
        ("A=0 TZ=UTC npm run unit", {"TZ": "UTC", "A": "1"}),
        ("TZ=UTC eslint . && vitest a=b", {}),
        ("CI=false HOME=/x PATH=/y NODE_TEST_CONTEXT=child nyc -r text vitest", {}),
    ],
)  # fmt: skip
def test_a_runner_has_the_variables_of_its_script(script: str, env: dict[str, str]) -> None:
    scripts = {"unit": "A=1 vitest"}
    assert calls_of(script, scripts)[0].env == env


def test_a_package_is_installed_with_its_workspace() -> None:
    tree = tree_of({"package.json": {"workspaces": ["packages/*"]}, "package-lock.json": "", **MEMBERS})
    plans = {suite.name: JAVASCRIPT[suite.runner].prepare(suite, tree) for suite in find_suites(tree)}
    plan = plans["vitest:packages/a"]
    assert plan.commands == (("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"),)
    assert plan.root == ""
    assert set(plan.inputs) == {
        "package.json",
        "package-lock.json",
        "packages/a/package.json",
        "packages/b/package.json",
    }
    assert set(plan.keep) == {"node_modules", "packages/a/node_modules", "packages/b/node_modules"}
    assert plans["vitest:tools/c"].commands[0][:2] == ("npm", "install")
    assert isinstance(plan, Preparation)


def test_a_package_is_installed_with_the_folders_that_it_names() -> None:
    web = {**scripts("jest"), "dependencies": {"shared": "file:../shared", "x": "link:/etc", "y": "^1"}}
    tree = tree_of(
        {
            "web/package.json": web,
            "web/a.test.js": "",
            "shared/package.json": {"devDependencies": {"base": "portal:./base/", "web": "file:../web"}},
            "shared/base/package.json": {},
        }
    )
    plan = JAVASCRIPT["jest"].prepare(find_suites(tree)[0], tree)
    assert set(plan.inputs) == {"web/package.json", "shared/package.json", "shared/base/package.json"}
    assert set(plan.keep) == {"node_modules", "../shared/node_modules", "../shared/base/node_modules"}


FILES = {
    "test/a.test.js": "",
    "test/inner/b.test.js": "",
    "test/helper.js": "",
    "test/data.json": "",
    "src/c.test.js": "",
}


@pytest.mark.parametrize(
    ("script", "whole", "part"),
    [
        (
            "jest --coverage -i --config j.json src",
            "--testTimeout=10000 --config j.json src",
            "--config j.json --runTestsByPath",
        ),
        ("vitest --reporter dot --project web", "--testTimeout=10000 --project web", "--project web"),
        (
            "mocha -R dot --bail -r ts-node/register --timeout 5 'test/**/*.js'",
            "--timeout=10000 -r ts-node/register test/**/*.js",
            "--timeout=10000 -r ts-node/register",
        ),
        ("ava --tap --fail-fast test", "--timeout=10000ms test", "--timeout=10000ms"),
    ],
)
def test_arguments_of_the_script_are_kept(script: str, whole: str, part: str) -> None:
    tree = tree_of({"package.json": scripts(script), **FILES})
    (suite,) = find_suites(tree)
    assert arguments(suite, tree) == whole.split()
    chosen = arguments(suite, tree, "test/a.test.js::group > name")
    assert chosen[-1] == "test/a.test.js"
    assert part in " ".join(chosen)
    assert "src" not in chosen
    assert "test/**/*.js" not in chosen


@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("node --test", ["src/c.test.js", "test/a.test.js", "test/helper.js", "test/inner/b.test.js"]),
        ("node --test test/*.js", ["test/a.test.js", "test/helper.js"]),
        ("node --test './test/**/*.test.js'", ["test/a.test.js", "test/inner/b.test.js"]),
        ("node --test 'test/{a,inner/b}.test.js'", ["test/a.test.js", "test/inner/b.test.js"]),
        ("node --test test/inner", ["test/inner/b.test.js"]),
        ("node --test 'test/[' src/", ["src/c.test.js"]),
    ],
)
def test_node_runs_the_files_of_the_script(script: str, files: list[str]) -> None:
    tree = tree_of({"package.json": scripts(script), **FILES})
    (suite,) = find_suites(tree)
    (command,) = JAVASCRIPT["node-test"].commands(Job(suite, tree), ())
    assert sorted(json.loads(command.argv[-1])["files"]) == files


def test_options_and_variables_of_the_script_reach_node() -> None:
    script = "CI= NODE_OPTIONS=--experimental-vm-modules node --expose-gc node_modules/.bin/jest"
    tree = tree_of({"package.json": scripts(script), **FILES})
    (suite,) = find_suites(tree)
    (command,) = JAVASCRIPT["jest"].commands(Job(suite, tree), ())
    assert command.argv[:2] == ("node", "--expose-gc")
    assert command.env == {"NODE_OPTIONS": "--experimental-vm-modules"}
    tree = tree_of(
        {"package.json": scripts("node --import tsx --test-concurrency=1 --test test/*.js"), **FILES}
    )
    (command,) = JAVASCRIPT["node-test"].commands(Job(find_suites(tree)[0], tree), ())
    assert json.loads(command.argv[-1])["nodeOptions"] == ["--import", "tsx"]


@pytest.mark.parametrize(
    ("wanted", "targets"),
    [
        ([], ()),
        (["app/a.test.js::group > name", "app/a.test.js::other"], ("a.test.js",)),
        (["app/test"], ("test/b.js", "test/inner/c.js")),
        (["app/test/", "app/a.test.js"], ("test/b.js", "test/inner/c.js", "a.test.js")),
        (["."], ()),
        (["app/a.test.js", "app"], ()),
        (["app/a.test.js", "app/test/data.json"], ()),  # tests of any file may read it
        (["app/a.test.js", "app/src/lib"], ()),
        (["other/x.test.js", "app/missing.test.js", "app/a.test.js"], ("a.test.js",)),
    ],
)
def test_selection_takes_whole_files(wanted: list[str], targets: tuple[str, ...]) -> None:
    names = ["app/a.test.js", "app/test/b.js", "app/test/inner/c.js", "app/test/data.json", "other/x.test.js"]
    tree = tree_of({"app/package.json": scripts("jest"), **dict.fromkeys(names, "")})
    assert JAVASCRIPT["mocha"].select(Suite("mocha", "app"), tree, wanted) == targets


def test_jest_and_vitest_run_only_files_with_the_name_of_a_test() -> None:
    tree = tree_of(dict.fromkeys(["package.json", *FILES], ""))
    for runner in ("jest", "vitest"):
        suite = Suite(runner)
        assert JAVASCRIPT[runner].select(suite, tree, ["test"]) == ("test/a.test.js", "test/inner/b.test.js")
        assert JAVASCRIPT[runner].select(suite, tree, ["test/helper.js", "test/a.test.js"]) == ()
