"""One attempt by real programs as agents and by our own agent: the verdict of each possible end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.agent.endpoint.choice import choose_endpoint
from m3agent.agent.session import events
from m3agent.agent.session.session import PATCH, Session
from m3agent.agent.settings.settings import Settings, state_dir
from m3agent.cli.eval import run as eval_run_command
from m3agent.evals.code.checkout import LeakProof
from m3agent.evals.data.instance import DataError, Task
from m3agent.evals.data.results import AttemptRecord, Verdict
from m3agent.evals.run.attempt import CHECKOUT, LEAK_PROOF, EvalAttempt
from m3agent.evals.run.child import ERRORS
from m3agent.evals.run.other_agent import OUTPUT, STORE, OtherAgent
from m3agent.evals.run.own_agent import STATE, OwnAgent, delivery_of
from m3agent.evals.run.parts import Assignment, AttemptListener, AttemptParts, Delivery
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.serving.launch.record import KEY, ServerRecord, new_folder, write_record
from m3agent.util.errors import Status
from tests.agent.scripted import calls, says
from tests.evals.small import CLEAN, NO_ENGINE, UNBUILDABLE, checkout, instance, parts_with, write_programs
from tests.servers.misbehaving import MisbehavingServer

pytestmark = pytest.mark.integration

Make = Callable[..., EvalAttempt]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make an attempt at `adder` with a shell script as the agent."""
    programs = write_programs(tmp_path / "programs")
    folder = tmp_path / "run" / "attempts" / "adder" / "1"
    folder.mkdir(parents=True)

    def attempt(
        script: str, python: str | None = None, agent_seconds: float = 60, tests: float = 60
    ) -> EvalAttempt:
        agent = OtherAgent(("sh", "-c", script, "agent", "{issue}"), {}, agent_seconds)
        return EvalAttempt(instance(programs, "adder", python), 1, folder, parts_with(agent, tests=tests))

    return attempt


async def result_of(attempt: EvalAttempt) -> AttemptRecord:
    result, patch = await attempt.make()
    assert len(patch) == result.patch_bytes
    return result


async def test_a_good_patch_is_resolved_and_the_phases_are_timed(make: Make, tmp_path: Path) -> None:
    attempt = make("sed -i s/-/+/ adder.py")
    phases: list[str] = []
    attempt.listener = AttemptListener(phases.append)
    result, patch = await attempt.make()
    assert (result.verdict, result.status, result.attempt) == (Verdict.RESOLVED, "exit 0", 1)
    assert b"+    return a + b" in patch
    assert phases == ["environment", "agent", "grade"]
    assert min(result.seconds.environment, result.seconds.agent, result.seconds.grade) > 0
    assert json.loads((attempt.folder / LEAK_PROOF).read_text())["clean"] is True
    assert not (attempt.folder / CHECKOUT).exists()
    assert not (attempt.folder / STORE).exists()


async def test_a_wrong_patch_is_unresolved(make: Make) -> None:
    assert (await result_of(make("sed -i s/-/*/ adder.py"))).verdict is Verdict.UNRESOLVED


async def test_text_that_is_not_a_patch_is_graded_as_unresolved(make: Make) -> None:
    attempt = make("true")
    attempt.parts = parts_with(OtherAgent(("sh", "-c", "echo words > $1", "agent", "{output}"), {}, 60))
    result = await result_of(attempt)
    assert (result.verdict, result.reason) == (Verdict.UNRESOLVED, "the patch does not apply")
    assert (attempt.folder / OUTPUT).exists()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "python", "verdict", "reason"),
    [
        ("true", None, Verdict.EMPTY, ""),
        ("echo no key >&2; exit 3", None, Verdict.ERROR, "no key"),
        ("true", UNBUILDABLE, Verdict.INVALID, "no such Python"),
        ("true", NO_ENGINE, Verdict.INFRA, "no engine answers"),
    ],
)
async def test_what_is_not_graded_has_its_own_verdict(
    make: Make, script: str, python: str | None, verdict: Verdict, reason: str
) -> None:
    result = await result_of(make(script, python))
    assert (result.verdict, result.reason) == (verdict, reason)
    assert result.grade is None


