"""The probe's findings, and its messages when it finds no server."""

import socket
from typing import Any, get_args

import pytest

from m3agent.serving.client.endpoint import _KINDS, Endpoint, Flavour, _flavour, _takes_images, probe, unasked
from m3agent.serving.client.prices import Prices
from m3agent.serving.errors import EndpointRefused, EndpointUnreachable, ModelServerError, WrongModel
from tests.servers.misbehaving import MODEL, MisbehavingServer, Reply, Silence


async def ask(url: str, **options: Any) -> Endpoint:
    return await probe(url, **{"api_key": None, "model": None, "timeout": 5, **options})


def models(owner: str, *names: str, **fields: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "owned_by": owner, **fields} for name in names]}


@pytest.mark.parametrize("suffix", ["/v1", "/v1/", "", "/", "/v1/chat/completions"])
async def test_a_vllm_server(server: MisbehavingServer, suffix: str) -> None:
    endpoint = await ask(server.url.removesuffix("/v1") + suffix)
    assert endpoint == Endpoint(
        url=server.url,
        model=MODEL,
        flavour="vllm",
        version="0.24.0",
        max_model_len=1048576,
        reasoning_field="reasoning",
        local=True,
    )


@pytest.mark.parametrize(
    ("owner", "flavour", "field"),
    [
        ("sglang", "sglang", "reasoning_content"),
        ("tensorrt_llm", "trtllm", "reasoning_content"),
        ("m3agent", "embedded", "reasoning"),
        ("somebody", "unknown", "reasoning_content"),
    ],
)
async def test_other_servers(server: MisbehavingServer, owner: str, flavour: str, field: str) -> None:
    server.pages["/v1/models"] = models(owner, "any")
    server.pages["/server_info" if owner == "sglang" else "/x"] = {"version": "0.5.23"}
    endpoint = await ask(server.url)
    assert (endpoint.flavour, endpoint.reasoning_field, endpoint.max_model_len) == (flavour, field, None)
    versions = {"sglang": "0.5.23", "trtllm": "0.24.0"}
    assert endpoint.version == versions.get(flavour)


@pytest.mark.parametrize(
    ("owner", "said", "images"),
    [
        ("vllm", {}, False),
        ("vllm", {"modalities": ["text", "image"]}, True),
        ("x", {"architecture": {"input_modalities": ["text", "image"], "output_modalities": ["text"]}}, True),
        (
            "x",
            {"architecture": {"input_modalities": ["text"], "output_modalities": ["text", "image"]}},
            False,
        ),
        ("x", {"modalities": {"input": ["text"], "output": ["image"]}}, False),
        ("x", {"capabilities": {"vision": True, "function_calling": True}}, True),
        ("x", {"capabilities": {"vision": False}}, False),
        ("x", {"capabilities": ["completion", "vision"]}, True),
        ("x", {"capabilities": "vision", "architecture": "vision"}, False),
        ("m3agent", {"modalities": ["image"]}, False),
    ],
)
async def test_whether_it_takes_images(
    server: MisbehavingServer, owner: str, said: dict[str, Any], images: bool
) -> None:
    server.pages["/v1/models"] = models(owner, "MiniMax-M3", **said)
    assert (await ask(server.url)).images is images


@pytest.mark.parametrize(
    ("base", "model", "images"),
    [
        ("https://api.minimax.io/v1", "MiniMax-M3", True),
        ("https://api.minimaxi.com/v1", "MiniMax-M3", True),
        ("https://api.minimax.io/v1", "MiniMax-M2", False),
        ("https://openrouter.ai/api/v1", "minimax/minimax-m3", False),
        ("https://notminimax.io/v1", "MiniMax-M3", False),
    ],
)
def test_hosts_that_say_nothing_of_images(base: str, model: str, images: bool) -> None:
    entry = {"id": model, "owned_by": "vllm"}
    flavour = _flavour(base, entry)
    assert _takes_images(entry, flavour) is images
    assert _takes_images({**entry, "modalities": ["text"]}, flavour) is False


def test_every_kind_has_its_row() -> None:
    assert set(_KINDS) == set(get_args(Flavour))


