"""Test where settings come from, which layer wins, and what a repository may set."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.settings.loader import LoadedSettings, load_settings
from m3agent.agent.settings.settings import SETTINGS, Settings, config_file, state_dir
from m3agent.util.errors import EnvironmentFault, UsageError
from tests.agent.repositories import NewRepo
from tests.command_line import run


class Layers:
    """A repository, a home folder, and settings loaded from both."""

    def __init__(self, repo: Path, home: Path) -> None:
        self.repo, self.home = repo, home
        self.own = repo / ".m3agent.toml"
        self.shared = repo / "pyproject.toml"
        self.user = home / ".config" / "m3agent" / "config.toml"
        self.user.parent.mkdir(parents=True)

    def load(self, flags: dict[str, object] | None = None, /, **env: str) -> LoadedSettings:
        return load_settings(self.repo, flags or {}, {"HOME": str(self.home), **env})

    def refused(self, flags: dict[str, object] | None = None, /, **env: str) -> str:
        with pytest.raises(UsageError) as caught:
            self.load(flags, **env)
        sentence = str(caught.value)
        assert "\n" not in sentence and sentence.endswith(".")
        return sentence


@pytest.fixture
def layers(new_repo: NewRepo, tmp_path: Path) -> Layers:
    return Layers(new_repo(), tmp_path / "home")


def test_defaults(layers: Layers) -> None:
    loaded = layers.load()
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    settings = loaded.settings
    assert (settings.thinking, settings.max_turns, settings.max_minutes) == ("enabled", 100, 60.0)
    assert (settings.memory, settings.cpus, settings.yes) == ("4g", 2.0, False)


def test_the_table_says_what_applies_to_each_setting_that_is_not_set(layers: Layers) -> None:
    loaded = layers.load()
    for name, setting in SETTINGS.items():
        if setting.default is None:
            assert setting.if_unset, name
            assert any(line.split()[:3] == [name, "-", "default:"] for line in loaded.table().splitlines())
    narrow = loaded.table(60).splitlines()
    assert max(map(len, narrow)) <= 60


def test_each_layer_beats_the_next(layers: Layers) -> None:
    layers.own.write_text("max_turns = 3\nmax_tokens = 3\ncpus = 3\n")
    layers.user.write_text("max_turns = 4\nmax_tokens = 4\ncpus = 4\nmodel = 'm'\n")
    loaded = layers.load({"max_turns": 1, "max_tokens": None}, M3AGENT_MAX_TURNS="2", M3AGENT_MAX_TOKENS="2")
    settings, origins = loaded.settings, loaded.origins
    assert (settings.max_turns, origins["max_turns"]) == (1, "--max-turns")
    assert (settings.max_tokens, origins["max_tokens"]) == (2, "M3AGENT_MAX_TOKENS")
    assert (settings.cpus, origins["cpus"]) == (3.0, str(layers.own))
    assert (settings.model, origins["model"]) == ("m", str(layers.user))
    assert (settings.memory, origins["memory"]) == ("4g", "default")


def test_repository_file_is_searched_up_to_the_git_root_only(layers: Layers) -> None:
    (layers.repo.parent / ".m3agent.toml").write_text("max_turns = 9\n")
    deep = layers.repo / "a" / "b"
    deep.mkdir(parents=True)
    assert load_settings(deep, {}, {}).settings.max_turns == 100
    layers.shared.write_text("[project]\nname = 'x'\n[tool.m3agent]\nmax_turns = 7\n")
    assert load_settings(deep, {}, {}).settings.max_turns == 7
    layers.own.write_text("max_turns = 6\n")
    assert load_settings(deep, {}, {}).settings.max_turns == 6
    (layers.repo / "a" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert load_settings(deep, {}, {}).settings.max_turns == 6
    (layers.repo / "a" / "pyproject.toml").write_text("[tool.m3agent]\nmax_turns = 5\n")
    assert load_settings(deep, {}, {}).settings.max_turns == 5


def test_outside_a_repository_only_the_folder_itself_counts(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / ".m3agent.toml").write_text("max_turns = 9\n")
    assert load_settings(inner, {}, {}).settings.max_turns == 100
    assert load_settings(tmp_path, {}, {}).settings.max_turns == 9


def test_a_broken_pyproject_of_the_project_is_not_ours(layers: Layers) -> None:
    layers.shared.write_text("[project\n")
    assert layers.load().settings == Settings()
    layers.shared.write_text("[tool.m3agent]\nmax_turns = = 2\n")
    assert f"{layers.shared} is not valid TOML" in layers.refused()


@pytest.mark.parametrize("text", ["mounts = ['/:/host']\n", "[mounts]\nhost = '/'\n", "command = 'sh'\n"])
def test_unknown_names_in_a_repository_are_refused(layers: Layers, text: str) -> None:
    layers.own.write_text(text)
    assert f"{layers.own}:1: {text.strip('[').split(']')[0].split()[0]} is not a setting" in layers.refused()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("max_turns = '5'", "max_turns cannot be '5': input should be a valid integer"),
        ("max_turns = 0", "max_turns cannot be 0: input should be greater than or equal to 1"),
        ("max_turns = true", "max_turns cannot be True"),
        ("max_minutes = inf", "max_minutes cannot be inf"),
        ("cpus = -1", "cpus cannot be -1"),
        ("memory = '4 gigs'", "with the unit k, m or g"),
        ("model = ''", "not empty"),
        ("max-turns = 5", "did you mean max_turns?"),
        ("max_turnz = 5", "did you mean max_turns?"),
        ("max_turns = ", "not valid TOML: Invalid value (at line 2"),
        ("max_turns = 1\nmax_turns = 2", "not valid TOML: Cannot overwrite a value (at line 3"),
    ],
)
def test_faults_in_files_name_file_line_and_key(layers: Layers, line: str, complaint: str) -> None:
    layers.own.write_text(f"# ours\n{line}\n")
    sentence = layers.refused()
    assert complaint in sentence
    assert f"{layers.own}:2: " in sentence or f"{layers.own} is not valid TOML" in sentence


def test_files_that_are_no_text(layers: Layers) -> None:
    layers.user.write_bytes(b"model = '\xff'\n")
    assert "is not UTF-8 text" in layers.refused()
    layers.user.unlink()
    layers.shared.write_text("tool.m3agent = 3\n")
    assert "is not a table" in layers.refused()


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("M3AGENT_MAX_TURN", "5", "not a setting (did you mean M3AGENT_MAX_TURNS?)"),
        ("M3AGENT_MAX_TURNS", "many", "M3AGENT_MAX_TURNS cannot be 'many': input should be a valid integer."),
        ("M3AGENT_THINKING", "hard", "'enabled', 'disabled' or 'adaptive'"),
        ("M3AGENT_YES", "perhaps", "M3AGENT_YES cannot be 'perhaps'"),
        ("M3AGENT_ENDPOINT", "localhost", "an address like http://host:8000/v1"),
        ("M3AGENT_ENDPOINT", "http://host:port/v1", "M3AGENT_ENDPOINT cannot be"),
        ("M3AGENT_ENDPOINT", "http://[::1/v1", "M3AGENT_ENDPOINT cannot be"),
        ("M3AGENT_SANDBOX", "none", "'docker', 'bwrap' or 'here'"),
        ("M3AGENT_ALLOW_NET", "example.org,10.0.0.1", "10.0.0.1 is not a public address"),
        ("M3AGENT_ALLOW_NET", "*", "opens too much"),
    ],
)
def test_faults_in_the_environment_name_the_variable(
    layers: Layers, variable: str, value: str, complaint: str
) -> None:
    assert complaint in layers.refused(**{variable: value})


def test_an_unknown_argument_of_the_python_api_is_named(layers: Layers) -> None:
    assert layers.refused({"max_turn": 3}) == "max_turn is not a setting (did you mean max_turns?)."


def test_environment_values_are_read_as_text(layers: Layers) -> None:
    settings = layers.load(
        M3AGENT_MAX_TURNS="7",
        M3AGENT_MAX_COST="1.5",
        M3AGENT_YES="1",
        M3AGENT_MODEL="",
        M3AGENT_STATE="/elsewhere",
    ).settings
    assert (settings.max_turns, settings.max_cost, settings.yes, settings.model) == (7, 1.5, True, None)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "nonsense"])
def test_other_engines_are_refused(layers: Layers, engine: str) -> None:
    sentence = layers.refused({"engine": engine})
    assert engine in sentence and "'embedded' only" in sentence and "--endpoint" in sentence
    assert layers.load({"engine": "embedded"}).settings.engine == "embedded"


def test_endpoint_and_engine_answer_one_question(layers: Layers) -> None:
    url = "http://host:8000/v1"
    layers.user.write_text(f"endpoint = '{url}'\n")
    loaded = layers.load({"engine": "embedded"})
    assert (loaded.settings.engine, loaded.settings.endpoint) == ("embedded", None)
    assert loaded.origins["endpoint"] == "default"
    loaded = layers.load({"endpoint": "https://other/v1"}, M3AGENT_ENGINE="embedded")
    assert (loaded.settings.engine, loaded.settings.endpoint) == (None, "https://other/v1")
    assert "give one of them" in layers.refused({"endpoint": url, "engine": "embedded"})


def test_keys_come_from_the_environment_or_the_users_file_and_are_never_shown(layers: Layers) -> None:
    layers.user.write_text("api_key = 'from-file'\n")
    origins: dict[str, tuple[str, str]] = {
        "from-file": ("", str(layers.user)),
        "from-openai": ("OPENAI_API_KEY", "OPENAI_API_KEY"),
        "from-ours": ("M3AGENT_API_KEY", "M3AGENT_API_KEY"),
    }
    env: dict[str, str] = {}
    for secret, (variable, origin) in origins.items():
        if variable:
            env[variable] = secret
        loaded = layers.load(**env)
        assert loaded.settings.keys[0].text == secret
        assert loaded.origins["api_key"] == origin
        shown = loaded.table() + loaded.json() + repr(loaded) + str(loaded.settings)
        assert not any(hidden in shown for hidden in origins)
    assert "not a flag" in layers.refused({"api_key": "secret"})
    layers.user.write_text("api_key = ['hush']\n")
    assert "hush" not in layers.refused()
    assert "hush" not in layers.refused({"endpoint": "http://user:hush@host/v1"})
    assert "hush" not in layers.refused({"github_api": "https://user:hush@host/api/v3"})


def test_show_as_table_and_as_json(layers: Layers) -> None:
    layers.own.write_text("max_turns = 3\n")
    loaded = layers.load({"yes": True})
    lines = loaded.table().splitlines()
    assert lines[0].split() == ["setting", "value", "from"]
    assert ["max_turns", "3", str(layers.own)] in [line.split(maxsplit=2) for line in lines]
    assert ["yes", "true", "--yes"] in [line.split() for line in lines]
    assert ["api_key", "-", "default:", "no", "key", "is", "sent"] in [line.split() for line in lines]
    assert ["max_cost", "-", "default:", "no", "limit"] in [line.split() for line in lines]
    data: dict[str, Any] = json.loads(loaded.json())
    assert list(data) == list(SETTINGS)
    assert data["max_turns"] == {"value": 3, "origin": str(layers.own)}
    assert data["image"] == {"value": None, "origin": "default"}


def test_path_of_the_users_settings_file() -> None:
    assert config_file({"HOME": "/h"}) == Path("/h/.config/m3agent/config.toml")
    assert config_file({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}) == Path("/x/m3agent/config.toml")
    assert config_file({"HOME": "/h", "XDG_CONFIG_HOME": "rel"}) == Path("/h/.config/m3agent/config.toml")


def test_state_dir_is_made_for_its_owner_only(tmp_path: Path) -> None:
    chosen = tmp_path / "a" / "b"
    for env, expected in (
        ({"M3AGENT_STATE": str(chosen), "HOME": "/h"}, chosen),
        ({"XDG_STATE_HOME": str(tmp_path / "x"), "HOME": "/h"}, tmp_path / "x" / "m3agent"),
        ({"HOME": str(tmp_path)}, tmp_path / ".local" / "state" / "m3agent"),
    ):
        assert state_dir(env) == expected
        assert stat.S_IMODE(expected.stat().st_mode) == 0o700
    tmp_path.chmod(0o755)
    assert state_dir({"M3AGENT_STATE": str(tmp_path)}) == tmp_path
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_state_dir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        with pytest.raises(EnvironmentFault, match=r"cannot be made .* set M3AGENT_STATE"):
            state_dir({"M3AGENT_STATE": str(tmp_path / name)})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_dir_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        state_dir({"M3AGENT_STATE": str(tmp_path)})


@pytest.mark.integration
def test_home_unset_works(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from m3agent.agent.settings.loader import load_settings\n"
        "print(load_settings(pathlib.Path('.'), {}, os.environ).settings.max_turns)"
    )
    env = {
        key: value for key, value in os.environ.items() if key != "HOME" and not key.startswith("M3AGENT_")
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "100\n"


@given(st.text(max_size=60))
def test_any_text_as_value_is_taken_or_refused_in_one_sentence(text: str) -> None:
    for name in SETTINGS:
        try:
            load_settings(Path("/"), {}, {"HOME": "/nonexistent", f"M3AGENT_{name.upper()}": text})
        except UsageError as error:
            assert len(str(error).splitlines()) == 1


def test_the_address_of_github(layers: Layers) -> None:
    assert layers.load().settings.github_api == "https://api.github.com"
    for url, taken in [
        ("https://ghe.example.com/api/v3/", "https://ghe.example.com/api/v3"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ]:
        assert layers.load(M3AGENT_GITHUB_API=url).settings.github_api == taken
    for wrong in ("http://ghe.example.com/api/v3", "ghe.example.com", "https://ghe.example.com/?x=1"):
        assert "--github-api cannot be" in layers.refused({"github_api": wrong})


def test_hosts_are_parsed_once_and_shown_as_they_were_written(layers: Layers) -> None:
    text = "Example.ORG, *.example.net:8443"
    loaded = layers.load({"allow_net": text})
    allowed = loaded.settings.allow_net
    assert allowed is not None
    assert [str(host) for host in allowed.hosts] == ["example.org:80,443", "*.example.net:8443"]
    assert json.loads(loaded.json())["allow_net"] == {"value": text, "origin": "--allow-net"}
    assert f" {text} " in loaded.table()
    assert json.loads(json.dumps(loaded.settings.public()))["allow_net"] == text
    layers.user.write_text("allow_net = 5\n")
    assert "cannot be 5: input should be a valid string" in layers.refused()


def test_no_file_turns_isolation_off(layers: Layers) -> None:
    layers.user.write_text("sandbox = 'here'\n")
    refused = layers.refused()
    assert f"{layers.user}:1: a file may not set sandbox to here, which turns isolation off" in refused
    assert refused.endswith("use --sandbox here or the variable M3AGENT_SANDBOX.")
    layers.user.write_text("sandbox = 'bwrap'\n")
    assert layers.load({"sandbox": "here"}).settings.sandbox == "here"
    assert layers.load(M3AGENT_SANDBOX="here").settings.sandbox == "here"


@pytest.mark.slow  # quick: test_faults_in_files_name_file_line_and_key
@pytest.mark.integration
def test_config_show_shows_what_is_right_and_says_what_is_wrong(layers: Layers, tmp_path: Path) -> None:
    layers.user.write_text('modle = "x"\nmax_turns = 5\nmax_minutes = -1\n')
    done = run(
        "config",
        "show",
        env={"XDG_CONFIG_HOME": str(layers.user.parent.parent), "M3AGENT_SEDE": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert re.search(rf"(?m)^max_turns +5 +{re.escape(str(layers.user))}$", done.stdout)
    assert done.stderr.splitlines() == [
        f"m3agent: to set one for good, write a line such as `max_turns = 50` into {layers.user}",
        f"m3agent: {layers.user}:1: modle is not a setting (did you mean model?).",
        f"m3agent: {layers.user}:3: max_minutes cannot be -1: input should be greater than 0.",
        "m3agent: The variable M3AGENT_SEDE is not a setting (did you mean M3AGENT_SEED?).",
    ]
    nowhere = run("config", "show", "--repo", "nowhere", cwd=tmp_path)
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert nowhere.stderr == "m3agent: There is no folder nowhere: give the repository's folder.\n"
