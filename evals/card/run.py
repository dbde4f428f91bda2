"""Make the attempts of a card: all agents at one instance, then at the next, so that they meet the same server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from m3agent.evals.card.config import Adapter, CardConfig, version_of
from m3agent.evals.data.instance import Instance
from m3agent.evals.data.results import Grade, OfficialGrade, Record, RunConfig
from m3agent.evals.data.run_folder import RunFolder, writing
from m3agent.evals.run.child import OUTPUT, run_child
from m3agent.evals.run.counting_proxy import Guard
from m3agent.evals.run.evaluate import make_one, maker_here, work_off
from m3agent.evals.run.other_agent import CountedEndpoint, OtherAgent
from m3agent.evals.run.parts import AttemptParts
from m3agent.evals.run.progress import RunProgress
from m3agent.serving.client.prices import Prices
from m3agent.util.atomic_write import write_whole
from m3agent.util.errors import UsageError

CARD = "card.json"
"""File in a card's folder: what it compares."""
VERIFICATION = "verification.json"
"""File in an attempt's folder: what `m3agent verify` says about its patch."""
VERIFY_SECONDS = 3600.0
"""Most time for `m3agent verify` of a patch."""


class CardFile(Record):
    """What a card's folder says about itself. Each agent's run is in the folder `runs/NAME`."""

    v: int = 1
    agents: tuple[str, ...]
    """Names of the agents' folders, in the order of the configuration."""
    command: tuple[str, ...] = ()
    config: dict[str, Any]
    flaky: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By instance, tests that the validation found flaky; they are left out."""


def agents_of(
    adapters: Sequence[Adapter], config: CardConfig, prices: Prices | None, key: str | None
) -> dict[str, OtherAgent]:
    """Return the agents of a card by name. Each attempt gets a proxy of its own, with an own stand-in for the key.

    Raises:
        UsageError: A limit in dollars is asked for, and the server's prices are not known.
    """
    server, budget = config.server, config.budget
    if budget.dollars is not None and prices is None:
        raise UsageError(
            f"budget.dollars cannot be enforced: the prices of {server.endpoint} are not known. "
            "Give server.price, or a budget of tokens."
        )
    guard_of = partial(Guard, key, budget.tokens, budget.dollars)
    endpoint = CountedEndpoint(server.endpoint, prices, server.model, guard_of)
    return {
        each.name: OtherAgent(
            each.command, each.variables, budget.minutes * 60, endpoint, each.files, seed=config.seed
        )
        for each in adapters
    }


def open_runs(
    output: Path,
    config: CardConfig,
    adapters: Sequence[Adapter],
    instances: Sequence[Instance],
    data: str,
    flaky: Mapping[str, tuple[str, ...]] | None = None,
) -> list[RunFolder]:
    """Create the run folder of each agent, or open those that exist.

    Args:
        flaky: By instance, tests that are left out because a validation found them flaky.

    Raises:
        UsageError: A folder has results of another configuration.
        EnvironmentFault: A folder cannot be written.
    """
    repos = {instance.id: instance.task.repo for instance in instances}
    settings = {
        "endpoint": config.kept().server.endpoint,
        "model": config.server.model,
        "tokens": str(config.budget.tokens),
        "dollars": str(config.budget.dollars),
        **({"seed": str(config.seed)} if config.seed != 1 else {}),
    }
    folders: list[RunFolder] = []
    for adapter in adapters:
        run = RunConfig(
            data=data,
            instances=tuple(instance.id for instance in instances),
            agent=version_of(adapter),
            command=adapter.command,
            settings=settings | adapter.settings(),
            attempts=config.attempts,
            timeouts={"agent": config.budget.minutes * 60},
        )
        folders.append(RunFolder.create((output / "runs" / adapter.name).absolute(), run, repos))
    file = CardFile(
        agents=tuple(adapter.name for adapter in adapters),
        command=("m3agent", "eval", "card", *sys.argv[3:]),
        config=config.kept().model_dump(mode="json"),
        flaky={ident: tests for ident, tests in (flaky or {}).items() if ident in repos},
    )
    with writing(output / CARD):
        write_whole(output / CARD, file.model_dump_json(indent=2).encode())
    return folders


def read_card(path: Path) -> tuple[CardFile, list[RunFolder]]:
    """Return a card and the runs of its agents.

    Raises:
        UsageError: The folder has no card, or it cannot be read.
    """
    try:
        card = CardFile.model_validate_json((path / CARD).read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{path} is not a card's folder: it has no {CARD}.") from None
    except (OSError, ValidationError):
        raise UsageError(f"{path / CARD} cannot be read: it is not what eval card wrote.") from None
    return card, [RunFolder.read(path / "runs" / Path(name).name) for name in card.agents]


def make_card(
    folders: Sequence[RunFolder],
    instances: Sequence[Instance],
    parts_of: Callable[[str, Callable[[str], None]], AttemptParts],
    say: Callable[[str], None],
    run: Callable[[Coroutine[Any, Any, None]], None],
    workers: int,
) -> None:
    """Make every attempt that the agents' runs lack.

    Args:
        parts_of: Creates the parts of an agent's attempts, from its name and a function that receives notes.
        run: Runs the attempts, and raises KeyboardInterrupt where they are interrupted.

    Raises:
        UsageError: Another process works in one of the folders.
        EnvironmentFault: A folder cannot be written.
        KeyboardInterrupt: The user interrupted the run; finished results remain.
    """
    known = {instance.id: instance for instance in instances}
    with contextlib.ExitStack() as stack:
        locks = {folder.path: stack.enter_context(folder.locked(say)) for folder in folders}
        kept = {folder.path.name: folder.kept() for folder in folders}
        progress = RunProgress(sum(len(folder.wanted()) for folder in folders), kept, workers)
        stack.enter_context(progress)
        makers = {path: maker_here(parts_of(path.name, progress.say), lock) for path, lock in locks.items()}
        queue = turns(folders)

        async def attempt(what: tuple[RunFolder, str, int]) -> None:
            folder, ident, number = what
            name = folder.path.name
            await make_one(folder, known[ident], number, makers[folder.path], progress, agent=name)

        run(work_off(lambda: next(queue, None), attempt, workers, asyncio.Event()))


def turns(folders: Sequence[RunFolder]) -> Iterator[tuple[RunFolder, str, int]]:
    """Yield the missing attempts: instance by instance, and at each instance agent by agent.

    The first agent of an instance differs from instance to instance, so that none is always the one that finds a cold cache.
    """
    left = {folder.path: set(folder.left()) for folder in folders}
    for position, attempt in enumerate(folders[0].wanted() if folders else ()):
        first = position % len(folders)
        for folder in (*folders[first:], *folders[:first]):
            if attempt in left[folder.path]:
                yield folder, *attempt


def verifying(parts: AttemptParts) -> AttemptParts:
    """Return parts that also let `m3agent verify` judge each patch, as a user would who has no hidden tests."""

    async def grade(
        instance: Instance, patch: bytes, image: str, folder: Path
    ) -> tuple[Grade, OfficialGrade | None]:
        grades = await parts.grade(instance, patch, image, folder)
        await _verify(parts, instance, patch, image, folder)
        return grades

    return replace(parts, grade=grade)


async def _verify(parts: AttemptParts, instance: Instance, patch: bytes, image: str, folder: Path) -> None:
    """Verify a patch in a fresh checkout, and keep what the command prints beside the attempt's result."""
    work = folder / "verify"
    work.mkdir()
    file, repo = work / "patch.diff", work / "repo"
    file.write_bytes(patch)
    await asyncio.to_thread(parts.checkout, instance.task, repo)
    argv = [sys.executable, "-P", "-m", "m3agent.agent", "verify", str(file), "--repo", str(repo), "--json"]
    argv += ["--image", image] if image else []
    await run_child(argv, folder=work, cwd=work, env=_environment(), seconds=VERIFY_SECONDS)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # the verification did not end
        stated: Mapping[str, Any] = json.loads((work / OUTPUT).read_bytes())["predicate"]
        kept = {"verdict": stated["verdict"], "reason": stated["reason"]}
        write_whole(folder.parent / VERIFICATION, json.dumps(kept, indent=2).encode())


def _environment() -> dict[str, str]:
    secret = ("KEY", "TOKEN", "SECRET", "PASSWORD")
    return {name: value for name, value in os.environ.items() if not any(word in name for word in secret)}
