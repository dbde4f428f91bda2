"""How other benchmarks grade, read from their rows and from the files of their repositories beside the rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from m3agent.evals.data.instance import DataError, OwnRules
from m3agent.evals.data.load import digest, load
from tests.agent.repositories import write_files
from tests.evals.data.test_data_dialects import LIVE, MULTI, PRO, REBENCH
from tests.evals.data_rows import a_row, write_rows

ID = "someone__calc-1"
CLASS = '@Instance.register("someone", "Calc")\nclass Calc(Instance):\n    pass\n'


def rules_of(folder: Path, row: dict[str, Any]) -> OwnRules:
    rules = load(write_rows(folder / "rows.jsonl", row))[0].answer.rules
    assert isinstance(rules, OwnRules)
    return rules


def test_swe_bench_live(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, a_row(**LIVE))
    assert (rules.benchmark, rules.form, rules.entry, rules.unusable) == (
        "SWE-bench-Live",
        "function",
        "parser",
        "",
    )
    assert rules.script.splitlines()[1:] == [
        "git apply --whitespace=nowarn $GRADING/tests.diff || exit",
        "git apply --whitespace=nowarn $GRADING/patch.diff || exit",
        ": > $GRADING/applied",
        "cargo test > log.out 2>&1",
        "exec 1>&3 2>&4",
        "cat log.out",
    ]
    assert (rules.to_pass, rules.not_to_fail) == (
        ("tests/test_calc.py::test_half",),
        ("tests/test_calc.py::test_other",),
    )


def test_swe_rebench(tmp_path: Path) -> None:
    write_files(tmp_path, {"lib/agent/log_parsers.py": "def parse_log_jq(log): ...\n"})
    rules = rules_of(tmp_path, a_row(**REBENCH))
    assert (rules.entry, rules.parser) == ("parse_log_jq", "def parse_log_jq(log): ...\n")
    assert rules.script.endswith(": > $GRADING/applied\nmake check\n")
    assert (rules.to_pass, rules.exact, rules.untimed) == (("a", "b"), True, True)


def test_swe_bench_pro(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {f"run_scripts/{ID}/run_script.sh": "npx mocha $1\n", f"run_scripts/{ID}/parser.py": "print(1)\n"},
    )
    rules = rules_of(tmp_path, a_row(**PRO | {"before_repo_set_cmd": "git clean\ngit checkout 2 -- test\n"}))
    assert (rules.form, rules.parser, rules.files) == (
        "program",
        "print(1)\n",
        {"run_script.sh": "npx mocha $1\n"},
    )
    assert "git clean" not in rules.script, "only the last line counts"
    assert rules.script.splitlines()[-3:] == [
        "git checkout 2 -- test",
        "exec 1>&3 2>&4",
        "bash $GRADING/run_script.sh test/a.js",
    ]
    assert rules.to_pass == ("test/a.js | it's one", "b")


def test_multi_swe_bench(tmp_path: Path) -> None:
    write_files(tmp_path, {"multi_swe_bench/harness/repos/c/someone/calc.py": CLASS})
    row = MULTI | {
        "f2p_tests": {"t2": {}},
        "n2p_tests": {"t1": {}},
        "run_result": {"passed_tests": ["t3", "gone", "t5"]},
        "test_patch_result": {"passed_tests": ["t3", "t4"], "failed_tests": ["t5"]},
    }
    rules = rules_of(tmp_path, row)
    assert (rules.form, rules.entry, rules.parser) == ("class", "someone/Calc", CLASS)
    assert (rules.to_pass, rules.not_to_fail) == (("t1", "t2", "t3"), ("gone", "t4"))


def test_rows_of_swe_bench_have_none_and_keep_their_digest(tmp_path: Path) -> None:
    [instance] = load(write_rows(tmp_path / "rows.jsonl", a_row()))
    assert instance.answer.rules is None
    assert digest([instance]) == "4dac87b835315eb6094847b32331889eb6800d7e2c866fe6c91220d9392295b7"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (a_row(**REBENCH), "there is no lib/agent/log_parsers.py beside the rows: put .* of SWE-rebench-V2"),
        (a_row(**PRO), f"there is no run_scripts/{ID}/run_script.sh beside the rows"),
        (MULTI, "there is no class for someone/Calc in multi_swe_bench/harness/repos beside the rows"),
        (a_row(**LIVE | {"log_parser": "pytest"}), "its log_parser is not a program"),
    ],
)
def test_what_the_rules_lack_is_said(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    rules = rules_of(tmp_path, row)
    assert re.match(said, rules.unusable)
    assert not rules.script


@pytest.mark.parametrize(("language", "refused"), [("c", False), ("TypeScript", False), ("clojure", True)])
def test_a_row_that_neither_rules_can_grade_is_refused(tmp_path: Path, language: str, refused: bool) -> None:
    row = a_row(**REBENCH | {"language": language})
    if not refused:
        assert rules_of(tmp_path, row).unusable
        return
    said = "field language: m3agent has no test runner for it, and SWE-rebench V2's own rules cannot be used: there is no lib"
    with pytest.raises(DataError, match=said):
        rules_of(tmp_path, row)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (LIVE | {"log_parser": 1}, "log_parser"),
        (LIVE | {"test_cmds": [1]}, "test_cmds"),
        (PRO | {"selected_test_files_to_run": "os.system('id')"}, "selected_test_files_to_run"),
        (REBENCH | {"install_config": {"test_cmd": ["x"]}}, "install_config.log_parser"),
    ],
)
def test_a_malformed_field_of_the_rules_is_named(tmp_path: Path, row: dict[str, Any], field: str) -> None:
    write_files(
        tmp_path,
        {
            "lib/agent/log_parsers.py": "",
            f"run_scripts/{ID}/run_script.sh": "",
            f"run_scripts/{ID}/parser.py": "",
        },
    )
    with pytest.raises(DataError, match=rf"row 1, field {field}: "):
        rules_of(tmp_path, a_row(**row))
