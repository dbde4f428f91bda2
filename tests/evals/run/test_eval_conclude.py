"""Test what `m3agent eval run` says at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.cli.eval.run import conclude
from tests.evals.report.made import result, run_folder


@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        ({"engine": "embedded"}, "; the embedded engine needs a test that fails"),
        ({"endpoint": "http://gpu:8000/v1"}, ""),
    ],
)
def test_a_run_that_resolves_nothing_says_how_its_attempts_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], engine: dict[str, str], cause: str
) -> None:
    results = [result("o__a-1", "empty"), result("o__a-2", "empty"), result("o__b-1", "unresolved")]
    assert conclude(run_folder(tmp_path / "run", results, settings=engine), Path("run"), as_json=False) == 0
    told = capfd.readouterr().err
    assert f"2 of 3 ended as empty (it is empty){cause}" in told
    assert "next: m3agent eval report run shows the results" in told
