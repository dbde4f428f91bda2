"""Each operator for Go, JavaScript and TypeScript proposes the edit that undoes its kind of mistake."""

from __future__ import annotations

import pytest

from m3agent.serving.embedded.operators.base import Hints
from m3agent.serving.embedded.rewrites import propose_plain
from m3agent.serving.embedded.source import splice
from m3agent.serving.embedded.syntax import LONGEST, SyntaxTree, go_bodies

pytest.importorskip("tree_sitter_language_pack", reason="needs the extra `outlines`")

GO = "package p\n\nfunc f(a int, b int, s string, xs []int, p *T) (int, error) {\n\t%s\n\treturn 0, nil\n}\n"
JS = "exports.f = async (a, b, xs, p) => {\n  %s\n  return 0;\n};\n"


def results(path: str, text: str, line: int, hints: Hints | None = None) -> dict[str, str]:
    """Return the kind of change by each changed text, for changes of one line."""
    found = propose_plain(path, text, {line: 1.0}, hints or Hints(), 10_000)
    return {splice(text, mutation.edits): mutation.operator for _, mutation in reversed(found)}


GO_CASES = [
    ("comparison", "if a < b { return a, nil }", "if a <= b { return a, nil }"),
    ("comparison", "if a == b { return a, nil }", "if a != b { return a, nil }"),
    ("operator", "if a > 1 && b > 1 { return a, nil }", "if a > 1 || b > 1 { return a, nil }"),
    ("operator", "a = a + b", "a = a - b"),
    ("operator", "a -= b", "a += b"),
    ("operator", "for { break }", "for { continue }"),
    ("operand dropped", "if a > 1 && b > 1 { return a, nil }", "if a > 1 { return a, nil }"),
    ("negation", "if !ok(a) { return a, nil }", "if ok(a) { return a, nil }"),
    ("negation", "if ok(a) { return a, nil }", "if !ok(a) { return a, nil }"),
    ("missing or extra term", "a = b - 1", "a = b"),
    ("off by one", "a = xs[b]", "a = xs[b - 1]"),
    ("off by one", "xs = xs[a:b]", "xs = xs[a:b + 1]"),
    ("off by one", "for i := 0; i < b; i++ { a++ }", "for i := 0; i < b - 1; i++ { a++ }"),
    ("constant", "a = 3", "a = 4"),
    ("constant", 's = "aab" + "aac"', 's = "aac" + "aac"'),
    ("truth value", "g(true)", "g(false)"),
    ("variable", "a = b", "b = b"),
    ("attribute", "a = p.first + p.size", "a = p.last + p.size"),
    ("attribute", "s = strings.TrimPrefix(s, s)", "s = strings.TrimSuffix(s, s)"),
    ("arguments swapped", "a = g(a, b)", "a = g(b, a)"),
    ("call dropped", "a = abs(b)", "a = b"),
    ("missing guard", "if p.ok { return a, nil }", "if p != nil && p.ok { return a, nil }"),
    ("statement deleted", "a = b", ""),
]


@pytest.mark.parametrize(("kind", "faulty", "right"), GO_CASES)
def test_an_operator_undoes_a_mistake_in_go(kind: str, faulty: str, right: str) -> None:
    assert results("m.go", GO % faulty, 4).get(GO % right) == kind


def test_zero_is_not_added_or_subtracted() -> None:
    found = results("m.go", GO % "a = b - 1", 4)
    assert GO % "a = b" in found and GO % "a = b - 0" not in found


