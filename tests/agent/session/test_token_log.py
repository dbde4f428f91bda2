"""The tokens of a session's turns, of which each line has only the new ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.session.token_log import FILE, TokenLog, read_tokens
from m3agent.serving.client.messages import TurnTokens

FIRST = TurnTokens((1, 2, 3), (4, 5), (-0.5, -1.0))
SECOND = TurnTokens((1, 2, 3, 4, 5, 6), (7,), (0.0,))


def test_a_line_has_the_new_tokens_only(tmp_path: Path) -> None:
    log = TokenLog(tmp_path)
    assert log.add(1, FIRST) == (0, 0)
    assert log.add(2, SECOND) == (5, 5)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [line["prompt"] for line in lines] == [[1, 2, 3], [6]]
    assert read_tokens(tmp_path) == {1: FIRST, 2: SECOND}


def test_a_prompt_that_does_not_repeat_the_last_one_is_noticed(tmp_path: Path) -> None:
    log = TokenLog(tmp_path)
    log.add(1, FIRST)
    other = TurnTokens((1, 2, 3, 9, 6), (7,))
    assert log.add(2, other) == (3, 5)
    log.close()
    assert read_tokens(tmp_path) == {1: FIRST, 2: other}


def test_a_session_that_resumes_goes_on(tmp_path: Path) -> None:
    log = TokenLog(tmp_path)
    log.add(1, FIRST)
    log.close()
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"turn":2,"ke')  # the process was killed
    again = TokenLog(tmp_path)
    assert again.add(2, SECOND) == (5, 5)
    again.close()
    assert read_tokens(tmp_path) == {1: FIRST, 2: SECOND}


def test_without_tokens_there_is_no_file(tmp_path: Path) -> None:
    TokenLog(tmp_path).close()
    assert not (tmp_path / FILE).exists()
    assert read_tokens(tmp_path) == {}


@pytest.mark.parametrize("damage", [b"null\n", b"[]\n", b'{"turn": 2}\n', b"\xff\n", b'{"kept": "x"}\n'])
def test_damage_ends_the_reading(tmp_path: Path, damage: bytes) -> None:
    log = TokenLog(tmp_path)
    log.add(1, FIRST)
    log.close()
    with (tmp_path / FILE).open("ab") as file:
        file.write(damage)
    assert read_tokens(tmp_path) == {1: FIRST}


IDS = st.lists(st.integers(0, 9), min_size=1, max_size=8).map(tuple)


@given(st.lists(st.builds(TurnTokens, IDS, IDS), max_size=5))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, turns: list[TurnTokens]) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    log = TokenLog(folder)
    for number, tokens in enumerate(turns, 1):
        log.add(number, tokens)
    log.close()
    assert read_tokens(folder) == dict(enumerate(turns, 1))
