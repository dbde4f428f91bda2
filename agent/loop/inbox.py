"""What a person says to a session while the model works, and the questions that a session asks the person."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

Ask = Callable[[str], Awaitable[str | None]]
"""Asks the person a question. Returns the answer, which is empty if the person agrees, or None if the person refuses."""

NO_ADVICE = "the embedded engine cannot follow advice: it repairs what the failing tests show"
"""Said if a person tells a session something that no language model reads."""


@dataclass
class Inbox:
    """Messages of a person. Every attempt hears all of them and takes them at its next turn."""

    ask: Ask | None = None
    """Asks the person; None if no person can answer."""
    refines: bool = False
    """Whether the person is asked at the end what to refine."""
    _texts: list[str] = field(default_factory=list)
    _listeners: list[Callable[[str], None]] = field(default_factory=list)
    _is_over: bool = False

    def put(self, text: str) -> bool:
        """Deliver a message. Return whether the model gets it; no if its work is over.

        Call this in the thread of the event loop.
        """
        if self._is_over:
            return False
        self._texts.append(text)
        for listener in self._listeners:
            listener(text)
        return True

    def drop(self) -> bool:
        """Forget the messages, because nobody will take them. Return whether there were any."""
        had, self._texts = bool(self._texts), []
        return had

    @contextlib.contextmanager
    def heard_by(self, listener: Callable[[str], None]) -> Iterator[None]:
        """Pass each message to a listener within the context, those from before the context first."""
        self._is_over = False
        for text in self._texts:
            listener(text)
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)
            if not self._listeners:
                self._is_over = True
                self._texts.clear()  # the next work does not hear them again
