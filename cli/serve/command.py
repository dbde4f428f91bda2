"""`m3agent serve`: plan a model server for this machine, start it and keep it running."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from m3agent.cli.common import Typical, option, print_bytes, run, state_folder
from m3agent.cli.plan import Concurrency, Drafting, HostCacheGb, Vision, WeightPrecision
from m3agent.cli.serve.app import ENGINE_OPTIONS, serve_app
from m3agent.serving.plan.kinds import DraftUse
from m3agent.util.errors import EnvironmentFault, UsageError
from m3agent.util.sanitize import columns_of, print_note
from m3agent.util.token_count import some_tokens

if TYPE_CHECKING:
    from m3agent.cli.serve.options import ServeRequest

_LAUNCH = "Launching M3"


ServeEngine = Literal["vllm", "sglang", "trtllm", "dynamo", "embedded"]
"""The engines that can be served."""
RouterName = Literal["vllm-router", "dynamo", "llm-d"]
"""Routers that keep a session with its server."""


@serve_app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    engine: Annotated[
        ServeEngine | None,
        option("Engine to start; by default the best for these GPUs, and embedded without GPUs."),
    ] = None,
    model: Annotated[
        str | None,
        option("The checkpoint: a folder, or a name on Hugging Face.", "PATH|NAME", rich_help_panel=_LAUNCH),
    ] = None,
    download: Annotated[
        bool,
        option(
            "--download",
            "Let the engine download a checkpoint that is not here; `m3agent serve fetch` shows how far it is, and checks it.",
            rich_help_panel=_LAUNCH,
        ),
    ] = False,
    gpus: Annotated[
        str | None, option("GPUs to use, like 4xH200; by default all visible ones.", "SPEC")
    ] = None,
    window: Annotated[
        int | None,
        option(
            "--context",
            "Longest prompt and answer together, in tokens, like 512k or 1M; by default 524,288, or what fits.",
            "N",
            parser=some_tokens,
        ),
    ] = None,
    concurrency: Concurrency = 1,
    typical: Typical = None,
    precision: WeightPrecision = None,
    vision: Vision = False,
    draft: Drafting = DraftUse.AUTO,
    host_cache: HostCacheGb = 0,
    draft_model: Annotated[
        str | None,
        option("The draft: a folder, or a name on Hugging Face.", "PATH|NAME", rich_help_panel=_LAUNCH),
    ] = None,
    recipe: Annotated[
        str | None,
        option("Use a documented command (`m3agent plan --recipe list`) instead of a plan.", "NAME"),
    ] = None,
    host: Annotated[
        str,
        option("Address to listen on. If other machines can reach it, the server asks for a key.", "ADDRESS"),
    ] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 takes a free port.", "N", min=0, max=65535)] = 8000,
    load_minutes: Annotated[
        float | None, option("Give up if the server does not answer within this many minutes.", "M", min=0.1)
    ] = None,
    container: Annotated[
        bool,
        option("--container", "Run the engine in a Docker container of an image that may serve the plan."),
    ] = False,
    image: Annotated[str | None, option("Run the engine in a container of this image.", "NAME")] = None,
    pull: Annotated[bool, option("--pull", "Pull the image if it is not on this machine.")] = False,
    slurm: Annotated[
        bool, option("--slurm", "Run the engine as a Slurm job, on the GPUs that --gpus names.")
    ] = False,
    sbatch: Annotated[
        list[str] | None, option("An option for sbatch, like --sbatch=--partition=gpu; repeatable.", "OPTION")
    ] = None,
    node_rank: Annotated[
        int | None,
        option("Number of this node, if the engine runs on several nodes; the first is 0.", "R", min=0),
    ] = None,
    master: Annotated[
        str | None, option("Address of node 0; needed with --node-rank.", "HOST[:PORT]")
    ] = None,
    servers: Annotated[
        str | None,
        option(
            "Several servers behind a router: their number on this machine, or their machines, like gpu1,gpu2.",
            "N|HOSTS",
        ),
    ] = None,
    router: Annotated[
        RouterName | None, option("The router of --servers, by default vllm-router; llm-d for --kubernetes.")
    ] = None,
    write: Annotated[
        Path | None, option("Write the scripts of --servers into this new folder.", "FOLDER")
    ] = None,
    kubernetes: Annotated[
        Path | None,
        option(
            "Write files for Kubernetes into this new folder, for a server on the GPUs of --gpus.", "FOLDER"
        ),
    ] = None,
    name: Annotated[
        str | None, option("Name of the objects of --kubernetes; by default minimax-m3.", "NAME")
    ] = None,
    dry_run: Annotated[
        bool, option("--dry-run", "Print the plan, the reasons and the command; start nothing.")
    ] = False,
    detach: Annotated[
        bool, option("--detach", "Return when the server is ready; `m3agent serve stop` ends it.")
    ] = False,
    seed: Annotated[
        int | None, option("Seed of the embedded engine's search; by default 0.", "N", min=0)
    ] = None,
    candidates: Annotated[
        int | None,
        option("Limit of changes that the embedded engine tries, however long that takes.", "N", min=1),
    ] = None,
) -> None:
    """Serve M3 on this machine's GPUs until interrupted; `fix` finds it.

    Options after -- go to the engine unchanged and replace those that m3agent would set. Exit codes: 2 wrong use or no
    plan for it; 3 no GPU, port taken, no engine installed; 4 the engine does not start, or ends.
    """
    if context.invoked_subcommand is not None:
        return
    from m3agent.cli.serve.options import why_embedded

    asked = _asked(context)
    why = why_embedded(asked, os.environ)
    if why is None:
        refuse_search_options(seed, candidates)
    if servers is not None or write is not None or kubernetes is not None:
        _server_files(asked, kubernetes or write, dry_run=dry_run)
        return
    state = state_folder()
    if detach and not dry_run:
        from m3agent.cli.serve.manage import detached

        raise typer.Exit(detached(sys.argv, state))
    if why is not None:
        _refuse_other_machines(host)
        if not dry_run:
            run(_embedded(host, port, candidates, seed or 0, state))
            return
        from m3agent.cli.serve.dry_run import dry_run_embedded

        _print_script(dry_run_embedded(asked, why, {"--seed": seed, "--candidates": candidates}))
    elif dry_run:
        from m3agent.cli.serve.dry_run import dry_run as script_of

        _print_script(script_of(asked, os.environ))
    else:
        run(_serve(asked, state))


def _asked(context: typer.Context) -> ServeRequest:
    """Return what the options ask for."""
    from m3agent.cli.serve.options import ServeRequest

    params = context.params
    given = {name: value for name, value in params.items() if hasattr(ServeRequest, name)}
    given |= {
        "context": params["window"],
        "options": tuple(context.meta.get(ENGINE_OPTIONS, ())),
        "container": params["container"] or params["image"] is not None,
        "sbatch": tuple(params["sbatch"] or ()),
        "kubernetes": params["kubernetes"] is not None,
    }
    return ServeRequest(**given)


def _server_files(asked: ServeRequest, folder: Path | None, *, dry_run: bool) -> None:
    """Print the files of several servers behind a router, or those for Kubernetes, or write them into a folder."""
    from m3agent.cli.serve import options as serve_choice
    from m3agent.serving.launch.kubernetes import steps
    from m3agent.serving.launch.server_set import FIRST_PORT, how_to_start

    if asked.servers is None and not asked.kubernetes:
        raise UsageError("--write is for the scripts of --servers: give both")
    if folder is None and not dry_run:
        raise UsageError(
            "m3agent does not start several servers itself: --dry-run prints their scripts, --write FOLDER writes them"
        )
    made = serve_choice.cluster_files if asked.kubernetes else serve_choice.server_files
    choice, files = made(asked, os.environ)
    from m3agent.cli.serve.dry_run import about_servers, files_text

    if dry_run or folder is None:
        _print_script(files_text(choice, files, "--kubernetes" if asked.kubernetes else "--write"))
        return
    _write(folder, files)
    for line in about_servers(choice):
        print_note(line)
    print_note(f"m3agent: wrote {', '.join(files)} into {folder}")
    if "servers.yaml" not in files:
        print_note(f"m3agent: {how_to_start(files, folder, asked.port or FIRST_PORT)}")
        return
    print_note("m3agent: read the first lines of each file, then:")
    for step in steps(files, folder, asked.name):
        print_note(f"  {step}")


async def _serve(asked: ServeRequest, state: Path) -> None:
    from m3agent.agent.ui.serve_display import ServeView
    from m3agent.cli.serve.launch import launch
    from m3agent.serving.launch.server import Server

    with ServeView() as view:
        server, record = launch(asked, state, os.environ, view.say)
        await Server(server, record, os.environ, view).run()


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by name into a new folder. Raises UsageError or EnvironmentFault."""
    try:
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")
    except FileExistsError:
        raise UsageError(f"{folder} exists: name a new folder") from None
    except OSError as error:
        raise EnvironmentFault(f"{folder} cannot be written: {error.strerror}; name another folder") from None


