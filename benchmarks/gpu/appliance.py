"""Whether the checks of `m3agent serve check` pass on a sound engine and find planted faults, on a real engine.

    python -m benchmarks.gpu.appliance --out FOLDER [--evict] [--seconds 480] -- SERVE OPTIONS

It starts the engine by `m3agent serve` with the options after the first `--` (a second `--` begins the engine's own options),
waits until it is ready, and runs `m3agent serve check`: once directly, then behind a proxy with each fault of planted.py, and
once with the setting `thinking` at `adaptive`. It ends the engine and needs no person. With `--evict` the direct run also
checks the host cache, so give `--host-cache GB` to `serve`.

FOLDER gets `appliance.json` (each check's result, what was expected, seconds), `engine.log` and `serve.log`. The whole run ends
within the given seconds: checks that do not fit are noted as not run. The exit status is 0 if the expected checks passed and
each planted fault was found. The weights may be random: then the checks of the model fail, which is not counted.

    python -m benchmarks.gpu.appliance --out out --evict -- --model slice8 --gpus 1xH200 --context 131072 --host-cache 32 \
        -- --load-format dummy
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.planted import FAULTS, PlantingProxy

from m3agent.serving.launch.record import LOG, Phase, ServerRecord, last_folder, live_servers

M3AGENT = (sys.executable, "-m", "m3agent")
SOUND = ("reasoning end", "partial prefix", "sparse attention", "draft")
"""Checks that must not fail on a sound engine, whatever its weights are; those that it does not have are not counted."""
DECIDED = ("reasoning end", "partial prefix")
"""Checks that must pass: `not decided` is not enough, because the planted faults are found by them."""
RESTORED = "restored prefix"
STOP_SECONDS = 45.0
"""Time kept for the end of the engine."""
_MOST_LOG = 8 << 20  # bytes of the engine's log to keep


class Deadline:
    """The end of the whole run."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds - STOP_SECONDS

    @property
    def left(self) -> float:
        """Seconds that a step may take."""
        return max(0.0, self._end - time.monotonic())


