"""The expected failures of all layers, and the exit code of each.

`serving` and `sandbox` have exceptions of their own and know nothing of exit codes: the mapping stands here only.
"""

from __future__ import annotations

from m3agent.agent.errors import EnvironmentFault, M3AgentError, ServerFault
from m3agent.sandbox.errors import SandboxError
from m3agent.serving.errors import ModelServerError

Failure = M3AgentError | SandboxError | ModelServerError
FAILURES = (M3AgentError, SandboxError, ModelServerError)
"""They end a command or an attempt, and their text is one sentence for people. Any other exception is a bug."""


def exit_code_of(failure: Failure) -> int:
    """The exit code of a process that ends with this failure."""
    if isinstance(failure, M3AgentError):
        return failure.exit_code
    return (ServerFault if isinstance(failure, ModelServerError) else EnvironmentFault).exit_code
