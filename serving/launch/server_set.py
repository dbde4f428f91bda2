"""Commands and files for several servers of one model behind a router that keeps a session with its server.

A server that has a session's prefix answers in seconds, and another one computes it again, which takes minutes. So the router
goes by the session that a request names, and balances only new sessions. Nothing is started here.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from m3agent.serving.client.http import is_loopback
from m3agent.serving.launch.job import EngineJob
from m3agent.serving.plan.command import END_CHILDREN, LaunchCommand, Option, command_line, flag_of
from m3agent.serving.plan.memory_model import BLOCK
from m3agent.serving.plan.overlay import KEY
from m3agent.util.errors import UsageError

Router = Literal["vllm-router", "dynamo", "llm-d"]
"""Routers; the files for llm-d are those of `serving/launch/kubernetes.py`."""
MOST_SERVERS = 64
NAMED = "name them, as in --servers gpu1,gpu2, and let --gpus be those of one machine"
FIRST_PORT = 8000
"""Port of a server on a machine of its own."""
_EVENT_PORT = 20_080
"""ZMQ port of the first worker's KV events, as in Dynamo's launch scripts."""
_KEEP_SECONDS = 3600
"""Seconds for which Dynamo's router remembers a session that is idle."""
_PROXY_SECONDS = 7200
"""Longest request in seconds. A prompt of a million tokens takes minutes, and requests may wait in front of it."""
_HOST = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<port>[1-9][0-9]{0,4}))?", re.ASCII)
_FRONTEND = (
    "--host",
    "--port",
    "--api-key",
    "--tool-call-parser",
    "--enable-auto-tool-choice",
    "--enable-prompt-tokens-details",
    "--default-chat-template-kwargs",
)
"""Options of vLLM's HTTP server. Dynamo's workers have none: its frontend answers HTTP."""


