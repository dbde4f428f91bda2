"""Test how an attempt ends: status, exit code, last events and the patch's fate. All in memory: see tests/fakes.

Applying, committing and opening a pull request have their own tests; here they only record that they were called.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest

from m3agent.agent.certificate.build import maker_of
from m3agent.agent.certificate.statement import read
from m3agent.agent.delivery.apply import HandOver
from m3agent.agent.delivery.pull_request import Offered
from m3agent.agent.exit_codes import Failure
from m3agent.agent.fix import finalize as ending
from m3agent.agent.fix.attempt import Attempt
from m3agent.agent.fix.finalize import FixResult, end, end_early, judge
from m3agent.agent.loop.loop import Outcome
from m3agent.agent.repo.repository import Repository
from m3agent.agent.session.session import PATCH
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.errors import SandboxDied, SandboxError
from m3agent.sandbox.store.workspace import Patch
from m3agent.serving.client.messages import Usage
from m3agent.serving.errors import StreamCut
from m3agent.tools.test_report import TestReport
from m3agent.util.errors import (
    EnvironmentFault,
    M3AgentError,
    PermissionRefused,
    ServerFault,
    Status,
    UsageError,
)
from tests.agent.certificate.test_certificate import ENVIRONMENT
from tests.agent.core import BUGGY, core
from tests.agent.fix.attempt_parts import World
from tests.fakes.client import ENDPOINT, HOST, says
from tests.fakes.machine import memory_sandbox

NO_TESTS = TestReport((), (), (), (), {}, True, False, 0.0, 0, "", False)
FIXED = BUGGY["calc.py"].replace("a - b", "a + b").encode()
REGULAR = 0o100644
SAID = Outcome("done", "the model says it is done", "It adds now.")
AT_LIMIT = Outcome("limit", "the limit of 9 turns was reached", "So far.")
NEEDLESS = Outcome("done", "the model says it is done", "No change: it adds already.")
STALLED = Outcome("stalled", "the same call again", "")


def found(verdict: Literal["verified", "unverified", "failed"]) -> Verification:
    """Return a verification with this verdict."""
    nothing: tuple[str, ...] = ()
    return Verification(
        *(verdict, f"it is {verdict}", nothing, nothing, nothing, nothing, nothing, NO_TESTS, NO_TESTS),
        *("old", "new", 0.0),
    )


def ready(
    world: World,
    outcome: Outcome = SAID,
    evidence: Verification | None = None,
    path: str | None = "calc.py",
    **how: Any,
) -> Attempt:
    """Return an attempt that has finished its work, with a patch to `path`."""
    attempt = world.attempt(**how)
    attempt.outcome, attempt.evidence = outcome, evidence
    patched(attempt, *([] if path is None else [path]))
    return attempt


def patched(attempt: Attempt, *paths: str) -> None:
    """Give an attempt another patch, to all of these paths."""
    assert attempt.workspace is not None
    changes = [(path, REGULAR, FIXED) for path in paths]
    tree = attempt.workspace.commit_changes(attempt.workspace.base, changes, [])
    attempt.patch = attempt.workspace.patch(tree)


def finished(world: World) -> dict[str, Any]:
    """Return the only `session.finished` event, which must be the last event."""
    [line] = world.log("session.finished")
    assert world.lines[-1] == line
    return line


@pytest.mark.parametrize(
    ("outcome", "verdict", "status", "exit_code", "reason"),
    [
        (SAID, "verified", Status.VERIFIED, 0, "it is verified"),
        (SAID, "unverified", Status.UNVERIFIED, 1, "it is unverified"),
        (SAID, "failed", Status.FAILED, 1, "it is failed"),
        (SAID, None, Status.EMPTY, 1, "nothing was changed, so there is no patch"),
        (NEEDLESS, None, Status.EMPTY, 1, "nothing was changed: it adds already."),
        (AT_LIMIT, "verified", Status.VERIFIED, 0, "it is verified"),
        (AT_LIMIT, "unverified", Status.LIMIT, 6, "the limit of 9 turns was reached"),
        (AT_LIMIT, "failed", Status.LIMIT, 6, "the limit of 9 turns was reached"),
        (AT_LIMIT, None, Status.LIMIT, 6, "the limit of 9 turns was reached"),
        (STALLED, "verified", Status.VERIFIED, 0, "it is verified"),
        (STALLED, "failed", Status.STALLED, 6, "the same call again"),
        (STALLED, None, Status.STALLED, 6, "the same call again"),
    ],
)
async def test_status_and_exit_code(
    world: World,
    outcome: Outcome,
    verdict: Literal["verified", "unverified", "failed"] | None,
    status: Status,
    exit_code: int,
    reason: str,
) -> None:
    evidence = None if verdict is None else found(verdict)
    attempt = ready(world, outcome, evidence, path=None if verdict is None else "calc.py")
    result = await end(attempt, hand_over=True)
    assert (result.status, result.exit_code, result.reason) == (status, exit_code, reason)
    assert result.is_verified is (verdict == "verified")
    assert (result.evidence, result.session) == (evidence, attempt.session.folder)
    line = finished(world)
    assert (line["status"], line["exit"], line["reason"]) == (status, exit_code, reason)


@pytest.mark.parametrize(("words", "status"), [("It adds.", Status.ANSWERED), (" ", Status.EMPTY)])
def test_a_question_is_answered_by_words(words: str, status: Status) -> None:
    assert judge(Outcome("done", "", words), None, may_answer=True)[0] is status
    assert judge(Outcome("done", "", words), None)[0] is Status.EMPTY


async def test_the_patch_is_in_the_result_and_in_the_folder(world: World) -> None:
    attempt = ready(world, evidence=found("verified"))
    result = await end(attempt, hand_over=False, notes=["attempt 1 of 2 was chosen"])
    assert attempt.patch is not None
    assert b"+    return a + b" in result.patch == attempt.patch.text
    assert result.change is not None
    assert (result.change.workspace, result.change.patch) == (attempt.workspace, attempt.patch)
    path = attempt.session.folder / PATCH
    assert path.read_bytes() == result.patch
    line = finished(world)
    assert (line["patch"], line["paths"]) == (str(path), ["calc.py"])
    assert (line["notes"], line["pull_request"]) == (["attempt 1 of 2 was chosen"], None)


async def test_without_a_change_there_is_no_patch(world: World) -> None:
    attempt = ready(world, path=None)
    result = await end(attempt, hand_over=False)
    assert (result.patch, result.change) == (b"", None)
    assert not (attempt.session.folder / PATCH).exists()
    line = finished(world)
    assert (line["patch"], line["paths"], line["notes"]) == (None, [], [])


async def test_usage_of_the_session_is_in_its_last_event(world: World, tmp_path: Path) -> None:
    attempt = ready(world, evidence=found("verified"))
    attempt.limits.started -= 100  # as for a session that was resumed
    for _ in range(2):
        attempt.limits.add(says("", usage=Usage(prompt=100, cached=50, completion=11, reasoning=4)), 0.25)
    async with core(tmp_path / "other") as it:
        it.model.turn, it.calls.number = 7, 9
        attempt.loop = it.loop
        await end(attempt, hand_over=False)
    line = finished(world)
    wanted = {
        "turns": 7,
        "calls": 9,
        "prompt_tokens": 200,
        "cached_tokens": 100,
        "completion_tokens": 22,
        "reasoning_tokens": 8,
        "cached_share": 0.5,
        "price": 0.5,
    }
    assert wanted.items() <= line.items()
    assert line["tokens_per_second"] == pytest.approx(20 / 3)
    assert 100 <= line["seconds"] < 100 + 30


async def test_a_session_without_a_turn(world: World) -> None:
    attempt = ready(world)
    await end(attempt, hand_over=False)
    line = finished(world)
    assert (line["turns"], line["calls"], line["prompt_tokens"]) == (0, 0, None)


async def test_notes_on_the_patch(world: World) -> None:
    attempt = ready(world, evidence=found("verified"))
    patched(attempt, "calc.py", "conftest.py", "setup.py")
    assert attempt.workspace is not None
    attempt.sandbox = memory_sandbox(attempt.workspace)
    attempt.sandbox.left_out["big.bin"] = "larger than 10 MiB"
    await end(attempt, hand_over=False, notes=["first"])
    assert finished(world)["notes"] == [
        "first",
        "these files will run automatically later; read them first: conftest.py, setup.py",
        "not in the patch: big.bin (larger than 10 MiB)",
    ]


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (SandboxDied("the sandbox died"), 3),
        (StreamCut(HOST, "gone"), 4),
        (UsageError("wrong"), 2),
        (EnvironmentFault("no git"), 3),
        (ServerFault("not ready"), 4),
        (PermissionRefused("no"), 5),
        (M3AgentError("other"), 1),
    ],
)
async def test_a_failure_has_its_exit_code(world: World, error: Failure, exit_code: int) -> None:
    attempt = ready(world, evidence=found("verified"), hand_over=HandOver(apply=True))
    attempt.failure = error
    attempt.overtaken_by = 2
    result = await end(attempt, hand_over=True)
    assert (result.status, result.exit_code, result.reason) == (Status.ERROR, exit_code, str(error))
    [line] = world.log("error")
    assert (line["kind"], line["text"], line["exit"]) == (type(error).__name__, str(error), exit_code)
    assert (finished(world)["status"], finished(world)["exit"]) == ("error", exit_code)


async def test_an_attempt_that_another_one_overtook(world: World) -> None:
    attempt = world.attempt()
    attempt.overtaken_by = 2
    result = await end(attempt, hand_over=False)
    assert (result.status, result.exit_code) == (Status.INTERRUPTED, 130)
    assert result.reason == "attempt 2 was verified first"
    assert finished(world)["reason"] == result.reason


async def test_early_end_keeps_the_patch_of_the_last_checkpoint(world: World) -> None:
    attempt = ready(world)
    assert attempt.workspace is not None
    assert attempt.patch is not None
    attempt.sandbox = memory_sandbox(attempt.workspace)
    attempt.sandbox.tree = attempt.patch.tree
    result = end_early(attempt, "interrupted")
    assert (result.status, result.exit_code, result.reason) == (Status.INTERRUPTED, 130, "interrupted")
    assert result.patch == attempt.patch.text
    assert finished(world)["paths"] == ["calc.py"]


async def test_end_before_the_sandbox_starts(world: World) -> None:
    for without in ("sandbox", "workspace"):
        attempt = ready(world, name=without)
        if without == "workspace":
            assert attempt.workspace is not None
            attempt.sandbox, attempt.workspace = memory_sandbox(attempt.workspace), None
        assert end_early(attempt, "interrupted").patch == b""
    assert [line["patch"] for line in world.log("session.finished")] == [None, None]


async def test_a_patch_that_cannot_be_read_is_no_second_failure(world: World) -> None:
    attempt = ready(world)
    assert attempt.workspace is not None
    attempt.sandbox = memory_sandbox(attempt.workspace)
    attempt.sandbox.tree = "gone"
    result = end_early(attempt, "the disk is full", Status.ERROR, 3)
    assert (result.status, result.exit_code, result.patch) == (Status.ERROR, 3, b"")
    assert finished(world)["patch"] is None


async def test_reason_is_kept_if_the_log_cannot_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise EnvironmentFault("the disk is full")

    attempt = ready(world, evidence=found("verified"))
    monkeypatch.setattr(attempt.session, "write", full)
    result = end_early(attempt, "interrupted")
    wanted = FixResult(Status.INTERRUPTED, 130, "interrupted", attempt.session.folder, None, None)
    assert result == wanted
    with pytest.raises(EnvironmentFault):
        await end(attempt, hand_over=False)


# -- the patch is handed over ------------------------------------------------------------------------------------------


@pytest.fixture
def handed(world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the calls that hand the patch over; each records whether the patch is in the session's folder by then."""
    asked: list[tuple[Any, ...]] = []

    def note(what: str, *more: Any) -> None:
        there = (world.sessions[0].folder / PATCH).exists()
        asked.append((what, *more, there))

    def apply(_: object, __: object, patch: Patch) -> None:
        note("apply", patch.paths)

    def commit(_: object, __: object, patch: Patch, branch: str, message: str) -> str:
        note("commit", patch.paths, branch, message.splitlines()[0])
        return "0123456789abcdef"

    async def offer(_: object, __: object, patch: Patch, work: Any, **how: Any) -> Offered:
        note("offer", patch.paths, work.words, work.model, how["branch"], how["github_api"])
        how["say"]("pushed")
        return Offered("https://example.invalid/1", "0" * 40)

    for name, function in (("apply_to_work_tree", apply), ("commit_to_branch", commit), ("offer", offer)):
        monkeypatch.setattr(ending, name, function)
    return asked