@pytest.mark.parametrize(
    ("base", "flavour"),
    [
        ("https://api.minimax.io/v1", "minimax"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://notminimax.io/v1", "vllm"),
        ("https://minimax.io.example/v1", "vllm"),
        ("http://127.0.0.1:8000/v1", "vllm"),
    ],
)
def test_a_hosted_api_is_known_by_its_host(base: str, flavour: str) -> None:
    assert _flavour(base, {"id": "m", "owned_by": "vllm"}) == flavour


async def test_an_older_sglang_says_its_version_elsewhere(server: MisbehavingServer) -> None:
    server.pages["/v1/models"] = models("sglang", "any")
    server.pages["/get_server_info"] = {"version": "0.5.1"}
    assert (await ask(server.url)).version == "0.5.1"


async def test_listed_prices(server: MisbehavingServer) -> None:
    assert (await ask(server.url)).prices is None
    pricing = {"prompt": "0.000001", "completion": "0.000002", "input_cache_read": "0.0000001"}
    server.pages["/v1/models"] = models("x", "MiniMax-M3", pricing=pricing)
    assert (await ask(server.url)).prices == Prices(1.0, 2.0, 0.1)


async def test_an_api_without_v1(server: MisbehavingServer) -> None:
    server.pages = {"/api/models": models("x", "m")}
    endpoint = await ask(server.url.removesuffix("/v1") + "/api")
    assert endpoint.url.endswith("/api")


async def test_the_model(server: MisbehavingServer) -> None:
    server.pages["/v1/models"] = models("vllm", "a", "MiniMaxAI/MiniMax-M3", "b")
    assert (await ask(server.url)).model == "MiniMaxAI/MiniMax-M3"
    assert (await ask(server.url, model="b")).model == "b"
    with pytest.raises(
        WrongModel, match="does not serve 'c': name one of a, MiniMaxAI/MiniMax-M3, b with --model"
    ):
        await ask(server.url, model="c")
    server.pages["/v1/models"] = models("vllm", "a", "b")
    with pytest.raises(WrongModel, match="serves 2 models: name one of a, b with --model"):
        await ask(server.url)


@pytest.mark.parametrize(
    ("page", "status", "words"),
    [
        (Reply(200, "<!DOCTYPE html><html><body>Welcome</body></html>"), 200, "a web page"),
        (Reply(200, {"hello": 1}), 200, "not a list of models"),
        (Reply(200, {"object": "list", "data": []}), 404, "loaded its model"),
        (Reply(401, {"error": {"message": "bad key sk-secret"}}), 401, "set M3AGENT_API_KEY"),
        (Reply(404, {"detail": "Not Found"}), 404, "/v1"),
        (Reply(503, "<html>starting</html>"), 503, "a web page"),
    ],
)
async def test_invalid_list_of_models(
    server: MisbehavingServer, page: Reply, status: int, words: str
) -> None:
    server.pages = {"/v1/models": page, "/models": page}
    with pytest.raises(EndpointRefused) as caught:
        await ask(server.url.removesuffix("/v1"), api_key="sk-secret")
    said = str(caught.value)
    assert caught.value.status == status
    assert words in said
    assert "127.0.0.1" in said
    assert "sk-secret" not in said
    assert "\n" not in said


@pytest.mark.integration
async def test_nothing_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(EndpointUnreachable, match=host):
            await ask(f"user:password@{host}")


async def test_a_server_that_never_answers_is_unreachable(server: MisbehavingServer) -> None:
    server.pages["/v1/models"] = Silence()
    with pytest.raises(EndpointUnreachable, match="did not answer"):
        await ask(server.url, timeout=0.2)


@pytest.mark.parametrize("url", ["ftp://host/v1", "http://", "http:///v1"])
async def test_invalid_addresses(url: str) -> None:
    with pytest.raises(ModelServerError, match="http"):
        await ask(url)


async def test_key_is_sent_only_to_its_host(
    server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("OPENAI_ORG_ID", "org")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Team: red\nauthorization: Bearer other\nnonsense")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    await ask(server.url)
    assert "authorization" not in server.requests[0].headers
    assert not {"openai-organization", "openai-project", "x-team"} & server.requests[0].headers.keys()
    await ask(server.url, api_key="mine")
    assert server.requests[-1].headers["authorization"] == "Bearer mine"


@pytest.mark.parametrize("path", ["/sessions/17/v1", "/ng-rollout/17/capture"])
@pytest.mark.parametrize("status", [404, 405])
async def test_a_named_model_needs_no_list(server: MisbehavingServer, path: str, status: int) -> None:
    for page in (f"{path}/models", f"{path}/v1/models"):
        server.pages[page] = Reply(status, {"error": {"message": "not here"}})
    url = server.url.removesuffix("/v1") + path
    endpoint = await ask(url, model="any/model")
    assert (endpoint.url, endpoint.model, endpoint.flavour) == (url, "any/model", "unknown")
    assert endpoint == unasked(url, "any/model")
    with pytest.raises(EndpointRefused):
        await ask(url)


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("h:1/", "http://h:1/v1"),
        ("http://h:1/v1/chat/completions", "http://h:1/v1"),
        ("https://h/a/b", "https://h/a/b"),
    ],
)
def test_an_address_is_kept_as_it_is(given: str, base: str) -> None:
    assert unasked(given, "m").url == base
