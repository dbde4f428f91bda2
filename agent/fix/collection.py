"""Import all tests once in the repository's environment, to know which files cannot be imported.

The result is kept beside the environment's log, for the tree and the image that it was made with.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from m3agent.agent.fix.sandbox_setup import environment_of, sandbox_for
from m3agent.agent.repo.repository import Repository
from m3agent.agent.repo.snapshot import scratch_folder, workspace_of
from m3agent.agent.settings.settings import Settings
from m3agent.agent.verify.rules import NO_RUN
from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.image import REPOSITORY
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.images.kept import folder
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import run_in_sandbox
from m3agent.tools.runners.python import PYTEST
from m3agent.tools.runners.suites import suites_of
from m3agent.tools.test_report import TestReport, error_line
from m3agent.util.private_file import read_file, write_file

COLLECT_SECONDS = 60.0  # time limit of the collection
HERE_SECONDS = 20.0  # the same where a person waits for it
MOST_ERRORS = 5  # number of different errors that people are told

MISSING = re.compile(r"\bNo module named '([\w.]+)'")
CAUSES = (
    (
        re.compile(
            r"Name(?:Resolution| or service)|getaddrinfo|name resolution|Network is unreachable|Failed to resolve"
        ),
        "give --allow-net HOST for what asks a server when it is imported, or leave it out with --ignore in pytest's addopts",
    ),
    (
        re.compile(r"reading from stdin|^EOFError"),
        "what reads its input when it is imported is a program: leave it out with --ignore in pytest's addopts",
    ),
    (
        re.compile(r"^KeyError: '[A-Z][A-Z\d_]+'|(?i:environment variable)"),
        "variables that the tests need belong in .m3agent.toml, under [tests] env",
    ),
    (
        re.compile(r"FileNotFoundError|No such file"),
        "files that git does not hold must be in the image: make them in a Dockerfile, and give it with --dockerfile build",
    ),
    (
        re.compile(r"No module named 'test_\w+'"),
        "test files that import each other by their plain names need their folder in pytest's setting pythonpath",
    ),
)
"""Causes of errors that are no missing package, each with what people can do about it."""


@dataclass(frozen=True)
class Collection:
    """The result of importing all tests once."""

    errors: dict[str, str]
    """The first line of the error of each file that cannot be imported, by path."""
    reason: str | None = None
    """Why the result is incomplete; None if it is complete."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a file skips itself, by path, if it lacks a package."""

    def skips(self) -> list[str]:
        """Return which files skip themselves because they lack a package, for people who ask what is missing."""
        return [f"{path} skips itself: {why}" for path, why in self.skipped.items()][:MOST_ERRORS]

    def sentences(self) -> list[str]:
        """Return what people and the model are told; empty if all tests can be imported."""
        lines = []
        if self.reason is not None:
            lines.append(f"{NO_RUN}: {self.reason}")
        by_error: dict[str, list[str]] = {}
        for path, error in self.errors.items():
            by_error.setdefault(error, []).append(path)
        for error, paths in sorted(by_error.items(), key=lambda item: -len(item[1]))[:MOST_ERRORS]:
            others = len(paths) - 1
            more = f" and {others} other file{'s' if others > 1 else ''}" if others else ""
            lines.append(f"{paths[0]}{more} cannot be imported in the sandbox: {error}")
        if len(by_error) > MOST_ERRORS:
            lines.append(f"{len(by_error) - MOST_ERRORS} more errors are not shown")
        return lines

    def advice(self, backend: Backend) -> str:
        """Return what people can do about the errors, as a clause; empty if no cause is known."""
        texts = [*self.errors.values(), *self.skipped.values()]
        known = [what for cause, what in CAUSES if any(map(cause.search, texts))]
        lacks = dict.fromkeys(found[1] for text in texts if (found := MISSING.search(text)))
        names = ", ".join([name for name in lacks if not name.startswith("test_")][:MOST_ERRORS])
        if names and backend != "docker":
            known.append(
                f"if {names} comes from a package, install it on this machine, or declare it and take --sandbox docker"
            )
        elif names:
            known.append(
                f"if {names} comes from a package, declare it in pyproject.toml or requirements.txt, or give an image that has it "
                "with --image or --dockerfile"
            )
        return "; ".join(known)