Handed = list[tuple[Any, ...]]


@pytest.mark.parametrize("verdict", ["verified", "unverified"])
async def test_a_patch_is_applied(world: World, handed: Handed, verdict: Any) -> None:
    attempt = ready(world, evidence=found(verdict), hand_over=HandOver(apply=True))
    patched(attempt, "a.py", "calc.py")
    result = await end(attempt, hand_over=True)
    assert handed == [("apply", ("a.py", "calc.py"), True)]
    assert finished(world)["notes"] == ["applied to the work tree: a.py, calc.py"]
    assert result.status == verdict


async def test_a_patch_is_committed(world: World, handed: Handed) -> None:
    attempt = ready(world, evidence=found("verified"), hand_over=HandOver(branch="fix"))
    await end(attempt, hand_over=True)
    assert handed == [("commit", ("calc.py",), "fix", "Fix: Wrong sums", True)]
    assert finished(world)["notes"] == ["committed to branch fix as 0123456789ab"]


async def test_a_pull_request_is_opened(world: World, handed: Handed, tmp_path: Path) -> None:
    outcome = dataclasses.replace(SAID, text="The key was sesame-1234.")
    attempt = ready(
        world, outcome, found("verified"), hand_over=HandOver(pull_request=True, branch="fix"),
        api_key="sesame-1234", github_api="https://api.example.invalid",
    )  # fmt: skip
    async with core(tmp_path / "other") as it:
        attempt.loop = it.loop
        await end(attempt, hand_over=True)
    [(what, paths, words, model, branch, api, there)] = handed
    assert (what, paths, model, branch, there) == ("offer", ("calc.py",), ENDPOINT.model, "fix", True)
    assert api == "https://api.example.invalid"
    assert "sesame" not in words
    assert words.startswith("The key was ")
    assert world.said == ["pushed"]
    line = finished(world)
    assert (line["pull_request"], line["commit"]) == ("https://example.invalid/1", "0" * 40)
    assert line["notes"] == ["opened pull request https://example.invalid/1"]


