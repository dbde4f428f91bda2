"""Rust's runner: detection and selection without a toolchain, and all kinds of tests with a real one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.tools.in_sandbox.test_process import with_links_to
from m3agent.tools.runners.base import Limits, Suite
from m3agent.tools.runners.run import run_suite
from m3agent.tools.runners.rust import PROFILE, Cargo
from m3agent.tools.test_report import TestReport
from tests.agent.repositories import write_files
from tests.ecosystems.records import tree_of
from tests.ecosystems.table import real

CARGO = Cargo()
SUITE = Suite("cargo")
PACKAGE = '[package]\nname = "{0}"\nversion = "0.1.0"\nedition = "{1}"\n'


def test_each_workspace_and_lone_package_with_tests_is_a_suite() -> None:
    package = PACKAGE.format("a", "2021")
    inline = "#[cfg(test)]\nmod tests {}\n"
    tree = tree_of(
        {
            "rust/Cargo.toml": '[workspace]\nmembers = ["a", "b"]\nexclude = ["out"]\n',
            "rust/a/Cargo.toml": package,
            "rust/a/src/lib.rs": inline,
            "rust/out/Cargo.toml": package,
            "rust/out/src/lib.rs": "fn a() {}\n",
            "lone/Cargo.toml": package,
            "lone/tests/it.rs": "",
            "own/Cargo.toml": package + "[workspace]\n",
            "own/src/lib.rs": "#[tokio::test]\nasync fn a() {}\n",
            "plain/Cargo.toml": package,
            "plain/src/main.rs": "fn main() {}\n",
            "target/x/Cargo.toml": package,
            "target/x/tests/it.rs": "",
        }
    )
    assert [(suite.root, suite.evidence) for suite in CARGO.detect(tree)] == [
        ("lone", "lone/Cargo.toml"),
        ("own", "own/Cargo.toml"),
        ("rust", "rust/Cargo.toml"),
    ]
    assert CARGO.detect(tree_of({"tests/it.rs": ""})) == []


@pytest.mark.parametrize(
    ("wanted", "targets"),
    [
        (
            ["a/src/cart.rs::cart::tests::one", "a/src/lib.rs::tests::two"],
            ("a::cart::tests::one", "a::tests::two"),
        ),
        (["a/tests/it.rs"], ("a",)),
        (["a/tests/it.rs", "a/src/lib.rs::tests::two"], ("a",)),
        (["src/lib.rs::tests::one"], (".::tests::one",)),
        (["a"], ("a",)),
        (["."], ()),
        (["elsewhere/x"], (".",)),
        ([], ()),
    ],
)
def test_the_smallest_targets_are_selected(wanted: list[str], targets: tuple[str, ...]) -> None:
    tree = tree_of(
        {
            "Cargo.toml": PACKAGE.format("root", "2021") + "[workspace]\n",
            "a/Cargo.toml": PACKAGE.format("a", "2021"),
            "a/src/lib.rs": "",
        }
    )
    assert CARGO.select(SUITE, tree, wanted) == targets
    below = tree_of({f"rust/{path}": tree.text(path) for path in tree.paths})
    moved = [f"rust/{ident}" if ident != "." else "rust" for ident in wanted]
    assert CARGO.select(Suite("cargo", "rust"), below, moved) == targets


def test_the_environment_sees_what_cargo_needs_to_read_manifests() -> None:
    files = {
        "Cargo.toml": PACKAGE.format("a", "2021") + '[[bin]]\nname = "x"\npath = "tools/../tools/x.rs"\n',
        "Cargo.lock": "",
        "src/lib.rs": "",
        "src/other.rs": "",
        "tools/x.rs": "",
        "b/Cargo.toml": PACKAGE.format("b", "2021"),
        "b/src/main.rs": "",
    }
    needed = CARGO.prepare(SUITE, tree_of(files))
    assert needed.inputs == (
        *("Cargo.lock", "Cargo.toml", "b/Cargo.toml", "b/src/main.rs", "src/lib.rs", "tools/x.rs"),
    )
    assert needed.commands == (("cargo", "fetch", "--locked"),)
    assert needed.keep == (needed.env["CARGO_HOME"],)
    del files["Cargo.lock"]
    assert CARGO.prepare(SUITE, tree_of(files)).commands == (("cargo", "fetch"),)
    files |= {
        ".cargo/config.toml": "[source.v]\ndirectory = 'vendor'\n",
        "vendor/x/src/a.rs": "",
        "vendored": "",
    }
    inputs = CARGO.prepare(SUITE, tree_of(files)).inputs
    assert {".cargo/config.toml", "vendor/x/src/a.rs"} <= set(inputs)
    assert "vendored" not in inputs


VENDORED = {
    "Cargo.toml": PACKAGE.format("dep", "2021"),
    "src/lib.rs": "pub fn one() -> i32 { 1 }\n",
    ".cargo-checksum.json": json.dumps({"files": {}, "package": "0" * 64}),
}


@pytest.mark.languages
@pytest.mark.integration
def test_crates_are_compiled_once_and_the_own_code_in_each_sandbox(tmp_path: Path) -> None:
    if subprocess.run(["sh", "-c", "cargo --version"], capture_output=True, check=False).returncode:
        pytest.skip("cargo is missing: make setup-languages LANGUAGES=rust")
    files = {
        "Cargo.toml": PACKAGE.format("a", "2021") + '[dependencies]\ndep = "0.1"\n',
        "src/lib.rs": "mod inner;\n",
    }
    compile_ahead = CARGO.prepare(SUITE, tree_of({**files, "src/inner.rs": ""})).warm[0]
    assert not CARGO.prepare(SUITE, tree_of({"Cargo.toml": PACKAGE.format("a", "2021")})).warm
    home, layer, tree = (tmp_path / name for name in ("home", "layer", "tree"))
    source = f'[source.crates-io]\nreplace-with = "v"\n[source.v]\ndirectory = "{tmp_path}/vendored"\n'
    write_files(home, {"config.toml": source})
    write_files(tmp_path / "vendored" / "dep", VENDORED)
    write_files(tree, {**files, "src/inner.rs": "pub const A: i32 = dep::one() + 1;\n"})
    write_files(layer, files)  # it has no inner.rs
    env = {**os.environ, **PROFILE, "CARGO_HOME": str(home)}

    def cargo(folder: Path, target: str, *command: str) -> str:
        done = subprocess.run(
            [*command],
            cwd=folder,
            env={**env, "CARGO_TARGET_DIR": str(tmp_path / target)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stderr

    said = cargo(layer, "ahead", *compile_ahead[-3:])
    assert with_links_to(str(tmp_path / "ahead"), str(tmp_path / "target")), said
    built = cargo(tree, "target", "cargo", "build", "--offline", "-v")
    assert "Fresh dep v0.1.0" in built, built
    assert "Compiling a v0.1.0" in built, "the layer has nothing of the repository's own code"


def test_code_and_tests_of_two_versions_are_combined() -> None:
    old = b"fn a() -> i32 { 0 }\n\n#[cfg(test)]\nmod tests { #[test] fn t() { assert_eq!(super::a(), 1) } }\n"
    new = old.replace(b"{ 0 }", b"{ 1 }")
    assert CARGO.combined("src/lib.rs", new, old) == new
    assert CARGO.combined("src/lib.rs", new.replace(b"assert_eq!(super::a(), 1)", b""), old) == new
    assert CARGO.combined("src/lib.rs", b"fn a() {}\n", b"fn b() {}\n") is None
    assert CARGO.combined("README.md", new, old) is None
    assert (
        CARGO.combined("src/checks.rs", b"#![cfg(test)]\nfn ok() {}\n", b"fn ok() { panic!() }\n")
        == b"fn ok() { panic!() }\n"
    )
    with pytest.raises(ValueError, match="cannot be told apart"):
        CARGO.combined("src/lib.rs", old + b"}", old)


LIB = """\
pub mod cart;
pub mod deep;

