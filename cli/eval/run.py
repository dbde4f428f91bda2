"""`m3agent eval run`: let an agent attempt a benchmark, and grade its patches.

The same command continues a run that stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.agent.settings.options import Flags, takes_settings
from m3agent.cli.common import AsJson, option, print_json, run, say, settings_in, state_folder
from m3agent.cli.eval.app import Ids, Rows, Validation, eval_app, load_valid
from m3agent.util.counted import counted
from m3agent.util.errors import EnvironmentFault, UsageError
from m3agent.util.sanitize import print_note, print_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from m3agent.agent.endpoint.choice import EndpointChoice
    from m3agent.agent.settings.settings import Settings
    from m3agent.evals.data.results import AttemptRecord
    from m3agent.evals.data.run_folder import RunFolder
    from m3agent.evals.run.other_agent import CountedEndpoint
    from m3agent.evals.run.parts import EvaluatedAgent

    AgentChoice = tuple[str, tuple[str, ...], dict[str, str], EvaluatedAgent, float]
    """The agent's name, command and settings for the run's configuration, the agent, and its time in seconds."""

VERIFYING_MINUTES = 30.0
"""Minutes that m3agent gets beyond --max-minutes, to start its sandboxes and to verify its patch."""
OTHER_MINUTES = 60.0
HOSTED_MODEL = "MiniMax-M3"
"""The model whose prices count for another agent at MiniMax's API if no model is named."""
BLIND = "the embedded engine needs a test that fails in the checkout, and most benchmarks hide an instance's own tests"


