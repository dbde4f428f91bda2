"""Rows of benchmarks in other languages: data, environment and strict grading with real toolchains."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from m3agent.evals.data.instance import Instance
from m3agent.evals.data.load import load
from m3agent.evals.data.results import Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.validate import validate
from tests.agent.repositories import write_files
from tests.conftest import docker_here, git
from tests.ecosystems.ctest.project import HEADERS
from tests.evals.bases import Bare
from tests.evals.calc_instance import diff

Files = Mapping[str, str]


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        program: The program that its tests need.
        files: The base.
        path: The file with the fault.
        right: Its right content.
        tests: What the row's tests change.
        to_fix, to_keep: Ids as m3agent has them.
        names: The same as the language's own runner prints them.
        forgeries: Files of patches that fix nothing, and a part of the verdict's reason.
    """

    program: str
    files: Files
    path: str
    right: str
    tests: Files
    to_fix: str
    to_keep: str
    names: tuple[str, str]
    forgeries: Mapping[str, tuple[Files, str]]


GO_TESTS = """\
package shop

import "testing"

func TestZero(t *testing.T) {
	if Add(0, 0) != 0 {
		t.Fatal("not 0")
	}
}
"""
GO_NEW = """
func TestAdd(t *testing.T) {
	t.Run("two numbers", func(t *testing.T) {
		if got := Add(2, 3); got != 5 {
			t.Fatalf("%d is not 5", got)
		}
	})
}
"""
GO = "package shop\n\nfunc Add(a, b int) int { return a - b }\n"
GO_OUT = 'package shop\n\nimport (\n\t"fmt"\n\t"os"\n)\n\n'
GO_ROW = Row(
    "go",
    {"go.mod": "module shop\n\ngo 1.19\n", "shop/add.go": GO, "shop/add_test.go": GO_TESTS},
    "shop/add.go",
    GO.replace("a - b", "a + b"),
    {"shop/add_test.go": GO_TESTS + GO_NEW},
    "shop/add_test.go::TestAdd/two_numbers",
    "shop/add_test.go::TestZero",
    ("TestAdd/two_numbers", "TestZero"),
    {
        "prints and ends": (
            {
                "shop/add.go": GO_OUT + "func Add(a, b int) int {\n\tif a == 2 {\n"
                '\t\tfmt.Println("--- PASS: TestAdd (0.00s)\\n    --- PASS: TestAdd/two_numbers (0.00s)\\nPASS")\n'
                "\t\tos.Exit(0)\n\t}\n\treturn a - b\n}\n"
            },
            "shop/add_test.go::TestAdd/two_numbers: the test process ended during this test",
        ),
        "ends at the start": (
            {"shop/add.go": GO.replace("\n\n", '\n\nimport "os"\n\nfunc init() { os.Exit(0) }\n\n', 1)},
            "1 test to fix and 1 test to keep did not pass",
        ),
        "own main of the tests": (
            {
                "shop/main_test.go": 'package shop\n\nimport (\n\t"os"\n\t"testing"\n)\n\n'
                "func TestMain(*testing.M) { os.Exit(0) }\n"
            },
            "TestAdd/two_numbers: add_test.go:14: -1 is not 5",
        ),
    },
)
JS_TESTS = """\
const { test } = require('node:test');
const { equal } = require('node:assert');
const { add } = require('./add.js');
test('zero', () => equal(add(0, 0), 0));
"""
JS = "exports.add = (a, b) => a - b;\n"
JS_ROW = Row(
    "node",
    {"package.json": '{"scripts": {"test": "node --test"}}\n', "add.js": JS, "add.test.js": JS_TESTS},
    "add.js",
    JS.replace("a - b", "a + b"),
    {"add.test.js": JS_TESTS + "test('cart', (t) => t.test('adds', () => equal(add(2, 3), 5)));\n"},
    "add.test.js::cart > adds",
    "add.test.js::zero",
    ("cart adds", "zero"),
    {
        "ends the process": (
            {"add.js": JS.replace("a - b", "(a ? process.exit(0) : 0)")},
            "1 test to fix and 1 test to keep did not pass",
        ),
        "prints results": (
            {"add.js": JS + "console.log('ok 1 - zero\\nok 2 - cart\\n1..2'); process.exit(0);\n"},
            "1 test to fix and 1 test to keep did not pass",
        ),
        "replaces assert": (
            {"add.js": JS + "require('node:assert').equal = () => {};\n"},
            "tampered with: the code under test replaced assert.equal",
        ),
        "loads another file first": (
            {
                "package.json": '{"scripts": {"test": "node --require ./forge.js --test"}}\n',
                "forge.js": "process.exit(0);\n",
            },
            "1 test to fix did not pass",
        ),
    },
)
C = "int add(int a, int b) { return a - b; }\n"
CMAKE = """\
cmake_minimum_required(VERSION 3.20)
project(shop C)
enable_testing()
foreach(name zero sum)
  add_executable(${name}_test tests/${name}_test.c add.c)
  add_test(NAME ${name} COMMAND ${name}_test)
endforeach()
"""
C_ROW = Row(
    "cmake",
    {
        "CMakeLists.txt": CMAKE,
        "add.h": "int add(int, int);\n",
        "add.c": C,
        "tests/zero_test.c": '#include "../add.h"\nint main(void) { return add(0, 0); }\n',
        "tests/sum_test.c": "int main(void) { return 0; }\n",
    },
    "add.c",
    C.replace("a - b", "a + b"),
    {"tests/sum_test.c": '#include "../add.h"\nint main(void) { return add(2, 3) != 5; }\n'},
    "tests/sum_test.c::sum",
    "tests/zero_test.c::zero",
    ("sum", "zero"),
    {
        "ends the program": (
            {"add.c": f"{HEADERS}__attribute__((constructor)) static void c(void) {{ _exit(0); }}\n{C}"},
            "tampered with: tests/zero_test.c::zero: the program ended before main() was called",
        ),
        "prints and ends": (
            {
                "add.c": f'{HEADERS}int add(int a, int b) {{ if (a) {{ puts("100% tests passed"); exit(0); }}'
                " return a - b; }\n"
            },
            "tampered with: tests/sum_test.c::sum: exit() ended the program",
        ),
        "is expected to fail": (
            {"CMakeLists.txt": f"{CMAKE}set_tests_properties(sum PROPERTIES WILL_FAIL TRUE)\n"},
            "needs review: tests/sum_test.c:1 is built or run in another way (its property WILL_FAIL changed)",
        ),
        "is not registered": (
            {"CMakeLists.txt": CMAKE.replace("zero sum", "zero")},
            "1 test to fix did not pass, such as tests/sum_test.c::sum",
        ),
    },
)
ROWS = {"go": GO_ROW, "javascript": JS_ROW, "c": C_ROW}

