"""Test which model server a command uses, for each combination of settings, running servers and the embedded engine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from m3agent.agent.endpoint.choice import (
    EmbeddedEngine,
    EndpointChoice,
    ModelServer,
    choose_endpoint,
    choose_model_server,
    opened,
)
from m3agent.agent.loop.resume import used_embedded_engine
from m3agent.agent.settings.loader import load_settings, settings_of
from m3agent.agent.settings.settings import Settings
from m3agent.serving.client.endpoint import probe
from m3agent.serving.launch.record import KEY, Phase, ServerRecord, new_folder, write_record
from m3agent.util.errors import ServerFault, UsageError
from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    ISSUE,
    NOT_TESTED,
    TEST,
    UNTESTED,
    MakeRepo,
    events,
    run_there,
)
from tests.command_line import run
from tests.conftest import later
from tests.servers.misbehaving import MisbehavingServer

NAMED, RUNNING = "https://named.invalid/v1", "http://127.0.0.1:8000/v1"


def server(
    state: Path,
    url: str = RUNNING,
    phase: Phase = Phase.READY,
    engine: str = "vllm",
    key: str | None = None,
    **more: Any,
) -> ServerRecord:
    """Record a server that runs in this process, newer than those before."""
    folder = new_folder(state)
    record = ServerRecord(url=url, engine=engine, pid=os.getpid(), phase=phase, **more)
    write_record(folder, record)
    if key is not None:
        (folder / KEY).write_text(key)
    return record


def chosen(state: Path, **settings: Any) -> EndpointChoice:
    return choose_endpoint(settings_of(settings), state)


# -- the choice --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [None, *Phase])
def test_a_named_endpoint_comes_first(tmp_path: Path, phase: Phase | None) -> None:
    if phase is not None:
        server(tmp_path, phase=phase, key="of the running one")
    choice = chosen(tmp_path, endpoint=NAMED, api_key="sesame")
    assert choice == ModelServer(NAMED, "sesame", "named", f"{NAMED} (named)")


@pytest.mark.parametrize("phase", [None, *Phase])
def test_a_named_engine_comes_first(tmp_path: Path, phase: Phase | None) -> None:
    if phase is not None:
        server(tmp_path, phase=phase)
    assert chosen(tmp_path, engine="embedded") == EmbeddedEngine(None, 0)
    assert chosen(tmp_path, engine="embedded", seed=3, candidates=9) == EmbeddedEngine(9, 3)


def test_a_running_server_comes_before_the_embedded_engine(tmp_path: Path) -> None:
    assert chosen(tmp_path) == EmbeddedEngine()
    record = server(tmp_path)
    choice = chosen(tmp_path)
    assert choice == ModelServer(RUNNING, None, "running", f"{RUNNING} (running here: vllm)", record)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.READY])
def test_a_server_that_is_not_ready_is_waited_for_by_the_user(tmp_path: Path, phase: Phase) -> None:
    server(tmp_path, phase=phase)
    with pytest.raises(ServerFault, match=f"the m3agent server at {RUNNING} is {phase.value}: wait until"):
        chosen(tmp_path)


def test_the_newest_that_is_ready_is_taken(tmp_path: Path) -> None:
    for number, phase in enumerate((Phase.READY, Phase.READY, Phase.LOADING)):
        server(tmp_path, f"http://127.0.0.1:{number}/v1", phase)
    choice = chosen(tmp_path)
    assert isinstance(choice, ModelServer)
    assert choice.url == "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"wire_ok": False}, "vllm, which failed its wire check"),
        ({"random_weights": True}, "vllm with random weights"),
        ({"model_ok": False}, "vllm, which failed its model check"),
        ({"model_ok": True, "wire_ok": True}, "vllm"),
    ],
)
def test_reason_against_a_running_server_is_reported(
    tmp_path: Path, facts: dict[str, Any], words: str
) -> None:
    server(tmp_path, **facts)
    assert chosen(tmp_path).description == f"{RUNNING} (running here: {words})"


@pytest.mark.parametrize(
    ("flags", "env", "expected"),
    [
        ({"endpoint": NAMED}, {"M3AGENT_ENGINE": "embedded"}, "named"),
        ({"engine": "embedded"}, {"M3AGENT_ENDPOINT": NAMED}, "embedded"),
        ({}, {"M3AGENT_ENDPOINT": NAMED}, "named"),
        ({}, {"M3AGENT_ENGINE": "embedded"}, "embedded"),
        ({}, {}, "running"),
    ],
)
def test_flags_come_before_other_settings_and_these_before_a_running_server(
    tmp_path: Path, flags: Mapping[str, object], env: Mapping[str, str], expected: str
) -> None:
    server(tmp_path)
    choice = choose_endpoint(load_settings(tmp_path, flags, env).settings, tmp_path)
    assert (choice.source if isinstance(choice, ModelServer) else "embedded") == expected


# -- the key -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "configured", "sent"),
    [
        ("sesame", None, "sesame"),
        ("sesame", "another", "sesame"),
        (None, "another", "another"),
        (None, None, None),
    ],
)
def test_a_running_server_is_asked_with_its_own_key(
    tmp_path: Path, own: str | None, configured: str | None, sent: str | None
) -> None:
    server(tmp_path, key=own)
    for endpoint in (None, RUNNING):  # a resumed session names the server that it found at its start
        choice = chosen(tmp_path, api_key=configured, endpoint=endpoint)
        assert isinstance(choice, ModelServer)
        assert (choice.url, choice.key) == (RUNNING, sent)
        assert "sesame" not in repr(choice)


# -- settings of the embedded engine only ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["seed", "candidates"])
def test_a_search_is_steered_only_where_there_is_one(tmp_path: Path, name: str) -> None:
    assert getattr(chosen(tmp_path, **{name: 7}), name) == 7
    with pytest.raises(
        UsageError, match=f"--{name} is only for the embedded engine, not for the server at {NAMED}: "
    ):
        chosen(tmp_path, endpoint=NAMED, **{name: 7})
    server(tmp_path)
    assert getattr(chosen(tmp_path, engine="embedded", **{name: 7}), name) == 7
    with pytest.raises(UsageError, match=f"not for the server at {RUNNING}, which is running: add --engine"):
        chosen(tmp_path, **{name: 7})


# -- commands that need a language model's server ----------------------------------------------------------------------


def test_a_language_models_server(tmp_path: Path) -> None:
    def found(**settings: Any) -> str | None:
        choice = choose_model_server(settings_of(settings), tmp_path)
        return None if choice is None else choice.url

    assert (found(), found(engine="embedded"), found(endpoint=NAMED)) == (None, None, NAMED)
    server(tmp_path, "http://127.0.0.1:1/v1", engine="embedded")
    assert found() is None
    server(tmp_path)
    server(tmp_path, "http://127.0.0.1:2/v1", engine="embedded")
    assert (found(), found(engine="embedded"), found(endpoint=NAMED)) == (RUNNING, None, NAMED)
    assert found(seed=7) == RUNNING, "a search's settings are nobody's business here"


def test_a_language_models_server_that_is_not_ready(tmp_path: Path) -> None:
    server(tmp_path, phase=Phase.LOADING)
    server(tmp_path, "http://127.0.0.1:1/v1", engine="embedded")
    with pytest.raises(ServerFault, match="is loading"):
        choose_model_server(Settings(), tmp_path)


# -- the embedded engine -----------------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_the_embedded_engine_runs_as_long_as_it_is_open() -> None:
    async with opened(EmbeddedEngine()) as started:
        assert (started.source, started.key, started.record) == ("embedded", None, None)
        found = await probe(started.url, api_key=None, model=None)
    assert found.flavour == "embedded"
    named = ModelServer(NAMED, None, "named", NAMED)
    async with opened(named) as same:
        assert same is named


def test_the_embedded_engine_says_what_it_repairs() -> None:
    """The issue's text ranks places and gives values, but the failing tests decide."""
    assert (
        "repairs what the failing tests show; the issue's text is only a hint" in EmbeddedEngine.description
    )


