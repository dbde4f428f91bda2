"""Say the result of a verification as plain data, for programs that act on it."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from m3agent.agent.certificate.next_step import next_step
from m3agent.agent.certificate.statement import Statement, read, write
from m3agent.agent.certificate.table import table
from m3agent.util.errors import EnvironmentFault, Status, UsageError, reason_of

FOLDER = "certificates"
"""Folder in the state folder. It has the certificates for which nobody named a file."""


class Outcome(TypedDict):
    """The result of a verification. The first fields are those of `fix --json-result`."""

    status: str
    """The verdict; `empty` if the patch changes nothing."""
    isolated: bool
    """Whether the sandbox isolated the tests from the machine."""
    reason: str
    """Why, in one sentence."""
    paths: list[str]
    """The files that the patch changes."""
    fixed: list[str]
    """Tests that are red without the patch and green with it."""
    broken: list[str]
    """Tests that are green without the patch, and red or missing with it."""
    added_red: list[str]
    """Red tests that the patch adds or changes."""
    still_red: list[str]
    """Tests that are red without the patch and with it."""
    problems: list[str]
    """What declared checks say against the patch only."""
    review: list[str]
    """Lines that a person must read before the verdict can be believed."""
    next: str
    """What to do now."""
    certificate: str | None
    """The file with the certificate."""


def outcome_of(statement: Statement, certificate: Path | None) -> Outcome:
    """Return what a certificate says."""
    said, tests = statement.predicate, statement.predicate.tests
    return Outcome(
        status=said.verdict,
        isolated=said.environment.isolated,
        reason=said.reason,
        paths=list(said.patch.paths),
        fixed=[test.id for test in tests.red_to_green],
        broken=[test.id for test in tests.broken],
        added_red=list(tests.added_red),
        still_red=[test.id for test in tests.still_red],
        problems=[f"{check.command}: {each}" for check in said.checks for each in check.new],
        review=[f"{line.path}:{line.line} {line.what}" for line in said.review],
        next=next_step(said),
        certificate=None if certificate is None else str(certificate),
    )


def empty(reason: str) -> Outcome:
    """Return the result of a verification that had nothing to test."""
    return Outcome(
        status=Status.EMPTY,
        isolated=True,
        reason=reason,
        paths=[],
        fixed=[],
        broken=[],
        added_red=[],
        still_red=[],
        problems=[],
        review=[],
        next="change a file, and verify again",
        certificate=None,
    )


def keep(statement: Statement, state: Path) -> Path:
    """Write a certificate into the state folder, in the place of an earlier one of the same patch. Return its path.

    Raises:
        EnvironmentFault: It cannot be written.
    """
    folder = state / FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"the folder {folder} cannot be made: {reason_of(error)}") from None
    path = folder / f"{statement.predicate.patch.sha256}.json"
    write(statement, path)
    return path


def explanation(certificate: Path | None, state: Path) -> str:
    """Return for people what a certificate says, and what to do now.

    Args:
        certificate: The file; None for the newest in the state folder.

    Raises:
        UsageError: The certificate does not exist, or it cannot be read.
    """
    if certificate is None:
        kept = sorted((state / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        if not kept:
            raise UsageError("no certificate is kept yet: verify a patch first, or name a file")
        certificate = kept[-1]
    return explained(read(certificate))


def explained(statement: Statement) -> str:
    """Return for people what a certificate says, and what to do now."""
    return f"{table(statement)}{'next':<15}{next_step(statement.predicate)}\n"