pub fn total() -> i32 {
    3
}

#[cfg(test)]
mod tests {
    #[test]
    fn passes() {
        println!("test tests::ghost ... ok");
    }
    #[test]
    fn fails() {
        assert_eq!(super::total(), 4, "wrong total");
    }
    #[test]
    #[should_panic]
    fn panics_as_wanted() {
        panic!("boo");
    }
    #[test]
    #[should_panic(expected = "boo")]
    fn panics_with_another_text() {
        panic!("hoo");
    }
    #[test]
    #[should_panic]
    fn does_not_panic() {}
    #[test]
    #[ignore]
    fn skipped() {}
    #[test]
    fn returns_an_error() -> Result<(), String> {
        Err("no database".into())
    }
    #[test]
    fn returns_fine() -> Result<(), String> {
        Ok(())
    }
    #[test]
    #[cfg(feature = "never")]
    fn vanished() {}
}
"""
HANGS = """\
#[test]
fn before() {}
#[test]
fn loops() {
    loop {
        std::hint::spin_loop();
    }
}
#[test]
fn waits() {
    std::thread::sleep(std::time::Duration::from_secs(3600));
}
#[test]
fn after() {}
"""
ENDS = """\
#[test]
fn aborts() {
    std::process::abort();
}
#[test]
fn before() {}
#[test]
fn exits() {
    std::process::exit(0);
}
#[test]
fn overflows() {
    fn down(n: u64) -> u64 {
        std::hint::black_box(n + down(n + 1))
    }
    down(0);
}
#[test]
fn unrelated() {}
"""
STRICT = """\
//! A crate that allows as little as possible.
#![no_std]
#![forbid(unsafe_code, unstable_features)]
#![deny(warnings, missing_docs, unused_crate_dependencies, unreachable_pub)]
extern crate proc_macro;
#[cfg(test)]
extern crate std;

