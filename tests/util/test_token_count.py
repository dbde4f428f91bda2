"""Numbers of tokens as people write them, wherever an option or a setting takes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.agent.settings.loader import load_settings
from m3agent.util.errors import UsageError
from m3agent.util.token_count import some_tokens, token_count
from tests.command_line import run

WRONG = ("", "M", "1.5M", "-1", "1G", "1 M k", "٣", "9" * 5000, "1e3")


@pytest.mark.parametrize(
    ("text", "count"),
    [("8192", 8192), ("512k", 524_288), ("512K", 524_288), (" 1m ", 1_048_576), ("1M", 1_048_576), ("0", 0)],
)
def test_units(text: str, count: int) -> None:
    assert token_count(text) == count


@pytest.mark.parametrize("text", WRONG)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole number of tokens"):
        token_count(text)


def test_no_tokens_are_too_few_for_an_option() -> None:
    assert some_tokens("1k") == 1024
    with pytest.raises(ValueError, match="at least 1"):
        some_tokens("0k")


@pytest.mark.parametrize("name", ["context_budget", "max_tokens"])
def test_settings_take_units_from_every_place(name: str, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    assert getattr(load_settings(tmp_path, {name: "64k"}, env).settings, name) == 65_536
    variable = {**env, f"M3AGENT_{name.upper()}": "1M"}
    assert getattr(load_settings(tmp_path, {}, variable).settings, name) == 1_048_576
    (tmp_path / ".m3agent.toml").write_text(f'{name} = "2k"\n')
    assert getattr(load_settings(tmp_path, {}, env).settings, name) == 2048
    for wrong in ("0", "many"):
        with pytest.raises(
            UsageError, match=rf"--{name.replace('_', '-')} cannot be '{wrong}': input should be"
        ):
            load_settings(tmp_path, {name: wrong}, env)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("plan --gpus 8xH200 --context 1M", "1,048,576 tokens"),
        ("plan --gpus 8xH200 --context 1M --typical 512k", "524,288"),
        ("serve --dry-run --gpus 8xH200 --context 1m", "--max-model-len 1048576"),
    ],
)
def test_commands_take_units(words: str, text: str) -> None:
    done = run(*words.split())
    assert done.returncode == 0
    assert text in done.stdout
