"""The command line: read arguments, start the work and print the result.

Nothing heavy is imported at the top, so that `m3agent --help` takes no longer than typer's import. The result (a patch,
JSON lines, a table) goes to stdout; notes for people go to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import Abort, TyperException

from m3agent.agent.settings.options import WITH_FLAG, Flags, takes_settings
from m3agent.cli.acp import acp
from m3agent.cli.apply import apply as apply_command
from m3agent.cli.ask import ask
from m3agent.cli.common import (
    Apply,
    AsJson,
    Branch,
    Certificate,
    JsonResult,
    PullRequest,
    Quiet,
    Repo,
    Verbose,
    argument,
    check_folder,
    end,
    finish,
    option,
    print_bytes,
    run,
    say,
    screen_for,
    settings_in,
    state_folder,
)
from m3agent.cli.detach import attach, check_detached, detached, reachable
from m3agent.cli.eval import eval_app
from m3agent.cli.export import export
from m3agent.cli.help import PROGRAM, Group, arrange, usage_error
from m3agent.cli.hooks import hooks_app
from m3agent.cli.mcp import mcp_app
from m3agent.cli.plan import plan
from m3agent.cli.pr import pr_app
from m3agent.cli.resume import fork, resume
from m3agent.cli.sandbox import sandbox_app
from m3agent.cli.serve import serve_app
from m3agent.cli.sessions import report, sessions_app
from m3agent.cli.verify import verify
from m3agent.util.token_count import some_tokens

if TYPE_CHECKING:
    from m3agent.agent.delivery.apply import HandOver
    from m3agent.agent.fix.finalize import FixResult
    from m3agent.agent.loop.prompt import Proposes
    from m3agent.agent.ui.event_printer import Screen

app = typer.Typer(
    name=PROGRAM,
    cls=Group,
    help="An issue in, a verified patch out: an agentic coding harness for MiniMax M3.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # all commands below inherit it
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
)
config_app = typer.Typer(help="Show the settings and where they come from.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(sandbox_app, name="sandbox")
sessions_app.command("resume")(resume)
sessions_app.command("fork")(fork)
sessions_app.command("attach")(attach)
sessions_app.command("export")(export)
app.add_typer(sessions_app, name="sessions")
app.command("ask")(ask)
app.command("apply")(apply_command)
app.command("report")(report)
app.command("verify")(verify)
app.add_typer(pr_app, name="pr")
app.command("plan")(plan)
app.add_typer(serve_app, name="serve")
app.add_typer(eval_app, name="eval")
app.command("acp")(acp)
app.add_typer(mcp_app, name="mcp")
app.add_typer(hooks_app, name="hooks")


def _version(value: bool) -> None:
    if value:
        from m3agent import __version__

        print_bytes(f"m3agent {__version__}\n".encode())
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, option("--version", "-V", "Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """An issue in, a verified patch out: an agentic coding harness for MiniMax M3."""


@app.command()
@takes_settings(*WITH_FLAG)
def fix(
    issue: Annotated[
        str | None,
        argument(
            "An issue's address on GitHub or GitLab, owner/repo#12, #12 of this repository's origin, a file, "
            "- for standard input, or the issue's text itself.",
            "ISSUE",
            show_default=False,
        ),
    ] = None,
    repo: Repo = Path(),
    each: Annotated[
        str | None,
        option(
            "Fix several issues. FILE has one on each line, in any form of ISSUE; - is standard input. QUERY finds open issues on "
            "the tracker of origin, such as label:bug. The exit code is the largest one. After Ctrl-C, the same command goes on.",
            "FILE|QUERY",
        ),
    ] = None,
    most: Annotated[
        int | None,
        option(
            "With --each QUERY: fix at most this many issues, the oldest first.",
            "N",
            min=1,
            show_default="20",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        option(
            "With --each: issues at a time, each in a sandbox of its own.",
            "N",
            min=1,
            max=64,
            show_default="1",
        ),
    ] = None,
    report: Annotated[
        list[Path] | None,
        option(
            "With --each: write a report about all issues, as a page or as JSON (.json); repeatable. If it cannot be written, the same "
            "command writes it without fixing them again.",
            "FILE",
        ),
    ] = None,
    attach: Annotated[
        list[Path] | None, option("An image, or a video to take frames from; repeatable.", "FILE")
    ] = None,
    *,
    flags: Flags,
    plan_first: Annotated[
        bool, option("--plan", "Stop at a plan, which you accept or correct before the model carries it out.")
    ] = False,
    spec: Annotated[
        bool,
        option(
            "--spec",
            "Stop at a test that fails because of the issue, which you accept or correct before the fix. With --attempts, the tests of all "
            "choose among their patches.",
        ),
    ] = False,
    apply: Apply = False,
    branch: Branch = None,
    pr: PullRequest = False,
    follow: Annotated[
        bool,
        option("--follow", "With --pr: follow the pull request then, as m3agent pr follow does by default."),
    ] = False,
    certificate: Certificate = None,
    detach: Annotated[
        bool,
        option(
            "--detach",
            "Work without the terminal, which gets the session's id. `m3agent sessions attach` shows it.",
        ),
    ] = False,
    as_json: AsJson = False,
    json_result: JsonResult = False,
    result_only: Annotated[
        bool,
        option(
            "--result-only",
            "For programs: apply the patch whatever its verdict, print the result as one JSON object, and exit with 0 "
            "unless the fix could not be carried out.",
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fix an issue and print the verified patch. You can steer and refine it.

    Steer: on a terminal, type a line while it works, and press Enter. The language model gets it with its next request.

    Refine: at the end, a terminal asks you what to refine; Enter ends the fix. Later, `m3agent sessions fork last --tell TEXT` goes on.

    Accept: with --spec you see a test that fails before the fix, with --plan a plan. Enter accepts it, and a line says what to change.

    Undo: `m3agent apply` writes the patch into your files, as --apply does, and `m3agent apply --undo` takes it back.

    Exit codes: 0 verified; 1 unverified, failed, or empty (no patch); 2 wrong use; 3 sandbox or
    environment; 4 model server; 5 refused; 6 limit or stall; 7 a plan or a test waits for you;
    130 interrupted.
    """
    from m3agent.agent.delivery.apply import HandOver
    from m3agent.cli import each as several
    from m3agent.cli import hosts
    from m3agent.cli.dockerfiles import ask

    given_for_one = {
        "--attach": bool(attach),
        "--branch": branch is not None,
        "--certificate": certificate is not None,
        "--follow": follow,
        "--detach": detach,
        "--result-only": result_only,
        "--plan": plan_first,
        "--spec": spec,
    }
    given_for_each = {"--most": most is not None, "--workers": workers is not None, "--report": bool(report)}
    given_for_both = {"--apply": apply, "--pr": pr, "--json": as_json, "--json-result": json_result}
    at_once = workers or 1
    several.check(each, issue, given_for_one, given_for_each)
    several.check_together(given_for_one | given_for_both, at_once)
    if detach:
        check_detached(issue, follow=follow)
    hand_over = HandOver(apply or result_only, branch, pr, always=result_only)

    proposes: Proposes = "plan" if plan_first else "spec" if spec else ""

    def begin(text: str) -> tuple[Coroutine[Any, Any, FixResult], Screen]:
        by_id = each is not None
        # otherwise standard input has the issue, or a line could be for any of several issues
        typed = text != "-" and at_once == 1
        screen = screen_for(
            hand_over, repo, quiet=quiet, verbose=verbose, as_json=as_json, by_id=by_id, by_keyboard=typed
        )
        return _fix(text, attach or [], repo, flags, hand_over, screen, certificate, proposes), screen

    ask(repo, flags)
    hosts.ask(repo, flags)
    if detach:
        detached(sys.argv, os.environ)
    if each is not None:
        handed = [apply, pr]
        several.begin_all(
            *(each, most, report or [], repo, flags, handed, begin), workers=at_once, json_result=json_result
        )
    fixing, screen = begin(issue or "")
    if follow:
        from m3agent.cli.pr import then_follow

        fixing = then_follow(fixing, flags, screen)
    finish(fixing, screen, json_result=json_result, result_only=result_only)


