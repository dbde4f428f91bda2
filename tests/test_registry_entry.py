"""The entry for the registry of ACP agents follows the registry's schema and passes its checks."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import m3agent
from tests.installs import ROOT, uv, uv_env

FOLDER = ROOT / "registry" / "m3agent"
FIELDS = {
    *("id", "name", "version", "description", "distribution"),
    *("repository", "website", "authors", "license", "license_url"),
}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def entry() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "agent.json").read_text())
    return found


def test_the_entry_has_what_the_schema_demands(entry: dict[str, Any]) -> None:
    assert set(entry) <= FIELDS
    assert entry["id"] == FOLDER.name
    assert re.fullmatch(r"[a-z][a-z0-9-]*", entry["id"])
    assert entry["name"] and entry["description"]
    assert entry["license"] == "Apache-2.0"
    assert entry["license_url"].startswith("https://")


def test_the_version_is_ours_everywhere(entry: dict[str, Any]) -> None:
    assert entry["version"] == m3agent.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", entry["version"])
    (distribution,) = entry["distribution"].items()
    # a distribution has only `package`, `args` and `env`: uvx runs the command that has the package's name
    assert distribution == ("uvx", {"package": f"m3agent[acp]=={m3agent.__version__}", "args": ["acp"]})


def test_the_icon_is_small_square_and_of_no_colour_of_its_own() -> None:
    root = ElementTree.parse(FOLDER / "icon.svg").getroot()
    assert root.tag == f"{SVG}svg"
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("16", "16", "0 0 16 16")
    drawn = list(root.iter(f"{SVG}path"))
    paints = [path.get(name) for path in drawn for name in ("fill", "stroke")]
    assert set(paints) <= {"currentColor", "none", None}
    assert all("currentColor" in (path.get("fill"), path.get("stroke")) for path in drawn)
    assert drawn and not any(node.get("style") for node in root.iter())


@pytest.mark.slow
def test_command_of_the_registry_answers(entry: dict[str, Any], wheel: Path, tmp_path: Path) -> None:
    """As in the registry's check: uvx with a new cache, an empty home, no Docker. Only the wheel is a local file."""
    (tmp_path / "home").mkdir()
    environment = {
        "HOME": str(tmp_path / "home"),
        "PATH": f"{Path(uv()).parent}:/usr/bin:/bin",
        "TERM": "dumb",
        "DOCKER_HOST": f"unix://{tmp_path}/none",
        "UV_FIND_LINKS": str(wheel.parent),
        **{name: value for name, value in uv_env().items() if name.startswith(("UV_", "SSL_"))},
    }
    uvx = entry["distribution"]["uvx"]
    command = [str(Path(uv()).with_name("uvx")), "--cache-dir", str(tmp_path / "cache"), uvx["package"]]
    there = subprocess.run(
        [*command, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    if re.search("Failed to fetch|dns error|No solution found", there.stderr):
        pytest.skip(f"its dependencies cannot be had here: {there.stderr.strip().splitlines()[-1].strip()}")
    assert there.stdout == f"m3agent {m3agent.__version__}\n", there.stderr
    before = set((tmp_path / "home").iterdir())
    asked = {
        "protocolVersion": 1,
        "clientInfo": {"name": "a check", "version": "1.0.0"},
        "clientCapabilities": {
            "terminal": True,
            "fs": {"readTextFile": True, "writeTextFile": True},
            "_meta": {"terminal_output": True, "terminal-auth": True},
        },
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked}
    done = subprocess.run(
        [*command, *uvx["args"]],
        input=json.dumps(message) + "\n",
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    answer = json.loads(done.stdout)
    assert answer["id"] == 1
    assert answer["result"]["agentInfo"]["version"] == entry["version"]
    # no type means `agent`; the registry accepts two types
    assert {method.get("type", "agent") for method in answer["result"]["authMethods"]} <= {
        "agent",
        "terminal",
    }
    assert answer["result"]["authMethods"]
    assert set((tmp_path / "home").iterdir()) == before, "asking writes nothing"
