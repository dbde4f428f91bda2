"""Test `m3agent serve` from start to end: real processes, with a stand-in for vLLM where it would need GPUs."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from m3agent.cli.help import EXAMPLES
from m3agent.serving.launch.record import LOG, Phase, ServerRecord, live_servers
from m3agent.serving.launch.server_set import how_to_start
from m3agent.serving.plan.gpus import parse_gpus
from m3agent.serving.plan.kinds import DraftUse
from m3agent.serving.plan.plan import PlanRequest
from m3agent.serving.plan.planner import plans
from tests import command_line
from tests.command_line import Process, run
from tests.conftest import later, python_program
from tests.servers.ports import free_ports
from tests.serving.launch.test_checkpoint import folder_of, with_text

pytestmark = [pytest.mark.integration, pytest.mark.linux]

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "serving" / "launch" / "logs"
PATIENCE = 60.0
SMI = """#!/bin/sh
used=0
for pid in $(ls "$GPU"); do kill -0 "$pid" 2>/dev/null && used=$((used + 1)); done
for number in $(seq 0 $((${GPUS:-1} - 1))); do
  case ",${CUDA_VISIBLE_DEVICES:-$number}," in *) echo "$number, GPU-$number, NVIDIA H200, 143771, $((4 + 60000 * used)), Disabled" ;; esac
