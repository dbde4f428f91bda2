"""Task repositories of swebench 5: the rows that its own reader makes of them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.evals.data.instance import DataError
from m3agent.evals.data.load import load
from tests.agent.repositories import write_files

TASK = """\
instance_id: {instance_id}
repo: {repo}
version: "1.0"
base_commit: {base_commit}
created_at: {created_at}
image: swebench/calc:1
log_parser: parse_log_pytest
eval_type: pass_and_fail
split: test
"""


def repository(folder: Path, **files: str) -> Path:
    """Write a repository with one task, `calc-1`, of the form that swebench 5.0.2 describes."""
    place = "tasks/calc-1"
    fields = {"instance_id": "calc-1", "repo": "someone/calc", "base_commit": "a" * 40, "created_at": "2020-01-02T03:04:05Z"}  # fmt: skip
    task = {
        "sweb.yaml": "datasets: [someone/calc]\nsplits: [test]\n",
        f"{place}/task.yaml": TASK.format(**fields),
        f"{place}/tests.json": '{"FAIL_TO_PASS": ["test_calc.py::test_add"], "PASS_TO_PASS": []}',
        f"{place}/problem_statement.md": "add is wrong\n",
        f"{place}/gold.patch": "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-a\r\n+b\r\n",
        f"{place}/test.patch": "",
        f"{place}/eval.sh": "#!/bin/bash\n: '>>>>> Start Test Output'\npytest -rA test_calc.py\n: '>>>>> End Test Output'\n",
        f"{place}/Dockerfile": "FROM scratch\n",
    }
    write_files(folder, {**task, **{f"{place}/{name}": text for name, text in files.items()}})
    return folder


def test_a_task_repository_is_read_like_its_rows(tmp_path: Path) -> None:
    [instance] = load(str(repository(tmp_path)))
    task, answer = instance.task, instance.answer
    assert (task.instance_id, task.statement, task.environment.image) == (
        "calc-1",
        "add is wrong\n",
        "swebench/calc:1",
    )
    assert task.created_at is not None and task.created_at.year == 2020
    assert answer.patch.endswith("-a\r\n+b\r\n")
    assert answer.fail_to_pass == ("test_calc.py::test_add",)
    assert answer.test_command == "pytest -rA test_calc.py"
    assert answer.row["eval_type"] == "pass_and_fail"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"task.yaml": "instance_id: other\n"}, "field instance_id: it is not the folder's name"),
        ({"task.yaml": "[a\n"}, "task.yaml cannot be read"),
        ({"tests.json": "[]"}, "tests.json: an object is expected"),
        ({"gold.patch": ""}, "field patch"),
    ],
)
def test_a_malformed_task_is_refused(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        load(str(repository(tmp_path, **files)))
