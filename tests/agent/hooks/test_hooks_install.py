"""Hooks in the configuration of agents: written into it, and taken out byte for byte."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from m3agent.agent.hooks.agents import AGENTS, Agent
from m3agent.agent.hooks.install import Hooks
from m3agent.util.errors import UsageError

CLAUDE = AGENTS["claude-code"]
JSON_AGENTS = [agent for agent in AGENTS.values() if not agent.plugin]
CONFIGURATIONS = [
    "{}",
    "{}\n",
    "{\n}\n",
    '{"model": "x"}',
    '{\n\t"model": "x",\n\t"hooks": {}\n}\n',
    '{\r\n    "hooks": {\r\n    },\r\n    "a": [1, {"hooks": 2}]\r\n}',
    '{"hooks": {"Stop": [], "AfterAgent": []}, "ü": "\\ud83d\\ude00 \\"{["}\n\n',
    '{\n  "hooks": {\n    "Stop": [\n      {"hooks": [{"type": "command", "command": "say done"}]}\n    ]\n  }\n}\n',
    '{"hooks": {"UserPromptSubmit": [{"hooks": []}], "Other": []}}',
    "",
    " \n",
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return an empty home."""
    (tmp_path / "home").mkdir()
    (tmp_path / "state").mkdir()
    return tmp_path / "home"


def hooks_of(home: Path) -> Hooks:
    return Hooks(home.parent / "state", {"HOME": str(home)})


def install(home: Path, agent: Agent, rounds: int = 2) -> None:
    hooks = hooks_of(home)
    hooks.make(hooks.install(agent, ["/my bin/m3agent"], rounds, 10))


def uninstall(home: Path, agent: Agent) -> None:
    hooks = hooks_of(home)
    change = hooks.uninstall(agent)
    assert change is not None
    hooks.make(change)


def settings_of_claude(home: Path, content: bytes) -> Path:
    path = CLAUDE.path({"HOME": str(home)})
    path.parent.mkdir()
    path.write_bytes(content)
    return path


def commands(path: Path) -> Mapping[str, list[str]]:
    """Return the commands of all hooks in a configuration."""
    found = json.loads(path.read_text())["hooks"]
    return {
        name: [hook["command"] for group in groups for hook in group["hooks"]]
        for name, groups in found.items()
    }


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_without_a_file(home: Path, agent: Agent) -> None:
    install(home, agent)
    path = agent.path({"HOME": str(home)})
    assert "/my bin/m3agent" in path.read_text()
    assert any(hooks_of(home).places(agent).values())
    uninstall(home, agent)
    assert not list(home.iterdir())
    assert not any(hooks_of(home).places(agent).values())


@pytest.mark.parametrize("agent", JSON_AGENTS, ids=lambda agent: agent.name)
@pytest.mark.parametrize("before", CONFIGURATIONS)
def test_every_byte_comes_back(home: Path, agent: Agent, before: str) -> None:
    path = agent.path({"HOME": str(home)})
    path.parent.mkdir(parents=True)
    path.write_bytes(before.encode())
    path.chmod(0o640)
    install(home, agent)
    for moment, event in agent.events.items():
        assert commands(path)[event][-1].endswith(f"hooks run {agent.name} {moment} --rounds=2 --minutes=10")
    old, now = json.loads(before.strip() or "{}"), json.loads(path.read_bytes())
    assert {**now, "hooks": 0} == {**old, "hooks": 0}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    install(home, agent, rounds=5)
    assert sum(map(len, commands(path).values())) == 2 + before.count("say done")
    uninstall(home, agent)
    assert path.read_bytes() == before.encode()
    assert hooks_of(home).uninstall(agent) is None


def test_later_changes_of_others_stay(home: Path) -> None:
    path = settings_of_claude(home, b'{\n  "model": "x"\n}\n')
    install(home, CLAUDE)
    path.write_text(path.read_text().replace('"model": "x"', '"model":   "y", "new": [ 1 ]'))
    uninstall(home, CLAUDE)
    assert path.read_text() == '{\n  "model":   "y", "new": [ 1 ]\n}\n'


def test_a_rewritten_file_loses_only_the_hook(home: Path) -> None:
    before = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}, "a": 1}
    path = settings_of_claude(home, json.dumps(before).encode())
    install(home, CLAUDE)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    uninstall(home, CLAUDE)
    assert json.loads(path.read_text()) == before


