"""One pack in the making: the files that come into question, their chunks and counts."""

from __future__ import annotations

from collections.abc import Callable
from os import fsencode

from m3agent.agent.context import rules
from m3agent.agent.context.cache import Cache, key
from m3agent.agent.context.files import (
    Listing,
    WorkTree,
    list_generated,
    list_matching,
)
from m3agent.agent.context.forms import (
    FIRST_REASON,
    PLAIN,
    REDACTED,
    STORED,
    as_they_are,
    estimate,
    shown_name,
)
from m3agent.agent.context.history import History, sort_key
from m3agent.agent.context.packed import Context, PackedFile

TYPE_CHECKING = False  # what type checkers take for true; typing itself is slow to import
if TYPE_CHECKING:
    from m3agent.agent.context.counting import Counting
    from m3agent.agent.context.tokenizer.counter import Counter
    from m3agent.agent.context.tokenizer.source import TokenizerSource

MAX_NAMES = 200
"""Files that are named as not shown; the rest is only counted."""

_STEP = 500
_DELIMITERS = sum(map(len, as_they_are(PLAIN, b"", b"")))
_IGNORE_FILE = ".m3agentignore"

Progress = Callable[[int, int], None]
"""Told how many files of how many have been read."""


class PackOptions:
    """How to pack.

    `budget` in tokens (None: no limit); `tokenizer` None to estimate; `cache` the folder for what is known from earlier
    packs (None: keep nothing); `issue` the text that files are ranked by when not all fit; `frozen` to keep the text of
    an earlier pack and append what changed since; `include` and `exclude` are patterns as in .gitignore.
    """

    __slots__ = ("budget", "cache", "exclude", "frozen", "include", "issue", "progress", "tokenizer")

    def __init__(
        self,
        *,
        budget: int | None = None,
        tokenizer: TokenizerSource | None = None,
        cache: str | None = None,
        issue: str = "",
        frozen: bool = False,
        include: tuple[str, ...] = (),
        exclude: tuple[str, ...] = (),
        progress: Progress | None = None,
    ) -> None:
        self.budget = budget
        self.tokenizer = tokenizer
        self.cache = cache
        self.issue = issue
        self.frozen = frozen
        self.include = include
        self.exclude = exclude
        self.progress = progress


class Source:
    """A file on its way into the pack: `name` as shown, `churn` None where it has no history, `text` the chunk of a form
    that is stored."""

    __slots__ = ("churn", "data", "form", "key", "name", "path", "text", "tokens")

    def __init__(self, path: str, name: bytes, data: bytes, key: bytes, churn: float | None) -> None:
        self.path = path
        self.name = name
        self.data = data
        self.key = key
        self.churn = churn
        self.tokens = 0
        self.form = PLAIN
        self.text: bytes | None = None

    @property
    def size(self) -> int:
        """About the bytes of its chunk."""
        return len(self.data) + len(self.name) + _DELIMITERS

    @property
    def packed(self) -> PackedFile:
        """What the context says of it."""
        return PackedFile(self.name.decode(), self.tokens, len(self.data))


