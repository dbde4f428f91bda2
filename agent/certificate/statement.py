"""Define what a certificate says. docs/certificate.md explains it; its JSON schema is made from these classes.

The outer form is an in-toto Statement, version 1, so tools such as cosign can sign it and policy engines can read it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from m3agent.agent.verify.rules import Verdict
from m3agent.util.errors import EnvironmentFault, UsageError, reason_of
from m3agent.util.plain_file import read_first
from m3agent.util.private_file import write_file
from m3agent.util.sanitize import quoted

VERSION = 1
"""Version of the predicate. Each change of its fields raises it, except a new field that is missing if it is empty."""
NEWER = {"pinned", "accepted", "checks"}
"""Fields that older certificates lack. They are missing if they are empty."""
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = f"urn:m3agent:verification:v{VERSION}"
MOST_BYTES = 64 << 20
"""Largest certificate that is read, in bytes."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Base(_Part):
    """The code without the patch."""

    commit: str = Field(description="Id of the commit.")
    tree: str = Field(description="Git tree id of the files that were tested.")
    uncommitted: int = Field(
        description="Number of files of this tree that differ from the commit. If it is not 0, nobody else has the tree."
    )


class Source(_Part):
    """Where the patch came from."""

    kind: Literal["file", "work tree", "commits", "branch", "pull request", "fix"]
    commit: str | None = Field(description="Id of the commit with the patch, if there is one.")


class PatchedFiles(_Part):
    """The patch."""

    sha256: str = Field(description="SHA-256 of its bytes.")
    paths: tuple[str, ...] = Field(description="The files that it changes.")
    source: Source


class Environment(_Part):
    """Where the tests ran."""

    sandbox: str = Field(description="Kind of sandbox: docker, bwrap or here.")
    isolated: bool = Field(description="Whether the sandbox isolated the tests from the machine.")
    image: str | None = Field(description="Name of the image; null for the default one.")
    image_id: str = Field(
        description="Digest of the image, or a text that stands for the machine's programs."
    )
    python: str = Field(description="Version of the sandbox's Python.")
    packages: tuple[str, ...] = Field(description="Installed Python packages, as NAME==VERSION.")
    network: tuple[str, ...] = Field(description="Hosts that the tests could reach.")
    memory: int = Field(description="Limit of memory, in bytes.")
    cpus: float = Field(description="Limit of processors.")


class SuiteCommand(_Part):
    """A test suite of the repository, and what runs it."""

    runner: str = Field(description="The runner, such as pytest or go.")
    folder: str = Field(
        description="Folder in which it runs, relative to the repository; empty for its root."
    )
    evidence: str = Field(description="What in the repository says that the suite exists.")
    ran: bool = Field(description="Whether it ran. Suites that the patch does not affect do not run.")


class TestCommand(_Part):
    """A command that ran tests, with the number of its runs on each side."""

    __test__ = False

    argv: tuple[str, ...] = Field(
        description="Program and arguments. m3agent starts pytest inside its own program, with these arguments."
    )
    without_patch: int
    with_patch: int
    on_copies: int = Field(description="Runs on inverted copies of tests, with the patch.")


class Limits(_Part):
    """Settings that decide how often and how long tests run."""

    reruns: int
    verify_minutes: float
    baseline_minutes: float


class Runs(_Part):
    """In how many runs a test was green and red on one side. Runs in which it was skipped or missing do not count."""

    green: int
    red: int


class TestRuns(_Part):
    """A test with the number of its runs."""

    __test__ = False

    id: str
    without_patch: Runs
    with_patch: Runs


class Counts(_Part):
    """The number of tests by outcome in the first run on one side."""

    passed: int
    failed: int
    errored: int
    skipped: int


class Tests(_Part):
    """What the tests show."""

    without_patch: Counts
    with_patch: Counts
    red_to_green: tuple[TestRuns, ...]
    broken: tuple[TestRuns, ...]
    still_red: tuple[TestRuns, ...]
    flaky: tuple[TestRuns, ...] = Field(description="They count neither way.")
    added_red: tuple[str, ...] = Field(description="Red tests that the patch adds or changes.")
    new: tuple[str, ...] = Field(description="Tests that the patch adds.")


class Review(_Part):
    """A line that a person must read before the verdict can be believed."""

    path: str
    line: int
    what: str


class Check(_Part):
    """A declared check, such as a linter."""

    command: str
    new: tuple[str, ...] = Field(description="Problems that are there only with the patch.")
    silent: str = Field(description="Why the check shows nothing; empty if it does.")


class AboutIssue(_Part):
    """The issue that the patch is for."""

    title: str
    text: str
    source: str


class Maker(_Part):
    """Who made the patch, if m3agent did."""

    harness: str = Field(description="m3agent with its version.")
    model: str = Field(description="Name of the model.")
    model_licence: str | None = Field(description="Where the model's licence is, if that is known.")


class Tool(_Part):
    """The program that verified the patch."""

    name: str
    version: str