@pytest.mark.slow
async def test_out_of_time_is_a_timeout_unless_there_is_a_patch(make: Make, tmp_path: Path) -> None:
    idle = make("sleep 600", agent_seconds=0.5)
    assert (await result_of(idle)).verdict is Verdict.TIMEOUT
    for name in idle.folder.iterdir():
        name.unlink()
    late = await result_of(make("sed -i s/-/+/ adder.py; sleep 600", agent_seconds=1))
    assert late.verdict is Verdict.RESOLVED
    assert "ran out of time" in late.reason


async def test_tests_that_take_too_long_are_a_timeout(make: Make) -> None:
    result = await result_of(make("sed -i s/-/+/ adder.py", tests=0.05))
    assert result.verdict is Verdict.TIMEOUT
    assert "tests" in result.reason


def with_checkout(parts: AttemptParts, lay_down: Callable[[Task, Path], LeakProof]) -> AttemptParts:
    return AttemptParts(lay_down, parts.image, parts.grade, parts.agent, parts.seconds)


@pytest.mark.parametrize(
    "error",
    [
        DataError("row 3 names a commit that is not there"),
        EnvironmentBuildFailed("the image with the code cannot be built"),
    ],
)
async def test_a_checkout_that_leaks_or_cannot_be_had_is_invalid(make: Make, error: Exception) -> None:
    attempt = make("true")

    def leaks(task: Task, target: Path) -> LeakProof:
        checkout(task, target)
        return CLEAN.model_copy(update={"commits": 2})

    attempt.parts = with_checkout(attempt.parts, leaks)
    assert (await result_of(attempt)).verdict is Verdict.INVALID

    def absent(task: Task, target: Path) -> LeakProof:
        raise error

    attempt.parts = with_checkout(attempt.parts, absent)
    result = await result_of(attempt)
    assert (result.verdict, result.reason) == (Verdict.INVALID, str(error))


async def test_what_nobody_thought_of_is_infra_with_its_words(make: Make) -> None:
    attempt = make("true")

    def breaks(task: Task, target: Path) -> LeakProof:
        raise RuntimeError("what\nis this")

    attempt.parts = with_checkout(attempt.parts, breaks)
    result = await result_of(attempt)
    assert (result.verdict, result.reason) == (Verdict.INFRA, "RuntimeError: what is this")


def finished(status: str, code: int, reason: str = "why") -> events.SessionFinished:
    return events.SessionFinished(
        status=status,
        exit=code,
        reason=reason,
        patch=None,
        paths=[],
        notes=[],
        pull_request=None,
        turns=3,
        calls=2,
        prompt_tokens=100,
        cached_tokens=None,
        completion_tokens=7,
        reasoning_tokens=0,
        cached_share=None,
        tokens_per_second=None,
        price=0.25,
        seconds=1.5,
    )


def error(kind: str, code: int) -> events.Error:
    return events.Error(kind=kind, text="why", exit=code)


CASES: list[tuple[list[events.Event], int, bool, Verdict | None]] = [
    ([finished(Status.VERIFIED, 0)], 0, False, None),
    ([finished(Status.LIMIT, 6)], 6, False, None),
    ([finished(Status.EMPTY, 1)], 1, False, None),
    ([error("EngineUnavailable", 3), finished(Status.ERROR, 3)], 3, False, Verdict.INFRA),
    ([error("StreamCut", 4), finished(Status.ERROR, 4)], 4, False, Verdict.INFRA),
    ([error("PathEscapes", 3), finished(Status.ERROR, 3)], 3, False, Verdict.ERROR),
    ([error("UsageError", 2), finished(Status.ERROR, 2)], 2, False, Verdict.ERROR),
    ([finished(Status.INTERRUPTED, 130)], 130, False, Verdict.INFRA),
    ([finished(Status.INTERRUPTED, 130)], 130, True, None),
    ([], 1, False, Verdict.ERROR),
    ([], 137, True, Verdict.ERROR),
]


