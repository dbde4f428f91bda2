"""Test what `m3agent serve status` and `--detach` print on a narrow terminal, without a server."""

from __future__ import annotations

import pytest

from m3agent.cli import apart
from m3agent.cli.apart import relay
from m3agent.cli.serve.manage import COLUMNS, DROPPED, status_table
from m3agent.serving.launch.record import ServerRecord
from m3agent.util import sanitize

RECORD = ServerRecord(
    url="http://127.0.0.1:8000/v1",
    engine="vllm",
    pid=12345,
    model="minimax-m3",
    max_model_len=524_288,
    kv_tokens=1_762_432,
    gpus="8xH200",
    since=1.0,
)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_the_table_of_servers_fits(width: int) -> None:
    table, left_out = status_table([RECORD], width)
    assert max(map(len, table.splitlines())) <= width
    assert RECORD.url in table and "vllm" in table
    assert left_out == [head for head in COLUMNS if head in DROPPED[: len(left_out)]]


def test_a_file_gets_all_columns() -> None:
    table, left_out = status_table([RECORD], 0)
    assert left_out == [] and table.split()[: len(COLUMNS)] == list(COLUMNS)


def test_the_output_of_a_server_in_the_background_wraps_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in (apart, sanitize):
        monkeypatch.setattr(module, "columns_of", lambda _stream: 60)
    data = b"word " * 40 + b"\x1b[2J\nbegun"
    told = relay(data, last=False)
    assert data[told:] == b"begun"
    assert relay(data[told:], last=True) == 5
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 60
    assert lines[-1] == "begun"
    assert "\x1b" not in "".join(lines)


def test_a_pipe_gets_the_output_of_a_server_as_it_is(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert relay(b"half a li", last=False) == 9
    assert capfdbinary.readouterr().err == b"half a li"