async def _fix(
    spec: str,
    attach: list[Path],
    repo: Path,
    flags: Flags,
    hand_over: HandOver,
    screen: Screen,
    certificate: Path | None,
    proposes: Proposes,
) -> FixResult:
    from m3agent.agent.fix.entry import new_fix

    with reachable(screen) as name, screen:
        return await new_fix(
            spec,
            repo,
            flags,
            hand_over,
            attach=attach,
            certificate=certificate,
            stdin=sys.stdin,
            say=screen.say,
            sinks=screen.sinks,
            listener=screen.listener,
            inbox=screen.inbox,
            proposes=proposes,
            name=name,
        )


@app.command()
@takes_settings("tokenizer", "prefix", endpoint="The server that counts with --tokenizer server.")
def context(
    repo: Repo = Path(),
    issue: Annotated[
        str | None, option("An issue, in any form that fix accepts; ranks the files if not all fit.", "ISSUE")
    ] = None,
    budget: Annotated[int | None, option("Limit of tokens.", "N", parser=some_tokens)] = None,
    include: Annotated[
        list[str] | None, option("Only files that match, as in .gitignore; repeatable.", "GLOB")
    ] = None,
    exclude: Annotated[list[str] | None, option("Leave out files that match; repeatable.", "GLOB")] = None,
    *,
    flags: Flags,
    stats: Annotated[
        bool, option("--stats", "Print which files are in, which are left out, and why.")
    ] = False,
    verify: Annotated[
        bool, option("--verify", "Check the count against Hugging Face's tokenizer on the whole text.")
    ] = False,
    output: Annotated[Path | None, option("--output", "-o", "Write the text to this file.", "FILE")] = None,
) -> None:
    """Pack the repository into one text, as the model gets it."""
    from m3agent.agent.context.checkout import Checkout
    from m3agent.agent.context.packer import PackOptions
    from m3agent.agent.context.tokenizer.source import chosen_tokenizer
    from m3agent.agent.repo.repository import open_repository
    from m3agent.cli import context as command
    from m3agent.cli import hosts
    from m3agent.util.sanitize import print_note

    repository = open_repository(repo)
    settings = settings_in(repo, {**flags, "context_budget": budget})
    about = ""
    if issue is not None:
        from m3agent.agent.fix.entry import read_issue

        about = read_issue(issue, repository, settings, os.environ, print_note, sys.stdin).text
    state = state_folder()
    url: str | None = None
    key: str | None = None
    if settings.tokenizer == "server":
        from m3agent.agent.endpoint.choice import choose_model_server

        if (server := choose_model_server(settings, state)) is not None:
            url, key = server.url, server.key
            hosts.tell(server, settings, "the repository's files go")
    options = PackOptions(
        budget=settings.context_budget,
        tokenizer=chosen_tokenizer(settings, str(state), settings.model, endpoint=url, api_key=key),
        issue=about,
        frozen=settings.prefix == "frozen",
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
    )
    named = str(output) if output is not None else None
    checkout = Checkout.of(repository)
    raise typer.Exit(command.run(options, checkout, output=named, stats=stats, verify=verify))


