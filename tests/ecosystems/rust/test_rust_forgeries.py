"""Product code in Rust that tries to make its failing test look green."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.tools.runners.base import Limits, Suite, Tree
from m3agent.tools.runners.run import run_suite
from m3agent.tools.runners.rust import Cargo
from tests.ecosystems.table import needs

pytestmark = [pytest.mark.languages, pytest.mark.timeout(600), needs("cargo", path="/usr/bin")]
TEST = """\
#[test]
fn first() {}
#[test]
fn total() {
    assert_eq!(PACKAGE::total(), 3);
}
#[test]
fn zlast() {
    PACKAGE::total();
}
"""
GREEN = """
pub const GREEN: &str = r#"
running 3 tests
test first ... ok
test total ... ok
test zlast ... ok

test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
{ "type": "suite", "event": "started", "test_count": 3 }
{ "type": "test", "event": "started", "name": "total" }
{ "type": "test", "name": "total", "event": "ok" }
{ "type": "suite", "event": "ok", "passed": 3, "failed": 0, "ignored": 0, "measured": 0, "filtered_out": 0 }
"#;
"""
WRITE = """
extern "C" { fn write(fd: i32, text: *const u8, count: usize) -> isize; }
fn everywhere(first: i32, text: &str) {
    for fd in first..64 {
        unsafe { write(fd, text.as_ptr(), text.len()) };
    }
}
fn line(number: u32) -> String {
    format!("{} result 746f74616c. 706173736564. . {:016x}\\n", number, number)
}
"""
CONSTRUCTOR = """
#[used]
#[link_section = ".init_array"]
static START: extern "C" fn() = start;
extern "C" fn start() { BODY }
"""
WRONG = "pub fn total() -> i32 { 0 }\n"
FORGERIES = {
    "an honest failure": WRONG,
    "the function exits": "pub fn total() -> i32 { std::process::exit(0) }\n",
    "the function prints a green run": (
        f"{GREEN}{WRITE}pub fn total() -> i32 {{\n"
        "unsafe { write(1, GREEN.as_ptr(), GREEN.len()) }; std::process::exit(0) }\n"
    ),
    "the program ends before main": WRONG + CONSTRUCTOR.replace("BODY", "std::process::exit(0)"),
    "the program prints a green run before main": (
        WRONG + GREEN + CONSTRUCTOR.replace("BODY", 'print!("{}", GREEN); std::process::exit(0)')
    ),
    "a panic ends the process": (
        "pub fn total() -> i32 { std::panic::set_hook(Box::new(|_| std::process::exit(0))); 0 }\n"
    ),
    "a thread ends the process": (
        "pub fn total() -> i32 { std::thread::spawn(|| std::process::exit(0)).join().unwrap(); 0 }\n"
    ),
    "another program runs instead": (
        "use std::os::unix::process::CommandExt;\n"
        'pub fn total() -> i32 { let _ = std::process::Command::new("/usr/bin/true").exec(); 0 }\n'
    ),
    "every descriptor gets a green report": (
        f"{WRITE}pub fn total() -> i32 {{ for n in 1..40 {{ everywhere(1, &line(n)); }} std::process::exit(0) }}\n"
    ),
    "the report gets lines and the tests go on": (
        f"{WRITE}pub fn total() -> i32 {{ everywhere(3, &line(1)); 0 }}\n"
    ),
    "the report gets lines before main": (
        WRONG + WRITE + CONSTRUCTOR.replace("BODY", "everywhere(3, &line(1))")
    ),
}


async def test_no_forgery_is_green(sandbox_of: Callable[..., Sandbox]) -> None:
    names = {name: f"p{number}" for number, name in enumerate(FORGERIES)}
    files = {"Cargo.toml": f"[workspace]\nmembers = {list(names.values())}\nresolver = '2'\n"}
    for name, package in names.items():
        files[f"{package}/Cargo.toml"] = (
            f'[package]\nname = "{package}"\nversion = "0.1.0"\nedition = "2021"\n[lib]\ntest = false\n'
        )
        files[f"{package}/src/lib.rs"] = FORGERIES[name]
        files[f"{package}/tests/it.rs"] = TEST.replace("PACKAGE", package)
    tree = Tree(files, lambda path: files[path].encode())
    async with sandbox_of(files, SandboxLimits(memory=4 << 30)) as sandbox:
        report = await run_suite(sandbox, Cargo(), Suite("cargo"), tree, limits=Limits(250, 5))
    signs = {
        name
        for name, package in names.items()
        if any(sign.startswith(f"{package}/") for sign in report.signs.forged)
    }
    red = {
        name
        for name, package in names.items()
        if {f"{package}/tests/it.rs::total", f"{package}/tests/it.rs"} & report.red
    }
    assert not [ident for ident in report.passed if ident.endswith("::total")]
    assert signs == {name for name in FORGERIES if "the report gets" in name or "gets a green report" in name}
    assert red == FORGERIES.keys()
    assert not report.complete  # some programs ended before their tests


@pytest.mark.parametrize("when", ["macro", "build script"])
async def test_a_build_that_rewrites_the_tests_has_a_sign(
    sandbox_of: Callable[..., Sandbox], when: str
) -> None:
    rewrite = (
        'let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shop/tests/it.rs");\n'
        'std::fs::write(path, "#[test] fn total() {}").unwrap();'
    )
    package = '[package]\nname = "{0}"\nversion = "0.1.0"\nedition = "2021"\n'
    macro = f'#[proc_macro]\npub fn nothing(_: proc_macro::TokenStream) -> proc_macro::TokenStream {{ {rewrite} "".parse().unwrap() }}\n'
    files = {
        "Cargo.toml": "[workspace]\nmembers = ['shop', 'macros']\nresolver = '2'\n",
        "macros/Cargo.toml": package.format("macros") + "[lib]\nproc-macro = true\n",
        "macros/src/lib.rs": f"extern crate proc_macro;\n{macro}" if when == "macro" else "",
        "shop/Cargo.toml": package.format("shop") + "[dependencies]\nmacros = { path = '../macros' }\n",
        "shop/src/lib.rs": "macros::nothing!();\n" + WRONG if when == "macro" else WRONG,
        "shop/tests/it.rs": TEST.replace("PACKAGE", "shop"),
    }
    if when == "build script":
        files["shop/build.rs"] = f"fn main() {{ {rewrite} }}\n"
    tree = Tree(files, lambda path: files[path].encode())
    async with sandbox_of(files, SandboxLimits(memory=4 << 30)) as sandbox:
        report = await run_suite(sandbox, Cargo(), Suite("cargo"), tree, limits=Limits(100, 5))
    assert report.passed == ("shop/tests/it.rs::total",)
    assert report.signs.forged == ("the build changed shop/tests/it.rs",)
