"""What the model has been told and has said, in memory and on the disk: the file only grows, and resuming reads it back."""

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
FIRST = 2
"""Messages that a conversation begins with and keeps: the rules, and the repository with the issue."""
SUMMARY = "summary"
"""Role of the line that stands for a summary: `content`, and `kept`, where the messages behind it begin and end."""


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


def read_lines(folder: Path) -> list[Message]:
    """What stands in a session's file: messages, and where summaries took the place of some. Half a line at the end is
    left out; empty where there is no file.

    Raises UsageError where the file is damaged.
    """
    try:
        raw = (folder / FILE).read_bytes().rpartition(b"\n")[0]
    except OSError:
        return []
    try:
        lines = [json.loads(line) for line in raw.splitlines()]
        for line in lines:
            if line["role"] == SUMMARY:
                _summarised([], line)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder / FILE} is damaged ({error})") from None
    return lines


def read_messages(folder: Path) -> list[Message] | None:
    """The messages of a session as its last request has them, for who only looks. None where there are none.

    Raises UsageError where the file is damaged.
    """
    messages: list[Message] = []
    for line in read_lines(folder):
        if line["role"] == SUMMARY:
            messages = _summarised(messages, line)
        else:
            messages.append(line)
    return messages or None


def as_line(message: Message) -> bytes:
    """A message as its line in the file, without the end."""
    return json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode()


def _summarised(messages: list[Message], line: Message) -> list[Message]:
    begin, end = line["kept"]
    return [*messages[:FIRST], {"role": "user", "content": line["content"]}, *messages[begin:end]]


class Conversation(Sequence[Message]):
    """The messages of one session, each a line of `messages.jsonl` in its folder as soon as it is appended.

    The file holds what requests are made of, so that a resumed session sends the same bytes as the one that ended; the
    first lines hold the packed repository.
    """

    def __init__(self, folder: Path, messages: list[Message]) -> None:
        self._messages = messages
        self._file = AppendOnlyFile(folder / FILE)
        self._digest = Digest()
        self._digested = 0

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
        self._write(message)
        self._messages.append(message)

    def summarise(self, text: str, kept: range) -> None:
        """Put a user's message with `text` in the place of all messages but the first and those `kept`, by position.

        What was said stays in the file. Raises EnvironmentFault, and then nothing has changed.
        """
        line = {"role": SUMMARY, "content": text, "kept": [kept.start, kept.stop]}
        self._write(line)
        self._messages = _summarised(self._messages, line)
        self._digest, self._digested = Digest(), 0

    def digest(self) -> str:
        """SHA-256 over all messages."""
        self._digest.add(self._messages[self._digested :])
        self._digested = len(self._messages)
        return str(self._digest)

    def _write(self, line: Message) -> None:
        self._file.append(as_line(line))

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
