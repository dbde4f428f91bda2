r"""Count tokens exactly as the model's own tokenizer does.

The counts of a pack's chunks add up to the count of the pack. Chunks start with `<` and end with a newline.
That is sufficient if all of these conditions hold:

- One regular expression splits the text into words, and each word is encoded separately (byte-pair encoding,
  no dropout).
- No match extends across a newline that is followed by `<`. Ends of lines only end a match (`[\r\n]*`,
  `\s*[\r\n]+`), or are inside a match of white space only.
- A match does not depend on the text after such a newline or before `<`. White space before an end of line is
  taken with it (`\s*[\r\n]+`) before any other part looks ahead (`\s+(?!\S)`). Nothing looks behind or is
  anchored.
- No step before the split joins or strips characters there: no prefix for the first word, no trimming. Normal
  form C is allowed, because neither character combines with the one before it.
- Nothing is added around a text, and the text contains no reserved string. `harmless` ensures the second
  condition.

The expressions of GPT-4, GPT-4o, Llama 3 and Qwen meet the conditions. Each tokenizer is tested when it is
first used. If the test fails, or if the library may read parts of the file differently from Hugging Face,
counts are not `exact`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from functools import cache
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from m3agent.agent.context.tokenizer.files import prepare
from m3agent.agent.context.tokenizer.source import TokenizerSource, identity, read_tokenizer
from m3agent.util.errors import UsageError

if TYPE_CHECKING:
    from kitoken import Kitoken

_LONG = 500_000
"""Texts up to this number of characters can be counted at once.

The library remembers each character of a run of white space. A run of twice this length exhausts its memory,
and the library then ends the process.
"""

_ALLOCATOR = ("MIMALLOC_EAGER_COMMIT", "MIMALLOC_ARENA_EAGER_COMMIT")
"""Options of the library's allocator, to be turned off.

The allocator then takes memory only when it is used. The peak is a third lower, and counting is not slower
(measured on a pack of a million tokens).
"""

# Unicode's white space without ends of lines. Python's \s would include four more separators.
_SPACES = re.compile(r"[\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")

_NO_SPECIAL: list[str] = []
"""Recognise no kind of reserved string. `False` would still recognise added tokens that are not special."""


class Counter(Protocol):
    """Counts the tokens of texts; several threads may use it at once."""

    @property
    def exact(self) -> bool:
        """Whether counts equal the tokenizer's own, and the counts of a pack's chunks are additive."""
        ...

    @property
    def note(self) -> str:
        """Why counts are not exact; empty if they are."""
        ...

    def count(self, text: str) -> int:
        """Return the number of tokens of a text.

        Nothing is added to it, and nothing in it becomes a control token.
        """
        ...

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        ...


def open_counter(source: TokenizerSource) -> Counter:
    """Load a tokenizer, or connect to its server.

    Raises:
        UsageError: The file cannot be read, or is not suitable for counting.
        ModelServerError: The server does not answer or refuses (see `ServerCounter`).
    """
    if source.kind == "server":
        from m3agent.agent.context.tokenizer.server import ServerCounter

        return ServerCounter(source)
    return _FileCounter(source)


def oracle_count(source: TokenizerSource, text: str) -> int:
    """Return the number of tokens of a complete text by the reference: Hugging Face's library, or the server.

    The library takes about 2 seconds and 0.5 GB for a million tokens.

    Raises:
        UsageError: The library is not installed, or does not accept the file.
    """
    if source.kind == "server":
        return open_counter(source).count(text)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError(
            "Checking counts needs Hugging Face's tokenizers, which is not installed: install m3agent[verify] as docs/install.md says."
        ) from None
    data = read_tokenizer(source.location)
    if identity(data) != source.id:
        raise UsageError(
            f"The tokenizer {source.location} changed since it was found: run the command again."
        )
    try:
        reference = Tokenizer.from_buffer(data)
    except ValueError as error:
        raise UsageError(f"The tokenizer {source.location} cannot be used: {error}.") from None
    reference.no_truncation()
    reference.no_padding()
    (encoded,) = reference.encode_batch_fast(
        [text], add_special_tokens=False
    )  # fast: without token positions
    return len(encoded)


@cache
def _library() -> type[Kitoken]:
    """Return the library's encoder class, loaded by a thread that never ends.

    The library's allocator (mimalloc) takes the thread that loads it for the main thread. After that thread
    ends, the next thread that allocates memory would end the process.
    """
    loaded = threading.Event()
    found: list[type[Kitoken]] = []

    def load() -> None:
        # Only the library reads these variables, while it loads. os.environ is not changed: other threads may
        # read it.
        options = [name for name in _ALLOCATOR if name not in os.environ]
        for name in options:
            os.putenv(name, "0")
        try:
            from kitoken import Kitoken

            found.append(Kitoken)
        finally:
            for name in options:
                os.unsetenv(name)
            loaded.set()
        threading.Event().wait()

    threading.Thread(target=load, name="kitoken", daemon=True).start()
    loaded.wait()
    if not found:
        raise UsageError("kitoken, which counts tokens, cannot be loaded: install m3agent again.")
    return found[0]


class _FileCounter:
    """Count with a tokenizer's file."""

    def __init__(self, source: TokenizerSource) -> None:
        prepared = prepare(source)
        self._encoder = _library()(prepared.form)
        self._spaces_last = prepared.spaces_last
        self._unsplit: Kitoken | None = None
        self._making = threading.Lock()
        self.exact = prepared.exact
        self.note = prepared.note

    def count(self, text: str) -> int:
        if len(text) > _LONG:
            return self._count_long(text)
        return len(self._encoder.encode(text, _NO_SPECIAL))

    def count_many(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]

    def _count_long(self, text: str) -> int:
        r"""Return the number of tokens of a text that may contain a very long run of white space.

        Such a run is one word up to its last character, which belongs to the following text (`\s+(?!\S)`). At
        the end of a text the complete run is one word. It is counted separately. Before an end of line, the
        run belongs to the line end, and the library does not remember its characters.
        """
        if not self._spaces_last:
            return sum(
                len(self._encoder.encode(text[start : start + _LONG], _NO_SPECIAL))
                for start in range(0, len(text), _LONG)
            )
        total, rest, end = 0, [], 0
        for run in _SPACES.finditer(text):
            length = run.end() - run.start()
            after = text[run.end() : run.end() + 1]
            if length > _LONG and after not in ("\r", "\n"):
                word = run[0][:-1] if after else run[0]
                total += len(self._encoder_of_words().encode(word, _NO_SPECIAL))
                rest.append(text[end : run.start()])
                end = run.start() + len(word)
        rest.append(text[end:])
        return total + len(self._encoder.encode("".join(rest), _NO_SPECIAL))

    def _encoder_of_words(self) -> Kitoken:
        """Return the encoder without its split, which treats any text as one word."""
        with self._making:
            if self._unsplit is None:
                unsplit = _library()(self._encoder.to_bytes())
                unsplit.set_config({**unsplit.config(), "split": []})
                self._unsplit = unsplit
            return self._unsplit