done
"""


def wait_for(condition: Callable[[], object], process: Process | None = None) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not come to be"
        assert process is None or process.poll() is None, "it ended meanwhile"
        time.sleep(0.05)


class Machine:
    """A machine that reports one or more H200, with `vllm` on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.gpu = folder / "gpu"
        self.bin = folder / "bin"
        for made in (self.gpu, self.bin):
            made.mkdir()
        self.program("nvidia-smi", SMI)
        script = ROOT / "tests" / "servers" / "vllm_program.py"
        words = shlex.join([f"PYTHONPATH={ROOT}", sys.executable, str(script)])
        self.program("vllm", f'#!/bin/sh\nexec env {words} "$@"\n')
        self.model = folder_of(
            folder,
            with_text(moe_layer_freq=[0, 1], sparse_attention_config={"sparse_attention_freq": [0, 1]}),
        )
        [self.port] = free_ports(1)
        self.play: dict[str, Any] = {"log": str(LOGS / "vllm-good-run.log")}
        self.processes: list[Process] = []

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def env(self, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "M3AGENT_STATE": str(self.state),
            "GPU": str(self.gpu),
            "PLAY": json.dumps(self.play),
            "NO_COLOR": "1",
            **more,
        }

    def words(self, *arguments: str) -> list[str]:
        given = ["--model", str(self.model), "--context", "131072", "--port", str(self.port)]
        return ["serve", *given, *arguments, "--", "--load-format", "dummy"]

    def start(self, *arguments: str, **env: str) -> Process:
        return self.started(*self.words(*arguments), **env)

    def started(self, *arguments: str, **env: str) -> Process:
        process = Process(*arguments, env=self.env(**env))
        self.processes.append(process)
        return process

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return command_line.run(*arguments, env=self.env(**env), timeout=PATIENCE)

    def serve(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Start a server and wait until it ends by itself."""
        return self.run(*self.words(*arguments), **env)

    def record(self) -> ServerRecord | None:
        return next((record for _, record in live_servers(self.state)), None)

    def ready(self, process: Process, restarts: int = 0) -> ServerRecord:
        def now() -> bool:
            record = self.record()
            return record is not None and record.phase is Phase.READY and record.restarts == restarts

        wait_for(now, process)
        record = self.record()
        assert record is not None
        return record

    def folder_of_server(self) -> Path:
        return live_servers(self.state)[0][0]

    def engine(self) -> int:
        return int((self.folder_of_server() / "engine.pid").read_text())

    def holders(self) -> list[int]:
        """Return the processes that hold the GPU's memory."""
        for file in self.gpu.iterdir():
            try:
                os.kill(int(file.name), 0)
            except ProcessLookupError:
                file.unlink()
        return [int(file.name) for file in self.gpu.iterdir()]


def errors_of(process: Process) -> str:
    """Return what the process writes to standard error until it ends."""
    return process.communicate(timeout=PATIENCE)[1].decode()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for process in made.processes:
        with process:
            process.kill()
    wait_for(lambda: not made.holders())


def test_a_server_from_start_to_end(machine: Machine) -> None:
    machine.play["tokenizer_seconds"] = 3.0
    process = machine.start(M3AGENT_API_KEY="hosted", HF_TOKEN="mine")
    record = machine.ready(process)
    assert record.url == f"http://127.0.0.1:{machine.port}/v1"
    assert (record.engine, record.model, record.max_model_len) == ("vllm", "minimax-m3", 131_072)
    assert [check["name"] for check in record.checks if check["ok"] is False] == ["tokenizer"]
    assert record.wire_ok, "slow is not wrong"
    assert (record.model_ok, record.random_weights) == (True, True)
    assert (record.gpus, record.devices) == ("1xH200", ("0",))
    assert record.kv_tokens == 4_979_456, "as its log says"
    assert record.plan is not None and record.plan["tp"] == 1
    environment = json.loads((machine.folder_of_server() / "environment.json").read_text())
    assert environment["VLLM_USE_FASTOKENS"] == "1"
    assert environment["HF_TOKEN"] == "mine"
    assert "M3AGENT_API_KEY" not in environment, "the engine needs no key of another server"
    assert "VLLM_API_KEY" not in environment
    assert machine.holders()

    status = machine.run("serve", "status")
    assert status.returncode == 0
    assert "ready" in status.stdout and "4,979,456" in status.stdout
    (told,) = json.loads(machine.run("serve", "status", "--json").stdout)
    assert told["url"] == record.url
    assert "GPU KV cache size" in machine.run("serve", "logs", "-n", "200").stdout
    assert f"the m3agent server at {record.url} (ready)" in machine.run("doctor").stdout
    assert machine.run("serve", "logs", "-n", "1").stdout.count("\n") == 1

    stop = machine.run("serve", "stop")
    assert stop.returncode == 0
    assert "the memory of GPU 0 is free" in stop.stderr
    said = errors_of(process)
    assert process.returncode == 130
    assert not machine.holders()
    for words in ("loading weights", "cache for 4,979,456 tokens", "ok ", "ready ", "its weights are random"):
        assert words in said, said
    assert machine.run("serve", "status").returncode == 4
    assert "GPU KV cache size" in machine.run("serve", "logs", "-n", "200").stdout, "the log stays"


@pytest.mark.slow  # quick: test_endpoint_choice.py
def test_fix_finds_it_with_its_key(machine: Machine, tmp_path: Path) -> None:
    machine.play["mind"] = "random"
    record = machine.ready(machine.start("--host", "0.0.0.0"))
    assert record.model_ok is False
    key = (machine.folder_of_server() / "key").read_text()
    assert (machine.folder_of_server() / "key").stat().st_mode & 0o777 == 0o600
    assert key not in " ".join(Path(f"/proc/{machine.engine()}/cmdline").read_text().split("\0"))
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a.py").write_text("x = 1\n")
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    done = machine.run(
        "fix", "x should be 2", "--repo", str(repo), "--max-turns", "1", "--environment", "off", "--json"
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (started,) = [event for event in events if event["type"] == "session.started"]
    assert f"127.0.0.1:{machine.port}" in json.dumps(started["endpoint"])
    assert "random weights" in json.dumps(started["endpoint"])
    assert any(event["type"] == "endpoint.probed" for event in events), done.stderr
    assert any(event["type"] == "turn.finished" for event in events), done.stderr


@pytest.mark.slow  # quick: test_nothing_is_left_when_serve_itself_is_killed
@pytest.mark.parametrize("victim", [later("first process"), "engine core"])
def test_it_is_started_again_when_it_was_killed(machine: Machine, victim: str) -> None:
    machine.play["last words"] = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    process = machine.start()
    before = machine.ready(process)
    old, cores = machine.engine(), machine.holders()
    os.kill(old if victim == "first process" else cores[0], signal.SIGKILL)
    after = machine.ready(process, restarts=1)
    assert machine.engine() != old
    assert not set(cores) & set(machine.holders()), "what the killed engine held is free"
    assert after.pid == before.pid
    assert "GPU KV cache size" in machine.run("serve", "logs", "--last", "-n", "200").stdout
    assert f"{after.url}: started again once after a crash\n" in machine.run("serve", "status").stdout
    process.send_signal(signal.SIGINT)
    said = errors_of(process)
    assert process.returncode == 130
    assert "it restarts in 1 s" in said


def test_nothing_is_left_when_serve_itself_is_killed(machine: Machine) -> None:
    process = machine.start()
    machine.ready(process)
    assert machine.holders()
    process.kill()
    process.wait()
    wait_for(lambda: not machine.holders())
    assert machine.record() is None
    assert machine.run("serve", "stop").returncode == 4


@pytest.mark.slow
def test_background_server_shows_progress_until_it_is_ready(machine: Machine) -> None:
    done = machine.serve("--detach")
    assert done.returncode == 0, done.stderr
    assert "ready " in done.stderr
    assert machine.record() is not None
    assert machine.run("serve", "stop").returncode == 0
    assert not machine.holders()


@pytest.mark.slow  # quick: test_a_server_from_start_to_end
def test_failure_of_a_background_server_is_reported(machine: Machine) -> None:
    machine.play |= {"log": str(LOGS / "vllm-memory-held-run.log"), "exit": 1}
    done = machine.serve("--detach")
    assert done.returncode == 4
    assert "m3agent: " in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("log", "said"), [("vllm-context-source", "--context"), ("hub-gated-run", "licence")]
)
def test_an_engine_that_does_not_start_is_one_sentence(machine: Machine, log: str, said: str) -> None:
    machine.play |= {"log": str(LOGS / f"{log}.log"), "exit": 1}
    done = machine.serve()
    assert done.returncode == 4
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("m3agent: ")
    assert said in last
    assert "Traceback" not in done.stderr
    assert machine.record() is None


def test_output_of_an_engine_does_not_control_the_terminal(machine: Machine) -> None:
    log = machine.folder / "hostile.log"
    log.write_text("ValueError: \x1b]0;title\x07\x1b[2Jno such luck\u202e\n")
    machine.play |= {"log": str(log), "exit": 1}
    done = machine.serve()
    assert done.returncode == 4
    assert "no such luck" in done.stderr
    assert "\x1b" not in done.stderr and "\x07" not in done.stderr and "\u202e" not in done.stderr


@pytest.mark.slow  # quick: test_failure_of_a_background_server_is_reported
def test_failed_wire_check_is_recorded_and_shown(machine: Machine) -> None:
    machine.play["faults"] = ["empty"]
    record = machine.ready(machine.start())
    assert record.wire_ok is False
    assert [check["name"] for check in record.checks if check["ok"] is False]
    status = machine.run("serve", "status").stdout
    assert f"{record.url}: no thinking failed: " in status
    assert machine.run("serve", "check").returncode == 4


def test_a_taken_port_is_refused_with_one_that_is_free(machine: Machine) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", machine.port))
        other.listen()
        done = machine.serve()
    assert done.returncode == 3
    assert f"cannot listen on 127.0.0.1:{machine.port}: Address already in use; take another" in done.stderr


@pytest.mark.slow  # quick: test_what_cannot_be_served_is_refused
def test_a_second_server_takes_the_other_gpus_or_is_refused(machine: Machine) -> None:
    process = machine.start("--gpus", "1xH200", GPUS="2")
    first = machine.ready(process)
    assert first.devices == ("0",)
    environment = json.loads((machine.folder_of_server() / "environment.json").read_text())
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["CUDA_DEVICE_ORDER"]) == ("0", "PCI_BUS_ID")
    refused = machine.serve("--port", str(free_ports(1)[0]))
    assert refused.returncode == 4
    assert (
        f"GPU 0 is in use by an m3agent server (vllm at {first.url}, ready, process {process.pid})"
        in refused.stderr
    )