@dataclass(frozen=True)
class Place:
    """Where a server runs."""

    host: str
    port: int
    devices: range | None = None
    """Numbers of its GPUs; None for all GPUs of the machine."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{self.host}:{self.port}"


def local_places(servers: int, gpus: int, port: int) -> list[Place]:
    """Return places on this machine: the GPUs are divided evenly, and the ports follow the router's.

    Args:
        gpus: Number of GPUs of all servers.
        port: Port of the router.

    Raises:
        UsageError: The GPUs cannot be divided evenly.
    """
    if not 2 <= servers <= MOST_SERVERS:
        raise UsageError(f"{servers} servers are out of range: give 2 to {MOST_SERVERS}")
    if gpus % servers:
        raise UsageError(
            f"{gpus} GPUs cannot be divided evenly among {servers} servers: --gpus are those of all servers on this machine; "
            f"for other machines, {NAMED}"
        )
    each = gpus // servers
    return [Place("127.0.0.1", port + 1 + at, range(at * each, (at + 1) * each)) for at in range(servers)]


def named_places(text: str) -> list[Place]:
    """Parse the machines of the servers: `gpu1,gpu2:8001`.

    Raises:
        UsageError: The text does not name two or more different servers.
    """
    places: list[Place] = []
    for word in text.split(","):
        match = _HOST.fullmatch(word.strip())
        port = int(match["port"] or FIRST_PORT) if match else 0
        if match is None or port > 65_535:
            raise UsageError(
                f"{word.strip()[:60]!r} is not a machine: write the servers like 2, or gpu1,gpu2:8001"
            )
        places.append(Place(match["host"], port))
    if not 2 <= len({place.url for place in places}) == len(places) <= MOST_SERVERS:
        raise UsageError(f"name 2 to {MOST_SERVERS} different servers, like gpu1,gpu2")
    return places


def set_files(
    job: EngineJob,
    places: Sequence[Place],
    router: Router,
    *,
    host: str,
    port: int,
    visible: str,
    versions: str = "",
    packages: Sequence[str] = (),
) -> dict[str, str]:
    """Return the files of a set of servers, by name; the scripts read the key from M3AGENT_API_KEY.

    Args:
        visible: Variable that selects GPUs: CUDA_VISIBLE_DEVICES, or another on AMD.
        versions: Versions of the engine that may serve it (PEP 440).

    Raises:
        UsageError: The router cannot serve these places.
    """
    if router == "dynamo":
        if any(place.devices is None for place in places):
            raise UsageError(
                "the script for Dynamo is for one machine: give --servers a number; on several machines Dynamo needs its "
                "discovery service"
            )
        if not is_loopback(host):
            raise UsageError(
                f"{host} is not a loopback address, and Dynamo's frontend asks for no key: put a proxy in front of it that does"
            )
        return {"dynamo.sh": _dynamo(job, places, host, port, visible)}
    files = {
        f"server-{number}.sh": _script(_server(job, place), {**_devices(place, visible), **job.env})
        for number, place in enumerate(places, start=1)
    }
    files["router.sh"] = _script(router_argv([place.url for place in places], host, port), {})
    if all(place.devices is not None for place in places):
        names = [name for name in files if name.startswith("server-")]
        starts = "".join(f'bash "$here/{name}" >"$here/{name}.log" 2>&1 &\n' for name in names)
        program = LaunchCommand.of(job.argv).program[0]
        needs = _needs({program: f"vllm{versions}", "vllm-router": "vllm-router"}, program, packages)
        files["start.sh"] = (
            f'{_HEAD}here=$(dirname "$0")\n{needs}{_asks(job.env)}{END_CHILDREN}\n{starts}bash "$here/router.sh" &\nwait $!\n'
        )
    return files


_FIND_PYTHON = r"""
python= first= second=
program=$(command -v {}) && {{ IFS= read -r first; IFS= read -r second; }} < "$program" || true
named='^#! *([^ ]*python[^ ]*)' executed="^'''exec' [\"']?([^\"']*python[^\"' ]*)"
if [[ $first =~ $named || $second =~ $executed ]]; then python=${{BASH_REMATCH[1]}}; fi"""
"""Finds the Python of a console script: in its first line, or in its second one (`installed.EXEC`)."""


def _needs(programs: Mapping[str, str], engine: str, packages: Sequence[str]) -> str:
    """Return lines of a script that end it with one sentence if something is not installed.

    Args:
        engine: The engine's program. Its beginning names the Python that needs the packages; a program without it is not
            looked into.
    """
    lines = ["missing=()"]
    for program, package in programs.items():
        needed = [package, *packages] if program == engine else [package]
        lines.append(f"command -v {shlex.quote(program)} >/dev/null || missing+=({shlex.join(needed)})")
    if packages:
        lines.append(_FIND_PYTHON.format(shlex.quote(engine)))
    for package in packages:
        name = re.split(r"[^\w.-]", package, maxsplit=1)[0]
        ask = f'import importlib.metadata as m; m.version("{name}")'
        lines.append(
            f"""[ -z "$python" ] || "$python" -c '{ask}' 2>/dev/null || missing+=({shlex.quote(package)})"""
        )
    lines += [
        "if [ ${#missing[@]} != 0 ]; then",
        '  echo "$0: nothing was started, because packages are missing here; install them with: pip install ${missing[*]@Q}" >&2',
        "  exit 3",
        "fi",
        "",
    ]
    return "\n".join(lines)


def how_to_start(files: Collection[str], folder: Path, port: int) -> str:
    """Say how to start the servers, when the files are written into a folder."""
    use = f"then m3agent fix ISSUE --endpoint http://127.0.0.1:{port}/v1 uses them"
    for name in ("start.sh", "dynamo.sh"):
        if name in files:
            return f"start all of them with: bash {folder / name}; {use}"
    return (
        "choose a key, and export it as M3AGENT_API_KEY on each machine; run each server-N.sh on its machine with bash, then "
        f"{folder / 'router.sh'} where m3agent runs; {use}"
    )


def router_argv(urls: Sequence[str], host: str, port: int) -> tuple[str, ...]:
    """Return the command of vllm-router.

    Tried with vllm-router 0.1.17 and two stand-in servers: of ten sessions each server got five and kept them; after a server
    was killed, two requests of its sessions failed, and the next went to the other server. With `consistent_hash` the
    sessions divided six to four. Retries are off, because a retry would compute a prompt of a million tokens elsewhere.
    """
    return (
        *("vllm-router", "--host", host, "--port", str(port), "--worker-urls", *urls),
        *("--policy", "sticky_least_loaded", "--disable-retries"),
        *(
            "--request-timeout-secs",
            str(_PROXY_SECONDS),
            "--worker-startup-timeout-secs",
            str(_PROXY_SECONDS),
        ),
        *("--health-check-interval-secs", "5", "--cb-failure-threshold", "2"),
    )


_HEAD = "#!/bin/bash\nset -e\n"


def _script(argv: Sequence[str], env: Mapping[str, str]) -> str:
    # exec: the end of the script's process ends the program
    return f"{_HEAD}{_asks(env)}{command_line(('exec', *argv), env)}\n"


def _asks(env: Mapping[str, str]) -> str:
    """Return the line that ends a script without a key: an empty key would be none, and other machines can reach the server."""
    if KEY not in env.values():
        return ""
    return f': "${{{KEY[1:]}:?choose a key, and export it as M3AGENT_API_KEY for each server, the router and m3agent fix}}"\n'


def _devices(place: Place, visible: str) -> dict[str, str]:
    return {} if place.devices is None else {visible: ",".join(map(str, place.devices))}


def _server(job: EngineJob, place: Place) -> tuple[str, ...]:
    listens = place.host if place.devices is not None else "0.0.0.0"  # noqa: S104  # other machines reach it, with a key
    command = LaunchCommand.of(job.argv)
    return command.replacing(("--port", str(place.port)), ("--host", listens)).words


def _events(endpoint: str, **more: str) -> Option:
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint, **more}
    return "--kv-events-config", json.dumps(config, separators=(",", ":"))


def _dynamo(job: EngineJob, places: Sequence[Place], host: str, port: int, visible: str) -> str:
    """Return a script that starts Dynamo's frontend and one worker for each place. Not tried."""
    command = LaunchCommand.of(job.argv)
    kept = [option for option in command.options if flag_of(option) not in _FRONTEND]
    own = [
        ("--dyn-tool-call-parser", "minimax_m3"),
        ("--dyn-reasoning-parser", "minimax_m3"),
        ("--dyn-default-thinking-mode", "enabled"),
    ]
    frontend = (
        *("python3", "-m", "dynamo.frontend", "--http-host", host, "--http-port", str(port)),
        *("--router-mode", "kv", "--router-kv-events", "--kv-cache-block-size", str(BLOCK)),
        *("--router-session-affinity-ttl-secs", str(_KEEP_SECONDS)),
    )
    exports = [
        f"export {name}={json.dumps(value)}" for name, value in job.env.items() if name != "VLLM_API_KEY"
    ]
    lines = [f"{_HEAD}{END_CHILDREN}", *exports, f"{command_line(frontend, {})} &"]
    for number, place in enumerate(places):
        options = [*kept, *own, _events(f"tcp://*:{_EVENT_PORT + number}")]
        words = ("python3", "-m", "dynamo.vllm", "--model", *command.positional, *sum(options, ()))
        prefix = " ".join(f"{name}={value}" for name, value in _devices(place, visible).items())
        lines.append(f"{prefix} {command_line(words, {})} &")
    return "\n".join([*lines, "wait -n", ""])


def needs_key(places: Sequence[Place], host: str) -> bool:
    """Return whether other machines can reach the servers or their router at `host`, so that the servers ask for a key."""
    return not is_loopback(host) or any(place.devices is None for place in places)
