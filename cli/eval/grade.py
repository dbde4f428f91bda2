"""`m3agent eval validate` and `m3agent eval grade`: check that instances can be graded, and grade patches."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.cli.common import AsJson, argument, option, print_bytes, print_json, run, say
from m3agent.cli.eval.app import Ids, Rows, Validation, counter, eval_app, load_rows, parts
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import columns_of, print_note, print_text, printable_line
from m3agent.util.table import fitting_wrapped, wrapped

if TYPE_CHECKING:
    from m3agent.evals.data.instance import Instance
    from m3agent.evals.grade.validate import Graded
    from m3agent.evals.grade.validate import Validation as Validated

Workers = Annotated[
    int | None, option("Instances at a time; by default the number of processors.", "N", min=1, max=256)
]
Official = Annotated[
    bool, option("--official/--no-official", "Also grade by the official package's rules, in a separate run.")
]
_short = partial(printable_line, limit=70)
"""Returns a reason as a table has it."""


@eval_app.command("validate")
def eval_validate(
    rows: Rows,
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            "Write the findings to this file; those that it has already are used again.",
            "FILE",
        ),
    ] = None,
    ids: Ids = None,
    runs: Annotated[int, option("Runs of the reference patch.", "N", min=1, max=50)] = 2,
    workers: Workers = None,
    official: Official = False,
    as_json: AsJson = False,
) -> None:
    """Check that instances can be graded: the reference patch always resolves them; an empty or harmless patch never does.

    Exit codes: 0 all are valid; 1 some are not; 2 wrong use; 3 sandbox or environment; 130 interrupted (with -o, the same
    command continues).
    """
    from m3agent.agent.report.write import check_target, write_page
    from m3agent.evals.grade.validate import Validations, validate_all
    from m3agent.evals.run.progress import ValidationProgress

    instances = load_rows(rows, ids)
    if output is not None:
        check_target(output)
    known = Validations.read(output).found if output is not None and output.exists() else {}
    progress = ValidationProgress(len(instances), _workers(workers))
    environments, grader = parts(progress.say)

    def keep(one: Validated) -> None:
        was_known = known.get(one.instance_id) is one
        if not was_known:
            known[one.instance_id] = one
            if output is not None:
                write_page(output, Validations.text(known.values()).encode(), mode=0o666)
        progress.finished(one, known=was_known)

    with progress:
        validations = run(
            validate_all(
                instances,
                environments,
                grader,
                workers=_workers(workers),
                runs=runs,
                official=official,
                known=dict(known),
                on_phase=progress.phase,
                on_done=keep,
            )
        )
    if as_json:
        print_bytes(Validations.text(validations).encode())
    else:
        print_text(_validation_table(validations, columns_of(sys.stdout)), end="")
        if any(one.valid for one in validations):
            kept = [] if output is None else ["--validation", str(output)]
            say(f"next: {shlex.join(['m3agent', 'eval', 'run', rows, '-o', 'RUN', *kept])} --endpoint URL")
    if any(one.machine_failed for one in validations):
        raise typer.Exit(3)
    raise typer.Exit(0 if all(one.valid for one in validations) else 1)


@eval_app.command("grade")
def eval_grade(
    rows: Rows,
    predictions: Annotated[
        str, argument("The patches: preds.json, JSON lines, or 'gold' for the reference.", "PREDICTIONS")
    ],
    ids: Ids = None,
    validation: Validation = None,
    logs: Annotated[Path | None, option("Keep the logs of the tests in this folder.", "FOLDER")] = None,
    workers: Workers = None,
    official: Official = True,
    as_json: AsJson = False,
) -> None:
    """Grade patches by m3agent's rules and by the official rules, and list where the verdicts differ.

    Exit codes: 0 all are graded; 2 wrong use; 3 sandbox or environment; 130 interrupted.
    """
    from m3agent.evals.data.predictions import REFERENCE, read_predictions
    from m3agent.evals.data.results import Verdict
    from m3agent.evals.grade.validate import Validations, grade_all

    instances = load_rows(rows, ids)
    patches = _references(instances) if predictions == REFERENCE else read_predictions(Path(predictions))
    unknown = sorted(patches.keys() - {instance.id for instance in instances})
    if unknown and ids is None:
        raise UsageError(f"{predictions} has a patch for {unknown[0]}, which is not in {rows}.")
    wanted = _with_patch(instances, patches)
    if not wanted:
        raise UsageError(f"{predictions} has no patch for any of the instances.")
    environments, grader = parts(print_note, official=official)
    grades = run(
        grade_all(
            wanted,
            patches,
            environments,
            grader,
            workers=_workers(workers),
            validations=None if validation is None else Validations.read(validation),
            folder=logs,
            on_done=partial(_tell, counter(len(wanted))),
        )
    )
    if as_json:
        found = [one.model_dump(mode="json") for one in grades]
        differences = [one.instance_id for one in grades if one.differs]
        print_json({"v": 1, "instances": found, "differences": differences})
    else:
        print_text(_grade_table(grades, columns_of(sys.stdout)), end="")
    raise typer.Exit(3 if any(one.strict.verdict is Verdict.INFRA for one in grades) else 0)


def _workers(given: int | None) -> int:
    return given or os.cpu_count() or 1


def _with_patch(instances: list[Instance], patches: Mapping[str, bytes]) -> list[Instance]:
    """Return the instances that have a patch. If some have one, name the others."""
    wanted = [instance for instance in instances if instance.id in patches]
    for instance in instances if wanted else ():
        if instance.id not in patches:
            say(f"there is no patch for {instance.id}")
    return wanted


def _references(instances: list[Instance]) -> dict[str, bytes]:
    if not all(instance.answer.patch for instance in instances):
        raise UsageError("Tasks of Harbor have a script as their reference: `m3agent eval validate` runs it.")
    return {each.id: each.answer.reference for each in instances}


def _tell(count: Callable[[str], None], graded: Graded) -> None:
    """Print the grade of an instance."""
    strict = graded.strict
    count(f"{graded.instance_id}: {strict.verdict}{f' ({strict.reason})' if strict.reason else ''}")


_MEANINGS = {
    "RED BEFORE": "tests that fail without the reference patch, of those that must",
    "REFERENCE": "runs with the reference patch that resolve the instance, of all",
}
"""What the columns of the table of `validate` count."""


def _validation_table(found: list[Validated], width: int) -> str:
    head = ("INSTANCE", "VALID", "RED BEFORE", "REFERENCE", "HARMLESS", "FLAKY", "SECONDS", "REASON")
    rows = [
        (
            one.instance_id,
            "?" if one.machine_failed else "yes" if one.valid else "no",
            f"{one.before}/{len(one.fail_to_pass)}",
            f"{sum(v == 'resolved' for v in one.reference)}/{len(one.reference)}",
            one.harmless or "-",
            str(len(one.flaky)),
            f"{one.seconds:.1f}",
            _short(one.reason or (f"only by its own rules: {one.not_strict}" if one.not_strict else "")),
        )
        for one in found
    ]
    valid = sum(one.valid for one in found)
    dropped = ("SECONDS", "FLAKY", "HARMLESS", "RED BEFORE", "REFERENCE")
    table, left_out = _fitted([head, *rows], width, dropped)
    said = [f"{valid} of {len(found)} instances are valid"]
    said += [f"{name}: {meaning}" for name, meaning in _MEANINGS.items() if name not in left_out]
    return table + "".join(f"{part}\n" for line in said for part in wrapped(line, width))


def _fitted(rows: list[tuple[str, ...]], width: int, dropped: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return a table that fits, with a line that names the columns that have no room, and the heads of these columns."""
    table, left_out = fitting_wrapped(rows, width, dropped)
    if left_out:
        said = f"too narrow for {', '.join(left_out)}: --json has them"
        table += "".join(f"{part}\n" for part in wrapped(said, width))
    return table, left_out


