"""A card of scripted agents at small programs, behind a real server: every figure against what the scripts do."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from m3agent.evals.card.config import Adapter, Budget, CardConfig, Server
from m3agent.evals.card.model import CardReport, report_on
from m3agent.evals.card.page import as_json, render, watched
from m3agent.evals.card.run import agents_of, make_card, open_runs, read_card, turns
from m3agent.evals.data.instance import Instance
from m3agent.evals.data.results import Grade, TestCount, Verdict
from m3agent.evals.run.counting_proxy import CountingProxy, Guard
from m3agent.evals.run.parts import AttemptParts
from m3agent.serving.client.prices import Prices
from m3agent.serving.embedded.http_app import served
from m3agent.util.errors import UsageError
from tests.evals.small import checkout, instance, no_image, write_programs
from tests.servers.misbehaving import MisbehavingServer, Reply, Stream, delta, finish

pytestmark = pytest.mark.integration

AGENT = """
import json, os, sys, urllib.error, urllib.request
kind, endpoint, key, model = sys.argv[2:]
def ask(*messages, **more):
    body = {"model": model, "messages": [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages], **more}
    request = urllib.request.Request(endpoint + "/chat/completions", json.dumps(body).encode(), {"authorization": "Bearer " + key, "content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
tools = [{"type": "function", "function": {"name": "bash"}}]
answer = {"role": "assistant", "content": "x", "reasoning_content": "because"}
ask("mend it", tools=tools, temperature=0.5)
if kind == "right":
    ask("mend it", answer, "go on", tools=tools)
    for name in ("adder.py", "largest.py"):
        if os.path.exists(name):
            text = open(name).read()
            open(name, "w").write(text.replace("a - b", "a + b").replace("v < best", "v > best"))
elif kind == "wrong":
    ask("mended it", {"role": "assistant", "content": "x"}, "go on")
    open("note.txt", "w").write(os.environ.get("HOME") + open(os.environ["HOME"] + "/conf").read())
elif kind == "greedy":
    codes = [ask("mend it", tools=tools) for _ in range(4)]
    print(codes, file=sys.stderr)
"""
USED = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 50}}
ANSWER = {"choices": [{"message": {"content": "x"}}], "usage": USED}
KEY = "the-real-key"


@pytest.fixture
def server(server: MisbehavingServer) -> MisbehavingServer:
    server.answers = [ANSWER]
    return server


async def grade(instance: Instance, patch: bytes, image: str, folder: Path) -> tuple[Grade, None]:
    good = b"+    return a + b" in patch or b"v > best" in patch
    verdict = Verdict.RESOLVED if good else Verdict.UNRESOLVED
    return Grade(verdict=verdict, fail_to_pass=TestCount(passed=int(good))), None


def adapter(folder: Path, kind: str) -> Adapter:
    script = folder / "agent.py"
    script.write_text(AGENT)
    command = (sys.executable, str(script), "{issue}", kind, "{endpoint}", "{key}", "{model}")
    return Adapter(name=kind, command=command, files={"conf": "{model}"})


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


class Made:
    """A card that can be made again in the same folder."""

    def __init__(self, folder: Path, server: MisbehavingServer, kinds: Sequence[str], **budget: Any) -> None:
        programs = write_programs(folder / "programs")
        self.output = folder / "card"
        self.instances = [instance(programs, name) for name in ("adder", "largest")]
        self.config = CardConfig(
            data="rows",
            server=Server(endpoint=server.url, model="m"),
            budget=Budget.model_validate(budget),
            agents=tuple(adapter(folder, kind) for kind in kinds),
        )
        self.adapters = [agent for agent in self.config.agents if isinstance(agent, Adapter)]
        self.agents = agents_of(self.adapters, self.config, Prices(prompt=1.0, completion=1.0), KEY)

    def make(self) -> CardReport:
        folders = open_runs(self.output, self.config, self.adapters, self.instances, "digest")
        make_card(folders, self.instances, self._parts, print, run, 2)
        return report_on(folders)

    def _parts(self, name: str, say: Any) -> AttemptParts:
        return AttemptParts(checkout, no_image, grade, self.agents[name], {"environment": 60, "tests": 60})


def test_every_figure_is_what_the_agents_did(tmp_path: Path, server: MisbehavingServer) -> None:
    made = Made(tmp_path, server, ["right", "wrong", "idle"])
    card = made.make()
    right, wrong, idle = card.agents
    assert [agent.report.score.resolved for agent in card.agents] == [2, 0, 0]
    assert [agent.traffic["requests"] for agent in card.agents] == [4, 4, 2]
    assert [agent.report.used.prompt_tokens.total for agent in card.agents] == [400, 400, 200]
    assert right.report.used.cache.share == 0.5
    assert (right.traffic["continuing"], right.traffic["broken_prefixes"]) == (2, 0)
    assert (wrong.traffic["continuing"], wrong.traffic["broken_prefixes"]) == (2, 2)
    assert (right.traffic["returned_thinking"], wrong.traffic["returned_thinking"]) == (2, 0)
    assert (right.tools, right.sampling) == (("bash",), {"temperature": 0.5})
    assert [agent.blame for agent in card.agents] == [{}, {"agent": 2}, {"agent": 2}]
    assert {attempt.verdict for attempt in idle.attempts} == {Verdict.EMPTY}
    assert len(card.pairs) == 3 and card.missing == 0
    seen = [request.headers["authorization"] for request in server.requests]
    assert seen == [f"Bearer {KEY}"] * 10
    kept = b"".join(path.read_bytes() for path in made.output.rglob("*") if path.is_file())
    assert KEY.encode() not in kept
    assert json.loads(as_json(card))["format"] == 1
    page = render(card)
    assert "right" in page and "refresh" not in page and "2 of 2" in page
    _, folders = read_card(made.output)
    assert report_on(folders) == card


def test_a_budget_ends_an_attempt_for_each_agent_alike(tmp_path: Path, server: MisbehavingServer) -> None:
    card = Made(tmp_path, server, ["greedy"], tokens=300).make()
    [greedy] = card.agents
    assert (greedy.traffic["requests"], greedy.traffic["refused"]) == (6, 4)
    assert greedy.blame == {"budget": 2}


def test_a_model_that_never_answers_is_to_blame(tmp_path: Path, server: MisbehavingServer) -> None:
    server.answers = [Reply(500, {"error": {"message": "broken"}})]
    [idle] = Made(tmp_path, server, ["idle"]).make().agents
    assert (idle.blame, idle.traffic["failed"]) == ({"model": 2}, 2)


def test_a_card_that_stopped_goes_on_and_counts_nothing_twice(
    tmp_path: Path, server: MisbehavingServer
) -> None:
    made = Made(tmp_path, server, ["right", "wrong"])
    whole = made.make()
    (made.output / "runs/wrong/attempts/adder/1/result.json").unlink()
    before = len(server.requests)
    again = made.make()
    assert len(server.requests) == before + 2
    assert [agent.traffic for agent in again.agents] == [agent.traffic for agent in whole.agents]


def test_the_first_agent_changes_from_instance_to_instance(tmp_path: Path, server: MisbehavingServer) -> None:
    made = Made(tmp_path, server, ["right", "wrong"])
    folders = open_runs(made.output, made.config, made.adapters, made.instances, "digest")
    order = [(folder.path.name, ident) for folder, ident, _ in turns(folders)]
    assert order == [("right", "adder"), ("wrong", "adder"), ("wrong", "largest"), ("right", "largest")]


async def test_another_process_cannot_use_the_proxy(tmp_path: Path, server: MisbehavingServer) -> None:
    guard = Guard(KEY)
    proxy = CountingProxy(server.url, None, guard)
    async with proxy.opened() as address, httpx2.AsyncClient() as http:
        refused = await http.post(f"{address}/chat/completions", json={}, headers={"x-api-key": "other"})
        taken = await http.post(f"{address}/chat/completions", json={}, headers={"x-api-key": guard.stand_in})
    assert (refused.status_code, taken.status_code) == (401, 200)
    assert [request.headers["x-api-key"] for request in server.requests] == [KEY]


@pytest.mark.parametrize("path", ["chat/completions", "chat/completions/", "completions", "messages//"])
async def test_no_spelling_of_a_path_evades_the_budget(server: MisbehavingServer, path: str) -> None:
    guard = Guard(KEY, tokens=1)
    proxy = CountingProxy(server.url, None, guard)
    proxy._totals.prompt = 1
    async with proxy.opened() as address, httpx2.AsyncClient() as http:
        refused = await http.post(f"{address}/{path}", json={}, headers={"x-api-key": guard.stand_in})
    assert (refused.status_code, server.requests) == (403, [])


async def test_a_spent_budget_ends_all_paid_requests(server: MisbehavingServer) -> None:
    server.pages["/v1/embeddings"] = server.pages["/v1/messages/count_tokens"] = {}
    guard = Guard(KEY, tokens=1)
    proxy = CountingProxy(server.url, None, guard)
    proxy._totals.prompt = 1
    asked = [("POST", "embeddings"), ("PUT", "x"), ("POST", "messages/count_tokens"), ("GET", "models")]
    async with proxy.opened() as address, httpx2.AsyncClient(headers={"x-api-key": guard.stand_in}) as http:
        statuses = [(await http.request(method, f"{address}/{path}")).status_code for method, path in asked]
    assert statuses == [403, 403, 200, 200]


@pytest.mark.parametrize(
    "path",
    ["/admin", "/v1/../admin", "/v1/%2e%2E/admin", "/v1/%252e%252e/x", "/v1/..;/x", "/v1x", "/v1\\..\\x"],
)
async def test_the_key_is_sent_below_the_endpoint_only(server: MisbehavingServer, path: str) -> None:
    guard = Guard(KEY)
    async with CountingProxy(server.url, None, guard).opened() as address:
        port = int(address.removesuffix("/v1").rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {guard.stand_in}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        assert b" 40" in await reader.readline()
        writer.close()
    assert server.requests == []


@pytest.mark.parametrize("prices", [None, Prices(prompt=1e6, completion=1e6)])
async def test_a_stream_that_hides_its_usage_spends_the_budget(
    server: MisbehavingServer, prices: Prices | None
) -> None:
    server.answers = [Stream([delta(content="x" * 400), finish("stop")])]
    guard = Guard(KEY, tokens=100 if prices is None else None, dollars=100)
    proxy = CountingProxy(server.url, prices, guard)
    async with proxy.opened() as address, httpx2.AsyncClient(headers={"x-api-key": guard.stand_in}) as http:
        statuses = [(await http.post(f"{address}/chat/completions", json={})).status_code for _ in range(2)]
    assert statuses == [200, 403]
    assert proxy.usage.prompt_tokens is None, "an estimate is not shown"


def test_a_limit_in_dollars_needs_prices(tmp_path: Path) -> None:
    config = CardConfig(
        data="rows",
        server=Server(endpoint="http://127.0.0.1:9/v1", model="m"),
        budget=Budget(dollars=1),
        agents=("m3agent",),
    )
    with pytest.raises(UsageError, match=r"budget\.dollars"):
        agents_of([], config, None, None)


async def test_the_watched_page_reads_the_run_while_it_is_made(
    tmp_path: Path, server: MisbehavingServer
) -> None:
    made = Made(tmp_path, server, ["right", "wrong"])
    folders = open_runs(made.output, made.config, made.adapters, made.instances, "digest")
    folders[0].begin("adder", 1)
    app = watched(lambda: report_on(folders), 5)
    async with served(app) as address, httpx2.AsyncClient() as http:
        page = await http.get(address)
        figures = (await http.get(f"{address}/report.json")).json()
        foreign = await http.get(address, headers={"host": "evil.example"})
    assert 'http-equiv="refresh"' in page.text
    assert [attempt["state"] for attempt in figures["agents"][0]["attempts"]] == ["running", "waiting"]
    assert foreign.status_code == 400
