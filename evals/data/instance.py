"""One benchmark task, as two types: what the agent may see, and what only the grader may see."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Ids name folders and images, so they hold nothing that means something to either."""

Runner = Literal["pytest", "unittest"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(_Model):
    """Where the code is.

    kind: `archive` (a tar of a bare repository), `git` (a local repository or a URL), `folder` (files without
    history). location: a path, or for `git` also a URL. ref: what to take of it: a ref's name or a commit.
    """

    kind: Literal["archive", "git", "folder"]
    location: str
    ref: str = ""


class Environment(_Model):
    """How to make the surroundings that the code runs in, as data; commands are shell lines run in the work tree.

    image: a prebuilt image that makes all else unnecessary; None: it is built. python: a minor version such as `3.9`.
    requirements: lines of a requirements file. exclude_newer: packages uploaded later do not exist for the build
    (None: from the task's date). variables: for the build and for the tests.
    """

    image: str | None = None
    python: str | None = None
    system_packages: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    pip_packages: tuple[str, ...] = ()
    pre_install: tuple[str, ...] = ()
    install: str | None = None
    variables: dict[str, str] = Field(default_factory=dict)
    exclude_newer: datetime | None = None


class Task(_Model):
    """What the agent may see of an instance."""

    instance_id: str
    repo: str
    base_commit: str = ""
    statement: str
    version: str = ""
    created_at: datetime | None = None
    source: Source
    environment: Environment = Field(default_factory=Environment)

    @field_validator("instance_id")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not INSTANCE_ID.fullmatch(value):
            raise ValueError("an id holds letters, digits, dots, dashes and underscores, 200 at most")
        return value


class Answer(_Model):
    """What only the grader may see of an instance.

    patch: the reference fix. test_patch: changes the tests; empty where they are there already. fail_to_pass,
    pass_to_pass: test ids as the row has them. test_command: the row's own (it names the test files). pristine: paths
    that come from the base whatever a patch does to them, besides what is recognised as a test. only: the only paths that
    may come from a patch; empty: any. row: the row itself, for the official grader.
    """

    patch: str
    test_patch: str = ""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    test_command: str = ""
    runner: Runner = "pytest"
    pristine: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    timeout: float = Field(default=1800.0, gt=0)
    row: dict[str, Any] = Field(default_factory=dict)


class Instance(_Model):
    """One benchmark task."""

    task: Task
    answer: Answer

    @property
    def id(self) -> str:
        """The instance's id."""
        return self.task.instance_id


class DataError(ValueError):
    """The data cannot be used: the sentence names the file, the row and the field."""


def outside(path: Path, what: str) -> DataError:
    """An error for a location in a data file that leads out of the file's own folder."""
    return DataError(f"{what} names {path}, outside the data's own folder: such a location is refused")
