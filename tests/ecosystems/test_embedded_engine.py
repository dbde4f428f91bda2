"""`m3agent fix --engine embedded` in a Go and in a JavaScript repository."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import run

GO: dict[str, str | bytes] = {
    "go.mod": "module cart\n\ngo 1.19\n",
    "cart.go": "package cart\n\n// Total returns the sum of the prices from the first one to the last one.\n"
    "func Total(prices []int) int {\n\ttotal := 0\n\tfor i := 1; i < len(prices); i++ {\n\t\ttotal += prices[i]\n\t}\n"
    "\treturn total\n}\n\nfunc Most(a, b int) int {\n\tif a > b {\n\t\treturn a\n\t}\n\treturn b\n}\n",
    "cart_test.go": 'package cart\n\nimport "testing"\n\nfunc TestTotal(t *testing.T) {\n'
    '\tif got := Total([]int{3, 4}); got != 7 {\n\t\tt.Fatalf("got %d, want 7", got)\n\t}\n}\n\n'
    'func TestMost(t *testing.T) {\n\tif Most(2, 5) != 5 || Most(6, 5) != 6 {\n\t\tt.Fatal("wrong")\n\t}\n}\n',
}
JAVASCRIPT: dict[str, str | bytes] = {
    "package.json": '{"scripts": {"test": "node --test"}}\n',
    "lib/names.js": "exports.short = (name, most) => {\n  if (name.length < most) return name;\n"
    "  return name.slice(0, most - 1) + '…';\n};\n\nexports.first = (name) => name.split(' ')[0];\n",
    "names.test.js": "const test = require('node:test');\nconst { equal } = require('node:assert');\n"
    "const { first, short } = require('./lib/names.js');\n"
    "test('keeps names that fit', () => equal(short('Anna', 4), 'Anna'));\n"
    "test('shortens names', () => equal(short('Annabel', 4), 'Ann…'));\n"
    "test('takes the first name', () => equal(first('Anna Lee'), 'Anna'));\n",
}


@pytest.mark.languages
@pytest.mark.parametrize(
    ("program", "files", "line"),
    [
        ("go", GO, "+\tfor i := 0; i < len(prices); i++ {"),
        ("node", JAVASCRIPT, "+  if (name.length <= most) return name;"),
    ],
    ids=["go", "javascript"],
)
def test_the_embedded_engine_fixes_a_fault_of_another_language(
    program: str,
    files: dict[str, str | bytes],
    line: str,
    make_repo: Callable[[dict[str, str | bytes]], Path],
    own_state: Path,
) -> None:
    pytest.importorskip("tree_sitter_language_pack", reason="needs the extra `outlines`")
    if shutil.which(program, path="/usr/bin") is None:
        pytest.skip(f"{program} is missing in /usr/bin")
    done = run("fix", "A test fails.", "--repo", str(make_repo(files)), "--engine", "embedded")
    assert done.returncode == 0, done.stderr
    changed = [
        row
        for row in done.stdout.splitlines()
        if row.startswith(("+", "-")) and row[:3] not in ("+++", "---")
    ]
    assert line in changed
    assert len(changed) == 2
