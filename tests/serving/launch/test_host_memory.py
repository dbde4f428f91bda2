"""Memory for a host cache, on machines that have it and on machines that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.serving.launch.installed import RESERVE, lacking_memory

MEMINFO = "MemTotal:       1056000000 kB\nMemFree:  1000 kB\nMemAvailable:   {} kB\nBuffers: 0 kB\n"


@pytest.mark.parametrize(
    ("size", "available", "said"),
    [
        (0, 0, None),
        (10**6, (10**6 + RESERVE) // 1024 + 1, None),
        (
            10**9,
            (10**9 + RESERVE) // 1024 - 1,
            "needs 33 GB of memory with the engine, and 33 GB are available",
        ),
        (400 * 10**9, 10**9, "as much room in"),
    ],
)
def test_memory(tmp_path: Path, size: int, available: int, said: str | None) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO.format(available))
    found = lacking_memory(size, meminfo=tmp_path / "meminfo", shared=tmp_path)
    assert (found is None) if said is None else (found is not None and said in found)
    if said is not None and "room" in said:
        assert lacking_memory(size, meminfo=tmp_path / "meminfo", shared=None) is None


def test_a_machine_that_does_not_say_is_not_judged(tmp_path: Path) -> None:
    assert lacking_memory(10**15, meminfo=tmp_path / "none") is None