# -- logs --------------------------------------------------------------------------------------------------------------

OLD_EMBEDDED = "embedded: search-based repair judged by the tests, no language model"


@pytest.mark.parametrize(
    ("endpoint", "embedded"),
    [
        ({"source": "embedded", "description": "in other words"}, True),
        ({"source": "running", "description": OLD_EMBEDDED}, False),
        ({"description": OLD_EMBEDDED}, True),
        ({"description": f"{RUNNING} (running here: embedded)"}, False),
        ({"description": f"{NAMED} (named)"}, False),
    ],
)
def test_server_of_a_session_follows_from_its_log(endpoint: dict[str, str], embedded: bool) -> None:
    assert used_embedded_engine({"endpoint": {"url": RUNNING, **endpoint}}) is embedded


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("old", [True, later(False)])
def test_resumed_session_uses_the_same_server_and_its_key(
    model: MisbehavingServer, make_repo: MakeRepo, own_state: Path, old: bool
) -> None:
    server(own_state / "state", model.url, key="sesame")
    model.answers = [TEST]
    stopped = run("fix", ISSUE, "--repo", str(make_repo(UNTESTED)), "--max-turns", "1")
    assert stopped.returncode == 6, stopped.stderr
    assert events(own_state)[0]["endpoint"]["source"] == "running"
    if old:
        [log] = (own_state / "state" / "sessions").glob("*/events.jsonl")
        log.write_text(log.read_text().replace('"source":"running",', ""))  # as an older version wrote it
    server(own_state / "state", "http://127.0.0.1:9/v1")  # a newer server
    model.answers = [FIX, NOT_TESTED]
    done = run_there("sessions", "resume", "last", "--max-turns", "9")
    assert done.returncode == 1, done.stderr
    assert events(own_state)[-1]["status"] == "unverified"
    assert {request.headers["authorization"] for request in model.chats} == {"Bearer sesame"}
    assert "sesame" not in "".join(json.dumps(event) for event in events(own_state))


