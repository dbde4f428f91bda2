"""Measure the CPU time of a turn: our client and our whole loop, against mini-swe-agent's, in one run.

    make bench-client [ARGS="--turns 50"]
    python -m benchmarks.client [--turns 200] [--prefix 22000,4000000] [--deltas 150] [--pace MS] [--only KIND,...]
                                [--peers-dir DIR] [--json FILE]

A server in its own process answers at once from a script. Each contestant with each prefix is a process too and holds
one conversation. It takes one turn in every round. The order changes, so that other load on the machine affects all
contestants equally. A turn adds reasoning, one call and its result of 2 kB. CPU is that of the contestant's process,
kernel included; sandboxes and shells are separate processes and not counted. Without `--pace`, all tokens of an answer
arrive at once. With it, each token wakes the client, as with a real model. `benchmarks/client_child.py` says what each
contestant measures.

mini-swe-agent is installed into a folder outside the repository, and kept there.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.client_report import Result, Sample, Target, goals, ratio, table, verdicts
from benchmarks.common import write_json
from benchmarks.peers import Absent, python_with

NAMES = {
    "socket": "bare socket",
    "client": "m3agent, client",
    "turn": "m3agent, whole turn",
    "mini-query": "mini-swe-agent, query",
    "mini-turn": "mini-swe-agent, whole turn",
}
PEERS = ("mini-query", "mini-turn")
PINNED = "mini-swe-agent==2.4.6"
ALSO = ("mcp",)
"""Packages that litellm, mini-swe-agent's client, imports for a request with tools but does not declare."""
TURN_TIMEOUT = 120  # seconds
END_TIMEOUT = 30  # seconds for a contestant to stop what it started
SMALL, LARGE = 22_000, 4_000_000
OURS, TURN, PEER = NAMES["client"], NAMES["turn"], NAMES["mini-turn"]
TARGETS = (
    Target("client, 4 MB: below 60 ms of CPU a turn", OURS, LARGE, "median", 60),
    Target("client, 4 MB: nine turns of ten below 60 ms", OURS, LARGE, "p90", 60),
    Target(
        "client, 4 MB: flat, the last 50 turns below 1.25 times the first 50", OURS, LARGE, "growth", 1.25
    ),
    Target("client, 22 kB: below 10 ms of CPU a turn", OURS, SMALL, "median", 10),
)
GOALS = (
    Target("client, 22 kB", OURS, SMALL, "median", 7),
    Target("client, 4 MB", OURS, LARGE, "median", 10),
)


@dataclass
class Child:
    """The process of a contestant with one prefix."""

    name: str
    size: int
    process: subprocess.Popen[str]

    def turn(self) -> Sample:
        """Take one more turn. Raises Absent."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write("turn\n")
            self.process.stdin.flush()
        except OSError:
            raise Absent("it ended") from None
        if not select.select([self.process.stdout], [], [], TURN_TIMEOUT)[0]:
            raise Absent(f"no answer within {TURN_TIMEOUT} s")
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise Absent(str(answer["error"])[:160])
        return Sample(**answer)


@contextlib.contextmanager
def server(deltas: int, pace: float) -> Iterator[str]:
    """Run the instant server, and yield its address."""
    command = [sys.executable, str(Path(__file__).with_name("client_server.py"))]
    process = subprocess.Popen(
        [*command, "--deltas", str(deltas), "--pace", str(pace)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with ended(process):
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"


@contextlib.contextmanager
def child(kind: str, python: str, url: str, size: int, folder: Path) -> Iterator[Child]:
    """Start a contestant, which waits for its first turn."""
    folder.mkdir()
    script = Path(__file__).with_name("client_child.py")
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [python, str(script), kind, url, str(size), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with ended(process):
        yield Child(NAMES[kind], size, process)


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """At the end, close the process's input, which ends it."""
    try:
        yield
    finally:
        assert process.stdin and process.stdout
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        try:
            process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measure(children: Sequence[Child], turns: int) -> list[Result]:
    """Take a turn of each child per round, with the first round recorded separately. A child that fails is dropped."""
    first: dict[int, Sample] = {}
    samples: dict[int, list[Sample]] = {place: [] for place in range(len(children))}
    out: dict[int, str] = {}
    for number in range(turns + 1):
        for place in range(number, number + len(children)):
            place %= len(children)
            if place in out:
                continue
            try:
                took = children[place].turn()
            except Absent as error:
                out[place] = str(error)
                continue
            if number:
                samples[place].append(took)
            else:
                first[place] = took
    return [
        Result(one.name, one.size, out.get(place, samples[place]), first.get(place))
        for place, one in enumerate(children)
    ]


