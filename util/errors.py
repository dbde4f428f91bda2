"""Define the agent's errors with their exit codes, and the statuses of a finished fix."""

from enum import StrEnum
from typing import ClassVar

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells report it."""
OUTPUT_CLOSED = 141
"""Exit code if nobody reads standard output any more: 128 + SIGPIPE, as shells report it. 0 would say *verified*."""


class M3AgentError(Exception):
    """Base of the agent's errors. `str(error)` is one sentence for people; `exit_code` is the process's exit code."""

    exit_code: ClassVar[int] = 1


class UsageError(M3AgentError):
    """The request is wrong: an argument, a setting, the issue or the repository."""

    exit_code: ClassVar[int] = 2


class EnvironmentFault(M3AgentError):
    """This machine lacks something or denies access to it: git, a sandbox, a writable folder."""

    exit_code: ClassVar[int] = 3


class ServerFault(M3AgentError):
    """A model server of m3agent does not start, does not keep running, or is unfit for use."""

    exit_code: ClassVar[int] = 4


class PermissionRefused(M3AgentError):
    """A person, a policy or a server refused permission."""

    exit_code: ClassVar[int] = 5


class Status(StrEnum):
    """How one fix ended."""

    VERIFIED = "verified"
    ANSWERED = "answered"
    UNVERIFIED = "unverified"
    FAILED = "failed"
    EMPTY = "empty"
    PROPOSED = "proposed"
    LIMIT = "limit"
    STALLED = "stalled"
    INTERRUPTED = "interrupted"
    ERROR = "error"


HANDED_OVER = (Status.VERIFIED, Status.UNVERIFIED)
"""The statuses with which a patch is applied or committed if the user asks for that."""
EXIT_CODES: dict[Status, int] = {
    Status.VERIFIED: 0,
    Status.ANSWERED: 0,
    Status.UNVERIFIED: 1,
    Status.FAILED: 1,
    Status.EMPTY: 1,
    # Most errors have their own code (usage 2, environment 3, model server 4, permission 5); 3 is for the others.
    Status.ERROR: 3,
    Status.LIMIT: 6,
    Status.STALLED: 6,
    Status.PROPOSED: 7,
    Status.INTERRUPTED: INTERRUPTED,
}


def reason_of(error: OSError) -> str:
    """Return why an operation failed, in lower case, without the name of the file."""
    return (error.strerror or str(error)).lower()
