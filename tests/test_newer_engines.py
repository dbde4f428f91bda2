"""Engines that are newer than the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from scripts.quality.newer_engines import LISTINGS, known, newest_of


def test_the_newest_listing_of_each_engine_counts(tmp_path: Path) -> None:
    for name in ("vllm-0.9.0", "vllm-0.24.0", "some-engine-1.0rc1"):
        (tmp_path / f"{name}.json").write_text("{}")
    assert known(tmp_path) == {"vllm": Version("0.24.0"), "some-engine": Version("1.0rc1")}
    assert {"vllm", "sglang"} <= known(LISTINGS).keys()


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("vllm (0.34.1)\nAvailable versions: 0.34.1, 0.34.0\n", "0.34.1"),
        ("sglang (0.5.24.post1)\n", "0.5.24.post1"),
        ("", None),
        ("WARNING: something\n", None),
    ],
)
def test_versions_in_the_output_of_pip(output: str, version: str | None) -> None:
    assert newest_of(output) == (Version(version) if version else None)
