"""Test one attempt: its parts, the order of its steps, and what it leaves. All in memory: see tests/fakes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path
from typing import Literal

import pytest

from m3agent.agent.context.types import Context, PackedFile
from m3agent.agent.fix import attempt as attempt_module
from m3agent.agent.fix.attempt import Attempt
from m3agent.agent.fix.run_context import RunContext
from m3agent.agent.issue.images import IssueImage
from m3agent.agent.loop.limits import Variation
from m3agent.agent.loop.prompt import SYSTEM
from m3agent.agent.loop.resume import ResumePoint
from m3agent.agent.loop.tool_executor import INTERRUPTED
from m3agent.agent.mcp.toolset import OtherTools
from m3agent.agent.repo.snapshot import TREES
from m3agent.agent.session.messages import Conversation
from m3agent.agent.session.record import CallRecord, TurnRecord
from m3agent.agent.stall import StallDetector
from m3agent.agent.verify.pair import SANDBOXES
from m3agent.agent.verify.verify import Verification
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.network.proxy import NetworkRequest
from m3agent.sandbox.store.git import UNFINISHED
from m3agent.serving.client.client import RetryNote
from m3agent.serving.client.messages import AssistantMessage, Delta, ToolCall
from m3agent.serving.client.parameters import Affinity, Sampling
from m3agent.serving.errors import StreamCut
from m3agent.util.errors import UsageError
from tests.agent.core import ADD, BUGGY, DONE, FIX, READ, TEST
from tests.agent.fix.attempt_parts import ISSUE, RUN_CONTEXT, SPEC, World, no_baseline
from tests.fakes.client import ENDPOINT, HOST, call, says
from tests.fakes.trees import MemoryTrees, memory_workspace

NO_CHANGE = says("No change: the code is right.")
WRITE = call("w", "file_write", path="x.txt", content="x")
RUNS = ("the old tree", "the new tree", "the copies of the fixed test")
"""The sandboxes of a verification without reruns."""


def warm() -> asyncio.Event:
    """Return an event that is set, as if the server had read the prompt."""
    event = asyncio.Event()
    event.set()
    return event


async def work(attempt: Attempt, run_context: RunContext = RUN_CONTEXT) -> Sandbox:
    """Run the attempt in its sandbox, and return the sandbox, which is closed by then."""
    await attempt.start_sandbox(SPEC, "bwrap")
    assert attempt.sandbox is not None
    await attempt.work(run_context, no_baseline(attempt.session.folder), warm(), no_verification)
    return attempt.sandbox


async def no_verification() -> None:
    """Stands for the verification where the completion gate must not ask for one."""
    raise AssertionError("the gate asked for a verification")


# -- the sandbox -----------------------------------------------------------------------------------------------------


async def test_a_sandbox_is_started_over_the_workspace(world: World) -> None:
    attempt = world.attempt()
    async with attempt.stack:
        await attempt.start_sandbox(SPEC, "docker")
        assert attempt.sandbox is not None
        assert attempt.sandbox.workspace is attempt.workspace
        assert await attempt.sandbox.read("calc.py") == BUGGY["calc.py"].encode()
        [(backend, spec, sandbox)] = world.sandboxes
        assert (backend, spec) == ("docker", SPEC)
        assert sandbox is attempt.sandbox
    with pytest.raises(SandboxError):
        await attempt.sandbox.read("calc.py")


async def test_network_requests_are_logged_with_their_place(world: World) -> None:
    attempt = world.attempt(FIX, TEST, DONE)
    await work(attempt)
    await world.verify(attempt)
    asked = NetworkRequest("GET", "pypi.org", 443, "allowed", "", 1, 2, 0.5)
    for on_request in world.on_request:
        on_request(asked)
    assert [line["where"] for line in world.log("network.request")] == ["session", *["verify"] * len(RUNS)]


# -- the work ----------------------------------------------------------------------------------------------------------


async def test_an_attempt_leaves_an_outcome_and_a_patch(world: World) -> None:
    attempt = world.attempt(FIX, TEST, DONE, api_key="of another server", thinking="disabled")
    sandbox = await work(attempt, dataclasses.replace(RUN_CONTEXT, dirty=2))
    assert attempt.outcome is not None
    assert (attempt.outcome.kind, attempt.outcome.text) == ("done", "It adds now.")
    assert attempt.patch is not None
    assert attempt.patch.paths == ("calc.py",)
    assert attempt.patch.tree == sandbox.tree
    with pytest.raises(SandboxError):
        await sandbox.checkpoint()
    [client] = world.clients
    assert (client.endpoint, world.keys) == (ENDPOINT, ["sesame"])
    first = client.asked[0]
    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert first.messages[0]["content"] == SYSTEM
    told = first.messages[1]["content"]
    assert told.startswith("<file>calc.py</file>\n")
    assert f"commit {'0' * 40}, with uncommitted changes in 2 of them" in told
    assert "<issue>\nadd() gives wrong sums.\n</issue>" in told
    assert (first.thinking, first.sampling) == ("disabled", Sampling(temperature=1.0))
    assert world.deltas == [
        *(Delta("reasoning", "hm"), Delta("call", "file_edit")),
        *(Delta("reasoning", "hm"), Delta("call", "test_runner")),
        *(Delta("reasoning", "hm"), Delta("text", "It adds now.")),
    ]
    assert attempt.limits.used.price == pytest.approx(3 * 200 / 1e6)
    assert (attempt.session.folder / "calls" / "0002.log").read_bytes() == b"ran\n"
    assert world.said == []


async def test_limits_and_window_are_the_attempt_s_and_the_server_s(world: World) -> None:
    attempt = world.attempt(NO_CHANGE)
    await work(
        attempt, dataclasses.replace(RUN_CONTEXT, endpoint=dataclasses.replace(ENDPOINT, max_model_len=9))
    )
    assert attempt.loop is not None
    assert attempt.loop.window.limit == 9
    assert attempt.loop.limits is attempt.limits is attempt.loop.model.limits
    assert attempt.loop.stall is attempt.loop.model.stall
    assert attempt.loop.messages is attempt.messages is attempt.loop.model.messages


async def test_tools_of_others_are_offered_behind_ours(world: World) -> None:
    schema = {"type": "function", "function": {"name": "mcp__look"}}
    attempt = world.attempt(NO_CHANGE)
    attempt.other_tools = OtherTools([schema])
    await work(attempt)
    assert world.clients[0].asked[0].tools[-1] == schema
    assert attempt.loop is not None
    assert attempt.loop.calls.tools.other_names == ["mcp__look"]


async def test_a_request_that_is_sent_again_is_logged(world: World) -> None:
    attempt = world.attempt(NO_CHANGE)
    await work(attempt)
    world.on_retry[0](RetryNote(2, 1.5, "it broke off"))
    [retry] = world.log("retry")
    assert (retry["attempt"], retry["wait"], retry["reason"]) == (2, 1.5, "it broke off")
    assert attempt.loop is not None
    assert attempt.loop.model.failure == "it broke off", "an event about a lost cache names it"


async def test_requests_name_the_session_or_the_one_that_it_shares_a_prompt_with(world: World) -> None:
    await work(world.attempt(NO_CHANGE))
    shared = world.attempt(NO_CHANGE, name="another")
    shared.group = "session"
    await work(shared, dataclasses.replace(RUN_CONTEXT, ranks=4))
    assert world.affinities == [Affinity("session"), Affinity("session", 4)]


async def test_variation_of_an_attempt(world: World) -> None:
    varied = Variation(2, 3, "Begin with a test.", 0.7, 5)
    await work(world.attempt(NO_CHANGE, variation=varied))
    [asked] = world.clients[0].asked
    assert asked.sampling == Sampling(temperature=0.7, seed=5)
    assert asked.messages[1]["content"].endswith("\nBegin with a test.\n")


@pytest.mark.parametrize(("images", "number", "notes"), [(False, 1, 1), (True, 1, 0), (False, 2, 0)])
async def test_rejected_images_are_reported_once(world: World, images: bool, number: int, notes: int) -> None:
    issue = dataclasses.replace(ISSUE, images=(IssueImage("a.png", "image/png", b"x", "digest"),))
    attempt = world.attempt(NO_CHANGE, issue=issue, variation=Variation(number, 2))
    await work(
        attempt, dataclasses.replace(RUN_CONTEXT, endpoint=dataclasses.replace(ENDPOINT, images=images))
    )
    assert len(world.said) == notes
    assert all("accepts no images: the issue's 1 are left out" in said for said in world.said)
    content = world.clients[0].asked[0].messages[1]["content"]
    assert isinstance(content, list) is images


@pytest.mark.parametrize(("instructions", "named"), [(True, True), (False, False)])
async def test_whether_the_repository_s_instructions_are_followed(
    world: World, instructions: bool, named: bool
) -> None:
    packed = Context([b"<file>AGENTS.md</file>\n"], (PackedFile("AGENTS.md", 3, 9),), (), 3, exact=True)
    attempt = world.attempt(NO_CHANGE, instructions=instructions, allow_net="pypi.org")
    await work(attempt, dataclasses.replace(RUN_CONTEXT, context=packed))
    told = world.clients[0].asked[0].messages[1]["content"]
    assert ("how to work on it" in told) is named
    assert "pypi.org" in told


# -- attempts side by side ---------------------------------------------------------------------------------------------


class Watched(asyncio.Event):
    """An event that shows when a task waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.waited_for.set()
        return await super().wait()


