"""Prompts as agents send them: program text of a wanted number of tokens, the same for the same seed.

Only the very beginning differs from run to run: it is drawn, or a second bench with the same seed would find the first
one's prompts in the server's cache.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

Messages = list[dict[str, str]]
Count = Callable[[str], Awaitable[int | None]]
"""Tokens of a text by the server's tokenizer; None where it does not say."""

_CHARACTERS_A_TOKEN = 3.5  # to begin with; code in M3's tokenizer has 3 to 4
_FILLER = " a"  # one token in the tokenizers that we know
_MOST_FILLER = 64  # tokens
_MOST_COUNTS = 8

_VERBS = [
    "read",
    "write",
    "parse",
    "merge",
    "split",
    "load",
    "store",
    "check",
    "count",
    "find",
    "drop",
    "push",
    "fetch",
    "render",
    "update",
    "resolve",
]
_NOUNS = [
    "token",
    "block",
    "frame",
    "record",
    "header",
    "buffer",
    "index",
    "route",
    "ticket",
    "vessel",
    "ledger",
    "parcel",
    "branch",
    "cursor",
]
_ADJECTIVES = [
    "first",
    "last",
    "empty",
    "stale",
    "remote",
    "local",
    "pending",
    "broken",
    "merged",
    "hidden",
    "sorted",
    "shared",
]
_COMMENTS = (
    "keep the order in which they came",
    "the caller has checked this already",
    "an empty one is no fault here",
    "see the notes on overflow",
    "cheaper than to sort it again",
    "both ends are inclusive",
)


class Corpus:
    """Endless Python source made up from a seed; the same seed gives the same text on any machine."""

    def __init__(self, seed: int) -> None:
        self._functions = _functions(seed)
        self._text = ""

    def text(self, characters: int) -> str:
        """So many characters from the beginning."""
        if len(self._text) < characters:
            pieces, size = [self._text], len(self._text)
            while size < characters:
                pieces.append(next(self._functions))
                size += len(pieces[-1])
            self._text = "".join(pieces)
        return self._text[:characters]


def _functions(seed: int) -> Iterator[str]:
    # random() gives the same numbers in every version of Python, by its documentation; other methods may not.
    draw = random.Random(seed).random  # noqa: S311  # no secret

    def one_of(words: list[str] | tuple[str, ...]) -> str:
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
class Prompt:
    """The first messages of a conversation; `counted`: tokens of their texts, None where nobody counted them."""

    system: str
    user: str
    counted: int | None = None

    @property
    def messages(self) -> Messages:
        """As they are sent."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]

    @property
    def texts(self) -> str:
        """Both texts as one, to be counted."""
        return f"{self.system}\n{self.user}"


class PromptMaker:
    """Makes prompts with a wanted number of tokens; the better the more often it learned what its prompts had.

    `nonce` begins every prompt, so nobody has sent one like it before.
    """

    def __init__(self, corpus: Corpus, count: Count, nonce: str) -> None:
        self._corpus = corpus
        self._count = count
        self._nonce = nonce
        self._made = 0
        self._template = 0  # tokens that the chat template adds
        self._characters_a_token = _CHARACTERS_A_TOKEN

    async def make(self, tokens: int, task: str = "Fix the bug.") -> Prompt:
        """A prompt of `tokens` tokens, template included, that nobody has sent before; `task` is its end.

        Exact to the token where the server counts texts, once `learn` was told of one prompt; else near it.
        """
        self._made += 1
        system = f"{self._nonce}-{self._made}. You fix issues in a software repository with the tools that you have."
        wanted = max(1, tokens - self._template)
        characters, filler = round(wanted * self._characters_a_token), 0
        best: tuple[int, Prompt] | None = None
        for _ in range(_MOST_COUNTS):
            text = self._corpus.text(characters)
            prompt = Prompt(system, f"{text}\n#{_FILLER * filler}\n\n{task}")
            counted = await self._count(prompt.texts)
            if counted is None:
                return prompt
            missing = wanted - counted
            if best is None or abs(missing) < best[0]:
                best = abs(missing), Prompt(prompt.system, prompt.user, counted)
            if missing == 0:
                break
            if 0 <= filler + missing <= 2 * _MOST_FILLER:
                filler += missing
            else:  # to a little less, and then fill up
                self._characters_a_token = len(prompt.texts) / counted
                characters += round((missing + filler - _MOST_FILLER) * self._characters_a_token)
                characters, filler = max(1, characters), 0
        assert best is not None, "at least one was counted"
        return best[1]

    def learn(self, prompt: Prompt, tokens: int | None) -> None:
        """Take in how many tokens the server said that a prompt had."""
        if tokens is None:
            return
        if prompt.counted is None:
            self._characters_a_token = len(prompt.texts) / tokens
        else:
            self._template = tokens - prompt.counted


def agents_task(number: int) -> str:
    """The end of the prompt of one of several agents: as with `--attempts`, all that tells them apart."""
    hints = ("Look at the tests first.", "Look at the callers first.", "Look for the smallest change.")
    return f"Fix the bug. This is attempt {number}. {hints[number % len(hints)]}"


def next_turn(prompt: Prompt) -> Messages:
    """The messages of the turn that follows a prompt: some 250 tokens of an answer and of what a tool said to it."""
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