class Predicate(_Part):
    """What is said about the patch."""

    version: Literal[1]
    verdict: Verdict
    reason: str
    only_own_tests: bool = Field(description="Whether only tests that the patch itself brought show the fix.")
    base: Base
    patch: PatchedFiles
    result_tree: str = Field(description="Git tree id of the patched files.")
    environment: Environment
    suites: tuple[SuiteCommand, ...]
    commands: tuple[TestCommand, ...] = Field(
        description="The commands that ran tests. A baseline that an older version kept has none."
    )
    limits: Limits
    tests: Tests
    put_back: tuple[str, ...] = Field(
        description="Files whose changes were undone for the tests: existing tests, and files that decide how tests run."
    )
    tampering: tuple[str, ...] = Field(description="Signs that the patch tampered with the test runs.")
    review: tuple[Review, ...]
    pinned: tuple[str, ...] = Field(
        default=(),
        description="Existing tests that check the behaviour which the issue changes, as the model or `--pinned` named them. The field is missing if there are none.",
    )
    accepted: tuple[str, ...] = Field(
        default=(),
        description="New files of the patch with tests that a person accepted before the code was changed. The field is missing if there are none.",
    )
    checks: tuple[Check, ...] = Field(
        default=(),
        description="The declared checks that ran on the patched files. The field is missing if there are none.",
    )
    issue: AboutIssue | None
    made_by: Maker | None
    tool: Tool
    started: str = Field(description="Time in UTC, as in RFC 3339.")
    finished: str
    seconds: float = Field(description="Duration of the verification.")
    seal: str = Field(
        description="SHA-256 of the statement without this field, as compact JSON with sorted keys."
    )


class Subject(_Part):
    """What the statement is about."""

    name: Literal["patch", "result"]
    digest: dict[str, str]


class Statement(_Part):
    """The certificate."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Subject, ...]
    predicate_type: Literal["urn:m3agent:verification:v1"] = Field(alias="predicateType")
    predicate: Predicate

    def text(self) -> bytes:
        """Return the certificate as a file has it."""
        return json.dumps(self.plain(), indent=2).encode() + b"\n"

    def plain(self) -> dict[str, Any]:
        """Return the certificate as plain data, without the fields that older certificates lack if they are empty."""
        plain = self.model_dump(mode="json", by_alias=True)
        plain["predicate"] = {
            name: value for name, value in plain["predicate"].items() if value or name not in NEWER
        }
        return plain


def sealed(predicate: dict[str, Any]) -> Statement:
    """Return the statement with this predicate, which has no seal yet."""
    whole: dict[str, Any] = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": "patch", "digest": {"sha256": predicate["patch"]["sha256"]}},
            {"name": "result", "digest": {"gitTree": predicate["result_tree"]}},
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {**predicate, "seal": ""},
    }
    plain = Statement.model_validate_json(json.dumps(whole)).plain()
    plain["predicate"]["seal"] = _seal(plain)
    return Statement.model_validate_json(json.dumps(plain))


def _seal(plain: dict[str, Any]) -> str:
    predicate = {name: value for name, value in plain["predicate"].items() if name != "seal"}
    content = json.dumps({**plain, "predicate": predicate}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def check_folder(path: Path) -> None:
    """Check that a certificate can be written, before the work that it is about.

    Raises UsageError: Its folder does not exist, or it is a folder itself.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--certificate {quoted(str(path))}: give a file in a folder that exists")


def write(statement: Statement, path: Path) -> None:
    """Write a certificate to a file: completely, or not at all.

    Raises EnvironmentFault: The file cannot be written.
    """
    try:
        write_file(str(path), statement.text())
    except OSError as error:
        raise EnvironmentFault(
            f"the certificate {quoted(str(path))} cannot be written: {reason_of(error)}"
        ) from None


def read(path: Path) -> Statement:
    """Read a certificate.

    Raises UsageError: It cannot be read, is no certificate, has another version, or was changed.
    """
    name = quoted(str(path))
    try:
        data = read_first(str(path), MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the certificate {name} cannot be read: {reason_of(error)}") from None
    try:
        plain = json.loads(data)
        found = plain["predicateType"], plain["predicate"]["version"]
    except (ValueError, RecursionError, TypeError, KeyError):
        raise UsageError(
            f"{name} is no certificate of m3agent: give a file that --certificate wrote"
        ) from None
    if found != (PREDICATE_TYPE, VERSION):
        raise UsageError(f"{name} has another version than {PREDICATE_TYPE}: use the m3agent that wrote it")
    changed = UsageError(f"{name} was changed after m3agent wrote it: it is not to be trusted")
    try:
        statement = Statement.model_validate_json(data)
    except ValidationError:
        raise changed from None
    digests = {subject.name: subject.digest for subject in statement.subject}
    predicate = statement.predicate
    stated = {"patch": {"sha256": predicate.patch.sha256}, "result": {"gitTree": predicate.result_tree}}
    if data != statement.text() or predicate.seal != _seal(plain) or digests != stated:
        raise changed
    return statement
