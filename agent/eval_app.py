"""The group of commands under `m3agent eval`; each is in a module of its own, which registers itself."""

from __future__ import annotations

import typer

eval_app = typer.Typer(help="Benchmarks: validate, run, grade and report.", no_args_is_help=True)
