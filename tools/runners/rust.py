"""Rust's tests, run with cargo. `m3agent.tools.in_sandbox.rust_tests` does it inside the sandbox."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from m3agent.tools.runners.base import Job, Preparation, Suite, Tree, is_within
from m3agent.tools.runners.file_runner import DrivenRunner
from m3agent.tools.runners.rust_source import with_tests_of
from m3agent.util.json_value import items, mapping

HOME = "/opt/m3agent-cargo"
"""Folder of the downloaded crates in an environment."""
CACHE = "/opt/m3agent-cargo-target"
"""Folder of the compiled crates in an environment."""
PROFILE = {
    # a sandbox has little space, and the tests do not need these
    "CARGO_INCREMENTAL": "0",
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_TEST_DEBUG": "0",
}
"""Variables of a build that decide whether cargo takes a crate that is compiled already."""
COMPILE = """
wrapper=$(mktemp)
cat > "$wrapper" <<'END'
#!/bin/sh
case " $* " in *" --crate-name ___ "*) ;; *" --crate-name "*) exit 1 ;; esac
exec "$@"
END
chmod +x "$wrapper"
RUSTC_WORKSPACE_WRAPPER=$wrapper cargo build --tests --workspace --offline --keep-going || true
"""
"""Compiles the crates that a workspace needs. Its own crates fail, so that nothing of them is taken for a result."""
MANIFEST = "Cargo.toml"
SETTINGS = (".cargo/config.toml", ".cargo/config")
_TEST = re.compile(r"#\[(?:cfg\(test\)|(?:\w+::)*test\b)")
"""An attribute of a test, or of an item for tests."""
_TEST_MODULE = re.compile(rb"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
"""A module in a file of its own that is compiled only for tests."""
_ONLY_TESTS = re.compile(r"^\s*#!\[cfg\(test\)\]", re.MULTILINE)
"""An attribute of a file that has nothing but tests."""


class Cargo(DrivenRunner):
    """A cargo workspace, or a package outside of one. The units are its libraries, programs and test files."""

    name = "cargo"
    language = "Rust"
    programs = ("rust_tests.py", "rust_harness.rs", "test_process.py", "record_writer.py")
    plan: ClassVar[Mapping[str, object]] = {"cache": CACHE}

    def detect(self, tree: Tree) -> list[Suite]:
        """Return a suite for each workspace with tests, and for each package outside of a workspace."""
        roots = list[str]()
        for path in sorted(tree.named(MANIFEST), key=lambda path: (path.count("/"), path)):
            folder = posixpath.dirname(path)
            if not any(is_within(folder, root) and _is_member(tree, root, folder) for root in roots):
                roots.append(folder)
        files: dict[str, list[str]] = {root: [] for root in roots}
        for path in tree.below("", ".rs"):
            if around := [root for root in roots if is_within(path, root)]:
                files[max(around, key=len)].append(path)
        tested = (
            root
            for root, own in files.items()
            if any(map(self.is_test, own)) or any(_TEST.search(tree.text(path)) for path in own)
        )
        return [Suite(self.name, root, evidence=posixpath.join(root, MANIFEST)) for root in tested]

    def prepare(self, suite: Suite, tree: Tree) -> Preparation:
        """Download the crates that the workspace needs, as data: their build scripts run when tests are built."""
        inputs = {p for p in tree.paths if is_within(p, suite.root) and posixpath.basename(p) == MANIFEST}
        for path in list(inputs):  # cargo reads no manifest without the files of its targets
            folder = posixpath.dirname(path)
            inputs |= {posixpath.normpath(posixpath.join(folder, file)) for file in _sources(tree.toml(path))}
        inputs |= {suite.path(name) for name in ("Cargo.lock", *SETTINGS)} | _vendored(suite, tree)
        locked = suite.path("Cargo.lock") in tree.paths
        settings = [f"{name}={value}" for name, value in PROFILE.items()]
        needs = any("dependencies" in tree.text(path) for path in inputs if path.endswith(MANIFEST))
        return Preparation(
            system_packages=("rustc-web", "cargo-web"),
            commands=(("cargo", "fetch", "--locked") if locked else ("cargo", "fetch"),),
            inputs=tuple(sorted(inputs & tree.paths)),
            keep=(HOME, CACHE) if needs else (HOME,),
            warm=(("env", f"CARGO_TARGET_DIR={CACHE}", *settings, "sh", "-c", COMPILE),) if needs else (),
            env={"CARGO_HOME": HOME, "CARGO_NET_OFFLINE": "true"},
        )

    def helpers(self, tree: Tree) -> Collection[str]:
        """Return the files of modules that are compiled only for tests: `#[cfg(test)] mod util;`, and what lies below them."""
        paths = tree.below("", ".rs")
        files, folders = set[str](), list[str]()
        for path, content in tree.contents(paths):
            stem = posixpath.basename(path).removesuffix(".rs")
            folder = posixpath.dirname(path) if stem in ("lib", "main", "mod") else path.removesuffix(".rs")
            for name in _TEST_MODULE.findall(content):
                module = posixpath.join(folder, name.decode())
                files.add(f"{module}.rs")
                folders.append(f"{module}/")
        return [path for path in paths if path in files or path.startswith(tuple(folders))]

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

    def environment(self, job: Job) -> Mapping[str, str]:
        """Return the variables of the program."""
        return {
            "CARGO_TARGET_DIR": f"{job.work}/target",
            "CARGO_NET_OFFLINE": "true",
            "CARGO_TERM_COLOR": "never",
            **PROFILE,
        }


def _vendored(suite: Suite, tree: Tree) -> set[str]:
    """Return the files of the crates that `cargo vendor` put into the tree: nothing is downloaded for them."""
    sources = [
        source for name in SETTINGS for source in mapping(tree.toml(suite.path(name)), "source").values()
    ]
    folders = [folder for source in sources if isinstance(folder := mapping(source).get("directory"), str)]
    return {path for folder in folders for path in tree.below(suite.path(folder), "")}


def _is_member(tree: Tree, root: str, folder: str) -> bool:
    """Return whether the workspace at `root` takes in the package in `folder`."""
    workspace = tree.toml(posixpath.join(root, MANIFEST)).get("workspace")
    own = tree.toml(f"{folder}/{MANIFEST}")
    if not isinstance(workspace, dict) or "workspace" in own:
        return False
    inner = folder.removeprefix(f"{root}/") if root else folder
    excluded = (str(path).rstrip("/") for path in items(workspace.get("exclude")))
    return not any(is_within(inner, path) for path in excluded)


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
