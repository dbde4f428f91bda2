"""`m3agent sandbox`: run a command where tool calls run, build and remove environment images."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.agent.settings.options import Flags, takes_settings
from m3agent.cli.common import Repo, argument, option, run, say, settings_in, state_folder
from m3agent.util.errors import OUTPUT_CLOSED, UsageError
from m3agent.util.sanitize import print_text

if TYPE_CHECKING:
    from m3agent.sandbox.backends.sandbox import ExecResult, Sandbox
    from m3agent.sandbox.network.proxy import NetworkRequest

TIMEOUT = 60.0  # seconds, as for code_exec
KEEP_GB = 20.0  # default budget for environment images, in gigabytes
TIMED_OUT, NOT_FOUND = 124, 127  # exit codes of `timeout` and of shells

sandbox_app = typer.Typer(
    help="Run commands in the sandbox of tool calls; build and remove environment images.",
    no_args_is_help=True,
)


@sandbox_app.command("exec", context_settings={"allow_interspersed_args": False})
@takes_settings("sandbox", "image", "dockerfile", "allow_net")
def sandbox_exec(
    command: Annotated[list[str], argument("The program and its arguments.", "COMMAND...")],
    repo: Repo = Path(),
    timeout: Annotated[
        float,
        option("Seconds after which the command and all its processes are killed.", "S", min=0.01, max=86400),
    ] = TIMEOUT,
    *,
    flags: Flags,
) -> None:
    """Run one command as a tool call would, on a copy of the repository's files.

    Output and exit code are passed through, and standard input unless it is a terminal. Its own exit codes: 2 wrong
    use; 3 no sandbox; 124 timed out; 126 the command cannot be run; 127 the command does not exist; 128+N ended by
    signal N; 130 interrupted.
    """
    from m3agent.cli.dockerfiles import ask

    ask(repo, flags)
    raise typer.Exit(run(_exec(repo, flags, command, timeout)))


@sandbox_app.command("shell")
@takes_settings("sandbox", "image", "dockerfile", "allow_net")
def sandbox_shell(repo: Repo = Path(), *, flags: Flags) -> None:
    """Open a shell where tool calls run, on a copy of the repository's files that is deleted afterwards.

    If standard input is not a terminal, the shell reads its commands from it. The exit code is the shell's.
    """
    from m3agent.cli.dockerfiles import ask

    ask(repo, flags)
    raise typer.Exit(run(_shell(repo, flags)))


@sandbox_app.command("build")
@takes_settings("dockerfile")
def sandbox_build(
    repo: Repo = Path(),
    exclude_newer: Annotated[
        str | None, option("Install only packages uploaded before this day, like 2024-05-31.", "DATE")
    ] = None,
    image: Annotated[str | None, option("Docker image to install into.", "IMG")] = None,
    *,
    flags: Flags,
) -> None:
    """Build the image with the repository's environment, unless it exists, and print its name.

    `fix` does this by itself if the setting `environment` is `auto`. Exit codes: 0, also if the repository
    declares nothing (then nothing is printed); 2 wrong use; 3 it could not be built.
    """
    from m3agent.cli.dockerfiles import ask

    ask(repo, {**flags, "image": image, "sandbox": "docker"})  # only an engine has images
    name = run(_build(repo, exclude_newer, image, flags))
    if name is not None:
        print_text(name)


@sandbox_app.command("trust")
def sandbox_trust(repo: Repo = Path()) -> None:
    """Let builds run the instructions of the repository's Dockerfile. If the file changes, trust it again."""
    from m3agent.cli.dockerfiles import trust

    trust(repo)


@sandbox_app.command("distrust")
def sandbox_distrust(repo: Repo = Path()) -> None:
    """Stop trusting the repository's Dockerfile."""
    from m3agent.cli.dockerfiles import distrust

    distrust(repo)


@sandbox_app.command("prune")
def sandbox_prune(
    all_images: Annotated[bool, option("--all", "Remove every environment image.")] = False,
    keep_gb: Annotated[float, option("Gigabytes of environment images to keep.", "N", min=0)] = KEEP_GB,
) -> None:
    """Remove the least recently used environment images beyond a size limit, and leftovers of killed processes.

    Only images, containers and volumes that m3agent made are removed. A container or volume is kept while the m3agent
    process that made it runs.
    """
    run(_prune(0.0 if all_images else keep_gb))


async def _exec(repo: Path, flags: Flags, command: list[str], timeout: float) -> int:
    async with _opened(repo, flags) as sandbox:
        code = await _passed_through(sandbox, command, timeout)
    if code == NOT_FOUND and len(command) == 1 and " " in command[0]:
        say(
            f"give the program and its arguments as separate words, or a shell: bash -c {shlex.quote(command[0])}"
        )
    return code


async def _shell(repo: Path, flags: Flags) -> int:
    from m3agent.agent.ui.pty import FOREVER, SHELL, terminal_session

    async with _opened(repo, flags) as sandbox:
        if sys.stdin is not None and sys.stdin.isatty():
            return await terminal_session(sandbox)
        return await _passed_through(sandbox, ["sh", "-c", f"exec {SHELL}"], FOREVER)


