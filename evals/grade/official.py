"""Compute the official verdict: by the rules of the row's benchmark (own_rules.py, rewards.py), else by those of SWE-bench's package.

The latter runs the row's evaluation script in its image, and applies the official parsers and rules to the output.
The steps are those of swebench 5.0.2's harness: one fresh container, user root, up to four commands in turn
to apply the patch, the script, and grading of its output. The only difference is that there is no network. A
patch can fool this verdict, so it is reported next to m3agent's own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from m3agent.evals.data.instance import TESTBED, Instance, RewardRules
from m3agent.evals.data.results import OfficialGrade
from m3agent.evals.grade.container import run_in_container
from m3agent.evals.grade.own_rules import grade_by_own_rules
from m3agent.evals.grade.rewards import grade_by_reward, grade_solution

PACKAGE = "swebench"
NEEDED = ("eval_script", "log_parser")
HEAD = ("#!/bin/bash", "set -uxo pipefail")
"""Lines that the package itself puts at the start of each script."""
PATCH, SCRIPT, DRIVER, LOG = "/patch.diff", "/eval.sh", "/driver.sh", "test_output.txt"
APPLIED, NOT_APPLIED, STARTED = "m3agent-applied", "m3agent-not-applied", "m3agent-eval-script"
WAYS = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
"""Commands that the official harness tries in turn to apply a patch (run_evaluation.GIT_APPLY_CMDS)."""


class NoOfficialGrade(Exception):
    """There is no official verdict; the message says why."""


UNUSED = ("datasets", "dotenv")
"""Packages that swebench 4 imports, and that grading does not use. `dotenv` would read a file of the current folder."""


def test_spec(instance: Instance) -> Any:
    """Return the row as the official package's `TestSpec`.

    The row itself has the script and the name of the parser, or swebench 4 has them for its repository and version.

    Raises:
        NoOfficialGrade: Script and parser are not known, or the package is not installed.
    """
    row = instance.answer.row
    missing = [name for name in NEEDED if not row.get(name)]
    if missing and row.get("source") == "history":  # as `eval create` writes it
        raise NoOfficialGrade("official rules exist for published benchmarks only, not for your own history")
    constants = official_module("constants")
    tables = getattr(constants, "MAP_REPO_VERSION_TO_SPECS", None)
    if tables is not None:
        return _spec_of_tables(instance, constants, tables)
    if missing:
        raise NoOfficialGrade(
            f"the row has no {', '.join(missing)}, which the official rules need, and only swebench 4.1.0 has them for "
            "rows of SWE-bench: install it as docs/eval.md says"
        )
    return official_module("types", folder="").TestSpec(
        instance_id=instance.id,
        image="",
        eval_script_list=with_exit_status(str(row["eval_script"]), constants),
        repo=instance.task.repo,
        version=instance.task.version,
        FAIL_TO_PASS=list(instance.answer.fail_to_pass),
        PASS_TO_PASS=list(instance.answer.pass_to_pass),
        log_parser=str(row["log_parser"]),
        eval_type=str(row.get("eval_type") or constants.EvalType.PASS_AND_FAIL.value),
    )


def _spec_of_tables(instance: Instance, constants: Any, tables: Any) -> Any:
    """Return the `TestSpec` of swebench 4. Only what grading needs is in it: its own function would use the network."""
    task, answer = instance.task, instance.answer
    specs = tables.get(task.repo, {}).get(task.version)
    if specs is None:
        raise NoOfficialGrade(
            f"swebench 4 has no commands for {task.repo} {task.version or 'without a version'}"
        )
    row = {"repo": task.repo, "version": task.version, "test_patch": answer.test_patch}
    lines = official_module("test_spec.create_scripts").make_eval_script_list(
        row, specs, "testbed", TESTBED, task.base_commit, answer.test_patch
    )
    return official_module("test_spec.test_spec").TestSpec(
        instance_id=instance.id,
        repo=task.repo,
        version=task.version,
        repo_script_list=[],
        env_script_list=[],
        eval_script_list=lines,
        arch="x86_64",
        FAIL_TO_PASS=list(answer.fail_to_pass),
        PASS_TO_PASS=list(answer.pass_to_pass),
        language=constants.MAP_REPO_TO_EXT[task.repo],
        docker_specs={},
        namespace=None,
    )


def official_module(name: str, folder: str = "harness.") -> Any:
    """Return a module of the package, without running the `__init__` files of its folders.

    They would import network clients and hub libraries that grading does not need. The package can therefore be installed
    without its dependencies.
    """
    whole = f"{PACKAGE}.{folder}{name}"
    if whole in sys.modules:
        return sys.modules[whole]
    try:
        for number in range(1, whole.count(".") + 1):
            parent = ".".join(whole.split(".")[:number])
            if parent not in sys.modules:
                sys.modules[parent] = _without_init(parent)
        with _without_unused():
            return importlib.import_module(whole)
    except ImportError as error:
        raise NoOfficialGrade(
            f"the package {PACKAGE} is not installed ({error}): install m3agent[official] as docs/install.md says"
        ) from None


def _without_init(package: str) -> types.ModuleType:
    """Return a package without running its `__init__`."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ImportError(f"No module named {package!r}")
    return importlib.util.module_from_spec(spec)


