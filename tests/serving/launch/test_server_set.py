"""Scripts of several servers behind a router."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from m3agent.serving.launch.job import EngineJob
from m3agent.serving.launch.server_set import (
    Place,
    local_places,
    named_places,
    needs_key,
    router_argv,
    set_files,
)
from m3agent.util.errors import UsageError
from tests.conftest import python_program

ARGV = (
    *("vllm", "serve", "org/m3", "--block-size", "128", "--tool-call-parser", "minimax_m3"),
    *("--enable-auto-tool-choice", "--port", "8000", "--host", "127.0.0.1"),
)
JOB = EngineJob("vllm", ARGV, {"SWITCH": "1"}, {}, "127.0.0.1", 8000, 4, image="image", model="org/m3")
CUDA = "CUDA_VISIBLE_DEVICES"


def files(
    places: list[Place], router: str = "vllm-router", job: EngineJob = JOB, host: str = "127.0.0.1"
) -> dict[str, str]:
    return set_files(job, places, router, host=host, port=8000, visible=CUDA)  # type: ignore[arg-type]


def test_servers_here_divide_the_gpus_and_listen_on_loopback() -> None:
    found = files(local_places(2, 8, 8000))
    assert list(found) == ["server-1.sh", "server-2.sh", "router.sh", "start.sh"]
    for number, devices in ((1, "0,1,2,3"), (2, "4,5,6,7")):
        script = found[f"server-{number}.sh"]
        assert f"export {CUDA}={devices}\nexport SWITCH=1\n" in script
        words = shlex.split(script.replace("\\\n", " "))
        assert words[words.index("--port") + 1] == str(8000 + number)
        assert words[words.index("--host") + 1] == "127.0.0.1"
    assert "--worker-urls http://127.0.0.1:8001 http://127.0.0.1:8002" in found["router.sh"]
    assert (
        'bash "$here/server-2.sh" >"$here/server-2.sh.log" 2>&1 &\nbash "$here/router.sh" &\nwait $!\n'
        in found["start.sh"]
    )


def test_servers_on_other_machines_ask_for_a_key_and_do_not_start_without_it() -> None:
    places = named_places("gpu1, gpu2:8001")
    assert [place.url for place in places] == ["http://gpu1:8000", "http://gpu2:8001"]
    assert needs_key(places, "127.0.0.1")
    found = files(places, job=replace(JOB, env={"VLLM_API_KEY": "$M3AGENT_API_KEY"}))
    assert list(found) == ["server-1.sh", "server-2.sh", "router.sh"]
    assert ': "${M3AGENT_API_KEY:?' in found["server-1.sh"].splitlines()[2]
    assert "--host 0.0.0.0" in found["server-1.sh"]
    assert CUDA not in found["server-1.sh"]
    assert needs_key(local_places(2, 8, 8000), "0.0.0.0")
    assert not needs_key(local_places(2, 8, 8000), "127.0.0.1")


def test_the_router_keeps_sessions_and_does_not_retry() -> None:
    words = router_argv(["http://a:1", "http://b:2"], "127.0.0.1", 8000)
    assert words[words.index("--policy") + 1] == "sticky_least_loaded"
    assert "--disable-retries" in words


def test_dynamo_has_a_frontend_and_workers_without_options_of_a_server() -> None:
    script = files(local_places(2, 8, 8000), "dynamo")["dynamo.sh"]
    assert "--router-session-affinity-ttl-secs 3600 &" in script
    assert script.count("python3 -m dynamo.vllm") == 2
    assert "--enable-auto-tool-choice" not in script
    assert script.count("--dyn-default-thinking-mode enabled") == 2
    assert " --tool-call-parser" not in script.replace("\n", " ")
    assert f"{CUDA}=4,5,6,7 python3 -m dynamo.vllm \\\n  --model org/m3" in script
    assert '"endpoint":"tcp://*:20081"' in script
    with pytest.raises(UsageError, match="one machine"):
        files(named_places("a,b"), "dynamo")
    with pytest.raises(UsageError, match="asks for no key"):
        files(local_places(2, 8, 8000), "dynamo", host="0.0.0.0")


@pytest.mark.parametrize(
    ("servers", "gpus", "said"),
    [(1, 8, "out of range"), (65, 65, "out of range"), (3, 8, "cannot be divided evenly")],
)
def test_numbers_that_cannot_be(servers: int, gpus: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        local_places(servers, gpus, 8000)


@pytest.mark.parametrize(
    "text", ["gpu1", "gpu1,gpu1", "gpu1,", "a b,c", "gpu1,gpu2:99999", "http://a,b", "a;rm,b"]
)
def test_machines_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match=r"write the servers like|different servers"):
        named_places(text)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The scripts of two servers in a folder, beside an empty folder for programs."""
    found = set_files(
        JOB,
        local_places(2, 8, 8000),
        "vllm-router",
        host="127.0.0.1",
        port=8000,
        visible=CUDA,
        versions=">=0.24",
        packages=["fastokens>=0.3.2"],
    )
    for name, text in found.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def started(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run start.sh from another script, which has to go on after it."""
    return subprocess.run(
        ["/bin/bash", "-c", f'bash "{folder}/start.sh"; echo "it ended with $?"'],
        env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "SEEN": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.integration
def test_start_says_what_is_missing_before_it_starts_anything(written: Path) -> None:
    done = started(written)
    assert done.stdout == "it ended with 3\n"
    assert done.stderr == (
        f"{written}/start.sh: nothing was started, because packages are missing here; install them with: pip install "
        "'vllm>=0.24' 'fastokens>=0.3.2' 'vllm-router'\n"
    )
    program(written, "vllm", python_program("raise SystemExit('started')\n"))
    program(written, "vllm-router", "#!/bin/sh\n")
    done = started(written)
    assert done.stderr.endswith(" pip install 'fastokens>=0.3.2'\n")
    assert not list(written.glob("*.log"))


@pytest.mark.integration
def test_start_ends_its_servers_with_the_router_and_nothing_else(written: Path) -> None:
    program(written, "vllm", f'#!/bin/sh\necho $$ >"$SEEN/pid-${CUDA}"\nexec sleep 600\n')
    both = '[ -s "$SEEN/pid-0,1,2,3" ] && [ -s "$SEEN/pid-4,5,6,7" ]'
    program(written, "vllm-router", f"#!/bin/sh\nuntil {both}; do :; done\nexit 7\n")
    done = started(written)
    assert (done.stdout, done.stderr) == ("it ended with 7\n", "")
    for file in written.glob("pid-*"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)