async def _passed_through(sandbox: Sandbox, command: list[str], timeout: float) -> int:
    """Run a command with this process's standard streams; return the exit code to pass on."""
    from m3agent.agent.ui.stdio import Output, standard_input

    output = Output()
    feed = None if sys.stdin is None or sys.stdin.isatty() else standard_input()
    try:
        running = sandbox.exec(command, env=sandbox.typed_env, timeout=timeout, feed=feed, sink=output.put)
        result = await output.beside(running)
    except BrokenPipeError:
        return OUTPUT_CLOSED
    return _exit_code(result, timeout, output.taken)


async def _build(repo: Path, exclude_newer: str | None, image: str | None, flags: Flags) -> str | None:
    import asyncio
    from datetime import datetime

    from m3agent.agent.fix.collection import collected
    from m3agent.agent.fix.sandbox_setup import may_build, suites_of
    from m3agent.agent.repo.repository import last_tag, open_repository
    from m3agent.agent.repo.snapshot import scratch_folder, workspace_of
    from m3agent.sandbox.backends.factory import SandboxSpec
    from m3agent.sandbox.images.environment import find_environment, missing_packages

    if exclude_newer is not None:
        try:
            datetime.fromisoformat(exclude_newer)
        except ValueError:
            raise UsageError(f"--exclude-newer: '{exclude_newer}' is not a day like 2024-05-31") from None
    repository = await asyncio.to_thread(open_repository, repo)
    settings = settings_in(repo, flags)
    state = state_folder()
    may = may_build(repository, settings, state, say)
    with scratch_folder(state) as folder:
        workspace = await asyncio.to_thread(workspace_of, repository, folder, say)
        tag = await asyncio.to_thread(last_tag, repository)
        suites = await asyncio.to_thread(suites_of, workspace)
        if [suite.language for suite in suites] != ["Python"]:
            for suite in suites:
                say(str(suite))
        name = await find_environment(
            workspace,
            state,
            say,
            base=image,
            exclude_newer=exclude_newer,
            tag=tag,
            may_build=may,
            suites=suites,
        )
        for suite_name, missing in (await missing_packages(name or image, suites, state)).items():
            say(f"{suite_name}: the image lacks {', '.join(missing)}")
        if name is not None:
            found = await collected(SandboxSpec("docker", name), "docker", workspace, state, say)
            for line in found.sentences() if found is not None else ():
                say(line)
    if name is None:
        say("the repository declares no dependencies that a bare sandbox lacks: there is nothing to build")
    return name


async def _prune(keep_gb: float) -> None:
    import asyncio

    from m3agent.agent.repo.snapshot import sweep_scratch
    from m3agent.sandbox.backends.engine import connect
    from m3agent.sandbox.images.prune import Pruned, prune

    state = state_folder()

    def work() -> Pruned:
        with contextlib.closing(connect()) as api:
            return prune(api, state, keep_bytes=int(keep_gb * 1e9), say=say)

    folders = await asyncio.to_thread(sweep_scratch, state)
    done = await asyncio.to_thread(work)
    for name in done.images:
        print_text(f"removed {name}")
    say(
        f"freed {done.freed / 1e9:.1f} GB in {len(done.images)} images; also removed {done.containers} containers, "
        f"{done.volumes} volumes and {folders} folders that killed processes left"
    )


def _exit_code(result: ExecResult, timeout: float, taken: int) -> int:
    """Return the exit code to pass on. Print notes about cut output, a timeout, lack of memory or a failed start."""
    if result.digest.startswith("exec"):  # the command never ran, and stderr has the reason
        say(result.stderr.decode(errors="replace"))
    elif result.total_bytes > taken:
        say(f"the output was cut: {result.total_bytes - taken:,} more bytes are not shown")
    if result.timed_out:
        say(f"timed out after {timeout:g} s: all its processes were killed")
        return TIMED_OUT
    if result.oom:
        say("a process was killed: out of memory")
    return result.exit if result.exit >= 0 else 128 - result.exit


@contextlib.asynccontextmanager
async def _opened(repo: Path, flags: Flags) -> AsyncIterator[Sandbox]:
    """Open a sandbox over the repository's files, made as `fix` makes it."""
    import asyncio

    from m3agent.agent.fix.sandbox_setup import chosen_sandbox, environment_of
    from m3agent.agent.repo.repository import open_repository
    from m3agent.agent.repo.snapshot import scratch_folder, workspace_of
    from m3agent.sandbox.backends.factory import new_sandbox

    repository = await asyncio.to_thread(open_repository, repo)
    settings = settings_in(repo, flags)
    spec, backend = await chosen_sandbox(settings, say)

    def tell(request: NetworkRequest) -> None:
        if request.verdict != "allowed":
            say(f"network: {request.verdict}: {request.reason}")

    state = state_folder()
    with scratch_folder(state) as folder:
        workspace = await asyncio.to_thread(workspace_of, repository, folder, say)
        spec = await environment_of(repository, spec, backend, workspace, settings, state, say)
        async with new_sandbox(backend, spec, workspace, say, tell) as sandbox:
            yield sandbox
