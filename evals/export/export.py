"""Export instances one after the other. Each one is checked first: its reference patch must resolve it.

A task for Harbor (format 1.4, written for Harbor 0.25) has these files:

    ID/task.toml                 limits, the image, how the verifier gets the work tree
    ID/instruction.md            the issue
    ID/environment/Dockerfile    the image again, for runners that build
    ID/solution/solve.sh         applies the reference patch
    ID/tests/test.sh             runs grade.py, which writes the reward
    ID/tests/task.json, files/   the tests, and the files that replace the agent's

The verifier is a fresh container. Before the agent's container ends, a command there packs its work tree.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m3agent.agent.report.write import write_page
from m3agent.evals.code.checkout import codebase
from m3agent.evals.data.dialects import BENCHMARKS
from m3agent.evals.data.instance import TESTBED, Answer, DataError, Instance
from m3agent.evals.data.load import ROWS
from m3agent.evals.data.results import Verdict
from m3agent.evals.environments.environments import Environments
from m3agent.evals.environments.recipe import CONDA
from m3agent.evals.export import in_harbor
from m3agent.evals.grade.grader import Grader, InvalidInstance
from m3agent.evals.grade.row_suites import parse_command
from m3agent.evals.grade.strict import judge, targets_of, warning_options
from m3agent.evals.grade.trees import Trees, apply, grading_trees, open_store
from m3agent.sandbox.errors import EngineUnavailable, EnvironmentBuildFailed, ImageMissing, SandboxError
from m3agent.sandbox.store.git import TreeEntry
from m3agent.tools.runners.python import CONFIGURATION, PYTEST, START_UP
from m3agent.util.errors import EnvironmentFault, UsageError, reason_of
from m3agent.util.json_lines import json_lines

AGENT_SECONDS = 3600.0
"""Time of an agent for one task."""
NEVER_NEW = ("conftest.py", *sorted(CONFIGURATION), *(f"{name}.py" for name in sorted(START_UP)))
"""Names of files that decide how tests run. `m3agent.evals.grade.trees` also recognises such files by folder and suffix;
here only the name counts."""
GRADING_SECONDS = 600.0
"""Time of the verifier besides the tests, to unpack and compare the work tree."""
SYMLINK, EXECUTABLE = 0o120000, 0o100755
_END_OF_PATCH = "END_OF_THE_REFERENCE_PATCH"


class NotExported(ValueError):
    """An instance cannot be a task of Harbor; the message says why."""


def check_runner(answer: Answer) -> None:
    """Check that a task's script can run the tests.

    Raises:
        NotExported: Another program than pytest runs them.
    """
    program = parse_command(answer.test_command).program
    if answer.runner != PYTEST or program:
        raise NotExported(
            f"its tests are run by {program or answer.runner or 'another runner'}, and only those of pytest can be exported"
        )


def write_task(
    instance: Instance,
    image: str,
    tests: Sequence[str],
    trees: Trees,
    diffs: tuple[bytes, list[str]],
    folder: Path,
) -> None:
    """Write an instance as a task into a new folder.

    Args:
        tests: Ids of the tests that must pass.
        trees: The trees without any patch (`grading_trees`).
        diffs: The reference patch, and the paths of the base that the task's tests remove.

    Raises:
        NotExported: A file of the tests is neither a regular file nor missing.
        OSError: The folder cannot be written.
    """
    texts = {
        "task.toml": _toml(instance, image),
        "instruction.md": f"{instance.task.statement.rstrip()}\n\nThe code is in {TESTBED}. Change it there.\n",
        "environment/Dockerfile": f"FROM {image}\nWORKDIR {TESTBED}\n",
        "solution/solve.sh": _solution(diffs[0].decode(errors="surrogateescape")),
        "tests/test.sh": "#!/bin/sh\nexec python3 /tests/grade.py\n",
        f"tests/{in_harbor.TASK}": json.dumps(_grading(instance, tests, trees, diffs[1]), indent=1) + "\n",
    }
    for file, text in texts.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    shutil.copyfile(in_harbor.__file__, folder / "tests" / "grade.py")
    entries = {entry.path: entry for entry in trees.store.list_tree(trees.tree)}
    for name in trees.tests:
        _write_file(entries[name], trees, folder / "tests" / in_harbor.FILES)


def _write_file(entry: TreeEntry, trees: Trees, folder: Path) -> None:
    if entry.mode == SYMLINK:
        raise NotExported(f"{entry.path} is a symbolic link, and the tests or their settings need it")
    path = folder / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(trees.store.get_blob(entry.sha))
    path.chmod(0o755 if entry.mode == EXECUTABLE else 0o644)


def _grading(instance: Instance, tests: Sequence[str], trees: Trees, removed: list[str]) -> dict[str, object]:
    """Return the content of task.json, which `in_harbor` reads."""
    answer = instance.answer
    command = parse_command(answer.test_command)
    files = {entry.path for entry in trees.store.list_tree(trees.tree)}
    return {
        "tests": sorted(tests),
        "timeout": answer.timeout,
        "python": [*command.python, *warning_options(command)],
        "options": command.options,
        "targets": targets_of(command, answer, trees.tests, files),
        "env": {**instance.task.environment.variables, **command.env},
        "removed": sorted(removed),
        "never_new": NEVER_NEW,
    }


def _solution(patch: str) -> str:
    """Return a script that applies the reference patch."""
    end = _END_OF_PATCH
    while f"\n{end}\n" in patch:
        end += "_"
    return f"#!/bin/sh\nset -e\ncd {TESTBED}\ngit apply --whitespace=nowarn - <<'{end}'\n{patch}{end}\n"


def _toml(instance: Instance, image: str) -> str:
    task = instance.task
    folder, name = in_harbor.LEFT.rsplit("/", 1)
    pack = f"mkdir -p {folder} && tar -czf {folder}/{name} -C {TESTBED}/ --exclude=./.git ."
    values: dict[str, dict[str, object]] = {
        "task": {"name": f"m3agent/{task.instance_id}"},
        "metadata": {
            "instance_id": task.instance_id,
            "repo": task.repo,
            "base_commit": task.base_commit,
            "language": "python",
        },
        "agent": {"timeout_sec": AGENT_SECONDS},
        "verifier": {
            "timeout_sec": instance.answer.timeout + GRADING_SECONDS,
            "environment_mode": "separate",
        },
        "environment": {"docker_image": image, "workdir": TESTBED},
    }
    text = 'schema_version = "1.4"\n'
    for table, fields in values.items():
        text += f"\n[{table}]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in fields.items())
        if table == "verifier":
            text += f"\n[[verifier.collect]]\ncommand = {_value(pack)}\n"
    return text


def _value(value: object) -> str:
    """Return a string or number in TOML. Its strings are those of JSON, except for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