@pytest.mark.parametrize(("logged", "code", "timed_out", "fault"), CASES)
def test_how_our_own_session_ended_says_whose_fault_it_was(
    tmp_path: Path, logged: list[events.Event], code: int, timed_out: bool, fault: Verdict | None
) -> None:
    (tmp_path / ERRORS).write_text("note\nm3agent: the last words\n")
    session = Session.create(tmp_path / STATE, [])
    session.write(events.Stall(turn=1, rule="repeats", count=3, action="told", text="again"))
    for event in logged:
        session.write(event)
    session.close()
    (session.folder / PATCH).write_bytes(b"the patch")
    found = delivery_of(tmp_path, code, timed_out)
    assert found.fault is fault
    assert (found.patch, found.session, found.stalls) == (b"the patch", session.folder, {"repeats": 1})
    if logged:
        assert (found.usage.turns, found.usage.prompt_tokens, found.usage.cached_tokens) == (3, 100, None)
        assert (found.usage.cost, found.reason) == (0.25, "why")
    else:
        assert found.reason == f"exit code {code}: m3agent: the last words"


@pytest.mark.parametrize(
    ("code", "fault"), [(2, Verdict.ERROR), (3, Verdict.INFRA), (4, Verdict.INFRA), (1, Verdict.ERROR)]
)
def test_an_end_before_the_session_began(tmp_path: Path, code: int, fault: Verdict) -> None:
    assert delivery_of(tmp_path, code, timed_out=False).fault is fault


def given(attempt: EvalAttempt) -> Assignment:
    """Return the assignment that the agent of an attempt gets."""
    return Assignment(attempt.instance.task, 1, attempt.folder, "an-image", attempt.folder)


