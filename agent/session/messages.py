"""Keep a session's conversation with the model in memory and in an append-only file, which resuming reads back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from m3agent.util.append_only import AppendOnlyFile
from m3agent.util.errors import UsageError
from m3agent.util.json_lines import json_lines

Message = dict[str, Any]
FILE = "messages.jsonl"
FIRST = 2
"""Number of first messages that summaries never replace: the rules, and the repository with the issue."""
SUMMARY = "summary"
"""Role of a line that records a summary. Its `content` is the summary. Its `kept` has the start and stop position of the
messages that stay after it."""


class Digest:
    """SHA-256 over a sequence of messages. `turn.started` records it for each request, and exports check it."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, messages: Iterable[Message]) -> None:
        """Add the next messages."""
        for message in messages:
            self._hash.update(json.dumps(message).encode())

    def __str__(self) -> str:
        return self._hash.hexdigest()


def read_lines(folder: Path) -> list[Message]:
    """Read the lines of a session's file: messages, and summaries that replaced messages.

    Returns the complete lines, without a torn last line; empty if there is no file.

    Raises UsageError: The file is damaged.
    """
    try:
        raw = (folder / FILE).read_bytes().rpartition(b"\n")[0]
    except OSError:
        return []
    try:
        lines = [json.loads(line) for _, line in json_lines(raw)]
        for line in lines:
            if line["role"] == SUMMARY:
                _summarised([], line)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder / FILE} is damaged ({error})") from None
    return lines


def read_messages(folder: Path) -> list[Message] | None:
    """Read the messages of a session as its last request has them, without changing the file.

    Returns the messages; None if there are none.

    Raises UsageError: The file is damaged.
    """
    messages: list[Message] = []
    for line in read_lines(folder):
        if line["role"] == SUMMARY:
            messages = _summarised(messages, line)
        else:
            messages.append(line)
    return messages or None


def begun_messages(folder: Path) -> list[Message]:
    """Read the messages of a session that can go on.

    Raises UsageError: The file is damaged, or the session ended before its first request.
    """
    messages = read_messages(folder) or []
    if all(message["role"] == "system" for message in messages):
        raise UsageError(
            f"session {folder.name} cannot be resumed: it ended before its first request; start the fix again"
        )
    return messages


def as_line(message: Message) -> bytes:
    """Encode a message as its line in the file, without the newline."""
    return json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode()


def _summarised(messages: list[Message], line: Message) -> list[Message]:
    begin, end = line["kept"]
    return [*messages[:FIRST], {"role": "user", "content": line["content"]}, *messages[begin:end]]


class Conversation(Sequence[Message]):
    """The messages of one session. `append` writes each message as a line of `messages.jsonl` in the session's folder.

    The file contains everything that requests consist of. A resumed session therefore sends the same bytes as the
    session that ended. The first lines contain the packed repository.
    """

    def __init__(self, folder: Path, messages: list[Message]) -> None:
        self._messages = messages
        self._file = AppendOnlyFile(folder / FILE)
        self._digest = Digest()
        self._digested = 0

    @classmethod
    def begin(cls, folder: Path, messages: Iterable[Message]) -> Conversation:
        """Start a new conversation with these messages."""
        conversation = cls(folder, [])
        for message in messages:
            conversation.append(message)
        return conversation

    @classmethod
    def read(cls, folder: Path) -> Conversation:
        """Read the conversation of a session that ended early, to continue it.

        A torn last line is removed from the file: that message was never sent.

        Raises UsageError: The file is damaged, or the session ended before its first request.
        """
        return cls(folder, begun_messages(folder))

    def append(self, message: Message) -> None:
        """Add a message. It has been handed to the kernel when this returns.

        Raises EnvironmentFault: The file cannot be written; the message was not added.
        """
        self._file.append(as_line(message))
        self._messages.append(message)

    def summarise(self, text: str, kept: range) -> None:
        """Replace all messages but the first `FIRST` and the kept ones with a user message.

        The file keeps the replaced messages.

        Args:
            kept: Positions of the messages that stay after it.

        Raises EnvironmentFault: The file cannot be written; nothing has changed.
        """
        line = {"role": SUMMARY, "content": text, "kept": [kept.start, kept.stop]}
        self._file.append(as_line(line))
        self._messages = _summarised(self._messages, line)
        self._digest, self._digested = Digest(), 0

    def digest(self) -> str:
        """Return the SHA-256 over all messages, in hexadecimal."""
        self._digest.add(self._messages[self._digested :])
        self._digested = len(self._messages)
        return str(self._digest)

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
