"""Define the command group `m3agent eval` and the options that its commands share. Each command has its own module."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.cli.common import argument, option, state_folder
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import print_note

if TYPE_CHECKING:
    from m3agent.evals.data.instance import Instance
    from m3agent.evals.environments.environments import Environments
    from m3agent.evals.grade.grader import Grader

eval_app = typer.Typer(help="Create, validate, run, grade and report benchmarks.", no_args_is_help=True)

Rows = Annotated[str, argument("The instances: a file, a folder or a data set.", "ROWS")]
Ids = Annotated[str | None, option("Only these instances.", "ID,...")]
Validation = Annotated[
    Path | None, option("Output of `eval validate -o`: leaves out flaky tests and invalid instances.", "FILE")
]


def parts(say: Callable[[str], None], *, official: bool = False) -> tuple[Environments, Grader]:
    """Return the environments and the grader to use; `say` receives notes for the user."""
    from m3agent.evals.environments.environments import Environments
    from m3agent.evals.grade.grader import Grader

    state = state_folder()
    return Environments(state, say), Grader(state, say, official=official)


def counter(total: int) -> Callable[[str], None]:
    """Return a function that prints a text about each of several instances on standard error, with a counter."""
    numbers = itertools.count(1)
    return lambda text: print_note(f"[{next(numbers)}/{total}] {text}")


def load_rows(rows: str, ids: str | None) -> list[Instance]:
    """Return the instances of ROWS that `--ids`, a comma-separated list, selects.

    Raises:
        UsageError: The data cannot be used.
    """
    from m3agent.evals.data.instance import DataError
    from m3agent.evals.data.load import load

    listed = [name.strip() for name in (ids or "").split(",") if name.strip()]
    try:
        return load(rows, ids=listed)
    except DataError as error:
        raise UsageError(str(error)) from None


def load_valid(
    rows: str, ids: str | None, validation: Path | None
) -> tuple[list[Instance], dict[str, str], str]:
    """Return the instances without their flaky tests, the reasons against invalid ones by id, and the digest of both.

    Raises:
        UsageError: The data or the validation cannot be used.
    """
    from m3agent.evals.data.load import digest
    from m3agent.evals.grade.validate import Validations

    instances, invalid = load_rows(rows, ids), dict[str, str]()
    if validation is not None:
        instances, invalid = Validations.read(validation).sorted_out(instances)
    return instances, invalid, digest(instances, invalid)