def test_missing_parts_are_reported_before_the_start(machine: Machine) -> None:
    (machine.bin / "vllm").unlink()
    done = machine.serve(PATH=f"{machine.bin}:/usr/bin:/bin")
    assert done.returncode == 3
    assert "vllm is not installed here" in done.stderr
    done = machine.run("serve", "--model", str(machine.model))
    assert done.returncode == 2
    assert "has no weights" in done.stderr
    assert not list((machine.state / "servers").glob("*/" + LOG))


NAMED = "MiniMaxAI/MiniMax-M3-MXFP8"


def test_weights_that_are_not_here_are_not_downloaded_unasked(machine: Machine) -> None:
    words = ("serve", "--model", NAMED, "--context", "131072", "--port", str(machine.port))
    done = machine.run(*words, GPUS="8", HF_HOME=str(machine.folder), HF_HUB_OFFLINE="")
    assert done.returncode == 3
    assert (
        f"{NAMED} (about 444 GB) is not complete on this machine: get it with `m3agent serve fetch {NAMED}`"
        in done.stderr
    )
    recipe = machine.run(
        *("serve", "--recipe", "vllm-nvidia-mxfp8", "--port", str(machine.port)),
        GPUS="8",
        HF_HOME=str(machine.folder),
        HF_HUB_OFFLINE="",
    )
    assert recipe.returncode == 3, recipe.stderr
    assert "m3agent serve fetch" in recipe.stderr
    assert not list((machine.state / "servers").glob("*/" + LOG))