@app.command()
def doctor(repo: Repo = Path(), as_json: AsJson = False) -> None:
    """Check that this machine has what a fix needs, and say how to get what is missing.

    Exit codes: 0 nothing is marked missing; 2 wrong use; 3 something is marked missing.
    """
    from m3agent.cli.check_table import print_checks
    from m3agent.cli.doctor import diagnose, exit_code

    check_folder(repo)
    settings = settings_in(repo, {})
    found = run(diagnose(settings, repo))
    print_checks(found, as_json=as_json)
    raise typer.Exit(exit_code(found))


@config_app.command("show")
def config_show(repo: Repo = Path(), as_json: AsJson = False) -> None:
    """Print every setting, its value and where the value comes from.

    Set one for a command with its flag (max_turns is --max-turns), with a variable (M3AGENT_MAX_TURNS), or for good as a line
    `max_turns = 50` in ~/.config/m3agent/config.toml.
    """
    from m3agent.agent.settings.loader import load_settings
    from m3agent.agent.settings.settings import config_file
    from m3agent.agent.ui.result import print_result, table
    from m3agent.util.errors import UsageError
    from m3agent.util.sanitize import columns_of

    check_folder(repo)
    wrong: list[UsageError] = []
    loaded = load_settings(repo, {}, os.environ, wrong)
    if as_json:
        print_bytes(loaded.json().encode())
    else:
        print_result(table(loaded.table(columns_of(sys.stdout))))
    if not as_json and (file := config_file(os.environ)) is not None:
        say(f"to set one for good, write a line such as `max_turns = 50` into {file}")
    for error in wrong:
        say(str(error))
    if wrong:
        raise typer.Exit(UsageError.exit_code)


arrange(app)


def main() -> int:
    """Run the command line and return its exit status. `m3agent.cli.__main__` handles what no command expects."""
    try:
        # typer itself would print errors in another style, on three lines
        code = app(prog_name=PROGRAM, standalone_mode=False)
    except TyperException as error:
        say(usage_error(error))
        code = error.exit_code
    except Abort:  # Ctrl-C or Ctrl-D at a question
        end(130)
    return code if isinstance(code, int) else 0
