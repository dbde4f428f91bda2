"""Adapt a documented recipe to agent work and to a plan (`serving/facts/changes.toml`): each change has a reason.

An agent sends the same growing conversation again and again. Benchmarks turn off or leave out what makes an
agent's turns fast: the prefix cache, a fast tokeniser, and a report of the cached tokens.
"""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from string import Template
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import PlainValidator

from m3agent.serving.facts.table import Condition, Row, rows
from m3agent.serving.plan.command import LaunchCommand, Option, command_line, flag_of
from m3agent.serving.plan.draft import DRAFT_METHOD
from m3agent.serving.plan.gpus import Vendor
from m3agent.serving.plan.host_cache import GIGABYTE, transfer_config
from m3agent.serving.plan.kinds import Precision
from m3agent.serving.plan.known_issues import overrides
from m3agent.serving.plan.listing import listing, problems, versions
from m3agent.serving.plan.memory_model import LONGEST_CONTEXT, KvDtype
from m3agent.serving.plan.recipe import MSA_FILE, Engine, Recipe, filled, recipe, with_settings
from m3agent.util.errors import UsageError

if TYPE_CHECKING:
    from m3agent.serving.plan.plan import Plan

KvCacheDtype = Literal["auto", "fp8"]
"""KV cache type as the command line names it; `auto` keeps the model's own type."""

KEY = "$M3AGENT_API_KEY"
"""Placeholder for the server's key.

Whoever starts the server fills it in, in an environment or a private file.
"""

_OF_A_PLAN = {"precision": Precision, "index_dtype": KvDtype, "dp": int, "draft": str} | dict.fromkeys(
    ("predicted", "ep", "host_cache"), bool
)
_OF_A_RECIPE = {"engine": Engine, "vendor": Vendor, "context": int, "kv_dtype": KvCacheDtype} | dict.fromkeys(
    ("vision", "loopback", "msa", "planned"), bool
)
_CONDITIONS = _OF_A_RECIPE | _OF_A_PLAN
"""The settings that conditions may name, with the types of their values."""
_Wanted = Annotated[Condition, PlainValidator(lambda wanted: Condition(wanted, _CONDITIONS))]


@dataclass(frozen=True, kw_only=True)
class ChangeRow(Row):
    """A rule that makes a change; the texts may contain `$` and the name of a value of `_values`."""

    what: str
    reason: str
    when: tuple[_Wanted, ...]
    """Groups of settings for which the row applies; one of them is enough."""
    give: tuple[Option, ...] = ()
    """Options that the command must have."""
    drop: tuple[str, ...] = ()
    """Flags that the command must not have."""
    keep: tuple[str, ...] = ()
    """Flags that the change names as kept on purpose."""
    replace: Mapping[str, Option] = field(default_factory=dict[str, Option])
    """Options in place of others that the command may have, by their flags."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    unset: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other values for settings in the recipe's own files."""
    append: str = ""
    """A line to add to the recipe's own files."""
    packages: tuple[str, ...] = ()


CHANGES = rows(ChangeRow, "changes")


@dataclass(frozen=True, kw_only=True)
class RecipeChange:
    """One change to a recipe, or a choice of the recipe that is deliberately kept; the fields are those of its JSON."""

    what: str
    added: tuple[Option, ...] = ()
    changed: tuple[tuple[Option, Option], ...] = ()
    """Pairs of an option: as it was and as it becomes."""
    dropped: tuple[Option, ...] = ()
    kept: tuple[Option, ...] = ()
    """Options that stay on purpose."""
    env: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Environment variables to set; None removes a variable."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text of files to write beside the command, by name."""
    packages: tuple[str, ...] = ()
    reason: str
    source: str


