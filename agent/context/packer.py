"""One pack while it is being made: the candidate files, their chunks and their counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import fsencode

from m3agent.agent.context import rules
from m3agent.agent.context.cache import Cache, key
from m3agent.agent.context.chunk_format import (
    FIRST_REASON,
    PLAIN,
    REDACTED,
    STORED,
    as_they_are,
    estimate,
    shown_name,
)
from m3agent.agent.context.files import FileListing, WorkTree, list_generated, list_matching
from m3agent.agent.context.history import FileHistory, sort_key
from m3agent.agent.context.types import Context, PackedFile
from m3agent.agent.repo.host_git import HostGit
from m3agent.util.record import record

TYPE_CHECKING = False  # type checkers take this for true; typing itself is slow to import
if TYPE_CHECKING:
    from m3agent.agent.context.tokenizer.counter import Counter, Counting
    from m3agent.agent.context.tokenizer.source import TokenizerSource

MAX_NAMES = 200
"""Largest number of omitted files to name; the others are only counted."""

_STEP = 500
_DELIMITERS = sum(map(len, as_they_are(PLAIN, b"", b"")))
_IGNORE_FILE = ".m3agentignore"

Progress = Callable[[int, int], None]
"""Callback with the number of files read so far and the total number."""


@record
class PackOptions:
    """Options of a pack."""

    budget: int | None = None
    """Largest number of tokens; None for no limit."""
    tokenizer: TokenizerSource | None = None
    """The tokenizer; None to estimate counts."""
    cache: str | None = None
    """Folder for results of earlier packs; None to keep nothing."""
    issue: str = ""
    """Text by which files are ranked if not all fit."""
    frozen: bool = False
    """Whether to keep the text of an earlier pack and append the changes since then."""
    include: tuple[str, ...] = ()
    """Patterns of files to include, as in .gitignore; empty for all."""
    exclude: tuple[str, ...] = ()
    """Patterns of files to leave out, as in .gitignore."""
    progress: Progress | None = None
    """Receives the progress of reading."""


@record
class PackSource:
    """A file that may be packed."""

    path: str
    name: bytes
    """Its path as shown."""
    data: bytes
    key: bytes
    """Its key in the cache."""
    churn: float | None
    """How often it changed (see `history`); None if it has no history."""
    tokens: int = 0
    """Tokens of its chunk."""
    form: int = PLAIN
    """Its form (see `chunk_format`)."""
    text: bytes | None = None
    """Its chunk, for forms that are stored; else None."""

    @property
    def size(self) -> int:
        """Approximate size of its chunk in bytes."""
        return len(self.data) + len(self.name) + _DELIMITERS

    @property
    def packed(self) -> PackedFile:
        """The context's description of this file, shown whole."""
        return self.part(self.tokens, "whole")

    def part(self, tokens: int, part: str) -> PackedFile:
        """Return the context's description of this file if this part of it is shown."""
        return PackedFile(self.name.decode(), tokens, len(self.data), part)


