"""m3agent in real runners, each with an environment of its own, on three instances of which the engine repairs two."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.images.debian import base_image
from m3agent.serving.embedded.server import MODEL, embedded_server
from tests import command_line
from tests.conftest import backend_here
from tests.evals.data_rows import write_program
from tests.installs import ROOT, harbor_environment, install, new_environment, newer_python, uv, uv_env
from tests.servers.packages import bridge_address

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(1200)]

ADDER = "def adder(a, b):\n    return a - b\n"
LARGEST = (
    "def largest(values):\n    best = 0\n    for value in values:\n        if value < best:\n"
    "            best = value\n    return best\n"
)
ROMAN = "def roman(number):\n    return 'I' * number\n"
NUMERALS = "roman = {4: 'IV', 9: 'IX', 40: 'XL', 1994: 'MCMXCIV'}.get\n"
PROGRAMS = {
    "adder": (ADDER, ADDER.replace("-", "+"), "assert adder(2, 3) == 5"),
    "largest": (LARGEST, LARGEST.replace("<", ">"), "assert largest([1, 3, 2]) == 3"),
    "roman": (
        ROMAN,
        NUMERALS,
        "assert [roman(n) for n in (4, 9, 40, 1994)] == ['IV', 'IX', 'XL', 'MCMXCIV']",
    ),
}
"""Code, corrected code and test of each program."""
REWARDS = {"adder": 1.0, "largest": 1.0, "roman": 0.0}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    backend_here("docker")
    folder = tmp_path_factory.mktemp("benchmark") / "rows"
    for name, (code, gold, check) in PROGRAMS.items():
        write_program(folder, name, code, gold, a_test(name, check), issue_of(name))
    return folder


def a_test(name: str, check: str) -> str:
    return f"from {name} import {name}\n\n\ndef test_{name}():\n    {check}\n"


def issue_of(name: str) -> str:
    return f"{name}.py is wrong: test_{name}.py fails."


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle for the Python of m3agent's own images."""
    folder = tmp_path_factory.mktemp("bundle")
    folder.chmod(0o755)  # for the user of a container
    command: list[str | Path] = [
        sys.executable,
        ROOT / "scripts" / "bundle" / "build.py",
        "--python",
        "3.11",
        "--output",
        folder,
    ]
    env = {**uv_env(), "PATH": f"{Path(uv()).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the bundle's wheels cannot be downloaded here: {done.stderr.strip()[-300:]}")
    (built,) = folder.iterdir()
    return built


@contextlib.contextmanager
def embedded_engine(host: str = "127.0.0.1") -> Iterator[str]:
    """Run the embedded engine and yield its URL."""
    ready, end = threading.Event(), threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with embedded_server(host=host, candidates=200) as url:
            urls.append(url)
            ready.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield urls[0]
    finally:
        end.set()
        thread.join()


def debian_with_python(state: Path) -> str:
    """Return the name of an image with Python and git; build it if it is not here."""
    api = connect()
    try:
        return base_image(api, None, state=state, say=print, stop=threading.Event()).image.name
    finally:
        api.close()


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with embedded_engine() as url:
        yield url