def overlay(
    recipe: Recipe,
    *,
    context: int | None = None,
    vision: bool = False,
    loopback: bool = True,
    kv_dtype: KvCacheDtype | None = None,
    plan: Plan | None = None,
) -> list[RecipeChange]:
    """Return the changes to a recipe for agent work, in the order in which they are shown.

    A recipe that starts a container or reads its own files (Docker, Dynamo) stays as it is. Where a recipe
    already has all the options, the result names only what is kept on purpose.

    Args:
        loopback: False if other machines may reach the server; it then asks for a key.
        plan: Spread the recipe over this plan's GPUs, with this plan's memory settings; None keeps the
            recipe's.

    Raises:
        UsageError: M3 does not support the context, or the recipe has no options to set.
    """
    if context is not None and not 1 <= context <= LONGEST_CONTEXT:
        raise UsageError(f"M3 has no window of {context:,} tokens: give 1 to {LONGEST_CONTEXT:,}.")
    command = LaunchCommand.of(recipe.argv)
    if recipe.engine == "dynamo" or command.starts.startswith("docker"):
        if context is not None or kv_dtype is not None:
            raise UsageError(f"{recipe.name} has no options to set: {recipe.notes}")
        return []
    settings = _settings(recipe, plan) | {
        "context": context,
        "vision": vision,
        "loopback": loopback,
        "kv_dtype": kv_dtype,
    }
    values = _values(recipe, command, context) | ({} if plan is None else _values_of_a_plan(plan))
    rows = [row for row in CHANGES if any(condition.holds(settings) for condition in row.when)]
    changes = [_change(row, recipe, command, values) for row in rows]
    return [change for change in changes if change is not None]


def _settings(recipe: Recipe, plan: Plan | None) -> dict[str, object]:
    """Return the settings of recipe and plan that conditions may name."""
    settings: dict[str, object] = {
        "engine": recipe.engine,
        "vendor": recipe.vendor,
        "msa": MSA_FILE in recipe.files,
        "planned": plan is not None,
    }
    if plan is None:
        return settings | dict.fromkeys(_OF_A_PLAN)
    known = {name: getattr(plan, name) for name in ("precision", "index_dtype", "ep", "dp")}
    of_plan = {"draft": plan.draft_model, "host_cache": bool(plan.wish.host_cache) or None}
    return settings | known | of_plan | {"predicted": plan.kv_tokens > 0}


_Values = dict[str, str | Sequence[str]]


def _values(recipe: Recipe, command: LaunchCommand, context: int | None) -> _Values:
    """Return the values that the texts of a row may name, without those of a plan."""
    tp = command.option("--tp") or command.option("--tp-size") or ("", "1")
    positions = overrides(Vendor(recipe.vendor), context or 0)
    return {
        "context": str(context),
        "positions": json.dumps(positions, separators=(",", ":")),
        "tp_given": tp[1:],
    }


