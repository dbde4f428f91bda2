"""The steps between mining and grading: the data of an instance, and the interface of its validation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from m3agent.evals.create.mine import MinedCommit
from m3agent.evals.data.instance import Answer, Environment, Instance, Source, Task


@dataclass(frozen=True)
class Validated:
    """The result of running an instance's tests without and with its patch."""

    fail_to_pass: tuple[str, ...] = ()
    """Ids of tests that do not pass before the patch and pass in every run after it."""
    pass_to_pass: tuple[str, ...] = ()
    """Ids of tests that pass before the patch and in every run after it."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Errors raised before the patch, by test id. If a file could not be imported, the key is its name."""
    reason: str = ""
    """Why the candidate is not an instance; empty if it is one."""


class Validator(Protocol):
    """Builds an instance's environment and runs the test files that its test patch touches."""

    async def __call__(self, instance: Instance, folder: Path) -> Validated:
        """Run the tests before and after the patch.

        Args:
            instance: Its source is an archive with its base commit; its lists of tests are empty.
            folder: An empty folder for logs.

        Raises:
            SandboxError: This machine failed, for example because the engine is unreachable. Faults of the
                instance are returned as `reason` instead.
        """
        ...


def instance_id(repo: str, base: str) -> str:
    """Return the instance's id.

    It contains the base commit's id, because the fix's own id would tell an agent where to find the fix.
    """
    return f"{folder_name(repo)}-{base[:12]}"


def folder_name(repo: str) -> str:
    """Return a repository's name as it appears in ids and file names: `owner__name`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", repo.replace("/", "__")).lstrip("._-")[:150] or "repository"


def row_of(
    repo: str,
    candidate: MinedCommit,
    recipe: tuple[dict[str, Any], str],
    statement: tuple[str, str],
    found: Validated,
) -> dict[str, Any]:
    """Return the row of an instance: SWE-bench's fields and the additional ones of `docs/eval-create.md`.

    Args:
        repo: Name of the repository, `owner/name`.
        candidate: The commit.
        recipe: The environment and the version, as `recipe_of` returns them.
        statement: The text and its origin, as `statement_of` returns them.
        found: The result of the validation.
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
    """Return the ref of an instance's base in the repository's archive."""
    return f"refs/heads/base/{ident}"


def instance_of(row: Mapping[str, Any], archive: Path) -> Instance:
    """Turn a row into an instance whose base commit is in `archive`."""
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
