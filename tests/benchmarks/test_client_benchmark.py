import contextlib
import http.client
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.client import NAMES, OURS, TARGETS, child, install_mini, measure, server
from benchmarks.client_child import first_messages, module, prefix
from benchmarks.client_report import Result, Sample, Target, goals, in_bytes, ratio, table, verdicts
from benchmarks.client_server import FILE, LINES, call, tokens
from benchmarks.peers import Absent
from benchmarks.sandbox_report import number

from m3agent.serving.wire import parse
from tests.conftest import bwrap_here

MINI = NAMES["mini-query"]


def result(name: str, *cpu: float, size: int = 22_000) -> Result:
    samples = [Sample(one, 2 * one, 60_000_000) for one in cpu]
    return Result(name, size, samples, Sample(300.0, 310.0, 50_000_000))


# -- reports -------------------------------------------------------------------------------------------------------


def test_turns_are_compared_within_their_round() -> None:
    ours, theirs = result(OURS, 1.0, 2.0, 10.0), result(MINI, 20.0, 50.0, 100.0)
    assert theirs.ratio(ours) == 20.0  # the median of 20, 25 and 10; the ratio of the medians is 25
    assert result(OURS).ratio(theirs) is None


def test_one_line_compares_whole_turns_with_a_peers() -> None:
    results = [result("ours", 2.0, 3.0), result("theirs", 20.0, 30.0), Result("ours", 4_000_000, "it ended")]
    assert ratio(results, "ours", "theirs") == "CPU of ours ÷ theirs: 22 kB: 0.10, first turn 1.00"
    assert ratio(results[:1], "ours", "theirs").endswith("not measured")


def test_growth_is_of_the_last_turns_over_the_first() -> None:
    assert result(OURS, *[2.0] * 50, *[9.0] * 10, *[3.0] * 50).measured("growth") == 1.5
    assert result(OURS, *[2.0] * 99).measured("growth") is None  # the first and the last turns would overlap


@pytest.mark.parametrize(("cpu", "verdict"), [(59.9, "met"), (60.0, "MISSED")])
def test_targets(cpu: float, verdict: str) -> None:
    target = Target("client", OURS, 22_000, "median", 60)
    assert target.verdict([result(MINI, 1.0), result(OURS, cpu)]) == (cpu, verdict)


@pytest.mark.parametrize(
    "results",
    [[], [result(MINI, 1.0)], [result(OURS, 1.0, size=4_000_000)], [Result(OURS, 22_000, "it ended")]],
)
def test_a_target_without_its_numbers_is_not_met(results: list[Result]) -> None:
    assert Target("client", OURS, 22_000, "median", 60).verdict(results) == (None, "not measured")


def test_the_table_has_a_line_for_each_even_if_it_did_not_run() -> None:
    results = [result(OURS, 5.0, 7.0), result(MINI, 10.0, 14.0), Result(MINI, 4_000_000, "not installed")]
    lines = table(results, OURS).splitlines()
    assert lines[2] == f"| 22 kB | {OURS} | 6.00 | 6.80 | 6.00 | 6.00 | 300 | 12.0 | 60.0 |  |"
    assert lines[3].endswith("| 60.0 | 2.00 |")
    assert lines[4].startswith(f"| 4 MB | {MINI} | not installed |")
    assert verdicts(results, TARGETS).splitlines()[-1] == f"| {TARGETS[-1].text} | {number(6.0)} | met |"


def test_the_goals_stand_in_one_line() -> None:
    wanted = [
        Target("client, 22 kB", OURS, 22_000, "median", 7),
        Target("client, 4 MB", OURS, 4_000_000, "median", 10),
    ]
    results = [result(OURS, 5.0, 7.0), result(MINI, 10.0, 14.0)]
    start = "goals: client, 22 kB 6.00 of 7 ms met; client, 4 MB of 10 ms not measured; "
    assert goals(results, wanted, OURS, MINI) == f"{start}{OURS} below {MINI}'s, the first too: MISSED"


@pytest.mark.parametrize(("size", "text"), [(22_000, "22 kB"), (4_000_000, "4 MB"), (1_500_000, "1.5 MB")])
def test_sizes(size: int, text: str) -> None:
    assert in_bytes(size) == text


# -- measurements --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 22_000, 100_001])
def test_a_prefix_has_its_size_and_is_plain_text(size: int) -> None:
    assert len(prefix(size).encode()) == size
    assert parse(prefix(size), None).calls == []


