"""When a run of a suite is complete, and what is red: `report_of` with a reading, and `run_suite` in a real sandbox."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence

import pytest

from m3agent.sandbox.backends.factory import SandboxSpec, new_sandbox
from m3agent.sandbox.backends.kinds import Backend
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.runners.base import (
    Command,
    Job,
    Limits,
    Output,
    Reading,
    Result,
    Runner,
    Suite,
    Tree,
    Unit,
)
from m3agent.tools.runners.run import NO_REPORT, NOT_ENDED, report_of, run_suite
from m3agent.tools.runners.suites import tree_files
from m3agent.tools.test_report import Signs, TestReport

COMMAND = Command(("run",), report="/tmp/report")
DONE = Output(COMMAND, 0, b"")
A, B = Result("a.c::one", "passed"), Result("a.c::two", "passed")
COMPLETE = Reading(
    results=[A, B], started=["a.c::one", "a.c::two"], planned={"a.c"}, reported={"a.c"}, ended=True
)


def test_a_complete_run() -> None:
    report = report_of(COMPLETE, [], [DONE])
    assert (report.complete, report.passed, report.red, report.signs.forged) == (
        True,
        ("a.c::one", "a.c::two"),
        set(),
        (),
    )


@pytest.mark.parametrize(
    ("reading", "outputs", "red"),
    [
        (dataclasses.replace(COMPLETE, ended=False), [DONE], {}),
        (dataclasses.replace(COMPLETE, problem="the report is damaged"), [DONE], {}),
        (COMPLETE, [dataclasses.replace(DONE, timed_out=True)], {}),
        (dataclasses.replace(COMPLETE, results=[A]), [DONE], {"a.c::two": NOT_ENDED}),
        (dataclasses.replace(COMPLETE, planned={"a.c", "b.c"}), [DONE], {"b.c": NO_REPORT}),
    ],
    ids=["no end", "a problem", "out of time", "a test without an end", "a unit without a report"],
)
def test_a_run_that_is_not_complete(reading: Reading, outputs: list[Output], red: dict[str, str]) -> None:
    report = report_of(reading, [], outputs)
    assert not report.complete
    assert {ident: report.errors[ident] for ident in report.red} == red


def test_a_run_of_some_of_the_commands_is_not_complete() -> None:
    assert not report_of(COMPLETE, [], [DONE], whole=False).complete


def test_a_unit_that_is_not_built_is_one_red_test() -> None:
    units = [Unit("a.c"), Unit("b.c", built=False, text="b.c:1: error: expected ';'")]
    report = report_of(COMPLETE, units, [DONE])
    assert (report.complete, report.errored) == (True, ("b.c",))
    assert report.errors["b.c"] == "b.c:1: error: expected ';'"


def test_of_equal_ids_the_worst_outcome_counts() -> None:
    for others in (["failed", "passed"], ["passed", "failed"], ["error", "failed"], ["failed", "skipped"]):
        results = [Result("a.c::one", outcome, f"it {outcome}") for outcome in others]  # type: ignore[arg-type]
        report = report_of(dataclasses.replace(COMPLETE, results=results, started=[]), [], [DONE])
        worst = "error" if "error" in others else "failed"
        assert report.red == {"a.c::one"}
        assert (report.passed, report.skipped) == ((), ())
        assert report.errors == {"a.c::one": f"it {worst}"}


def test_signs_of_tampering_reach_the_report() -> None:
    report = report_of(dataclasses.replace(COMPLETE, tampering=["a canary passed"]), [], [DONE])
    assert report.signs == Signs(forged=("a canary passed",))


class Shell(Runner):
    """Tests that are shell scripts: a script prints `NAME OUTCOME` for each of its tests, then `end`."""

    name = "shell"
    language = "Shell"

    def detect(self, tree: Tree) -> list[Suite]:
        return [Suite("shell")]

    def is_test(self, path: str) -> bool:
        return path.endswith(".sh")

    def surroundings(self, path: str, base: object = ()) -> bool:
        return False

    def select(self, suite: Suite, tree: Tree, wanted: Sequence[str]) -> tuple[str, ...]:
        return tuple(ident.partition("::")[0] for ident in wanted)

    def build(self, job: Job) -> Command:
        script = 'for file; do sh -n "$file" 2>/dev/null && echo "$file"; done; true'
        return Command(("sh", "-c", script, "sh", *(job.targets or sorted(job.tree.paths))))

    def units(self, job: Job, output: Output) -> list[Unit]:
        built = output.report.decode().split()
        return [Unit(path, path in built, "a syntax error") for path in sorted(job.tree.paths)]

    def commands(self, job: Job, units: Sequence[Unit]) -> list[Command]:
        report, key = f"{job.work}/report", f"{job.work}/key"
        script = '{ cat "$3"; echo; . "$1"; } > "$2"'
        return [
            Command(
                ("sh", "-c", script, "sh", f"./{unit.name}", report, key),
                env={"UNIT": unit.name},
                files={f"{job.work}/extra/data.json": json.dumps({"unit": unit.name}).encode()},
                report=report,
                key_file=key,
                seconds=job.limits.per_test,
            )
            for unit in units
            if unit.built and (not job.targets or unit.name in job.targets)
        ]

    def read(self, job: Job, units: Sequence[Unit], outputs: Sequence[Output]) -> Reading:
        reading = Reading(ended=True)
        for output in outputs:
            key, *said = output.report.decode().splitlines()
            unit = output.command.env["UNIT"]
            reading.planned.add(unit)
            assert key == output.key.hex()
            for line in said:
                if line == "end":
                    reading.reported.add(unit)
                else:
                    name, outcome = line.split()
                    reading.results.append(Result(f"{unit}::{name}", outcome))  # type: ignore[arg-type]
        return reading


async def test_a_suite_in_a_sandbox(
    workspace_of: Callable[[dict[str, str | bytes]], Workspace], one_backend: Backend
) -> None:
    files: dict[str, str | bytes] = {
        "good.sh": 'echo "one passed"; grep -q good.sh "${2%/*}/extra/data.json" && echo "$CI$UNIT$MORE passed"; echo end\n',
        "bad.sh": 'echo "two failed"; echo end; exit 0\n',
        "early.sh": 'echo "three passed"; return\n',
        "broken.sh": 'echo "four passed\n',
        "slow.sh": "echo end; exec sleep 60\n",
    }
    workspace = workspace_of(files)
    tree = tree_files(workspace.store, workspace.base)
    async with new_sandbox(one_backend, SandboxSpec(), workspace, print) as sandbox:
        runner = Shell()
        report = await run_suite(sandbox, runner, Suite("shell"), tree, limits=Limits(30, 2))
        env = {"MORE": "-row", "UNIT": "the command's own counts"}
        part = await run_suite(
            sandbox, runner, Suite("shell"), tree, ["good.sh::one"], limits=Limits(30, 2), env=env
        )
    assert report.passed == ("early.sh::three", "good.sh::1good.sh", "good.sh::one")
    assert report.failed == ("bad.sh::two",)
    assert {ident: report.errors[ident] for ident in report.errored} == {
        "broken.sh": "a syntax error",
        "early.sh": NO_REPORT,
    }
    assert (report.complete, report.timed_out) == (False, True)
    assert (part.passed, part.complete) == (("good.sh::1good.sh-row", "good.sh::one"), True)


async def test_code_of_another_suite_cannot_put_files_in_the_place_of_the_runners(
    workspace_of: Callable[[dict[str, str | bytes]], Workspace], one_backend: Backend
) -> None:
    workspace = workspace_of({"good.sh": 'echo "one passed"; echo end\n'})
    tree = tree_files(workspace.store, workspace.base)
    folder = 'mkdir -p "$0/shell-" && cd "$0/shell-" && '
    async with new_sandbox(one_backend, SandboxSpec(), workspace, print) as sandbox:
        tests = f"{sandbox.folders.temporary}/m3agent-tests"

        async def run_after(plant: str) -> TestReport:
            planted = await sandbox.exec(["sh", "-c", folder + plant, tests])
            assert planted.exit == 0, planted.stderr
            return await run_suite(sandbox, Shell(), Suite("shell"), tree, limits=Limits(30, 2))

        built_before = await run_after("echo forged > key && chmod 444 key && touch build")
        left = await sandbox.exec(["ls", f"{tests}/shell-"])
        read_only = await run_after("rm -f key && echo forged > key && chmod 444 key")
        link = await run_after("ln -sf /dev/null key")
        in_the_way = await run_after("rm -f key && mkdir key")
    assert b"build" not in left.stdout
    for report in (built_before, read_only, link):
        assert (report.passed, report.complete) == (("good.sh::one",), True)
    assert (in_the_way.passed, in_the_way.complete) == ((), False)
    sentence = f"{tests}/shell-/key could not be written for the test runner"
    assert in_the_way.output.startswith(sentence)
    assert in_the_way.signs.forged == (sentence,)


def test_reading_an_output_does_not_move_the_place_of_programs_that_still_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    steps = importlib.import_module("m3agent.tools.in_sandbox.steps")
    with tempfile.TemporaryFile() as file:
        file.write(b"first" + bytes(2 * steps.KEEP) + b"last")
        file.flush()
        os.lseek(file.fileno(), 1000, os.SEEK_SET)
        text = steps.head_and_tail(file.fileno())
        assert (text[:5], text[-4:], len(text)) == ("first", "last", 2 * steps.KEEP + len("\n[...]\n"))
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 1000
