"""A benchmark small enough for tests, with everything that a run needs: small programs, their checkouts, a grader.

`python -m tests.evals.small PROGRAMS RUN OPTIONS` runs it. OPTIONS are JSON, see `main`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import typer

from m3agent.agent.endpoint.choice import choose_endpoint
from m3agent.agent.settings.loader import load_settings
from m3agent.agent.settings.settings import state_dir
from m3agent.cli.common import faults, run
from m3agent.cli.eval.run import conclude
from m3agent.evals.code.checkout import BRANCH, LeakProof
from m3agent.evals.data.instance import Answer, Environment, Instance, Source, Task
from m3agent.evals.data.results import Grade, OfficialGrade, RunConfig, TestCount, Verdict
from m3agent.evals.run.evaluate import evaluate
from m3agent.evals.run.other_agent import OtherAgent, parse_command
from m3agent.evals.run.own_agent import OwnAgent
from m3agent.evals.run.parts import AttemptParts, EvaluatedAgent
from m3agent.sandbox.backends.factory import SandboxSpec, choose_backend, new_sandbox
from m3agent.sandbox.errors import EngineUnavailable, EnvironmentBuildFailed
from m3agent.sandbox.store.git import TreeStore, run_git
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import run_in_sandbox

PROGRAMS = {
    "adder": (
        "def add(a, b):\n    return a - b\n",
        "from adder import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
        "add(2, 3) should be 5.",
    ),
    "largest": (
        "def largest(values):\n    best = 0\n    for v in values:\n        if v < best:\n            best = v\n    return best\n",
        "from largest import largest\n\n\ndef test_largest():\n    assert largest([1, 3, 2]) == 3\n",
        "largest([1, 3, 2]) should be 3.",
    ),
}
UNBUILDABLE, NO_ENGINE = "unbuildable", "no-engine"
"""Fake Python versions. The environment of the first fails by itself, that of the second because no engine answers."""


CLEAN = LeakProof(head="0" * 40, matches=None, commits=1, refs=(BRANCH,), objects=3, reachable=3)


def write_programs(folder: Path) -> Path:
    for name, (code, test, _) in PROGRAMS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.py").write_text(code)
        (folder / name / f"test_{name}.py").write_text(test)
    return folder


def instance(programs: Path, name: str, python: str | None = None) -> Instance:
    return Instance(
        task=Task(
            instance_id=name,
            repo=f"small/{name}",
            statement=PROGRAMS[name][2],
            source=Source(kind="folder", location=str(programs / name)),
            environment=Environment(python=python),
        ),
        answer=Answer(patch="", fail_to_pass=(f"test_{name}.py::test_{name}",)),
    )


def checkout(task: Task, target: Path) -> LeakProof:
    shutil.copytree(task.source.location, target)
    author = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    # not by tests.conftest, whose imports take half a second in each process
    for words in (("init", "-q"), ("add", "-A"), (*author, "commit", "-qm", "base")):
        subprocess.run(["git", *words], cwd=target, check=True, capture_output=True)
    return CLEAN


async def no_image(task: Task) -> str:
    """Return no image, so that sandboxes use their own."""
    if task.environment.python == UNBUILDABLE:
        raise EnvironmentBuildFailed("no such Python")
    if task.environment.python == NO_ENGINE:
        raise EngineUnavailable("no engine answers")
    return ""


async def small_grade(
    instance: Instance, patch: bytes, image: str, folder: Path
) -> tuple[Grade, OfficialGrade | None]:
    """A program is resolved if all its tests pass in a sandbox with the patch."""
    work = folder / "work"
    shutil.copytree(instance.task.source.location, work)
    applied = run_git("apply", "-", cwd=work, stdin=patch, ok=range(256))
    if applied.returncode != 0:
        return Grade(verdict=Verdict.UNRESOLVED, reason="the patch does not apply"), None
    files = sorted(path.name for path in work.glob("*.py"))
    workspace = Workspace.from_folder(TreeStore(folder / "trees.git"), work, files)
    spec = SandboxSpec()
    async with new_sandbox(await choose_backend(spec, print), spec, workspace, print) as sandbox:
        report = await run_in_sandbox(sandbox)
    good = bool(report.passed) and not report.red
    count = TestCount(passed=len(report.passed), failed=tuple(sorted(report.red)))
    return Grade(verdict=Verdict.RESOLVED if good else Verdict.UNRESOLVED, fail_to_pass=count), None


def parts_with(agent: EvaluatedAgent, _: Callable[[str], None] = print, **seconds: float) -> AttemptParts:
    return AttemptParts(checkout, no_image, small_grade, agent, {"environment": 60, "tests": 60, **seconds})


def main(programs: str, output: str, options: str) -> None:
    """agent: another agent's command; else our own runs with `settings`. seconds, attempts, workers: as in `evaluate`."""
    wanted: dict[str, Any] = json.loads(options)
    seconds = wanted.get("seconds", 120.0)
    agent: EvaluatedAgent
    settings: dict[str, str] = {}
    command: tuple[str, ...] = ()
    if "agent" in wanted:
        command = parse_command(wanted["agent"])
        agent = OtherAgent(command, {}, seconds)
    else:
        loaded = load_settings(Path("/"), wanted["settings"], {}).settings
        own = OwnAgent(loaded, choose_endpoint(loaded, state_dir(os.environ)), seconds)
        agent, settings = own, own.attempt_settings
    instances = [instance(Path(programs), name, wanted.get("python")) for name in wanted["instances"]]
    config = RunConfig(
        data="digest",
        instances=tuple(wanted["instances"]),
        agent="small",
        command=command,
        settings=settings,
        attempts=wanted.get("attempts", 1),
        timeouts={"agent": seconds},
    )
    parts, say = partial(parts_with, agent), partial(typer.echo, err=True)
    with faults():
        folder = evaluate(config, instances, Path(output), parts, say, run, workers=wanted.get("workers", 1))
        raise typer.Exit(conclude(folder, Path(output), as_json=True))


if __name__ == "__main__":
    typer.run(main)