def test_calls_read_what_is_there_and_never_the_same_twice_in_a_row() -> None:
    seen = []
    for turn in range(3 * LINES):
        made = json.loads(call(turn, bash=False)["function"]["arguments"])
        assert made["path"] == FILE
        lines = module().splitlines()[made["start"] - 1 : made["end"]] if turn % 500 == 0 else None
        assert lines is None or (len(lines) == 50 and 1_800 < len("\n".join(lines)) < 2_200)
        assert 1 <= made["start"] <= made["end"] <= LINES
        seen.append(made["start"])
    assert all(one != after for one, after in itertools.pairwise(seen))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server(deltas=12, pace=0) as address:
        yield address


def ask(connection: http.client.HTTPConnection, path: str, request: dict[str, Any]) -> tuple[int, bytes]:
    connection.request("POST", path, json.dumps(request), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.integration
def test_the_server_answers_as_it_is_asked_on_one_connection(url: str) -> None:
    host = url.removeprefix("http://").removesuffix("/v1")
    request: dict[str, Any] = {"messages": [{"role": "user", "content": '"stream": true, "name": "bash"'}]}
    bash = {"type": "function", "function": {"name": "bash"}}
    with contextlib.closing(http.client.HTTPConnection(host, timeout=10)) as connection:
        assert ask(connection, "/v1/models", request)[0] == 404
        status, body = ask(connection, "/v1/chat/completions", {**request, "tools": [bash]})
        whole = json.loads(body)
        status_of_stream, body = ask(connection, "/v1/chat/completions", {**request, "stream": True})
    assert (status, status_of_stream) == (200, 200)
    [choice] = whole["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "bash"
    assert whole["usage"]["completion_tokens"] == 52
    events = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    assert events.pop() == b"[DONE]"
    chunks = [json.loads(event) for event in events]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert [delta["reasoning"] for delta in deltas if "reasoning" in delta] == list(tokens(12))
    [made] = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert made["function"]["name"] == "file_read"
    assert chunks[-1]["usage"]["completion_tokens"] == 52
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def measured(url: str, folder: Path, kinds: list[str], turns: int) -> list[Result]:
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(child(kind, sys.executable, url, 5_000, folder / kind)) for kind in kinds
        ]
        return measure(children, turns)


@pytest.mark.slow  # quick: the other tests of this module
@pytest.mark.linux
@pytest.mark.integration
def test_each_takes_a_turn_in_every_round(url: str, tmp_path: Path) -> None:
    for found in measured(url, tmp_path, ["socket", "client"], 3):
        assert len(found.cpu()) == 3, found
        assert found.first is not None
        assert found.first.wall > 0
        assert min(found.cpu()) > 0
        assert all(5e6 < sample.peak < 5e8 for sample in found.samples if isinstance(sample, Sample))


@pytest.mark.slow  # quick: test_each_takes_a_turn_in_every_round
@pytest.mark.bwrap
def test_a_whole_turn_carries_its_call_out(url: str, tmp_path: Path) -> None:
    if not bwrap_here():
        pytest.skip("bubblewrap does not work on this machine")
    [found] = measured(url, tmp_path, ["turn"], 2)
    assert len(found.cpu()) == 2, found
    [log] = tmp_path.glob("turn/state/sessions/*/events.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    results = [event for event in events if event["type"] == "call.finished"]
    assert [event["status"] for event in results] == ["done"] * 3
    assert all("value = " in event["content"] for event in results)


@pytest.mark.linux
@pytest.mark.integration
def test_failing_contestant_is_dropped_with_its_reason(url: str, tmp_path: Path) -> None:
    absent, there = measured(
        url, tmp_path, ["mini-query", "socket"], 2
    )  # mini-swe-agent is not installed here
    assert absent.samples == "ModuleNotFoundError: No module named 'minisweagent'"
    assert len(there.cpu()) == 2


@pytest.mark.integration
def test_without_its_server_a_contestant_is_out(tmp_path: Path) -> None:
    with server(deltas=1, pace=0) as gone:
        pass
    [found] = measured(gone, tmp_path, ["socket"], 1)
    assert isinstance(found.samples, str)
    assert "ConnectionRefusedError" in found.samples


@pytest.mark.integration
def test_a_peer_that_cannot_be_installed_is_absent(tmp_path: Path) -> None:
    python = tmp_path / "mini-swe-agent" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no such package >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(Absent, match="not installed: no such package"):
        install_mini(tmp_path)


def test_the_first_messages_are_a_prompt_and_the_prefix() -> None:
    assert [message["role"] for message in first_messages(100)] == ["system", "user"]
    assert len(first_messages(100)[1]["content"]) == 100