class Packing:
    """Collect files, order them and provide their chunks to the module that arranges the context."""

    def __init__(self, options: PackOptions) -> None:
        self.options = options
        tokenizer = options.tokenizer
        self.variant = f"{rules.VERSION} {tokenizer.id if tokenizer else 'estimate'}"
        self.cache = Cache(options.cache, self.variant)
        self._used: set[bytes] = set()
        self._counter: Counter | None = None
        self._counting: Counting | None = None
        self._uncounted: list[PackSource] = []
        self._news = False
        self.sources: list[PackSource] = []
        """Files that may be shown."""
        self.dropped: list[tuple[bytes, rules.Reason]] = []
        """Files that are left out so far, with the reason."""
        self.large: list[str] = []
        """Paths of those that are left out for their size."""
        self.room = options.budget
        """Largest number of tokens; None for no limit."""
        self._unsettled: set[str] = set()
        self.head = 0
        """Number of the commit on the first-parent line, which churn counts from."""

    def add_tree(self, repository: HostGit, listing: FileListing) -> None:
        """Add the files of a repository's work tree."""
        skipped = _skipped(repository, listing, self.options)
        for path, reason in listing.left_out:
            self.add(path, reason)
        total = len(listing.settled)
        with WorkTree(repository.folder) as tree:
            for number, (path, settled) in enumerate(listing.settled.items()):
                if self.options.progress and number % _STEP == 0:
                    self.options.progress(number, total)
                found = skipped.get(path) or rules.reason_by_name(path) or tree.read(path)
                if found is not None:
                    self.add(path, found)
                    if not settled:
                        self._unsettled.add(path)

    def add(self, path: str, found: bytes | rules.Reason) -> None:
        """Add a file, or record the reason for leaving it out."""
        name = shown_name(path)
        if isinstance(found, rules.Reason):
            self._drop(path, name, found)
            return
        source = PackSource(path, name, found, key(name, found), 0.0)
        if not self._recall(source):
            self._make(source)
        self._used.add(source.key)
        if source.form >= FIRST_REASON:
            self._drop(path, name, rules.BY_CONTENT[source.form - FIRST_REASON])
        else:
            self.sources.append(source)

    def set_history(self, history: FileHistory) -> None:
        """Set how often each file changed.

        Files being edited count as new, because they will change again.
        """
        self.head = history.count
        for source in self.sources:
            edited = source.path in self._unsettled
            source.churn = None if edited else history.churn.get(fsencode(source.path))

    def chunk(self, source: PackSource) -> bytes:
        """Return the chunk of a file that is shown whole."""
        return b"".join(self.pieces(source))

    def pieces(self, source: PackSource) -> list[bytes]:
        """Return the pieces of the chunk, without copying the file."""
        return as_they_are(source.form, source.name, source.data) if source.text is None else [source.text]

    def count(self, chunk: bytes) -> int:
        """Return the number of tokens of a chunk that belongs to no file."""
        if self.options.tokenizer is None:
            return estimate(chunk)
        name = key(b"", chunk)
        if name not in self.cache.entries:
            if self._counter is None:
                self._counter = self._open_counter()
                self.cache.exact = self._counter.exact
            self.cache.add(name, (self._counter.count(chunk.decode()), PLAIN))
            self._news = True
        self._used.add(name)
        return self.cache.entries[name][0]

    def not_shown(self, room: int | None, folders: Sequence[bytes] = ()) -> bytes:
        """Return a note with some lines and the names of omitted files, in at most `room` tokens; credential files are not named."""
        # The project's own files first; vendored files are seldom needed.
        ranked = sorted(
            (reason is rules.VENDORED, reason is not rules.OVER_BUDGET, name)
            for name, reason in self.dropped
            if reason is not rules.CREDENTIALS
        )
        names = [name for *_, name in ranked]
        numbers = [min(len(names), MAX_NAMES)]
        while numbers[-1]:
            numbers.append(numbers[-1] // 2)
        for lines, number in (*((folders, number) for number in numbers), ((), 0)):
            note = _note(lines, names, number)
            if not note or room is None or self.count(note) <= room:
                return note
        return b""

    def order(self) -> None:
        """Sort the files in the order of display and complete their token counts.

        Call it after adding all files.
        """
        if self._counting is not None:
            counts, self._counter = self._counting.result()
            self.cache.exact = self._counter.exact
            for source, tokens in zip(self._uncounted, counts, strict=True):
                source.tokens = tokens
                self.cache.entries[source.key] = tokens, source.form
        self.sources.sort(key=lambda source: sort_key(source.churn, source.size, source.path))

    def save(self) -> None:
        """Write new results to the cache."""
        if self._news:
            self.cache.save(self._used)

    def context(
        self, pieces: list[bytes], files: list[PackedFile], tokens: int, *, rebased: bool = True
    ) -> Context:
        """Return a context that consists of these pieces."""
        shown = {file.path for file in files}
        redacted = (source.name.decode() for source in self.sources if source.form == REDACTED)
        return Context(
            pieces,
            tuple(files),
            tuple((name.decode(), str(reason)) for name, reason in sorted(self.dropped)),
            tokens,
            exact=self.cache.exact and self.options.tokenizer is not None,
            redacted=tuple(name for name in redacted if name in shown),
            rebased=rebased,
        )

    def _drop(self, path: str, name: bytes, reason: rules.Reason) -> None:
        self.dropped.append((name, reason))
        if reason is rules.LARGE:
            self.large.append(path)

    def _recall(self, source: PackSource) -> bool:
        """Fill in a file's results from the cache; return whether they are complete."""
        known = self.cache.entries.get(source.key)
        if known is None:
            return False
        source.tokens, source.form = known
        if source.form in (STORED, REDACTED):
            source.text = self.cache.text(source.key)
            return source.text is not None
        return True

    def _make(self, source: PackSource) -> None:
        from m3agent.agent.context.chunks import make

        source.form, chunk = make(source.name, source.path, source.data)
        source.text = chunk if source.form in (STORED, REDACTED) else None
        self._news = True
        if source.form < FIRST_REASON and self.options.tokenizer is not None:
            if self._counting is None:
                from m3agent.agent.context.tokenizer.counter import Counting

                self._counting = Counting(self._open_counter)
            self._counting.add(chunk)
            self._uncounted.append(source)
        source.tokens = estimate(chunk)  # replaced when the tokens are counted
        self.cache.add(source.key, (source.tokens, source.form), source.text)

    def _open_counter(self) -> Counter:
        from m3agent.agent.context.tokenizer.counter import open_counter

        assert self.options.tokenizer is not None, "nothing is counted without a tokenizer"
        return open_counter(self.options.tokenizer)


def _note(lines: Sequence[bytes], names: Sequence[bytes], number: int) -> bytes:
    """Return a note with some lines and the first names; empty without any."""
    parts = [*lines]
    if names:
        parts += b"These files exist but are not shown here; file_read reads them:", *names[:number]
    if number < len(names):
        parts.append(b"(and %d more)" % (len(names) - number))
    return b"\n".join((b"<not_shown>", *parts, b"</not_shown>", b"")) if parts else b""


def _skipped(repository: HostGit, listing: FileListing, options: PackOptions) -> dict[str, rules.Reason]:
    """Return the files of a work tree that the repository or the user excludes, with the reason."""
    skipped: dict[str, rules.Reason] = {}
    with WorkTree(repository.folder) as tree:
        attributes = [tree.read(path) for path in listing.settled if path.endswith(".gitattributes")]
    if any(isinstance(text, bytes) and b"linguist-" in text for text in attributes):
        skipped.update(dict.fromkeys(list_generated(repository), rules.GENERATED))
    if any(path.endswith(_IGNORE_FILE) for path in listing.settled):
        ignored = list_matching(repository, f"--exclude-per-directory={_IGNORE_FILE}")
        skipped.update(dict.fromkeys(ignored, rules.IGNORED))
    if options.include:
        included = list_matching(repository, *(f"--exclude={pattern}" for pattern in options.include))
        skipped.update((path, rules.EXCLUDED) for path in listing.settled if path not in included)
    if options.exclude:
        excluded = list_matching(repository, *(f"--exclude={pattern}" for pattern in options.exclude))
        skipped.update(dict.fromkeys(excluded, rules.EXCLUDED))
    return skipped
