"""Prompts as agents send them: program text with a wanted number of tokens, the same for the same seed.

Only the first words differ from run to run, because they are random. Otherwise a second bench with the same
seed would find the first bench's prompts in the server's cache.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

Messages = list[dict[str, str]]
Count = Callable[[str], Awaitable[int | None]]
"""Function that counts a text's tokens with the server's tokenizer; None if the server does not count."""

_CHARACTERS_A_TOKEN = 3.5  # first estimate; code has 3 to 4 with M3's tokenizer
_FILLER = " a"  # one token in the tokenizers that we know
_MOST_FILLER = 64  # tokens
_MOST_COUNTS = 8

_VERBS = (
    *("read", "write", "parse", "merge", "split", "load", "store", "check"),
    *("count", "find", "drop", "push", "fetch", "render", "update", "resolve"),
)
_NOUNS = (
    *("token", "block", "frame", "record", "header", "buffer", "index"),
    *("route", "ticket", "vessel", "ledger", "parcel", "branch", "cursor"),
)
_ADJECTIVES = (
    *("first", "last", "empty", "stale", "remote", "local"),
    *("pending", "broken", "merged", "hidden", "sorted", "shared"),
)
_COMMENTS = (
    "keep the order in which they came",
    "the caller has checked this already",
    "an empty one is no fault here",
    "see the notes on overflow",
    "cheaper than to sort it again",
    "both ends are inclusive",
)


class Corpus:
    """Endless generated Python source; the same seed gives the same text on every machine."""

    def __init__(self, seed: int) -> None:
        self._functions = _functions(seed)
        self._text = ""

    def text(self, characters: int) -> str:
        """Return this number of characters from the beginning."""
        if len(self._text) < characters:
            pieces, size = [self._text], len(self._text)
            while size < characters:
                pieces.append(next(self._functions))
                size += len(pieces[-1])
            self._text = "".join(pieces)
        return self._text[:characters]


def _functions(seed: int) -> Iterator[str]:
    # Python documents that random() gives the same numbers in every version; other methods may not.
    draw = random.Random(seed).random  # noqa: S311  # no secret

    def one_of(words: tuple[str, ...]) -> str:
        return words[int(draw() * len(words))]

    def name() -> str:
        return f"{one_of(_ADJECTIVES)}_{one_of(_NOUNS)}"

    number = 0
    while True:
        number += 1
        noun, other, limit = name(), name(), int(draw() * 10_000)
        lines = [
            f"def {one_of(_VERBS)}_{noun}_{number}({noun}: list[int], {other}: str = {one_of(_NOUNS)!r}) -> int:",
            f'    """{one_of(_VERBS).title()} the {one_of(_ADJECTIVES)} {one_of(_NOUNS)} of {other}."""',
            f"    total = {int(draw() * 100)}",
        ]
        for _ in range(2 + int(draw() * 5)):
            item, call = one_of(_NOUNS), f"{one_of(_VERBS)}_{one_of(_NOUNS)}"
            lines += [
                f"    for {item} in {noun}:  # {one_of(_COMMENTS)}",
                f"        if {item} > {int(draw() * limit) + 1} and {other} != {one_of(_ADJECTIVES)!r}:",
                f"            total += {call}({item}, {draw():.3f}, key={one_of(_NOUNS)!r})",
            ]
        lines += [f"    return total % {limit + 2}", "", "", ""]
        yield "\n".join(lines)


@dataclass(frozen=True)
class BenchPrompt:
    """First messages of a conversation."""

    system: str
    user: str
    counted: int | None = None
    """Tokens of both texts; None if they were not counted."""

    @property
    def messages(self) -> Messages:
        """The messages as the request contains them."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]

    @property
    def texts(self) -> str:
        """Both texts as one, for counting."""
        return f"{self.system}\n{self.user}"


class PromptMaker:
    """Makes prompts with a wanted number of tokens; `learn` makes it more precise.

    Args:
        nonce: Beginning of every prompt; it makes sure that nobody has sent the prompt before.
    """

    def __init__(self, corpus: Corpus, count: Count, nonce: str) -> None:
        self._corpus = corpus
        self._count = count
        self._nonce = nonce
        self._made = 0
        self._template = 0  # tokens of the chat template
        self._characters_a_token = _CHARACTERS_A_TOKEN

    async def make(self, tokens: int, task: str = "Fix the bug.") -> BenchPrompt:
        """Make a prompt that nobody has sent before.

        If the server counts tokens, the length is exact after the first call of `learn`. Otherwise it is
        approximate.

        Args:
            tokens: Length in tokens, with the template.
        """
        self._made += 1
        system = f"{self._nonce}-{self._made}. You fix issues in a software repository with the tools that you have."
        wanted = max(1, tokens - self._template)
        characters, filler = round(wanted * self._characters_a_token), 0
        best: tuple[int, BenchPrompt] | None = None
        for _ in range(_MOST_COUNTS):
            text = self._corpus.text(characters)
            prompt = BenchPrompt(system, f"{text}\n#{_FILLER * filler}\n\n{task}")
            counted = await self._count(prompt.texts)
            if counted is None:
                return prompt
            missing = wanted - counted
            if best is None or abs(missing) < best[0]:
                best = abs(missing), BenchPrompt(prompt.system, prompt.user, counted)
            if missing == 0:
                break
            if 0 <= filler + missing <= 2 * _MOST_FILLER:
                filler += missing
            else:  # go slightly below the target, then fill up
                self._characters_a_token = len(prompt.texts) / counted
                characters += round((missing + filler - _MOST_FILLER) * self._characters_a_token)
                characters, filler = max(1, characters), 0
        assert best is not None, "at least one was counted"
        return best[1]

    def learn(self, prompt: BenchPrompt, tokens: int | None) -> None:
        """Learn from the number of tokens that the server reported for a prompt; None is ignored."""
        if tokens is None:
            return
        if prompt.counted is None:
            self._characters_a_token = len(prompt.texts) / tokens
        else:
            self._template = tokens - prompt.counted


def agents_task(number: int) -> str:
    """Return the end of one agent's prompt. As with `--attempts`, only the end differs between agents."""
    hints = ("Look at the tests first.", "Look at the callers first.", "Look for the smallest change.")
    return f"Fix the bug. This is attempt {number}. {hints[number % len(hints)]}"


def next_turn(prompt: BenchPrompt) -> Messages:
    """Return the messages of the turn after a prompt: about 250 more tokens of an answer and a tool's result."""
    said = "I look at the function that the issue names, and at the tests that cover it, before I change anything."
    result = "".join(
        f"tests/test_{noun}.py::test_{verb}_{noun} PASSED\n"
        for noun, verb in zip(_NOUNS, _VERBS, strict=False)
    )
    return [
        *prompt.messages,
        {"role": "assistant", "content": said},
        {"role": "user", "content": f"The tests said:\n{result}\nGo on."},
    ]