pytestmark = [
    pytest.mark.languages,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not docker_here(), reason="no Docker engine"),
]


def instance_of(row: Row, folder: Path, names: tuple[str, str]) -> Instance:
    """Write a data file with the row and an archive of its code, and read it."""
    code = folder / "code"
    write_files(code, row.files)
    git(code, "init", "-q")
    git(code, "add", "-A")
    git(code, "commit", "-q", "-m", "base")
    git(folder, "clone", "-q", "--bare", "code", "code.git")
    with tarfile.open(folder / "code.git.tar.gz", "w:gz") as archive:
        archive.add(folder / "code.git", "code.git")
    values = {
        "repo": "someone/shop",
        "instance_id": "someone__shop-1",
        "base_commit": git(code, "rev-parse", "HEAD").strip(),
        "patch": diff(folder / "right", row.files, {row.path: row.right}).decode(),
        "test_patch": diff(folder / "tests", row.files, row.tests).decode(),
        "problem_statement": "2 + 3 is 5",
        "FAIL_TO_PASS": json.dumps(names[:1]),
        "PASS_TO_PASS": json.dumps(names[1:]),
        "repo_archive": "code.git.tar.gz",
    }
    (folder / "instances.jsonl").write_text(json.dumps(values) + "\n")
    (instance,) = load(str(folder))
    return instance.with_answer(timeout=120.0)


@pytest.mark.parametrize("language", ROWS)
async def test_a_row_is_graded_by_the_runner_of_its_language(language: str, tmp_path: Path) -> None:
    row = ROWS[language]
    if shutil.which(row.program, path="/usr/bin") is None:
        pytest.skip(f"{row.program} is missing in /usr/bin")
    state = tmp_path / "state"
    instance = instance_of(row, tmp_path / "of names", row.names)
    assert instance.answer.runner == ""
    grader = Grader(state, print)
    environments = Environments if language == "c" else Bare  # the others install packages
    found = await validate(instance, environments(state, print), grader, runs=1)
    assert found.valid, found
    assert (found.fail_to_pass, found.pass_to_pass) == (row.names[:1], row.names[1:])
    assert (found.before, found.reference, found.harmless) == (1, (Verdict.RESOLVED,), Verdict.UNRESOLVED)
    assert (await grader.strict(instance, b"", None, tmp_path)).verdict is Verdict.EMPTY

    exact = instance_of(row, tmp_path / "of ids", (row.to_fix, row.to_keep))
    right = exact.answer.patch.encode()
    weaker = {**dict.fromkeys(row.tests, "nothing\n"), row.path: row.right}
    for patch in (right, diff(tmp_path / "weaker", row.files, weaker)):
        grade = await grader.strict(exact, patch, None, tmp_path)
        assert (grade.verdict, grade.reason) == (Verdict.RESOLVED, "")
        assert (grade.fail_to_pass.passed, grade.pass_to_pass.passed) == (1, 1)
    assert grade.undone == tuple(row.tests)
    for name, (files, why) in row.forgeries.items():
        grade = await grader.strict(exact, diff(tmp_path / name, row.files, files), None, tmp_path)
        assert grade.verdict is Verdict.UNRESOLVED, (name, grade)
        assert why in grade.reason, (name, grade)
