"""The group of commands under `m3agent eval`."""

from __future__ import annotations

import typer

eval_app = typer.Typer(help="Benchmarks: validate, run, grade and report.", no_args_is_help=True)
