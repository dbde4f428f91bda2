"""Test that one declaration of a setting is enough, with settings that only this file declares.

The annotations of a declaration are read at run time, so this file does not postpone their evaluation.
"""

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import typer
from typer.testing import CliRunner

from m3agent.agent.settings import loader as settings_loader
from m3agent.agent.settings.loader import load_settings, settings_of
from m3agent.agent.settings.options import WITH_FLAG, Flags, takes_settings
from m3agent.agent.settings.settings import SETTINGS, Setting, Settings, declared
from m3agent.cli import app as cli
from m3agent.util.errors import UsageError
from scripts.docs import settings_page


def _lower(text: str) -> str:
    if not text.isalpha():
        raise ValueError("it should be letters")
    return text.lower()


@dataclass(frozen=True)
class More(Settings):
    """The settings, plus one of each kind."""

    colour: Literal["red", "blue"] = Setting(
        "red", "Colour of it.", more="See [there](there.md).", repository="unset"
    ).field
    depth: int | None = Setting(
        None, "Limit of depth.", metavar="N", if_unset="none", at_least=1, repository="lower"
    ).field
    loud: bool = Setting(True, "Make a noise.").field
    quick: bool = Setting(False, "Leave out a|b.").field
    ratio: float = Setting(0.5, "Share of it.", above=0, at_most=1, flag=False).field
    side: Literal["left", "right"] = Setting("left", "Side of it.", metavar="left|right").field
    word: str | None = Setting(None, "A word.", check=_lower).field


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, setting in declared(More).items():
        monkeypatch.setitem(SETTINGS, name, setting)
    monkeypatch.setattr(settings_loader, "Settings", More)


