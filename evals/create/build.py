"""Between mining and grading: what a candidate is as an instance, and what whoever runs its tests says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from m3agent.evals.create.mine import Candidate
from m3agent.evals.data.instance import Answer, Environment, Instance, Source, Task


@dataclass(frozen=True)
class Validated:
    """What running an instance's tests without and with its patch showed.

    fail_to_pass: ids of tests that do not pass before and pass after; pass_to_pass: that pass both times; both only
    where runs agree with each other. errors: what the first ones raised before, by id; by the file's name for tests of
    a file that could not be imported. reason: why it is no instance; empty if it is one.
    """

    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


class Validator(Protocol):
    """Builds an instance's environment and runs the test files that its test patch touches."""

    async def __call__(self, instance: Instance, folder: Path) -> Validated:
        """The tests before and after the patch; `folder` is empty and may be filled with logs.

        The instance's source is an archive with its base commit, its lists of tests are empty. Raises only for what is
        not the instance's doing: the engine is away, the disk is full.
        """
        ...


def instance_id(repo: str, base: str) -> str:
    """The instance's id: by its base, since the fix's own would tell an agent where to find it."""
    return f"{folder_name(repo)}-{base[:12]}"


def folder_name(repo: str) -> str:
    """A repository's name as a part of ids and names of files: `owner__name`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", repo.replace("/", "__")).lstrip("._-")[:150] or "repository"


def row_of(
    repo: str,
    candidate: Candidate,
    recipe: tuple[dict[str, Any], str],
    statement: tuple[str, str],
    found: Validated,
) -> dict[str, Any]:
    """The row of an instance: SWE-bench's fields, and ours as in `docs/eval-create.md`.

    recipe: the environment and the version. statement: the text and where it is from.
    """
    ident = instance_id(repo, candidate.base)
    environment, version = recipe
    tests = " ".join(candidate.test_files)
    return {
        "repo": repo,
        "instance_id": ident,
        "base_commit": candidate.base,
        "patch": candidate.patch,
        "test_patch": candidate.test_patch,
        "problem_statement": statement[0],
        "hints_text": "",
        "created_at": environment["exclude_newer"],
        "version": version,
        "FAIL_TO_PASS": json.dumps(sorted(found.fail_to_pass)),
        "PASS_TO_PASS": json.dumps(sorted(found.pass_to_pass)),
        "environment_setup_commit": candidate.base,
        "source": "history",
        "fix_commit": candidate.commit.sha,
        "statement_source": statement[1],
        "environment": {**environment, "test_cmd_full": f"{environment['test_cmd']} {tests}"},
        "repo_archive": f"repos/{folder_name(repo)}.shallow.git.tar.gz",
        "repo_ref": ref_of(ident),
    }


def ref_of(ident: str) -> str:
    """The ref of an instance's base in the repository's archive."""
    return f"refs/heads/base/{ident}"


def instance_of(row: Mapping[str, Any], archive: Path) -> Instance:
    """A row as an instance whose base is in `archive`."""
    recipe = row["environment"]
    environment = Environment(
        python=recipe["python_used"],
        requirements=tuple((recipe["requirements_txt"] or "").splitlines()),
        pip_packages=tuple(recipe["pip_packages"]),
        pre_install=tuple(recipe["pre_install"]),
        install=recipe["install"],
        variables=recipe["env"],
        exclude_newer=recipe["exclude_newer"],
    )
    task = Task(
        instance_id=row["instance_id"],
        repo=row["repo"],
        base_commit=row["base_commit"],
        statement=row["problem_statement"],
        version=row["version"],
        created_at=row["created_at"],
        source=Source(kind="archive", location=str(archive), ref=row["repo_ref"]),
        environment=environment,
    )
    answer = Answer(
        patch=row["patch"],
        test_patch=row["test_patch"],
        fail_to_pass=tuple(json.loads(row["FAIL_TO_PASS"])),
        pass_to_pass=tuple(json.loads(row["PASS_TO_PASS"])),
        test_command=recipe["test_cmd_full"],
        row=dict(row),
    )
    return Instance(task=task, answer=answer)
