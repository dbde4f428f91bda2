"""`m3agent eval card` and `m3agent eval watch`: compare agents behind one model server, and look on while they work."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.cli.common import AsJson, argument, option, print_bytes, run, say
from m3agent.cli.eval.app import eval_app, load_valid
from m3agent.util.errors import EnvironmentFault, UsageError
from m3agent.util.sanitize import print_note, print_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from m3agent.evals.card.model import CardReport
    from m3agent.evals.run.parts import AttemptParts

PAGE, JSON = "card.html", "report.json"
"""Files in a card's folder: the card as a page, and its figures."""
PHASES = {"environment": 90 * 60.0, "tests": 180 * 60.0}
"""Time limits of an attempt's environment and of its grading, in seconds."""
REFRESH_SECONDS = 5


@eval_app.command("card")
def eval_card(
    config: Annotated[
        Path, argument("What to compare: a TOML file; docs/eval-card.md explains it.", "CONFIG")
    ],
    output: Annotated[
        Path, option("--output", "-o", "Folder of the card; an existing card is resumed.", "CARD")
    ],
    workers: Annotated[int, option("Attempts at a time.", "N", min=1, max=1024)] = 1,
    verify: Annotated[
        bool, option("--verify/--no-verify", "Also let m3agent verify judge each patch.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Let several agents attempt the same instances behind one model server, and compare them on one page.

    Each attempt has the same budget, and a key that is worth nothing elsewhere. The same command resumes a stopped card.

    Exit codes: 0 every attempt has a result; 2 wrong use; 3 some have none because the machine or the model server
    failed; 130 interrupted.
    """
    from m3agent.agent.session.usage import prices_of
    from m3agent.evals.card.config import adapters_of, key_of, read_config
    from m3agent.evals.card.run import agents_of, make_card, open_runs, verifying
    from m3agent.evals.grade.validate import Validations
    from m3agent.evals.run.parts import standard_parts
    from m3agent.serving.client.endpoint import unasked

    wish = read_config(config)
    adapters = adapters_of(wish, config)
    prices = prices_of(unasked(wish.server.endpoint, wish.server.model), wish.server.price)
    agents = agents_of(adapters, wish, prices, key_of(wish.server))
    validation = Path(_beside(config, wish.validation)) if wish.validation else None
    instances, invalid, data = load_valid(_beside(config, wish.data), ",".join(wish.ids), validation)
    flaky = Validations.read(validation).flaky() if validation else {}
    folders = open_runs(output, wish, adapters, instances, data, flaky)

    def parts_of(name: str, note: Callable[[str], None]) -> AttemptParts:
        parts = standard_parts(agents[name], PHASES, note, invalid=invalid)
        return verifying(parts) if verify else parts

    try:
        make_card(folders, instances, parts_of, print_note, run, workers)
    except KeyboardInterrupt:
        say(f"stopped; the results are kept in {output}, and the same command resumes the card")
        raise
    raise typer.Exit(_conclude(output, as_json=as_json))


def _beside(config: Path, data: str) -> str:
    """Return data of a configuration: a path in its folder if there is such a file, else the text as it is."""
    path = config.parent / data
    return str(path) if path.exists() else data


def _conclude(output: Path, *, as_json: bool) -> int:
    """Write the card's page and figures, and print a line for each agent; return the exit code."""
    from m3agent.agent.report.write import write_page, written
    from m3agent.evals.card.page import as_json as in_json
    from m3agent.evals.card.page import render
    from m3agent.evals.report import wording

    card = _card(output)
    page, figures = render(card).encode(), in_json(card)
    write_page(output / PAGE, page)
    write_page(output / JSON, figures)
    if as_json:
        print_bytes(figures)
    else:
        for agent in card.agents:
            score = agent.report.score
            print_text(f"{agent.report.config.agent}: {wording.resolved_of(score)}, {wording.rate(score)}")
    say(written(output / PAGE, page))
    if card.missing:
        say(f"{card.missing} attempts have no result; the same command repeats them")
        return EnvironmentFault.exit_code
    return 0


def _card(folder: Path) -> CardReport:
    """Return the card in a folder, or that of a single run."""
    from dataclasses import replace

    from m3agent.evals.card.model import report_on
    from m3agent.evals.card.run import CARD, read_card
    from m3agent.evals.data.run_folder import RUN, RunFolder

    if (folder / CARD).exists():
        card, folders = read_card(folder)
        return replace(report_on(folders), command=card.command, config=card.config, flaky=card.flaky)
    if not (folder / RUN).exists():
        raise UsageError(f"{folder} has neither a run nor a card: give the folder of eval run or eval card.")
    return report_on([RunFolder.read(folder)])


@eval_app.command("watch")
def eval_watch(
    run_folder: Annotated[Path, argument("The folder of a run or of a card.", "RUN")],
    port: Annotated[int, option("Port on this machine; 0 takes a free one.", "N", min=0, max=65535)] = 0,
) -> None:
    """Serve a page on this machine that shows a run or a card while it is made: each instance and agent.

    The page only reads the run's files. Ctrl-C ends it; the run goes on.

    Exit codes: 2 wrong use; 130 ended by Ctrl-C.
    """
    _card(run_folder)  # refuse a wrong folder before anything is served
    run(_serve(run_folder, port))


async def _serve(folder: Path, port: int) -> None:

    import asyncio

    from m3agent.evals.card.page import watched
    from m3agent.serving.embedded.http_app import served

    try:
        async with served(watched(partial(_card, folder), REFRESH_SECONDS), port=port) as address:
            print_text(address)
            say("Ctrl-C ends the page; the run goes on")
            await asyncio.Event().wait()
    except OSError as error:
        raise EnvironmentFault(f"port {port} cannot be used: {error.strerror}; give another --port") from None
