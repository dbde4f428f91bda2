"""Documented ways to serve MiniMax M3, by name (`serving/facts/recipes.toml`): each command exactly as its document prints it."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BeforeValidator

from m3agent.serving.facts.table import Row, rows, table_error
from m3agent.serving.plan.command import command_line
from m3agent.serving.plan.kinds import Precision
from m3agent.serving.plan.known_issues import Setup, Wanted, applies
from m3agent.util.errors import UsageError

Engine = Literal["vllm", "sglang", "trtllm", "dynamo"]
Vendor = Literal["nvidia", "amd"]

BF16 = "MiniMaxAI/MiniMax-M3"
MXFP8 = "MiniMaxAI/MiniMax-M3-MXFP8"
MXFP4 = "amd/MiniMax-M3-MXFP4"
NVFP4 = "nvidia/MiniMax-M3-NVFP4"

CHECKPOINTS = {Precision.NVFP4: NVFP4, Precision.BF16: BF16, Precision.MXFP8: MXFP8, Precision.MXFP4: MXFP4}
"""Published checkpoints by the precision of their weights. For other precisions we know none: the user brings one."""

LICENCE = f"https://huggingface.co/{BF16}/blob/main/LICENSE"
"""The licence of the weights. Only the file itself says what it permits."""

MSA_FILE = "msa.yaml"
"""Name of the file with the settings of TensorRT-LLM for one node."""
HTTP_HOST, HTTP_PORT = "HTTP_HOST", "HTTP_PORT"
"""Variables of Dynamo's scripts with the address and the port of its frontend."""


def _words(command: object) -> tuple[str, ...]:
    if not isinstance(command, str):
        raise ValueError("a command is one text")  # noqa: TRY004  # pydantic reports only this as a malformed row
    return tuple(shlex.split(command))


@dataclass(frozen=True, kw_only=True)
class Recipe(Row):
    """One documented way to serve M3; `source` is the document."""

    name: str
    engine: Engine
    vendor: Vendor = "nvidia"
    checkpoint: str
    gpus: int
    """Number of GPUs on all nodes together."""
    argv: Annotated[tuple[str, ...], BeforeValidator(_words)]
    """The whole command as printed, with the program."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Text of the files that the command reads, by name; `{command}` stands for the command with its variables."""
    image: str | None = None
    verified: bool = False
    """True if the newest option listing of the engine accepts the command with the overlay's changes."""
    notes: str = ""
    refused: str | None = None
    """Why this recipe is never planned; None if it may be."""
    only: str = ""
    """What the command does, if it starts no server; otherwise empty."""
    plans: tuple[Wanted, ...] = ()
    """Groups of settings; a plan with the settings of one of them changes this recipe."""

    @property
    def no_server(self) -> str | None:
        """Why the recipe cannot be served, and what to do instead; None if its command starts a server."""
        if not self.only:
            return None
        return (
            f"{self.name} {self.only} and starts no server: `m3agent serve --container` runs the engine in the image "
            f"{self.image}, with the best plan or with another --recipe"
        )


RECIPES = rows(Recipe, "recipes")


def filled(files: Mapping[str, str], argv: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return files with the command and its variables in place of `{command}`."""
    return {name: text.replace("{command}", command_line(argv, env)) for name, text in files.items()}


def with_settings(text: str, settings: Mapping[str, object]) -> str:
    """Return the text of a YAML file with other values of settings that it has, each on one line."""
    for name, value in settings.items():
        text = re.sub(rf"\b{name}: [^,}}\n]+", f"{name}: {value}", text)
    return text


def nearest_recipe(setup: Setup) -> str:
    """Return the name of the documented recipe that is nearest to a plan; the plan's values replace the recipe's.

    Raises:
        TableError: No recipe has a plan's settings.
    """
    for known in RECIPES:
        if applies(known.plans, setup):
            return known.name
    raise table_error(
        "recipes", f"no row has `plans` for {setup.engine} with {setup.precision} on {setup.gpu}"
    )


def recipe(name: str) -> Recipe:
    """Return the recipe with this name.

    Raises:
        UsageError: There is no such recipe; the message names the nearest ones.
    """
    for known in RECIPES:
        if known.name == name:
            return known
    names = [known.name for known in RECIPES]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`m3agent plan --recipe list` names all."
    raise UsageError(f"There is no recipe {name!r}; {hint}")