def test_with_the_weights_in_the_cache_the_engine_needs_no_network(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    store = machine.folder / "hub" / f"models--{NAMED.replace('/', '--')}"
    snapshot = store / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes((machine.model / "config.json").read_bytes())
    (snapshot / "model.safetensors").touch()
    (store / "refs").mkdir()
    (store / "refs" / "main").write_text("abc")
    words = ("serve", "--model", NAMED, "--context", "131072", "--port", str(machine.port))
    process = machine.started(*words, HF_HOME=str(machine.folder))
    record = machine.ready(process)
    assert record.checkpoint == str(snapshot)
    assert json.loads((machine.folder_of_server() / "environment.json").read_text())["HF_HUB_OFFLINE"] == "1"
    process.send_signal(signal.SIGINT)
    assert f"weights of {NAMED}: commit abc, in {snapshot}" in errors_of(process)


def distribution(site: Path, name: str, version: str) -> None:
    """Install a package that has nothing but a name and a version."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({"vllm": "0.24.0", "fastokens": "0.1"}, "pip install 'fastokens>=0.3.2'"),
        later({"vllm": "0.26.0"}, "vllm 0.26.0 is installed: vLLM 0.25 and 0.26 read the chosen blocks"),
    ],
)
def test_versions_that_must_not_serve_m3_are_refused_before_the_start(
    machine: Machine, tmp_path: Path, installed: dict[str, str], said: str
) -> None:
    for name, version in installed.items():
        distribution(tmp_path / "site", name, version)
    machine.program("vllm", python_program("raise SystemExit('started')\n"))
    done = machine.serve(PYTHONPATH=str(tmp_path / "site"))
    assert (done.returncode, said in done.stderr, "started" in done.stderr) == (3, True, False)


def test_without_a_gpu_the_embedded_engine_is_served_or_what_was_asked_is_refused(machine: Machine) -> None:
    (machine.bin / "nvidia-smi").unlink()
    path = f"{machine.bin}:/usr/bin:/bin"
    assert machine.serve(PATH=path).returncode == 3
    process = machine.started("serve", "--port", str(machine.port), PATH=path)
    record = machine.ready(process)
    assert record.engine == "embedded"
    assert machine.run("serve", "stop").returncode == 0
    assert process.wait(PATIENCE) == 130
    assert (
        f"serving the embedded engine, a search for small repairs and not M3, at {record.url}; "
        "`m3agent fix ISSUE` in a repository then finds it (`m3agent serve stop` "
    ) in process.stderr.read().decode()
    done = machine.run("serve", "logs")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        "m3agent: there is no log: no server that writes one was started here with `m3agent serve`\n"
    )


def test_named_gpus_that_this_machine_lacks_are_named_again(machine: Machine) -> None:
    (machine.bin / "nvidia-smi").unlink()
    done = run("serve", "--gpus", "8xH200", env=machine.env(PATH=f"{machine.bin}:/usr/bin:/bin"))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("m3agent: this machine cannot serve on 8xH200: neither nvidia-smi nor")


@pytest.mark.parametrize("named", [later(False), True])
def test_a_dry_run_without_a_gpu_says_what_would_be_served(machine: Machine, named: bool) -> None:
    """The dry run starts nothing and ends; the command that it prints serves at the printed address."""
    (machine.bin / "nvidia-smi").unlink()
    env = machine.env(PATH=f"{machine.bin}:/usr/bin:/bin")
    words = ["serve", "--port", str(machine.port), "--dry-run", "--detach"]
    words += ["--engine", "embedded", "--seed", "7", "--candidates", "9"] if named else []
    done = run(*words, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    *notes, command = done.stdout.splitlines()
    assert all(note.startswith("# ") for note in notes)
    said = "\n".join(notes)
    assert "engine embedded" in said and "next: " in said
    assert ("--engine names it" if named else "no GPU was found here") in said
    assert command.endswith(" --seed 7 --candidates 9") == named
    assert not list(machine.state.glob("servers/*"))

    program_name, *rest = shlex.split(command)
    assert program_name == "m3agent"
    process = Process(*rest, env=env)
    machine.processes.append(process)
    assert f"address: {machine.ready(process).url}," in said
    assert machine.run("serve", "stop").returncode == 0


def test_a_dry_run_of_a_recipe_says_how_many_gpus_it_is_for(machine: Machine) -> None:
    done = machine.run("serve", "--recipe", "vllm-nvidia-tp8", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "# GPUs         8\n" in done.stdout


def test_the_example_of_an_engines_option_is_accepted(machine: Machine) -> None:
    [example] = [words for words, _ in EXAMPLES["m3agent serve"] if " -- " in words]
    done = machine.run("serve", "--gpus", "8xH200", "--dry-run", "--", *example.partition(" -- ")[2].split())
    assert done.returncode == 0, done.stderr


def test_a_dry_run_prints_what_a_shell_takes_and_starts_nothing(machine: Machine) -> None:
    done = machine.run("serve", "--gpus", "4xH200", "--context", "1048576", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "# why " in done.stdout
    assert "\n# next         leave out --dry-run " in done.stdout
    command = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("#"))
    shown = subprocess.run(
        ["/bin/sh", "-c", f"vllm() {{ printf '%s\\n' \"$@\"; }}; {command}"],
        capture_output=True,
        text=True,
        check=True,
    )
    words = shown.stdout.splitlines()
    assert words[:2] == ["serve", "MiniMaxAI/MiniMax-M3-MXFP8"]
    assert '{"text_config":{"max_position_embeddings":1048576}}' in words
    several = machine.run("serve", "--gpus", "2x8xH100", "--context", "1048576", "--dry-run").stdout
    assert "--node-rank 0" in several and "--node-rank 1" in several and "--headless" in several
    assert not machine.state.exists() or not list(machine.state.glob("servers/*"))


DRAFTS = "--gpus 8xH200 --dry-run"
SERVERS = "--servers 2 --gpus 8xH200"
NODES = "--gpus 2x8xH100 --context 1048576"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--engine embedded --host 0.0.0.0 --dry-run", 2, "not a loopback address"),
        ("--gpus 2xH200 --dry-run", 2, "cannot be served on 2xH200"),
        (f"{DRAFTS} --draft on --engine sglang", 2, "text repeats"),
        (f"{DRAFTS} --draft on --recipe vllm-nvidia-tp8", 2, "--draft on is for a plan"),
        (f"{DRAFTS} --host-cache 400 --recipe vllm-nvidia-tp8", 2, "--host-cache is for a plan"),
        (f"{DRAFTS} --draft-model /nowhere", 2, "/nowhere does not exist"),
        (f"{DRAFTS} -- --speculative-config '{{\"method\":\"minimax_m3_mtp\"}}'", 2, "no layers for multi-token"),
        (f"{DRAFTS} -- --hf-overrides '{{\"text_config\":{{\"index_topk_freq\":4}}}}'", 2, "share their choice of blocks"),
        (f"{DRAFTS} -- --hf-overrides.use_index_cache true", 2, "share their choice of blocks"),
        (SERVERS, 2, "--dry-run prints their scripts, --write FOLDER writes them"),
        (f"{SERVERS} --dry-run --slurm", 2, "leave out --recipe, --container, --slurm"),
        (f"{SERVERS} --dry-run --engine sglang", 2, "--servers is for vLLM"),
        (f"{SERVERS} --dry-run --concurrency 40 --typical 60000", 2, "name more servers with fewer GPUs each"),
        (f"{SERVERS} --write .", 2, "name a new folder"),
        ("--servers 2 --gpus 4xH200 --dry-run", 2, "so each has 2xH200; for each server: M3 cannot be served on 2xH200"),
        ("--servers 3 --gpus 8xH200 --dry-run", 2, "8 GPUs cannot be divided evenly among 3 servers"),
        ("--servers 10 --gpus 40xH200 --dry-run", 2, "5x8xH200 are 5 machines, and a number of servers is for one machine"),
        ("--servers a,b --gpus 2xH200 --dry-run", 2, "m3agent: M3 cannot be served on 2xH200"),
        (NODES, 2, "start it under Slurm with --slurm, or on each node with --node-rank 0 to 1"),
        (f"{NODES} --node-rank 0 --master 10.0.0.1", 3, "this machine has 1xH200, not 2x8xH100"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(machine: Machine, words: str, code: int, said: str) -> None:
    done = machine.run("serve", *shlex.split(words))
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "drafts"),
    [
        ([], False),
        (["--draft", "on"], True),
        (["--draft", "off"], False),
        (["--draft", "on", "--", "--load-format", "dummy"], True),
    ],
)
def test_a_draft_is_not_downloaded_unless_the_user_says_so(
    machine: Machine, arguments: list[str], drafts: bool
) -> None:
    done = machine.run("serve", "--gpus", "8xH200", "--dry-run", *arguments, HOME="/nowhere")
    assert done.returncode == 0, done.stderr
    assert ('--speculative-config \'{"method":"eagle3"' in done.stdout) is drafts
    assert ("# advice       a draft pays here: --draft on" in done.stdout) is (arguments == [])


@pytest.mark.parametrize(
    ("arguments", "drafts"),
    [
        ([], True),
        (["--concurrency", "40", "--typical", "8192"], False),
        (["--", "--load-format", "dummy"], False),
    ],
)
def test_a_draft_on_this_machine_is_used_where_it_pays(
    machine: Machine, tmp_path: Path, arguments: list[str], drafts: bool
) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    sizes = {
        "hidden_size": 6144,
        "intermediate_size": 8192,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
    }
    (draft / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLMEagle3"], "head_dim": 128, **sizes})
    )
    done = machine.run("serve", "--gpus", "8xH200", "--dry-run", "--draft-model", str(draft), *arguments)
    assert done.returncode == 0, done.stderr
    assert (f'"model":"{draft}"' in done.stdout) is drafts


def test_a_draft_that_is_named_and_not_here_is_said_to_be_missing(machine: Machine) -> None:
    named = ("serve", "--gpus", "8xH200", "--dry-run", "--draft-model", "Inferact/MiniMax-M3-EAGLE3-GQA")
    done = machine.run(*named, HOME="/nowhere")
    assert "is not on this machine; --draft on downloads it" in done.stdout
    assert "--speculative-config" not in done.stdout
    offline = machine.run(*named, "--draft", "on", HOME="/nowhere", HF_HUB_OFFLINE="1")
    assert offline.returncode == 2
    assert "HF_HUB_OFFLINE" in offline.stderr


def test_several_servers_are_written_as_scripts(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    shown = machine.run("serve", "--servers", "2", "--gpus", "8xH200", "--dry-run").stdout
    assert (
        "\n# next         --write FOLDER without --dry-run writes these files\n\n# file server-1.sh\n"
        in shown
    )
    done = machine.run("serve", "--servers", "2", "--gpus", "8xH200", "--write", str(folder))
    assert done.returncode == 0, done.stderr
    assert f"start all of them with: bash {folder / 'start.sh'}" in done.stderr
    assert "--tensor-parallel-size 4" in (folder / "server-2.sh").read_text()
    router = machine.run("serve", "--servers", "a,b", "--gpus", "4xH200", "--dry-run", "--router", "llm-d")
    assert "# file servers.yaml\n" in router.stdout


def test_files_for_kubernetes_are_written_into_a_new_folder(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    done = machine.run("serve", "--kubernetes", str(folder), "--gpus", "2x8xH100")
    assert done.returncode == 0, done.stderr
    names = ["monitoring.yaml", "servers.yaml", "weights.yaml"]
    assert sorted(path.name for path in folder.iterdir()) == names
    plan = plans(parse_gpus("2x8xH100"), PlanRequest(draft_use=DraftUse.AUTO))[0]
    assert all(said in done.stderr for said in (*plan.warnings, *plan.advice))
    wait = "kubectl wait --for=condition=complete job/minimax-m3-weights"
    assert done.stderr.index(f"-f {folder}/weights.yaml") < done.stderr.index(wait)
    assert done.stderr.index(wait) < done.stderr.index(f"-f {folder}/servers.yaml")
    assert (
        "2x8xH100-80 are enough for 2 servers, and the files have one, on 8xH100-80: --router" in done.stderr
    )


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            ("server-1.sh", "router.sh", "start.sh"),
            "start all of them with: bash set/start.sh; then m3agent fix ISSUE --endpoint http://127.0.0.1:8000/v1",
        ),
        (
            ("server-1.sh", "router.sh"),
            "run each server-N.sh on its machine with bash, then set/router.sh where m3agent runs; then m3agent fix ISSUE",
        ),
        (("dynamo.sh",), "start all of them with: bash set/dynamo.sh"),
    ],
)
def test_written_servers_say_how_to_start_them(files: tuple[str, ...], said: str) -> None:
    assert said in how_to_start(files, Path("set"), 8000)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--host-cache 90000", "a host cache of 90,000 GB needs 90,032 GB of memory with the engine"),
        ("--gpus 4xH200", "this machine has 1xH200, not 4xH200"),
    ],
)
def test_what_this_machine_lacks_is_refused(machine: Machine, words: str, said: str) -> None:
    done = machine.serve(*words.split())
    assert (done.returncode, said in done.stderr) == (3, True), done.stderr


@pytest.mark.slow  # quick: test_versions_that_must_not_serve_m3_are_refused_before_the_start
def test_the_installed_version_decides_what_is_planned(machine: Machine, tmp_path: Path) -> None:
    for version, planned in (("0.24.0", False), ("0.33.0", True)):
        site = tmp_path / version
        distribution(site, "vllm", version)
        machine.program("vllm", python_program("raise SystemExit('started')\n"))
        done = machine.run("serve", "--context", "1048576", "--dry-run", PYTHONPATH=str(site), GPUS="4")
        assert done.returncode == 0, done.stderr
        assert ("indexer_kv_dtype" in done.stdout) is planned


@pytest.fixture
def small_disk(machine: Machine) -> Iterator[Path]:
    """Mount a small file system, which is soon full, as the state folder."""
    machine.state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(machine.state)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield machine.state
    subprocess.run(["umount", "--lazy", str(machine.state)], check=True)


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "full").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.mark.slow
def test_a_full_disk_ends_no_server_and_keeps_none_from_ending(machine: Machine, small_disk: Path) -> None:
    process = machine.start()
    machine.ready(process)
    fill(small_disk)
    process.terminate()
    said = errors_of(process)
    assert process.returncode == 130, said
    assert "server.json cannot be written: No space left on device; it is out of date" in said
    assert "Traceback" not in said
    assert not machine.holders()
    assert machine.record() is None
    fill(small_disk)
    done = machine.serve()
    assert done.returncode in (3, 4), done.stderr
    assert "No space left on device" in done.stderr or "cannot be" in done.stderr
    assert "Traceback" not in done.stderr
