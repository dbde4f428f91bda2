"""The agent's errors, each one clear sentence with its exit code, and the statuses a fix ends with."""

from enum import StrEnum
from typing import ClassVar


class M3AgentError(Exception):
    """Base of the agent's errors: `str(error)` is one sentence for people, `exit_code` what the process returns."""

    exit_code: ClassVar[int] = 1


class UsageError(M3AgentError):
    """The request itself is wrong: arguments, settings, the issue or the repository named."""

    exit_code: ClassVar[int] = 2


class EnvironmentFault(M3AgentError):
    """This machine lacks or withholds something: git, a sandbox, a folder that can be written."""

    exit_code: ClassVar[int] = 3


class ServerFault(M3AgentError):
    """A model server of ours does not start, does not stay, or is not fit for use."""

    exit_code: ClassVar[int] = 4


class PermissionRefused(M3AgentError):
    """A person or the policy said no."""

    exit_code: ClassVar[int] = 5


class Status(StrEnum):
    """How one fix ended."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    FAILED = "failed"
    EMPTY = "empty"
    LIMIT = "limit"
    STALLED = "stalled"
    INTERRUPTED = "interrupted"
    ERROR = "error"


EXIT_CODES: dict[Status, int] = {
    Status.VERIFIED: 0,
    Status.UNVERIFIED: 1,
    Status.FAILED: 1,
    Status.EMPTY: 1,
    # An error knows its own code (usage 2, environment 3, model server 4, permission 5); 3 stands for the rest.
    Status.ERROR: 3,
    Status.LIMIT: 6,
    Status.STALLED: 6,
    Status.INTERRUPTED: 130,
}
