"""Test `m3agent plan` from the command line: table, JSON, refusals and their exit codes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from m3agent.cli.facts import print_facts
from m3agent.cli.plan import refusal
from m3agent.serving.errors import TableError
from m3agent.serving.facts.table import TABLES, raw_text
from m3agent.serving.plan.gpus import GPUS, parse_gpus
from m3agent.serving.plan.kinds import EngineKind, Precision
from m3agent.serving.plan.plan import PlanRequest
from m3agent.serving.plan.planner import plans, refusals, smallest
from tests import command_line

pytestmark = pytest.mark.integration


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return command_line.run("plan", *arguments, env=env)


def test_a_million_tokens_on_four_h200() -> None:
    done = run("--gpus", "4xH200", "--context", "1048576")
    assert (done.returncode, done.stderr) == (0, "")
    assert "vllm-nvidia-mxfp8" in done.stdout
    assert done.stdout.count("LICENSE") == 1
    assert "--max-model-len 1048576 --max-num-batched-tokens 8192" in done.stdout
    assert "--language-model-only" in done.stdout
    assert "22,656 bytes" in done.stdout


def test_json_has_all_of_it() -> None:
    done = run("--gpus", "2x4xGB200", "--context", "131072", "--concurrency", "4", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["gpus"] == "2x4xGB200"
    assert told["licence"] == "https://huggingface.co/MiniMaxAI/MiniMax-M3/blob/main/LICENSE"
    assert told["wish"]["concurrency"] == 4
    assert {plan["engine"] for plan in told["plans"]} == {"vllm", "sglang", "trtllm"}
    first = told["plans"][0]
    assert (
        first["memory"]["weights"] + first["memory"]["other"] + first["memory"]["kv"]
        == first["memory"]["allowed"]
    )


def test_facts_have_their_age_and_source() -> None:
    found = json.loads(run("--facts", "--json").stdout)
    assert {row["table"] for row in found} == set(TABLES)
    (h200,) = (row for row in found if (row["table"], row["row"]) == ("gpus", "H200"))
    assert (h200["date"], h200["source"]) == (str(GPUS["H200"].date), GPUS["H200"].source)
    remarks = [row["row"] for row in found if row["table"] == "remarks"]
    assert len(set(remarks)) == len(remarks), "a row is known by what it says"
    assert h200["values"]["on_demand"] == GPUS["H200"].on_demand
    done = run("--facts")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split("\n\n")) == len(found)


@pytest.mark.parametrize(
    ("word", "heads"),
    [("gpus", {"gpus"}), ("h100-80", {"gpus", "issues"}), ("on_demand", {"gpus"}), ("vllm#48603", None)],
)
def test_facts_of_a_table_or_with_a_word(word: str, heads: set[str] | None) -> None:
    done = run("--facts", word)
    assert (done.returncode, done.stderr) == (0, "")
    blocks = done.stdout.split("\n\n")
    assert heads is None or {block.partition(":")[0] for block in blocks} == heads
    assert all("\n  source " in block and "\n  date " in block for block in blocks)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_prices_are_shown_with_their_names_and_their_source() -> None:
    shown = run("--facts", "on_demand").stdout
    price = re.escape(str(GPUS["H200"].on_demand))
    assert re.search(rf"gpus: H200\n(?:  .*\n)*  on_demand +{price}\n  prices +\w.*\n", shown)


def test_facts_refuse_a_malformed_table(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = raw_text("models").replace("\nprompt = ", "\nprompt = -")
    monkeypatch.setattr(
        "m3agent.serving.facts.table.raw_text", lambda table: text if table == "models" else raw_text(table)
    )
    with pytest.raises(
        TableError, match=r"^serving/facts/models.toml: line \d+ \(MiniMax-M3\), field prompt: -.* is"
    ):
        print_facts("gpus", as_json=False)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "2xH200"], "cannot be served on 2xH200 with 524,288 tokens of context: take 4xH200"),
        (["--gpus", "2xB200"], "add --precision nvfp4 (nvidia/MiniMax-M3-NVFP4) or take 4xB200"),
        (["--gpus", "8xH100", "--context", "1048576", "--vision"], "lower --context to "),
        (
            ["--gpus", "8xH200", "--engine", "trtllm"],
            "no way to serve it with trtllm and these options on 8xH200",
        ),
        (["--gpus", "8xH200", "--precision", "nvfp4"], "vllm#49070"),
        (
            ["--gpus", "8xH2000"],
            "did you mean H200? For another GPU, give its memory in GB with --gpu-memory",
        ),
        (["--gpus", "1xV100"], "V100 is not a known GPU; known are H100-80, H200, "),
        (
            ["--gpus", "2xRTX4090"],
            "MI350X, MI355X. For another GPU, give its memory in GB with --gpu-memory. M3 needs at least ",
        ),
        (["--gpus", "2xRTX4090"], "nearest that fits: 2xB300 ("),
        (["--gpus", "2xRTX4090"], "or a hosted API (`m3agent fix --endpoint URL`)"),
        (["--gpus", "2xRTX4090", "--gpu-memory", "24"], "nearest that fits: 2xB300"),
        (["--gpu-memory", "24"], "give both"),
        (
            ["--gpus", "8xH200", "--agents", "4"],
            "belong together: give both (`m3agent context --stats` counts the tokens)",
        ),
        (
            ["--gpus", "8xH200", "--agents", "4", "--repository-tokens", "9", "--context", "9"],
            "leave these out",
        ),
        (["--gpus", "8xH200", "--agents", "4", "--repository-tokens", "1000000"], "give 1 to 917,504"),
        (
            ["--gpus", "8xGB200", "--agents", "4", "--repository-tokens", "9", "--engine", "trtllm"],
            "keeps them only with --precision nvfp4",
        ),
        (
            ["--gpus", "1xH200", "--agents", "4", "--repository-tokens", "9"],
            "that an agent needs: take 4xH200, enough for 4 agents",
        ),
        (
            ["--gpus", "1xH100", "--agents", "10", "--repository-tokens", "100000"],
            "take 4xB200 or 8xH20-96 or 4xB300 or 8xH20-141, enough for 10 agents",
        ),
        (
            ["--gpus", "1xH100", "--agents", "40", "--repository-tokens", "700000"],
            "`m3agent plan --gpus 8xH100-80 --agents 40 --repository-tokens 700000` says what to add",
        ),
        (["--gpus", "eight"], "write it like 8xH200"),
        (
            ["--facts", "gpuss"],
            "no row says gpuss, and there is no table gpuss; did you mean gpus? The tables are engines,",
        ),
        (["8xH200"], "not expected here: 8xH200; name GPUs with --gpus"),
        (["--gpus", "8xH200", "--context", "3000000"], "3,000,000 tokens is out of range"),
        (["--gpus", "8xH200", "--context", "1024", "--typical", "4096"], "not within the context"),
        (["--gpus", "8xH200", "--concurrency", "0"], "concurrency"),
        (["--gpus", "8xH200", "--gpu-price", "nan"], "--gpu-price"),
        (["--gpus", "8xH200", "--throughput", "inf"], "inf is neither a price nor a number"),
    ],
)
def test_impossible_options_are_wrong_use(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_refusal_as_json() -> None:
    done = run("--gpus", "2xH200", "--json")
    assert done.returncode == 2
    told = json.loads(done.stdout)
    assert told["plans"] == []
    assert {refusal["precision"] for refusal in told["refusals"]} == {"bf16", "mxfp8"}
    assert all(refusal["lacking"] > 0 for refusal in told["refusals"])


def test_this_machine(tmp_path: Path) -> None:
    def have(*gpus: str) -> None:
        program = tmp_path / "nvidia-smi"
        lines = "\n".join(f"{number}, GPU-{number}, {gpu}, 1, Disabled" for number, gpu in enumerate(gpus))
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
        program.chmod(0o755)

    path = f"{tmp_path}:/usr/bin:/bin"
    have(*["NVIDIA H200, 143771"] * 4)
    done = run(PATH=path)
    assert done.returncode == 0
    assert done.stderr == "m3agent: this machine has 4xH200\n"
    have("NVIDIA H200, 143771")
    done = run(PATH=path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot be served on 1xH200" in done.stderr
    (tmp_path / "nvidia-smi").unlink()
    done = run(PATH=path)
    assert done.returncode == 3
    assert "--gpus 8xH200" in done.stderr


def test_gpus_that_are_not_known_are_planned_by_their_memory() -> None:
    done = run("--gpus", "8xRTX PRO 7000", "--gpu-memory", "96")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1  vllm    mxfp8    8xRTX-PRO-7000  TP8 " in done.stdout
    assert "whether M3's kernels run on the RTX-PRO-7000 is unknown" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-2:] == [
        "next         m3agent plan --recipe vllm-nvidia-mxfp8",
        "             Adapt the command that it prints: `m3agent serve` has no --gpu-memory.",
    ]
    assert "other plans" not in done.stdout


def test_memory_that_is_given_for_known_gpus_is_not_lost_in_the_next_step() -> None:
    done = run("--gpus", "8xH200", "--gpu-memory", "80")
    assert "not measured:" not in done.stdout
    assert "\nnext         m3agent plan --recipe vllm-nvidia-mxfp8\n" in done.stdout


def test_the_title_says_how_many_plans_are_shown() -> None:
    title, _, rest = run("--gpus", "8xH200").stdout.partition("\n")
    assert title.endswith(": the best 8 of 9 plans (--json prints all)")
    assert "\norder        Plans that hold all sequences asked for come first." in rest
    assert "\nother plans  Give --engine, --precision, --gpus or a higher --concurrency" in rest
    assert (
        "\nwhy          better than the next plan: it uses 8 GPUs, not 4, so its cache holds 1,762,432 tokens, not 545,408\n"
        in rest
    )
    assert "\n8  vllm" in rest and "\n9  " not in rest


def test_the_next_step_asks_for_the_same_plan() -> None:
    done = run("--gpus", "8xH200", "--concurrency", "4", "--typical", "131072", "--vision", "--draft", "off")
    assert done.stdout.splitlines()[-2:] == [
        "next         m3agent serve --gpus 8xH200 --concurrency 4 --typical 131072 --draft off --vision",
        "             With --dry-run it only shows what it starts.",
    ]


def test_a_plan_for_a_team_ends_with_the_command_that_has_the_addition() -> None:
    team = ("--gpus", "8xH200", "--agents", "10", "--repository-tokens", "700000")
    done = run(*team)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == (
        "next         m3agent serve --gpus 8xH200 --context 831104 --concurrency 10 --host-cache 754"
    )
    few = run("--gpus", "8xH200", "--agents", "1", "--repository-tokens", "200000").stdout.splitlines()
    assert few[-2:] == [
        "next         m3agent serve --gpus 8xH200 --context 331136",
        "fewer GPUs   m3agent serve --gpus 4xH200 --context 331136",
    ]
    told = json.loads(run(*team, "--json").stdout)
    assert (told["gpus"], told["kept"], told["additions"][0]["name"]) == ("8xH200", 8, "--host-cache 754")


@pytest.mark.parametrize(
    ("gpus", "precision", "said"),
    [
        (
            "4xB200",
            None,
            "add --precision nvfp4 (nvidia/MiniMax-M3-NVFP4), leave out --engine (vllm serves",
        ),
        (
            "4xB200",
            None,
            " or take 2x4xB200. no way to serve it with trtllm and these options on 4xB200 is known",
        ),
        ("8xB200", None, " or take 2x4xB200. "),
        ("8xH200", None, ": leave out --engine (vllm serves it on 8xH200) or take 2x4x"),
        (
            "8xH200",
            Precision.NVFP4,
            "leave out --engine and --precision (vllm serves it on 8xH200 with mxfp8) or take 4x",
        ),
    ],
)
def test_an_engine_that_does_not_serve_these_gpus_says_what_does(
    gpus: str, precision: Precision | None, said: str
) -> None:
    fleet, wish = parse_gpus(gpus), PlanRequest(engine=EngineKind.TRTLLM, precision=precision)
    assert plans(fleet, wish) == []
    assert said in refusal(fleet, wish, refusals(fleet, wish))


def test_the_advised_gpus_are_all_used() -> None:
    wish = PlanRequest(engine=EngineKind.TRTLLM)
    enough = smallest(parse_gpus("4xB200"), wish)
    assert str(enough) == "2x4xB200"
    plan, *_ = plans(parse_gpus("2x4xB200"), wish)
    assert plan.gpus == "2x4xB200" and not any("stay unused" in warning for warning in plan.warnings)