async def test_the_others_wait_until_the_first_has_warmed_the_cache(world: World) -> None:
    second = world.attempt(NO_CHANGE, variation=Variation(2, 2))
    event = Watched()
    await second.start_sandbox(SPEC, "bwrap")
    working = asyncio.create_task(second.work(RUN_CONTEXT, no_baseline(world.folder), event, no_verification))
    waiting = asyncio.create_task(event.waited_for.wait())
    await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert second.messages is not None, "it is ready"
    assert world.clients[0].asked == []
    event.set()
    await working
    assert len(world.clients[0].asked) == 1


async def test_the_first_piece_of_an_answer_tells_that_the_cache_is_warm(world: World) -> None:
    event = asyncio.Event()
    seen: list[bool] = []
    attempt = world.attempt([Delta("text", "No"), NO_CHANGE])
    attempt.on_delta = lambda _: seen.append(event.is_set())
    await attempt.start_sandbox(SPEC, "bwrap")
    await attempt.work(RUN_CONTEXT, no_baseline(world.folder), event, no_verification)
    assert seen == [True]


async def test_an_attempt_that_fails_keeps_nobody_waiting_and_leaves_nothing_open(world: World) -> None:
    event = asyncio.Event()
    attempt = world.attempt(StreamCut(HOST, "gone"))
    await attempt.start_sandbox(SPEC, "bwrap")
    with pytest.raises(StreamCut):
        await attempt.work(RUN_CONTEXT, no_baseline(world.folder), event, no_verification)
    assert event.is_set()
    assert (attempt.outcome, attempt.patch) == (None, None)
    assert attempt.sandbox is not None
    with pytest.raises(SandboxError):
        await attempt.sandbox.checkpoint()
    # an open conversation is locked, so this shows that it was closed
    again = Conversation.read(attempt.session.folder)
    again.close()


