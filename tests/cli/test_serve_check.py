"""Test `m3agent serve check` and `scrape` from the command line: table, JSON, sentences and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from m3agent.agent.endpoint.server import chosen_server
from m3agent.serving.launch.record import Phase, ServerRecord, born, new_folder, write_record
from m3agent.util.errors import UsageError
from tests import command_line
from tests.servers.forced import ForcedServer

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("unicode_locale")]


def run(state: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    env = {"M3AGENT_STATE": str(state), "HF_HOME": str(state), **env}
    return command_line.run("serve", *arguments, cwd=state, env=env)


def test_a_server_is_checked_and_each_name_comes_once(tmp_path: Path) -> None:
    with ForcedServer(in_reasoning=True) as server:
        done = run(tmp_path, "check", "--endpoint", server.url, "--context", "131072", "--json")
    found = {check["name"]: check for check in json.loads(done.stdout)}
    assert len(found) == len(json.loads(done.stdout))
    assert {"no thinking", "token ids", "reasoning end", "tool call", "workload", "key"} <= found.keys()
    assert found["context"]["ok"] and found["tool call"]["ok"] and found["thinking enabled"]["ok"]
    failed = [name for name, check in found.items() if check["ok"] is False]
    assert done.returncode == (4 if failed else 0)
    assert set(failed) <= {"key", "tokenizer"}  # these depend on the machine that runs the tests
    assert "m3agent: checking a tool call\n" in done.stderr


def test_failed_checks_are_printed_with_the_remedy(tmp_path: Path) -> None:
    with ForcedServer("strings", mind="random") as server:
        record = ServerRecord(url=f"http://{server.host}", engine="vllm", pid=os.getpid())
        write_record(new_folder(tmp_path), record)
        done = run(tmp_path, "check", NO_COLOR="1")
    assert done.returncode == 4
    lines = done.stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("✗ failed   no thinking")]
    assert lines[at + 1].strip().startswith("to fix: start it with --tool-call-parser minimax_m3")
    assert any(line.startswith("✗ failed   tool call") and "weights are random" in line for line in lines)
    assert any(line.startswith("-          thinking round trip") for line in lines)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["check"],
            2,
            "no server is running here: start one with `m3agent serve`, or name one with --endpoint",
        ),
        (["check", "--endpoint", "http://127.0.0.1:9"], 4, "No answer from a model server at 127.0.0.1:9"),
        (["scrape", "--endpoint", "http://127.0.0.1:9"], 4, "No answer from a model server at 127.0.0.1:9"),
    ],
)
def test_no_server(arguments: list[str], code: int, said: str, tmp_path: Path) -> None:
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"m3agent: {said}") and done.stderr.count("\n") == 1


async def test_a_running_embedded_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M3AGENT_STATE", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("M3AGENT_ENDPOINT", raising=False)
    pid = os.getpid()
    write_record(
        new_folder(tmp_path),
        ServerRecord(url="http://127.0.0.1:9/v1", engine="embedded", pid=pid, born=born(pid)),
    )
    with pytest.raises(
        UsageError, match="only the embedded engine is running here, which has no cache: start one"
    ):
        await chosen_server(None, None, embedded="which has no cache", say=print)


def test_a_configured_server_comes_before_a_running_one(tmp_path: Path) -> None:
    def scraped(**env: str) -> str:
        done = run(tmp_path, "scrape", **env)
        assert done.returncode == 0, done.stderr
        (job,) = yaml.safe_load(done.stdout)["scrape_configs"]
        (host,) = job["static_configs"][0]["targets"]
        return str(host)

    with ForcedServer() as running, ForcedServer() as configured, ForcedServer() as named:
        record = ServerRecord(url=f"http://{running.host}", engine="vllm", pid=os.getpid())
        write_record(new_folder(tmp_path), record)
        assert scraped() == running.host
        assert scraped(M3AGENT_ENDPOINT=configured.url) == configured.host
        given = run(tmp_path, "scrape", "--endpoint", named.url, M3AGENT_ENDPOINT=configured.url)
        assert named.host in given.stdout
        refused = run(tmp_path, "scrape", M3AGENT_ENGINE="embedded")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "m3agent: the settings choose the embedded engine, which has no parsers, cache or metrics to check: "
        "give a server with --endpoint\n"
    )


@pytest.mark.parametrize("phase", ["loading", "restarting"])
def test_a_running_server_that_is_not_ready(tmp_path: Path, phase: str) -> None:
    record = ServerRecord(url="http://127.0.0.1:9/v1", engine="vllm", pid=os.getpid(), phase=Phase(phase))
    write_record(new_folder(tmp_path), record)
    done = run(tmp_path, "check")
    assert (done.returncode, done.stdout) == (4, "")
    assert f"the m3agent server at http://127.0.0.1:9/v1 is {phase}: wait until" in done.stderr


def test_work_that_no_server_holds(tmp_path: Path) -> None:
    with ForcedServer() as server:
        done = run(tmp_path, "check", "--endpoint", server.url, "--context", "1000", "--typical", "2000")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a typical sequence of 2,000 tokens is not within the context" in done.stderr


def test_a_scrape_configuration_and_its_alerts(tmp_path: Path) -> None:
    with ForcedServer() as server:
        done = run(tmp_path, "scrape", "--endpoint", server.url, "--credentials-file", "/etc/key")
        rules = run(tmp_path, "scrape", "--endpoint", server.url, "--alerts")
    assert (done.returncode, done.stderr) == (rules.returncode, rules.stderr) == (0, "")
    (job,) = yaml.safe_load(done.stdout)["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [server.host]
    assert job["authorization"]["credentials_file"] == "/etc/key"
    assert len(yaml.safe_load(rules.stdout)["groups"][0]["rules"]) == 4