async def collected(
    spec: SandboxSpec, backend: Backend, workspace: Workspace, state: Path, say: Callable[[str], None]
) -> Collection | None:
    """Return which tests cannot be imported in the environment image that m3agent built.

    Other images, and repositories without Python's tests, are not checked: the result is None. A sandbox that fails is a note, not an error.
    """
    if spec.image is None or not spec.image.startswith(f"{REPOSITORY}:"):
        return None
    suites = await asyncio.to_thread(suites_of, workspace.store, workspace.base)
    if all(suite.runner != PYTEST for suite in suites):
        return None
    kept = folder(state) / f"{spec.image.partition(':')[2]}.collected"
    found = await asyncio.to_thread(_read, kept, workspace.base)
    if found is None:
        try:
            async with new_sandbox(backend, replace(spec, allow_net=()), workspace, say) as sandbox:
                found = await collect(sandbox)
        except SandboxError as error:
            say(f"the tests could not be collected: {error}")
            return None
        await asyncio.to_thread(_write, kept, workspace.base, found)
    return found


async def collected_here(repository: Repository, settings: Settings, state: Path) -> Collection | None:
    """Return which tests cannot be imported where a fix would run them; None if that takes longer than `HERE_SECONDS`.

    Raises:
        M3AgentError, SandboxError: There is no such sandbox here, or its image is not built yet.
    """

    def silent(_: str) -> None:
        pass

    spec, backend = await sandbox_for(repository, settings, silent)
    with scratch_folder(state) as folder:
        workspace = await asyncio.to_thread(workspace_of, repository, folder, silent)
        spec = await environment_of(
            repository, spec, backend, workspace, settings, state, silent, build=False
        )
        async with new_sandbox(backend, replace(spec, allow_net=()), workspace, silent) as sandbox:
            report = await run_in_sandbox(sandbox, framework="collect", timeout=HERE_SECONDS)
    return None if report.timed_out else collection_of(report)


async def collect(sandbox: Sandbox) -> Collection:
    """Import all tests in a sandbox. Raises SandboxError if the sandbox itself fails."""
    return collection_of(await run_in_sandbox(sandbox, framework="collect", timeout=COLLECT_SECONDS))


def collection_of(report: TestReport) -> Collection:
    """Return the result of a test run that only collected."""
    errors = _errors(report)
    if report.timed_out:
        return Collection(errors, f"it took more than {COLLECT_SECONDS:.0f} s")
    skipped = {path: report.errors.get(path, "") for path in report.skipped}
    lacking = {path: why for path, why in skipped.items() if MISSING.search(why)}
    return Collection(errors, None if errors else report.obstacle or None, lacking)


def not_importable(report: TestReport) -> Collection:
    """Return which files of Python a run of all tests could not import."""
    # the id of a test has its name too
    return Collection({path: error for path, error in _errors(report).items() if path.endswith(".py")})


def _errors(report: TestReport) -> dict[str, str]:
    return {path: error_line(report.errors.get(path, "")) for path in report.errored}


def _read(kept: Path, tree: str) -> Collection | None:
    """Return the earlier result for a tree; None without one."""
    try:
        found = json.loads(read_file(str(kept)) or b"null")
        if found is not None and found["tree"] == tree:
            return Collection(dict(found["errors"]), found["reason"], dict(found["skipped"]))
    except (ValueError, TypeError, KeyError):  # another version wrote it: collect again
        return None
    return None


def _write(kept: Path, tree: str, found: Collection) -> None:
    content = {"tree": tree, "errors": found.errors, "reason": found.reason, "skipped": found.skipped}
    try:
        write_file(str(kept), json.dumps(content).encode())
    except OSError:
        return  # the state folder cannot be written: the next session collects again