JS_CASES = [
    ("comparison", "if (a >= b) return a;", "if (a > b) return a;"),
    ("comparison", "if (a !== b) return a;", "if (a === b) return a;"),
    ("operator", "a = b || xs;", "a = b && xs;"),
    ("operator", "a++;", "a--;"),
    ("branches swapped", "a = b ? 1 : xs;", "a = b ? xs : 1;"),
    ("negation", "while (!b) a += 1;", "while (b) a += 1;"),
    ("constant", "a = 'one' + 'two';", "a = '' + 'two';"),
    ("constant", "a = xs.slice(2);", "a = xs.slice(1);"),
    ("attribute", "a = xs.indexOf(b);", "a = xs.lastIndexOf(b);"),
    ("attribute", "xs.push(b);", "xs.unshift(b);"),
    ("arguments swapped", "p.set(a, b);", "p.set(b, a);"),
    ("argument dropped", "a = parse(a, b);", "a = parse(a);"),
    ("call dropped", "a = b.trim();", "a = b;"),
    ("missing await", "a = load(b);", "a = await load(b);"),
    ("missing guard", "if (p.ok) return a;", "if (p && p.ok) return a;"),
    ("missing condition", "if (a < b) return b > 1 || xs;", "if (b > 1 && a < b) return b > 1 || xs;"),
    ("missing condition", "if (a < b) return b > 1 || xs;", "if (b <= 1 && a < b) return b > 1 || xs;"),
    ("condition removed", "if (a) { b = 1; }", "{ b = 1; }"),
    ("variable", "return a;", "return b;"),
]


@pytest.mark.parametrize(("kind", "faulty", "right"), JS_CASES)
def test_an_operator_undoes_a_mistake_in_javascript(kind: str, faulty: str, right: str) -> None:
    end = "\n  g(a, b, xs, p);"
    assert results("m.js", JS % (faulty + end), 2).get(JS % (right + end)) == kind


def test_typescript_has_the_same_operators() -> None:
    text = "export function f<T>(a: number, b: number): boolean {\n  return a < b;\n}\n"
    changed = results("m.ts", text, 2)
    assert changed[text.replace("a < b", "a <= b")] == "comparison"
    assert not any("<=T>" in other for other in results("m.ts", text, 1))


def test_a_missing_check_of_an_error_is_added_with_the_zero_values_of_the_results() -> None:
    text = "package p\n\nfunc f() (string, *T, error) {\n\tx, err := g()\n\treturn x, nil, err\n}\n"
    checked = text.replace("g()\n", 'g()\nif err != nil {\nreturn "", nil, err\n}\n')
    assert results("m.go", text, 4)[checked] == "missing guard"


def test_a_parameter_is_checked_at_the_start_of_a_function() -> None:
    text = "package p\n\nfunc f(p *T) int {\n\treturn p.x\n}\n"
    checked = text.replace("int {", "int {\nif p == nil {\nreturn 0\n}\n")
    assert results("m.go", text, 3)[checked] == "missing guard"


def test_texts_that_the_failure_names_are_constants() -> None:
    changed = results("m.js", JS % "a = 'cat';", 2, Hints(strings=("dog",)))
    assert changed[JS % "a = 'dog';"] == "constant"


def test_only_suspected_lines_change_and_offsets_count_characters() -> None:
    text = "const a = 'ä€𝄞';\nconst b = a < 1;\nconst c = a < 2;\n"
    changed = results("m.js", text, 2)
    assert text.replace("a < 1", "a <= 1") in changed
    assert not any("a <= 2" in other for other in changed)


def test_files_without_a_grammar_and_long_files_are_refused() -> None:
    for path, text in (("m.rs", "fn f() {}"), ("m.go", " " * (LONGEST + 1))):
        with pytest.raises(SyntaxError):
            SyntaxTree(path, text)


def test_the_bodies_of_go_functions_do_not_overlap() -> None:
    text = 'package p\n\nfunc (t *T) F(a int) (n int, err error) { g := func() { }; g(); return }\n\nfunc g() { x("ä") }\n'
    first, second = go_bodies("m.go", text)
    assert text[first[0] : first[1]] == "{ g := func() { }; g(); return }"
    assert (first[2], second[2]) == ("(n int, err error)", "")
    assert text[second[0] : second[1]] == '{ x("ä") }'