# -- the verdict -------------------------------------------------------------------------------------------------------


async def test_a_patch_is_checked_in_fresh_sandboxes(world: World) -> None:
    attempt = world.attempt(FIX, TEST, DONE)
    own = await work(attempt)
    assert not attempt.is_verified
    await world.verify(attempt, backend="docker")
    assert attempt.evidence is not None
    assert attempt.is_verified
    assert attempt.evidence.fixed == (ADD,)
    fresh = world.sandboxes[1:]
    assert [(backend, spec) for backend, spec, _ in fresh] == [("docker", SPEC)] * len(RUNS)
    assert own not in [sandbox for _, _, sandbox in fresh]
    before, after = (line for line in world.log("test.finished") if line["where"] != "session")
    assert (before["where"], before["failed"], before["call"]) == ("before", [ADD], None)
    assert (after["where"], after["passed"], after["tree"]) == ("after", [ADD], attempt.evidence.new_tree)
    [verdict] = world.log("verify")
    assert (verdict["verdict"], verdict["fixed"]) == ("verified", [ADD])
    assert (attempt.session.folder / "calls" / "verify-before.log").exists()


async def test_a_patch_that_does_not_fix_it_is_not_verified(world: World) -> None:
    attempt = world.attempt(dataclasses.replace(FIX, message=AssistantMessage(calls=(WRITE,))), TEST, DONE)
    await work(attempt)
    await world.verify(attempt)
    assert attempt.evidence is not None
    assert attempt.evidence.verdict == "failed"
    assert not attempt.is_verified


async def test_reruns_are_as_set(world: World) -> None:
    attempt = world.attempt(FIX, TEST, DONE, reruns=2)
    await work(attempt)
    await world.verify(attempt)
    assert len(world.sandboxes) == 1 + len(RUNS) + len(["reruns of the old tree"]) + SANDBOXES


@pytest.mark.parametrize("worked", [True, False])
async def test_without_a_patch_nothing_is_checked(world: World, worked: bool) -> None:
    attempt = world.attempt(NO_CHANGE)
    if worked:
        await work(attempt)
    started = len(world.sandboxes)
    await world.verify(attempt)
    assert attempt.evidence is None
    assert len(world.sandboxes) == started
    assert world.log("verify") == []