OWN = {"repo_archive", "repo_ref", "environment", *(benchmark.signs[0] for benchmark in BENCHMARKS)}
"""Fields that only m3agent reads, whose paths belong to another folder, and those by which it recognises benchmarks."""
_CHANGED = re.compile(r"^\+\+\+ b/(.+?)\r?$|^--- a/(.+?)\r?$", re.MULTILINE)
_END = "EOF_114329324912"
"""End of the test patch in the official scripts (swebench 4.1.0, harness/test_spec)."""


@dataclass(frozen=True)
class Exported:
    """The result for one instance."""

    instance_id: str
    reason: str = ""
    """Why it was not exported; empty if it was."""
    kept: bool = False
    """Whether an earlier export had written it."""
    machine_failed: bool = False
    """Whether this machine failed, so that the same command may succeed later."""


class Exporter:
    """Writes instances into a folder. An instance that is there already is kept, so an interrupted export continues.

    The image of each instance in the folder is built if it is missing, and counts as used.

    Raises:
        UsageError: `output` is not a folder.
        EnvironmentFault: It cannot be made.
    """

    def __init__(self, output: Path, state: Path, environments: Environments, grader: Grader) -> None:
        if output.exists() and not output.is_dir():
            raise UsageError(f"{output} is not a folder: give a new one.")
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(f"{output} cannot be made: {reason_of(error)}") from None
        self._output = output
        self._state = state
        self._environments = environments
        self._grader = grader

    async def harbor(self, instances: Sequence[Instance], tell: Callable[[Exported], None]) -> list[Exported]:
        """Write each instance as a task of Harbor, in a folder with its id.

        Raises:
            EngineUnavailable: No container engine answers.
        """

        async def write(instance: Instance) -> None:
            check_runner(instance.answer)
            image, decided, tests = await self._checked(instance)
            await asyncio.to_thread(self._write, decided, image, tests)

        kept = {each.id for each in instances if (self._output / each.id).exists()}
        return await self._all(instances, kept, write, tell)

    async def swebench(
        self, instances: Sequence[Instance], tell: Callable[[Exported], None]
    ) -> list[Exported]:
        """Write the instances as rows of SWE-bench, into `instances.jsonl`.

        Raises:
            UsageError: The file is there and is not that of an export.
            EngineUnavailable: No container engine answers.
        """
        path = self._output / ROWS
        rows = await asyncio.to_thread(_rows_in, path)

        async def write(instance: Instance) -> None:
            image, decided, _ = await self._checked(instance)
            rows[instance.id] = json.dumps(row_of(decided, image))
            text = "".join(f"{row}\n" for row in rows.values())
            await asyncio.to_thread(write_page, path, text.encode())

        return await self._all(instances, {*rows}, write, tell)

    async def _all(
        self,
        instances: Sequence[Instance],
        kept: set[str],
        write: Callable[[Instance], Awaitable[None]],
        tell: Callable[[Exported], None],
    ) -> list[Exported]:
        results = []
        for instance in instances:
            result = Exported(instance.id, kept=instance.id in kept)
            try:
                if result.kept:
                    await self._environments.whole_image(instance.task)
                else:
                    await write(instance)
            except (DataError, EnvironmentBuildFailed, ImageMissing, InvalidInstance, NotExported) as error:
                result = Exported(instance.id, str(error))
            except EngineUnavailable:
                raise
            except (SandboxError, EnvironmentFault, OSError) as error:
                result = Exported(instance.id, f"this machine failed: {error}", machine_failed=True)
            results.append(result)
            tell(result)
        return results

    async def _checked(self, instance: Instance) -> tuple[str, Instance, list[str]]:
        """Return an instance's image, the instance with the tests that decide, and the ids of these tests."""
        image = await self._environments.whole_image(instance.task)
        decided = await self._grader.decided(instance, image)
        trees, run = await self._grader.tried(decided, decided.answer.reference, image)
        grade = judge(decided.answer, run, trees, 0.0)
        if grade.verdict is not Verdict.RESOLVED:
            raise NotExported(f"the reference patch does not resolve it: {grade.reason}")
        names = decided.answer.tests
        return image, decided, sorted({ident for name in names for ident in run.found.idents(name)})

    def _write(self, instance: Instance, image: str, tests: Sequence[str]) -> None:
        code, target = codebase(instance.task, self._state), self._output / instance.id
        try:
            with (
                tempfile.TemporaryDirectory(prefix="m3agent-export-") as scratch,
                tempfile.TemporaryDirectory(dir=self._output, prefix=".unfinished-") as unfinished,
            ):
                store, base = open_store(code.path, Path(scratch) / "trees.git")
                trees = grading_trees(store, base, instance.answer, b"")
                after = {entry.path for entry in store.list_tree(trees.tree)}
                removed = [entry.path for entry in store.list_tree(base) if entry.path not in after]
                solved = apply(store, base, instance.answer.reference)
                diffs = store.diff(base, solved), removed
                write_task(instance, image, tests, trees, diffs, Path(unfinished) / "task")
                (Path(unfinished) / "task").rename(target)
        except OSError as error:
            raise EnvironmentFault(f"{target} cannot be written: {reason_of(error)}") from None