/// Returns what it gets.
#[proc_macro]
pub fn same(tokens: proc_macro::TokenStream) -> proc_macro::TokenStream {
    tokens
}

#[cfg(test)]
mod tests {
    #[test]
    fn passes() {}
    #[test]
    fn starts_itself() {
        let me = std::env::current_exe().unwrap();
        let output = std::process::Command::new(me).arg("tests::passes").output().unwrap();
        assert!(output.status.success());
    }
}
"""
FILES = {
    "Cargo.toml": PACKAGE.format("shop", "2021")
    + '[workspace]\nmembers = ["old", "broken", "depends", "strict"]\n'
    + '[features]\nnever = []\n[[test]]\nname = "plain"\nharness = false\n[[test]]\nname = "bad"\nharness = false\n',
    "src/lib.rs": LIB,
    "src/cart.rs": "#[cfg(test)]\nmod tests {\n    #[test]\n    fn passes() {}\n}\n",
    "src/deep/mod.rs": "mod inner;\n",
    "src/deep/inner.rs": "#[test]\nfn passes() {}\n",
    "src/main.rs": "fn main() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn passes() {}\n}\n",
    "tests/it.rs": "mod common;\n#[test]\nfn passes() {\n    assert_eq!(shop::total(), common::three());\n}\n",
    "tests/common/mod.rs": "pub fn three() -> i32 {\n    3\n}\n#[test]\nfn helps() {}\n",
    "tests/unbuilt.rs": "#[test]\nfn never() {\n    let n: i32 = shop::missing();\n}\n",
    "tests/hangs.rs": HANGS,
    "tests/ends.rs": ENDS,
    "tests/plain.rs": "fn main() {}\n",
    "tests/bad.rs": 'fn main() {\n    panic!("not plain");\n}\n',
    "strict/Cargo.toml": PACKAGE.format("strict", "2024") + "[lib]\nproc-macro = true\n",
    "strict/src/lib.rs": STRICT,
    "old/Cargo.toml": PACKAGE.format("old", "2015"),
    "old/src/lib.rs": "#[cfg(test)]\nmod tests {\n    #[test]\n    fn passes() {}\n}\n",
    "broken/Cargo.toml": PACKAGE.format("broken", "2021"),
    "broken/src/lib.rs": "pub fn name() -> i32 {\n    oops\n}\n",
    "depends/Cargo.toml": PACKAGE.format("depends", "2021")
    + '[dependencies]\nbroken = { path = "../broken" }\n',
    "depends/src/lib.rs": "#[test]\nfn never() {\n    broken::name();\n}\n",
}


async def run(
    sandbox_of: Callable[..., Sandbox], files: dict[str, str], wanted: tuple[str, ...] = ()
) -> TestReport:
    tree = tree_of(files)
    (suite,) = CARGO.detect(tree)
    async with sandbox_of(files, SandboxLimits(memory=4 << 30)) as sandbox:
        report = await run_suite(sandbox, CARGO, suite, tree, wanted, limits=Limits(200, 5))
        lock = await sandbox.exec(["ls", f"{suite.root or '.'}/Cargo.lock"])
        assert lock.exit != 0  # it is no part of the work
        return report


@real("cargo")
async def test_every_kind(sandbox_of: Callable[..., Sandbox]) -> None:
    report = await run(sandbox_of, FILES)
    assert set(report.passed) == {
        "src/lib.rs::tests::passes",
        "src/lib.rs::tests::panics_as_wanted",
        "src/lib.rs::tests::returns_fine",
        "src/cart.rs::cart::tests::passes",
        "src/deep/inner.rs::deep::inner::passes",
        "src/main.rs::tests::passes",
        "tests/it.rs::passes",
        "tests/common/mod.rs::common::helps",
        "tests/hangs.rs::before",
        "tests/hangs.rs::after",
        "tests/ends.rs::before",
        "tests/ends.rs::unrelated",
        "old/src/lib.rs::tests::passes",
        "strict/src/lib.rs::tests::passes",
        "strict/src/lib.rs::tests::starts_itself",
    }
    assert set(report.failed) == {
        "src/lib.rs::tests::fails",
        "src/lib.rs::tests::panics_with_another_text",
        "src/lib.rs::tests::does_not_panic",
        "src/lib.rs::tests::returns_an_error",
        "tests/hangs.rs::loops",
        "tests/hangs.rs::waits",
        "tests/ends.rs::aborts",
        "tests/ends.rs::exits",
        "tests/ends.rs::overflows",
        "tests/bad.rs::main",
    }
    assert set(report.skipped) == {"src/lib.rs::tests::skipped", "tests/plain.rs::main"}
    assert set(report.errored) == {"tests/unbuilt.rs", "broken/src/lib.rs", "depends/src/lib.rs"}
    assert not report.signs.forged
    assert report.complete
    for ident, text in (
        ("src/lib.rs::tests::fails", "src/lib.rs:16:9: assertion `left == right` failed: wrong total"),
        ("src/lib.rs::tests::panics_with_another_text", "hoo\nexpected a panic with: boo"),
        ("src/lib.rs::tests::does_not_panic", "the test did not panic as expected"),
        ("tests/hangs.rs::loops", "timed out after 5 s"),
        ("tests/ends.rs::exits", "the test process ended during this test with status 0"),
        ("tests/ends.rs::overflows", "has overflowed its stack"),
        ("tests/bad.rs::main", "not plain"),
        ("tests/unbuilt.rs", "cannot find function `missing` in crate `shop`"),
        ("broken/src/lib.rs", "cannot find value `oops`"),
        ("depends/src/lib.rs", "cannot find value `oops`"),
    ):
        assert text in report.errors[ident], ident


@real("cargo")
async def test_parts_of_a_workspace_in_a_folder(sandbox_of: Callable[..., Sandbox]) -> None:
    files = {f"rust/{path}": text for path, text in FILES.items()}
    wanted = ("rust/src/cart.rs::cart::tests::passes", "rust/old/src/lib.rs")
    del files["rust/tests/unbuilt.rs"]
    report = await run(sandbox_of, files, wanted)
    assert report.passed == ("rust/old/src/lib.rs::tests::passes", "rust/src/cart.rs::cart::tests::passes")
    assert report.failed == ("rust/tests/bad.rs::main",)
    assert report.complete


@real("cargo")
async def test_a_workspace_that_cannot_be_read(sandbox_of: Callable[..., Sandbox]) -> None:
    report = await run(sandbox_of, {**FILES, "old/Cargo.toml": '[package]\nname = "old"\nedition = "1"\n'})
    assert not report.complete
    assert not report.passed
    assert "failed to parse manifest" in report.output