def _values_of_a_plan(plan: Plan) -> _Values:
    host = plan.wish.host_cache
    speculative = {
        "method": DRAFT_METHOD,
        "model": plan.draft_model,
        "num_speculative_tokens": plan.batch.drafted,
        "attention_backend": plan.draft_backend,
    }
    return {
        "gpus": plan.gpus,
        "tp": str(plan.tp),
        "dp": str(plan.dp),
        "ep_size": str(plan.tp if plan.ep else 1),
        "kv_tokens": f"{plan.kv_tokens:,}",
        "utilisation": f"{plan.utilisation:g}",
        "batched": str(plan.batch.tokens),
        "sequences": str(plan.max_num_seqs),
        "graphs": [str(size) for size in plan.batch.graphs],
        "host_cache": str(host),
        "host_gb": f"{host / GIGABYTE:,.0f}",
        "host_gb_a_rank": str(max(1, host // (GIGABYTE * plan.tp))),
        "transfer": transfer_config(host),
        "draft": plan.draft_model or "",
        "draft_tokens": str(plan.batch.drafted),
        "speculative": json.dumps(speculative, separators=(",", ":")),
    }


def _change(row: ChangeRow, recipe: Recipe, command: LaunchCommand, values: _Values) -> RecipeChange | None:
    """Return the change that a row makes; None if it affects no option and no variable."""
    there = {flag_of(option): option for option in command.options}
    new = _replaced(row, there, values)
    wanted = {**row.env, **dict.fromkeys(row.unset)}
    change = RecipeChange(
        what=row.what,
        added=tuple(option for old, option in new if old is None),
        changed=tuple((old, option) for old, option in new if old is not None and old != option),
        dropped=tuple(there[flag] for flag in row.drop if flag in there),
        kept=tuple(there[flag] for flag in row.keep if flag in there),
        env={name: value for name, value in wanted.items() if recipe.env.get(name) != value},
        files={**row.files, **_own_files(row, recipe, values)},
        packages=row.packages,
        reason=_text(row.reason, values),
        source=row.source,
    )
    effects = (change.added, change.changed, change.dropped, change.kept, change.env, change.files)
    return change if any(effects) else None


def _replaced(
    row: ChangeRow, there: Mapping[str, Option], values: _Values
) -> list[tuple[Option | None, Option]]:
    """Return the options that a row gives, each with the option that it replaces; None if it is new."""
    pairs = [(there.get(old), new) for old, new in row.replace.items() if old in there]
    pairs += [(there.get(flag_of(option)), option) for option in row.give]
    return [(old, _filled(new, values)) for old, new in pairs]


def _own_files(row: ChangeRow, recipe: Recipe, values: _Values) -> dict[str, str]:
    """Return the recipe's own files with the row's settings and its further line."""
    if not row.settings:
        return {}
    settings = {name: _text(value, values) for name, value in row.settings.items()}
    more = f"{_text(row.append, values)}\n" if row.append else ""
    return {name: with_settings(text, settings) + more for name, text in recipe.files.items()}


def _filled(option: Option, values: _Values) -> Option:
    """Return an option with its values; one word may stand for several."""
    words: list[str] = []
    for word in option:
        value = values.get(word[1:], word) if word.startswith("$") else word
        words += [value] if isinstance(value, str) else value
    return tuple(words)


def _text(text: str, values: _Values) -> str:
    return Template(text).safe_substitute(values)


def applied(recipe: Recipe, changes: Sequence[RecipeChange]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Apply changes to a recipe.

    Returns:
        The command and its environment. Unchanged and changed options keep their places; new options come
            last.
    """
    command = LaunchCommand.of(recipe.argv)
    becomes: dict[Option, Option | None] = {}
    env: dict[str, str | None] = {**recipe.env}
    for change in changes:
        becomes |= dict(change.changed) | dict.fromkeys(change.dropped)
        env |= change.env
    kept = [new for option in command.options if (new := becomes.get(option, option)) is not None]
    added = [option for change in changes for option in change.added]
    words = replace(command, options=(*kept, *added)).words
    return words, {name: value for name, value in env.items() if value is not None}


def files_beside(
    recipe: Recipe, changes: Sequence[RecipeChange], argv: Sequence[str], env: Mapping[str, str]
) -> dict[str, str]:
    """Return the files to write beside the changed command, by name."""
    files = {name: text for change in changes for name, text in change.files.items()}
    return filled({**recipe.files, **files}, argv, env)


def packages_beside(changes: Sequence[RecipeChange]) -> list[str]:
    """Return the packages that the changes need beside the engine, sorted."""
    return sorted({package for change in changes for package in change.packages})


UNVERIFIED = "Not verified: m3agent has no list of this engine's options, or of the fields of its files."
"""Note for a recipe that nobody checked against the engine's options."""

_FIELDS = (
    "name",
    "engine",
    "vendor",
    "checkpoint",
    "gpus",
    "image",
    "source",
    "verified",
    "notes",
    "refused",
)


def recipe_json(name: str, *, context: int | None = None, vision: bool = False) -> dict[str, Any]:
    """Return a recipe as JSON types: the documented command, the changes, and the resulting command.

    Returns:
        A JSON object. `problems` belongs to the documented command and the newest listing of the engine,
            which `checked_with` names. Both are None if the engine has no listing or the recipe has no
            changes. `result` is None for a refused recipe.

    Raises:
        UsageError: There is no such recipe, or `overlay` rejects the arguments.
    """
    known = recipe(name)
    changes = overlay(known, context=context, vision=vision)
    argv, env = applied(known, changes)
    checked = listing(known.engine) if versions(known.engine) and changes else None
    result = {
        "argv": list(argv),
        "env": env,
        "files": files_beside(known, changes, argv, env),
        "packages": packages_beside(changes),
    }
    return {
        **{name: getattr(known, name) for name in _FIELDS},
        "argv": list(known.argv),
        "env": dict(known.env),
        "files": files_beside(known, (), known.argv, known.env),
        "checked_with": checked.name if checked else None,
        "problems": problems(known.argv, checked) if checked else None,
        "overlay": [asdict(change) for change in changes],
        "result": None if known.refused else result,
    }


def recipe_text(name: str, *, context: int | None = None, vision: bool = False) -> str:
    """Format a recipe for people and shells: the documented command, then everything else as comments.

    The comments contain the recipe's files, each change with its reason, and the resulting command. The
    arguments are those of `recipe_json`.

    Raises:
        UsageError: There is no such recipe, or `overlay` rejects the arguments.
    """
    shown = recipe_json(name, context=context, vision=vision)
    changes = overlay(recipe(name), context=context, vision=vision)
    lines = [
        f"# {name}: {shown['source']}",
        command_line(shown["argv"], shown["env"]),
        *_comment(f"GPUs: {shown['gpus']}" + (f", image {shown['image']}" if shown["image"] else "")),
        *_comment(shown["notes"]),
        *(() if shown["verified"] or shown["refused"] else _comment(UNVERIFIED)),
        *(_comment(f"Never planned: {shown['refused']}.") if shown["refused"] else ()),
    ]
    for file, text in shown["files"].items():
        lines += ["#", f"# {file}:", *_indented(text)]
    if shown["problems"]:
        lines += ["#", f"# Unchanged, {shown['checked_with']} rejects it:"]
        lines += [line for sentence in shown["problems"] for line in _comment(sentence)]
    if changes:
        lines += ["#", "# For agent work:"]
    lines += changes_text(changes)
    if changes and (result := shown["result"]):
        lines += ["#", "# Result:", *_indented(command_line(result["argv"], result["env"]))]
        lines += [f"# install with the engine: {package}" for package in result["packages"]]
    return "\n".join(lines) + "\n"


def changes_text(changes: Sequence[RecipeChange]) -> list[str]:
    """Format changes to a recipe, each with its reason, as lines of shell comments."""
    lines: list[str] = []
    for change in changes:
        lines += [f"#   {mark}" for mark in _marks(change)]
        lines += _comment(f"{change.reason} ({change.source})", "      ")
    return lines


def _comment(text: str, indent: str = "") -> list[str]:
    head = f"# {indent}"
    # a source such as vllm-project/vllm#46042 stays whole
    return textwrap.wrap(text, 110, initial_indent=head, subsequent_indent=head, break_on_hyphens=False)


def _indented(text: str) -> list[str]:
    return [f"#   {line}".rstrip() for line in text.splitlines()]


def _marks(change: RecipeChange) -> Iterator[str]:
    yield from (f"+ {shlex.join(option)}" for option in change.added)
    yield from (f"~ {shlex.join(old)} -> {shlex.join(new)}" for old, new in change.changed)
    yield from (f"- {shlex.join(option)}" for option in change.dropped)
    yield from (f"= {shlex.join(option)}" for option in change.kept)
    yield from (f"- {name}" if value is None else f"+ {name}={value}" for name, value in change.env.items())
    yield from (f"+ {name}: {text.strip()}" for name, text in change.files.items())
