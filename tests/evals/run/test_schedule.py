"""Which attempt is next, and how long the rest takes. The code is pure, so the tests try any order of events."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from m3agent.evals.data.results import Attempt
from m3agent.evals.run.evaluate import Schedule
from m3agent.evals.run.progress import DOING, Estimate

GROUPS = {"a1": ("a", "1"), "a2": ("a", "1"), "b1": ("b", "1"), "b2": ("b", "2"), "c1": ("c", "1")}
ATTEMPTS = st.lists(st.tuples(st.sampled_from(sorted(GROUPS)), st.integers(1, 4)), unique=True)


def group_of(instance_id: str) -> tuple[str, str]:
    return GROUPS[instance_id]


@given(ATTEMPTS)
def test_each_is_taken_once_and_those_of_a_group_one_after_the_other(attempts: list[Attempt]) -> None:
    schedule = Schedule(attempts, group_of, leads=False)
    taken = [schedule.take() for _ in attempts]
    assert sorted(attempt for attempt in taken if attempt) == sorted(attempts)
    assert schedule.take() is None
    groups = [group_of(attempt[0]) for attempt in taken if attempt]
    changes = sum(a != b for a, b in itertools.pairwise(groups))
    assert changes == max(0, len(set(groups)) - 1)


@given(ATTEMPTS, st.data())
def test_nobody_follows_into_a_group_before_it_is_warm(attempts: list[Attempt], data: st.DataObject) -> None:
    schedule = Schedule(attempts, group_of, leads=True)
    warm: set[tuple[str, str]] = set()
    led: list[str] = []
    taken: list[Attempt] = []
    while len(taken) < len(attempts):
        attempt = schedule.take()
        if attempt is None:
            assert led, "nothing can be taken, and nothing runs that could change this"
            ready = data.draw(st.sampled_from(led))
            led.remove(ready)
            schedule.warm(ready)
            warm.add(group_of(ready))
            continue
        if group_of(attempt[0]) not in {group_of(other[0]) for other in taken}:
            led.append(attempt[0])
        else:
            assert group_of(attempt[0]) in warm
        taken.append(attempt)
    assert sorted(taken) == sorted(attempts)


def test_while_the_first_of_a_group_goes_ahead_other_groups_begin() -> None:
    schedule = Schedule([("a1", 1), ("b1", 1), ("a2", 1), ("a1", 2)], group_of, leads=True)
    assert [schedule.take(), schedule.take(), schedule.take()] == [("a1", 1), ("b1", 1), None]
    schedule.warm("a1")
    assert [schedule.take(), schedule.take()] == [("a2", 1), ("a1", 2)]


def known(**seconds: float) -> Estimate:
    estimate = Estimate(tuple(DOING))
    for phase, value in seconds.items():
        estimate.add(phase, value)
    return estimate


def test_what_never_ended_is_not_guessed() -> None:
    assert Estimate(tuple(DOING)).left(1, [], 1) is None
    assert known(environment=1, agent=2).left(0, [("agent", 1)], 1) is None
    assert known(agent=2, grade=3).left(0, [("agent", 1)], 1) == 4
    assert known(agent=2, grade=3).left(1, [("agent", 1)], 1) is None


def test_what_runs_is_counted_by_what_is_left_of_it() -> None:
    estimate = known(environment=10, agent=100, grade=20)
    assert estimate.left(2, [], 1) == 260
    assert estimate.left(2, [], 4) == 65
    assert estimate.left(0, [("environment", 4), ("grade", 50)], 2) == 126
    assert estimate.left(0, [("agent", 30)], 8) == 90, "one attempt is not made by eight workers"


@given(st.lists(st.tuples(st.sampled_from(tuple(DOING)), st.floats(0, 1e4)), max_size=8), st.integers(0, 9))
def test_more_to_do_never_takes_less(running: list[tuple[str, float]], waiting: int) -> None:
    estimate = known(environment=10, agent=100, grade=20)
    one, more = estimate.left(waiting, running, 2), estimate.left(waiting + 1, running, 2)
    assert one is not None and more is not None and 0 <= one <= more