@eval_app.command("run")
@takes_settings(
    "endpoint",
    "model",
    "thinking",
    "effort",
    "context_budget",
    "max_tokens",
    "max_cost",
    "candidates",
    engine="Engine to start for each attempt: embedded, which needs a test that fails.",
    max_turns="Limit of an attempt's requests to the model.",
    max_minutes="Time limit of an attempt, in minutes.",
    seed="Seed of the embedded engine's search in the first attempt.",
)
def eval_run(
    rows: Rows,
    output: Annotated[
        Path, option("--output", "-o", "Folder of the run; an existing run is resumed.", "RUN")
    ],
    ids: Ids = None,
    attempts: Annotated[int | None, option("Attempts at each instance.", "N", min=1)] = None,
    pass_k: Annotated[
        int | None, option("The same as --attempts, and the report shows pass@1 to pass@N.", "N", min=1)
    ] = None,
    workers: Annotated[int, option("Attempts at a time.", "N", min=1, max=1024)] = 1,
    cluster: Annotated[
        str | None, option("A Ray cluster that makes the attempts: ray://HOST:PORT.", "ADDRESS")
    ] = None,
    agent_command: Annotated[
        str | None,
        option(
            "Another agent: a command. m3agent replaces {repo} (folder of the code), {issue} (file with the issue), {image} (Docker image that runs the tests), {output} (file for the patch; without it, the agent edits {repo}), {usage} (JSON file for its tokens and cost) and {endpoint} (URL of a model server).",
            "COMMAND",
        ),
    ] = None,
    agent_name: Annotated[str | None, option("Name of the other agent, with its version.", "NAME")] = None,
    agent_env: Annotated[
        str | None,
        option(
            "Environment variables that the other agent gets besides PATH and HOME; NAME={endpoint} sets one.",
            "NAME,...",
        ),
    ] = None,
    agent_minutes: Annotated[
        float | None, option("Time limit of an attempt's agent, in minutes.", "M", min=0.01)
    ] = None,
    environment_minutes: Annotated[
        float, option("Time limit of an attempt's environment, in minutes.", "M", min=0.01)
    ] = 90,
    test_minutes: Annotated[
        float, option("Time limit of grading an attempt, in minutes.", "M", min=0.01)
    ] = 180,
    *,
    flags: Flags,
    validation: Validation = None,
    official: Annotated[
        bool, option("--official/--no-official", "Also grade by the official package's rules.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let an agent attempt a benchmark's instances and grade its patches; the same command resumes a stopped run.

    Exit codes: 0 every attempt has a result; 2 wrong use; 3 some have none because the machine or the model server
    failed; 130 interrupted.
    """
    from m3agent.evals.data.results import RunConfig
    from m3agent.evals.run.evaluate import evaluate
    from m3agent.evals.run.parts import standard_parts

    if attempts is not None and pass_k is not None:
        raise UsageError("--attempts and --pass-k both say how many attempts: give one of them.")
    choose_agent = _agent(flags, agent_command, agent_name, agent_env, agent_minutes)
    instances, invalid, data = load_valid(rows, ids, validation)
    name, command, agent_settings, agent, seconds = choose_agent()
    config = RunConfig(
        data=data,
        instances=tuple(instance.id for instance in instances),
        agent=name,
        command=command,
        settings=agent_settings,
        attempts=attempts or pass_k or 1,
        timeouts={"environment": environment_minutes * 60, "agent": seconds, "tests": test_minutes * 60},
    )
    parts = partial(standard_parts, agent, config.timeouts, official=official, invalid=invalid)
    try:
        folder = evaluate(config, instances, output, parts, print_note, run, workers=workers, cluster=cluster)
    except KeyboardInterrupt:
        say(f"stopped; the results are kept in {output}, and the same command resumes the run")
        raise
    raise typer.Exit(conclude(folder, output, as_json=as_json))


def _agent(
    flags: Flags, command: str | None, name: str | None, variables: str | None, minutes: float | None
) -> Callable[[], AgentChoice]:
    """Refuse options that do not go together; return what then chooses the agent and prints its model server."""
    from m3agent import __version__
    from m3agent.agent.settings.settings import SETTINGS
    from m3agent.evals.run.other_agent import OtherAgent, asks_for_endpoint, parse_command, parse_variables
    from m3agent.evals.run.own_agent import OwnAgent

    if command is None:
        for option, value in (("--agent-name", name), ("--agent-env", variables)):
            if value is not None:
                raise UsageError(
                    f"{option} is only for another agent: give its command with --agent-command."
                )
        settings = settings_in(Path("/"), flags)  # no repository's own settings
        seconds = 60 * (settings.max_minutes + VERIFYING_MINUTES if minutes is None else minutes)

        def own() -> AgentChoice:
            agent = OwnAgent(settings, _endpoint(settings), seconds)
            return f"m3agent {__version__}", (), agent.attempt_settings, agent, seconds

        return own
    argv, passed = parse_command(command), parse_variables(variables)
    counted = asks_for_endpoint(argv, variables)
    known = ("endpoint",) if counted else ()
    if given := [
        SETTINGS[one].option for one, value in flags.items() if value is not None and one not in known
    ]:
        raise UsageError(
            f"{given[0]} is only for m3agent's own agent: put the other agent's options into its command."
        )
    server = _model_server(settings_in(Path("/"), flags)) if counted else None
    seconds = 60 * (OTHER_MINUTES if minutes is None else minutes)

    def other() -> AgentChoice:
        endpoint = None if server is None else server[0]
        if server is not None:
            say(f"the tokens of the agent at {server[1]} are counted")
        agent_settings = {} if endpoint is None else {"endpoint": endpoint.url}
        agent = OtherAgent(argv, passed, seconds, endpoint)
        return name or Path(argv[0]).name, argv, agent_settings, agent, seconds

    return other


def _model_server(settings: Settings) -> tuple[CountedEndpoint, str]:
    """Return the model server that another agent reaches through a proxy, and its name. Its key is the agent's own affair."""
    from m3agent.agent.endpoint.choice import choose_model_server
    from m3agent.agent.session.usage import prices_of
    from m3agent.evals.run.other_agent import CountedEndpoint
    from m3agent.serving.client.endpoint import unasked

    server = choose_model_server(settings, state_folder())
    if server is None:
        raise UsageError("{endpoint} stands for a model server, and there is none: name one with --endpoint.")
    return CountedEndpoint(
        server.url, prices_of(unasked(server.url, settings.model or HOSTED_MODEL), settings.server_price)
    ), server.description


def _endpoint(settings: Settings) -> EndpointChoice:
    """Return the model server for all attempts. Print it before anything is sent there."""
    from m3agent.agent.endpoint.choice import ModelServer, choose_endpoint
    from m3agent.cli.hosts import tell

    choice = choose_endpoint(settings, state_folder())
    say(f"engine {choice.description}")
    if not isinstance(choice, ModelServer):
        say(f"{BLIND}: --endpoint names a language model, --agent-command another agent")
    else:
        tell(choice, settings, "repositories and issues go")
    return choice


def conclude(folder: RunFolder, output: Path, *, as_json: bool) -> int:
    """Print the results of a run, with a score only if every attempt has a result; return the exit code."""
    from m3agent.evals.data.results import Verdict

    results = folder.results()
    left = len(folder.left())
    counts = Counter(result.verdict for result in results)
    graded = len(results) - counts[Verdict.INVALID]
    if as_json:
        figures: dict[str, object] = {
            "folder": str(folder.path),
            "complete": left == 0,
            "attempts": len(folder.wanted()),
            "left": left,
            "verdicts": {verdict: counts[verdict] for verdict in Verdict},
        }
        if left == 0:
            figures |= {"resolved": counts[Verdict.RESOLVED], "counted": graded}
        print_json(figures)
    if left:
        why = Counter(result.reason for result in results if result.verdict is Verdict.INFRA).most_common(1)
        told = f" Most often: {why[0][0].rstrip('.')}." if why else ""
        corrected = "" if folder.kept() else ", also with other options"
        say(
            f"no score, since {left} of {len(folder.wanted())} attempts have no result.{told} "
            f"The same command repeats them{corrected}."
        )
        return EnvironmentFault.exit_code
    if not as_json:
        invalid = f", {counts[Verdict.INVALID]} invalid left out" if counts[Verdict.INVALID] else ""
        print_text(f"resolved {counts[Verdict.RESOLVED]} of {counted(graded, 'attempt')}{invalid}")
        if graded and not counts[Verdict.RESOLVED]:
            say(_why_none(folder, results))
    say(f"next: m3agent eval report {output} shows the results")
    return 0


def _why_none(folder: RunFolder, results: Sequence[AttemptRecord]) -> str:
    """Return the most common end of a run's attempts, of which none resolved its instance."""
    from m3agent.evals.data.results import Verdict

    ends = Counter((one.verdict, one.reason) for one in results if one.verdict is not Verdict.INVALID)
    [((verdict, reason), number)] = ends.most_common(1)
    ended = f"{number} of {ends.total()} ended as {verdict}{f' ({reason})' if reason else ''}"
    if verdict is Verdict.EMPTY and folder.config.settings.get("engine") == "embedded":
        ended += f"; {BLIND}: name a language model with --endpoint"
    return ended
