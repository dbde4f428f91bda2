"""Test that a repository's own file only tightens: every declared setting, with looser, tighter and hostile values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from m3agent.agent.settings.loader import LARGEST, LoadedSettings, load_settings
from m3agent.agent.settings.settings import LONGEST_NAME, SETTINGS, Setting, Settings
from m3agent.util.errors import UsageError
from tests.conftest import others_later

FILES = (".m3agent.toml", "pyproject.toml")
HOST = {
    *("endpoint", "engine", "api_key", "key_over_http", "server_price", "github_api"),
    *("image", "environment", "dockerfile", "sandbox", "allow_net", "mcp"),
    *("yes", "tokenizer", "prefix", "instructions", "probe", "training", "seed", "attempts", "candidates"),
    *(
        "effort",
        "checks",
        "reruns",
        "verify_rounds",
        "verify_minutes",
        "baseline_minutes",
    ),  # they decide what counts as evidence
}
"""Settings that a repository may not set at all."""
IGNORED = {"thinking"}
"""Settings that have no effect in a repository's file."""
CHOICES = {"model": ("mine", "theirs")}
"""Settings that a repository may set if the user's file does not: the user's value, and the repository's."""
LIMITS = {
    "context_budget": (1000, 5000, 9000),
    "max_turns": (9, 50, 150),
    "max_minutes": (2.5, 30.0, 90.0),
    "max_tokens": (1000, 5000, 90000),
    "max_cost": (0.5, 5.0, 10.0),
    "memory": ("900m", "2g", "9999g"),
    "cpus": (0.5, 1.0, 16.0),
}
"""Settings that a repository may only tighten: small, middle and large values. A default is between the last two."""
DIGITS = "9" * 5000  # more than Python converts from or to text
HOSTILE = (
    *("-1", "0", "1e400", "-inf", "inf", "nan", f"1{'0' * 400}", DIGITS, f"0x{DIGITS}", f"'{DIGITS}g'"),
    *(
        "''",
        "' '",
        "'-x'",
        "'٣g'",
        f"'{'x' * 100_000}'",
        '"\\u001b]0;title\\u0007"',
        '"\\u202e\\u009b2J"',
        '"""a\nb"""',
    ),
    *(
        "true",
        "1979-05-27",
        "[]",
        "{}",
        "[1, 2]",
        "{a = 1}",
        "'a'",
        "[" * 5000,
        f"{{{'a.' * 20_000}b = 1}}",
        "= 1",
        "'",
    ),
)
"""Values in a file that are wrong for most settings, or that harm the program that reads them."""


