"""Write an instance as a task for Harbor (format 1.4, written for Harbor 0.25).

    ID/task.toml                 limits, the image, how the verifier gets the work tree
    ID/instruction.md            the issue
    ID/environment/Dockerfile    the image again, for runners that build
    ID/solution/solve.sh         applies the reference patch
    ID/tests/test.sh             runs grade.py, which writes the reward
    ID/tests/task.json, files/   the tests, and the files that replace the agent's

The verifier is a fresh container. Before the agent's container ends, a command there packs its work tree.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from m3agent.evals.data.instance import TESTBED, Answer, Instance
from m3agent.evals.export import in_harbor
from m3agent.evals.grade.command import parse_command
from m3agent.evals.grade.strict import targets_of, warning_options
from m3agent.evals.grade.trees import Trees
from m3agent.sandbox.store.git import TreeEntry
from m3agent.tools.runners.python import CONFIGURATION, PYTEST, START_UP

AGENT_SECONDS = 3600.0
"""Time of an agent for one task."""
NEVER_NEW = ("conftest.py", *sorted(CONFIGURATION), *(f"{name}.py" for name in sorted(START_UP)))
"""Names of files that decide how tests run. `m3agent.evals.grade.trees` also recognises such files by folder and suffix;
here only the name counts."""
GRADING_SECONDS = 600.0
"""Time of the verifier besides the tests, to unpack and compare the work tree."""
SYMLINK, EXECUTABLE = 0o120000, 0o100755
_END = "END_OF_THE_REFERENCE_PATCH"


class NotExported(ValueError):
    """An instance cannot be a task of Harbor; the message says why."""


@dataclass(frozen=True)
class HarborTask:
    """What a task needs beside its instance."""

    image: str
    """Name of the image with the environment and the code."""
    tests: Sequence[str]
    """Ids of the tests that must pass."""
    trees: Trees
    """The trees without any patch (`grading_trees`)."""
    solution: bytes
    """The reference patch in the format of `git apply`."""
    removed: Sequence[str] = ()
    """Paths of files of the base that the task's tests remove."""


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


def write_task(instance: Instance, made: HarborTask, folder: Path) -> None:
    """Write the task into a new folder.

    Raises:
        NotExported: A file of the tests is neither a regular file nor missing.
        OSError: The folder cannot be written.
    """
    texts = {
        "task.toml": _toml(instance, made.image),
        "instruction.md": f"{instance.task.statement.rstrip()}\n\nThe code is in {TESTBED}. Change it there.\n",
        "environment/Dockerfile": f"FROM {made.image}\nWORKDIR {TESTBED}\n",
        "solution/solve.sh": _solution(made.solution.decode(errors="surrogateescape")),
        "tests/test.sh": "#!/bin/sh\nexec python3 /tests/grade.py\n",
        f"tests/{in_harbor.TASK}": json.dumps(_grading(instance, made), indent=1) + "\n",
    }
    for file, text in texts.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    shutil.copyfile(in_harbor.__file__, folder / "tests" / "grade.py")
    entries = {entry.path: entry for entry in made.trees.store.list_tree(made.trees.tree)}
    for name in made.trees.tests:
        _write_file(entries[name], made.trees, folder / "tests" / in_harbor.FILES)


def _write_file(entry: TreeEntry, trees: Trees, folder: Path) -> None:
    if entry.mode == SYMLINK:
        raise NotExported(f"{entry.path} is a symbolic link, and the tests or their settings need it")
    path = folder / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(trees.store.get_blob(entry.sha))
    path.chmod(0o755 if entry.mode == EXECUTABLE else 0o644)


def _grading(instance: Instance, made: HarborTask) -> dict[str, object]:
    """Return the content of task.json, which `in_harbor` reads."""
    answer, trees = instance.answer, made.trees
    command = parse_command(answer.test_command)
    files = {entry.path for entry in trees.store.list_tree(trees.tree)}
    return {
        "tests": sorted(made.tests),
        "timeout": answer.timeout,
        "python": [*command.python, *warning_options(command)],
        "options": command.options,
        "targets": targets_of(command, answer, trees.tests, files),
        "env": {**instance.task.environment.variables, **command.env},
        "removed": sorted(made.removed),
        "never_new": NEVER_NEW,
    }


def _solution(patch: str) -> str:
    """Return a script that applies the reference patch."""
    end = _END
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
