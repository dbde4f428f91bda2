"""The stall detector: what counts as the same again, and what follows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.stall import STOP, TELL, StallDetector, Verdict

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.none() | st.dictionaries(st.text(max_size=3), JSON, max_size=3)
CALL = st.tuples(st.sampled_from(["code_exec", "file_read"]), ARGUMENTS, st.sampled_from(["d1", "d2"]))


def actions(verdicts: list[Verdict | None]) -> list[str | None]:
    return [verdict.action if verdict else None for verdict in verdicts]


def reordered(value: Any) -> Any:
    """The same value with the keys of every object the other way round."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


def test_the_same_again_and_again() -> None:
    detector = StallDetector()
    verdicts = [detector.see("file_read", {"path": "a"}, "d") for _ in range(7)]
    assert actions(verdicts) == [None, None, "tell", "tell", "stop", "stop", "stop"]
    told, stopped = verdicts[TELL - 1], verdicts[STOP - 1]
    assert told is not None
    assert stopped is not None
    assert told.text == (
        "file_read was called 3 times in a row with the same arguments and the same result. "
        "Calling it again will not change it: read the result above and do something different."
    )
    assert stopped.text == "file_read was called 5 times in a row with the same arguments and the same result"
    assert (stopped.rule, stopped.count) == ("same-call-same-result", 5)


@given(st.lists(CALL, max_size=12))
def test_it_counts_equal_calls_in_a_row(calls: list[tuple[str, dict[str, Any] | None, str]]) -> None:
    detector = StallDetector()
    in_a_row = 0
    for n, call in enumerate(calls):
        in_a_row = in_a_row + 1 if n and repr(call) == repr(calls[n - 1]) else 1
        verdict = detector.see(*call)
        assert (verdict is not None) >= (in_a_row >= TELL)
        if verdict is not None:
            assert verdict.count >= in_a_row
            assert verdict.action == ("stop" if verdict.count >= STOP else "tell")


@given(call=CALL, before=st.integers(0, STOP))
def test_any_changed_result_starts_anew(call: tuple[str, dict[str, Any] | None, str], before: int) -> None:
    """Polling something that changes is never a stall."""
    name, arguments, digest = call
    detector = StallDetector()
    for _ in range(before):
        detector.see(name, arguments, digest)
    assert detector.see(name, arguments, f"{digest} and more") is None
    assert actions([detector.see(name, arguments, digest) for _ in range(TELL)]) == [None, None, "tell"]


@given(st.integers(1, 50))
def test_results_that_keep_changing_are_never_a_stall(times: int) -> None:
    detector = StallDetector()
    assert not any(detector.see("code_exec", {"code": "date"}, str(n)) for n in range(times))


@given(ARGUMENTS)
def test_the_order_of_arguments_is_no_difference(arguments: dict[str, Any] | None) -> None:
    detector = StallDetector()
    seen = [detector.see("t", a, "d") for a in (arguments, reordered(arguments), arguments)]
    assert actions(seen) == [None, None, "tell"]


@pytest.mark.parametrize(
    "other",
    [("file_read", {"path": "b"}), ("file_write", {"path": "a"}), ("file_read", None), ("file_read", {})],
)
def test_another_call_in_between_starts_anew(other: tuple[str, dict[str, Any] | None]) -> None:
    detector = StallDetector()
    for _ in range(4):
        for _ in range(TELL - 1):
            assert detector.see("file_read", {"path": "a"}, "d") is None
        assert detector.see(*other, "d") is None
