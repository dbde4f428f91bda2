"""Go's tests, run with `go test`. `m3agent.tools.in_sandbox.go_tests` does it inside the sandbox."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Mapping, Sequence
from importlib import resources

from m3agent.tools.runners.base import (
    Command,
    Limits,
    Output,
    Preparation,
    Reading,
    Result,
    Runner,
    Suite,
    Tree,
    Unit,
)
from m3agent.tools.runners.records import path_of, read_records, valid_records

FILES = ("go_tests.py", "go_reporter.go", "test_process.py", "record_writer.py")
"""Files of `m3agent.tools.in_sandbox` that the sandbox needs."""
MODULES = "/opt/m3agent-go/modules"
"""Folder of the downloaded modules in an environment."""
CACHE = "/opt/m3agent-go/cache"
"""Folder of the compiled standard library in an environment. Since version 1.20, Go does not come with one."""
DATA = "testdata"
CONFIGURATION = frozenset({"go.mod", "go.sum", "go.work", "go.work.sum", "go.env"})


def sandbox_file(name: str) -> bytes:
    """Return a file that is made for the inside of a sandbox."""
    return (resources.files("m3agent.tools") / "in_sandbox" / name).read_bytes()


def read_driver(suite: Suite, outputs: Sequence[Output]) -> Reading:
    """Read the records of a program that builds and runs tests inside the sandbox.

    Beside the usual records it writes `["broken", unit, text]`, a red result of a whole unit, and `["problem", text]`.
    """
    reading = read_records(suite, outputs)
    for output in outputs:
        for record in valid_records(output.report, output.key):
            match record:
                case ["broken", str(unit), str(text)]:
                    reading.results.append(Result(path_of(suite, unit), "error", text))
                case ["problem", str(text)]:
                    reading.problem = text
                case _:
                    pass
    return reading


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
        tests: dict[str, list[str]] = {}
        for target in targets:
            package, _, name = target.partition("::")
            tests.setdefault(package, []).extend([name] if name else [])
        report, key_file = f"{work}/report", f"{work}/key"
        plan = {
            "work": work,
            "report": report,
            "key_file": key_file,
            "cache": CACHE,
            "tests": tests,
            "per_test": limits.per_test,
            "total": limits.total,
        }
        files = {f"{work}/{name}": sandbox_file(name) for name in FILES}
        return [
            Command(
                ("python3", f"{work}/{FILES[0]}", f"{work}/plan.json"),
                cwd=suite.root or ".",
                env={
                    "GOCACHE": f"{work}/cache",
                    "GOTMPDIR": work,
                    "PYTHONPATH": "",
                    **_environment(suite, tree),
                },
                files={**files, f"{work}/plan.json": json.dumps(plan).encode()},
                report=report,
                key_file=key_file,
            )
        ]

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
