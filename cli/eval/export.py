"""`m3agent eval export`: write instances as tasks for Harbor, or as rows of SWE-bench with images."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from m3agent.cli.common import option, print_bytes, run, state_folder
from m3agent.cli.eval.app import Ids, Rows, counter, eval_app, load_rows, parts
from m3agent.util.sanitize import print_note, printable_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from m3agent.evals.export.export import Exported


@eval_app.command()
def export(
    rows: Rows,
    output: Annotated[
        Path, option("--output", "-o", "Folder for the result; an existing one is continued.", "FOLDER")
    ],
    form: Annotated[
        Literal["harbor", "swebench"],
        option("--format", "Tasks for Harbor, or rows of SWE-bench with the names of images."),
    ] = "harbor",
    ids: Ids = None,
) -> None:
    """Write instances for other programs. Images are built, and the reference patch must resolve each instance.

    Prints the ids of those instances of ROWS that are in the folder now.

    Exit codes: 0 all are exported; 1 some are not; 2 wrong use; 3 sandbox or environment; 130 interrupted (the same command
    continues).
    """
    from m3agent.evals.export.export import Exporter

    instances = load_rows(rows, ids)
    exporter = Exporter(output, state_folder(), *parts(print_note))
    write = exporter.harbor if form == "harbor" else exporter.swebench
    results = run(write(instances, partial(_tell, counter(len(instances)))))
    print_bytes("".join(f"{one.instance_id}\n" for one in results if not one.reason).encode())
    if any(one.machine_failed for one in results):
        raise typer.Exit(3)
    raise typer.Exit(1 if any(one.reason for one in results) else 0)


def _tell(count: Callable[[str], None], one: Exported) -> None:
    """Print the result of an instance."""
    result = "already there" if one.kept else "exported"
    if one.reason:
        result = f"not exported: {printable_line(one.reason, 300)}"
    count(f"{one.instance_id}: {result}")