class World:
    """A repository and a user, each with a settings file."""

    def __init__(self, folder: Path) -> None:
        self.home, self.repo = folder / "home", folder / "repo"
        (self.repo / ".git").mkdir(parents=True)
        self.user = self.home / ".config" / "m3agent" / "config.toml"
        self.user.parent.mkdir(parents=True)
        self.own = self.repo / FILES[0]

    def write(self, name: str, text: str, file: str) -> None:
        """Set one setting in one of the repository's files; the other file is removed."""
        self.own = self.repo / file
        for path in (self.repo / each for each in FILES):
            path.unlink(missing_ok=True)
        self.own.write_text(f"{'[tool.m3agent]' if file == FILES[1] else '# ours'}\n{name} = {text}\n")

    def load(self, flags: Mapping[str, object] | None = None, /, **variables: str) -> LoadedSettings:
        return load_settings(self.repo, flags or {}, {"HOME": str(self.home), **variables})

    def found(self, name: str, own: object, user: object, **variables: str) -> tuple[object, str]:
        """Return value and origin of a setting, given both files' values; None stands for none."""
        self.write(name, json.dumps(own), FILES[0]) if own is not None else self.own.unlink(missing_ok=True)
        self.user.write_text("" if user is None else f"{name} = {json.dumps(user)}\n")
        row = json.loads(self.load(**variables).json())[name]
        return row["value"], row["origin"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_every_setting_has_its_rule() -> None:
    rules = {"no": HOST, "ignored": IGNORED, "unset": set(CHOICES), "lower": set(LIMITS)}
    for rule, names in rules.items():
        assert {name for name, setting in SETTINGS.items() if setting.repository == rule} == names


@pytest.mark.parametrize("name", SETTINGS)
def test_a_repository_only_tightens(world: World, name: str) -> None:
    own, user, variable = str(world.repo / FILES[0]), str(world.user), SETTINGS[name].variable
    default = getattr(Settings(), name)
    if name in HOST:
        for file in FILES:
            for value in ("'x'", "1", "true"):
                world.write(name, value, file)
                with pytest.raises(
                    UsageError, match=f"{world.own}:2: a repository's own file may not set {name}: "
                ):
                    world.load()
    elif name in IGNORED:
        assert world.found(name, "disabled", None) == (default, "default")
        assert world.found(name, 1, "adaptive") == ("adaptive", user)
    elif name in CHOICES:
        mine, theirs = CHOICES[name]
        assert world.found(name, theirs, None) == (theirs, own)
        assert world.found(name, theirs, mine) == (mine, user), "a choice of the user is not loosened"
        assert world.found(name, theirs, None, **{variable: mine}) == (mine, variable)
    else:
        small, middle, large = LIMITS[name]
        assert world.found(name, small, middle) == (small, own)
        assert world.found(name, large, middle) == (middle, user)
        assert world.found(name, middle, middle) == (middle, user)
        assert world.found(name, middle, large) == (middle, own), "the user may raise what the default is"
        assert world.found(name, small, None) == (small, own)
        unlimited = default is None
        assert world.found(name, large, None) == ((large, own) if unlimited else (default, "default"))
        for stronger in (small, large):
            assert world.found(name, middle, None, **{variable: str(stronger)}) == (stronger, variable)


@pytest.mark.parametrize(
    "name", others_later(SETTINGS, {"endpoint", "max_turns", "memory", "model", "thinking"})
)
def test_a_hostile_value_is_refused_in_one_sentence_or_tightens(world: World, name: str) -> None:
    setting, before = SETTINGS[name], getattr(Settings(), name)
    for file in FILES:
        for value in HOSTILE:
            world.write(name, value, file)
            try:
                loaded = world.load()
            except UsageError as refused:
                sentence = str(refused)
                assert sentence.isprintable() and sentence.endswith(".") and len(sentence) < 1000, sentence
                assert str(world.own) in sentence
            else:
                assert setting.repository != "no", value
                after = getattr(loaded.settings, name)
                assert after == before or _is_tight(setting, after, before), value
                assert loaded.json() and loaded.table()


def _is_tight(setting: Setting, after: object, before: object) -> bool:
    """Return whether a value that came from a repository is one that it may set."""
    if setting.repository == "unset":
        return str(after).isprintable() and len(str(after)) <= LONGEST_NAME
    return 0 < setting.measure(after) < (2 * LARGEST if before is None else setting.measure(before))


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('command = "./t {report}"\nreport = "junit"', ""),
        ('command = ["./t"]\nreport = "tap"\nfile = "out.tap"', ""),
        ('report = "tap"', "needs a command"),
        ('command = []\nreport = "tap"', "needs a command"),
        ('command = [1]\nreport = "tap"', "needs a command"),
        ('command = "./t"', "must be one of junit, tap"),
        ('command = "./t"\nreport = "text"', "must be one of junit, tap"),
        ('command = "./t"\nreport = "tap"\nuser = "root"', "has no user"),
        ('leave_out = ["jest", "go:tools"]', ""),
        ('env = {SERVICE_URL = "http://localhost", TZ = "Asia/Tokyo"}', ""),
        ('env = {LD_PRELOAD = "x.so"}', "env of tests may not set LD_PRELOAD"),
        ('env = {PYTHONPATH = "x"}', "may not set PYTHONPATH"),
        ('env = {path = "x"}', "may not set path"),
        ('env = {PYTEST_ADDOPTS = "-k x"}', "may not set PYTEST_ADDOPTS"),
        ('env = {https_proxy = "x"}', "may not set https_proxy"),
        ('env = {"A B" = "x"}', "not the name of a variable"),
        ("env = {A = 1}", "must give A a text"),
        ('env = "A=1"', "must be a table"),
        ('leave_out = ["jest"]\nreport = "tap"', "needs a command"),
        ('leave_out = "jest"', "must be a list"),
        ('leave_out = ["jset"]', r"jset is no test runner \(did you mean jest\?\)"),
    ],
)
@pytest.mark.parametrize("file", FILES)
def test_the_test_command_of_a_repository(tmp_path: Path, file: str, table: str, problem: str) -> None:
    """It is no setting, but a mistake in it must not be ignored: then the tests would not be found."""
    head = "[tests]" if file == ".m3agent.toml" else "[tool.m3agent.tests]"
    (tmp_path / ".git").mkdir()
    (tmp_path / file).write_text(f"{head}\n{table}\n")
    if not problem:
        load_settings(tmp_path, {}, {"HOME": str(tmp_path)})
        return
    with pytest.raises(UsageError, match=problem) as caught:
        load_settings(tmp_path, {}, {"HOME": str(tmp_path)})
    assert f"{file}:1: " in str(caught.value)
    assert "\n" not in str(caught.value)