def refuse_search_options(seed: int | None, candidates: int | None) -> None:
    """Refuse the embedded engine's options, where another engine is served.

    Raises:
        UsageError: One of them was given.
    """
    if seed is not None:
        raise UsageError(
            f"--seed is for the embedded engine's search: leave it out, or pass it to the engine with `-- --seed {seed}`"
        )
    if candidates is not None:
        raise UsageError("--candidates is for the embedded engine's search: leave it out")


def _refuse_other_machines(host: str) -> None:
    from m3agent.serving.client.http import is_loopback

    if not is_loopback(host):
        raise UsageError(
            f"{host} is not a loopback address: the embedded engine has no key and serves only this machine"
        )


async def _embedded(host: str, port: int, candidates: int | None, seed: int, state: Path) -> None:
    import asyncio

    from m3agent.agent.ui.serve_display import how_to_end
    from m3agent.serving.embedded.server import embedded_server
    from m3agent.serving.launch.record import ServerRecord, born, new_folder, remove_record, write_record

    try:
        async with embedded_server(host=host, port=port, candidates=candidates, seed=seed) as url:
            folder = new_folder(state)
            pid = os.getpid()
            write_record(folder, ServerRecord(url=url, engine="embedded", pid=pid, born=born(pid)))
            try:
                print_note(
                    f"serving the embedded engine, a search for small repairs and not M3, at {url}; "
                    f"`m3agent fix ISSUE` in a repository then finds it ({how_to_end()})"
                )
                await asyncio.Event().wait()
            finally:
                remove_record(folder)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from None


def _print_script(script: str) -> None:
    """Print a script: as it is to files and pipes, with wrapped comments to a terminal."""
    from m3agent.cli.serve.dry_run import wrapped

    columns = columns_of(sys.stdout)
    print_bytes((wrapped(script, columns) if columns else script).encode())