def _rows_in(path: Path) -> dict[str, str]:
    """Return the rows of an earlier export, by their ids."""
    rows = {}
    try:
        for _, line in json_lines(path.read_bytes() if path.exists() else b""):
            row = json.loads(line)
            if not row["image_name"]:  # perhaps the rows to export
                raise KeyError("image_name")
            rows[str(row["instance_id"])] = line
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not the file of an export: give a new folder.") from None
    return rows


def row_of(instance: Instance, image: str) -> dict[str, Any]:
    """Return an instance as a row of SWE-bench, with the name of its image.

    swebench 5 grades with `eval_script` and `log_parser`. Instances without them get a script that runs their own command.

    Args:
        image: Name of its image. The code is in /testbed there, as in official images.
    """
    task, answer = instance.task, instance.answer
    row: dict[str, Any] = {
        "repo": task.repo,
        "instance_id": task.instance_id,
        "base_commit": task.base_commit,
        "patch": answer.patch,
        "test_patch": answer.test_patch,
        "problem_statement": task.statement,
        "hints_text": "",
        "created_at": task.created_at.isoformat() if task.created_at else "",
        "version": task.version,
        "environment_setup_commit": task.base_commit,
        **{name: value for name, value in answer.row.items() if name not in OWN},
        "FAIL_TO_PASS": json.dumps(list(answer.fail_to_pass)),
        "PASS_TO_PASS": json.dumps(list(answer.pass_to_pass)),
        "image": image,
        "image_name": image,
        "docker_image": image,
    }
    if not row.get("eval_script") and answer.runner == PYTEST and answer.test_command:
        row |= {
            "eval_script": _eval_script(instance),
            "log_parser": "parse_log_pytest",
            "eval_type": "pass_and_fail",
        }
    return row


def _eval_script(instance: Instance) -> str:
    """Return a script as the official harness makes it: reset the tests, apply the test patch, run the command."""
    answer = instance.answer
    command = answer.test_command if " -rA" in answer.test_command else f"{answer.test_command} -rA"
    before = sorted({old for _, old in _CHANGED.findall(answer.test_patch) if old})
    reset = f"git checkout HEAD -- {' '.join(before)}\n" if before else ""
    patch = answer.test_patch if answer.test_patch.endswith("\n") else f"{answer.test_patch}\n"
    tests = f"git apply -v - <<'{_END}'\n{patch}{_END}\n" if answer.test_patch.strip() else ""
    return f"""\
#!/bin/bash
set -uxo pipefail
source {CONDA}/bin/activate
conda activate testbed
cd {TESTBED}
git config --global --add safe.directory {TESTBED}
{reset}{tests}: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
{reset}"""