def install_mini(folder: Path) -> str:
    """Return a Python that has mini-swe-agent. Raises Absent."""
    return str(python_with(folder / "mini-swe-agent", [PINNED], ALSO))


def run(options: argparse.Namespace, scratch: Path) -> list[Result]:
    """Measure every requested contestant with every prefix."""
    pythons = dict.fromkeys(options.only, sys.executable)
    missing: dict[str, str] = {}
    if asked := [kind for kind in options.only if kind in PEERS]:
        options.peers_dir.mkdir(parents=True, exist_ok=True)
        try:
            pythons |= dict.fromkeys(asked, install_mini(options.peers_dir))
        except Absent as error:
            missing = dict.fromkeys(asked, str(error))
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(server(options.deltas, options.pace))
        children = [
            stack.enter_context(child(kind, pythons[kind], url, size, scratch / f"{kind}-{size}"))
            for size in options.prefix
            for kind in options.only
            if kind not in missing
        ]
        results = measure(children, options.turns)
    results += [Result(NAMES[kind], size, why) for kind, why in missing.items() for size in options.prefix]
    order = [NAMES[kind] for kind in options.only]
    return sorted(results, key=lambda one: (options.prefix.index(one.size), order.index(one.name)))


def conditions(options: argparse.Namespace, load: tuple[float, float]) -> Mapping[str, object]:
    """Return the conditions of the measurement."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "openai": version("openai"),
        "httpx2": version("httpx2"),
        "peer": PINNED,
        "turns": options.turns,
        "deltas": options.deltas,
        "pace_ms": options.pace,
        "load": load,
    }


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=200, help="turns of each, after its first")
    parser.add_argument("--prefix", default=f"{SMALL},{LARGE}", help="bytes, separated by commas")
    parser.add_argument("--deltas", type=int, default=150, help="tokens of reasoning in each answer")
    parser.add_argument("--pace", type=float, default=0, metavar="MS", help="milliseconds between two tokens")
    parser.add_argument("--only", default=",".join(NAMES), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--peers-dir", type=Path, default=cache / "m3agent-benchmarks", metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(NAMES):
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
    try:
        options.prefix = [int(size) for size in options.prefix.split(",")]
    except ValueError:
        parser.error(
            f"--prefix: '{options.prefix}' is not a list of numbers: write for instance 22000,4000000"
        )
    if options.turns < 1:
        parser.error("--turns: there must be one at least")
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as scratch:
        results = run(options, Path(scratch))
    on = conditions(options, (round(before, 2), round(os.getloadavg()[0], 2)))
    print(
        f"{on['date']}: {on['cores']} cores, Linux {on['kernel']}, Python {on['python']}, openai {on['openai']}, "
        f"httpx2 {on['httpx2']}; {PINNED}\n{options.turns} interleaved turns, {options.deltas} tokens each, "
        f"{options.pace:g} ms apart; load {before:.2f} to {os.getloadavg()[0]:.2f}; milliseconds of CPU\n"
    )
    print(f"{table(results, OURS)}\n\n{verdicts(results, TARGETS)}\n\n{ratio(results, TURN, PEER)}")
    print(goals(results, GOALS, TURN, PEER))
    if options.json:
        found = [
            {**asdict(r), "medians": {m: r.measured(m) for m in ("median", "p90", "growth")}} for r in results
        ]
        verdict = [{**asdict(t), "verdict": t.verdict(results)} for t in TARGETS]
        write_json(options.json, {"conditions": on, "results": found, "targets": verdict})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
