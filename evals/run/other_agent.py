"""Run any other agent: a command that receives a repository and an issue and leaves a diff."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m3agent.evals.data.results import AttemptUsage, Verdict
from m3agent.evals.run.child import last_words, run_child
from m3agent.evals.run.counting_proxy import CountingProxy, Guard
from m3agent.evals.run.left_diff import LeftDiff
from m3agent.evals.run.own_agent import ISSUE
from m3agent.evals.run.parts import Assignment, Delivery
from m3agent.sandbox.errors import PathEscapes
from m3agent.serving.client.prices import Prices
from m3agent.util.atomic_write import write_whole
from m3agent.util.errors import UsageError
from m3agent.util.json_value import json_object
from m3agent.util.plain_file import read_inside

ENDPOINT = "endpoint"
PLACEHOLDERS = ("repo", "issue", "image", "output", "usage", ENDPOINT)
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
OUTPUT, USAGE, STORE, TRAFFIC = "output.diff", "usage.json", "base.git", "traffic.json"
"""In an attempt's folder: the diff and the usage, if the agent writes them, the store with the original checkout, and how the
agent used its model server.
"""
MOST_DIFF = 64 << 20
"""Largest accepted diff, in bytes; a larger one is an accident."""
MOST_USAGE = 256 << 20
"""Largest file with the usage that is read, in bytes. Trajectories hold whole conversations."""
METRICS = "final_metrics"
MOST_COUNTED = 1e15
"""Largest number in it that is believed."""
_METRICS = {
    "turns": "total_steps",
    "prompt_tokens": "total_prompt_tokens",
    "cached_tokens": "total_cached_tokens",
    "completion_tokens": "total_completion_tokens",
    "cost": "total_cost_usd",
}
"""Names in ATIF's `final_metrics` (ATIF 1.8), by our names."""


def parse_command(line: str) -> tuple[str, ...]:
    """Split a command line into arguments as a shell would; no shell runs it.

    If the program is given as a path, the path is made absolute, because the agent works in the checkout.

    Raises:
        UsageError: The line is no command, lacks `{issue}` or has an unknown placeholder, or the program is
            missing.
    """
    try:
        argv = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"--agent-command cannot be split into arguments: {str(error).lower()}.") from None
    if not argv:
        raise UsageError("--agent-command is empty: give a program and its arguments.")
    check_placeholders(argv, PLACEHOLDERS, "--agent-command")
    program = shutil.which(argv[0])
    if program is None:
        raise UsageError(
            f"--agent-command: there is no program {argv[0]} here: give its path, or put it on PATH."
        )
    return (str(Path(program).absolute()) if "/" in argv[0] else argv[0], *argv[1:])


def check_placeholders(texts: Iterable[str], allowed: Collection[str], what: str) -> None:
    """Check that a command and its variables have `{issue}`, and no other placeholders than the allowed ones.

    Raises:
        UsageError: It is otherwise; the message begins with `what`.
    """
    names = {name for text in texts for name in PLACEHOLDER.findall(text)}
    if unknown := sorted(names.difference(allowed)):
        known = ", ".join(f"{{{name}}}" for name in sorted(allowed))
        raise UsageError(
            f"{what} has {{{unknown[0]}}}, which is not a placeholder: the placeholders are {known}."
        )
    if "issue" not in names:
        raise UsageError(f"{what} has no {{issue}}: the agent would not know the task.")


def parse_variables(names: str | None) -> dict[str, str]:
    """Return the environment variables for the agent.

    Args:
        names: Names separated by commas. After a name, a value may follow that contains `{endpoint}`, such as
            `OPENAI_BASE_URL={endpoint}`.

    Raises:
        UsageError: A variable is not set, or a value is not made of `{endpoint}`.
    """
    variables: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in (names or "").split(","))):
        name, given, value = entry.partition("=")
        if given and (not name or PLACEHOLDER.findall(value) != [ENDPOINT]):
            raise UsageError(
                f"--agent-env gives {name} a value without {{{ENDPOINT}}}: set the variable here, and give only its name."
            )
        if not given and name not in os.environ:
            raise UsageError(f"--agent-env names {name}, which is not set here.")
        variables[name] = value if given else os.environ[name]
    return variables


def asks_for_endpoint(command: Sequence[str], names: str | None) -> bool:
    """Return whether the command or the option with the variables has the placeholder `{endpoint}`."""
    return any(ENDPOINT in PLACEHOLDER.findall(text) for text in (*command, names or ""))


@dataclass(frozen=True)
class CountedEndpoint:
    """A model server whose tokens are counted."""

    url: str
    prices: Prices | None
    """Its prices; None if they are not known."""
    model: str = ""
    """The model to ask for, for the placeholder `{model}`."""
    guard_of: Callable[[], Guard] | None = None
    """Makes the guard of an attempt; None if the agent has a key of its own and no budget."""


