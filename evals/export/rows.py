"""Write instances as rows of SWE-bench, with the name of their image.

swebench 5 grades with `eval_script` and `log_parser`. Instances without them get a script that runs their own command.
"""

from __future__ import annotations

import json
import re
from typing import Any

from m3agent.evals.data.dialects import BENCHMARKS
from m3agent.evals.data.instance import TESTBED, Instance
from m3agent.evals.environments.recipe import CONDA
from m3agent.tools.runners.python import PYTEST

OWN = {"repo_archive", "repo_ref", "environment", *(benchmark.signs[0] for benchmark in BENCHMARKS)}
"""Fields that only m3agent reads, whose paths belong to another folder, and those by which it recognises benchmarks."""
_CHANGED = re.compile(r"^\+\+\+ b/(.+?)\r?$|^--- a/(.+?)\r?$", re.MULTILINE)
_END = "EOF_114329324912"
"""End of the test patch in the official scripts (swebench 4.1.0, harness/test_spec)."""


def row_of(instance: Instance, image: str) -> dict[str, Any]:
    """Return the row of an instance.

    Args:
        instance: The instance, with the ids of its tests.
        image: Name of its image. The code is in /testbed there, as in official images.
    """
    task, answer = instance.task, instance.answer
    row: dict[str, Any] = {
        "repo": task.repo,
        "instance_id": task.instance_id,
        "base_commit": task.base_commit,
        "patch": answer.patch,
        "test_patch": answer.test_patch,
        "problem_statement": task.statement,
        "hints_text": "",
        "created_at": task.created_at.isoformat() if task.created_at else "",
        "version": task.version,
        "environment_setup_commit": task.base_commit,
        **{name: value for name, value in answer.row.items() if name not in OWN},
        "FAIL_TO_PASS": json.dumps(list(answer.fail_to_pass)),
        "PASS_TO_PASS": json.dumps(list(answer.pass_to_pass)),
        "image": image,
        "image_name": image,
        "docker_image": image,
    }
    if not row.get("eval_script") and answer.runner == PYTEST and answer.test_command:
        row |= {
            "eval_script": _eval_script(instance),
            "log_parser": "parse_log_pytest",
            "eval_type": "pass_and_fail",
        }
    return row


def _eval_script(instance: Instance) -> str:
    """Return a script as the official harness makes it: reset the tests, apply the test patch, run the command."""
    answer = instance.answer
    command = answer.test_command if " -rA" in answer.test_command else f"{answer.test_command} -rA"
    before = sorted({old for _, old in _CHANGED.findall(answer.test_patch) if old})
    reset = f"git checkout HEAD -- {' '.join(before)}\n" if before else ""
    patch = answer.test_patch if answer.test_patch.endswith("\n") else f"{answer.test_patch}\n"
    tests = f"git apply -v - <<'{_END}'\n{patch}{_END}\n" if answer.test_patch.strip() else ""
    return f"""\
#!/bin/bash
set -uxo pipefail
source {CONDA}/bin/activate
conda activate testbed
cd {TESTBED}
git config --global --add safe.directory {TESTBED}
{reset}{tests}: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
{reset}"""
