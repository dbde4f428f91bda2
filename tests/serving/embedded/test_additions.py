"""Operators for Go and JavaScript put back what is missing, with pieces of the same file."""

from __future__ import annotations

import re

import pytest

from m3agent.serving.embedded.operators.base import Hints
from m3agent.serving.embedded.rewrites import propose_plain
from m3agent.serving.embedded.source import splice

pytest.importorskip("tree_sitter_language_pack", reason="needs the extra `outlines`")

GO = """package p

import "strings"

func count(names []string) (int, int) {
	short, long := 0, 0
	for _, name := range names {
		if len(name) > 1 && name[0] == '-' {
			long++
		} else {
			short++
		}
	}
	return short, long
}

func find(words []string, word string) bool {
	total := 0
	for _, other := range words {
		if len(other) > 2 && other[1] == '-' {
			total++
		}
		if strings.ToLower(other) == strings.ToLower(word) {
			return fail("unknown word %s", total, "found %d")
		}
	}
	return false
}
"""
JS = """const find = (words, word) => {
  let total = 0;
  let depth = 0;
  for (const other of words) {
    total++;
    depth++;
    if (other.trim() === word.trim()) {
      state.output += 'the end' + 'hers';
      depth++;
      log('a word', total);
    }
  }
  switch (word) {
    case 'this': {
      total++;
      break;
    }
  }
  return escape(total) + escape(depth);
};
"""


def mended(path: str, text: str, before: str, after: str) -> str:
    """Return by which kind of change a fault on one line is undone; empty if by none."""
    assert text.count(before) == 1
    faulty = text.replace(before, after)
    first = text[: text.index(before)].count("\n") + 1
    found = propose_plain(path, faulty, dict.fromkeys((first - 1, first, first + 1), 1.0), Hints(), 10_000)
    wanted = re.sub(r"[\s;]", "", text)
    kinds = (one.operator for _, one in found if re.sub(r"[\s;]", "", splice(faulty, one.edits)) == wanted)
    return next(kinds, "")


@pytest.mark.parametrize(
    ("path", "kind", "before", "after"),
    [
        ("m.go", "statement added", "\t\t\ttotal++\n", ""),
        ("m.go", "statement added", "\t\t\tshort++\n", ""),
        ("m.go", "call added", "strings.ToLower(other)", "other"),
        ("m.go", "missing condition", " && other[1] == '-'", ""),
        ("m.go", "constant", "unknown word %s", "unknown word %"),
        ("m.js", "statement added", "    depth++;\n    if", "    if"),
        ("m.js", "statement added", "      total++;\n      break", "      break"),
        ("m.js", "call added", "other.trim()", "other"),
        ("m.js", "call added", "escape(depth)", "depth"),
        ("m.js", "constant", "'the end'", "'the en'"),
        ("m.js", "constant", "'hers'", "'her'"),
    ],
)
def test_what_is_missing_is_put_back(path: str, kind: str, before: str, after: str) -> None:
    assert mended(path, {"m.go": GO, "m.js": JS}[path], before, after) == kind


def test_a_statement_with_unknown_variables_is_not_tried() -> None:
    text = "package p\n\nfunc f(a int) {\n\ta++\n}\n\nfunc g(b, c int) {\n\tb = c\n}\n"
    changed = {splice(text, one.edits) for _, one in propose_plain("m.go", text, {4: 1.0}, Hints(), 10_000)}
    assert not any("a++\nb = c" in other for other in changed)
    assert any("a++\na++" in other for other in changed)
