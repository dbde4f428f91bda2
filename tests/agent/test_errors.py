from m3agent.agent.errors import (
    EXIT_CODES,
    EnvironmentFault,
    M3AgentError,
    PermissionRefused,
    Status,
    UsageError,
)


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {status.value: code for status, code in EXIT_CODES.items()} == {
        "verified": 0,
        "unverified": 1,
        "failed": 1,
        "empty": 1,
        "error": 3,
        "limit": 6,
        "stalled": 6,
        "interrupted": 130,
    }
    assert set(EXIT_CODES) == set(Status)


def test_errors_carry_their_codes() -> None:
    codes = {error: error.exit_code for error in (UsageError, EnvironmentFault, PermissionRefused)}
    assert codes == {UsageError: 2, EnvironmentFault: 3, PermissionRefused: 5}
    assert all(issubclass(error, M3AgentError) for error in codes)
