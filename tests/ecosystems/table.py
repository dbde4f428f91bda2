"""Run an ecosystem's tests in a real sandbox, and compare the table of outcomes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TypeVar

import pytest

from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.tools.runners.base import Limits, Runner
from m3agent.tools.runners.run import run_suite
from m3agent.tools.test_report import TestReport
from tests.ecosystems.records import outcomes, tree_of

MakeSandbox = Callable[..., Sandbox]
Test = TypeVar("Test", bound=Callable[..., object])


MAVENS = tuple(
    f"/usr/share/maven-repo/{name}"
    for name in (
        *(f"org/apache/maven/plugins/maven-{kind}-plugin" for kind in ("compiler", "resources", "surefire")),
        "junit",
    )
)
"""What Maven builds and tests with in a sandbox without a network: folders of Debian's packages."""


def needs(*programs: str, path: str | None = None) -> pytest.MarkDecorator:
    """Skip a test where a program or a folder, which is an absolute path, is missing."""
    missing = [
        each
        for each in programs
        if not ((Path(each).is_absolute() and Path(each).is_dir()) or shutil.which(each, path=path))
    ]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def real(program: str) -> Callable[[Test], Test]:
    """Mark a test that needs a real toolchain of the system."""
    marks = (needs(program, path="/usr/bin"), pytest.mark.languages, pytest.mark.timeout(600))
    return lambda test: reduce(lambda marked, mark: mark(marked), marks, test)


async def run(
    sandbox_of: MakeSandbox,
    runner: Runner,
    files: Mapping[str, str],
    wanted: Sequence[str] = (),
    *,
    limits: Limits | None = None,
    memory: int = 1 << 30,
    root: str | None = None,
) -> TestReport:
    """Run the only suite of these files, or the one with this root, or a part of it."""
    tree = tree_of(files)
    (suite,) = (suite for suite in runner.detect(tree) if root in (None, suite.root))
    async with sandbox_of(dict(files), SandboxLimits(memory=memory)) as sandbox:
        return await run_suite(sandbox, runner, suite, tree, wanted, limits=limits or Limits(100, 5))


async def run_each(
    sandbox_of: MakeSandbox, runner: Runner, projects: Sequence[Mapping[str, str]], *, memory: int = 1 << 30
) -> list[TestReport]:
    """Run projects in one sandbox, each in a folder of its own with a manifest: `p0/`, `p1/`."""
    files = {f"p{n}/{path}": text for n, project in enumerate(projects) for path, text in project.items()}
    tree = tree_of(files)
    suites = {suite.root: suite for suite in runner.detect(tree)}
    assert len(suites) == len(projects)
    async with sandbox_of(files, SandboxLimits(memory=memory)) as sandbox:
        return [
            await run_suite(sandbox, runner, suites[f"p{n}"], tree, limits=Limits(60, 5))
            for n in range(len(projects))
        ]


def believed(report: TestReport) -> bool:
    """Return whether verification would take the run as complete and green."""
    return report.complete and not report.failed and not report.errored and not report.signs.forged


async def successes(
    sandbox_of: MakeSandbox,
    runner: Runner,
    forgeries: Mapping[str, Sequence[Mapping[str, str]]],
    red: str,
    *,
    memory: int = 1 << 30,
) -> list[str]:
    """Return the names of the projects that verification would believe: a red test is green in a complete run.

    Args:
        sandbox_of: Makes the sandbox.
        runner: The runner.
        forgeries: Name of a forgery to the projects that try it.
        red: Id of the test.
        memory: Bytes of memory of the sandbox.
    """
    named = [(name, project) for name, tried in forgeries.items() for project in tried]
    reports = await run_each(sandbox_of, runner, [project for _, project in named], memory=memory)
    return [
        name
        for n, ((name, _), report) in enumerate(zip(named, reports, strict=True))
        if believed(report) and outcomes(report).get(f"p{n}/{red}") == "passed"
    ]
