"""What the model has been told and has said, in memory and on the disk: it only grows, and resuming reads it back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from m3agent.agent.append_only import AppendOnlyFile, drop_torn_line
from m3agent.agent.errors import UsageError

Message = dict[str, Any]
FILE = "messages.jsonl"


class Digest:
    """SHA-256 over messages, one after the other: what `turn.started` says of its request, and exports check."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, messages: Iterable[Message]) -> None:
        """Take in the next messages."""
        for message in messages:
            self._hash.update(json.dumps(message).encode())

    def __str__(self) -> str:
        return self._hash.hexdigest()


def read_messages(folder: Path) -> list[Message] | None:
    """The messages of a session, for who only looks: half a line at the end is left out. None where there are none.

    Raises UsageError where the file is damaged.
    """
    try:
        whole = (folder / FILE).read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()] or None
    except OSError:
        return None
    except ValueError as error:
        raise UsageError(f"{folder / FILE} is damaged ({error})") from None


class Conversation(Sequence[Message]):
    """The messages of one session, each a line of `messages.jsonl` in its folder as soon as it is appended.

    The file holds what requests are made of, so that a resumed session sends the same bytes as the one that ended; the
    first lines hold the packed repository.
    """

    def __init__(self, folder: Path, messages: list[Message]) -> None:
        self._messages = messages
        self._file = AppendOnlyFile(folder / FILE)

    @classmethod
    def begin(cls, folder: Path, messages: Iterable[Message]) -> Conversation:
        """A new conversation that starts with these."""
        conversation = cls(folder, [])
        for message in messages:
            conversation.append(message)
        return conversation

    @classmethod
    def read(cls, folder: Path) -> Conversation:
        """The conversation of a session that ended before its time; half a line at the end was never sent.

        Raises:
            UsageError: there is none, or it is not one.
        """
        messages = read_messages(folder) or []
        if all(message["role"] == "system" for message in messages):
            raise UsageError(
                f"the session in {folder} cannot be resumed: it ended before its first request, so start it anew"
            )
        drop_torn_line(folder / FILE)
        return cls(folder, messages)

    def append(self, message: Message) -> None:
        """Add a message; it is with the kernel when this returns. Raises EnvironmentFault, and then it is not added."""
        self._file.append(json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode())
        self._messages.append(message)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)