_BATCH_BYTES = 256 * 1024


class Counting:
    """Receive chunks as they are made and return their counts at the end.

    Tokenizers release the interpreter's lock, so the threads use other cores while the caller reads.
    """

    def __init__(self, open_counter: Callable[[], Counter]) -> None:
        self._open = open_counter
        self._opened = threading.Lock()
        self._counter: Counter | None = None
        self._queue: SimpleQueue[tuple[int, list[bytes]] | None] = SimpleQueue()
        self._counts: dict[int, list[int]] = {}
        self._errors: list[BaseException] = []
        self._batch: list[bytes] = []
        self._size = 0
        self._batches = 0
        self._threads = [
            threading.Thread(target=self._work, daemon=True) for _ in range(min(4, os.cpu_count() or 1))
        ]
        for thread in self._threads:
            thread.start()

    def add(self, chunk: bytes) -> None:
        """Add a chunk to count."""
        self._batch.append(chunk)
        self._size += len(chunk)
        if self._size >= _BATCH_BYTES:
            self._hand_over()

    def result(self) -> tuple[list[int], Counter]:
        """Return the token count of each chunk in the order of `add`, and the counter.

        Raises any error that occurred while opening the tokenizer or counting.
        """
        self._hand_over()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        counts = [count for number in range(self._batches) for count in self._counts[number]]
        assert self._counter is not None, "a thread that could not open it has left an error"
        return counts, self._counter

    def _hand_over(self) -> None:
        if self._batch:
            self._queue.put((self._batches, self._batch))
            self._batches += 1
            self._batch, self._size = [], 0

    def _work(self) -> None:
        try:
            with self._opened:
                if self._counter is None and not self._errors:
                    self._counter = self._open()
            while (work := self._queue.get()) is not None:
                number, chunks = work
                if self._counter is not None:
                    self._counts[number] = self._counter.count_many([chunk.decode() for chunk in chunks])
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._errors.append(error)
