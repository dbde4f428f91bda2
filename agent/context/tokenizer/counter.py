r"""Counts tokens exactly as the model's own tokenizer does.

Counts of a pack's chunks add up to the count of the pack. Chunks start with `<` and end with a newline, and that is
enough where all of this holds:

- Text is split into words by one regular expression, and each word is encoded by itself (byte-pair encoding, no dropout).
- No match runs across a newline followed by `<`: ends of lines only ever end a match (`[\r\n]*`, `\s*[\r\n]+`), or stand
  in one that takes nothing but white space.
- What a match is does not depend on what comes after such a newline, or before `<`: white space before an end of line is
  taken with it (`\s*[\r\n]+`) before any other part looks ahead (`\s+(?!\S)`), and nothing looks behind or is anchored.
- No step before the split joins or strips characters there: no prefix for the first word, no trimming. Normal form C
  is fine, since neither character combines with one before it.
- Nothing is added around a text, and no string in it is reserved; `harmless` sees to the second.

The expressions of GPT-4, GPT-4o, Llama 3 and Qwen are of this kind; each tokenizer is put to the test when it is first
used. Where one fails, or has parts that the library is not known to read as Hugging Face does, counts are not `exact`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

from m3agent.agent.context.tokenizer.files import prepare
from m3agent.agent.context.tokenizer.source import TokenizerSource, identity, read_tokenizer
from m3agent.agent.errors import UsageError

if TYPE_CHECKING:
    from kitoken import Kitoken

_LONG = 500_000
"""Characters up to which any text can be counted in one go. A run of white space may have twice as many before the
library, which keeps a note of each of its characters, has no room for the next and ends the process."""

_ALLOCATOR = ("MIMALLOC_EAGER_COMMIT", "MIMALLOC_ARENA_EAGER_COMMIT")
"""Options of the library's allocator: off, memory is taken when it is used, which is a third less at its height and no
slower (measured on a pack of a million tokens)."""

# White space as Unicode has it, without ends of lines. Not \s: to Python that includes four separators more.
_SPACES = re.compile(r"[\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")

_NO_SPECIAL: list[str] = []
"""Kinds of reserved strings to tell from text. `False` would leave one kind in: added tokens that are not special."""


class Counter(Protocol):
    """Counts the tokens of texts; may be used by several threads at once."""

    @property
    def exact(self) -> bool:
        """Whether counts are the tokenizer's own, and those of a pack's chunks add up."""
        ...

    @property
    def note(self) -> str:
        """Why counts are not exact; empty when they are."""
        ...

    def count(self, text: str) -> int:
        """The tokens of a text; nothing is added to it, and nothing in it is read as a control token."""
        ...

    def count_many(self, texts: Sequence[str], threads: int = 2) -> list[int]:
        """The tokens of each text."""
        ...


def open_counter(source: TokenizerSource) -> Counter:
    """Load a tokenizer, or connect to its server.

    Raises `UsageError` for a file that cannot be read or counted with, and for a server what `ServerCounter` raises.
    """
    if source.kind == "server":
        from m3agent.agent.context.tokenizer.server import ServerCounter

        return ServerCounter(source)
    return _FileCounter(source)


def oracle_count(source: TokenizerSource, text: str) -> int:
    """The tokens of a whole text by the reference: Hugging Face's own library, or the server.

    The library takes about 2 seconds and 0.5 GB for a million tokens.
    Raises `UsageError` when the library is not installed or does not take the file.
    """
    if source.kind == "server":
        return open_counter(source).count(text)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError(
            "Checking counts needs Hugging Face's tokenizers, which is not installed: `pip install 'm3agent[verify]'`."
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
    )  # fast: without each token's place
    return len(encoded)


@cache
def _library() -> type[Kitoken]:
    """The library's encoder, loaded by a thread that never ends.

    Its memory allocator (mimalloc) takes the thread that loads it for the process's main one, and the next thread that
    allocates after the end of that one ends the process.
    """
    loaded = threading.Event()
    found: list[type[Kitoken]] = []

    def load() -> None:
        # Only the library reads these, as it loads; os.environ, which other threads may be reading, stays as it is.
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
    """Counts with a tokenizer's file."""

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

    def count_many(self, texts: Sequence[str], threads: int = 2) -> list[int]:
        if threads == 1 or len(texts) < 2:
            return [self.count(text) for text in texts]
        from concurrent.futures import ThreadPoolExecutor

        counts = [0] * len(texts)
        # The longest first, so that the threads end together. They take turns at one iterator.
        numbers = iter(sorted(range(len(texts)), key=lambda number: -len(texts[number])))

        def work() -> None:
            for number in numbers:
                counts[number] = self.count(texts[number])

        with ThreadPoolExecutor(threads) as pool:
            try:
                for done in [pool.submit(work) for _ in range(threads)]:
                    done.result()
            finally:
                for _ in numbers:  # after a failure nobody needs the rest
                    pass
        return counts

    def _count_long(self, text: str) -> int:
        """The tokens of a text that may have too long a run of white space, which is counted by itself.

        Such a run is one word up to its last character, which goes with what follows (`\\s+(?!\\S)`); at the end of a
        text it is one word as a whole. Before an end of line it belongs to that, and no note is taken of it.
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
        """The encoder without its split: takes any text for one word."""
        with self._making:
            if self._unsplit is None:
                unsplit = _library()(self._encoder.to_bytes())
                unsplit.set_config({**unsplit.config(), "split": []})
                self._unsplit = unsplit
            return self._unsplit
