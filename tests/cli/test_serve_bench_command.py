"""Test `m3agent serve bench` from the command line: table, JSON, plot, comparisons and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from m3agent.agent.report.bench_plot import plot
from m3agent.agent.settings.settings import state_dir
from m3agent.cli.app import app
from m3agent.serving.bench.options import Options
from m3agent.serving.bench.result import BenchRequest, BenchResult, BenchRow, Round, from_json, to_json
from m3agent.serving.launch.record import ServerRecord, new_folder, write_record
from tests import command_line
from tests.command_line import Process
from tests.servers.paced import PacedServer

pytestmark = pytest.mark.integration

QUICK = ["--lengths", "2K", "--rounds", "1", "--output-tokens", "4", "--concurrency", "0", "--agents", "0"]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return command_line.run("serve", "bench", *arguments, env=env)


@pytest.fixture(scope="module")
def server() -> Iterator[PacedServer]:
    with PacedServer(prefill=1e-6) as running:
        yield running


def test_the_table_is_the_product_and_progress_goes_to_standard_error(server: PacedServer) -> None:
    arguments = ["--lengths", "2K,4096,512K", "--rounds", "2", "--output-tokens", "4", "--concurrency", "1,2"]
    done = run("--endpoint", server.url, *arguments, "--agents", "3", "--shared-prefix", "2K")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        *(
            "TOKENS",
            "AT",
            "ONCE",
            "TTFT",
            "s",
            "TPOT",
            "ms",
            "ITL",
            "ms",
            "E2E",
            "s",
            "TOKENS/S",
            "CACHED",
            "FASTER",
        )
    ]
    assert [line.split()[:3:2] for line in lines[1:9]] == [
        *(["cold", "1"], ["cold", "1"], ["cached", "1"], ["cached", "1"]),
        *(["first", "1"], ["sharing", "2"], ["streams", "1"], ["streams", "2"]),
    ]
    assert lines[9:] == [
        "TTFT, TPOT, ITL and E2E: mean / median / P99",
        "left out: 524,288 tokens: the server's window of 100,000 must also hold the answer and a further turn",
    ]
    told = done.stderr.splitlines()
    assert told[0] == f"m3agent: measuring minimax-m3 at {server.url}"
    assert told[1].endswith("warming up")
    assert sum(", round 2 of 2; about " in line for line in told) == 5


def test_json_file_and_plot_have_the_same_figures(server: PacedServer, tmp_path: Path) -> None:
    kept, drawn = tmp_path / "bench.json", tmp_path / "bench.svg"
    done = run("--endpoint", server.url, *QUICK, "--json", "-o", str(kept), "--plot", str(drawn))
    assert done.returncode == 0, done.stderr
    assert done.stdout == kept.read_text()
    result = from_json(kept.read_text())
    assert (result.ended, result.kv_tokens) == ("finished", 38_902 * 128)
    told = json.loads(done.stdout)
    assert [row["kind"] for row in told["rows"]] == ["cold", "cached"]
    assert told["rows"][1]["cached_share"] > 0.8
    assert told["rows"][0]["ttft"]["median"] == told["rows"][0]["rounds"][0]["requests"][0]["ttft"]
    assert ElementTree.fromstring(drawn.read_text()).tag.endswith("svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.svg"]


def test_a_slower_server_than_before_is_named_and_ends_with_one(server: PacedServer, tmp_path: Path) -> None:
    kept, faster = tmp_path / "bench.json", tmp_path / "faster.json"
    assert run("--endpoint", server.url, *QUICK, "-o", str(kept)).returncode == 0
    before = from_json(kept.read_text())
    faster.write_text(to_json(quicker(before, "cold", 1e5)))
    done = run("--endpoint", server.url, *QUICK, "--baseline", str(faster), "--threshold", "50000")
    assert done.returncode == 1
    worse = [line for line in done.stdout.splitlines() if line.endswith("worse")]
    assert [line.split("  ")[0] for line in worse] == [
        f"cold, 2,048 tokens: {name}" for name in ("TTFT", "TPOT", "E2E")
    ]
    slower = tmp_path / "slower.json"
    slower.write_text(to_json(quicker(quicker(before, "cold", 1e-3), "cached", 1e-3)))
    done = run("--endpoint", server.url, *QUICK, "--baseline", str(slower))
    assert (done.returncode, "worse" in done.stdout) == (0, False)


def quicker(result: BenchResult, kind: str, times: float) -> BenchResult:
    """Return the result with every time in rows of one kind divided by `times`."""

    def divided(request: BenchRequest) -> BenchRequest:
        assert request.ttft is not None and request.e2e is not None
        return replace(request, ttft=request.ttft / times, e2e=request.e2e / times)

    rows = [
        replace(
            row, rounds=tuple(Round(tuple(map(divided, one.requests)), one.seconds) for one in row.rounds)
        )
        if row.kind == kind
        else row
        for row in result.rows
    ]
    return replace(result, rows=tuple(rows))


@pytest.fixture(scope="module")
def planned() -> dict[str, Any]:
    """Return the output of `m3agent plan --json` for four H200."""
    words = ["plan", "--gpus", "4xH200", "--precision", "mxfp8", "--context", "131072", "--json"]
    done = command_line.run(*words)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def hold_against_plan(table: str, planned: dict[str, Any]) -> None:
    room, speed = table.splitlines()[-2:]
    assert room.split() == [
        "KV",
        "cache",
        "capacity",
        "tokens",
        f"{planned['kv_tokens']:,}",
        "4,979,456",
        *room.split()[6:],
    ]
    assert float(room.split()[6]) == round(4_979_456 / planned["kv_tokens"], 2)
    assert speed.startswith("decode speed of one stream at 2,048 tokens  tokens/s  109")


def test_server_is_compared_with_the_plan(
    server: PacedServer, planned: dict[str, Any], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(planned))
    done = run("--endpoint", server.url, *QUICK, "--plan", str(plan))
    assert done.returncode == 0, done.stderr
    hold_against_plan(done.stdout, planned["plans"][0])


def test_server_started_by_m3agent_is_compared_with_its_plan(
    server: PacedServer, planned: dict[str, Any]
) -> None:
    plan = planned["plans"][0]
    record = ServerRecord(url=server.url, engine="vllm", pid=os.getpid(), plan=plan)
    write_record(new_folder(state_dir(os.environ)), record)
    done = run(*QUICK)
    assert done.returncode == 0, done.stderr
    assert f"at {server.url}" in done.stderr
    hold_against_plan(done.stdout, plan)


def test_a_configured_server_comes_before_a_running_one(server: PacedServer) -> None:
    folder = new_folder(state_dir(os.environ))
    write_record(folder, ServerRecord(url="http://127.0.0.1:9/v1", engine="vllm", pid=os.getpid()))
    done = run(*QUICK, M3AGENT_ENDPOINT=server.url)
    assert done.returncode == 0, done.stderr
    assert f"at {server.url}" in done.stderr


def test_the_key_is_sent(server: PacedServer) -> None:
    done = run("--endpoint", server.url, *QUICK, M3AGENT_API_KEY="sesame")
    assert done.returncode == 0
    assert server.requests[-1].headers["authorization"] == "Bearer sesame"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "no server is running here: start one with `m3agent serve`, or name one with --endpoint"),
        (["--endpoint", "http://127.0.0.1:9"], 4, "No answer from a model server at 127.0.0.1:9"),
        (
            ["--lengths", "8K,x"],
            2,
            "--lengths takes numbers like 8192 or 8K, separated by commas; 'x' is not one",
        ),
        (["--lengths", "1K"], 2, "a prompt of 1,024 tokens is too short to measure: 2,048 at least"),
        (["--baseline", "nowhere.json"], 2, "--baseline nowhere.json: no such file or directory"),
        (["--baseline", "/etc/hostname"], 2, "--baseline /etc/hostname: this is not"),
        (["--plan", "/etc/hostname"], 2, "--plan /etc/hostname: this is not a plan"),
        (["-o", "/nowhere/x.json"], 2, "there is no folder /nowhere"),
        (["--request-timeout", "0"], 2, "a limit of time is a number of seconds above zero"),
    ],
)
def test_wrong_use_is_reported_in_one_sentence(arguments: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(app, ["serve", "bench", *arguments])
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_embedded_engine_is_refused() -> None:
    with PacedServer(owner="m3agent") as embedded:
        done = run("--endpoint", embedded.url, *QUICK)
        assert embedded.bodies == []
    assert (done.returncode, done.stdout) == (2, "")
    assert "is the embedded engine, whose tokens a second are not worth measuring" in done.stderr


def served(**options: Any) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.servers.paced", json.dumps(options)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def test_a_server_that_dies_leaves_json_and_exit_code_four(tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    with served(prefill=0, dies_after=5) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        done = run("--endpoint", url, *QUICK, "--rounds", "3", "-o", str(kept))
    assert done.returncode == 4
    assert "m3agent: " in done.stderr
    assert "the server had died" in done.stdout
    result = from_json(kept.read_text())
    assert result.ended == "died"
    assert [len(row.requests) for row in result.rows] == [1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_keeps_the_measurements_so_far(tmp_path: Path, number: signal.Signals) -> None:
    kept = tmp_path / "bench.json"
    with PacedServer(prefill=0, decode=0.02) as slow:
        arguments = ["--endpoint", slow.url, *QUICK, "--rounds", "50", "-o", str(kept)]
        with Process("serve", "bench", *arguments) as process:
            next(line for line in process.stderr if b"round 2 of 50" in line)
            process.send_signal(number)
            table, said = process.stdout.read().decode(), process.stderr.read().decode()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert table.splitlines()[1].startswith("cold")
    result = from_json(kept.read_text())
    assert result.ended == "interrupted"
    assert 1 <= len(result.rows[0].rounds) < 50


def test_a_bench_that_is_killed_leaves_the_json_of_what_was_measured(tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    with PacedServer(prefill=0, decode=0.02) as slow:
        arguments = ["--endpoint", slow.url, *QUICK, "--rounds", "50", "-o", str(kept)]
        with Process("serve", "bench", *arguments, stdout=subprocess.DEVNULL) as process:
            next(line for line in process.stderr if b"round 3 of 50" in line)
            process.kill()
    result = from_json(kept.read_text())
    assert result.ended == "running"
    assert len(result.rows[0].rounds) >= 2


def test_the_plot_has_a_point_for_each_figure_and_says_what_there_is_not() -> None:
    request = BenchRequest(8192, 0, 11, 0.139, 0.2)
    rows = [BenchRow("cold", tokens, 1, 11, (Round((request,), 1.0),)) for tokens in (8192, 1_000_000)]
    empty = BenchResult("http://x", "<m3>", "vllm", None, None, None, "now", 1.0, Options())
    drawn = plot(replace(empty, rows=tuple(rows)))
    assert len(points(drawn)) == 2
    assert drawn.count("not measured") == 1
    assert "&lt;m3&gt;" in drawn
    assert plot(empty).count("not measured") == 2
    streams = [BenchRow("streams", 4096, count, 11, (Round((request,), 1.0),)) for count in (1, 2, 4)]
    assert len(points(plot(replace(empty, rows=tuple(streams))))) == 3


def points(drawn: str) -> list[ElementTree.Element]:
    return [element for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith("circle")]
