"""Print what `m3agent serve` would start, as a script for a shell. Nothing is started or written."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from m3agent.cli.serve.options import Choice, ServeRequest, choose, image_of, reachable
from m3agent.serving.launch.container import container_start, without_chosen_gpus
from m3agent.serving.launch.job import EngineJob
from m3agent.serving.launch.nodes import as_node
from m3agent.serving.launch.slurm import slurm_command
from m3agent.serving.plan.overlay import UNVERIFIED, changes_text

_NAME = "m3agent-server"
_HERE = Path("$PWD")
"""The folder in which the user runs the script; the shell puts it in."""


def dry_run_embedded(asked: ServeRequest, why: str, options: Mapping[str, object]) -> str:
    """Return the command that serves the embedded engine, for a shell; everything else is in comments.

    Args:
        options: The options of the search, by flag. None means that the option was not given.
    """
    port = asked.port or "PORT"
    argv = ["m3agent", "serve", "--engine", "embedded", "--host", asked.host, "--port", str(asked.port)]
    for flag, value in options.items():
        argv += [] if value is None else [flag, str(value)]
    host = f"[{asked.host}]" if ":" in asked.host else asked.host
    lines = [
        "m3agent: the embedded engine, a search for small repairs; it needs no GPU and is not M3",
        f"why: {why}",
        f"address: http://{host}:{port}/v1, for this machine only"
        + ("" if asked.port else "; PORT is a free port, printed at start"),
        "next: start it with the command below; 'm3agent fix ISSUE' in a repository then finds it",
        "or: 'm3agent fix ISSUE --engine embedded' starts it for one fix",
    ]
    return "".join(f"# {line}\n" for line in lines) + shlex.join(argv) + "\n"


def dry_run(asked: ServeRequest, environ: Mapping[str, str]) -> str:
    """Return the command, for a shell; the plan and its reasons are in comments."""
    from m3agent.serving.plan.command import command_line

    asked = reachable(asked)
    choice = choose(asked, environ, key=None, local=False)
    prepared, job = choice.prepared, choice.prepared.job
    if asked.node_rank is not None:
        job = as_node(job, asked.node_rank, asked.master or "")
    lines = [f"# {line}" for line in _about(asked, choice)]
    changed = "changed for agent work and this plan" if prepared.changes else "as it is documented"
    lines += ["#", f"# {prepared.recipe.name}, {changed}:", *changes_text(prepared.changes)]
    argv, env, files = _started(asked, choice, job, environ)
    for name, text in files.items():
        lines += ["#", f"# {name}:", *(f"#   {line}".rstrip() for line in text.splitlines())]
    lines += [f"# install with the engine: {package}" for package in prepared.packages]
    if files and (asked.container or asked.slurm):
        lines += ["#", f"# Write {', '.join(files)} into the current folder before the command:"]
    if not asked.by_hand(job):
        return "\n".join([*lines, command_line(argv, env)]) + "\n"
    lines += ["#", "# On each node, its address in place of NODE1 and so on (or --slurm):"]
    for rank in range(job.nodes):
        lines += [f"# NODE{rank + 1}:", command_line(as_node(job, rank, "NODE1").argv, job.env)]
    return "\n".join(lines) + "\n"


def _about(asked: ServeRequest, choice: Choice) -> Iterator[str]:
    """Yield the notes, the plan, and what to do next."""
    prepared = choice.prepared
    yield from (*_notes(choice), *_plan_of(choice))
    if choice.plan is None:
        yield f"{'GPUs':<12} {prepared.recipe.gpus}"
    if not prepared.recipe.verified:
        yield UNVERIFIED
    if asked.container:
        image = image_of(asked, prepared)
        first = "--pull fetches it" if asked.pull else f"pull it first: docker pull {image}"
        yield f"{'image':<12} {image} ({first})"
    if prepared.recipe.no_server is not None:
        yield f"{'next':<12} {prepared.recipe.no_server}"
    elif prepared.job.nodes == 1 or asked.slurm:
        where = "on a login node of Slurm" if asked.slurm else "on a machine with these GPUs"
        yield (
            f"{'next':<12} leave out --dry-run {where}: it starts the server, and `m3agent fix ISSUE` finds it"
        )


def _notes(choice: Choice) -> list[str]:
    return [f"m3agent: {note}" for note in choice.notes]


def _plan_of(choice: Choice) -> list[str]:
    from m3agent.agent.ui.plan_view import facts

    return [] if choice.plan is None else [f"{name:<12} {said}" for name, said in facts(choice.plan)]


def _started(
    asked: ServeRequest, choice: Choice, job: EngineJob, environ: Mapping[str, str]
) -> tuple[Sequence[str], Mapping[str, str], Mapping[str, str]]:
    """Return the command that starts the job: directly, in a container or through Slurm; its variables; its files."""
    if asked.slurm:
        sbatch, scripts = slurm_command(job, name=_NAME, folder=_HERE, extra=asked.sbatch)
        return sbatch, job.env, {**job.files, **scripts}
    if asked.container:
        start = container_start(
            job,
            image=image_of(asked, choice.prepared),
            name=_NAME,
            folder=_HERE,
            environ=environ if asked.gpus is None else without_chosen_gpus(environ),
            vendor=choice.prepared.recipe.vendor,
            pull=asked.pull,
            ready=False,
        )
        return start.argv, start.env, job.files
    return job.argv, job.env, job.files


def about_servers(choice: Choice) -> list[str]:
    """Return what `m3agent plan` says of each of several servers, and what the user should know."""
    return [*_notes(choice), "each server:", *_plan_of(choice)]


def files_text(choice: Choice, files: Mapping[str, str], option: str) -> str:
    """Return files of servers as text; the plan of each server is in comments."""
    lines = [*about_servers(choice), f"{'next':<12} {option} FOLDER without --dry-run writes these files"]
    text = "".join(f"# {line}\n" for line in lines)
    # documents of YAML need a line between them, so that `kubectl apply -f -` takes them all
    starts = {name: "---\n" if name.endswith(".yaml") else "\n" for name in files}
    return text + "".join(f"{starts[name]}# file {name}\n{content}" for name, content in files.items())


LABELLED = re.compile(r"# [A-Za-z-]+(?: [a-z]+)? {2,}(?=\S)")
"""A label with its text beside it, such as `# memory       of 139.8 GiB`."""
NOTE = "#       "
"""Begins each line of the note below an option."""
OPTION = re.compile(r"#   [+=-] ")
"""Begins an option that was added, kept or removed: something to copy."""
LEAST = 40  # columns; narrower text is hard to read


def wrapped(script: str, columns: int) -> str:
    """Return the script with each comment wrapped at words, its further lines as far to the right as its text."""
    paragraphs: list[str] = []
    for line in script.splitlines():
        if line.startswith(NOTE) and paragraphs and paragraphs[-1].startswith(NOTE):
            paragraphs[-1] += f" {line.removeprefix(NOTE)}"
        else:
            paragraphs.append(line)
    return "".join(f"{part}\n" for each in paragraphs for part in _lines(each, max(LEAST, columns - 1)))


def _lines(line: str, width: int) -> list[str]:
    if len(line) <= width or not line.startswith("# ") or OPTION.match(line):
        return [line]
    if line.startswith(NOTE):
        indent = NOTE
    elif label := LABELLED.match(line):
        indent = "#".ljust(len(label[0]))
    else:
        indent = "#   "
    head = indent if line.startswith(NOTE) else line[: len(indent)]
    return textwrap.wrap(
        line[len(head) :],
        width,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
