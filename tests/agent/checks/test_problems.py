"""Test what is read from the output of checkers, as their programs printed it, and what is new in it."""

from __future__ import annotations

import pytest

from m3agent.agent.checks.problems import Problem, marked, new_problems, problems_in

TREE = {"a.py", "src/main.rs", "a.go", "web/src/app.ts", "web/src/odd.js", "other/odd.js"}
OUTPUTS = [
    (
        "ruff, in its short form",
        "a.py:1:8: F401 [*] `os` imported but unused\nFound 1 error.\n[*] 1 fixable with `--fix`.",
        ["a.py:1: F401 [*] `os` imported but unused"],
    ),
    (
        "ruff, in its long form",
        "F401 [*] `os` imported but unused\n --> a.py:1:8\n  |\n1 | import os\n  |        ^^\nhelp: Remove",
        ["a.py:1: F401 [*] `os` imported but unused"],
    ),
    (
        "mypy",
        (
            'a.py:3: error: Incompatible return value type (got "int", expected "str")  [return-value]\n'
            "a.py:3: note: Maybe you forgot something?\nFound 1 error in 1 file (checked 1 source file)"
        ),
        ['a.py:3: error: Incompatible return value type (got "int", expected "str")  [return-value]'],
    ),
    (
        "basedpyright",
        (
            '/home/u/tree/a.py\n  /home/u/tree/a.py:3:12 - error: Type "int" is not assignable to return type "str"\n'
            '    "int" is not assignable to "str" (reportReturnType)\n1 error, 0 warnings, 0 notes'
        ),
        ['a.py:3: error: Type "int" is not assignable to return type "str"'],
    ),
    (
        "cargo",
        (
            '\x1b[31merror[E0308]\x1b[0m: mismatched types\n --> src/main.rs:1:26\n  |\n1 | fn main() { let x: i32 = "a"; }\n'
            'error: could not compile `a` (bin "a") due to 1 previous error'
        ),
        ["src/main.rs:1: error[E0308]: mismatched types"],
    ),
    ("go vet", "# a\nvet: ./a.go:2:23: cannot use it as int", ["a.go:2: cannot use it as int"]),
    (
        "tsc, from a folder",
        "src/app.ts(3,5): error TS2322: Type 'string' is not assignable.",
        ["web/src/app.ts:3: error TS2322: Type 'string' is not assignable."],
    ),
    (
        "eslint",
        "\n/home/u/web/src/app.ts\n  3:5  error  'x' is not defined  no-undef\n  4:1  warning  Odd  odd\n\n✖ 2 problems",
        [
            "web/src/app.ts:3: error  'x' is not defined  no-undef",
            "web/src/app.ts:4: warning  Odd  odd",
        ],
    ),
    ("black", "would reformat /tree/a.py\n\nOh no!", ["a.py: would reformat"]),
    (
        "prettier",
        "Checking formatting...\n[warn] web/src/app.ts\n[warn] Code style",
        ["web/src/app.ts: [warn]"],
    ),
    ("a file of several folders", "odd.js:1: E1 which one?", []),
    ("a file outside of the tree", "/usr/lib/python3/site-packages/b.py:1: error: x\n12:30:15: done", []),
]


@pytest.mark.parametrize(
    ("output", "problems"), [row[1:] for row in OUTPUTS], ids=[row[0] for row in OUTPUTS]
)
def test_what_checkers_print(output: str, problems: list[str]) -> None:
    assert [str(problem) for problem in problems_in(output, TREE)] == problems


def test_an_absolute_path_is_the_longest_that_fits() -> None:
    (problem,) = problems_in("/repo/src/index.js\n  2:1  error  x is unused", {"index.js", "src/index.js"})
    assert problem.path == "src/index.js"


def test_secrets_and_control_characters_are_no_part_of_a_message() -> None:
    (problem,) = problems_in(
        "a.py:1: bad key ghp_" + "x7Kq9ZrT2mWv8LbN4cYd6HsJ1fGaPeUo3RiQ\x07" + "x" * 900, TREE
    )
    assert "ghp_" not in problem.message
    assert problem.message.isprintable() and len(problem.message) <= 301


def test_only_what_there_was_less_of_is_new() -> None:
    old = [Problem("a.py", 3, "line 3 is too long"), Problem("gone.py", 1, "odd")]
    now = [
        Problem("a.py", 9, "line 9 is too long"),
        Problem("a.py", 12, "line 12 is too long", in_changed_line=True),
        Problem("moved.py", 1, "odd"),
        Problem("b.py", 4, "unused"),
    ]
    assert new_problems(old, now, {"a.py", "b.py"}) == (now[1], now[3])


def test_changed_lines_are_marked() -> None:
    problems = [Problem("a", 1, "x"), Problem("a", 2, "x"), Problem("a", 0, "x"), Problem("b", 1, "x")]
    assert [
        each.in_changed_line for each in marked(problems, "a", b"one\nthree\n", b"one\ntwo\nthree\n")
    ] == [
        False,
        True,
        False,
    ]
    assert [each.in_changed_line for each in marked(problems, "a", None, b"one\n")] == [True, True, False]
