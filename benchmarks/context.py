"""Measure packing a whole repository: m3agent warm, after an edit and cold, against repomix and gitingest, in one run.

    make bench-context REPO=path [ARGS="--rounds 5"]
    python -m benchmarks.context REPO [--tokenizer PATH] [--rounds 9] [--peers repomix,gitingest] [--peers-dir DIR]
                                      [--program PATH] [--small] [--json FILE]

REPO is a clone of at least a million tokens. The benchmark clones it with its whole history and does not change it.
Every run is a separate process that writes its output to a file and searches for secrets, which all contestants do by
default. Each round has one run of each contestant. The order changes, so that other load on the machine affects all
contestants equally. Only runs of the same round are compared.

- warm: nothing changed since the last pack
- edited: one source file of medium size changed, each time to a new text
- cold: no cache of the repository
- first ever: no converted tokenizer either

The peers are installed into a folder outside the repository, and kept there. Without --tokenizer, all contestants count
with o200k_base, as the peers do by default.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import random
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import commit_all, git, write_json
from benchmarks.context_peers import (
    GITINGEST,
    REPOMIX,
    Packer,
    find_ours,
    install_gitingest,
    install_repomix,
    o200k_tokenizer,
)
from benchmarks.context_report import Conditions, Result, Sample, Target, described, table, verdicts
from benchmarks.context_run import Bench, Edits
from benchmarks.peers import Absent

from m3agent.agent.context.tokenizer.counter import oracle_count
from m3agent.agent.context.tokenizer.source import find_tokenizer
from m3agent.util.errors import UsageError

WARM, EDITED, COLD, FIRST = (f"m3agent {state}" for state in ("warm", "edited", "cold", "first ever"))
LEAST_TOKENS = 1_000_000
INSTALL = {REPOMIX: install_repomix, GITINGEST: install_gitingest}
TARGETS = (
    Target("warm: repomix takes at least 15 times as long", REPOMIX, WARM, "wall", least=15, aim=20),
    Target("warm: gitingest takes at least 15 times as long", GITINGEST, WARM, "wall", least=15, aim=20),
    Target("cold: repomix takes at least 1.4 times as long", REPOMIX, COLD, "wall", least=1.4, aim=2),
    Target("one file edited: less than 0.45 of cold", EDITED, COLD, "wall", most=0.45, aim=1 / 3),
    *(
        Target(f"{ours}: peak memory below {peer}'s", ours, peer, "peak", most=1)
        for peer in INSTALL
        for ours in (WARM, EDITED, COLD, FIRST)
    ),
)


@dataclass(frozen=True)
class Contestant:
    """A packer under one condition.

    `prepare` is called before each run with the number of the round. It is not measured, and returns variables to add
    to the environment.
    """

    name: str
    packer: Packer
    folder: Path
    output: Path
    prepare: Callable[[int], Mapping[str, str]]


def measure(bench: Bench, contestants: Sequence[Contestant], rounds: int) -> list[Result]:
    """Run each contestant once per round, after a round that does not count. One that fails is dropped."""
    samples: dict[str, list[Sample]] = {one.name: [] for one in contestants}
    tokens: dict[str, str] = {}
    out: dict[str, str] = {}
    for number in range(rounds + 1):
        turn = number % len(contestants)
        for one in (*contestants[turn:], *contestants[:turn]):
            if one.name in out:
                continue
            env = {**one.packer.env, **one.prepare(number)}
            one.output.unlink(missing_ok=True)
            try:
                run = bench.run(one.packer.pack(one.folder, one.output), env)
            except Absent as error:
                out[one.name] = str(error)
                continue
            if run.code or not one.output.exists():
                out[one.name] = f"exit code {run.code}: {run.last_line}"
                continue
            tokens[one.name] = one.packer.tokens(run.said) or "not said"
            if number:
                samples[one.name].append(run.sample)
    return [
        Result(one.name, out[one.name])
        if one.name in out
        else Result(one.name, samples[one.name], tokens[one.name], one.output.stat().st_size)
        for one in contestants
    ]


def shows_secret(bench: Bench, packers: Mapping[str, Packer]) -> dict[str, bool]:
    """Return which packers show a secret: a random one of no account, in a repository made for this check."""
    folder = bench.scratch / "leaky"
    folder.mkdir()
    key = "".join(random.SystemRandom().choices(string.ascii_letters + string.digits, k=40))
    (folder / "settings.py").write_text(f'AWS_SECRET_ACCESS_KEY = "{key}"\n')
    (folder / "plain.py").write_text("x = 1\n")
    commit_all(folder, "start")
    seen: dict[str, bool] = {}
    for name, packer in packers.items():
        output = bench.scratch / "leaky.txt"
        output.unlink(missing_ok=True)
        run = bench.run(packer.pack(folder, output), {**packer.env, **bench.known_state()})
        text = output.read_text(errors="replace") if output.exists() else ""
        if "x = 1" not in text:
            raise SystemExit(f"{name} fails on a repository of two lines: {run.last_line}")
        seen[name] = key in text
    return seen


def recounted(bench: Bench, tokenizer: Path, outputs: Mapping[str, Path]) -> dict[str, int]:
    """Count the tokens of whole outputs with the vendor's own library. The result is empty if it is not installed."""
    source = find_tokenizer(str(tokenizer), env=bench.env, cache=str(bench.state / "context"))
    assert source is not None, "the tokenizer is a file"
    counts: dict[str, int] = {}
    for name, output in outputs.items():
        if output.exists():
            try:
                counts[name] = oracle_count(source, output.read_text(errors="replace"))
            except UsageError as error:
                print(f"outputs are not counted again: {error}", file=sys.stderr)
                break
    return counts


