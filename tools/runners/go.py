"""Go's tests, run with `go test`. `m3agent.tools.in_sandbox.go_tests` does it inside the sandbox."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence

from m3agent.tools.runners.base import (
    Command,
    Limits,
    Output,
    Preparation,
    Reading,
    Runner,
    Suite,
    Tree,
    Unit,
)
from m3agent.tools.runners.driver import driver_command, read_driver

FILES = ("go_tests.py", "go_reporter.go", "test_process.py", "record_writer.py")
"""Files of `m3agent.tools.in_sandbox` that the sandbox needs."""
MODULES = "/opt/m3agent-go/modules"
"""Folder of the downloaded modules in an environment."""
CACHE = "/opt/m3agent-go/cache"
"""Folder of the compiled standard library in an environment. Since version 1.20, Go does not come with one."""
DATA = "testdata"
_TAKES_TEST = re.compile(rb"\bfunc\b[^{;]*[\s*]testing\.(?:TB|[TBFM])\b")
"""A function with a test among its parameters or results."""
CONFIGURATION = frozenset({"go.mod", "go.sum", "go.work", "go.work.sum", "go.env"})


class Go(Runner):
    """A Go module. The units are its packages; their names are their folders."""

    name = "go"
    language = "Go"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each module with test files."""
        modules = {posixpath.dirname(path): path for path in tree.named("go.mod")}
        tests = {_module_of(path, modules) for path in tree.paths if path.endswith("_test.go")}
        return [Suite(self.name, root, evidence=path) for root, path in modules.items() if root in tests]

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Download the modules that the module needs, as data: Go runs no code of them."""
        inputs = [suite.path(name) for name in ("go.mod", "go.sum")]
        workspace = _workspace(suite, tree)
        if workspace is not None:
            folder = posixpath.dirname(workspace)
            inputs += [workspace, f"{workspace}.sum", *tree.named("go.mod", "go.sum")]
            inputs = [path for path in inputs if path.startswith(f"{folder}/" if folder else "")]
        vendored = suite.path("vendor/modules.txt") in tree.paths
        return Preparation(
            system_packages=("golang-go",),
            commands=() if vendored else (("go", "mod", "download"),),
            offline_commands=(("env", f"GOCACHE={CACHE}", "go", "build", "std"),),
            inputs=tuple(sorted({path for path in inputs if path in tree.paths})),
            keep=(CACHE,) if vendored else (MODULES, CACHE),
            env={"GOMODCACHE": MODULES, **_environment(suite, tree)},
        )

    def is_test(self, path: str) -> bool:
        """Return whether Go compiles a file only for tests, or tests read it."""
        return path.endswith(("_test.go", ".golden")) or DATA in path.split("/")[:-1]

    def helpers(self, tree: Tree) -> Collection[str]:
        """Return the files whose functions take a test, such as `*testing.T`: what they check, only tests can call."""
        paths = [path for path in tree.paths if path.endswith(".go") and not self.is_test(path)]
        return [path for path, content in tree.contents(paths) if _TAKES_TEST.search(content)]

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file chooses modules or the version of Go."""
        folders = path.split("/")
        return folders[-1] in CONFIGURATION or "vendor" in folders[:-1]

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return packages, as `./folder`, and single tests in them, as `./folder::TestName`."""
        tested = {posixpath.dirname(path) for path in tree.paths if path.endswith("_test.go")}
        trees, packages, tests = set[str](), set[str](), set[tuple[str, str]]()
        for ident in wanted:
            file, _, name = ident.partition("::")
            file = "" if file == "." else file.rstrip("/")
            if file == suite.root:
                return ()
            if any(f"{folder}/".startswith(f"{file}/") for folder in tested):
                trees.add(f"./{suite.within(file)}/")
                continue
            folder = posixpath.dirname(file)
            while folder not in tested:  # data of tests lies below its package
                if folder in ("", suite.root):
                    return ()
                folder = posixpath.dirname(folder)
            package = f"./{suite.within(folder)}" if folder != suite.root else "."
            if name:
                tests.add((package, name.partition("/")[0]))
            else:
                packages.add(package)
        packages = {name for name in packages if not f"{name}/".startswith(tuple(trees))}
        single = {
            f"{package}::{name}"
            for package, name in tests
            if package not in packages and not f"{package}/".startswith(tuple(trees))
        }
        return (*sorted(f"{path}..." for path in trees), *sorted(packages), *sorted(single))

    def commands(
        self,
        suite: Suite,
        tree: Tree,
        targets: Sequence[str],
        units: Sequence[Unit],
        limits: Limits,
        work: str,
    ) -> list[Command]:
        """Return one command that builds all packages and runs them."""
        env = {
            "GOCACHE": f"{work}/cache",
            "GOTMPDIR": work,
            "PYTHONPATH": "",
            **_environment(suite, tree),
        }
        return [driver_command(FILES, suite, targets, limits, work, env, {"cache": CACHE})]

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records of `go_tests.py`."""
        return read_driver(suite, outputs)


def _environment(suite: Suite, tree: Tree) -> dict[str, str]:
    """Return variables that keep Go from downloading modules or another version of itself."""
    found = {"GOPROXY": "off", "GOSUMDB": "off", "GOTOOLCHAIN": "local"}
    # with `mod`, an incomplete go.sum is no error; vendor folders and workspaces do not allow it
    if suite.path("vendor/modules.txt") not in tree.paths and _workspace(suite, tree) is None:
        found["GOFLAGS"] = "-mod=mod"
    return found


def _workspace(suite: Suite, tree: Tree) -> str | None:
    """Return the path of the go.work file that Go finds above a module."""
    folder = suite.root
    while True:
        path = f"{folder}/go.work" if folder else "go.work"
        if path in tree.paths:
            return path
        if not folder:
            return None
        folder = posixpath.dirname(folder)


def _module_of(path: str, modules: Mapping[str, str]) -> str | None:
    """Return the root of the module that a file belongs to."""
    folders = path.split("/")[:-1]
    if any(name in ("vendor", DATA) or name.startswith(("_", ".")) for name in folders):
        return None  # Go does not look into them
    for count in range(len(folders), -1, -1):
        if "/".join(folders[:count]) in modules:
            return "/".join(folders[:count])
    return None