class Show:
    """A command that takes these settings."""

    def __init__(self) -> None:
        self.flags: Flags = {}
        self.app = typer.Typer(rich_markup_mode=None, add_completion=False)

        @self.app.command()
        @takes_settings("word", "loud", "quick", "side", "colour", depth="Depth of this.")
        def show(repo: Path = Path(), *, flags: Flags, last: bool = False) -> None:
            self.flags = flags

    def __call__(self, *arguments: str) -> Flags:
        done = CliRunner().invoke(self.app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return self.flags

    def help(self) -> str:
        return CliRunner(env={"COLUMNS": "200"}).invoke(self.app, ["--help"]).output


def values_of(
    flags: Flags, folder: Path, env: Mapping[str, str] | None = None
) -> dict[str, tuple[object, str]]:
    """Return value and origin of each setting that `More` adds, by name."""
    loaded = load_settings(folder, flags, {"HOME": str(folder), **(env or {})})
    return {name: (value, origin) for name, value, origin in loaded.show() if not hasattr(Settings, name)}


@pytest.mark.usefixtures("more")
def test_a_declared_setting_is_a_flag(tmp_path: Path) -> None:
    show = Show()
    assert show() == dict.fromkeys(("colour", "depth", "loud", "quick", "side", "word")), "nothing was given"
    flags = show("--colour", "blue", "--depth", "3", "--no-loud", "--quick", "--word", "Abc", "--last")
    assert values_of(flags, tmp_path) == {
        "colour": ("blue", "--colour"),
        "depth": (3, "--depth"),
        "loud": (False, "--loud"),
        "quick": (True, "--quick"),
        "ratio": (0.5, "default"),
        "side": ("left", "default"),
        "word": ("abc", "--word"),
    }
    with pytest.raises(UsageError, match=r"--depth cannot be 0: .*greater than or equal to 1"):
        values_of(show("--depth", "0"), tmp_path)
    with pytest.raises(UsageError, match="--side cannot be 'up': input should be 'left' or 'right'"):
        values_of(show("--side", "up"), tmp_path)
    with pytest.raises(UsageError, match="--word cannot be '1': it should be letters"):
        values_of(show("--word", "1"), tmp_path)


@pytest.mark.usefixtures("more")
def test_options_have_the_order_and_help_of_the_declaration() -> None:
    text = Show().help()
    assert re.findall(r"^ +--([a-z]+)", text, re.MULTILINE) == [
        *("repo", "colour", "depth", "loud", "quick", "side", "word", "last", "help")
    ]
    for line in (
        r"--colour <red\|blue> +Colour of it\.",
        r"--depth N +Depth of this\.",
        r"--loud ?/ ?--no-loud +Make a noise\.",
        r"--quick +Leave out",
        r"--side left\|right +Side of it\.",
        r"--word <str> +A word\.",
    ):
        assert re.search(rf"^ +{line}", text, re.MULTILINE), (line, text)


@pytest.mark.usefixtures("more")
def test_a_declared_setting_is_a_variable(tmp_path: Path) -> None:
    env = {"M3AGENT_COLOUR": "blue", "M3AGENT_DEPTH": "3", "M3AGENT_LOUD": "no", "M3AGENT_RATIO": "0.25"}
    found = values_of({}, tmp_path, env)
    assert found["colour"] == ("blue", "M3AGENT_COLOUR")
    assert (found["depth"][0], found["loud"][0], found["ratio"][0]) == (3, False, 0.25)
    for text in ("0", "1.5", "inf", "nan"):
        with pytest.raises(UsageError, match="M3AGENT_RATIO cannot be"):
            values_of({}, tmp_path, {"M3AGENT_RATIO": text})


@pytest.mark.usefixtures("more")
def test_a_declared_setting_is_a_key_in_files(tmp_path: Path) -> None:
    own = tmp_path / ".m3agent.toml"
    user = tmp_path / ".config" / "m3agent" / "config.toml"
    user.parent.mkdir(parents=True)
    own.write_text("colour = 'blue'\ndepth = 5\n")
    user.write_text("ratio = 1\ndepth = 3\nloud = false\n")
    found = values_of({}, tmp_path)
    assert found["colour"] == ("blue", str(own))
    assert found["depth"] == (3, str(user)), "a repository's limit only lowers"
    assert (found["ratio"], found["loud"]) == ((1.0, str(user)), (False, str(user)))
    own.write_text("depth = 2\n")
    assert values_of({}, tmp_path)["depth"] == (2, str(own))
    own.write_text("loud = false\n")
    with pytest.raises(UsageError, match="may not set loud"):
        values_of({}, tmp_path)


def test_a_declared_setting_is_an_argument_and_a_row() -> None:
    new = {name: setting for name, setting in declared(More).items() if name not in SETTINGS}
    assert settings_page.arguments(new).splitlines() == [
        '    colour: Literal["red", "blue"]',
        "    depth: int",
        "    loud: bool",
        "    quick: bool",
        "    ratio: float",
        '    side: Literal["left", "right"]',
        "    word: str",
    ]
    assert settings_page.table(new).splitlines()[2:] == [
        "| `colour` | `red` | Colour of it. One of `red`, `blue`. See [there](there.md). | if yours does not |",
        "| `depth` | none | Limit of depth. | only lower |",
        "| `loud` | `true` | Make a noise. | no |",
        r"| `quick` | `false` | Leave out a\|b. | no |",
        "| `ratio` (no flag) | `0.5` | Share of it. | no |",
        "| `side` | `left` | Side of it. One of `left`, `right`. | no |",
        "| `word` |  | A word. | no |",
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_help_is_one_sentence(name: str) -> None:
    assert re.fullmatch(r"[A-Z]((?!\. )[^\n`])*\.", SETTINGS[name].help)


def test_fix_has_a_flag_for_every_setting_but_four() -> None:
    assert set(WITH_FLAG) <= inspect.signature(cli.fix).parameters.keys()
    assert SETTINGS.keys() - set(WITH_FLAG) == {"api_key", "key_over_http", "memory", "cpus"}


def test_a_command_cannot_take_what_is_not_declared() -> None:
    with pytest.raises(AssertionError, match="colour"):
        takes_settings("colour")


def test_settings_come_back_from_a_log() -> None:
    settings = Settings(max_minutes=1.5, model="m", instructions=False)
    logged = json.loads(json.dumps(settings.public()))
    assert settings_of(logged) == settings
    assert settings_of({**logged, "max_minutes": 2, "thinking": None}) == replace(settings, max_minutes=2.0)
    with pytest.raises(UsageError, match=r"^max_turns cannot be 0: input should be"):
        settings_of({**logged, "max_turns": 0})


def test_the_key_is_not_public() -> None:
    settings = settings_of({"api_key": "hush"})
    assert [key.text for key in settings.keys] == ["hush"]
    assert "api_key" not in settings.public()
    assert "hush" not in f"{settings!r} {settings} {settings.public()}"
