"""Make the certificate of a verification: its evidence, the sandbox, and who made the patch. No licence's terms are repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from m3agent import __version__
from m3agent.agent.certificate.statement import VERSION, Base, Environment, Maker, Source, Statement, sealed
from m3agent.agent.issue.load import Issue
from m3agent.agent.settings.settings import Settings
from m3agent.agent.verify.pair import OWN_TESTS
from m3agent.agent.verify.test_sets import TEST_SETS
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.backends.factory import Backend, SandboxSpec
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.store.workspace import Patch, Workspace
from m3agent.tools.runners.suites import suites_of
from m3agent.tools.test_report import TestReport


@dataclass(frozen=True)
class Change:
    """A patch with its trees."""

    workspace: Workspace
    """Holds the trees; its base is the code without the patch."""
    patch: Patch
    text: bytes
    """Its bytes: those of the file, or the difference of the trees."""
    base: Base
    """The code without the patch."""
    origin: Source
    """Where the patch came from."""


def statement_of(
    change: Change,
    evidence: Verification,
    environment: Environment,
    settings: Settings,
    started: datetime,
    issue: Issue | None = None,
    made_by: Maker | None = None,
    accepted: Sequence[str] = (),
) -> Statement:
    """Return the certificate of a verified patch. Blocking.

    Args:
        accepted: Files of the patch with tests that a person accepted before the code was changed.
    """
    predicate = {
        "version": VERSION,
        "verdict": evidence.verdict,
        "reason": evidence.reason,
        "only_own_tests": evidence.own_only,
        "base": change.base.model_dump(),
        "patch": {
            "sha256": digest_of(change.text),
            "paths": change.patch.paths,
            "source": change.origin.model_dump(),
        },
        "result_tree": change.patch.tree,
        "environment": environment.model_dump(),
        "suites": _suites(change, evidence),
        "commands": _commands(evidence),
        "limits": {
            "reruns": settings.reruns,
            "verify_minutes": settings.verify_minutes,
            "baseline_minutes": settings.baseline_minutes,
        },
        "tests": _tests(evidence),
        "put_back": evidence.undone,
        "tampering": evidence.tampering,
        "review": [{"path": found.path, "line": found.line, "what": found.what} for found in evidence.review],
        "pinned": evidence.pinned,
        "accepted": accepted,
        "checks": [
            {"command": each.command, "new": [*map(str, each.new)], "silent": each.silent}
            for each in evidence.checks
        ],
        "issue": None
        if issue is None
        else {name: getattr(issue, name) for name in ("title", "text", "source")},
        "made_by": None if made_by is None else made_by.model_dump(),
        "tool": {"name": "m3agent", "version": __version__},
        "started": _moment(started),
        "finished": _moment(datetime.now(UTC)),
        "seconds": evidence.seconds,
    }
    return sealed(_as_unicode(predicate))


def digest_of(patch: bytes) -> str:
    """Return the digest by which a certificate names a patch."""
    return hashlib.sha256(patch).hexdigest()


def _suites(change: Change, evidence: Verification) -> list[dict[str, Any]]:
    not_run = {*evidence.left_out, *evidence.after.not_run}
    return [
        {
            "runner": suite.runner,
            "folder": suite.root,
            "evidence": suite.evidence,
            "ran": suite.name not in not_run,
        }
        for suite in suites_of(change.workspace.store, change.patch.base)
    ]


def _tests(evidence: Verification) -> dict[str, Any]:
    tests: dict[str, Any] = {
        "without_patch": _counts(evidence.before),
        "with_patch": _counts(evidence.after),
    }
    for each in TEST_SETS:
        idents = getattr(evidence, each.field)
        tests[each.certificate] = _with_runs(idents, evidence) if each.has_runs else idents
    return tests


def _counts(report: TestReport) -> dict[str, int]:
    return {name: len(ids) for name, ids in report.sets.items()}


def _with_runs(idents: Sequence[str], evidence: Verification) -> list[dict[str, Any]]:
    """Return tests with the number of their green and red runs without and with the patch."""
    runs = {ident: {side: {"green": 0, "red": 0} for side in (False, True)} for ident in idents}
    # of a test that the patch changes, the runs of one version count: of the old one, unless only the new one shows the fix
    known = evidence.before.ids | evidence.after.ids
    shown_by_new = {*evidence.fixed} - evidence.before.red
    of_new = {ident for ident in idents if ident not in known or ident in shown_by_new}
    for run in evidence.runs:
        if run.patched is None:
            continue
        counted = of_new if run.name.startswith(f"verify-{OWN_TESTS}") else runs.keys() - (of_new & known)
        for outcome, ids in (("green", run.passed), ("red", run.red)):
            for ident in counted & {*ids}:
                runs[ident][run.patched][outcome] += 1
    return [
        {"id": ident, "without_patch": found[False], "with_patch": found[True]}
        for ident, found in runs.items()
    ]


def _commands(evidence: Verification) -> list[dict[str, Any]]:
    """Return the commands of all runs, in the order of their first run."""
    sides = {False: "without_patch", True: "with_patch", None: "on_copies"}
    found: dict[tuple[str, ...], dict[str, int]] = {}
    for run in evidence.runs:
        for argv in run.commands:
            found.setdefault(argv, dict.fromkeys(sides.values(), 0))[sides[run.patched]] += 1
    return [{"argv": argv, **counts} for argv, counts in found.items()]


def _moment(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_unicode(value: Any) -> Any:
    """Replace surrogate escapes: names of files and tests may hold bytes that are not UTF-8."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_as_unicode(name): _as_unicode(item) for name, item in value.items()}
        case list() | tuple():
            return [_as_unicode(item) for item in value]
    return value


