"""Run folders for tests, written by the same code as in a real run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from m3agent.evals.data.results import (
    AttemptRecord,
    AttemptUsage,
    Grade,
    OfficialGrade,
    RunConfig,
    Seconds,
    TestCount,
    Verdict,
)
from m3agent.evals.data.run_folder import RunFolder
from m3agent.evals.report.counting import Tally
from m3agent.evals.report.model import Score

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FIX = b"diff --git a/lane.py b/lane.py\n--- a/lane.py\n+++ b/lane.py\n@@ -1 +1 @@\n-a < b\n+a <= b\n"


def result(
    ident: str, verdict: Verdict | str = Verdict.RESOLVED, attempt: int = 1, **fields: Any
) -> AttemptRecord:
    """Return a result as grading makes it. The instance `owner__name-1` belongs to the repository `owner/name`."""
    verdict = Verdict(verdict)
    passed = verdict is Verdict.RESOLVED
    graded = verdict in (Verdict.RESOLVED, Verdict.UNRESOLVED)
    grade = Grade(
        verdict=verdict,
        fail_to_pass=TestCount(passed=passed, failed=() if passed else ("test_lane.py::test_fits",)),
        pass_to_pass=TestCount(passed=4),
        seconds=3.0,
        test_seconds=2.5,
    )
    given: dict[str, Any] = {
        "reason": "" if passed else f"it is {verdict}",
        "status": "verified" if passed else "failed",
        "grade": grade if graded else None,
        "patch_bytes": len(FIX) if graded else 0,
        "usage": AttemptUsage(
            turns=3, prompt_tokens=1000, cached_tokens=800, completion_tokens=50, cost=0.01
        ),
        "seconds": Seconds(environment=1.0, agent=20.0, grade=3.0),
        "started": STARTED,
        "repo": repo_of(ident),
    }
    return AttemptRecord(instance_id=ident, attempt=attempt, verdict=verdict, **given | fields)


def repo_of(ident: str) -> str:
    return ident.rsplit("-", 1)[0].replace("__", "/")


def config(instances: Iterable[str], **fields: Any) -> RunConfig:
    given: dict[str, Any] = {"data": "da7a", "agent": "m3agent 0.1.0", "settings": {"engine": "vllm"}}
    return RunConfig(instances=tuple(instances), **given | fields)


def run_folder(
    path: Path,
    results: Iterable[AttemptRecord],
    *,
    instances: Iterable[str] = (),
    patches: Mapping[str, bytes] | None = None,
    **fields: Any,
) -> RunFolder:
    """Write a run with these results. instances: more instances, without a result. patches: by instance, else `FIX`."""
    kept = list(results)
    idents = list(dict.fromkeys([*instances, *(one.instance_id for one in kept)]))
    folder = RunFolder.create(path, config(idents, **fields), {ident: repo_of(ident) for ident in idents})
    for one in kept:
        folder.begin(one.instance_id, one.attempt)
        folder.finish(one, (patches or {}).get(one.instance_id, FIX if one.patch_bytes else b""))
    return folder


def official(resolved: bool | None) -> OfficialGrade:
    return OfficialGrade(resolved=resolved)


def tally(results: list[AttemptRecord], *missing: str, **fields: Any) -> Tally:
    """Return the results of a run that has also the instances `missing`."""
    idents = list(dict.fromkeys([*(each.instance_id for each in results), *missing]))
    return Tally(config(idents, **fields), {ident: repo_of(ident) for ident in idents}, results)


def worst(score: Score) -> float:
    assert score.worst is not None
    return score.worst.value
