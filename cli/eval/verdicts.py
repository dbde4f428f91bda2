"""`m3agent eval verdicts`: measure how often verdicts are right in a repository."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.agent.settings.options import Flags, takes_settings
from m3agent.cli.common import AsJson, Repo, option, print_bytes, run, say, settings_in, state_folder
from m3agent.cli.eval.app import eval_app
from m3agent.cli.verify import SETTINGS
from m3agent.util.sanitize import columns_of, print_text, printable_line
from m3agent.util.table import wrapping

if TYPE_CHECKING:
    from m3agent.agent.ui.activity import Activity
    from m3agent.agent.verify.accuracy import Measured, Trial
    from m3agent.evals.create.history import CommitHistory
    from m3agent.evals.verdicts.trial import FixTrials
    from m3agent.evals.verdicts.variants import Fix

MOST_REASON = 100
"""Most characters of a reason in a line."""


@eval_app.command("verdicts")
@takes_settings(*(name for name in SETTINGS if name != "github_api"), sandbox="Where the tests run.")
def verdicts(
    repo: Repo = Path(),
    fixes: Annotated[int, option("Number of fixes, those of earlier calls included.", "N", min=1)] = 10,
    again: Annotated[bool, option("--again", "Forget what earlier calls measured.")] = False,
    seed: Annotated[int, option("Chooses the faults.", "N")] = 0,
    *,
    flags: Flags,
    as_json: AsJson = False,
) -> None:
    """Measure how often verdicts are right here: verify the last fixes of the repository, and wrong variants of them.

    `m3agent fix` and `m3agent verify` then print the numbers beside their verdicts in this repository.

    Exit codes: 0 no wrong patch was verified; 1 one was, or there is no fix; 2 wrong use; 3 sandbox or environment; 130
    interrupted (the same command continues).
    """
    from m3agent.agent.verify.accuracy import Accuracy
    from m3agent.cli.dockerfiles import ask

    ask(repo, flags)
    measured = run(_measure(repo, flags, fixes, seed, again=again))
    if as_json:
        print_bytes(measured.model_dump_json(indent=2).encode() + b"\n")
    elif measured.trials:
        print_text(_table(measured.trials, columns_of(sys.stdout)), end="")
    if not measured.trials:
        say("no commit here fixes code whose tests show it: nothing was measured")
        raise typer.Exit(1)
    raise typer.Exit(1 if Accuracy.of(measured.trials).wrong_verified else 0)


async def _measure(repo: Path, flags: Flags, most: int, seed: int, *, again: bool) -> Measured:
    """Measure until there are enough fixes, and keep what is known after each of them."""
    import asyncio

    from m3agent.agent.fix.entry import opened
    from m3agent.agent.patches.change import Source
    from m3agent.agent.patches.verification import VerifyRequest
    from m3agent.agent.repo.snapshot import scratch_folder
    from m3agent.agent.ui.activity import Activity
    from m3agent.agent.verify.accuracy import Measured, path_of, read, write
    from m3agent.evals.create.history import open_history
    from m3agent.evals.verdicts.trial import FixTrials

    settings, state = settings_in(repo, flags), state_folder()
    repository = await asyncio.to_thread(opened, repo, settings, state)
    kept = path_of(state, repository.common_dir)
    measured = Measured() if again else read(kept)
    with scratch_folder(state) as scratch, Activity("verifying the repository's fixes") as activity:
        history = await asyncio.to_thread(open_history, repo, scratch, None)
        request = VerifyRequest(Source(), repository, settings)
        work = FixTrials(request, history, state, scratch, seed, activity.say)
        async for fix in _fixes(history, measured):
            if len({trial.commit for trial in measured.trials}) >= most:
                break
            measured = await _with(measured, fix, work, activity)
            await asyncio.to_thread(write, kept, measured)
    return measured


async def _fixes(history: CommitHistory, measured: Measured) -> AsyncIterator[Fix]:
    """Yield the fixes of a history that were not tried yet."""
    import asyncio

    from m3agent.evals.create.mine import Bounds
    from m3agent.evals.verdicts.variants import fixes_of

    known = measured.commits
    fixes = fixes_of(history, Bounds())
    while (fix := await asyncio.to_thread(next, fixes, None)) is not None:
        if fix.commit not in known:
            yield fix


async def _with(measured: Measured, fix: Fix, work: FixTrials, activity: Activity) -> Measured:
    """Return what is known with the variants of one more fix. Tell each verdict."""
    from m3agent.evals.verdicts.trial import NoTests

    trials: list[Trial] = []
    name = f"{fix.commit[:12]} {printable_line(fix.title, 60)}"
    activity.say(name)
    try:
        async for trial in work.of(fix):
            trials.append(trial)
            reason = printable_line(trial.reason, MOST_REASON)
            activity.say(f"  {trial.kind}: {trial.verdict}: {reason} ({trial.seconds:.0f} s)")
    except NoTests:
        activity.say("  left out: none of its tests passes on this machine")
        return measured.model_copy(update={"untested": (*measured.untested, fix.commit)})
    if trials:
        return measured.model_copy(update={"trials": (*measured.trials, *trials)})
    activity.say("  left out: its tests do not show it, or differ between two runs")
    return measured.model_copy(update={"silent": (*measured.silent, fix.commit)})


def _table(trials: Sequence[Trial], width: int) -> str:
    """Return the verdicts by kind, the shares with their intervals, and each wrong verdict."""
    from m3agent.evals.report.statistics import wilson
    from m3agent.evals.verdicts.variants import KINDS

    rows: list[tuple[str, ...]] = [("PATCHES", "NUMBER", "VERIFIED", "UNVERIFIED", "FAILED", "")]
    for kind, described in KINDS.items():
        verdicts = Counter(trial.verdict for trial in trials if trial.kind == kind)
        counts = (verdicts.total(), *(verdicts[name] for name in ("verified", "unverified", "failed")))
        if verdicts.total():
            rows.append((kind, *map(str, counts), described))
    text = wrapping(rows, width)
    for is_right, named in ((True, "right"), (False, "wrong")):
        those = [trial for trial in trials if trial.is_right == is_right]
        verified = sum(trial.verdict == "verified" for trial in those)
        if those:
            interval = wilson(verified, len(those))
            share = f"{interval.low:.0%} to {interval.high:.0%} of all such patches"
            text += f"\n{named}: {verified} of {len(those)} verified ({share}, with a confidence of 95 %)"
    misjudged = (trial for trial in trials if trial.is_misjudged)
    lines = (f"  {each.commit[:12]} {each.kind}: {each.verdict}: {each.reason}" for each in misjudged)
    return text + "\n" + "".join(printable_line(line, 300) + "\n" for line in lines)
