"""The probe for the test runners of other languages: reports, places, and programs with many candidates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from m3agent.serving.embedded.languages import Curly, Python, failing_suites, language_of, units_of
from m3agent.serving.embedded.localise import localise_plain
from m3agent.serving.embedded.policy import respond
from m3agent.serving.embedded.probe import bundle, same_job
from m3agent.serving.embedded.probe.commands import (
    GO_CACHE,
    Bench,
    is_code,
    named_lines,
    read_report,
    side_by_side,
)
from m3agent.serving.embedded.repair import Budget
from m3agent.serving.embedded.request import NamedSuite, read
from m3agent.serving.embedded.syntax import PlainSource
from m3agent.tools.runners.base import Suite
from m3agent.tools.runners.go import CACHE
from m3agent.tools.runners.suites import described
from tests.serving.embedded.workbench import TOOLS

GO_REPORT = "\n".join(
    [
        "# tool/other",
        json.dumps({"Action": "run", "Package": "tool", "Test": "TestA"}),
        json.dumps({"Action": "output", "Package": "tool", "Test": "TestA", "Output": "want 5\n"}),
        json.dumps({"Action": "fail", "Package": "tool", "Test": "TestA"}),
        json.dumps({"Action": "pass", "Package": "tool", "Test": "TestB/part"}),
        json.dumps({"Action": "skip", "Package": "tool", "Test": "TestC"}),
        json.dumps({"Action": "fail", "Package": "tool"}),
    ]
)
JEST_REPORT = "PASS a.test.js\n" + json.dumps(
    {
        "numFailedTests": 1,
        "testResults": [
            {
                "assertionResults": [
                    {"fullName": "sum adds", "status": "failed", "failureMessages": ["Expected: 5"]},
                    {"fullName": "sum later", "status": "pending"},
                ]
            }
        ],
    }
)
TAP_REPORT = """TAP version 13
not ok 1 - adds
  ---
  error: '-1 == 5'
  ...
    ok 1 - inner
