"""`make fuzz`: a failing example that Hypothesis prints becomes an `@example` to paste."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.quality.fuzz import findings

ROOT = Path(__file__).parent.parent
PRINTED = """\
E       Failing test case: test_p(
E           tmp_path=PosixPath('/tmp/x'),
E           text='it\\'s (',  # or any other generated value
E           pairs=[(1, b'\\x00')],
E       )
E   Falsifying example: test_q(x=0)
"""
PROPERTY = """\
from hypothesis import given, strategies as st

@given(st.integers())
def test_small(number):
    assert number < 1000
"""


def test_findings_are_read_from_what_pytest_prints() -> None:
    first, second = findings(PRINTED)
    assert str(first) == "# test_p\n@example(\n    text=\"it's (\",\n    pairs=[(1, b'\\x00')],\n)"
    assert str(second) == "# test_q\n@example(\n    x=0,\n)"


@pytest.mark.slow
@pytest.mark.integration
def test_a_finding_is_printed_once_and_ends_with_one(tmp_path: Path) -> None:
    (tmp_path / "test_property.py").write_text(PROPERTY)
    (tmp_path / "conftest.py").write_text(
        "import hypothesis\nhypothesis.settings.register_profile('fuzz', database=None)\n"
    )
    command = [sys.executable, str(ROOT / "scripts" / "quality" / "fuzz.py"), "--rounds", "2", "--seed", "1"]
    env = {**os.environ, "CI": "true"}  # pytest then prints each finding twice
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1, done.stdout
    assert done.stdout.startswith("round 1, seed 1: test_property.py::test_small")
    assert done.stdout.count("@example(\n    number=1000,\n)") == 1
    assert done.stdout.endswith("2 rounds, 1 findings\n")
