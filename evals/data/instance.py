"""A benchmark task as two types.

`Task` is the part that the agent may see. `Answer` is the part that only the grader may see.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from m3agent.evals.data.results import Record

INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Ids become names of folders and images, so they contain no character that is special in either."""

TESTBED = "/testbed"
"""Where official images have the code."""

PythonRunner = Literal["pytest", "unittest", "django", "sympy"]
"""A test runner of Python, which determines the form of test ids.

`django` is Django's tests/runtests.py, `sympy` is SymPy's bin/test.
"""
PYTHON_RUNNERS: tuple[PythonRunner, ...] = get_args(PythonRunner)


class Source(Record):
    """Where the code is."""

    kind: Literal["archive", "git", "folder", "image"]
    """`archive` (a tar of a bare repository), `git` (a local repository or a URL), `folder` (files without
    history) or `image` (a folder of the environment's image).
    """
    location: str
    """A path; for `git` it may be a URL."""
    ref: str = ""
    """What to take from it: the name of a ref, or a commit id."""


class DockerContext(Record):
    """A folder with a Dockerfile."""

    folder: str = Field(exclude=True)
    content: str
    """Hash of its files."""


class Environment(Record):
    """How to build the environment of the code, as data. Commands are shell lines for the work tree."""

    image: str | None = None
    """A prebuilt image, which makes all other fields unnecessary; None to build one."""
    python: str | None = None
    """Minor version, such as `3.9`."""
    system_packages: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    requirements_files: tuple[str, ...] = ()
    """Paths in the work tree; the first existing one provides more such lines."""
    pip_packages: tuple[str, ...] = ()
    """Further requirements for pip."""
    pre_install: tuple[str, ...] = ()
    """Commands that run before the installation."""
    install: str | None = None
    """Command that installs the project; None for none."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables for the build and for the tests."""
    exclude_newer: datetime | None = None
    """The build ignores packages that were uploaded later; None for the task's date."""
    folder: str = TESTBED
    """Where a prebuilt image has the code."""
    dockerfile: DockerContext | None = None
    """From what the image is built, if the image has no name or is not available."""


class Task(Record):
    """The part of an instance that the agent may see."""

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
            raise ValueError("an id has at most 200 letters, digits, dots, dashes and underscores")
        return value


class OwnRules(Record):
    """How the benchmark of a row grades a patch, as data (`m3agent.evals.grade.own_rules` carries it out)."""

    benchmark: str
    """Name of the benchmark, for messages."""
    unusable: str = ""
    """Why the rules cannot be carried out; empty if they can. The other fields have no value then."""
    script: str = ""
    """Bash script that runs as root in the row's image. It applies the patch `$GRADING/patch.diff`, after
    that creates `$GRADING/applied`, and runs the tests. The parser reads what it prints.
    """
    files: dict[str, str] = Field(default_factory=dict)
    """More files in `$GRADING`, by name."""
    parser: str = ""
    """Source of the benchmark's parser, in Python."""
    form: Literal["function", "program", "class"] = "function"
    """What the parser is: a `function` of the log, a `program` with the arguments stdout, stderr and result,
    or a `class` with the method `parse_log`.
    """
    entry: str = ""
    """Name of the function or of the class."""
    to_pass: tuple[str, ...] = ()
    """Tests that must pass."""
    not_to_fail: tuple[str, ...] = ()
    """Tests that must not fail; they may be missing."""
    exact: bool = False
    """Whether no other test may pass."""
    untimed: bool = False
    """Whether durations at the end of names do not count."""


class RewardRules(Record):
    """How a task of Harbor grades: its `tests/test.sh` writes a reward (`m3agent.evals.grade.rewards`)."""

    folder: str = Field(exclude=True)
    """Path of the task, with `tests` and `solution`."""
    content: str
    """Hash of the files in these two."""
    separate: bool = False
    """Whether the tests run in a fresh container, which gets only the artifacts."""
    collect: tuple[str, ...] = ()
    """Commands that end the work of an agent, such as one that packs the work tree."""
    artifacts: tuple[str, ...] = ()
    """Paths that the fresh container gets, besides `/logs/artifacts`."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables of all scripts."""
    of_tests: dict[str, str] = Field(default_factory=dict)
    """Those of the tests only."""
    of_solution: dict[str, str] = Field(default_factory=dict)
    """Those of the solution only."""


class Answer(Record):
    """The part of an instance that only the grader may see."""

    patch: str
    """The reference fix; empty if it is a script (`RewardRules`)."""
    test_patch: str = ""
    """Change of the tests; empty if the base already contains them."""
    fail_to_pass: tuple[str, ...]
    """Test ids as the row has them, including truncated ids and junk. If empty, validation finds them: all
    tests that fail before the reference patch and pass with it.
    """
    pass_to_pass: tuple[str, ...] = ()
    """Test ids as the row has them."""
    test_command: str = ""
    """The row's own command, which names the test files."""
    runner: str = "pytest"
    """The test runner: one of `PYTHON_RUNNERS`, or the name of a runner of another language
    (`m3agent.tools.runners.suites`). If empty, the grader finds the runner in the code.
    """
    pristine: tuple[str, ...] = ()
    """Paths that are always taken from the base, besides those recognised as tests."""
    only: tuple[str, ...] = ()
    """The only paths that a patch may change; empty for any."""
    timeout: float = Field(default=1800.0, gt=0)
    """Time limit of a test run, in seconds."""
    row: dict[str, Any] = Field(default_factory=dict)
    """The row itself, for the official grader."""
    rules: OwnRules | RewardRules | None = None
    """The rules of the row's benchmark, if they are neither m3agent's nor those of SWE-bench's package."""

    @property
    def reference(self) -> bytes:
        """The reference fix as a patch file has it."""
        return self.patch.encode(errors="surrogateescape")

    @property
    def tests(self) -> tuple[str, ...]:
        """All test ids of the row."""
        return (*self.fail_to_pass, *self.pass_to_pass)


class Instance(Record):
    """One benchmark task."""

    task: Task
    answer: Answer

    @property
    def id(self) -> str:
        """Id of the instance."""
        return self.task.instance_id

    def with_answer(self, **fields: object) -> Instance:
        """Return the instance with other fields of its answer."""
        return self.model_copy(update={"answer": self.answer.model_copy(update=fields)})


class DataError(ValueError):
    """The data cannot be used; the message names the file, the row and the field."""
