"""Too much output, or output that would affect a terminal, a log or a model."""

from __future__ import annotations

import asyncio
import re
import resource
from pathlib import Path

import pytest

from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.tools.base import MOST_CHARACTERS, ToolResult
from m3agent.tools.registry import Toolset
from m3agent.util.sanitize import printable_line
from tests.abuse.box import Box
from tests.conftest import TIME_LIMITS, others_later

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.supervisor]

LIMITS = SandboxLimits(memory=512 << 20)
CAP = 50 << 20
"""The most bytes of one command's output that reach the host."""

FLOODS = {
    "nul": "for _ in range(60): os.write(1, bytes(1 << 20))",
    "standard-error": "for _ in range(60): os.write(2, b'e' * (1 << 20))",
    "both": "for _ in range(30): os.write(1, b'o' * (1 << 20)); os.write(2, b'e' * (1 << 20))",
    "one-line": "for _ in range(60): os.write(1, b'x' * (1 << 20))",
    "random": "for _ in range(60): os.write(1, os.urandom(1 << 20))",
    "empty-lines": "for _ in range(60): os.write(1, b'\\n' * (1 << 20))",
    "from-children": (
        "for _ in range(10): child(lambda: [os.write(1, b'c' * (1 << 20)) for _ in range(6)])\n"
        "for _ in range(10): os.wait()"
    ),
}


def host_memory() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("flood", others_later(FLOODS, {"both", "from-children"}))
async def test_a_flood_is_counted_and_cut(box: Box, flood: str, tmp_path: Path) -> None:
    before = host_memory()
    log = tmp_path / "log"
    done = await box.sandbox.exec(
        [
            "python3",
            "-c",
            f"import os\ndef child(f):\n    if os.fork() == 0: f(); os._exit(0)\n{FLOODS[flood]}",
        ],
        log=log,
        timeout=100,
    )
    assert done.exit == 0
    assert done.total_bytes == 60 << 20
    assert len(done.stdout) + len(done.stderr) <= 128 << 10
    assert log.stat().st_size <= CAP
    assert host_memory() - before < 100 << 20


@pytest.mark.slow
async def test_two_gigabytes_are_counted_and_the_log_is_capped(box: Box, tmp_path: Path) -> None:
    done = await box.sandbox.exec(
        ["head", "-c", "2147483648", "/dev/zero"], log=tmp_path / "log", timeout=170
    )
    assert (done.exit, done.total_bytes) == (0, 2 << 30)
    assert (tmp_path / "log").stat().st_size == CAP


async def test_a_flood_does_not_keep_others_waiting(box: Box) -> None:
    for limit in TIME_LIMITS:
        flood, answers = asyncio.create_task(box.sandbox.exec(["cat", "/dev/zero"], timeout=limit)), 0
        while not flood.done():
            assert (await box.sandbox.exec(["echo", "still here"])).stdout == b"still here\n"
            answers += 1
        assert (await flood).timed_out
        if answers > 1:  # the last one may have come after the flood
            return
    pytest.fail("no command was answered before the flood ended")


async def test_output_in_single_bytes_is_complete(box: Box) -> None:
    done = await box.python("for _ in range(200_000): os.write(1, b'x')", timeout=60)
    assert (done.exit, done.total_bytes) == (0, 200_000)


HOSTILE = {
    "clear-screen": b"\x1b[2J\x1b[H",
    "title": b"\x1b]0;owned\x07",
    "clipboard": b"\x1b]52;c;cm0gLXJmIH4=\x07",
    "hyperlink": b"\x1b]8;;file:///etc/passwd\x1b\\text\x1b]8;;\x1b\\",
    "unfinished-command": b"\x1b]52;c;cm0=",
    "device-control": b"\x1bP+q544e\x1b\\",
    "status-report": b"\x1b[6n\x1b[c\x1b[>c",
    "alternate-screen": b"\x1b[?1049h",
    "eight-bit-control": b"\xc2\x9b2J \xc2\x9d0;x\xc2\x9c",
    "application-command": b"\x1b_Gf=100;AAAA\x1b\\",
    "shift-out": b"\x0e\x0f\x1b(0qqq\x1b(B",
    "backspaces": b"rm -rf /\x08\x08\x08\x08\x08\x08\x08\x08ls",
    "carriage-return": b"FAILED\rpassed",
    "bell": b"\x07" * 50,
    "bidirectional": "\u202egnp.exe\u202c \u2066x\u2069 \u200fz".encode(),
    "delete": b"\x7f\x7f",
    "raw-high-bytes": bytes(range(0x80, 0x100)),
    "nested-escape": b"\x1b\x1b[[2J\x1b]0;\x1b[2Jx\x07",
    "half-character": b"\xf0\x9f\x92",
}
DANGEROUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")


async def call(box: Box, folder: Path, code: str) -> ToolResult:
    return await Toolset(box.sandbox, folder).call("code_exec", {"code": code, "timeout": 60}, 1)


async def test_terminal_sequences_reach_neither_screen_nor_model(box: Box, tmp_path: Path) -> None:
    write = "for fd in (1, 2): os.write(fd, b'before ' + text + b' after\\n')"
    result = await call(box, tmp_path, f"import os\nfor text in {list(HOSTILE.values())!r}:\n    {write}")
    assert result.content.count("before") == 2 * len(HOSTILE)
    assert DANGEROUS.search(result.content) is None
    assert DANGEROUS.search(printable_line(result.content, 100_000)) is None
    result.content.encode()  # fails if the text is not valid Unicode


async def test_no_control_sequence_remains_where_long_output_is_cut(box: Box, tmp_path: Path) -> None:
    """A cut must not leave half a control sequence, and must not join two parts to a new one."""
    for cut in range(1, 40, 9):
        code = f"import os; os.write(1, b'x' * {cut} + b'\\x1b]52;c;AAAA\\x07\\x1b[2J' * 40_000)"
        result = await call(box, tmp_path, code)
        assert result.truncated
        assert len(result.content) <= MOST_CHARACTERS + 200
        assert DANGEROUS.search(result.content) is None


async def test_names_of_files_and_tests_are_made_harmless_too(box: Box, tmp_path: Path) -> None:
    name = "test_\x1b]0;x\x07\u202e.py"
    await box.sandbox.write(
        name,
        b"import pytest\n@pytest.mark.parametrize('x', ['\\x1b[2J'])\ndef test_a(x): assert 0, '\\x1b[2J\\u202e'\n",
    )
    result = await Toolset(box.sandbox, tmp_path).call("test_runner", {"test_file": ".", "timeout": 60}, 1)
    assert "1 failed" in result.content
    assert DANGEROUS.search(result.content) is None