@contextlib.contextmanager
def _without_unused() -> Iterator[None]:
    """Let the package import `UNUSED` without effect."""
    replaced = {name: sys.modules.get(name) for name in UNUSED}
    for name in UNUSED:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name])["__getattr__"] = lambda _: lambda *_, **__: None
    try:
        yield
    finally:
        for name, module in replaced.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def with_exit_status(script: str, constants: Any) -> list[str]:
    """Return a script's lines, extended to print the tests' exit status after the end marker.

    The official rules use this status.
    """
    lines = []
    for line in script.strip().splitlines():
        if line in HEAD:
            continue
        if constants.END_TEST_OUTPUT in line:
            lines += ["tests_ended_with=$?", line, f'echo "{constants.TEST_EXIT_CODE}: $tests_ended_with"']
        else:
            lines.append(line)
    return lines


def can_grade(instance: Instance) -> bool:
    """Return whether the rules of the row's benchmark can grade it here."""
    rules = instance.answer.rules
    if rules is not None:
        return isinstance(rules, RewardRules) or not rules.unusable
    try:
        test_spec(instance)
    except NoOfficialGrade:
        return False
    return True


async def official_grade(instance: Instance, patch: bytes, image: str, folder: Path) -> OfficialGrade:
    """Return the official verdict on a patch; keep its log in `folder`.

    Faults of the patch or its tests never raise.

    Raises:
        EnvironmentBuildFailed: The container engine failed.
    """
    started = time.monotonic()
    if not patch.strip():
        return OfficialGrade(resolved=False, reason="the patch is empty")
    rules = instance.answer.rules
    if isinstance(rules, RewardRules):
        return await grade_by_reward(instance, rules, patch, image, folder)
    if rules is not None:
        return await grade_by_own_rules(instance, rules, patch, image, folder)
    try:
        spec = test_spec(instance)
        grading = official_module("grading")
    except NoOfficialGrade as error:
        return OfficialGrade(resolved=None, reason=str(error))
    files = {PATCH: patch, SCRIPT: spec.eval_script.encode(), DRIVER: _driver()}
    done = await run_in_container(image, files, DRIVER, instance.answer.timeout)
    before, _, log = done.output.partition(f"{STARTED}\n")
    (folder / LOG).write_text(log, "utf-8")
    took = {"seconds": round(time.monotonic() - started, 3), "test_seconds": done.seconds}
    if done.timed_out:
        return OfficialGrade(resolved=False, reason="the tests took too long", **took)
    if NOT_APPLIED in before:
        return OfficialGrade(resolved=False, reason="the patch does not apply", **took)
    prediction = {"instance_id": instance.id, "model_name_or_path": "m3agent", "model_patch": "given"}
    report = grading.get_eval_report(
        test_spec=spec, prediction=prediction, test_log_path=str(folder / LOG), include_tests_status=True
    )[instance.id]
    return OfficialGrade(resolved=bool(report["resolved"]), reason=_reason(report), **took)


async def official_grade_of_reference(instance: Instance, image: str, folder: Path) -> OfficialGrade:
    """Return the official verdict on the reference, which is a patch or a script; keep its log in `folder`.

    Raises:
        EnvironmentBuildFailed: The container engine failed.
    """
    if isinstance(instance.answer.rules, RewardRules):
        return await grade_solution(instance, instance.answer.rules, image, folder)
    return await official_grade(instance, instance.answer.reference, image, folder)


def _reason(report: dict[str, Any]) -> str:
    if report["resolved"]:
        return ""
    status = report.get("tests_status")
    if status is None:
        return "no result could be read from the log"
    failed = [name for kind in ("FAIL_TO_PASS", "PASS_TO_PASS") for name in status[kind]["failure"]]
    return (
        f"{len(failed)} tests did not pass, such as {failed[0]}"[:500] if failed else "not all tests passed"
    )


def _driver() -> bytes:
    """Return a shell script that applies the patch as the harness does and runs the evaluation script."""
    tries = ""
    for number, way in enumerate(WAYS):
        clean = "git checkout -- . ; git clean -fd; " if number else ""
        tries += f'[ -n "$done" ] || {{ {clean}{way} {PATCH} && done=1; }}\n'
    return f"""\
exec 2>&1
cd /testbed
done=
{tries}[ -n "$done" ] || {{ git apply --check --reverse {PATCH} && done=1; }}
[ -n "$done" ] || {{ echo {NOT_APPLIED}; echo {STARTED}; exit 0; }}
echo {APPLIED}
echo {STARTED}
exec /bin/bash {SCRIPT}
""".encode()
