"""Each example has one fault that a test shows and an issue without hints, and does not affect our own checks."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/ISSUE.md"))


def run_tests(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run an example's tests as its user would, without this repository's configuration."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


def test_there_is_an_example() -> None:
    assert "ferry" in [path.name for path in EXAMPLES]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_issue_gives_no_file_or_line_away(example: Path) -> None:
    text = (example / "ISSUE.md").read_text()
    assert not re.search(r"\.py\b|\bline \d+ of\b|\btest_\w+", text)
    names = set(
        re.findall(
            r"^(?:class|\s*def) (\w+)",
            "".join(p.read_text() for p in example.rglob("src/**/*.py")),
            re.MULTILINE,
        )
    )
    assert not {name for name in names if re.search(rf"`{name}|\b{name}\(", text)}


@pytest.mark.slow
@pytest.mark.integration
def test_the_ferry_has_one_fault_of_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "ferry"
    shutil.copytree(ROOT / "examples" / "ferry", folder, ignore=shutil.ignore_patterns("__pycache__"))
    broken = run_tests(folder)
    assert broken.returncode == 1
    assert re.search(r"^1 failed, \d+ passed", broken.stdout, re.MULTILINE)
    deck = folder / "src" / "ferry" / "deck.py"
    source = deck.read_text()
    assert source.count("vehicle.length < self.free") == 1
    deck.write_text(source.replace("vehicle.length < self.free", "vehicle.length <= self.free"))
    repaired = run_tests(folder)
    assert repaired.returncode == 0, repaired.stdout
