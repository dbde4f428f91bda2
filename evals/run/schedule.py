"""Which attempt is made next: attempts at one commit side by side, so that they share what a server has cached of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Attempt = tuple[str, int]
"""An instance's id, and the number of the attempt."""
Group = tuple[str, str]
"""A repository and a commit of it."""


class Schedule:
    """Attempts in an order that keeps each group together: groups as they first come up, the attempts of each as they
    come.

    group_of: the group of an instance. leads: the first of a group goes ahead; the others wait until it is said to be
    warm (or over), and attempts of later groups are made meanwhile.
    """

    def __init__(self, attempts: Sequence[Attempt], group_of: Callable[[str], Group], *, leads: bool) -> None:
        groups: dict[Group, list[Attempt]] = {}
        for attempt in attempts:
            groups.setdefault(group_of(attempt[0]), []).append(attempt)
        self._group_of = group_of
        self._left = [attempt for group in groups.values() for attempt in group]
        self._leads = leads
        self._led: set[Group] = set()
        self._warm: set[Group] = set()

    def take(self) -> Attempt | None:
        """The attempt to be made now; None where there is none, or each has to wait for the first of its group."""
        for position, attempt in enumerate(self._left):
            group = self._group_of(attempt[0])
            if not self._leads or group in self._warm or group not in self._led:
                self._led.add(group)
                return self._left.pop(position)
        return None

    def warm(self, instance_id: str) -> None:
        """The server has read what the instance's group has in common, or will not."""
        self._warm.add(self._group_of(instance_id))

    def __len__(self) -> int:
        """How many have not been taken."""
        return len(self._left)
