"""vLLM as its launcher sees it, started as `vllm serve`: arguments, log, several processes, GPU memory, HTTP.

The variable `PLAY` says in JSON what happens. `log` is written first, with `pause` seconds between lines. Then the
program ends with the exit code `exit`, or serves. `last words` are printed when its core dies. `faults`, `mind` and
`tokenizer_seconds` go to `forced.ForcedServer`; with `prefixes` it is a `prefixes.PrefixServer` as well. With `deaf` it ignores SIGTERM. The variable `GPU` names a folder: each
process that holds the GPU's memory has a file there, named by its pid.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CORE = """
import os, signal, sys, time
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
time.sleep(600)
"""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    asked, _ = parser.parse_known_args()
    play = json.loads(os.environ.get("PLAY", "{}"))
    if play.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begin, serve, end = (
        Path(play["log"]).read_text().partition("(APIServer pid=2336) INFO:     Started server")
    )
    for line in begin.splitlines():
        say(line)
        time.sleep(play.get("pause", 0))
    if "exit" in play:
        say(serve + end)
        sys.exit(play["exit"])
    # in its own session, as vLLM's engine core
    core = subprocess.Popen(
        [sys.executable, "-c", CORE, os.environ["GPU"], "deaf" if play.get("deaf") else ""],
        start_new_session=True,
    )
    from tests.servers.forced import ForcedServer
    from tests.servers.prefixes import PrefixServer

    class WholeServer(ForcedServer, PrefixServer):
        """Writes messages, and reads prompts of token ids."""

    with (WholeServer if play.get("prefixes") else ForcedServer)(
        *play.get("faults", ()),
        in_reasoning=True,
        mind=play.get("mind", "sensible"),
        tokenizer_seconds=play.get("tokenizer_seconds", 0.0),
        window=asked.max_model_len,
        key=os.environ.get("VLLM_API_KEY"),
        port=asked.port,
        everywhere=asked.host == "0.0.0.0",
    ):
        say(serve + end)
        Path("environment.json").write_text(json.dumps(dict(os.environ)))
        Path("engine.pid").write_text(str(os.getpid()))
        core.wait()  # vLLM ends when its engine core does, without an error
        say(play.get("last words", ""))


if __name__ == "__main__":
    main()
