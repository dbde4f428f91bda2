"""`make demo` without its set-up: the script that fixes the example package."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent


def demo(tmp_path: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the demo with its repositories below `tmp_path`."""
    return subprocess.run(
        [ROOT / "scripts" / "demo.sh"],
        env={**os.environ, "TMPDIR": str(tmp_path), **environment},
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
    )


def typed(command: str, folder: Path) -> str:
    """Return what a command prints that a person types who has activated no environment."""
    shell = [shutil.which("bash") or "", "-c", command]
    env = {**os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return subprocess.run(shell, cwd=folder, env=env, capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_ends_with_a_verified_patch(tmp_path: Path) -> None:
    result = demo(tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("diff --git ")
    assert "\x1b" not in result.stdout + result.stderr
    (repo,) = tmp_path.glob("m3agent-demo.*/ferry")
    *_, following, undo, lead_on = result.stderr.splitlines()
    shown = re.fullmatch(r"next       (git -C .*)  shows the change", following)
    assert shown is not None, following
    assert undo.endswith(f"m3agent apply --undo --repo {repo}  takes it back")
    assert "+        return vehicle.length <= self.free\n" in typed(shown[1], tmp_path)
    assert "Python" in typed("; ".join(re.findall("`([^`]*)`", lead_on)), tmp_path)
    ferry = ROOT / "examples" / "ferry"
    changed = [
        path
        for path in ferry.rglob("*.py")
        if path.read_text() != (repo / path.relative_to(ferry)).read_text()
    ]
    assert [path.name for path in changed] == ["deck.py"]
    assert "vehicle.length <= self.free" in (repo / "src" / "ferry" / "deck.py").read_text()


@pytest.mark.slow
def test_the_demo_fails_without_a_verified_patch(tmp_path: Path) -> None:
    result = demo(tmp_path, M3AGENT_MAX_TURNS="1")
    assert result.returncode == 6, result.stderr
    assert result.stdout == ""
    assert "demo: no verified patch (exit code 6)" in result.stderr