def run(command: list[str], folder: Path, **env: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "NO_COLOR": "1", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


IN_A_CONTAINER = """\
set -e
python3 /bundle/*.pyz --prefix /tmp/m3agent
cp -r /ferry /tmp/ferry
cd /tmp/ferry
git init -q
git add -A
git -c user.name=x -c user.email=x@example.invalid commit -qm first
/tmp/m3agent/bin/m3agent fix ISSUE.md --sandbox here --apply --engine embedded --yes >/tmp/patch
git status --porcelain
"""


def test_the_bundle_fixes_the_example_in_a_container(bundle: Path) -> None:
    """The container has no network, no engine, no user namespaces, a root that cannot be written, and another user."""
    volumes = (f"{bundle.parent}:/bundle:ro", f"{ROOT / 'examples' / 'ferry'}:/ferry:ro")
    done = subprocess.run(
        [
            *("docker", "run", "--rm", "--user", "1000:1000", "--network", "none", "--read-only"),
            *("--tmpfs", "/tmp:exec,mode=1777", "--env", "HOME=/tmp"),
            *(word for volume in volumes for word in ("--volume", volume)),
            *(debian_with_python(bundle.parent), "sh", "-c", IN_A_CONTAINER),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "verified (not isolated)" in done.stderr
    changed = done.stdout.splitlines()[1:]
    assert changed and all(line.startswith(" M ") for line in changed), done.stdout


def test_the_bundle_replaces_only_what_it_installed(bundle: Path, tmp_path: Path) -> None:
    def installed(prefix: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(bundle), "--prefix", str(prefix)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for _ in range(2):
        done = installed(tmp_path / "m3agent")
        assert done.returncode == 0, done.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    done = installed(tmp_path / "mine")
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), done.stderr
    assert "is not empty and has no m3agent" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"m3agent", "mine"}
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]


def test_verifiers(rows: Path, wheel: Path, bundle: Path, model: str, tmp_path: Path) -> None:
    python = new_environment(tmp_path / "environment")
    (tmp_path / "override.txt").write_text("openai<3\n")  # as docs/integrations.md says
    install(python, "--override", str(tmp_path / "override.txt"), str(wheel), "verifiers>=0.4,<0.5")

    def traces(source: Path, url: str, output: Path) -> list[dict[str, Any]]:
        options = {
            "env.taskset.source": source,
            "env.agent.harness.id": "m3agent-verifiers",
            "env.agent.harness.bundle": bundle,
            "env.agent.runtime.type": "docker",
            "env.agent.client.type": "eval",
            "env.agent.client.base-url": url,
            "env.agent.client.api-key-var": "KEY",
            "model": MODEL,
            "max-concurrent": 1,
            "output-dir": output,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        run(
            [str(python.parent / "vf-eval"), "m3agent-verifiers", "--no-push", *words],
            tmp_path,
            KEY="a-secret",
        )
        (file,) = output.rglob("traces.jsonl")
        return [trace for line in file.read_text().splitlines() for trace in json.loads(line)["traces"]]

    found = traces(rows, model, tmp_path / "out")
    assert {trace["task"]["data"]["id"]: trace["rewards"]["resolved"]["score"] for trace in found} == REWARDS
    for folder in ("programs/adder", "gold"):
        shutil.copytree(rows / folder, tmp_path / "one" / folder)
    without_server = traces(tmp_path / "one", "http://127.0.0.1:9/v1", tmp_path / "without")
    assert not any(trace["rewards"] for trace in without_server)
    assert {error["type"] for trace in without_server for error in trace["errors"]} == {"ProviderError"}


def test_inspect(rows: Path, wheel: Path, model: str, tmp_path: Path) -> None:
    """The sandbox is this machine: Inspect's Docker sandbox needs a newer engine than some systems have."""
    python = new_environment(tmp_path / "environment")
    install(python, str(wheel), "inspect_ai>=0.3.285,<0.4", "openai")
    options = {
        "-T": f"source={rows}",
        "--model": f"openai-api/embedded/{MODEL}",
        "--log-dir": tmp_path / "logs",
        "--log-format": "json",
        "--max-samples": 1,
        "--display": "plain",
    }
    words = [word for name, value in options.items() for word in (name, str(value))]
    command = [str(python.parent / "inspect"), "eval", "m3agent/resolve", "-T", "sandbox_type=local", *words]
    path = f"{python.parent}:{os.environ['PATH']}"
    run(command, tmp_path, EMBEDDED_BASE_URL=model, EMBEDDED_API_KEY="a-secret", PATH=path)
    (log,) = (tmp_path / "logs").glob("*.json")
    samples = json.loads(log.read_text())["samples"]
    assert {sample["id"]: sample["scores"]["strict_grader"]["value"] for sample in samples} == REWARDS


@pytest.fixture(scope="module")
def harbor_tasks(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three programs as tasks of Harbor; their images are built here."""
    folder = tmp_path_factory.mktemp("tasks")
    done = command_line.run(
        "eval",
        "export",
        str(rows),
        *("--format", "harbor", "-o", str(folder / "tasks")),
        env={"M3AGENT_STATE": str(folder / "state")},
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == PROGRAMS.keys()
    return folder / "tasks"


@pytest.fixture(scope="module")
def harbor(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of Harbor, in an environment with m3agent."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("Harbor needs Docker's plug-in `compose`, which is not installed")
    return harbor_environment(tmp_path_factory.mktemp("harbor"), str(wheel)).parent / "harbor"


def harbor_run(harbor: Path, tasks: Path, folder: Path, *options: str, **env: str) -> dict[str, Path]:
    """Run an agent on all tasks; return the folder of each task's trial."""
    words = ["run", "-p", str(tasks), "--jobs-dir", str(folder / "jobs"), "-n", "1", *options]
    run([str(harbor), *words], folder, LITELLM_LOCAL_MODEL_COST_MAP="True", **env)
    results = (folder / "jobs").glob("*/*/result.json")
    return {json.loads(path.read_text())["task_name"].partition("/")[2]: path.parent for path in results}


def reward_of(trial: Path) -> float:
    return float(json.loads((trial / "result.json").read_text())["verifier_result"]["rewards"]["reward"])


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_harbor_with_its_own_agents(
    harbor: Path, harbor_tasks: Path, tmp_path: Path, agent: str, reward: float
) -> None:
    """`oracle` runs the task's solution; `nop` changes nothing."""
    trials = harbor_run(harbor, harbor_tasks, tmp_path, "-a", agent)
    assert {name: reward_of(trial) for name, trial in trials.items()} == dict.fromkeys(PROGRAMS, reward)


def test_harbor(harbor: Path, harbor_tasks: Path, bundle: Path, tmp_path: Path) -> None:
    with embedded_engine(bridge_address()) as url:
        trials = harbor_run(
            harbor,
            harbor_tasks,
            tmp_path,
            *("-a", "m3agent.integrations.harbor:M3Agent", "--ak", f"bundle={bundle}"),
            *("-m", f"openai/{MODEL}", "--base-url", url, "--api-key-name", "KEY"),
            KEY="a-secret",
        )
    assert {name: reward_of(trial) for name, trial in trials.items()} == REWARDS
    for trial in trials.values():
        found = json.loads((trial / "result.json").read_text())["agent_result"]
        assert found["n_input_tokens"] > 0
        assert found["n_output_tokens"] > 0
        trajectory = json.loads((trial / "agent" / "trajectory.json").read_text())
        assert trajectory["schema_version"].startswith("ATIF")


GYM = """\
import json, sys
from unittest.mock import MagicMock

from fastapi.testclient import TestClient
from nemo_gym import server_utils
from nemo_gym.server_utils import ServerClient

folder, url, source, command, runs, model = sys.argv[1:]
server_utils.get_server_url = lambda name: url.removesuffix("/v1")  # instead of the configuration of a whole run
sys.path.insert(0, folder)
import app

config = app.M3AgentConfig(
    host="127.0.0.1", port=1, entrypoint="app.py", name="m3agent_agent", source=source, model=model,
    command=[command], runs=runs, options=["--max-minutes", "5"],
    model_server={"type": "responses_api_models", "name": "policy_model"},
)
server = app.M3AgentServer(config=config, server_client=MagicMock(spec=ServerClient))
client = TestClient(server.setup_webserver())
for name in ("adder", "largest", "roman", "adder"):
    body = {"responses_create_params": {"input": []}, "instance_id": name}
    print(json.dumps(client.post("/run", json=body).json()))
    if name == "roman":
        app.get_server_url = lambda name: "http://127.0.0.1:9"  # where nobody listens
"""


def test_nemo_gym_s_server_alone(rows: Path, wheel: Path, model: str, tmp_path: Path) -> None:
    """The last version that Python 3.12 can install."""
    python = new_environment(tmp_path / "environment", newer_python((3, 12)))
    install(python, "nemo-gym==0.4.0")
    own = new_environment(tmp_path / "own")
    install(own, str(wheel))
    (tmp_path / "agent").mkdir()
    shutil.copy(ROOT / "integrations" / "gym.py", tmp_path / "agent" / "app.py")
    words = [model, str(rows), str(own.parent / "m3agent"), str(tmp_path / "runs"), MODEL]
    said = run([str(python), "-c", GYM, str(tmp_path / "agent"), *words], tmp_path)
    *found, without_server = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert {answer["instance_id"]: answer["reward"] for answer in found} == REWARDS
    assert not any(answer["mask_sample"] for answer in found)
    assert (without_server["mask_sample"], without_server["failure_kind"]) == (True, "m3agent:infra")


GYM_CONFIG = """\
m3agent_agent:
  responses_api_agents:
    m3agent_agent:
      entrypoint: app.py
      model_server: {{ type: responses_api_models, name: policy_model }}
      model: {model}
      source: {source}
      command: [{command}]
      options: [--max-minutes, "5"]
      runs: {runs}
m3agent_agent_environment_server:
  environment_servers:
    legacy_agent:
      entrypoint: app.py
      agent_server: {{ type: responses_api_agents, name: m3agent_agent }}
"""


@contextlib.contextmanager
def gym_servers(gym: Path, folder: Path, url: str, env: dict[str, str]) -> Iterator[None]:
    """Run Gym's servers: the agent, its environment, the model server, and the head server."""
    options = ["--model", MODEL, "--model-url", url, "--model-api-key", "a-secret"]
    for config in ("m3agent.yaml", "responses_api_models/vllm_model/configs/vllm_model.yaml"):
        options += ["--config", config]
    with (folder / "servers.log").open("w+") as log:
        servers = subprocess.Popen(
            [str(gym), "env", "start", *options],
            cwd=folder,
            env={**os.environ, **env},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            until = time.monotonic() + 600  # Gym makes an environment for each of them
            while "servers ready!" not in (said := (folder / "servers.log").read_text()):
                assert servers.poll() is None and time.monotonic() < until, said[-6000:]
                time.sleep(1)
            yield
        finally:
            servers.send_signal(signal.SIGINT)
            servers.wait(timeout=60)


def test_nemo_gym(rows: Path, wheel: Path, model: str, tmp_path: Path) -> None:
    """Gym starts its servers itself, each in an environment of its own, and collects rollouts from them."""
    base = newer_python((3, 13, 14))
    python = new_environment(tmp_path / "environment", base)
    install(python, "nemo-gym==0.7.0")
    own = new_environment(tmp_path / "own")
    install(own, str(wheel))
    agent = tmp_path / "responses_api_agents" / "m3agent_agent"
    agent.mkdir(parents=True)
    shutil.copy(ROOT / "integrations" / "gym.py", agent / "app.py")
    (agent / "requirements.txt").write_text("nemo-gym\n")
    (tmp_path / "m3agent.yaml").write_text(
        GYM_CONFIG.format(model=MODEL, source=rows, command=own.parent / "m3agent", runs=tmp_path / "runs")
    )
    lines = [json.dumps({"responses_create_params": {"input": []}, "instance_id": name}) for name in PROGRAMS]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    programs = (
        python.parent,
        python.resolve().parent,
        Path(uv()).parent,
    )  # Gym calls uv, which searches Python
    path = ":".join([*map(str, programs), os.environ["PATH"]])
    env = {**uv_env(), "PATH": path, "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    gym = python.parent / "gym"
    with gym_servers(gym, tmp_path, model, env):
        words = ["--no-serve", "--agent", "m3agent_agent", "--input", "tasks.jsonl", "--output", "out.jsonl"]
        run([str(gym), "eval", "run", *words, "--concurrency", "1"], tmp_path, **env)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {answer["instance_id"]: answer["reward"] for answer in found} == REWARDS
    assert not any(answer["mask_sample"] for answer in found)