def main(words: Sequence[str]) -> int:
    """Run the whole measurement; return the exit status."""
    own, serve = _parted(words)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--evict", action="store_true", help="also check the host cache")
    parser.add_argument("--seconds", type=float, default=480.0, help="limit of the whole run")
    options = parser.parse_args(own)
    options.out.mkdir(parents=True, exist_ok=True)
    deadline = Deadline(options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        found = measured(serve, state, options.out, deadline, evict=options.evict)
        if (last := last_folder(state)) is not None:
            _keep_end(last / LOG, options.out / "engine.log")
    (options.out / "appliance.json").write_text(json.dumps(found, indent=1))
    show(found)
    return 1 if found["unexpected"] else 0


def measured(
    serve: Sequence[str], state: Path, out: Path, deadline: Deadline, *, evict: bool
) -> dict[str, Any]:
    """Start the engine, check it, and end it; return what was found."""
    env = {**os.environ, "M3AGENT_STATE": str(state), "NO_COLOR": "1", "COLUMNS": "100"}
    found: dict[str, Any] = {"serve": list(serve), "sound": None, "adaptive": None, "faults": {}}
    begun = time.monotonic()
    with (out / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [*M3AGENT, "serve", *serve],
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            record = ready(process, state, deadline)
            if record is None:
                return found | {
                    "unexpected": ["the engine was not ready in time; see serve.log and engine.log"]
                }
            found |= {"record": record.model_dump(mode="json"), "ready_seconds": time.monotonic() - begun}
            check_all(record.url, env, found, deadline, evict=evict)
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            process.kill()
    return found | {"unexpected": unexpected(found, evict=evict)}


def ready(process: subprocess.Popen[bytes], state: Path, deadline: Deadline) -> ServerRecord | None:
    """Wait until the server is ready; return its record, or None if it ends or the time is over."""
    while deadline.left and process.poll() is None:
        for _, record in live_servers(state):
            if record.phase is Phase.READY:
                return record
        time.sleep(0.5)
    return None


def check_all(
    url: str, env: Mapping[str, str], found: dict[str, Any], deadline: Deadline, *, evict: bool
) -> None:
    """Run the checks directly, behind each fault, and with thinking adaptive; put the results into `found`."""
    # The direct run names no endpoint: so `check` finds the record, and with it the checkpoint and the log.
    found["sound"] = checked((), env, deadline, "--evict") if evict else checked((), env, deadline)
    for name, (_, path, change) in FAULTS.items():
        with PlantingProxy(url, path, change) as proxy:
            result = checked(("--endpoint", proxy.url), env, deadline)
            found["faults"][name] = None if result is None else result | {"planted": proxy.planted}
    found["adaptive"] = checked((), {**env, "M3AGENT_THINKING": "adaptive"}, deadline)


def checked(
    endpoint: Sequence[str], env: Mapping[str, str], deadline: Deadline, *more: str
) -> dict[str, Any] | None:
    """Run `m3agent serve check`; return exit code, seconds and checks, or None if no time is left."""
    if not deadline.left:
        return None
    begun = time.monotonic()
    command = [*M3AGENT, "serve", "check", "--json", *endpoint, *more]
    try:
        done = subprocess.run(
            command, env=dict(env), capture_output=True, text=True, check=False, timeout=deadline.left
        )
    except subprocess.TimeoutExpired:
        return None
    try:
        checks = {check["name"]: check for check in json.loads(done.stdout)}
    except ValueError:
        checks = {}
    return {
        "exit": done.returncode,
        "seconds": round(time.monotonic() - begun, 1),
        "said": done.stderr[-2000:],
        "checks": checks,
    }


def unexpected(found: Mapping[str, Any], *, evict: bool) -> list[str]:
    """Return what is not as it should be: a failure on the sound engine, or a planted fault that was not found."""
    sound = found["sound"]
    if sound is None:
        return ["the sound engine was not checked: no time was left"]
    missing = {"ok": None, "detail": "missing"}
    checks = {name: sound["checks"].get(name, missing) for name in (*SOUND, *DECIDED, RESTORED)}
    more = (RESTORED,) if evict else ()
    wrong = [
        f"{name} failed on the sound engine: {checks[name]['detail']}"
        for name in (*SOUND, *more)
        if checks[name]["ok"] is False
    ]
    wrong += [
        f"{name} was not decided on the sound engine: {checks[name]['detail']}"
        for name in (*DECIDED, *more)
        if checks[name]["ok"] is None
    ]
    for fault, (name, _, _) in FAULTS.items():
        result = found["faults"].get(fault)
        if result is None:
            wrong.append(f"{fault}: not run, no time was left")
            continue
        check = result["checks"].get(name)
        if not result["planted"]:
            wrong.append(f"{fault}: no request was changed")
        elif check is None or check["ok"] is not False or not check["fix"]:
            wrong.append(f"{fault}: {name} did not fail with a remedy: {check}")
    return wrong


def show(found: Mapping[str, Any]) -> None:
    """Print the results."""
    runs = {"sound": found["sound"], **found["faults"], "thinking adaptive by the user": found["adaptive"]}
    for run, result in runs.items():
        if result is None:
            print(f"{run}: not run")
            continue
        print(f"{run}: exit {result['exit']}, {result['seconds']} s")
        for check in result["checks"].values():
            mark = {True: "ok", False: "failed", None: "-"}[check["ok"]]
            print(f"  {mark:7} {check['name']}: {check['detail']}")
    for line in found["unexpected"]:
        print("UNEXPECTED:", line)


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words at the first `--`."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def _keep_end(source: Path, target: Path) -> None:
    with contextlib.suppress(OSError), source.open("rb") as log:
        log.seek(max(0, source.stat().st_size - _MOST_LOG))
        with target.open("wb") as kept:
            shutil.copyfileobj(log, kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