class Packing:
    """Files are added and put in order; whoever arranges them asks for their chunks and makes the context of those.

    `sources` are the files that may be shown, `dropped` those left out by now, with the reason; `head` the number of the
    commit on the first-parent line, which churn counts from; `variant` names the rules and the tokenizer.
    """

    def __init__(self, options: PackOptions) -> None:
        self.options = options
        tokenizer = options.tokenizer
        self.variant = f"{rules.VERSION} {tokenizer.id if tokenizer else 'estimate'}"
        self.cache = Cache(options.cache, self.variant)
        self._used: set[bytes] = set()
        self._counter: Counter | None = None
        self._counting: Counting | None = None
        self._uncounted: list[Source] = []
        self._news = False
        self.sources: list[Source] = []
        self.dropped: list[tuple[bytes, rules.Reason]] = []
        self._unsettled: set[str] = set()
        self.head = 0

    def add_tree(self, root: str, listing: Listing) -> None:
        """Add the files of a work tree."""
        skipped = _skipped(root, listing, self.options)
        for path, reason in listing.left_out:
            self.add(path, reason)
        total = len(listing.settled)
        with WorkTree(root) as tree:
            for number, (path, settled) in enumerate(listing.settled.items()):
                if self.options.progress and number % _STEP == 0:
                    self.options.progress(number, total)
                found = skipped.get(path) or rules.reason_by_name(path) or tree.read(path)
                if found is not None:
                    self.add(path, found)
                    if not settled:
                        self._unsettled.add(path)

    def add(self, path: str, found: bytes | rules.Reason) -> None:
        """Add a file, or note why it is left out."""
        name = shown_name(path)
        if isinstance(found, rules.Reason):
            self.dropped.append((name, found))
            return
        source = Source(path, name, found, key(name, found), 0.0)
        if not self._recall(source):
            self._make(source)
        self._used.add(source.key)
        if source.form >= FIRST_REASON:
            self.dropped.append((name, rules.BY_CONTENT[source.form - FIRST_REASON]))
        else:
            self.sources.append(source)

    def set_history(self, history: History) -> None:
        """How often each file changed; files being edited count as new, since they will change again."""
        self.head = history.count
        for source in self.sources:
            edited = source.path in self._unsettled
            source.churn = None if edited else history.churn.get(fsencode(source.path))

    def chunk(self, source: Source) -> bytes:
        """The chunk of a file that is shown whole."""
        return b"".join(self.pieces(source))

    def pieces(self, source: Source) -> list[bytes]:
        """The same in pieces, without a copy of the file."""
        return as_they_are(source.form, source.name, source.data) if source.text is None else [source.text]

    def count(self, chunk: bytes) -> int:
        """The tokens of one chunk that is no file's."""
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

    def not_shown(self, room: int | None) -> bytes:
        """Tells which files exist and are not shown, in at most `room` tokens; credentials are not even named."""
        # Our own files first; what was vendored is seldom asked for.
        ranked = sorted(
            (reason is rules.VENDORED, reason is not rules.OVER_BUDGET, name)
            for name, reason in self.dropped
            if reason is not rules.CREDENTIALS
        )
        names = [name for *_, name in ranked]
        named = min(len(names), MAX_NAMES)
        while names:
            lines = [b"These files exist but are not shown here; file_read reads them:", *names[:named]]
            if named < len(names):
                lines.append(b"(and %d more)" % (len(names) - named))
            note = b"\n".join((b"<not_shown>", *lines, b"</not_shown>", b""))
            if room is None or self.count(note) <= room:
                return note
            if named == 0:
                break
            named //= 2
        return b""

    def order(self) -> None:
        """Put the files into the order in which they are shown, once all were added; their tokens are known then."""
        if self._counting is not None:
            counts, self._counter = self._counting.result()
            self.cache.exact = self._counter.exact
            for source, tokens in zip(self._uncounted, counts, strict=True):
                source.tokens = tokens
                self.cache.entries[source.key] = tokens, source.form
        self.sources.sort(key=lambda source: sort_key(source.churn, source.size, source.path))

    def save(self) -> None:
        """Keep what was found out."""
        if self._news:
            self.cache.save(self._used)

    def context(
        self, pieces: list[bytes], files: list[PackedFile], tokens: int, *, rebased: bool = True
    ) -> Context:
        """The context made of these chunks, whole or in pieces."""
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

    def _recall(self, source: Source) -> bool:
        """Fill in what an earlier pack found out, if all of it is there."""
        known = self.cache.entries.get(source.key)
        if known is None:
            return False
        source.tokens, source.form = known
        if source.form in (STORED, REDACTED):
            source.text = self.cache.text(source.key)
            return source.text is not None
        return True

    def _make(self, source: Source) -> None:
        from m3agent.agent.context.chunks import make

        source.form, chunk = make(source.name, source.path, source.data)
        source.text = chunk if source.form in (STORED, REDACTED) else None
        self._news = True
        if source.form < FIRST_REASON and self.options.tokenizer is not None:
            if self._counting is None:
                from m3agent.agent.context.counting import Counting

                self._counting = Counting(self._open_counter)
            self._counting.add(chunk)
            self._uncounted.append(source)
        source.tokens = estimate(chunk)  # until it is counted
        self.cache.add(source.key, (source.tokens, source.form), source.text)

    def _open_counter(self) -> Counter:
        from m3agent.agent.context.tokenizer.counter import open_counter

        assert self.options.tokenizer is not None, "nothing is counted without a tokenizer"
        return open_counter(self.options.tokenizer)


def _skipped(root: str, listing: Listing, options: PackOptions) -> dict[str, rules.Reason]:
    """Those files of a work tree that the repository or the user leaves out."""
    skipped: dict[str, rules.Reason] = {}
    with WorkTree(root) as tree:
        attributes = [tree.read(path) for path in listing.settled if path.endswith(".gitattributes")]
    if any(isinstance(text, bytes) and b"linguist-" in text for text in attributes):
        skipped.update(dict.fromkeys(list_generated(root), rules.GENERATED))
    if any(path.endswith(_IGNORE_FILE) for path in listing.settled):
        found = list_matching(root, f"--exclude-per-directory={_IGNORE_FILE}")
        skipped.update(dict.fromkeys(found, rules.IGNORED))
    if options.include:
        found = list_matching(root, *(f"--exclude={pattern}" for pattern in options.include))
        skipped.update((path, rules.EXCLUDED) for path in listing.settled if path not in found)
    if options.exclude:
        found = list_matching(root, *(f"--exclude={pattern}" for pattern in options.exclude))
        skipped.update(dict.fromkeys(found, rules.EXCLUDED))
    return skipped
