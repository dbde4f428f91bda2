"""Tests beside the code of a Rust file are cut out and exchanged, whatever literals and comments stand around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.tools.runners.rust_source import with_tests_of

NOISE = [
    "",
    "/* } /* nested { */ #[cfg(test)] mod no { */",
    "// #[cfg(test)] mod tests { {{{ ' \"",
    '/// Docs with `{` and "\n',
    "//! Inner docs }\n",
]
STATEMENTS = [
    'let a = "} \\" #[cfg(test)] mod tests {";',
    'let b = r#"}" {{ "#;',
    'let c = br##"}"# { "##;',
    "let d = '{';",
    "let e = '\\'';",
    "let f = b'}';",
    "let g = '\\u{1F600}';",
    "fn inner<'a>(x: &'a str) -> &'a str { x }",
    "'outer: loop { break 'outer; }",
    'let h = "line\\\n  }";',
    "let r#type = [0u8; { 1 + 1 }];",
    "let i = 'ä';",
    'let j = c"}";',
]
CODE = st.sampled_from(
    [
        "fn {n}() {{ {s} }}",
        "pub struct {n}<'a> {{ x: &'a str }}",
        "impl {n} {{ fn y(&self) {{ {s} }} }}",
        "use a::{{b, {n}}};",
        "const {n}: [u8; 2] = [1, 2];",
        "#[derive(Debug)]\nenum {n} {{ A, B }}",
        "#[cfg(not(test))]\nfn {n}() {{ {s} }}",
        '#[cfg(feature = "test")]\nmod {n} {{ fn z() {{ {s} }} }}',
        "macro_rules! {n} {{ ($x:expr) => {{ {{ $x }} }}; }}",
        "mod {n} {{ pub mod deep {{ fn z() {{ {s} }} }} }}",
        'static {n}: &str = "a;b";',
    ]
)
TESTS = st.sampled_from(
    [
        "#[cfg(test)]\nmod {n} {{ use super::*; #[test] fn t() {{ {s} }} }}",
        "#[cfg(test)] #[allow(dead_code)] pub(crate) mod {n} {{ {s} }}",
        "#[allow(dead_code)]\n#[cfg(test)]\nmod {n} {{ fn x() {{ {s} }} }}",
        '#[cfg(all(test, feature = "std"))]\nmod {n} {{ #[test] fn t() {{ {s} }} }}',
        "#[test]\nfn {n}() {{ {s} }}",
        '#[tokio::test(flavor = "multi_thread")]\nasync fn {n}() {{ {s} }}',
        '#[test]\n#[should_panic(expected = "}}")]\nfn {n}() {{ {s} }}',
        "#[cfg(test)]\nuse std::{{fmt, {n}}};",
        "#[cfg(test)]\nconst {n}: fn() = || {{ {s} }};",
        "#[cfg(test)]\nconst fn {n}() {{ {s} }}",
        "#[cfg(test)]\nmod {n};",
        "#[cfg(test)]\nstatic {n}: S = S {{ a: 1 }};",
        '#[cfg(test)]\nextern "C" fn {n}() {{ {s} }}',
    ]
)


@st.composite
def sources(draw: st.DrawFn) -> tuple[str, list[str], list[str]]:
    """A file, its pieces of code, and its tests."""
    text, code, tests = "", list[str](), list[str]()
    for number in range(draw(st.integers(0, 6))):
        is_test = draw(st.booleans())
        piece = draw(TESTS if is_test else CODE).format(
            n=f"name{number}", s=draw(st.sampled_from(STATEMENTS))
        )
        noise = draw(st.sampled_from(NOISE))
        (tests if is_test else code).append(piece)
        text += f"{noise}\n{piece}\n"
    return text, code, tests


def split_inline_tests(text: str) -> tuple[str, str] | None:
    """Return a file's code and its tests."""
    code, tests = with_tests_of("", text), with_tests_of(text, "")
    return None if code is None or tests is None else (code, tests.removeprefix("\n\n"))


def squeezed(text: str) -> str:
    return "".join(text.split())


@given(sources())
def test_code_and_tests_are_separated(source: tuple[str, list[str], list[str]]) -> None:
    text, code, tests = source
    parts = split_inline_tests(text)
    assert parts is not None
    assert parts[1] == "".join(f"{test}\n" for test in tests)
    assert all(piece in parts[0] for piece in code)
    # nothing is lost and nothing is added
    assert len(squeezed(parts[0])) + len(squeezed(parts[1])) == len(squeezed(text))
    assert split_inline_tests(parts[0]) == (parts[0], "")


@given(sources(), sources())
def test_the_base_s_tests_meet_the_patch_s_code(
    base: tuple[str, list[str], list[str]], patched: tuple[str, list[str], list[str]]
) -> None:
    mixed = with_tests_of(base[0], patched[0])
    assert mixed is not None
    parts, old, new = split_inline_tests(mixed), split_inline_tests(base[0]), split_inline_tests(patched[0])
    assert parts is not None and old is not None and new is not None
    assert parts[1] == old[1]
    assert squeezed(parts[0]) == squeezed(new[0])
    if old[1] == new[1]:
        assert mixed == patched[0]


@given(sources())
def test_a_file_with_its_own_tests_stays_as_it_is(source: tuple[str, list[str], list[str]]) -> None:
    assert with_tests_of(source[0], source[0]) == source[0]


@given(st.text(alphabet="{}[]()'\"\\/*#r! \nabt:;&<>", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    parts = split_inline_tests(text)
    assert parts is None or isinstance(parts[0], str)


@pytest.mark.parametrize(
    "text",
    [
        "fn a() {",
        "fn a() }",
        "fn a() { ( }",
        'let a = "',
        'let a = r#"x";',
        "/* /* */",
        "#[cfg(test)]",
        "#[cfg(test)]\nmod tests",
        "#[test",
    ],
)
def test_a_file_without_an_end_is_refused(text: str) -> None:
    assert with_tests_of("", text) is None
    assert with_tests_of(text, "") is None


def test_tests_inside_of_other_items_must_be_equal() -> None:
    base = "mod a { pub fn one() -> i32 { 0 } #[cfg(test)] mod tests { #[test] fn t() { assert_eq!(super::one(), 1) } } }\n"
    fixed = base.replace("{ 0 }", "{ 1 }")
    assert with_tests_of(base, fixed) == fixed
    assert with_tests_of(base, fixed.replace("assert_eq!(super::one(), 1)", "")) is None
    helper = "struct S;\nimpl S { fn a(&self) {} #[cfg(test)] fn check(&self) { assert!(false) } }\n"
    assert with_tests_of(helper, helper.replace("assert!(false)", "")) is None


def test_a_patch_s_weaker_tests_are_replaced() -> None:
    base = "pub fn one() -> i32 { 0 }\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() { assert_eq!(super::one(), 1); }\n}\n"
    patch = "pub fn one() -> i32 { 2 }\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {}\n}\n"
    assert with_tests_of(base, patch) == base.replace("{ 0 }", "{ 2 }")
    assert with_tests_of("pub fn one() {}\n", patch) == "pub fn one() -> i32 { 2 }\n\n\n"