def _grade_table(grades: list[Graded], width: int) -> str:
    head = ("INSTANCE", "STRICT", "OFFICIAL", "FIXED", "KEPT", "SECONDS", "REASON")
    rows = [
        (
            each.instance_id,
            each.strict.verdict,
            _official(each),
            f"{each.strict.fail_to_pass.passed}/{each.strict.fail_to_pass.total}",
            f"{each.strict.pass_to_pass.passed}/{each.strict.pass_to_pass.total}",
            f"{each.strict.seconds:.1f}",
            _short(each.strict.reason),
        )
        for each in grades
    ]
    table, _ = _fitted([head, *rows], width, ("SECONDS", "KEPT", "FIXED", "OFFICIAL"))
    return table + "".join(f"{line}\n" for each in _notes(grades) for line in wrapped(each, width))


def _notes(grades: list[Graded]) -> Iterator[str]:
    """Yield what a person should know of all grades."""
    by_official = Counter(map(_official, grades))
    asked = by_official["resolved"] + by_official["unresolved"]
    resolved = sum(each.strict.verdict == "resolved" for each in grades)
    also = f", {by_official['resolved']} of {asked} by the official ones" if asked else ""
    yield f"{resolved} of {len(grades)} resolved by m3agent's rules{also}"
    for each in (each for each in grades if each.differs):
        why = _short(each.strict.reason) or "all tests passed"
        yield f"they differ on {each.instance_id}: {each.strict.verdict} ({why}) against {_official(each)}"
    unknown = [each.official.reason for each in grades if each.official and each.official.resolved is None]
    if unknown:
        yield f"no official verdict on {len(unknown)} of {len(grades)}: {min(unknown)}"
    for blind, number in Counter(each.strict.blind for each in grades if each.strict.blind).items():
        yield f"m3agent's rules saw less on {number} of {len(grades)}: {blind}"


def _official(one: Graded) -> str:
    if one.official is None or one.official.resolved is None:
        return "-"
    return "resolved" if one.official.resolved else "unresolved"
