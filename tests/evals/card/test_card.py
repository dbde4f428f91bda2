"""A card of scripted agents at small programs, behind a real server: every figure against what the scripts do."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from m3agent.cli.eval.card import _card
from m3agent.evals.card.config import Adapter, Budget, CardConfig, Server
from m3agent.evals.card.model import CardReport, report_on
from m3agent.evals.card.page import as_json, render, watched
from m3agent.evals.card.run import agents_of, make_card, open_runs, read_card, turns
from m3agent.evals.data.instance import Instance, Task
from m3agent.evals.data.results import Grade, TestCount, Verdict
from m3agent.evals.run.counting_proxy import CountingProxy, Guard
from m3agent.evals.run.parts import AttemptParts
from m3agent.serving.client.prices import Prices
from m3agent.serving.embedded.http_app import served
from m3agent.util.errors import EnvironmentFault, UsageError
from tests.evals.small import checkout, instance, no_image, write_programs
from tests.servers.misbehaving import MisbehavingServer, Reply, Stream, delta, finish
from tests.servers.ports import free_ports

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
elif kind == "sometimes" and os.path.exists("adder.py") and open(os.environ["HOME"] + "/conf").read() == "m 1":
    open("adder.py", "w").write("def add(a, b):\\n    return a + b\\n")
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
    return Adapter(name=kind, command=command, files={"conf": "{model} {seed}"})


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
        self.invalid: dict[str, str] = {}
        self.flaky: dict[str, tuple[str, ...]] = {}
        self.leaks: tuple[str, ...] = ()
        self.agents = agents_of(self.adapters, self.config, Prices(prompt=1.0, completion=1.0), KEY)

    def make(self) -> CardReport:
        folders = open_runs(self.output, self.config, self.adapters, self.instances, "digest", self.flaky)
        make_card(folders, self.instances, self._parts, print, run, 2)
        return report_on(folders)

    def _parts(self, name: str, say: Any) -> AttemptParts:
        async def search(image: str, task: Task, code: Path) -> tuple[str, ...]:
            assert (code / f"{task.instance_id}.py").exists()
            return self.leaks

        limits = {"environment": 60.0, "tests": 60.0}
        return AttemptParts(checkout, no_image, grade, self.agents[name], limits, self.invalid, search)


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


def test_the_page_names_what_a_validation_left_out(tmp_path: Path, server: MisbehavingServer) -> None:
    made = Made(tmp_path, server, ["right", "wrong"])
    made.invalid = {"adder": "1 of the tests to fix are flaky, such as test_adder.py::test_add"}
    made.flaky = {"largest": ("test_largest.py::test_sometimes",), "another": ("test",)}
    made.make()
    card = _card(made.output)
    assert [agent.report.score.resolved for agent in card.agents] == [1, 0]
    assert [agent.blame for agent in card.agents] == [{}, {"agent": 1}]
    assert (card.left_out, list(card.flaky)) == (made.invalid, ["largest"])
    page = render(card)
    assert "1 instance of 2 cannot be graded" in page
    assert made.invalid["adder"] in page
    assert "without 1 flaky test: test_largest.py::test_sometimes" in page


def test_the_page_names_the_leaks_of_an_image(tmp_path: Path, server: MisbehavingServer) -> None:
    made = Made(tmp_path, server, ["idle"])
    made.leaks = ("/testbed/.git: later commits <b>",)
    card = made.make()
    assert (card.agents[0].leaks, card.leaks) == (2, dict.fromkeys(["adder", "largest"], made.leaks))
    assert render(card).count("/testbed/.git: later commits &lt;b&gt;") == 2


def test_a_budget_ends_an_attempt_for_each_agent_alike(tmp_path: Path, server: MisbehavingServer) -> None:
    card = Made(tmp_path, server, ["greedy"], tokens=300).make()
    [greedy] = card.agents
    assert (greedy.traffic["requests"], greedy.traffic["refused"]) == (6, 4)
    assert greedy.blame == {"budget": 2}


def test_a_model_that_never_answers_is_to_blame(tmp_path: Path, server: MisbehavingServer) -> None:
    server.answers = [Reply(500, {"error": {"message": "broken"}})]
    [idle] = Made(tmp_path, server, ["idle"]).make().agents
    assert (idle.blame, idle.traffic["failed"]) == ({"model": 2}, 2)


def test_a_server_that_dies_costs_no_agent_an_attempt(tmp_path: Path, server: MisbehavingServer) -> None:
    made = Made(tmp_path, server, ["right"])
    gone = Server(endpoint=f"http://127.0.0.1:{free_ports(1)[0]}/v1", model="m")
    alive = made.agents
    made.agents = agents_of(made.adapters, made.config.model_copy(update={"server": gone}), None, KEY)
    card = made.make()
    [right] = card.agents
    assert {attempt.verdict for attempt in right.attempts} == {Verdict.INFRA}
    assert "the model server does not answer" in right.attempts[0].reason
    assert (card.missing, right.blame) == (2, {"model": 2})
    made.agents = alive
    card = made.make()
    [right] = card.agents
    assert (card.missing, right.report.score.resolved) == (0, 2)
    assert (right.traffic["requests"], right.traffic["failed"]) == (4, 0)


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


def test_a_card_that_cannot_be_written_says_so(tmp_path: Path, server: MisbehavingServer) -> None:
    made = Made(tmp_path, server, ["idle"])
    (made.output / "card.json").mkdir(parents=True)
    with pytest.raises(EnvironmentFault, match=r"card\.json cannot be written \(.*make room"):
        made.make()


def test_a_card_with_another_file_of_an_agent_is_another_card(
    tmp_path: Path, server: MisbehavingServer
) -> None:
    made = Made(tmp_path, server, ["idle"])
    made.make()
    made.adapters = [made.adapters[0].model_copy(update={"files": {"conf": "other"}})]
    with pytest.raises(UsageError, match="settings: files and variables"):
        made.make()


def test_each_attempt_has_a_seed_of_its_own(tmp_path: Path, server: MisbehavingServer) -> None:
    made = Made(tmp_path, server, ["wrong"])
    seeded = made.adapters[0].model_copy(update={"files": {"conf": "seed {seed}"}})
    made.config = made.config.model_copy(update={"attempts": 2, "seed": 7})
    made.agents = agents_of([seeded], made.config, None, KEY)
    made.make()
    notes = [(made.output / f"runs/wrong/attempts/adder/{n}/patch.diff").read_text() for n in (1, 2)]
    assert ["seed 7" in notes[0], "seed 8" in notes[1]] == [True, True]


@pytest.mark.slow  # quick: test_every_figure_is_what_the_agents_did
def test_the_figures_of_several_attempts_are_those_worked_out_by_hand(
    tmp_path: Path, server: MisbehavingServer
) -> None:
    made = Made(tmp_path, server, ["right", "sometimes"])
    made.config = made.config.model_copy(update={"attempts": 2})
    card = made.make()
    # rates by instance: 1 and 1; 1/2 and 0. Each instance is a repository here
    right, sometimes = card.agents
    assert [right.report.score.resolved, sometimes.report.score.resolved] == [4, 1]
    page = render(card)
    # Wilson's interval of 1/4 with n = 2: (0.25 + z²/4 ± z √(0.1875/2 + z²/16)) / (1 + z²/2)
    assert "2.7% to 80.2%" in page
    # differences 1/2 and 1: mean 3/4, error 1/4, t = 3 with 1 degree of freedom, p = 1 - 2 atan(3) / π
    [pair] = card.pairs
    assert pair.paired is not None and pair.paired.p == pytest.approx(1 - 2 * math.atan(3) / math.pi)
    assert "+75.0 points" in page and "-100.0 to +100.0" in page and "p = 0.2<" in page


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