def test_each_configuration_of_an_agent_loses_the_hook(home: Path, tmp_path: Path) -> None:
    variants = [
        Hooks(tmp_path / "state", {"HOME": str(home), "CLAUDE_CONFIG_DIR": str(tmp_path / name)})
        for name in "ab"
    ]
    paths = [tmp_path / name / "settings.json" for name in "ab"]
    paths[0].parent.mkdir()
    paths[0].write_text('{"model":  1}')
    for hooks in variants:
        hooks.make(hooks.install(CLAUDE, ["m3agent"], 2, 10))
    other = hooks_of(home)
    assert other.places(CLAUDE) == {CLAUDE.path({"HOME": str(home)}): False, **dict.fromkeys(paths, True)}
    while (change := other.uninstall(CLAUDE)) is not None:
        other.make(change)
    assert paths[0].read_text() == '{"model":  1}' and not paths[1].parent.exists()
    assert not any(other.places(CLAUDE).values())


def test_the_receipt_of_an_older_version_is_understood(home: Path) -> None:
    path = settings_of_claude(home, b'{"model":  1}')
    install(home, CLAUDE)
    [receipt] = (home.parent / "state/hooks").iterdir()
    [kept] = json.loads(receipt.read_bytes())
    receipt.write_text(json.dumps(kept))
    uninstall(home, CLAUDE)
    assert path.read_bytes() == b'{"model":  1}' and not receipt.exists()


def test_half_a_character_of_others_stays(home: Path) -> None:
    path = settings_of_claude(home, b'{"a": "\\ud800"}')
    install(home, CLAUDE)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1))
    uninstall(home, CLAUDE)
    assert json.loads(path.read_text()) == {"a": "\ud800"}


def test_words_of_the_command_elsewhere_are_left_alone(home: Path) -> None:
    words = "m3agent hooks run claude-code stop"
    content = {
        "note": words,
        "hooks": {
            "Stop": [
                {"matcher": words, "hooks": [{"type": "command", "command": "x", "about": words}]},
                {"hooks": []},
            ],
            "B": [],
        },
    }
    path = settings_of_claude(home, json.dumps(content).encode())
    before = path.read_bytes()
    assert hooks_of(home).uninstall(CLAUDE) is None
    install(home, CLAUDE)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1))
    uninstall(home, CLAUDE)
    assert json.loads(path.read_text()) == json.loads(before)


def test_a_link_stays_a_link(home: Path) -> None:
    path = settings_of_claude(home, b"")
    path.rename(home / "dotfiles.json")
    path.symlink_to(home / "dotfiles.json")
    install(home, CLAUDE)
    assert path.is_symlink()
    assert "hooks" in (home / "dotfiles.json").read_text()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "not JSON"),
        (b'{\n  // mine\n  "a": 1\n}', "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"hooks": []}', "`hooks` is not an object"),
        (b'{"hooks": {"Stop": {}}}', "`hooks.Stop` is not a list"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_foreign_configuration_is_refused(home: Path, content: bytes, why: str) -> None:
    path = settings_of_claude(home, content)
    with pytest.raises(UsageError, match=why):
        install(home, CLAUDE)
    assert path.read_bytes() == content
    assert [*path.parent.iterdir()] == [path]


def test_a_foreign_plugin_is_refused(home: Path) -> None:
    agent = AGENTS["opencode"]
    path = agent.path({"HOME": str(home)})
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match="not m3agent's"):
        install(home, agent)
    path.unlink()
    install(home, agent)
    path.write_text(path.read_text() + "// mine")
    with pytest.raises(UsageError, match="remove it yourself"):
        uninstall(home, agent)


def test_a_file_that_changes_meanwhile_is_not_overwritten(home: Path) -> None:
    hooks = hooks_of(home)
    change = hooks.install(CLAUDE, ["m3agent"], 2, 10)
    path = settings_of_claude(home, b"{}")
    with pytest.raises(UsageError, match="changed meanwhile"):
        hooks.make(change)
    assert path.read_text() == "{}"


@pytest.mark.parametrize(
    ("name", "env", "file"),
    [
        ("claude-code", {"CLAUDE_CONFIG_DIR": "/c"}, "/c/settings.json"),
        ("codex", {"CODEX_HOME": "/c"}, "/c/hooks.json"),
        ("opencode", {"XDG_CONFIG_HOME": "/c"}, "/c/opencode/plugin/m3agent.js"),
        ("qwen-code", {"QWEN_HOME": "/c"}, "/c/settings.json"),
        ("gemini-cli", {"GEMINI_CLI_HOME": "/c"}, "/c/.gemini/settings.json"),
        ("gemini-cli", {}, "/home/me/.gemini/settings.json"),
        ("opencode", {}, "/home/me/.config/opencode/plugin/m3agent.js"),
    ],
)
def test_where_the_file_is(name: str, env: dict[str, str], file: str) -> None:
    assert AGENTS[name].path({"HOME": "/home/me", **env}) == Path(file)


def test_the_agent_waits_longer_than_the_hook_works(home: Path) -> None:
    for agent in JSON_AGENTS:
        install(home, agent)
        found = json.loads(agent.path({"HOME": str(home)}).read_text())["hooks"][agent.events["stop"]]
        assert found[0]["hooks"][0]["timeout"] == 630 * agent.unit