@dataclass(frozen=True, repr=False)  # it may hold secrets
class OtherAgent:
    """Run a command (see `parse_command`) on this machine in a fresh checkout.

    The command gets PATH, an empty HOME and the given variables.
    """

    command: Sequence[str]
    variables: Mapping[str, str]
    """The variables. A value may contain `{endpoint}`."""
    seconds: float
    endpoint: CountedEndpoint | None = None
    """The server behind the placeholder `{endpoint}`; None if nothing has the placeholder."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Contents of files in the agent's home folder, by their paths there. They may contain placeholders, too."""
    seed: int = 1
    """Value of the placeholder `{seed}` in the first attempts."""

    @property
    def shares_prefix(self) -> bool:
        """False: the prompts and the server of an external agent are unknown."""
        return False

    async def work(self, given: Assignment) -> Delivery:
        """Run the command until it ends and return its diff.

        Raises:
            SandboxError: git fails.
            OSError: The disk fails.
        """
        issue, output = given.folder / ISSUE, given.folder / OUTPUT
        issue.write_text(given.task.statement, encoding="utf-8", errors="surrogateescape")
        usage = given.folder / USAGE
        places: dict[str, object] = {
            "repo": given.repo,
            "issue": issue,
            "image": given.image,
            "output": output,
            "usage": usage,
            "seed": self.seed + given.number - 1,
        }
        before = await asyncio.to_thread(LeftDiff, given.repo, given.folder / STORE)
        async with contextlib.AsyncExitStack() as stack:
            prefix = "m3agent-home-"
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
            proxy = await self._open_proxy(stack, places)
            for name, content in self.files.items():
                file = Path(home, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(filled(content, places), encoding="utf-8")
            end = await run_child(
                [filled(part, places) for part in self.command],
                folder=given.folder,
                cwd=given.repo,
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "HOME": home,
                    **{name: filled(value, places) for name, value in self.variables.items()},
                },
                seconds=self.seconds,
                hold=given.hold,
            )
        status, said = f"exit {end.exit_code}", last_words(given.folder)
        used = await asyncio.to_thread(read_usage, usage)
        if proxy is not None:
            used = _counted(proxy.usage, used)
            write_whole(given.folder / TRAFFIC, proxy.traffic.model_dump_json(indent=2).encode())
            if proxy.lost:  # the agent could not end its work, whatever it left
                return Delivery(status, proxy.lost, fault=Verdict.INFRA, timed_out=end.timed_out, usage=used)
        try:
            patch = await asyncio.to_thread(_diff, output, before)
        except PathEscapes as error:
            return Delivery(status, str(error), fault=Verdict.ERROR, timed_out=end.timed_out, usage=used)
        failed = end.exit_code != 0 and not patch and not end.timed_out
        return Delivery(status, said, patch, Verdict.ERROR if failed else None, end.timed_out, usage=used)

    async def _open_proxy(
        self, stack: contextlib.AsyncExitStack, places: dict[str, object]
    ) -> CountingProxy | None:
        """Open the proxy to the agent's model server until `stack` ends, and add what it means for the placeholders."""
        if self.endpoint is None:
            return None
        guard = None if self.endpoint.guard_of is None else self.endpoint.guard_of()
        proxy = CountingProxy(self.endpoint.url, self.endpoint.prices, guard)
        address = await stack.enter_async_context(proxy.opened())
        places |= {ENDPOINT: address, "origin": address.removesuffix("/v1"), "model": self.endpoint.model}
        if guard is not None:
            places["key"] = guard.stand_in
        return proxy


def filled(text: str, places: Mapping[str, object]) -> str:
    """Return a text with a value for each placeholder that has one."""
    return PLACEHOLDER.sub(lambda match: str(places.get(match[1], match[0])), text)


def _counted(counted: AttemptUsage, reported: AttemptUsage) -> AttemptUsage:
    """Combine what a proxy counted with what the agent reports: what was counted is believed."""
    if not counted.turns and reported != AttemptUsage():
        return reported  # it found another way to a model
    known = {name: value for name, value in counted if value is not None}
    return reported.model_copy(update=known)


def _diff(output: Path, before: LeftDiff) -> bytes:
    """Return the diff that the agent wrote, else its changes in the checkout."""
    if output.is_file() and not output.is_symlink() and 0 < output.stat().st_size <= MOST_DIFF:
        return output.read_bytes()
    return before.patch()


def read_usage(path: Path) -> AttemptUsage:
    """Return the model usage that an agent reports in a file; what the file does not say is unknown.

    The file has a JSON object: either the names of `AttemptUsage`, or an ATIF trajectory, of which `final_metrics` counts. A
    file that cannot be used says nothing.
    """
    try:
        value = json_object(read_inside(str(path.parent), str(path), MOST_USAGE))
    except (OSError, ValueError):
        return AttemptUsage()
    metrics = value.get(METRICS)
    counted = (
        {name: metrics.get(other) for name, other in _METRICS.items()} if isinstance(metrics, dict) else value
    )
    counts = {name: _number(counted.get(name)) for name in AttemptUsage.model_fields}
    cost = counts.pop("cost")
    return AttemptUsage(
        **{name: None if count is None else int(count) for name, count in counts.items()}, cost=cost
    )


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_COUNTED
    return value if usable else None
