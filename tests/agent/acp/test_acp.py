"""Test `m3agent acp` with a real client over real pipes: prompts, permissions, cancelling, kills, invalid messages."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from subprocess import PIPE
from typing import Any, cast

import pytest
from acp import RequestError, text_block
from acp.helpers import (
    embedded_blob_resource,
    embedded_text_resource,
    image_block,
    resource_block,
    resource_link_block,
)
from acp.schema import EnvVariable, McpServerStdio

from m3agent.agent.acp import session as acp_session
from m3agent.agent.acp.blocks import read_prompt
from m3agent.agent.acp.options import options_of
from m3agent.agent.acp.session import ClientSession
from m3agent.agent.acp.store import Mode, all_sessions, new_session, open_session
from m3agent.agent.loop.inbox import NO_ADVICE, Inbox
from m3agent.agent.settings.settings import Settings
from m3agent.util.errors import UsageError
from tests.agent.acp.acp_client import COMMAND, BarePipes, Client, connected
from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    ISSUE,
    NOT_TESTED,
    TEST,
    UNTESTED,
    Fixes,
    MakeRepo,
    calls,
    says,
    wait_until_gone,
)
from tests.command_line import Process, Stream
from tests.conftest import later
from tests.servers import mcp_server
from tests.servers.misbehaving import MisbehavingServer, Silence, history_faults

FIXED = BUGGY["calc.py"].replace("a - b", "a + b")
PNG = base64.b64encode(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
).decode()


async def begun(client: Client, repo: Path, *servers: McpServerStdio) -> str:
    return str((await client.agent.new_session(cwd=str(repo), mcp_servers=list(servers))).session_id)


async def asked(client: Client, session: str, text: str = ISSUE) -> Any:
    return await client.agent.prompt(session_id=session, prompt=[text_block(text)])


def endpoint(model: MisbehavingServer, backend: str) -> dict[str, str]:
    return {"M3AGENT_ENDPOINT": model.url, "M3AGENT_SANDBOX": backend}


def working(fixes: Fixes, answer: str | None = "allow") -> AbstractAsyncContextManager[Client]:
    """Return a connected client whose agent asks the scripted model."""
    return connected(fixes.home / "state", answer, M3AGENT_ENDPOINT=fixes.model.url)


@contextlib.asynccontextmanager
async def session_in(
    fixes: Fixes, repo: Path, answer: str | None = "allow", *servers: McpServerStdio
) -> AsyncIterator[tuple[Client, str]]:
    """Yield such a client and the id of its session in a repository."""
    async with working(fixes, answer) as client:
        yield client, await begun(client, repo, *servers)


@pytest.mark.slow
@pytest.mark.integration
async def test_initialize_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"HOME": str(tmp_path / "home"), "PATH": str(tmp_path)},
        cwd=tmp_path,
    )
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}
    out, err = await process.communicate(json.dumps(message).encode() + b"\n")
    assert (process.returncode, err) == (0, b"")
    (line,) = out.splitlines()
    found = json.loads(line)["result"]
    assert found["protocolVersion"] == 1
    assert found["agentInfo"]["name"] == "m3agent"
    assert found["agentCapabilities"]["loadSession"] is True
    assert found["agentCapabilities"]["promptCapabilities"] == {"image": True, "embeddedContext": True}
    assert set(found["agentCapabilities"]["sessionCapabilities"]) == {"list", "resume", "close"}
    assert found["authMethods"][0]["id"]
    assert list((tmp_path / "home").iterdir()) == [], "nothing was written"


async def test_fix_streams_updates_and_applies_the_accepted_patch(fixes: Fixes, tmp_path: Path) -> None:
    repo = fixes.repo(BUGGY)
    fixes.model.answers = [FIX, TEST, DONE]
    async with session_in(fixes, repo) as (client, session):
        done = await asked(client, session)
        assert done.stop_reason == "end_turn"
        assert (done.usage.input_tokens, done.usage.output_tokens) == (300, 30)
        assert (repo / "calc.py").read_text() == FIXED
        (question,) = client.asked
        (diff,) = question.content
        assert (diff.path, diff.old_text, diff.new_text) == (str(repo / "calc.py"), BUGGY["calc.py"], FIXED)
        assert "hm" in client.texts("agent_thought_chunk")
        said = client.texts("agent_message_chunk")
        assert "add() subtracted; it adds now." in said
        assert "**Verified**" in said and "Written to the work tree: calc.py" in said
        edit, test, announced = client.of("tool_call")
        assert announced.tool_call_id == question.tool_call_id
        assert (edit.kind, edit.status, edit.locations[0].path) == (
            "edit",
            "in_progress",
            str(repo / "calc.py"),
        )
        assert test.kind == "execute"
        states = [u.status for u in client.of("tool_call_update") if u.tool_call_id == edit.tool_call_id]
        assert "completed" in states
        shown = [u.content for u in client.of("tool_call_update") if u.tool_call_id == edit.tool_call_id]
        assert any(part.type == "diff" for content in shown for part in content or [])
        assert {entry.status for entry in client.of("plan")[-1].entries} == {"completed"}
        assert client.of("usage_update")[-1].used == 110
        (listed,) = (await client.agent.list_sessions(cwd=str(repo))).sessions
        assert (listed.session_id, listed.title) == (session, ISSUE)
        assert (await client.agent.list_sessions(cwd=str(tmp_path))).sessions == []
    incoming = [message for direction, message in client.wire if direction == "incoming"]
    assert all(message["jsonrpc"] == "2.0" for message in incoming)


async def test_a_question_is_answered(fixes: Fixes) -> None:
    repo = fixes.repo(UNTESTED)
    fixes.model.answers = [says("It subtracts."), FIX, says("As I said, it subtracts.")]
    async with session_in(fixes, repo) as (client, session):
        done = await asked(client, session, "What does add() do?")
        assert done.stop_reason == "end_turn"
        assert client.texts("agent_message_chunk") == "It subtracts."
        await asked(client, session, "/ask Are you sure?")
        assert "/ask" not in json.dumps(fixes.chats[-1].json["messages"])
        assert client.texts("agent_message_chunk").endswith("As I said, it subtracts.")
    assert client.asked == []
    (record,) = all_sessions(fixes.home / "state")
    ended = [entry["status"] for entry in record.entries if entry["kind"] == "ended"]
    assert ended == ["answered", "answered"]
    assert len(fixes.chats) == 3
    assert (repo / "calc.py").read_text() == BUGGY["calc.py"]


async def test_options_and_commands(fixes: Fixes) -> None:
    repo = fixes.repo(UNTESTED)
    fixes.model.answers = [says("It subtracts.")]
    async with session_in(fixes, repo) as (client, session):
        changed = await client.agent.set_config_option(
            config_id="thinking", session_id=session, value="disabled"
        )
        assert {option.id: option.current_value for option in changed.config_options} == {
            "mode": "ask",
            "model": "default",
            "thinking": "disabled",
            "effort": "default",
        }
        await client.agent.set_config_option(config_id="mode", session_id=session, value="auto")
        assert client.of("current_mode_update")[-1].current_mode_id == "auto"
        for option, value in (("thinking", "wild"), ("wild", "x"), ("mode", "wild")):
            with pytest.raises(RequestError, match="wild"):
                await client.agent.set_config_option(config_id=option, session_id=session, value=value)
        await asked(client, session, "What does add() do?")
        while not client.of("available_commands_update"):  # noqa: ASYNC110  # announced after the session began
            await asyncio.sleep(0.05)
        told = client.of("available_commands_update")[0].available_commands
        assert [(each.name, each.input is None) for each in told] == [
            ("ask", False),
            ("plan", False),
            ("verify", True),
        ]
    assert '"disabled"' in json.dumps(fixes.chats[-1].json) or "False" in str(fixes.chats[-1].json)


@pytest.mark.parametrize("text", ["src/plan is broken", "Why does GET /verify fail?", "Say /ask first"])
def test_a_command_is_one_only_at_the_beginning(text: str) -> None:
    prompt = read_prompt([text_block(text)])
    assert (prompt.command, prompt.title, prompt.wanted) == ("", text, text)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("What does add() do?", True),
        ("is it tested?", True),
        ("Could you fix add()?", False),
        ("Why is it 6?\nIt should be 5.", False),
        ("Whatever you change, keep add()?", False),
        ("/ask What is it?", False),
        (ISSUE, False),
    ],
)
def test_a_plain_question_is_known(text: str, is_one: bool) -> None:
    assert read_prompt([text_block(text)]).is_plain_question is is_one


@pytest.mark.slow
@pytest.mark.integration
async def test_the_embedded_engine_takes_neither_questions_nor_advice(
    make_repo: MakeRepo, tmp_path: Path
) -> None:
    repo = make_repo(BUGGY)
    async with connected(tmp_path / "state", "allow", M3AGENT_ENGINE="embedded") as client:
        session = await begun(client, repo)
        with pytest.raises(RequestError, match="the embedded engine is no language model"):
            await asked(client, session, "Why does add(2, 3) return -1?")
        work = asyncio.ensure_future(asked(client, session))
        while not client.of("tool_call"):  # noqa: ASYNC110  # the agent announces the first call
            await asyncio.sleep(0.01)
        with pytest.raises(RequestError, match=NO_ADVICE):
            await asked(client, session, "Keep it short.")
        await work


def test_what_was_said_before_the_embedded_engine_began_gets_an_answer(tmp_path: Path) -> None:
    with contextlib.closing(new_session(tmp_path, str(tmp_path))) as kept:
        session, notes = ClientSession(cast(Any, None), kept, tmp_path), list[str]()
        session._inbox = Inbox()
        session.steer(read_prompt([text_block("Keep it short.")]))
        session._see(notes.append, {"type": "session.started", "endpoint": {"source": "embedded"}})
        assert (notes, session._inbox.drop()) == ([NO_ADVICE], False)


@pytest.mark.slow
async def test_a_plan_comes_first_and_is_followed(fixes: Fixes) -> None:
    repo = fixes.repo(BUGGY)
    fixes.model.answers = [FIX, says("Add instead of subtracting."), FIX, TEST, DONE]
    async with session_in(fixes, repo) as (client, session):
        await asked(client, session, f"/plan {ISSUE}")
        assert client.texts("agent_message_chunk") == "Add instead of subtracting."
        assert ((repo / "calc.py").read_text(), client.asked) == (BUGGY["calc.py"], [])
        await asked(client, session, "Do that.")
    assert (repo / "calc.py").read_text() == FIXED
    first = fixes.chats[0].json["messages"][-1]["content"]
    assert "/plan" not in first and first.count(ISSUE) == 1
    assert fixes.chats[2].json["messages"][-1]["content"].endswith("Do that.")


@pytest.mark.slow
async def test_a_message_while_it_works_is_taken_at_the_next_turn(fixes: Fixes) -> None:
    repo = fixes.repo(BUGGY)
    fixes.model.answers = [FIX, TEST, DONE, DONE]
    async with session_in(fixes, repo) as (client, session):
        work = asyncio.ensure_future(asked(client, session))
        while not client.of("tool_call"):  # noqa: ASYNC110  # the agent announces the first call
            await asyncio.sleep(0.01)
        with pytest.raises(RequestError, match="working on another prompt"):
            await asked(client, session, "/verify")
        done = await asked(client, session, "Keep it short.")
        assert (done.stop_reason, (await work).stop_reason) == ("end_turn", "end_turn")
        assert (repo / "calc.py").read_text() == FIXED
        client.updates.clear()
        await client.agent.load_session(cwd=str(repo), session_id=session)
        assert client.texts("user_message_chunk") == f"{ISSUE}Keep it short."
    (turn, *_) = [
        n for n, chat in enumerate(fixes.chats) if "Keep it short." in json.dumps(chat.json["messages"])
    ]
    assert turn > 0


@pytest.mark.slow  # quick: test_mcp_server.py
async def test_the_work_tree_is_verified_without_a_model(fixes: Fixes) -> None:
    repo = fixes.repo(BUGGY)
    async with session_in(fixes, repo) as (client, session):
        await asked(client, session, "/verify")
        assert "no uncommitted changes" in client.texts("agent_message_chunk")
        (repo / "calc.py").write_text(FIXED)
        assert (await asked(client, session, "/verify")).stop_reason == "end_turn"
        assert "test_calc.py::test_add (red in" in client.texts("agent_message_chunk")
        with pytest.raises(RequestError, match="write your question"):
            await asked(client, session, "/ask")
    (record,) = all_sessions(fixes.home / "state")
    ended = [entry["status"] for entry in record.entries if entry["kind"] == "ended"]
    assert (ended, fixes.chats) == (["empty", "verified"], [])


@pytest.mark.parametrize("silent", [True, False], ids=["nobody answers", "the editor cannot ask"])
async def test_a_permission_that_nobody_gives_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    class Editor(Client):
        async def request_permission(self, *_: Any, **__: Any) -> Any:
            if not silent:
                raise RequestError.method_not_found("session/request_permission")
            await asyncio.Event().wait()

    monkeypatch.setattr(acp_session, "PERMISSION_SECONDS", 0.05)
    editor = Editor()
    kept = new_session(tmp_path, str(tmp_path))
    session = ClientSession(cast(Any, editor), kept, tmp_path)
    sender = acp_session._Sender(cast(Any, editor), session.id)
    assert await session._may_call(sender, "mcp__odd__echo", {}) is False
    await sender.flush()
    (told,), (ended,) = editor.of("tool_call"), editor.of("tool_call_update")
    assert (ended.tool_call_id, ended.status) == (told.tool_call_id, "failed")
    kept.close()


@pytest.mark.parametrize(
    ("settings", "models"),
    [
        (Settings(), []),
        (Settings(model="own"), ["own"]),
        (Settings(endpoint="https://api.minimax.io/v1"), ["MiniMax-M3", "MiniMax-M3.1-Flash"]),
        (Settings(endpoint="http://gpu-box:8000/v1", model="own"), ["own"]),
    ],
)
def test_models_are_offered_that_are_known_without_a_request(settings: Settings, models: list[str]) -> None:
    offered = next(option for option in options_of(settings) if option.id == "model")
    assert [*offered.values] == ["default", *models]


@pytest.mark.slow  # quick: test_fix_streams_updates_and_applies_the_accepted_patch
@pytest.mark.parametrize(("mode", "answer"), [("ask", "reject"), ("ask", None), ("read-only", "allow")])
async def test_nothing_is_written_without_a_yes(fixes: Fixes, mode: str, answer: str | None) -> None:
    repo = fixes.repo(UNTESTED)
    fixes.model.answers = [FIX, NOT_TESTED]
    async with session_in(fixes, repo, answer) as (client, session):
        await client.agent.set_session_mode(session_id=session, mode_id=mode)
        assert client.of("current_mode_update")[0].current_mode_id == mode
        await asked(client, session)
        assert (repo / "calc.py").read_text() == BUGGY["calc.py"]
        assert len(client.asked) == (mode == "ask")
        assert "Nothing was written" in client.texts("agent_message_chunk")


@pytest.mark.slow  # quick: test_cancelled_at_any_moment_and_gone_on_with
async def test_second_prompt_starts_from_the_current_work_tree(fixes: Fixes) -> None:
    repo = fixes.repo(BUGGY)
    fixes.model.answers = [FIX, TEST, DONE]
    async with session_in(fixes, repo, "always") as (client, session):
        await asked(client, session)
        (repo / "notes.txt").write_text("mine\n")
        new = "def test_zero():\n    assert add(0, 0) == 0\n"
        fixes.model.answers = [
            calls("file_edit", path="test_calc.py", old="def test_double", new=f"{new}\n\ndef test_double"),
            TEST,
            says("There is a test for zero now."),
        ]
        done = await asked(client, session, "Add a test for zero.")
        assert done.stop_reason == "end_turn"
        assert len(client.asked) == 1, "it was told not to ask again"
        assert history_faults([request.body for request in fixes.chats]) == []
        last = fixes.chats[-1].json["messages"]
        told = [
            m["content"] for m in last if m["role"] == "user" and "Add a test for zero." in str(m["content"])
        ]
        assert told and "no longer as you left it" in told[0]
        said = client.texts("agent_message_chunk")
        assert (
            "test_calc.py" in said.rpartition("Written to the work tree")[2] or "Nothing was written" in said
        )
        assert (repo / "calc.py").read_text() == FIXED
        assert (repo / "notes.txt").read_text() == "mine\n"


@pytest.mark.slow  # quick: test_cancelled_before_there_is_anything
async def test_cancelled_at_any_moment_and_gone_on_with(fixes: Fixes) -> None:
    repo = fixes.repo(UNTESTED)
    async with session_in(fixes, repo) as (client, session):
        fixes.model.answers = [FIX, Silence()]
        work = asyncio.ensure_future(asked(client, session))
        await asyncio.to_thread(fixes.model.wait_for_chats, 2)
        await client.agent.cancel(session_id=session)
        assert (await work).stop_reason == "cancelled"
        fixes.model.answers = [FIX, NOT_TESTED]
        done = await asked(client, session, "Go on.")
        assert done.stop_reason == "end_turn"
        assert (repo / "calc.py").read_text() == FIXED


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [later(0.0), 0.1, later(0.5)])
async def test_cancelled_before_there_is_anything(fixes: Fixes, seconds: float) -> None:
    repo = fixes.repo(UNTESTED)
    fixes.model.answers = [Silence()]
    async with session_in(fixes, repo) as (client, session):
        work = asyncio.ensure_future(asked(client, session))
        await asyncio.sleep(seconds)
        await client.agent.cancel(session_id=session)
        assert (await work).stop_reason == "cancelled"
        fixes.model.answers = [FIX, NOT_TESTED]
        assert (await asked(client, session)).stop_reason == "end_turn"
        assert (repo / "calc.py").read_text() == FIXED


@pytest.mark.slow
async def test_killed_and_loaded_by_another_process(fixes: Fixes, tmp_path: Path) -> None:
    repo = fixes.repo(BUGGY)
    fixes.model.answers = [FIX, Silence()]
    async with session_in(fixes, repo) as (client, session):
        work = asyncio.ensure_future(asked(client, session))
        await asyncio.to_thread(fixes.model.wait_for_chats, 2)
        async with connected(fixes.home / "state") as other:
            with pytest.raises(RequestError, match="in use by another process"):
                await other.agent.load_session(cwd=str(repo), session_id=session, mcp_servers=[])
        client.process.kill()
        client.process.wait()
        await asyncio.to_thread(wait_until_gone, client.process.pid)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    async with working(fixes) as client:
        with pytest.raises(RequestError, match="belongs to"):
            await client.agent.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        loaded = await client.agent.load_session(cwd=str(repo), session_id=session, mcp_servers=[])
        assert loaded.modes.current_mode_id == "ask"
        assert client.texts("user_message_chunk") == ISSUE
        assert [call.kind for call in client.of("tool_call")] == ["edit"], (
            "it was told before the answer came"
        )
        fixes.model.answers = [FIX, TEST, DONE]
        assert (await asked(client, session, "Go on.")).stop_reason == "end_turn"
        assert (repo / "calc.py").read_text() == FIXED
        await client.agent.close_session(session_id=session)
        with pytest.raises(RequestError, match="no session"):
            await asked(client, session)
        resumed = await client.agent.resume_session(cwd=str(repo), session_id=session, mcp_servers=[])
        assert resumed.modes.current_mode_id == "ask"


@pytest.mark.slow  # quick: test_cancelled_before_there_is_anything
async def test_a_client_that_disappears_leaves_nothing_running(fixes: Fixes) -> None:
    repo = fixes.repo(BUGGY)
    fixes.model.answers = [calls("code_exec", code="import time\ntime.sleep(600)", timeout=600)]
    client = BarePipes(fixes.home / "state", repo, ISSUE, {"M3AGENT_ENDPOINT": fixes.model.url})
    while b'"tool_call"' not in client.stdout.readline():
        pass
    client.stdin.close()
    client.stdout.close()
    assert client.process.wait(60) == 0
    assert client.stderr.read() == b""
    await asyncio.to_thread(wait_until_gone, client.process.pid)
    (record,) = all_sessions(fixes.home / "state")
    assert record.entries[-1]["status"] == "interrupted"


@pytest.mark.slow
@pytest.mark.integration
async def test_malformed_messages_get_errors_and_stdout_has_only_messages(tmp_path: Path) -> None:
    lines: list[bytes] = [
        b"garbage\n",
        b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}\n',
        b"[1, 2, 3]\n",
        b'"text"\n',
        b"\xff\xfe\n",
        b"\n",
        b'{"jsonrpc": "2.0", "id": 2, "method": "session/fly", "params": {}}\n',
        b'{"jsonrpc": "2.0", "id": 3, "method": "session/new", "params": {"cwd": 7}}\n',
        b'{"jsonrpc": "2.0", "id": 4, "method": "session/new", "params": {"cwd": "here", "mcpServers": []}}\n',
        b'{"jsonrpc": "2.0", "id": 5, "method": "session/prompt", "params": {"sessionId": "../x", "prompt": []}}\n',
        b'{"jsonrpc": "2.0", "id": 6, "method": "session/load", "params": {"sessionId": "../../x", "cwd": "/", "mcpServers": []}}\n',
        b'{"jsonrpc": "2.0", "id": 99, "result": {}}\n',
        b'{"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "none"}}\n',
        b'{"jsonrpc": "2.0", "id": 7, "method": "authenticate", "params": {"methodId": "environment"}}\n',
        b'{"jsonrpc": "2.0", "id": 8, "method": "initi',
    ]
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "M3AGENT_STATE": str(tmp_path / "state")},
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"".join(lines))
    said: list[dict[str, Any]] = []
    while not {1, 2, 3, 4, 5, 6, 7} <= {message["id"] for message in said}:
        said.append(json.loads(await asyncio.wait_for(process.stdout.readline(), 60)))
    process.stdin.close()
    out, err = await process.communicate()
    said += map(json.loads, out.splitlines())
    assert (process.returncode, err) == (0, b"")
    faults = [message["error"]["code"] for message in said if message["id"] is None]
    assert faults == [-32700, -32600, -32600, -32700, -32700]
    answers = {message["id"]: message for message in said}
    assert answers[1]["result"]["protocolVersion"] == 1
    assert answers[2]["error"]["code"] == -32601
    assert answers[3]["error"]["code"] == -32602
    assert "absolute path" in answers[4]["error"]["message"]
    assert "no session" in answers[5]["error"]["message"]
    assert "there is no session" in answers[6]["error"]["message"]
    assert "error" not in answers[7]


@pytest.mark.slow
@pytest.mark.integration
async def test_failures_are_reported_in_one_sentence(make_repo: MakeRepo, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    async with connected(tmp_path / "state", M3AGENT_ENDPOINT="http://127.0.0.1:1/v1") as client:
        session = await begun(client, tmp_path / "plain")
        with pytest.raises(RequestError, match="not in a git repository"):
            await asked(client, session)
        with pytest.raises(RequestError, match="The prompt is empty"):
            await asked(client, session, "  \n ")
        with pytest.raises(RequestError, match="no mode 'wild'"):
            await client.agent.set_session_mode(session_id=session, mode_id="wild")
        session = await begun(client, make_repo(BUGGY))
        with pytest.raises(RequestError, match=r"127\.0\.0\.1:1"):
            await asked(client, session)
        client.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(client.process.wait, 30) == 0


@pytest.mark.slow  # quick: test_initialize_needs_nothing
@pytest.mark.parametrize(("stdin", "stdout"), [("in", "out"), later("in", PIPE), later(PIPE, "out")])
def test_files_in_the_place_of_pipes(tmp_path: Path, stdin: int | str, stdout: int | str) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    lines = b"nonsense\n" + json.dumps(request).encode() + b"\n"
    (tmp_path / "in").write_bytes(lines)

    def stream(given: int | str, mode: str) -> Stream:
        return (tmp_path / given).open(mode) if isinstance(given, str) else given

    process = Process("acp", stdin=stream(stdin, "rb"), stdout=stream(stdout, "wb"))
    piped, errors = process.communicate(lines if stdin == PIPE else b"")
    assert (process.returncode, errors) == (0, b"")
    said = piped if stdout == PIPE else (tmp_path / "out").read_bytes()
    refused, answer = (json.loads(line) for line in said.splitlines())
    assert refused["error"]["message"] == "this line is not JSON"
    assert answer["result"]["protocolVersion"] == 1


@pytest.mark.slow  # quick: test_initialize_needs_nothing
@pytest.mark.parametrize("closed", ["<&-", later("</dev/null >&-")])
def test_a_closed_stream(closed: str) -> None:
    line = f"{' '.join(COMMAND)} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(
        b"m3agent: Standard input or output of m3agent acp is closed: start it with"
    )


@pytest.mark.slow  # quick: test_a_closed_stream
@pytest.mark.integration
def test_without_standard_error(tmp_path: Path) -> None:
    line = f"true | {' '.join(COMMAND)} 2>&-"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.slow  # quick: test_cancelled_before_there_is_anything
async def test_a_client_that_stops_reading_is_not_waited_for(fixes: Fixes) -> None:
    repo = fixes.repo(BUGGY)
    fixes.model.answers = [says("so " * 200_000), says("so " * 200_000)]
    client = BarePipes(fixes.home / "state", repo, ISSUE, {"M3AGENT_ENDPOINT": fixes.model.url})
    await asyncio.to_thread(fixes.model.wait_for_chats, 1)
    await asyncio.sleep(1)
    client.stdin.close()  # and nobody reads its output, so that pipe stays full
    assert await asyncio.to_thread(client.process.wait, 60) == 0
    await asyncio.to_thread(wait_until_gone, client.process.pid)


def test_prompts_of_all_kinds_of_blocks() -> None:
    found = read_prompt(
        [
            text_block("Fix the clock.\nIt is slow."),
            resource_link_block("clock.py", "file:///repo/clock.py"),
            resource_block(embedded_text_resource("file:///repo/notes.txt", "It ticks.")),
            resource_block(embedded_blob_resource("file:///repo/clock.bin", PNG)),
            image_block(PNG, "image/png"),
        ]
    )
    assert '<file uri="file:///repo/notes.txt">\nIt ticks.\n</file>' in found.text
    assert "clock.bin" not in found.text, "there is no text of it to show"
    assert found.title == "Fix the clock."
    assert "(clock.py: file:///repo/clock.py)" in found.text
    assert [image.media_type for image in found.images] == ["image/png"]
    assert found.issue().images == found.images
    for data, why in ((PNG[:-3] + "!!!", "not base64"), (base64.b64encode(b"words").decode(), "not PNG")):
        with pytest.raises(UsageError, match=why):
            read_prompt([text_block("x"), image_block(data, "image/png")])


def test_a_record_survives_a_kill_and_one_process_holds_it_at_a_time(tmp_path: Path) -> None:
    kept = new_session(tmp_path, "/repo")
    kept.write("prompt", text="a\nb", title="a", images=0)
    kept.write("mode", mode="auto")
    kept.write("fix", session="s1")
    with pytest.raises(UsageError, match="another process"):
        open_session(tmp_path, kept.record.id)
    kept.close()
    path = tmp_path / "acp" / kept.record.id / "session.jsonl"
    with path.open("ab") as file:
        file.write(b'{"ts": "torn')
    (listed,) = all_sessions(tmp_path)
    assert (listed.title, listed.mode, listed.last_fix) == ("a", Mode.AUTO, "s1")
    again = open_session(tmp_path, kept.record.id)
    again.write("ended", status="verified", said="done")
    again.close()
    assert path.read_bytes().count(b"\n") == 5
    path.write_bytes(b"nonsense\n")
    assert list(all_sessions(tmp_path)) == []
    with pytest.raises(UsageError, match="cannot be read"):
        open_session(tmp_path, kept.record.id)


@pytest.mark.slow  # quick: test_nothing_is_written_without_a_yes
@pytest.mark.parametrize("answer", ["allow", later("always"), later("reject")])
async def test_tools_of_client_servers_need_permission(fixes: Fixes, answer: str) -> None:
    repo = fixes.repo(UNTESTED)
    program = [sys.executable, mcp_server.__file__, "environment"]
    passed_on = McpServerStdio(
        name="odd", command=program[0], args=program[1:], env=[EnvVariable(name="OWN", value="1")]
    )
    fixes.model.answers = [
        calls("mcp__odd__echo", text="x"),
        calls("mcp__odd__echo", text="y"),
        FIX,
        NOT_TESTED,
    ]
    async with session_in(fixes, repo, answer, passed_on) as (client, session):
        assert (await asked(client, session)).stop_reason == "end_turn"
    about = [call for call in client.asked if "mcp__odd__echo" in call.title]
    announced = [call.tool_call_id for call in client.of("tool_call")]
    assert len({*announced}) == len(announced)
    assert {call.tool_call_id for call in client.asked} <= {*announced}
    assert len(about) == (1 if answer == "always" else 2)
    assert about[0].raw_input == {"text": "x"}
    results = [m["content"] for m in fixes.chats[2].json["messages"] if m["role"] == "tool"]
    if answer == "reject":
        assert all("the user did not allow this call" in result for result in results)
    else:
        assert all('"OWN": "1"' in result for result in results)
