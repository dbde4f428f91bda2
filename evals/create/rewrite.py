"""Let a language model rewrite a commit as an issue that tells symptoms only."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from m3agent.evals.create.mine import MinedCommit
from m3agent.evals.create.statement import GIVEN_AWAY, TERSE, lines_of
from m3agent.sandbox.store.git import TreeStore
from m3agent.serving.client.client import Client
from m3agent.serving.client.messages import Turn
from m3agent.serving.wire import ThinkingMode
from m3agent.util.sanitize import printable_line

TRIES = 2
SECONDS = 900.0
"""Time limit of one answer."""
MOST_SENT = 30_000
"""Most characters of each part of a commit that the model gets."""
MOST_TOLD = 10
"""Most leaks that the model is told of."""
TASK = """\
You get a commit to a Python project: its message, its change, its new tests, and how these tests fail without the change.
Write the issue that a user of the project would have opened before the commit.

- Begin with a line that is the title. Then describe the problem in Markdown, in a user's words.
- Tell only symptoms: what was done, what happened, and what was expected. If the commit adds a feature, say what is wanted
  and how it should behave.
- The tests are hidden from the reader, and a solution must pass them. So mention the names, values and messages that the
  tests need, if nobody could guess them.
- Do not say what is wrong inside the code, where it is, or how to repair it. Quote no line of the change. Name no file, no
  test, and nothing else that only the change introduces.
- Mention no commit, issue, pull request or person.

Answer with the issue and nothing else."""
AGAIN = """\
The reader must not see this:

{faults}

Write the whole issue again without it, and answer with the issue and nothing else."""
MOST_SHOWN = 100  # characters of a line
WORD = re.compile(r"[A-Za-z_]\w{2,}")
CODE_WORD = re.compile(r"_|\d|[a-z][A-Z]")
"""Found in a word that no English text contains by accident."""
AS_CODE = re.compile(r"```.*?```|`[^`\n]+`|\w+(?=\s?[(=])|(?<=\.)\w+", re.DOTALL)
"""Passages of a text in which any word counts as a name."""
TEXTS = (".md", ".rst", ".txt")
GENERIC = ("__init__.py", "__main__.py")

AtBase = Callable[[Collection[str]], set[str]]
"""Returns which of some names the base has."""


@dataclass(frozen=True)
class Rewriter:
    """Rewrites commits as issues."""

    client: Client
    store: TreeStore
    """Has the bases of the commits."""
    thinking: ThinkingMode
    say: Callable[[str], None]
    """Receives a note if an issue is not used."""

    async def __call__(self, candidate: MinedCommit, errors: Mapping[str, str]) -> str | None:
        """Return the issue. An issue that gives the fix away is sent back once.

        Returns:
            None if the second issue cannot be used either.

        Raises:
            ModelServerError: There was no answer.
            GitFailed: The base cannot be read.
        """
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": TASK},
            {"role": "user", "content": _described(candidate, errors)},
        ]
        faults: list[str] = []
        for _ in range(TRIES):
            turn = await self._ask(messages)
            text = f"{turn.message.text.strip()}\n"
            faults = await asyncio.to_thread(self._faults, turn, text, candidate, errors)
            if not faults:
                return text
            listed = "\n".join(f"- {fault}" for fault in faults[:MOST_TOLD])
            messages += [
                turn.message.to_request(self.client.reasoning_field),
                {"role": "user", "content": AGAIN.format(faults=listed)},
            ]
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        self.say(f"the model's issue is not used: it has {printable_line(faults[0], 120)}{more}")
        return None

    def _faults(self, turn: Turn, text: str, candidate: MinedCommit, errors: Mapping[str, str]) -> list[str]:
        if turn.finish != "stop":
            return ["no end: the answer was cut off"]
        if len(text.split()) < TERSE:
            return [f"fewer than {TERSE} words, which describe no problem"]

        def at_base(names: Collection[str]) -> set[str]:
            wanted = re.compile(rb"\b(?:%s)\b" % b"|".join(name.encode() for name in names))
            code = [entry.sha for entry in self.store.list_tree(candidate.base) if entry.path.endswith(".py")]
            return {found.decode() for blob in self.store.each_blob(code) for found in wanted.findall(blob)}

        return leaks_of(text, candidate, errors, at_base)

    async def _ask(self, messages: list[dict[str, Any]]) -> Turn:
        deadline = time.monotonic() + SECONDS
        answer = self.client.complete(
            messages, [], tool_choice="none", thinking=self.thinking, deadline=deadline
        )
        async with aclosing(answer):
            async for item in answer:
                if isinstance(item, Turn):
                    return item
        raise AssertionError("an answer ends in a turn or an error")


def _described(candidate: MinedCommit, errors: Mapping[str, str]) -> str:
    failures = "\n\n".join(f"{ident}\n{text}" for ident, text in sorted(errors.items()))
    parts = {
        "Message": "\n\n".join(candidate.messages),
        "Change": candidate.patch,
        "Tests": candidate.test_patch,
        "Failures without the change": failures,
    }
    return "\n\n".join(f"# {title}\n\n{text[:MOST_SENT]}" for title, text in parts.items())


def leaks_of(text: str, candidate: MinedCommit, errors: Mapping[str, str], at_base: AtBase) -> list[str]:
    """Return what a text gives away (lines, names, files, hidden tests), each as words for an answer to its author.

    Names that the tests use are no leaks: without them nobody could pass the tests.

    Args:
        errors: Error text of each failing test before the fix, by test id.
        at_base: Says which names the base has.
    """
    added, others = lines_of(candidate.patch)
    told, kept = _plain(text), set(map(_plain, others))
    leaks = [
        f"the fix's line `{line[:MOST_SHOWN]}`"
        for line in dict.fromkeys(map(_plain, added))
        if len(line) >= GIVEN_AWAY and line not in kept and line in told
    ]
    words = set(WORD.findall(text))
    known = set(WORD.findall("\n".join([*others, candidate.test_patch, *errors.values()])))
    as_code = set(WORD.findall(" ".join(AS_CODE.findall(text))))
    only = (words & set(WORD.findall("\n".join(added)))) - known
    if new := {word for word in only if word in as_code or CODE_WORD.search(word)}:
        leaks += [f"the name `{name}`, which only the fix has" for name in sorted(new - at_base(new))]
    leaks += [f"the file `{path}`" for path in candidate.paths if _tells_file(text, path)]
    tests = sorted(name for name in candidate.test_names & words if "_" in name)
    return leaks + [f"the test `{name}`" for name in tests]


def _tells_file(text: str, path: str) -> bool:
    name = PurePosixPath(path).name
    names = {path} if name in GENERIC else {path, name}
    pattern = rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, names))})(?!\w)"
    return not path.endswith(TEXTS) and re.search(pattern, text) is not None


def _plain(text: str) -> str:
    return " ".join(text.split())