@pytest.mark.parametrize(
    ("outcome", "verdict"), [(SAID, "failed"), (AT_LIMIT, "unverified"), (STALLED, "failed")]
)
async def test_unsuccessful_patch_is_not_handed_over(
    world: World, handed: Handed, outcome: Outcome, verdict: Any
) -> None:
    attempt = ready(world, outcome, found(verdict), hand_over=HandOver(apply=True))
    await end(attempt, hand_over=True)
    assert handed == []
    assert finished(world)["notes"] == ["the patch was not handed over because the fix did not succeed"]


@pytest.mark.parametrize(
    ("outcome", "evidence"), [(SAID, found("failed")), (AT_LIMIT, None), (STALLED, found("failed"))]
)
async def test_a_patch_may_be_the_result_whatever_its_verdict(
    world: World, handed: Handed, outcome: Outcome, evidence: Verification | None
) -> None:
    attempt = ready(world, outcome, evidence, hand_over=HandOver(apply=True, always=True))
    await end(attempt, hand_over=True)
    assert handed == [("apply", ("calc.py",), True)]
    assert finished(world)["notes"] == ["applied to the work tree: calc.py"]


@pytest.mark.parametrize(
    ("hand_over", "chosen", "evidence"),
    [
        (HandOver(apply=True), False, found("verified")),
        (HandOver(), True, found("verified")),
        (HandOver(apply=True), True, None),
    ],
    ids=["not chosen", "not asked", "no patch"],
)
async def test_patches_that_are_not_handed_over(
    world: World, handed: Handed, hand_over: HandOver, chosen: bool, evidence: Verification | None
) -> None:
    attempt = ready(world, evidence=evidence, path="calc.py" if evidence else None, hand_over=hand_over)
    await end(attempt, hand_over=chosen)
    assert (handed, finished(world)["notes"]) == ([], [])