@pytest.mark.parametrize("named", [False, True])
def test_own_agent_gets_the_chosen_server(make: Make, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_folder(state_dir(os.environ))
    write_record(folder, ServerRecord(url="http://127.0.0.1:9/v1", engine="vllm", pid=os.getpid()))
    (folder / KEY).write_text("of the running one")
    monkeypatch.setenv("M3AGENT_API_KEY", "configured")
    url = "http://127.0.0.1:8/v1" if named else "http://127.0.0.1:9/v1"
    told: dict[str, object] = {"endpoint": url if named else None}
    _, _, settings, agent, _ = eval_run_command._agent(told, None, None, None, None)()
    assert isinstance(agent, OwnAgent)
    assert agent.shares_prefix
    assert (settings["endpoint"], "engine" in settings, "api_key" in settings) == (url, False, False)
    env = agent._environment(given(make("true")))
    key = "configured" if named else "of the running one"
    assert (env["M3AGENT_ENDPOINT"], env["M3AGENT_API_KEY"]) == (url, key)
    assert "M3AGENT_ENGINE" not in env


@pytest.mark.parametrize("seed", [None, 7])
def test_own_agent_gets_the_embedded_engine(make: Make, seed: int | None) -> None:
    write_record(
        new_folder(state_dir(os.environ)),
        ServerRecord(url="http://127.0.0.1:9/v1", engine="vllm", pid=os.getpid()),
    )
    told: dict[str, object] = {"engine": "embedded", "seed": seed}
    _, _, settings, agent, _ = eval_run_command._agent(told, None, None, None, None)()
    assert isinstance(agent, OwnAgent)
    assert not agent.shares_prefix
    assert (settings["engine"], "endpoint" in settings) == ("embedded", False)
    env = agent._environment(given(make("true")))
    assert (env["M3AGENT_ENGINE"], env["M3AGENT_SEED"]) == ("embedded", str(seed or 0))
    assert not {"M3AGENT_ENDPOINT", "M3AGENT_API_KEY"} & env.keys()


@pytest.mark.slow  # quick: test_out_of_time_is_a_timeout_unless_there_is_a_patch
async def test_our_own_agent_without_its_server_is_infra(make: Make, tmp_path: Path) -> None:
    attempt = make("true")
    settings = Settings(endpoint="http://127.0.0.1:9/v1", max_minutes=1)
    attempt.parts = parts_with(OwnAgent(settings, choose_endpoint(settings, tmp_path), 120))
    result = await result_of(attempt)
    assert (result.verdict, result.status) == (Verdict.INFRA, "error"), result
    assert "127.0.0.1:9" in result.reason
    assert result.session is not None
    session = tmp_path / "run" / result.session
    assert sorted(path.name for path in session.iterdir()) == ["calls", "events.jsonl"]
    assert [path.name for path in (attempt.folder / STATE).iterdir()] == ["sessions"]


def with_hidden_answer(attempt: EvalAttempt) -> tuple[EvalAttempt, str]:
    """Return the attempt at an instance whose answer contains a text, and the text."""
    hidden = "assert add(98765, 43210) == 141975"
    patch = (
        f"--- a/test_adder.py\n+++ b/test_adder.py\n@@ -5 +5 @@\n-    assert add(2, 3) == 5\n+    {hidden}\n"
    )
    attempt.instance = attempt.instance.with_answer(test_patch=patch, patch=hidden)
    return attempt, hidden


class CuriousAgent:
    """An agent that looks for a text in everything that it is given, and changes nothing."""

    shares_prefix = False

    def __init__(self, text: str) -> None:
        self.text = text
        self.looked_at: list[str] = []
        self.found: list[str] = []

    async def work(self, given: Assignment) -> Delivery:
        files = [path for path in given.folder.rglob("*") if path.is_file()]
        seen = {
            "assignment": repr(given),
            **{path.name: path.read_bytes().decode("latin-1") for path in files},
        }
        self.looked_at = list(seen)
        self.found = [name for name, content in seen.items() if self.text in content]
        return Delivery("looked")


async def test_an_agent_gets_nothing_of_the_answer(make: Make) -> None:
    attempt, hidden = with_hidden_answer(make("true"))
    agent = CuriousAgent(hidden)
    attempt.parts = parts_with(agent)
    assert (await result_of(attempt)).status == "looked"
    assert {"assignment", "adder.py", "test_adder.py"} <= set(agent.looked_at)
    assert agent.found == []


@pytest.mark.slow  # quick: test_an_agent_gets_nothing_of_the_answer
async def test_the_tests_of_the_answer_never_reach_the_model(
    make: Make, server: MisbehavingServer, tmp_path: Path
) -> None:
    """The verdict goes back to the model twice. It comes from the repository's tests, not from the answer's."""
    attempt, hidden = with_hidden_answer(make("true"))
    wrong = calls("file_edit", path="adder.py", old="a - b", new="a * b")
    worse = calls("file_edit", path="adder.py", old="a * b", new="a / b")
    run_tests = calls("test_runner", test_file=".")
    done = says("It adds now.")
    server.answers = [wrong, run_tests, done, worse, run_tests, done]
    settings = Settings(endpoint=server.url, max_minutes=2)
    attempt.parts = parts_with(OwnAgent(settings, choose_endpoint(settings, tmp_path), 180))
    result = await result_of(attempt)
    assert result.status == "failed", result
    told = [message["content"] for message in server.chats[-1].json["messages"]]
    assert sum("is not accepted" in str(text) for text in told) == 2
    assert not any(hidden.encode() in request.body for request in server.requests)
    seen = [
        path for path in attempt.folder.rglob("*") if path.is_file() and hidden.encode() in path.read_bytes()
    ]
    assert seen == []