def first_pack(bench: Bench, ours: Packer, folder: Path, *, small: bool) -> None:
    """Fill the caches for a clone. End the program if the repository is too small for a useful measurement."""
    run = bench.run(ours.pack(folder, bench.scratch / "first.txt"), bench.known_state())
    tokens = ours.tokens(run.said)
    if run.code or tokens is None:
        raise SystemExit(f"m3agent context failed: {run.last_line}")
    if int(tokens.strip("≈").replace(",", "")) < LEAST_TOKENS and not small:
        raise SystemExit(
            f"The repository has {tokens} tokens; with less than {LEAST_TOKENS:,}, most of the time is starting programs. "
            "Take a larger one, or measure this one nevertheless with --small."
        )


def said_by(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return "missing"


def run(options: argparse.Namespace, scratch: Path) -> tuple[Conditions, list[Result]]:
    """Run the whole benchmark. End the program with a message if that is not possible."""
    peers: Path = options.peers_dir
    peers.mkdir(parents=True, exist_ok=True)
    try:
        tokenizer: Path = options.tokenizer.resolve() if options.tokenizer else o200k_tokenizer(peers)
    except Absent as error:
        raise SystemExit(
            f"There is no tokenizer to count with ({error}): give one with --tokenizer."
        ) from None
    bench = Bench(scratch)
    clone, edited = bench.clone(options.repo, "clone"), bench.clone(options.repo, "edited")
    edits = Edits(edited)
    ours = find_ours(options.program, tokenizer)
    for folder in (clone, edited):
        first_pack(bench, ours, folder, small=options.small)

    def edit(number: int) -> Mapping[str, str]:
        edits.edit(number)
        return bench.known_state()

    contestants = [
        Contestant(WARM, ours, clone, scratch / "warm.txt", lambda _: bench.known_state()),
        Contestant(EDITED, ours, edited, scratch / "edited.txt", edit),
        Contestant(COLD, ours, clone, scratch / "cold.txt", lambda _: bench.state_with_tokenizer()),
        Contestant(FIRST, ours, clone, scratch / "first.txt", lambda _: bench.empty_state()),
    ]
    packers = {"m3agent": ours}
    missing: list[Result] = []
    for name in options.peers:
        try:
            packers[name] = INSTALL[name](peers)
        except Absent as error:
            missing.append(Result(name, str(error)))
        else:
            contestants.append(Contestant(name, packers[name], clone, scratch / f"{name}.txt", lambda _: {}))
    leaks = shows_secret(bench, packers)
    before = os.getloadavg()[0]
    results = [*measure(bench, contestants, options.rounds), *missing]
    after = os.getloadavg()[0]
    edited_pack = scratch / "edited.txt"
    if edited_pack.exists() and edits.mark not in edited_pack.read_bytes():
        raise SystemExit(f"m3agent context did not pack what was edited in {edits.path}")
    outputs = {one.name: one.output for one in contestants if one.name not in (EDITED, COLD, FIRST)}
    same = {(scratch / f"{name}.txt").read_bytes() for name in ("warm", "cold", "first")}

    def answer(*args: str) -> str:
        return git(clone, *args).stdout.decode(errors="replace").strip()

    conditions = Conditions(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        repository=options.repo.resolve().name,
        commit=answer("rev-parse", "HEAD"),
        commits=int(answer("rev-list", "--count", "HEAD")),
        shallow=answer("rev-parse", "--is-shallow-repository") == "true",
        cores=os.cpu_count() or 0,
        kernel=platform.release(),
        tools=[
            *(packer.version for packer in packers.values()),
            f"Python {platform.python_version()}",
            f"node {said_by('node', '--version')}",
            said_by("git", "--version"),
        ],
        tokenizer=options.tokenizer.name if options.tokenizer else "o200k_base",
        rounds=options.rounds,
        load=(round(before, 2), round(after, 2)),
        edited_file=edits.path,
        shows_secret=leaks,
        recounted=recounted(bench, tokenizer, outputs),
        same_bytes=len(same) == 1,
    )
    return conditions, results


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("repo", type=Path, metavar="REPO", help="a clone of at least a million tokens")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="PATH", help="a tokenizer.json (default: o200k_base)"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--peers", default=",".join(INSTALL), help="which to compare with, separated by commas"
    )
    parser.add_argument("--peers-dir", type=Path, default=cache / "m3agent-benchmarks", metavar="DIR")
    parser.add_argument("--program", default=str(Path(sys.executable).with_name("m3agent")), metavar="PATH")
    parser.add_argument("--small", action="store_true", help="measure a smaller repository nevertheless")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.peers = [name for name in options.peers.split(",") if name]
    options.peers_dir = options.peers_dir.resolve()
    if unknown := set(options.peers) - set(INSTALL):
        parser.error(f"--peers: there is no {', '.join(sorted(unknown))}")
    if options.rounds < 1:
        parser.error("--rounds: at least one")
    with tempfile.TemporaryDirectory(prefix="m3agent-bench-") as scratch:
        conditions, results = run(options, Path(scratch))
    print(described(conditions))
    print("\n" + table(results, WARM, COLD))
    print("\n" + verdicts(results, TARGETS))
    if options.json:
        by_name = {result.name: result for result in results}
        judged = [(target, target.verdict(by_name)) for target in TARGETS]
        found = {
            "conditions": asdict(conditions),
            "results": results,
            "targets": [{**asdict(target), "measured": got[0], "verdict": got[1]} for target, got in judged],
        }
        write_json(options.json, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
