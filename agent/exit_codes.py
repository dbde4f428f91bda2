"""Map the expected failures of all layers to exit codes.

`serving` and `sandbox` have their own exceptions, without exit codes. Only this module maps them.
"""

from __future__ import annotations

from m3agent.sandbox.errors import SandboxError
from m3agent.serving.errors import ModelServerError, TableError, WrongModel
from m3agent.util.errors import EnvironmentFault, M3AgentError, ServerFault, UsageError

Failure = M3AgentError | SandboxError | ModelServerError | TableError
FAILURES = (M3AgentError, SandboxError, ModelServerError, TableError)
"""Exceptions that may end a command or an attempt; their text is one sentence for people. All others are bugs."""


def exit_code_of(failure: Failure) -> int:
    """Return the exit code of a process that ends with this failure."""
    if isinstance(failure, M3AgentError):
        return failure.exit_code
    if isinstance(failure, WrongModel):
        return UsageError.exit_code
    return (ServerFault if isinstance(failure, ModelServerError) else EnvironmentFault).exit_code