_LISTED = """
import json
try:
    from importlib.metadata import distributions
    names = [(one.metadata["Name"], one.version) for one in distributions()]
except ImportError:  # Python before 3.8
    from pkg_resources import working_set
    names = [(one.project_name, one.version) for one in working_set]
print(json.dumps(sorted({"%s==%s" % name for name in names}, key=str.lower)))
"""
_MOST = 1 << 20
"""Most bytes of the list of packages that are read."""


async def described_environment(sandbox: Sandbox, spec: SandboxSpec, backend: Backend) -> Environment:
    """Return the environment of a sandbox in which nothing has run yet. Raises SandboxError: The sandbox failed."""
    # isolated mode: no file of the repository may replace a module that the program imports
    listed = await sandbox.exec(["python3", "-I", "-c", _LISTED], keep=_MOST)
    try:
        packages = tuple(str(one) for one in json.loads(listed.stdout))
    except ValueError:  # the list is longer, or this Python cannot make it
        packages = ()
    return Environment(
        sandbox=backend,
        isolated=sandbox.machine.isolated,
        image=spec.image,
        image_id=sandbox.machine.image_id,
        python=sandbox.python,
        packages=packages,
        network=tuple(str(host) for host in spec.allow_net),
        memory=spec.limits.memory,
        cpus=spec.limits.cpus,
    )


M3_LICENCE = "https://huggingface.co/MiniMaxAI/MiniMax-M3/blob/main/LICENSE"
"""The licence file of MiniMax M3, which is also that of its quantised forms."""
HARNESS_LICENCE = "https://www.apache.org/licenses/LICENSE-2.0"
"""The licence of m3agent itself, and so of its engine `embedded`."""
EMBEDDED = "m3agent-embedded"
"""The name of the engine `embedded` as a model. It is a search and has no weights."""


def maker_of(model: str) -> Maker:
    """Return who made a patch."""
    return Maker(harness=f"m3agent {__version__}", model=model, model_licence=_licence_of(model))


def _licence_of(model: str) -> str | None:
    name = model.rpartition("/")[2].lower()
    if name == EMBEDDED:
        return HARNESS_LICENCE
    return M3_LICENCE if name == "minimax-m3" or name.startswith("minimax-m3-") else None
