"""`m3agent serve fetch`, with a hub over loopback HTTP."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from tests.cli.test_serve import wait_for
from tests.command_line import Process, run
from tests.conftest import later
from tests.servers.hub import COMMIT, NAME, Hub, serve_hub
from tests.servers.loopback import LoopbackServer
from tests.serving.launch.test_checkpoint import CONFIG

pytestmark = [pytest.mark.integration]

PARTS = ("model-1.safetensors", "model-2.safetensors", "model-3.safetensors")
FILES: dict[str, bytes] = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors.index.json": json.dumps({"weight_map": {part: part for part in PARTS}}).encode(),
    "tokenizer/tokenizer.json": b"{}",
    **{part: random.Random(part).randbytes(300_000) for part in PARTS},
}


class Site:
    """A hub, and a home folder for the user who fetches from it."""

    def __init__(self, home: Path, hub: Hub, server: LoopbackServer) -> None:
        self.home, self.hub, self.server = home, hub, server
        self.folder = home / "hub" / "models--someone--small-m3" / "snapshots" / COMMIT

    def env(self, **more: str) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "HF_HOME": str(self.home),
            "HF_ENDPOINT": f"http://{self.server.host}",
            "HF_HUB_OFFLINE": "0",
            "M3AGENT_STATE": str(self.home / "state"),
            "NO_COLOR": "1",
            **more,
        }

    def fetch(self, *more: str, name: str = NAME, **env: str) -> subprocess.CompletedProcess[str]:
        return run("serve", "fetch", name, *more, env=self.env(**env))

    def refused(self, code: int, *more: str, name: str = NAME, **env: str) -> str:
        """Fetch, expect that exit code and one sentence, and return it."""
        done = self.fetch(*more, name=name, **env)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
        return done.stderr.splitlines()[-1]

    @property
    def main(self) -> Path:
        return self.folder.parent.parent / "refs" / "main"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, without what huggingface_hub keeps there for itself."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(".cache/")}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    hub = Hub(dict(FILES))
    with serve_hub(hub) as server:
        yield Site(tmp_path / "home", hub, server)
        hub.release.set()


def test_a_checkpoint_is_fetched_once(site: Site) -> None:
    done = site.fetch()
    assert (done.returncode, done.stdout) == (0, f"{site.folder}\n"), done.stderr
    first, last = done.stderr.splitlines()
    assert first.startswith(
        f"m3agent: {NAME} at commit {COMMIT} (main): 6 files, 901 kB, of which 901 kB are missing"
    )
    assert last == f"m3agent: all 6 files have the hub's checksums; next: m3agent serve --model {site.folder}"
    assert contents(site.folder) == FILES
    assert site.main.read_text() == COMMIT
    found = huggingface_hub.snapshot_download(NAME, cache_dir=site.home / "hub", local_files_only=True)
    assert found == str(site.folder), "an engine without the network finds it by its name"
    site.hub.asked.clear()
    again = site.fetch("--json")
    assert site.hub.fetched() == []
    told = json.loads(again.stdout)
    assert (told["model"], told["revision"], told["commit"]) == (NAME, "main", COMMIT)
    assert (told["folder"], told["files"], told["downloaded"]) == (str(site.folder), 6, 0)
    assert told["bytes"] == sum(map(len, FILES.values()))


def test_files_go_to_a_folder_of_the_user(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    done = site.fetch("--to", str(folder), "--revision", "v1")
    assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done.stderr
    assert f"m3agent serve --model '{folder}'" in done.stderr
    assert contents(folder) == FILES
    assert not site.folder.exists()


def test_a_broken_connection_continues_where_it_broke(site: Site) -> None:
    large = random.Random(0).randbytes(12 << 20)  # huggingface_hub keeps pieces of 10 MiB
    site.hub.files["model-2.safetensors"] = large
    site.hub.cut["model-2.safetensors"] = 11 << 20
    done = site.fetch()
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 2, "the library prints nothing of its own"
    asked = [
        span for method, path, span in site.hub.asked if (method, path) == ("GET", "/cdn/model-2.safetensors")
    ]
    assert asked == [None, f"bytes={10 << 20}-"]
    assert contents(site.folder) == {**FILES, "model-2.safetensors": large}


@pytest.mark.parametrize(
    ("number", "held", "to"),
    [
        (signal.SIGINT, PARTS[2:], False),
        later(signal.SIGINT, PARTS, True),
        later(signal.SIGTERM, PARTS[1:], False),
        (signal.SIGKILL, PARTS[:1], True),
        later(signal.SIGKILL, PARTS, False),
    ],
)
def test_an_interrupted_fetch_continues(
    site: Site, tmp_path: Path, number: int, held: tuple[str, ...], *, to: bool
) -> None:
    folder = tmp_path / "to" if to else site.folder
    more = ("--to", str(folder)) if to else ()
    site.hub.held.update(held)
    with Process("serve", "fetch", NAME, *more, env=site.env()) as process:
        assert site.hub.holding.wait(60)
        wait_for(lambda: set(FILES) - set(held) <= set(contents(folder)))
        os.kill(process.pid, number)
        errors = process.communicate(timeout=60)[1].decode()
    killed = number == signal.SIGKILL
    assert process.returncode == (-number if killed else 130)
    assert killed or errors.endswith("interrupted: what is whole stays, and the same command continues\n")
    assert not site.main.exists(), "no engine may take this for a checkpoint"
    site.hub.held.clear()
    site.hub.asked.clear()
    done = site.fetch(*more)
    assert done.returncode == 0, done.stderr
    assert f"of which {300 * len(held)} kB are missing" in done.stderr
    assert set(site.hub.fetched()) == set(held), "whole files are not fetched again"
    assert contents(folder) == FILES
    assert not list(tmp_path.rglob("*.incomplete"))


@pytest.mark.parametrize("gpus", [0, 4])
def test_the_default_is_what_serve_would_take(site: Site, tmp_path: Path, gpus: int) -> None:
    lines = "\n".join(f"{number}, GPU-{number}, NVIDIA H200, 143771, 4, Disabled" for number in range(gpus))
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{lines}'\nexit {0 if gpus else 9}\n")
    program.chmod(0o755)
    done = run("serve", "fetch", env=site.env(PATH=f"{tmp_path}:/usr/bin:/bin"))
    assert done.returncode == 2
    assert f"has no model MiniMaxAI/MiniMax-M3{'-MXFP8' if gpus else ''}, or it is private" in done.stderr


def test_a_wrong_checksum_is_found(site: Site) -> None:
    site.hub.damaged.add("model-1.safetensors")
    said = site.refused(4)
    assert "model-1.safetensors did not have the hub's checksum and was removed: fetch again" in said
    assert not site.main.exists()
    site.hub.damaged.clear()
    site.hub.asked.clear()
    assert site.fetch().returncode == 0
    assert set(site.hub.fetched()) == {"model-1.safetensors"}
    assert contents(site.folder) == FILES


def test_a_file_that_changed_here_is_found(site: Site) -> None:
    assert site.fetch().returncode == 0
    (site.folder / "config.json").resolve().write_bytes(FILES["config.json"][::-1])
    assert "config.json did not have" in site.refused(4)
    assert site.fetch().returncode == 0
    assert contents(site.folder) == FILES


def test_a_disk_that_is_too_small_is_told_first(site: Site) -> None:
    site.hub.sizes["model-1.safetensors"] = 10**18
    said = site.refused(3)
    assert f"{NAME} needs 1,000,000,000.0 GB more" in said
    assert "set HF_HOME or --to" in said
    assert site.hub.fetched() == []


@pytest.mark.parametrize(
    ("code", "words", "name", "said"),
    [
        (2, ("--revision", "v9"), NAME, "has no revision v9 on 127.0.0.1:"),
        (2, (), "someone/else", "has no model someone/else, or it is private"),
        (2, (), "../up", "is not a name on Hugging Face"),
        (2, ("--revision", "../v9"), NAME, "../v9 is no revision"),
    ],
)
def test_wrong_names_are_told(site: Site, code: int, words: tuple[str, ...], name: str, said: str) -> None:
    assert said in site.refused(code, *words, name=name)


def test_a_token_is_sent(site: Site) -> None:
    site.hub.token = "hf_right"
    assert "refuses the download of someone/small-m3 (401): correct HF_TOKEN" in site.refused(
        4, HF_TOKEN="hf_wrong"
    )
    assert site.fetch(HF_TOKEN="hf_right").returncode == 0


def test_faults_of_the_hub_are_told(site: Site) -> None:
    site.hub.status = 501
    assert "answers 501 for someone/small-m3" in site.refused(4)
    site.hub.status, site.hub.code = 403, "GatedRepo"
    assert "gives someone/small-m3 only to those who agreed to its terms: agree on its page" in site.refused(
        4
    )
    site.hub.status = 0
    assert "127.0.0.1:9 cannot be reached (ConnectError)" in site.refused(4, HF_ENDPOINT="http://127.0.0.1:9")


@pytest.mark.parametrize(
    "change",
    [{"path": "../../out"}, {"path": "/out"}, {"size": -1}, {"size": "many"}, {"oid": "../x"}, {"oid": None}],
)
def test_a_hub_that_lies_is_told(site: Site, change: dict[str, Any]) -> None:
    site.hub.listed["config.json"] = change
    assert "does not answer as a hub should" in site.refused(4)
    assert site.hub.fetched() == []


def test_offline_nothing_is_asked(site: Site) -> None:
    assert "HF_HUB_OFFLINE forbids the download" in site.refused(3, HF_HUB_OFFLINE="1")
    assert site.hub.asked == []


def test_a_folder_that_cannot_be_written_is_told(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in site.refused(3, "--to", str(tmp_path / "file" / "in"))
