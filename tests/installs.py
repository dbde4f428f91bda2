"""Environments of Python of their own, for tests of what users install; a test is left out where none can be made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def build(kind: str, folder: Path) -> Path:
    """Build a wheel or an sdist as an installer would, but with the tools that are here."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (built,) = folder.iterdir()
    return built


def uv() -> str:
    """The uv of PATH, or the one that set-up has brought."""
    found = shutil.which("uv") or shutil.which("uv", path=ROOT / ".setup" / "uv" / "bin")
    if found is None:
        pytest.skip("needs uv")
    return found


def new_environment(folder: Path, python: str = sys.executable) -> Path:
    """An empty environment in a folder that is not there yet; returns its Python."""
    subprocess.run([uv(), "venv", "--quiet", "--python", python, str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, *packages: str) -> None:
    """Install packages into the environment of a Python; the test is left out where they cannot be had."""
    command = [uv(), "pip", "install", "--quiet", "--python", str(python), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=uv_env())
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1].strip()
        pytest.skip(f"{packages[-1]} cannot be installed here: {last}")


def uv_env() -> dict[str, str]:
    """An environment in which uv trusts what this machine trusts, as set-up has it."""
    return {**os.environ, "UV_SYSTEM_CERTS": "true"}


def newer_python(least: tuple[int, int]) -> str:
    """A Python of at least this version: ours, one that pyenv has, or one that uv finds or brings."""
    if sys.version_info >= least:
        return sys.executable
    asks = f"import sys; sys.exit(sys.version_info < {least})"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in sorted(pyenv.glob("3.*/bin/python")):
        if subprocess.run([found, "-c", asks], check=False, capture_output=True).returncode == 0:
            return str(found)
    wanted = f">={least[0]}.{least[1]}"
    for verb in ("find", "install"):
        done = subprocess.run([uv(), "python", verb, wanted], check=False, capture_output=True, env=uv_env())
        if verb == "find" and done.returncode == 0:
            return done.stdout.decode().strip()
        if verb == "install" and done.returncode == 0:
            return wanted
    pytest.skip(f"needs a Python {wanted}, and neither pyenv nor uv has one here")
