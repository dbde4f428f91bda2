"""Test counting tokens by a model server, over real HTTP on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from tokenizers import Tokenizer

from m3agent.agent.context.tokenizer.counter import open_counter, oracle_count
from m3agent.agent.context.tokenizer.source import TokenizerSource, find_tokenizer
from m3agent.serving.errors import EndpointRefused, EndpointUnreachable, ModelServerError
from m3agent.serving.launch.record import KEY, ServerRecord, new_folder, write_record
from m3agent.util.errors import UsageError
from tests.agent.repositories import NewRepo
from tests.agent.small_tokenizer import GPT_4, description
from tests.command_line import run
from tests.conftest import later
from tests.servers.tokenize import TokenizeServer

pytestmark = pytest.mark.integration

CHUNKS = [
    f'<file path="{number}.py">\ndef naïve_{number}(): # 漢字\n\treturn "{number}"\n</file>\n'
    for number in range(60)
]


@pytest.fixture(scope="module")
def encode() -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_str(json.dumps(description()))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(params=["vllm", "sglang"])
def server(request: pytest.FixtureRequest, encode: Callable[[str], list[int]]) -> Iterator[TokenizeServer]:
    with TokenizeServer(encode, dialect=request.param) as running:
        yield running


@pytest.fixture
def vllm(encode: Callable[[str], list[int]]) -> Iterator[TokenizeServer]:
    with TokenizeServer(encode) as running:
        yield running


def found(server: TokenizeServer | str, cache: Path, **more: Any) -> TokenizerSource:
    url = server if isinstance(server, str) else server.url
    source = find_tokenizer("server", env={}, cache=str(cache), endpoint=url, **more)
    assert source is not None
    return source


def test_counts_are_the_servers(
    server: TokenizeServer, encode: Callable[[str], list[int]], tmp_path: Path
) -> None:
    source = found(server, tmp_path)
    assert source.kind == "server"
    assert server.host in source.label
    counter = open_counter(source)
    assert counter.exact
    assert counter.count_many(CHUNKS) == [len(encode(chunk)) for chunk in CHUNKS]
    assert counter.count_many([]) == []
    whole = "".join(CHUNKS)
    assert sum(counter.count_many(CHUNKS)) == counter.count(whole) == oracle_count(source, whole)
    asked = len(server.bodies)
    assert counter.count("") == 0
    assert len(server.bodies) == asked
    assert all(body["add_special_tokens"] is False and "model" not in body for body in server.bodies)


def test_the_server_is_chosen_as_for_a_fix(
    vllm: TokenizeServer, encode: Callable[[str], list[int]], tmp_path: Path, new_repo: NewRepo
) -> None:
    state, repo = tmp_path / "state", new_repo()

    def packed(**env: str) -> subprocess.CompletedProcess[str]:
        words = ("context", "--repo", str(repo), "--tokenizer", "server", "-o", os.devnull)
        return run(*words, env={"M3AGENT_STATE": str(state), **env})

    refused = packed()
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "name it with --endpoint" in refused.stderr
    folder = new_folder(state)
    write_record(folder, ServerRecord(url=vllm.url, engine="vllm", pid=os.getpid()))
    (folder / KEY).write_text("sesame")
    assert packed().returncode == 0
    assert {headers["authorization"] for headers in vllm.headers} == {"Bearer sesame"}
    asked = len(vllm.bodies)
    with TokenizeServer(encode) as configured:
        assert packed(M3AGENT_ENDPOINT=configured.url, M3AGENT_API_KEY="mine").returncode == 0
        assert {headers["authorization"] for headers in configured.headers} == {"Bearer mine"}
    refused = packed(M3AGENT_ENGINE="embedded")
    assert refused.returncode == 2
    assert "name it with --endpoint" in refused.stderr
    assert len(vllm.bodies) == asked


def test_connections_are_few_and_kept(encode: Callable[[str], list[int]], tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def wait_for_others(text: str) -> list[int]:
        if text in CHUNKS:
            together.wait(20)  # no request is answered before eight have arrived
        return encode(text)

    with TokenizeServer(wait_for_others) as server:
        counter = open_counter(found(server, tmp_path))
        before = server.connections
        chunks = CHUNKS[:56]
        assert counter.count_many(chunks) == [len(encode(chunk)) for chunk in chunks]
        assert server.most_at_once == 8
        assert server.connections - before <= 8


@pytest.mark.parametrize(
    "url", ["http://{}/v1", "http://{}/v1/", "http://{}", "{}", "http://{}/v1/chat/completions"]
)
def test_the_address_may_be_written_in_several_ways(vllm: TokenizeServer, tmp_path: Path, url: str) -> None:
    assert found(url.format(vllm.host), tmp_path).location == f"http://{vllm.host}/tokenize"


def test_it_may_be_below_v1_only(encode: Callable[[str], list[int]], tmp_path: Path) -> None:
    with TokenizeServer(encode, dialect="sglang") as server:
        server.faults = [(404, b"", {})]
        source = found(server, tmp_path)
        assert source.location == f"http://{server.host}/v1/tokenize"
        assert open_counter(source).count("a b") == len(encode("a b"))


def test_the_identity_is_the_tokenizers_and_the_models(vllm: TokenizeServer, tmp_path: Path) -> None:
    first = found(vllm, tmp_path)
    assert found(vllm, tmp_path).id == first.id
    assert found(vllm, tmp_path, model="m3").id != first.id
    other = Tokenizer.from_str(json.dumps(description(GPT_4)))
    vllm.encode = lambda text: other.encode(text, add_special_tokens=False).ids
    assert found(vllm, tmp_path).id != first.id


def test_the_model_and_the_key_are_sent(vllm: TokenizeServer, tmp_path: Path) -> None:
    source = found(vllm, tmp_path, model="m3", api_key="sk-secret")
    open_counter(source).count("a")
    assert all(body["model"] == "m3" for body in vllm.bodies)
    assert all(headers["authorization"] == "Bearer sk-secret" for headers in vllm.headers)
    assert "sk-secret" not in repr(source)
    vllm.faults = [(400, b'{"error": {"message": "the key sk-secret is wrong"}}', {})]
    with pytest.raises(EndpointRefused, match=r"the key \[key\] is wrong"):
        open_counter(source).count("a")


def test_whether_counts_add_up_is_found_out_once(tmp_path: Path) -> None:
    def joining(text: str) -> list[int]:
        return [1] * (len(text) - text.count("\n<"))

    with TokenizeServer(joining) as server:
        source = found(server, tmp_path)
        counter = open_counter(source)
        assert not counter.exact
        assert "joins the end" in counter.note
        asked = len(server.bodies)
        assert not open_counter(source).exact
        assert len(server.bodies) == asked
        (kept,) = (tmp_path / "tokenizers").iterdir()
        kept.write_text("maybe")
        assert not open_counter(source).exact
        assert len(server.bodies) > asked


def test_a_folder_that_cannot_be_written_costs_time_only(vllm: TokenizeServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert open_counter(found(vllm, tmp_path / "file")).exact


@pytest.mark.usefixtures("no_backoff")
def test_a_request_is_repeated_after_a_passing_error(vllm: TokenizeServer, tmp_path: Path) -> None:
    source = found(vllm, tmp_path)
    counter = open_counter(source)
    wanted = counter.count("one two")
    asked = len(vllm.bodies)
    vllm.faults = [(503, b"loading", {"Retry-After": "0.01"}), (0, b"", {}), (429, b"", {"Retry-After": "0"})]
    assert counter.count("one two") == wanted
    assert len(vllm.bodies) - asked == 4


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ((500, b'{"error": {"message": "out of memory"}}', {}), EndpointRefused, "out of memory"),
        ((503, b"<html>proxy</html>", {}), EndpointRefused, "a web page"),
        later((0, b"", {}), EndpointUnreachable, "No answer"),
    ],
)
def test_lasting_fault_is_reported(
    vllm: TokenizeServer,
    tmp_path: Path,
    fault: tuple[int, bytes, dict[str, str]],
    kind: type[ModelServerError],
    words: str,
) -> None:
    counter = open_counter(found(vllm, tmp_path))
    status, body, _ = fault
    vllm.faults = [(status, body, {"Retry-After": "0.01"})] * 4
    with pytest.raises(kind, match=words) as error:
        counter.count_many(["a"])
    assert vllm.faults == []
    assert vllm.host in str(error.value)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ((401, b'{"error": "no key"}', {}), "M3AGENT_API_KEY"),
        ((200, b"<html>welcome</html>", {}), "no tokens"),
        ((200, b'{"tokens": "many"}', {}), "no tokens"),
        ((200, b"[1, 2]", {}), "no tokens"),
        ((302, b"", {"Location": "http://example.invalid/"}), "answered 302"),
    ],
)
def test_other_answers_are_refusals(
    vllm: TokenizeServer, tmp_path: Path, fault: tuple[int, bytes, dict[str, str]], words: str
) -> None:
    vllm.faults = [fault]
    with pytest.raises(EndpointRefused, match=words):
        found(vllm, tmp_path)


def test_an_unknown_model_is_named(vllm: TokenizeServer, tmp_path: Path) -> None:
    with pytest.raises(EndpointRefused, match="The model `other` does not exist"):
        found(vllm, tmp_path, model="other")


@pytest.mark.parametrize("dialect", ["none", "vllm"])
def test_a_server_that_does_not_tokenize(
    encode: Callable[[str], list[int]], tmp_path: Path, dialect: Literal["none", "vllm"]
) -> None:
    # The second server has the address but reads another field than ours, so it gets an empty text.
    with TokenizeServer(encode if dialect == "none" else lambda _: [], dialect=dialect) as server:
        with pytest.raises(UsageError) as error:
            found(server, tmp_path)
        assert str(error.value).endswith("give the model's tokenizer.json or its folder with --tokenizer.")
        assert server.host in str(error.value)


def test_nobody_listens(tmp_path: Path, encode: Callable[[str], list[int]]) -> None:
    with TokenizeServer(encode) as server:
        url = server.url
    with pytest.raises(EndpointUnreachable, match="No answer"):
        found(url, tmp_path)


@pytest.mark.parametrize("url", ["ftp://host/v1", "http://:80/v1", "http://host:port/v1"])
def test_no_address(tmp_path: Path, url: str) -> None:
    with pytest.raises(EndpointUnreachable, match="http:// or https:// address"):
        found(url, tmp_path)
