"""One change to a recipe, how rules make them, and the rules that all engines share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from m3agent.serving.plan.command import Command, Option, flag_of
from m3agent.serving.plan.recipe import Recipe

if TYPE_CHECKING:
    from m3agent.serving.plan.planner import Plan

KvCacheDtype = Literal["auto", "fp8"]
"""As options name it: `auto` is the model's own type."""

KEY = "$M3AGENT_API_KEY"
"""Stands where the server's key goes. Whoever starts the server fills it in, in an environment or a private file."""


@dataclass(frozen=True)
class Change:
    """One change to a recipe, or a choice of the recipe's that is kept on purpose.

    `changed` has pairs of the option as it stood and as it becomes. `env`: None takes a variable away. `files` are
    written beside the command, `packages` installed beside the engine. `reason` is one sentence.
    """

    what: str
    reason: str
    source: str
    added: tuple[Option, ...] = ()
    changed: tuple[tuple[Option, Option], ...] = ()
    dropped: tuple[Option, ...] = ()
    kept: tuple[Option, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """A recipe, taken apart, and what is asked of it; `plan`: how it is to be spread over which GPUs, None as it is."""

    recipe: Recipe
    command: Command
    context: int | None
    vision: bool
    loopback: bool
    kv_dtype: KvCacheDtype | None
    plan: Plan | None = None

    def change(
        self,
        what: str,
        reason: str,
        source: str,
        *give: Option,
        drop: Sequence[str] = (),
        keep: Sequence[str] = (),
        env: Mapping[str, str | None] = MappingProxyType({}),
        files: Mapping[str, str] = MappingProxyType({}),
        packages: tuple[str, ...] = (),
    ) -> list[Change]:
        """What brings `give` and `env` about, takes `drop` away and names `keep`; empty where nothing is left to."""
        there = {flag_of(option): option for option in self.command.options}
        differs = {name: value for name, value in env.items() if self.recipe.env.get(name) != value}
        change = Change(
            what,
            reason,
            source,
            added=tuple(option for option in give if flag_of(option) not in there),
            changed=tuple(
                (there[flag], option)
                for option in give
                if (flag := flag_of(option)) in there and there[flag] != option
            ),
            dropped=tuple(there[flag] for flag in drop if flag in there),
            kept=tuple(there[flag] for flag in keep if flag in there),
            env=MappingProxyType(differs),
            files=MappingProxyType(dict(files)),
            packages=packages,
        )
        effect = change.added or change.changed or change.dropped or change.kept or change.env
        return [change] if effect else []


Rule = Callable[[Wanted], list[Change]]


def cached_tokens(wanted: Wanted, flag: str, source: str) -> list[Change]:
    """An account of what the cache had of a prompt."""
    return wanted.change(
        "cached tokens",
        "The usage then says how many tokens of a prompt were cached; without it a broken prefix goes unnoticed.",
        source,
        (flag,),
    )


def kv_dtype(wanted: Wanted, fp8: str, reason: str, source: str) -> list[Change]:
    """The KV cache's type as asked for; `fp8` is what the engine calls it."""
    if wanted.kv_dtype is None:
        return []
    if wanted.kv_dtype == "auto":
        return _plain_kv(wanted)
    return wanted.change("fp8 KV cache", reason, source, ("--kv-cache-dtype", fp8))


def _plain_kv(wanted: Wanted) -> list[Change]:
    return wanted.change(
        "KV cache", "The KV cache keeps the type of the model.", "as asked for", drop=["--kv-cache-dtype"]
    )


SERVED_NAME = "minimax-m3"
"""What a server that we start calls its model, whatever its checkpoint's folder is called."""


def served_name(wanted: Wanted) -> list[Change]:
    """The model's name in requests."""
    if wanted.plan is None:
        return []
    return wanted.change(
        "name",
        "Requests name the model, and a checkpoint's folder is a poor name.",
        "the engine's options",
        ("--served-model-name", SERVED_NAME),
    )


def only_here(wanted: Wanted, why: str) -> list[Change]:
    """The server on this machine's loopback; `why` that has to be said to the engine."""
    return wanted.change(
        "loopback",
        f"Only this machine can reach the server, so it needs no key; {why}.",
        "the engine's options",
        ("--host", "127.0.0.1"),
    )


def remote_code(wanted: Wanted) -> list[Change]:
    """No code out of the checkpoint."""
    return wanted.change(
        "remote code",
        "The engine has M3's architecture built in, so no Python out of the checkpoint needs to run.",
        "vLLM's recipe page for MiniMax-M3, which does without",
        drop=["--trust-remote-code"],
    )