async def test_equal_trees_are_verified_once(world: World) -> None:
    known: dict[str, Verification] = {}
    workspace = memory_workspace(world.folder, BUGGY)
    attempts = [
        world.attempt(*answers, workspace=workspace, name=f"session-{number}")
        for number, answers in enumerate([(FIX, TEST, DONE), (READ, FIX, TEST, DONE)])
    ]
    for attempt, answers in zip(attempts, ([FIX, TEST, DONE], [READ, FIX, TEST, DONE]), strict=True):
        world.answers = list(answers)
        await work(attempt)
        await world.verify(attempt, known)
    assert attempts[0].evidence is attempts[1].evidence is not None
    assert len(world.sandboxes) == 2 + len(RUNS), "one for each attempt, and those of one verification"
    assert len(world.log("verify")) == 2, "each session's log has the verdict"
    third = world.attempt(
        dataclasses.replace(FIX, message=AssistantMessage(calls=(WRITE,))), TEST, DONE,
        workspace=workspace, name="other",
    )  # fmt: skip
    await work(third)
    await world.verify(third, known)
    assert len(world.sandboxes) == 5 + 3, (
        "its own, and two for the verification of a patch that fixes nothing"
    )
    assert len(known) == 2


# -- a resumed session -------------------------------------------------------------------------------------------------


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> MemoryTrees | None:
    """Keep the trees of a session's folder in memory."""
    monkeypatch.setattr(attempt_module, "TreeStore", MemoryTrees)
    return None


def stopped(world: World, *made: ToolCall) -> Attempt:
    """Return an attempt whose session ended after the model had made these calls, as another process finds it."""
    attempt = world.attempt()
    attempt.workspace = None
    messages = [
        {"role": "system", "content": "the rules"},
        {"role": "user", "content": "the issue"},
        AssistantMessage("hm", "", made).to_request("reasoning"),
    ]
    Conversation.begin(attempt.session.folder, messages).close()
    return attempt


def begun(turn: int, number: int) -> TurnRecord:
    """Return a turn in which the call `WRITE` has started."""
    call = CallRecord(WRITE.id, WRITE.id, WRITE.name, WRITE.arguments, started={"call": number})
    return TurnRecord(turn, 1, calls=[call])


async def test_a_session_is_taken_up(world: World, trees: None) -> None:
    attempt = stopped(world, WRITE)
    folder = attempt.session.folder / TREES
    folder.mkdir()
    (folder / f"{UNFINISHED}1").mkdir()
    point = ResumePoint({"tree": "base"}, "last", turn=1, group="first", turns=[begun(1, 1)])
    async with attempt.stack:
        attempt.go_on(point)
        assert attempt.workspace is not None
        assert (attempt.workspace.base, attempt.workspace.store.git_dir) == ("base", folder)
        assert list(folder.iterdir()) == [], "what was being made is gone"
        assert attempt.group == "first"
        assert attempt.messages is not None
        assert len(attempt.messages) == 3
        assert [each.call for each in attempt.pending] == [dataclasses.replace(WRITE, arguments_text="")]
        [resumed] = world.log("session.resumed")
        assert (resumed["messages"], resumed["tree"], resumed["interrupted"]) == (3, "last", ["w"])
    # an open conversation is locked, so this shows that the stack closed it
    again = Conversation.read(attempt.session.folder)
    again.close()


async def test_a_session_without_its_trees_is_refused(world: World, trees: None) -> None:
    attempt = stopped(world, WRITE)
    with pytest.raises(UsageError, match=r"cannot be resumed: trees\.git is missing"):
        attempt.go_on(ResumePoint({"tree": "base"}, "last"))
    assert world.lines == []


async def test_work_resumes_where_it_stopped(world: World, tmp_path: Path) -> None:
    workspace = memory_workspace(tmp_path, BUGGY)
    fixed = BUGGY["calc.py"].replace("a - b", "a + b").encode()
    tree = workspace.commit_changes(workspace.base, [("calc.py", 0o100644, fixed)], [])
    stall = StallDetector()
    point = ResumePoint({"tree": workspace.base}, tree, turn=4, calls=2, stall=stall, turns=[begun(4, 2)])
    attempt = world.attempt(*[says("Done.")] * 3, resume=point, workspace=workspace)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    made = AssistantMessage("hm", "", (WRITE,)).to_request("reasoning")
    attempt.messages = attempt.stack.enter_context(
        contextlib.closing(Conversation.begin(attempt.session.folder, [*messages, made]))
    )
    attempt.pending = point.pending(attempt.messages)
    await work(attempt, dataclasses.replace(RUN_CONTEXT, context=None))
    assert attempt.patch is not None
    assert attempt.patch.tree == tree, "the work tree is as it was left"
    assert attempt.loop is not None
    assert attempt.loop.stall is stall
    assert world.clients[0].asked[0].messages[-1]["content"] == INTERRUPTED
    assert [line["turn"] for line in world.log("turn.started")] == [5, 6, 7]
    assert [gate["asked"] for gate in world.log("gate")] == [0, 1, 2], "reminders are not inherited"
