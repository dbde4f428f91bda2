"""Test whole fixes against servers that misbehave in every turn: the patch is right, and each call ran once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from m3agent.serving import wire
from tests.agent.scripted import ISSUE, MakeRepo, of_type
from tests.command_line import run
from tests.conftest import later
from tests.servers import faults, strict
from tests.servers.dialects import Answer, Chunk, Dialect, Dynamo, Sglang, Vllm, frames
from tests.servers.misbehaving import MODEL, MisbehavingServer, Reply, Stream
from tests.servers.whole import breaking

BUGGY = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
}
FIX = wire.Call("file_edit", {"path": "calc.py", "old": "return a - b", "new": "return a + b"})
TEST = wire.Call("test_runner", {"test_file": "."})


def fix(repo: Path, url: str) -> subprocess.CompletedProcess[str]:
    """Run a fix that does not wait before it repeats a request."""
    return run("fix", ISSUE, "--repo", str(repo), "--endpoint", url, module="tests.agent.impatient")


def mark(word: str) -> wire.Call:
    """Return a call whose side effect shows how often it ran."""
    return wire.Call("code_exec", {"code": f"echo '{word} &amp; <tag>' >> marks.txt", "language": "bash"})


def says(reasoning: str, *calls: wire.Call, text: str = "") -> Answer:
    return Answer(reasoning, text, calls)


def added(patch: str, path: str) -> list[str]:
    """Return the lines that a patch adds to a file."""
    _, _, part = patch.partition(f"+++ b/{path}\n")
    part = part.partition("diff --git")[0]
    return [line[1:] for line in part.splitlines() if line.startswith("+")]


def streamed(chunks: list[Chunk], dialect: Dialect) -> Stream:
    return Stream(frames(chunks, dialect), done=False)


@pytest.mark.slow  # quick: test_faults.py
def test_a_fix_through_every_fault(server: MisbehavingServer, make_repo: MakeRepo, own_state: Path) -> None:
    dialect = Vllm()
    said = [
        says("I leave a mark. é🙂", mark("leaked"), text="Marking."),
        says("Now the fix.", FIX),
        says("One more.", mark("malformed")),
        says("And another.", mark("kept"), mark("cut off")),
        says("Once more.", mark("after an error")),
        says("Within my thoughts.", mark("in the reasoning")),
        says("Does it hold?", TEST),
        says("It does.", text="add() adds now."),
    ]
    leaked, edit, malformed, length, late, thought, test, done = said
    trouble = {"error": {"message": "the engine has trouble", "code": 500}}
    cut = frames(dialect.say(edit), dialect)
    late_chunks = dialect.say(late)
    markup = wire.write("", "", thought.calls).removeprefix("</mm:think>")
    server.accepts = dialect.accepts
    server.answers = [
        streamed(dialect.leak(leaked.wire, 5), dialect),
        faults.cut_inside(cut, len(cut) - 4),
        Stream(cut, done=False),
        streamed(faults.changed_calls(dialect.say(malformed), _without_brace), dialect),
        streamed(faults.relabelled(faults.half_call(dialect.say(length)), "length"), dialect),
        Stream(faults.failing(late_chunks, len(late_chunks) - 2, trouble)),
        streamed(late_chunks, dialect),
        streamed(
            dialect.leak_in_reasoning(thought.reasoning + markup, thought, finish="tool_calls"), dialect
        ),
        streamed(dialect.say(test), dialect),
        streamed(dialect.say(done), dialect),
    ]
    result = fix(make_repo(BUGGY), server.url)
    assert result.returncode == 0, result.stderr
    assert added(result.stdout, "calc.py") == ["    return a + b"]
    words = ["leaked", "kept", "after an error", "in the reasoning"]
    assert added(result.stdout, "marks.txt") == [f"{word} &amp; <tag>" for word in words]
    reasons = [event["reason"] for event in of_type(own_state, "retry")]
    assert len(reasons) == 2
    assert "the connection was lost" in reasons[0]
    assert "the engine has trouble" in reasons[1]
    refused = [event["name"] for event in of_type(own_state, "call.finished") if event["status"] == "refused"]
    assert refused == ["code_exec"]
    assert strict.faults(server.chats, dialect, said) == []


def _without_brace(made: Chunk) -> None:
    made["function"]["arguments"] = made["function"]["arguments"].rstrip("}")


@pytest.mark.slow  # quick: test_a_fix_through_every_fault and test_accumulator.py
def test_a_fix_with_calls_that_are_numbered_badly(
    server: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    dialect = Sglang()
    listed = {"object": "list", "data": [{"id": MODEL, "owned_by": "sglang", "max_model_len": 1048576}]}
    server.pages = {"/v1/models": listed}
    server.accepts = dialect.accepts
    said = [
        says("Two at once.", mark("first"), mark("second"), text="Both."),
        says("And the same twice.", FIX, mark("third"), mark("third")),
        says("Test.", TEST),
        says("Fine.", text="It adds."),
    ]
    chunks = [dialect.say(answer, 6) for answer in said]
    server.answers = [
        Reply(429, {"error": {"message": "slow down"}}, {"retry-after": "0"}),
        streamed(faults.changed_calls(chunks[0], lambda made: made.update(index=0)), dialect),
        streamed(faults.changed_calls(chunks[1], lambda made: made.pop("id", None)), dialect),
        *(streamed(made, dialect) for made in chunks[2:]),
    ]
    result = fix(make_repo(BUGGY), server.url)
    assert result.returncode == 0, result.stderr
    assert added(result.stdout, "calc.py") == ["    return a + b"]
    words = ["first", "second", "third", "third"]
    assert added(result.stdout, "marks.txt") == [f"{word} &amp; <tag>" for word in words]
    assert ["slow down" in event["reason"] for event in of_type(own_state, "retry")] == [True]
    assert strict.faults(server.chats, dialect, said) == []


def test_an_error_that_looks_like_an_answer_ends_the_fix_with_a_sentence(
    server: MisbehavingServer, make_repo: MakeRepo
) -> None:
    dialect = Dynamo()
    server.pages = {"/v1/models": {"object": "list", "data": [{"id": MODEL, "owned_by": "someone"}]}}
    server.accepts = dialect.accepts
    server.answers = [Reply(200, {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}})]
    result = fix(make_repo(BUGGY), server.url)
    assert result.returncode == 4
    assert "insufficient balance (1008)" in result.stderr
    assert "Traceback" not in result.stderr
    assert len(server.chats) == 1


@pytest.mark.slow  # quick: test_a_fix_through_every_fault
@pytest.mark.parametrize("fault", ["stream_cut", later("error_mid_stream")])
def test_a_fix_by_a_server_whose_every_stream_breaks(
    fault: str, server: MisbehavingServer, make_repo: MakeRepo, own_state: Path
) -> None:
    dialect = Vllm()
    said = [
        says("I leave a mark.", mark("once"), text="Marking."),
        says("Now the fix.", FIX),
        says("Does it hold?", TEST),
        says("It does.", text="add() adds now."),
    ]

    def broken(answer: Answer) -> Stream:
        chunks = dialect.say(answer)
        if fault == "stream_cut":
            sent = frames(chunks, dialect)
            return faults.cut_inside(sent, len(sent) // 2)
        trouble = {"error": {"message": "the engine has trouble", "code": 500}}
        return Stream(faults.failing(chunks, len(chunks) // 2, trouble))

    server.accepts = dialect.accepts
    server.answers = [breaking(said, broken)]
    result = fix(make_repo(BUGGY), server.url)
    assert result.returncode == 0, result.stderr
    assert added(result.stdout, "calc.py") == ["    return a + b"]
    assert added(result.stdout, "marks.txt") == ["once &amp; <tag>"]
    assert [event["verdict"] for event in of_type(own_state, "verify")] == ["verified"]
    assert [request.json["stream"] for request in server.chats] == [True, True, False] * 2 + [False] * 2
    reasons = [event["reason"] for event in of_type(own_state, "retry")]
    assert ["without streaming" in reason for reason in reasons] == [False, True] * 2
    assert strict.faults(server.chats, dialect, said) == []
