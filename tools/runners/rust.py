"""Rust's tests, run with cargo. `m3agent.tools.in_sandbox.rust_tests` does it inside the sandbox."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

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
from m3agent.tools.runners.rust_source import with_tests_of

FILES = ("rust_tests.py", "rust_harness.rs", "test_process.py", "record_writer.py")
"""Files of `m3agent.tools.in_sandbox` that the sandbox needs."""
HOME = "/opt/m3agent-cargo"
"""Folder of the downloaded crates in an environment."""
MANIFEST = "Cargo.toml"
TEST_FOLDERS = frozenset({"tests", "benches"})
CONFIGURATION = frozenset({MANIFEST, "Cargo.lock", "build.rs", "rust-toolchain", "rust-toolchain.toml"})
_TEST = re.compile(r"#\[(?:cfg\(test\)|(?:\w+::)*test\b)")
"""An attribute of a test, or of an item for tests."""
_TEST_MODULE = re.compile(rb"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
"""A module in a file of its own that is compiled only for tests."""
_ONLY_TESTS = re.compile(r"^\s*#!\[cfg\(test\)\]", re.MULTILINE)
"""An attribute of a file that has nothing but tests."""


class Cargo(Runner):
    """A cargo workspace, or a package outside of one. The units are its libraries, programs and test files."""

    name = "cargo"
    language = "Rust"

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each workspace with tests, and for each package outside of a workspace."""
        roots = list[str]()
        for path in sorted(tree.named(MANIFEST), key=lambda path: (path.count("/"), path)):
            folder = posixpath.dirname(path)
            above = [root for root in roots if not root or folder.startswith(f"{root}/")]
            if not any(_is_member(tree, root, folder) for root in above):
                roots.append(folder)
        files: dict[str, list[str]] = {root: [] for root in roots}
        for path in sorted(tree.paths):
            if path.endswith(".rs"):
                above = [root for root in roots if not root or path.startswith(f"{root}/")]
                if above:
                    files[max(above, key=len)].append(path)
        return [
            Suite(self.name, root, evidence=f"{root}/{MANIFEST}" if root else MANIFEST)
            for root in roots
            if any(map(self.is_test, files[root]))
            or any(_TEST.search(tree.text(path)) for path in files[root])
        ]

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Download the crates that the workspace needs, as data: their build scripts run when tests are built."""
        top = f"{suite.root}/" if suite.root else ""
        manifests = [path for path in tree.paths if path.startswith(top) and path.endswith(MANIFEST)]
        inputs = {path for path in manifests if posixpath.basename(path) == MANIFEST}
        for path in list(inputs):  # cargo reads no manifest without the files of its targets
            folder = posixpath.dirname(path)
            inputs |= {posixpath.normpath(posixpath.join(folder, file)) for file in _sources(tree.toml(path))}
        inputs |= {suite.path(name) for name in ("Cargo.lock", ".cargo/config.toml", ".cargo/config")}
        locked = suite.path("Cargo.lock") in tree.paths
        return Preparation(
            system_packages=("rustc-web", "cargo-web"),
            commands=(("cargo", "fetch", "--locked") if locked else ("cargo", "fetch"),),
            inputs=tuple(sorted(inputs & tree.paths)),
            keep=(HOME,),
            env={"CARGO_HOME": HOME, "CARGO_NET_OFFLINE": "true"},
        )

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests, by its path. Other files may have tests beside their code."""
        *folders, name = path.split("/")
        stem = name.removesuffix(".rs")
        named = stem in ("test", "tests") or stem.endswith(("_test", "_tests"))
        return not TEST_FOLDERS.isdisjoint(folders) or (name.endswith(".rs") and named)

    def helpers(self, tree: Tree) -> Collection[str]:
        """Return the files of modules that are compiled only for tests: `#[cfg(test)] mod util;`, and what lies below them."""
        paths = [path for path in tree.paths if path.endswith(".rs")]
        files, folders = set[str](), list[str]()
        for path, content in tree.contents(paths):
            stem = posixpath.basename(path).removesuffix(".rs")
            folder = posixpath.dirname(path) if stem in ("lib", "main", "mod") else path.removesuffix(".rs")
            for name in _TEST_MODULE.findall(content):
                module = posixpath.join(folder, name.decode())
                files.add(f"{module}.rs")
                folders.append(f"{module}/")
        return [path for path in paths if path in files or path.startswith(tuple(folders))]

    def surroundings(self, path: str, base: Collection[str] = ()) -> bool:
        """Return whether a file decides what cargo builds and how."""
        *folders, name = path.split("/")
        return name in CONFIGURATION or ".cargo" in folders

    def combined(self, path: str, code: bytes, tests: bytes) -> bytes | None:
        """Return a file with the code of one version and the tests of another; see `m3agent.tools.runners.rust_source`."""
        if not path.endswith(".rs"):
            return None
        texts = [content.decode("utf-8", "surrogateescape") for content in (code, tests)]
        if any(_ONLY_TESTS.search(text) for text in texts):
            return tests
        if not any("test" in text for text in texts):
            return None
        mixed = with_tests_of(texts[1], texts[0])
        if mixed is None:
            raise ValueError(f"the tests in {path} cannot be told apart from its code")
        return mixed.encode("utf-8", "surrogateescape")

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the packages, as folders, and single tests in them, as `folder::module::test`."""
        packages = {posixpath.dirname(path) for path in tree.named(MANIFEST) if "package" in tree.toml(path)}
        whole, single = set[str](), set[tuple[str, str]]()
        for ident in wanted:
            file, _, name = ident.partition("::")
            folder = file = "" if file == "." else file.rstrip("/")
            while folder not in packages:
                if folder in ("", suite.root):
                    return ()
                folder = posixpath.dirname(folder)
            if any(package.startswith(f"{file}/" if file else "") for package in packages - {file}):
                return ()  # a folder of several packages
            folder = suite.within(folder) if folder != suite.root else "."
            if name:
                single.add((folder, name))
            else:
                whole.add(folder)
        tests = {f"{folder}::{name}" for folder, name in single if folder not in whole}
        return (*sorted(whole), *sorted(tests))

    def commands(
        self,
        suite: Suite,
        tree: Tree,
        targets: Sequence[str],
        units: Sequence[Unit],
        limits: Limits,
        work: str,
    ) -> list[Command]:
        """Return one command that builds all targets and runs them."""
        env = {
            "CARGO_TARGET_DIR": f"{work}/target",
            "CARGO_NET_OFFLINE": "true",
            "CARGO_TERM_COLOR": "never",
            # a sandbox has little space, and the tests do not need these
            "CARGO_INCREMENTAL": "0",
            "CARGO_PROFILE_DEV_DEBUG": "0",
            "CARGO_PROFILE_TEST_DEBUG": "0",
            "PYTHONPATH": "",
        }
        return [driver_command(FILES, suite, targets, limits, work, env)]

    def read(self, suite: Suite, tree: Tree, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        """Read the records of `rust_tests.py`."""
        return read_driver(suite, outputs)


def _is_member(tree: Tree, root: str, folder: str) -> bool:
    """Return whether the workspace at `root` takes in the package in `folder`."""
    workspace = tree.toml(f"{root}/{MANIFEST}" if root else MANIFEST).get("workspace")
    own = tree.toml(f"{folder}/{MANIFEST}")
    if not isinstance(workspace, dict) or "workspace" in own:
        return False
    inner = folder.removeprefix(f"{root}/") if root else folder
    excluded = workspace.get("exclude")
    return not any(
        f"{inner}/".startswith(f"{str(path).rstrip('/')}/")
        for path in (excluded if isinstance(excluded, list) else [])
    )


def _sources(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield the files of targets without which cargo refuses a manifest."""
    yield from ("src/lib.rs", "src/main.rs", "build.rs")
    for kind in ("lib", "bin", "test", "bench", "example"):
        tables = manifest.get(kind)
        for table in tables if isinstance(tables, list) else [tables]:
            if isinstance(table, dict):
                name = table.get("name")
                yield from (str(path) for path in [table.get("path")] if path)
                yield from (f"{folder}/{name}.rs" for folder in ("src/bin", "tests", "benches", "examples"))
