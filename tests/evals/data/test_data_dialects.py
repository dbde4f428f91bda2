"""Rows of benchmarks that are like SWE-bench, but not the same."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from m3agent.evals.data.instance import DataError, Instance, OwnRules
from m3agent.evals.data.load import load
from m3agent.evals.environments.recipe import prebuilt_layer
from tests.evals.data_rows import GOLD, TESTS, a_row, write_rows

REBENCH: dict[str, Any] = {
    "created_at": 1609298073000,
    "image_name": "docker.io/swerebenchv2/someone-calc:1925-ad6bff3",
    "environment": ...,
    "FAIL_TO_PASS": ["a"],
    "PASS_TO_PASS": ["b"],
    "version": ...,
    "language": "c",
    "install_config": {"test_cmd": ["make check"], "log_parser": "parse_log_jq", "docker_specs": None},
}
LIVE: dict[str, Any] = {
    "docker_image": "starryzhang/sweb.eval.x86_64.someone_1776_calc-1",
    "environment": ...,
    "test_cmds": ["cargo test > log.out 2>&1"],
    "print_cmds": ["cat log.out"],
    "rebuild_cmds": [],
    "log_parser": "def parser(log):\n    return {}\n",
}
PRO: dict[str, Any] = {
    "dockerhub_tag": "someone.calc-1",
    "FAIL_TO_PASS": ...,
    "PASS_TO_PASS": ...,
    "environment": ...,
    "fail_to_pass": "['test/a.js | it\\'s one', 'b']",
    "pass_to_pass": "[]",
    "requirements": "- half(4) returns 2",
    "interface": "No new interfaces.",
    "before_repo_set_cmd": "git checkout 1\n",
    "selected_test_files_to_run": '["test/a.js"]',
}
MULTI: dict[str, Any] = {
    "org": "someone",
    "repo": "Calc",
    "number": 7,
    "base": {"label": "someone:main", "ref": "main", "sha": "1" * 40},
    "resolved_issues": [{"number": 5, "title": "half is wrong", "body": "half(4) is 1"}],
    "fix_patch": GOLD,
    "test_patch": TESTS,
    "fixed_tests": {"t2": {"run": "fail", "fix": "pass"}, "t1": {"run": "none", "fix": "pass"}},
    "p2p_tests": {"t3": {"run": "pass", "fix": "pass"}},
}


def read(tmp_path: Path, row: dict[str, Any]) -> Instance:
    return load(write_rows(tmp_path / "rows.jsonl", row))[0]


def test_swe_rebench(tmp_path: Path) -> None:
    instance = read(tmp_path, a_row(**REBENCH))
    assert instance.task.created_at == datetime(2020, 12, 30, 3, 14, 33, tzinfo=UTC)
    assert instance.task.environment.image == "swerebenchv2/someone-calc:1925-ad6bff3"
    assert instance.task.environment.folder == "/calc"
    assert instance.answer.fail_to_pass == ("a",)


def test_swe_bench_live(tmp_path: Path) -> None:
    instance = read(tmp_path, a_row(**LIVE))
    assert instance.task.environment.image == LIVE["docker_image"]
    assert instance.task.environment.folder == "/testbed"
    assert "cargo" not in instance.task.model_dump_json()


def test_swe_bench_live_in_python(tmp_path: Path) -> None:
    row = {"pull_number": "744", "test_cmds": ["pytest -rA"], "log_parser": "pytest", "environment": ...}
    instance = read(tmp_path, a_row(**row))
    assert instance.task.environment.image == "starryzhang/sweb.eval.x86_64.someone_1776_calc-1"
    rules = instance.answer.rules
    assert isinstance(rules, OwnRules) and "its log_parser is not a program" in rules.unusable


def test_swe_bench_pro(tmp_path: Path) -> None:
    instance = read(tmp_path, a_row(**PRO))
    assert instance.task.environment.image == "jefzda/sweap-images:someone.calc-1"
    assert instance.task.environment.folder == "/app"
    assert instance.task.statement == "half(4) is 1\n\n- half(4) returns 2\n\nNo new interfaces."
    assert instance.answer.fail_to_pass == ("test/a.js | it's one", "b")
    assert instance.answer.pass_to_pass == ()


@pytest.mark.parametrize("ident", [{}, {"instance_id": "someone__Calc-7"}])
def test_multi_swe_bench(tmp_path: Path, ident: dict[str, str]) -> None:
    instance = read(tmp_path, MULTI | ident)
    assert (instance.id, instance.task.repo) == ("someone__Calc-7", "someone/Calc")
    assert instance.task.base_commit == "1" * 40
    assert instance.task.statement == "half is wrong\n\nhalf(4) is 1"
    assert (instance.task.environment.image, instance.task.environment.folder) == (
        "mswebench/someone_m_calc:pr-7",
        "/home/Calc",
    )
    assert (instance.answer.fail_to_pass, instance.answer.pass_to_pass) == (("t1", "t2"), ("t3",))
    assert instance.answer.patch == GOLD


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (a_row(**REBENCH | {"created_at": [1]}), "created_at: a time in milliseconds"),
        (a_row(**REBENCH | {"created_at": 1e30}), "created_at: a time in milliseconds"),
        (a_row(**REBENCH | {"image_name": " "}), "image_name: it is empty"),
        (a_row(**REBENCH | {"repo": "x/$(id)"}), "folder: '/\\$\\(id\\)' is not a path"),
        (a_row(**LIVE | {"docker_image": 1}), "docker_image: a string is expected"),
        (a_row(**PRO | {"fail_to_pass": "os.system('id')"}), "fail_to_pass: .* is not a list of test ids"),
        (a_row(**PRO | {"pass_to_pass": "{[]: 1}"}), "pass_to_pass: .* is not a list of test ids"),
        (a_row(**PRO | {"pass_to_pass": "{}"}), "pass_to_pass: a list of test ids is expected"),
        (a_row(**PRO | {"pass_to_pass": "[" * 100_000}), "pass_to_pass: .* is not a list of test ids"),
        (a_row(**PRO | {"dockerhub_tag": " "}), "dockerhub_tag: it is empty"),
        (MULTI | {"number": "7"}, "instance_id: it is missing"),
        (MULTI | {"instance_id": "x", "number": "7"}, "number: the number of a pull request"),
        (MULTI | {"resolved_issues": [1]}, "resolved_issues: a list of objects"),
        (MULTI | {"resolved_issues": [{"title": 1}]}, "resolved_issues.title: a string is expected"),
        (MULTI | {"base": "main"}, "base: an object is expected"),
        (MULTI | {"p2p_tests": []}, "p2p_tests: an object is expected"),
    ],
)
def test_a_fault_is_said_with_the_rows_own_field(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=rf"rows\.jsonl row 1, field .*{said}"):
        read(tmp_path, row)


@pytest.mark.parametrize("row", [{"install_config": {"install": "make"}}, {"test_cmds": ["make"]}])
def test_a_field_alone_makes_no_dialect(tmp_path: Path, row: dict[str, Any]) -> None:
    assert read(tmp_path, a_row(image="other:1", environment=..., **row)).task.environment.image == "other:1"


def test_the_recipe_of_the_row_wins(tmp_path: Path) -> None:
    instance = read(tmp_path, a_row(**PRO | {"environment": {"test_runner": "jest", "folder": "/work"}}))
    assert instance.answer.runner == "jest"
    assert instance.task.environment.folder == "/work"
    assert instance.task.environment.image == "jefzda/sweap-images:someone.calc-1"


def test_the_code_is_moved_from_its_own_folder() -> None:
    script = prebuilt_layer("/usr/bin", "/home/Calc").script
    assert "cp -a /home/Calc /ws" in script
    assert "[ -e /testbed ] || ln -s /ws /testbed" in script
    assert "if [ /ws != /ws ]" in prebuilt_layer("/usr/bin", "/ws").script, "it stays where it is"
