"""Test which model server gets which key."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from m3agent import fix
from m3agent.agent.endpoint.choice import ModelServer, choose_endpoint
from m3agent.agent.fix import run_context
from m3agent.agent.fix.request import FixRequest
from m3agent.agent.settings.loader import load_settings, settings_of
from m3agent.agent.settings.settings import Settings
from m3agent.serving.errors import EndpointUnreachable
from m3agent.util.errors import UsageError
from tests.agent.repositories import NewRepo
from tests.agent.scripted import BUGGY, DONE, FIX, ISSUE, TEST, MakeRepo
from tests.command_line import run
from tests.servers.tokenize import TokenizeServer

if TYPE_CHECKING:
    from tests.servers.misbehaving import MisbehavingServer

OURS, OTHER, OPENAI = "https://ours.invalid/v1", "https://other.invalid/v1", "https://api.openai.com/v1"
FILE = "the file's"


class User:
    """A user with variables and a settings file."""

    def __init__(self, home: Path) -> None:
        self.home, self.variables = home, dict[str, str]()
        self.file = home / ".config" / "m3agent" / "config.toml"
        self.file.parent.mkdir(parents=True)

    def has(self, file: Mapping[str, str] | None = None, **variables: str) -> User:
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in (file or {}).items()]
        self.file.write_text("".join(lines))
        self.variables = variables
        return self

    def settings(self, endpoint: str | None = None) -> Settings:
        env = {"HOME": str(self.home), **self.variables}
        return load_settings(self.home, {"endpoint": endpoint}, env).settings

    def server(self, endpoint: str | None = None) -> ModelServer:
        choice = choose_endpoint(self.settings(endpoint), self.home)
        assert isinstance(choice, ModelServer)
        return choice


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.mark.parametrize(
    ("file", "variables", "endpoint", "sent"),
    [
        # a key without an address is for the server that the user names
        ({}, {"M3AGENT_API_KEY": "k"}, OTHER, "k"),
        ({"api_key": FILE}, {}, OTHER, FILE),
        # a key is for the address that is configured beside it, and for no other
        ({}, {"M3AGENT_API_KEY": "k", "M3AGENT_ENDPOINT": OURS}, None, "k"),
        ({}, {"M3AGENT_API_KEY": "k", "M3AGENT_ENDPOINT": OURS}, OTHER, None),
        ({"api_key": FILE, "endpoint": OURS}, {}, None, FILE),
        ({"api_key": FILE, "endpoint": OURS}, {}, OTHER, None),
        ({"api_key": FILE, "endpoint": OURS}, {"M3AGENT_ENDPOINT": OTHER}, None, None),
        # one layer has the key, the other the address
        ({"endpoint": OURS}, {"M3AGENT_API_KEY": "k"}, None, "k"),
        ({"endpoint": OURS}, {"M3AGENT_API_KEY": "k"}, OTHER, None),
        ({"api_key": FILE}, {"M3AGENT_ENDPOINT": OURS}, OTHER, None),
        # a key for another server does not hide the right one
        ({"api_key": FILE, "endpoint": OURS}, {"OPENAI_API_KEY": "o"}, None, FILE),
        (
            {"api_key": FILE, "endpoint": OURS},
            {"M3AGENT_API_KEY": "k", "M3AGENT_ENDPOINT": OTHER},
            OURS,
            FILE,
        ),
        # OPENAI_API_KEY is for OPENAI_BASE_URL, and without it for OpenAI
        ({}, {"OPENAI_API_KEY": "o"}, OTHER, None),
        ({}, {"OPENAI_API_KEY": "o"}, OPENAI, "o"),
        ({"endpoint": OURS}, {"OPENAI_API_KEY": "o"}, None, None),
        ({}, {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": f"{OURS}/"}, OURS, "o"),
        ({}, {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": OURS}, OPENAI, None),
        ({}, {"OPENAI_API_KEY": "o", "M3AGENT_API_KEY": "k"}, OPENAI, "k"),
        # the same host is the same name and port
        ({}, {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "https://OURS.invalid:443"}, OURS, "o"),
        ({}, {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "https://ours.invalid:444/v1"}, OURS, None),
        ({}, {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "https://evil.invalid/ours.invalid"}, OURS, None),
        ({}, {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "https://sub.ours.invalid/v1"}, OURS, None),
        ({}, {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "no address"}, OURS, None),
        ({}, {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "https://[half"}, OURS, None),
    ],
)
def test_a_key_goes_to_its_server_only(
    user: User, file: Mapping[str, str], variables: dict[str, str], endpoint: str | None, sent: str | None
) -> None:
    server = user.has(file, **variables).server(endpoint)
    assert server.key == sent
    assert bool(server.notice) == (sent is None)


def test_the_sentence_about_a_key_that_stays(user: User) -> None:
    user.has(M3AGENT_API_KEY="hush", M3AGENT_ENDPOINT=OURS)
    assert user.server(OTHER).notice == (
        "the key of M3AGENT_API_KEY is for ours.invalid and does not go to other.invalid; if it should, set "
        f"M3AGENT_API_KEY and M3AGENT_ENDPOINT={OTHER} together"
    )
    user.has({"api_key": "hush", "endpoint": OURS})
    assert f"the key of {user.file} is for ours.invalid" in user.server(OTHER).notice
    local = "http://localhost:8000/v1"
    assert "does not go to localhost:8000" in user.server(local).notice
    user.has(OPENAI_API_KEY="hush")
    assert user.server(local).notice == "", "nobody expects OpenAI's key there"
    assert user.has().server(OTHER).notice == ""


@pytest.mark.parametrize(
    ("url", "allowed", "goes"),
    [
        ("http://gpu-box:8000/v1", None, False),
        ("http://gpu-box:8000/v1", "gpu-box:8000", True),
        ("http://gpu-box:8000/v1", "other, GPU-box", True),
        ("http://gpu-box:8000/v1", "gpu-box:8001", False),
        ("http://gpu-box.evil.invalid:8000/v1", "gpu-box", False),
        ("http://192.168.1.5/v1", "192.168.1.5:80", True),
        ("http://192.168.1.5/v1", "192.168.1.50", False),
        ("http://[fd00::5]:8000/v1", "[fd00::5]", True),
        ("http://[fd00::5]:8000/v1", None, False),
        ("https://gpu-box:8000/v1", None, True),
        ("http://127.0.0.1:8000/v1", None, True),
        ("http://[::1]:8000/v1", None, True),
        ("http://localhost/v1", None, True),
    ],
)
@pytest.mark.parametrize("where", ["file", "variable"])
def test_a_key_travels_unencrypted_only_with_consent(
    user: User, where: str, url: str, allowed: str | None, goes: bool
) -> None:
    if where == "file":
        user.has({} if allowed is None else {"key_over_http": allowed}, M3AGENT_API_KEY="hush")
    else:
        user.has(M3AGENT_API_KEY="hush", M3AGENT_KEY_OVER_HTTP=allowed or "")
    if goes:
        assert user.server(url).key == "hush"
        return
    with pytest.raises(UsageError) as caught:
        user.server(url)
    host = url.split("/")[2]
    assert str(caught.value) == (
        f"the key of M3AGENT_API_KEY would go to {host} over plain http, where others in the network can read it: give "
        f"an https address, leave the key out, or allow it with key_over_http = '{host}' in your settings file (or "
        f"M3AGENT_KEY_OVER_HTTP={host})"
    )


@pytest.mark.parametrize("hosts", ["*", "http://gpu-box", "a@b", "gpu-box/v1", "gpu-box:x", "[fd00", ","])
def test_a_consent_names_hosts(user: User, hosts: str) -> None:
    with pytest.raises(UsageError, match="M3AGENT_KEY_OVER_HTTP cannot be"):
        user.has(M3AGENT_KEY_OVER_HTTP=hosts).settings()


def test_config_show_names_the_place_of_the_key_that_is_sent(user: User) -> None:
    user.has({"api_key": "hush", "endpoint": OURS}, OPENAI_API_KEY="hush-too")
    loaded = load_settings(user.home, {}, {"HOME": str(user.home), **user.variables})
    assert json.loads(loaded.json())["api_key"] == {"value": "(hidden)", "origin": str(user.file)}
    assert "hush" not in f"{loaded!r} {loaded.settings} {loaded.table()} {user.server()!r}"


async def test_the_host_is_named_before_it_gets_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    async def probe(url: str, **_: Any) -> None:
        said.append("the first request")
        raise EndpointUnreachable("ours.invalid", "it is not there")

    monkeypatch.setattr(run_context, "probe", probe)
    request = cast(
        FixRequest, SimpleNamespace(settings=settings_of({"endpoint": OURS}), resume=None, answer="no")
    )
    server = ModelServer(OURS, "hush", "named", OURS, notice="a notice")
    with pytest.raises(EndpointUnreachable):
        await run_context.prepare(request, server, tmp_path, lambda _: None, said.append)
    assert said == [
        "a notice",
        "the repository and the issue go to ours.invalid, which is not this machine; so does its key "
        + "(shown once; --yes hides it)",
        "the first request",
    ]


@pytest.mark.parametrize(
    ("model", "more"), [("MiniMax-M3", {"effort": "low"}), ("MiniMax-M3.1-Flash", {"thinking": "disabled"})]
)
async def test_what_the_model_lacks_ends_before_the_first_request(
    tmp_path: Path, model: str, more: dict[str, str]
) -> None:
    settings = settings_of({"endpoint": OURS, "model": model, "probe": False, "yes": True, **more})
    request = cast(FixRequest, SimpleNamespace(settings=settings, resume=None))
    with pytest.raises(UsageError, match=model):
        await run_context.prepare(
            request, ModelServer(OURS, None, "named", OURS), tmp_path, lambda _: None, lambda _: None
        )


@pytest.mark.integration
def test_openais_key_is_not_sent_to_another_server(tmp_path: Path, new_repo: NewRepo) -> None:
    repo = new_repo()

    def packed(server: TokenizeServer, **env: str) -> subprocess.CompletedProcess[str]:
        words = ("context", "--repo", str(repo), "--tokenizer", "server", "-o", os.devnull)
        return run(
            *words,
            "--endpoint",
            server.url,
            env={"M3AGENT_STATE": str(tmp_path / "state"), "OPENAI_API_KEY": "hush", **env},
        )

    for base, sent in (("", None), (OURS, None), ("own", "Bearer hush")):
        with TokenizeServer(lambda text: list(text.encode())) as server:
            done = packed(server, OPENAI_BASE_URL=server.url if base == "own" else base)
            assert done.returncode == 0, done.stderr
            assert {headers.get("authorization") for headers in server.headers} == {sent}
            assert ("the key of OPENAI_API_KEY is for ours.invalid" in done.stderr) == (base == OURS)


@pytest.mark.slow
@pytest.mark.integration
def test_a_key_and_an_endpoint_of_the_python_api_belong_together(
    model: MisbehavingServer, make_repo: MakeRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M3AGENT_ENDPOINT", OURS)
    monkeypatch.setenv("M3AGENT_API_KEY", "for ours only")
    model.answers = [FIX, TEST, DONE]
    assert fix(ISSUE, make_repo(BUGGY), endpoint=model.url, api_key="sesame").is_verified
    assert {chat.headers["authorization"] for chat in model.chats} == {"Bearer sesame"}
