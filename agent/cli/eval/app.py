"""Define the command group `m3agent eval` and the options that its commands share. Each command has its own module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

eval_app = typer.Typer(help="Create, validate, run, grade and report benchmarks.", no_args_is_help=True)

Rows = Annotated[str, typer.Argument(help="The instances: a file, a folder or a data set.", metavar="ROWS")]
Ids = Annotated[str | None, typer.Option(help="Only these instances.", metavar="ID,...")]
Validation = Annotated[
    Path | None,
    typer.Option(
        help="Output of `eval validate -o`: leaves out flaky tests and invalid instances.", metavar="FILE"
    ),
]


def names(listed: str | None) -> tuple[str, ...]:
    """Return the ids given with `--ids`, a comma-separated list."""
    return tuple(name.strip() for name in (listed or "").split(",") if name.strip())
