"""Order the attempts: those at one commit run together and share the server's prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Attempt = tuple[str, int]
"""Instance id and number of the attempt."""
Group = tuple[str, str]
"""Repository and commit id."""


class Schedule:
    """A queue of attempts that keeps each group together.

    Groups and attempts keep their original order otherwise.

    Args:
        attempts: The attempts.
        group_of: Returns the group of an instance.
        leads: Whether the first attempt of a group runs ahead. The group's other attempts wait until `warm`
            is called for the group; attempts of later groups run in the meantime.
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
        """Return the next attempt.

        Returns:
            None if there is none, or if all of them wait for the first of their group.
        """
        for position, attempt in enumerate(self._left):
            group = self._group_of(attempt[0])
            if not self._leads or group in self._warm or group not in self._led:
                self._led.add(group)
                return self._left.pop(position)
        return None

    def warm(self, instance_id: str) -> None:
        """Release the group of an instance.

        Its common prompt is in the server's cache now, or its first attempt has ended.
        """
        self._warm.add(self._group_of(instance_id))

    def __len__(self) -> int:
        """Return the number of attempts that have not been taken."""
        return len(self._left)
