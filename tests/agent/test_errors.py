"""Test the exit codes of errors."""

import pytest

from m3agent.agent.exit_codes import FAILURES, Failure, exit_code_of
from m3agent.sandbox.errors import DiskFull, SandboxError
from m3agent.serving.errors import DeadlineExceeded, ModelServerError
from m3agent.util.errors import (
    EXIT_CODES,
    EnvironmentFault,
    M3AgentError,
    PermissionRefused,
    ServerFault,
    Status,
    UsageError,
)


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {status.value: code for status, code in EXIT_CODES.items()} == {
        "verified": 0,
        "answered": 0,
        "unverified": 1,
        "failed": 1,
        "empty": 1,
        "error": 3,
        "limit": 6,
        "stalled": 6,
        "proposed": 7,
        "interrupted": 130,
    }
    assert set(EXIT_CODES) == set(Status)


def test_errors_carry_their_codes() -> None:
    codes = {error: error.exit_code for error in (UsageError, EnvironmentFault, PermissionRefused)}
    assert codes == {UsageError: 2, EnvironmentFault: 3, PermissionRefused: 5}
    assert all(issubclass(error, M3AgentError) for error in codes)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (M3AgentError("x"), 1),
        (UsageError("x"), 2),
        (EnvironmentFault("x"), 3),
        (SandboxError("x"), 3),
        (DiskFull("x"), 3),
        (ServerFault("x"), 4),
        (ModelServerError("x"), 4),
        (DeadlineExceeded("host"), 4),
        (PermissionRefused("x"), 5),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_every_layer_has_its_exit_code(failure: Failure, code: int) -> None:
    assert isinstance(failure, FAILURES)
    assert exit_code_of(failure) == code
