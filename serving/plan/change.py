"""Changes to a recipe, the rules that make them, and the rules that all engines share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from m3agent.serving.plan.command import LaunchCommand, Option, flag_of
from m3agent.serving.plan.recipe import Recipe

if TYPE_CHECKING:
    from m3agent.serving.plan.planner import Plan

KvCacheDtype = Literal["auto", "fp8"]
"""KV cache type as the command line names it; `auto` keeps the model's own type."""

KEY = "$M3AGENT_API_KEY"
"""Placeholder for the server's key.

Whoever starts the server fills it in, in an environment or a private file.
"""


@dataclass(frozen=True)
class RecipeChange:
    """One change to a recipe, or a choice of the recipe that is deliberately kept.

    Attributes:
        what: Short name of the change.
        reason: Why the change is made, in one sentence.
        source: Where the reason comes from.
        added: Options that are new.
        changed: Pairs of an option: as it was and as it becomes.
        dropped: Options that are removed.
        kept: Options that stay on purpose.
        env: Environment variables to set; None removes a variable.
        files: Text of files to write beside the command, by name.
        packages: Packages to install beside the engine.
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
class ChangeRequest:
    """A parsed recipe and what the user wants from it.

    Attributes:
        recipe: The documented recipe.
        command: The recipe's command, parsed.
        context: Context window in tokens; None keeps the recipe's.
        vision: Whether the server must accept images.
        loopback: Whether only this machine may reach the server.
        kv_dtype: Type of the KV cache; None keeps the recipe's.
        plan: How to spread the model over which GPUs; None keeps the recipe's layout.
    """

    recipe: Recipe
    command: LaunchCommand
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
    ) -> list[RecipeChange]:
        """Build the change that turns the recipe into the wanted state.

        Args:
            what: Short name of the change.
            reason: Why the change is made, in one sentence.
            source: Where the reason comes from.
            give: Options that the command must have.
            drop: Flags that the command must not have.
            keep: Flags that the change names as kept on purpose.
            env: Variables to set; None removes a variable.
            files: Files to write beside the command.
            packages: Packages to install beside the engine.

        Returns:
            A list with one change, or an empty list if no option and no variable is affected.
        """
        there = {flag_of(option): option for option in self.command.options}
        differs = {name: value for name, value in env.items() if self.recipe.env.get(name) != value}
        change = RecipeChange(
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


Rule = Callable[[ChangeRequest], list[RecipeChange]]


def cached_tokens(wanted: ChangeRequest, flag: str, source: str) -> list[RecipeChange]:
    """Make the engine report how many tokens of a prompt came from the prefix cache."""
    return wanted.change(
        "cached tokens",
        "The usage then reports how many prompt tokens were cached; without it a broken prefix goes unnoticed.",
        source,
        (flag,),
    )


def default_thinking(wanted: ChangeRequest, source: str) -> list[RecipeChange]:
    """Make a request that names no thinking mode mean `enabled`, as `Settings.thinking` does for m3agent's own."""
    return wanted.change(
        "thinking",
        "A request without a thinking mode then thinks: the prompt ends with the opening think tag, so no closing tag that "
        "a file or an earlier turn quotes ends the reasoning before it begins.",
        source,
        ("--default-chat-template-kwargs", '{"thinking_mode":"enabled"}'),
    )


def kv_dtype(wanted: ChangeRequest, fp8: str, reason: str, source: str) -> list[RecipeChange]:
    """Set the type of the KV cache that the user wants; `fp8` is the engine's name for that type."""
    if wanted.kv_dtype is None:
        return []
    if wanted.kv_dtype == "auto":
        return _plain_kv(wanted)
    return wanted.change("fp8 KV cache", reason, source, ("--kv-cache-dtype", fp8))


def _plain_kv(wanted: ChangeRequest) -> list[RecipeChange]:
    return wanted.change(
        "KV cache", "The KV cache keeps the model's type.", "as asked for", drop=["--kv-cache-dtype"]
    )


SERVED_NAME = "minimax-m3"
"""Model name in requests to a server that this program starts, independent of the checkpoint's folder name."""


def served_name(wanted: ChangeRequest) -> list[RecipeChange]:
    """Set the model name that requests use; only for a plan."""
    if wanted.plan is None:
        return []
    return wanted.change(
        "name",
        "Requests name the model, and a folder's path is an unsuitable name.",
        "the engine's options",
        ("--served-model-name", SERVED_NAME),
    )


def only_here(wanted: ChangeRequest, why: str) -> list[RecipeChange]:
    """Bind the server to this machine's loopback address.

    Args:
        wanted: The recipe and the wishes.
        why: Why this engine needs the option explicitly; it becomes part of the reason.
    """
    return wanted.change(
        "loopback",
        f"Only this machine can reach the server, so it needs no key; {why}.",
        "the engine's options",
        ("--host", "127.0.0.1"),
    )


def remote_code(wanted: ChangeRequest) -> list[RecipeChange]:
    """Remove the option that lets the checkpoint run its own code."""
    return wanted.change(
        "remote code",
        "The engine has M3's architecture built in, so no Python from the checkpoint needs to run.",
        "vLLM's recipe page for MiniMax-M3, which does not use it",
        drop=["--trust-remote-code"],
    )