# -- all commands make the same choice ---------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize(
    ("named", "engine", "running", "expected"),
    [
        (False, False, Phase.READY, "running"),
        (False, False, Phase.LOADING, "not ready"),
        later(True, False, Phase.READY, "named"),
        later(False, True, Phase.READY, "embedded"),
        later(True, False, None, "named"),
        later(True, False, Phase.LOADING, "named"),
        later(False, True, None, "embedded"),
        later(False, False, None, "embedded"),
    ],
)
def test_doctor_says_what_fix_takes(
    model: MisbehavingServer,
    make_repo: MakeRepo,
    own_state: Path,
    named: bool,
    engine: bool,
    running: Phase | None,
    expected: str,
) -> None:
    repo = make_repo(BUGGY)
    model.answers = [DONE]
    with MisbehavingServer() as other:
        other.answers = [DONE]
        env = {"M3AGENT_ENVIRONMENT": "off"}
        if named:
            env["M3AGENT_ENDPOINT"] = model.url
        if engine:
            env["M3AGENT_ENGINE"] = "embedded"
        if running is not None:
            server(own_state / "state", other.url, running, key="sesame")
        told = run("doctor", "--repo", str(repo), "--json", env=env)
        done = run("fix", ISSUE, "--repo", str(repo), "--max-turns", "1", "--json", env=env)
        [check] = [one for one in json.loads(told.stdout) if one["name"] == "endpoint"]
        asked = {"named": bool(model.chats), "running": bool(other.chats)}
        assert asked == {place: place == expected for place in asked}
        assert {request.headers["authorization"] for request in other.requests} <= {"Bearer sesame"}
    log = [json.loads(line) for line in done.stdout.splitlines()]
    started = [event["endpoint"] for event in log if event["type"] == "session.started"]
    if expected == "not ready":
        assert (done.returncode, started) == (4, [])
        assert (told.returncode, check["ok"]) == (3, False)
        assert check["detail"] in done.stderr
        assert "is loading: wait until" in check["detail"]
        return
    assert [one["source"] for one in started] == [expected]
    if expected == "embedded":
        assert check["ok"] is None
        assert "the embedded engine is used, a search for small repairs" in check["detail"]
    else:
        assert check["ok"], check
        assert started[0]["url"] in check["detail"]
        assert ("the m3agent server" in check["detail"]) == (expected == "running")
