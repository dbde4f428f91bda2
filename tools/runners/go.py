"""Go's tests, run with `go test`. `m3agent.tools.in_sandbox.go_tests` does it inside the sandbox."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from m3agent.tools.runners.base import Job, Preparation, Suite, Tree, above, is_within
from m3agent.tools.runners.file_runner import DrivenRunner

MODULES = "/opt/m3agent-go/modules"
"""Folder of the downloaded modules in an environment."""
CACHE = "/opt/m3agent-go/cache"
"""Folder of the compiled standard library in an environment. Since version 1.20, Go does not come with one."""
DATA = "testdata"
MANIFESTS = ("go.mod", "go.sum")
_FOLDER = re.compile(
    r"""(?:=>|^(?:[ \t]*|use[ \t]+(?:\([ \t]*)?))[ \t]*["`]?(\.{1,2}(?:/[^\s"`]*)?)(?=[\s"`)]|$)""",
    re.MULTILINE,
)
_REQUIRED = re.compile(r"^[ \t]*(?:require[ \t]+)?(\S+)[ \t]+v\d", re.MULTILINE)
_IMPORT = re.compile(
    rb"""^[ \t]*(?:import[ \t]+)?(?:[\w.]+[ \t]+)?["`]([\w.-]+/[\w./~+-]+)["`][ \t]*(?://.*)?\r?$""",
    re.MULTILINE,
)
_TAKES_TEST = re.compile(rb"\bfunc\b[^{;]*[\s*]testing\.(?:TB|[TBFM])\b")
"""A function with a test among its parameters or results."""


class Go(DrivenRunner):
    """A Go module. The units are its packages; their names are their folders."""

    name = "go"
    language = "Go"
    programs = ("go_tests.py", "go_reporter.go", "test_process.py", "record_writer.py")
    plan: ClassVar[Mapping[str, object]] = {"cache": CACHE}

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each module with test files."""
        modules = {posixpath.dirname(path): path for path in tree.named("go.mod")}
        tests = {_module_of(path, modules) for path in tree.below("", "_test.go")}
        return [Suite(self.name, root, evidence=path) for root, path in modules.items() if root in tests]

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Download the modules that the module needs, as data: Go runs no code of them."""
        inputs = [suite.path(name) for name in MANIFESTS]
        workspace = _workspace(suite, tree)
        if workspace is not None:
            inputs += [workspace, f"{workspace}.sum", *tree.named(*MANIFESTS)]
            inputs = [path for path in inputs if is_within(path, posixpath.dirname(workspace))]
        for path in inputs:  # it grows
            needed = (posixpath.join(folder, name) for folder in _folders(tree, path) for name in MANIFESTS)
            inputs += sorted(set(needed) & tree.paths - set(inputs))
        vendored = suite.path("vendor/modules.txt") in tree.paths
        return Preparation(
            system_packages=("golang-go",),
            commands=() if vendored else (("go", "mod", "download"),),
            offline_commands=(("env", f"GOCACHE={CACHE}", "go", "build", "std"),),
            inputs=tuple(sorted({*tree.present(*inputs)})),
            keep=(CACHE,) if vendored else (MODULES, CACHE),
            warm=() if vendored else _compiled(suite, tree),
            env={"GOMODCACHE": MODULES, **_environment(suite, tree)},
        )

    def helpers(self, tree: Tree) -> Collection[str]:
        """Return the files whose functions take a test, such as `*testing.T`: what they check, only tests can call."""
        paths = [path for path in tree.below("", ".go") if not self.is_test(path)]
        return [path for path, content in tree.contents(paths) if _TAKES_TEST.search(content)]

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return packages, as `./folder`, and single tests in them, as `./folder::TestName`."""
        tested = set(map(posixpath.dirname, tree.below("", "_test.go")))
        trees, tests = set[str](), set[tuple[str, str]]()  # of a whole package, the name of the test is empty
        for ident in wanted:
            file, _, name = ident.partition("::")
            file = "" if file == "." else file.rstrip("/")
            if file == suite.root:
                return ()
            if file and any(is_within(folder, file) for folder in tested):
                trees.add(f"./{suite.within(file)}/")
                continue
            package = _package(suite, file, tested)
            if not package:
                return ()
            tests.add((package, name.partition("/")[0]))
        tests = {test for test in tests if not f"{test[0]}/".startswith(tuple(trees))}
        whole = {package for package, name in tests if not name}
        single = {f"{package}::{name}" for package, name in tests if package not in whole}
        return (*sorted(f"{path}..." for path in trees), *sorted(whole), *sorted(single))

    def environment(self, job: Job) -> Mapping[str, str]:
        """Return the variables of the program."""
        variables = {"GOCACHE": f"{job.work}/cache", "GOTMPDIR": job.work}
        if (
            _workspace(job.suite, job.tree) is not None
        ):  # the image may have these of a module outside of the workspace
            variables |= {"GOFLAGS": "", "GOWORK": "auto"}
        return {**variables, **_environment(job.suite, job.tree)}


def _environment(suite: Suite, tree: Tree) -> dict[str, str]:
    """Return variables that keep Go from downloading modules or another version of itself."""
    variables = {"GOPROXY": "off", "GOSUMDB": "off", "GOTOOLCHAIN": "local"}
    # with `mod`, an incomplete go.sum is no error; vendor folders and workspaces do not allow it
    if suite.path("vendor/modules.txt") not in tree.paths and _workspace(suite, tree) is None:
        variables["GOFLAGS"] = "-mod=mod"
    if _work_file(suite, tree) is not None and _workspace(suite, tree) is None:
        variables["GOWORK"] = "off"
    return variables


def _compiled(suite: Suite, tree: Tree) -> tuple[tuple[str, ...], ...]:
    """Return the command that compiles the packages of other modules that a module imports."""
    modules = tuple(f"{name}/" for name in _REQUIRED.findall(tree.text(suite.path("go.mod"))))
    inner = tree.below(suite.root, ".go")
    imported = {name.decode() for _, content in tree.contents(inner) for name in _IMPORT.findall(content)}
    packages = sorted(name for name in imported if f"{name}/".startswith(modules))
    script = f'GOCACHE={CACHE} go list -e -export -deps -f "{{{{.Error}}}}" -- "$@" || true'
    return (("sh", "-c", script, "sh", *packages),) if modules and packages else ()


def _work_file(suite: Suite, tree: Tree) -> str | None:
    """Return the path of the go.work file that Go finds above a module."""
    paths = (posixpath.join(folder, "go.work") for folder in (suite.root, *above(suite.root)))
    return next(iter(tree.present(*paths)), None)


def _workspace(suite: Suite, tree: Tree) -> str | None:
    """Return the path of the go.work file of the workspace that a module belongs to."""
    path = _work_file(suite, tree)
    return path if path is not None and suite.root in _folders(tree, path) else None


def _package(suite: Suite, file: str, tested: Collection[str]) -> str:
    """Return the package that a file belongs to, as `./folder`, or an empty text. A file of data belongs to the package above it."""
    folder = posixpath.dirname(file)
    while folder not in tested:
        if folder in ("", suite.root):
            return ""
        folder = posixpath.dirname(folder)
    return f"./{suite.within(folder)}" if folder != suite.root else "."


def _folders(tree: Tree, path: str) -> list[str]:
    """Return the folders that a go.mod or go.work file names: members of a workspace, and replacements of modules."""
    start = posixpath.dirname(path)
    named = _FOLDER.findall(tree.text(path)) if posixpath.basename(path) in ("go.mod", "go.work") else []
    paths = (posixpath.normpath(posixpath.join(start, name)) for name in named)
    return ["" if path == "." else path for path in paths]


def _module_of(path: str, modules: Mapping[str, str]) -> str | None:
    """Return the root of the module that a file belongs to."""
    folder = posixpath.dirname(path)
    if any(name in ("vendor", DATA) or name.startswith(("_", ".")) for name in folder.split("/")):
        return None  # Go does not look into them
    return next((root for root in (folder, *above(folder)) if root in modules), None)