ok 2 outer # time=3ms
ok 3 - later # SKIP no network
ok 4 - adds
ok 5 - issue \\# 7
"""


@pytest.mark.parametrize(
    ("runner", "report", "outcomes", "said"),
    [
        (
            "go",
            GO_REPORT,
            {"tool TestA": "failed", "tool TestB/part": "passed", "tool TestC": "skipped"},
            "want 5",
        ),
        ("jest", JEST_REPORT, {"sum adds": "failed", "sum later": "skipped"}, "Expected: 5"),
        (
            "jest",
            '{"Test": "a", "Output": null}\n' + JEST_REPORT,
            {"sum adds": "failed", "sum later": "skipped"},
            "Expected: 5",
        ),
        (
            "mocha",
            TAP_REPORT,
            {
                "adds": "failed",
                "inner": "passed",
                "outer": "passed",
                "later": "skipped",
                "issue # 7": "passed",
            },
            "-1 == 5",
        ),
    ],
)
def test_a_report_is_read(runner: str, report: str, outcomes: dict[str, str], said: str) -> None:
    found, text = read_report(runner, report)
    assert found == outcomes
    assert said in text


def test_tests_and_configuration_are_never_changed() -> None:
    tests = "a_test.go test/x.js src/a.spec.ts __tests__/b.js testdata/c.go jest.config.js types.d.ts test.js d.py"
    assert not any(map(is_code, tests.split()))
    assert all(map(is_code, ["a.go", "lib/parse.js", "src/latest.ts", "contest.tsx", "x.mjs"]))


def test_functions_that_a_test_names_take_the_place_of_coverage() -> None:
    text = "const other = 1;\n\nfunction add(a, b) {\n  return a - b;\n}\n\nclass C {\n  sum(x) {\n    return x;\n  }\n}\n"
    assert named_lines(text, {"add"}) == {3, 4, 5}
    assert named_lines(text, {"sum"}) == {8, 9, 10}


def test_candidates_of_go_stand_side_by_side() -> None:
    text = "package p\n\nfunc Add(a int) int { return a - 1 }\n\nfunc Say() { print(1) }\n"
    one, other = text.index("{"), text.index("{ print")
    sign, number = text.index("-"), text.index("(1)") + 1
    joined, places = side_by_side(
        text,
        {
            3: [0, [[sign, sign + 1, "+"]], [one, text.index("}") + 1, "int"]],
            5: [0, [[number, number + 1, "2"]], [other, len(text) - 1, ""]],
        },
    )
    assert "if m3Candidate == 3 {\nreturn func() int { return a + 1 }()\n}\n return a - 1 }" in joined
    assert "if m3Candidate == 5 {\nfunc() { print(2) }()\nreturn\n}\n print(1) }" in joined
    lines = joined.split("\n")
    assert [(index, lines[first - 1]) for index, first, _ in places] == [
        (3, "if m3Candidate == 3 {"),
        (5, "if m3Candidate == 5 {"),
    ]
    assert [lines[last - 1] for _, _, last in places] == ["}", "}"]


def test_options_that_load_files_are_taken_from_the_script(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    scripts = {
        "lint": "eslint",
        "test": "npm run lint && mocha -r ts-node/register --reporter dot --ui=tdd test",
    }
    (root / "package.json").write_text(json.dumps({"scripts": scripts}))
    asked = {"root": str(root), "folder": "", "runner": "mocha", "units": ["test/a.ts"]}
    bench = Bench(asked, str(tmp_path / "copy"))
    command = bench.command(["test/a.ts"], ["adds (1)"])
    assert command[2:] == [
        *(
            "-r",
            "ts-node/register",
            "--ui=tdd",
            "--reporter",
            "tap",
            "--grep",
            r"^(?:adds\ \(1\))$",
            "test/a.ts",
        )
    ]


@pytest.mark.parametrize("name", ["copy", "a copy é"])
def test_frames_of_the_copy_are_found_innermost_last(tmp_path: Path, name: str) -> None:
    (tmp_path / "root" / "lib").mkdir(parents=True)
    asked = {"root": str(tmp_path / "root"), "folder": "", "runner": "node-test", "units": []}
    copy = tmp_path / name
    bench = Bench(asked, str(copy))
    said = f"at add ({copy.as_uri()}/lib/a.js:4:2)\nat run ({copy}/lib/b.js:9:1)\nat {copy}/a.test.js:1:1"
    assert bench.frames(said) == [["lib/b.js", 9, ""], ["lib/a.js", 4, ""]]
    assert bench.frames("./lib/a.go:3:37: undefined: c\na_test.go:7: wrong") == [["lib/a.go", 3, ""]]


def test_the_cache_of_a_go_environment_is_known() -> None:
    assert GO_CACHE == CACHE


def test_the_suites_of_the_first_message_are_read() -> None:
    suites = [Suite("go", "tool", "tool/go.mod"), Suite("node-test", "", "scripts.test in package.json")]
    sentence = f"The tool test_runner runs these tests: {described(suites)}.\n"
    decoy = sentence.replace("go", "cargo")
    text = f"{decoy}\n{sentence}\nFix this issue:\n\n<issue>\n{decoy}</issue>\n"
    found = read({"messages": [{"role": "user", "content": text}]}).suites
    assert found == (NamedSuite("go", "tool"), NamedSuite("node-test", ""))
    assert read({"messages": [{"role": "user", "content": "<issue>\nx\n</issue>"}]}).suites == ()


GO, WEB = NamedSuite("go", "tool"), NamedSuite("mocha", "")


def test_failing_tests_are_sorted_by_suite() -> None:
    red = ["go:tool::tool/a_test.go::TestA/x", "mocha:.::test/b.js::adds", "go:tool::tool/sub"]
    found = failing_suites(red, [GO, WEB])
    assert found == {GO: ["tool/a_test.go::TestA/x", "tool/sub"], WEB: ["test/b.js::adds"]}
    assert units_of(GO, found[GO]) == (".", "./sub")
    assert units_of(WEB, found[WEB]) == ("test/b.js",)
    assert failing_suites(["a_test.go::TestA"], [NamedSuite("go", "")])[NamedSuite("go", "")] == [
        "a_test.go::TestA"
    ]


def test_the_language_is_that_of_the_suite() -> None:
    assert language_of(GO, ["tool/a_test.go::T"]) == Curly("go", "tool", (".",))
    assert isinstance(language_of(NamedSuite("pytest", ""), []), Python)
    assert language_of(NamedSuite("cargo", ""), []) is None


def answer(runner: str, result: str) -> str:
    """Return the last words of the policy in a repository with one suite whose first run has this result."""
    start = f"The tool test_runner runs these tests: {runner} (x).\n\n<issue>\nIt fails.\n</issue>"
    function = {"name": "test_runner", "arguments": '{"test_file": ".", "timeout": 100}'}
    messages = [
        {"role": "user", "content": start},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": result},
    ]
    reply = respond({"messages": messages, "tools": TOOLS}, Budget())
    return reply.text or reply.calls[0].arguments["code"].partition("\n")[0]


def test_languages_that_the_engine_cannot_change_are_named() -> None:
    red = "1 passed, 1 failed, 0 errors, 0 skipped\nFAILED tests/a.rs::it_adds"
    assert answer("cargo", red).startswith(
        "No change: the failing tests run with cargo, and I can change only Python, Go, JavaScript or TypeScript."
    )
    for runner, file, language in (
        ("go", "a_test.go", "Go"),
        ("node-test", "a.test.js", "JavaScript"),
        ("vitest", "a.test.ts", "TypeScript"),
    ):
        said = answer(runner, red.replace("a.rs", file))
        assert said == f"# find the lines that the failing {language} tests run"
    assert answer("go", "2 passed, 0 failed, 0 errors, 0 skipped").startswith("No change: all tests pass")


SOURCE = "const LIMIT = 9;\nconst far = 1;\n\nfunction first(x) {\n  return x + LIMIT;\n}\n\nfunction second(x) {\n  return x;\n}\n"


def test_constants_count_through_the_lines_that_use_them() -> None:
    pytest.importorskip("tree_sitter_language_pack", reason="needs the extra `outlines`")
    spectrum = {
        "traced": [1, 1],
        "lines": {"m.js": [[5, 1, 0, []], [9, 1, 1, []]]},
        "failed": [["adds", "failed", 0.0, "", [["m.js", 9, ""]]]],
    }
    sources = {"m.js": PlainSource("m.js", SOURCE)}
    plain = localise_plain(spectrum, sources, "It fails.")["m.js"]
    assert plain[9] == 1.0  # the frame
    assert 0 < plain[1] < plain[5]
    assert 2 not in plain
    assert plain[10] > 0  # in the function with the frame, though no test is known to have run it
    named = localise_plain(spectrum, sources, "`first()` is wrong")["m.js"]
    assert named[5] / named[9] > plain[5] / plain[9]


@pytest.mark.parametrize(
    ("mode", "earlier"),
    [
        ("profile", "find the lines that the failing tests of another language run"),
        ("profile", "measure which lines the failing tests of another language run"),
        ("try", "let the tests of another language judge candidate changes in private copies"),
    ],
)
def test_steps_of_earlier_versions_are_the_same_job(mode: str, earlier: str) -> None:
    program = bundle(mode, "{}", "TypeScript")
    first, _, rest = program.partition("\n")
    assert "TypeScript tests" in first
    older = f"# {earlier}\n# in another way\n{rest}"
    assert same_job(older, program)
    assert not same_job(older.replace("'{}'", "'[]'"), program)


@pytest.mark.parametrize(("runner", "units"), [("go", "packages"), ("jest", "files")])
def test_the_report_names_what_was_judged_in_the_words_of_the_language(runner: str, units: str) -> None:
    assert Curly(runner, "", ()).judged == f"every test of the {units} with failing tests"