@pytest.mark.parametrize(
    ("error", "exit_code"), [(PermissionRefused("uncommitted"), 5), (UsageError("a branch"), 2)]
)
async def test_a_hand_over_that_is_refused(
    world: World, handed: Handed, monkeypatch: pytest.MonkeyPatch, error: M3AgentError, exit_code: int
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(ending, "apply_to_work_tree", refuse)
    attempt = ready(world, evidence=found("verified"), hand_over=HandOver(apply=True))
    result = await end(attempt, hand_over=True)
    assert (result.status, result.exit_code) == (Status.VERIFIED, exit_code)
    assert result.patch
    [line] = world.log("error")
    assert (line["kind"], line["text"], line["exit"]) == (type(error).__name__, str(error), exit_code)
    assert (finished(world)["status"], finished(world)["exit"]) == ("verified", exit_code)


async def test_a_patch_that_cannot_be_read_is_for_the_caller(
    world: World, handed: Handed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise SandboxError("object is missing")

    monkeypatch.setattr(ending, "apply_to_work_tree", die)
    attempt = ready(world, evidence=found("verified"), hand_over=HandOver(apply=True))
    with pytest.raises(SandboxError):
        await end(attempt, hand_over=True)
    assert world.log("session.finished") == []


async def test_changed_files_with_uncommitted_changes_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = ready(world, evidence=found("verified"), path="calc.py")
    monkeypatch.setattr(Repository, "dirty_paths", lambda _: {"calc.py", "notes.txt"})
    await end(attempt, hand_over=False)
    assert list(finished(world)["uncommitted"]) == ["calc.py"], "also if a fork or a resume counted none"


async def test_a_patch_that_was_applied_is_no_uncommitted_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirty = set[str]()
    monkeypatch.setattr(Repository, "dirty_paths", lambda _: dirty)
    monkeypatch.setattr(ending, "apply_to_work_tree", lambda *_: dirty.add("calc.py"))
    attempt = ready(world, evidence=found("verified"), path="calc.py", hand_over=HandOver(apply=True))
    await end(attempt, hand_over=True)
    assert (dirty, list(finished(world)["uncommitted"])) == ({"calc.py"}, [])


# -- the certificate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verdict", "code"), [("verified", 0), ("failed", 1)])
async def test_the_chosen_attempt_is_certified(
    world: World, tmp_path: Path, verdict: Literal["verified", "failed"], code: int
) -> None:
    path = tmp_path / "c.json"
    attempt = certifiable(world, path, found(verdict))
    async with core(tmp_path / "core", [says("done")]) as it:
        attempt.loop = it.loop
        assert (await end(attempt, hand_over=False)).exit_code == code
        assert not path.exists(), "another attempt was chosen"
        assert (await end(attempt, hand_over=True)).exit_code == code
    said = read(path).predicate
    assert attempt.patch is not None
    assert (said.verdict, said.result_tree, said.base.uncommitted) == (verdict, attempt.patch.tree, 2)
    assert said.made_by == maker_of(ENDPOINT.model)
    assert world.log("session.finished")[-1]["notes"] == [f"the certificate is in {path}"]


async def test_nothing_verified_means_no_certificate(world: World, tmp_path: Path) -> None:
    attempt = certifiable(world, tmp_path / "c.json", None)
    await end(attempt, hand_over=True)
    assert not (tmp_path / "c.json").exists()
    assert finished(world)["notes"] == ["no certificate was written because no patch was verified"]


async def test_a_certificate_that_cannot_be_written(world: World, tmp_path: Path) -> None:
    attempt = certifiable(world, tmp_path / "gone" / "c.json", found("verified"))
    async with core(tmp_path / "core", [says("done")]) as it:
        attempt.loop = it.loop
        result = await end(attempt, hand_over=True)
    assert (result.status, result.exit_code) == (Status.VERIFIED, 3)
    assert "cannot be written" in world.log("error")[0]["text"]


def certifiable(world: World, path: Path, evidence: Verification | None) -> Attempt:
    """Return an attempt whose certificate is wanted."""
    attempt = ready(world, evidence=evidence)
    attempt.request = dataclasses.replace(attempt.request, certificate=path)
    attempt.environment, attempt.dirty = ENVIRONMENT, 2
    return attempt
