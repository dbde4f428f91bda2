"""Copies of tests in JavaScript and Go: which assertions change, which do not, and whose tests count."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.agent.verify.other_copies import (
    NOT_REACHED,
    OTHER_VALUE,
    other_copies,
    other_values_go,
    other_values_js,
    stopped_go,
    stopped_js,
)
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from tests.agent.repositories import write_files

FAILS = "\tif {} {{\n\t\tt.Fatal(1)\n\t}}\n"
GO_VARIABLE = 'func TestAdd(t *testing.T) {{\n\twant := 5\n\tif got := {}; got != want {{\n\t\tt.Fatalf("%d %d", got, want)\n\t}}\n}}\n'
JS_VARIABLE = "test('add', () => {{\n  const sum: Sum = new Sum(5);\n  {}\n}});\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("assert.strictEqual(add(2, 3), 5);", "assert.strictEqual(add(2, 3), 15);"),
        ("assert.equal(add(2, 3), 5, 'sum');", "assert.equal(add(2, 3), 15, 'sum');"),
        ("assert.deepEqual(f('a,('), new Sum('b'));", "assert.deepEqual(f('a,('), new Sum('b~'));"),
        ("assert.equal('a', name('b'));", "assert.equal('a~', name('b'));"),
        ("expect(add(2, 3)).toBe(5);", "expect(add(2, 3)).toBe(15);"),
        ("expect(f(2)).to.deep.equal({ a: 'b' })", "expect(f(2)).to.deep.equal({ a: 'b~' })"),
        ("t.is(f(`a`), `b`)", "t.is(f(`a`), `b~`)"),
    ],
)
def test_an_assertion_expects_another_value(before: str, after: str) -> None:
    assert other_values_js(before) == after


def test_the_value_of_a_variable_changes_that_is_only_compared() -> None:
    """Otherwise another value may be right, too."""
    only = "assert.deepEqual(add(2, 3), sum);", "assert.equal(JSON.stringify(add()), JSON.stringify(sum));"
    for assertion in only:
        text = JS_VARIABLE.format(assertion)
        assert other_values_js(text * 2) == text.replace("Sum(5)", "Sum(15)") * 2
    for assertion in (
        "assert.deepEqual(parse(print(sum)), sum);",
        "assert.equal(add(), sum);\n  sum = new Sum(6);",
    ):
        text = JS_VARIABLE.format(assertion)
        assert other_values_js(text) == text
    text = JS_VARIABLE.format(only[0]).replace("(5)", "(5).value")
    assert other_values_js(text) == text
    for value in ("want", "string(want)"):
        text = GO_VARIABLE.format("Add(2, 3)").replace("!= want", f"!= {value}")
        assert other_values_go(text) == text.replace("want := 5", "want := 15")
    text = GO_VARIABLE.format("Twice(Half(want))")
    assert other_values_go(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "assert.equal(undefined, find('a'));",
        "expect(f('a')).not.toBe('b');",
        "assert.ok(f('a'), 'text');",
        "assert.notStrictEqual(f('a'), 'b');",
        "assert.equal(f('a'), null, 'text');",
        "expect(f('a')).toBe(other);",
    ],
)
def test_a_value_stays_with_which_an_honest_test_could_pass(text: str) -> None:
    assert other_values_js(text) == text


def test_each_comparison_of_javascript_stops_the_test() -> None:
    for text in (
        "assert(a)",
        "assert.strict.equal(a, b)",
        "expect(a).toBe(b)",
        "strictEqual(a, b)",
        "t.deepEqual(a, b)",
    ):
        assert stopped_js(text) == f"BigInt(0.5) || {text}"
    for text in ("assert.fail()", "expect.assertions(1)", "my.expect(a)", "t.plan(1)", "assert.ifError(e)"):
        assert stopped_js(text) == text


@pytest.mark.parametrize(
    ("before", "stopped", "other"),
    [
        ("got != 5", "true || (got != 5)", "got != 15"),
        ("got := f(2); got != 5", "got := f(2); true || (got != 5)", "got := f(2); got != 15"),
        ('!reflect.DeepEqual(got, []string{"a"})',
         'true || (!reflect.DeepEqual(got, []string{"a"}))', '!reflect.DeepEqual(got, []string{"a~"})'),
        ("!f(2).Equal(Of(5))", "true || (!f(2).Equal(Of(5)))", "!f(2).Equal(Of(15))"),
        ("got == 3", "true || (got == 3)", "got == 3"),
        ("got != 3 && got != 4", "true || (got != 3 && got != 4)", "got != 3 && got != 4"),
        ("err == nil", "true || (err == nil)", "err == nil"),
        ("err := f(2); err != nil", "err := f(2); err != nil", "err := f(2); err != nil"),
    ],
)  # fmt: skip
def test_the_condition_of_a_failure_changes(before: str, stopped: str, other: str) -> None:
    assert stopped_go(FAILS.format(before)) == FAILS.format(stopped)
    assert other_values_go(FAILS.format(before)) == FAILS.format(other)


def test_a_condition_without_a_failure_stays() -> None:
    text = "\tif got != 5 {\n\t\treturn\n\t}\n"
    assert stopped_go(text) == other_values_go(text) == text


def test_assertions_of_a_library_for_go_change() -> None:
    text = "\trequire.NoError(t, err)\n\tassert.Equal(t, 5, Add(2, 3))\n"
    assert stopped_go(text) == text.replace("\tassert", '\tt.Fatal("stopped"); assert')
    assert other_values_go(text) == text.replace("t, 5", "t, 15")


JS = """\
describe('sums', () => {
  it('adds', () => {
    expect(add(2, 3)).toBe(5);
  });
  it('does not throw at "("', () => {
    add('(');
  });
  it('is large', () => {
    expect(add(2, 3) > 4);
  });
});
"""


def test_only_tests_with_an_assertion_that_changes_count(tmp_path: Path) -> None:
    store, names = TreeStore(tmp_path / "trees.git"), ("adds", 'does not throw at "("', "is large", "other")
    write_files(tmp_path / "tree", {"a.test.js": JS, "a.js": ""})
    workspace = Workspace.from_folder(store, tmp_path / "tree", ["a.js", "a.test.js"])
    idents = [f"a.test.js::sums > {name}" for name in names]
    stopped, other = other_copies(store, workspace.base, [*idents, "b.test.js::gone", "a_test.py::test_a"])
    assert {ident: place.line for ident, place in stopped.tests.items()} == {idents[0]: 2, idents[2]: 8}
    assert {place.what for place in stopped.tests.values()} == {NOT_REACHED}
    assert [(ident, place.what) for ident, place in other.tests.items()] == [(idents[0], OTHER_VALUE)]
    entries = {entry.path: entry for entry in store.list_tree(other.tree)}
    assert store.get_blob(entries["a.test.js"].sha).decode() == JS.replace("toBe(5)", "toBe(15)")
