"""Test what a sandbox says whose engine takes its files and does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.backends import sandbox as module
from m3agent.sandbox.errors import SandboxTimeout
from tests.fakes.machine import MemorySupervisor, sandbox_over


async def test_an_engine_that_stalls_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = MemorySupervisor._handle

    def stall(self: MemorySupervisor, header: dict[str, Any], payload: bytes) -> None:
        if header["op"] != "put":
            answer(self, header, payload)

    monkeypatch.setattr(MemorySupervisor, "_handle", stall)
    monkeypatch.setattr(module, "PUT_TIMEOUT", 0.0)
    with pytest.raises(SandboxTimeout, match=r"^the sandbox did not write its files within 0 s$"):
        async with sandbox_over(tmp_path, {"a.py": "a = 1\n"}):
            pass
