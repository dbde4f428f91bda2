"""Find what an issue says about the fix of its instance: lines, names, files, and hidden tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePosixPath

from m3agent.evals.create.mine import MinedCommit
from m3agent.evals.create.statement import GIVEN_AWAY

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


def leaks_of(text: str, candidate: MinedCommit, errors: Mapping[str, str], at_base: AtBase) -> list[str]:
    """Return what a text gives away, each as words for an answer to its author.

    Names that the tests use are no leaks: without them nobody could pass the tests.

    Args:
        text: The issue.
        candidate: The commit that fixes it.
        errors: Error text of each failing test before the fix, by test id.
        at_base: Says which names the base has.
    """
    added, others = _lines(candidate.patch)
    told, kept = _plain(text), set(map(_plain, others))
    found = [
        f"the fix's line `{line[:MOST_SHOWN]}`"
        for line in dict.fromkeys(map(_plain, added))
        if len(line) >= GIVEN_AWAY and line not in kept and line in told
    ]
    known = set(WORD.findall("\n".join([*others, candidate.test_patch, *errors.values()])))
    words = set(WORD.findall(text))
    as_code = set(WORD.findall(" ".join(AS_CODE.findall(text))))
    only = (words & set(WORD.findall("\n".join(added)))) - known
    new = {word for word in only if word in as_code or CODE_WORD.search(word)}
    if new:
        found += [f"the name `{name}`, which only the fix has" for name in sorted(new - at_base(new))]
    for path in candidate.paths:
        name = PurePosixPath(path).name
        if path.endswith(TEXTS):
            continue
        if _names(text, path) or (name not in GENERIC and _names(text, name)):
            found.append(f"the file `{path}`")
    tests = sorted(name for name in candidate.test_names & words if "_" in name)
    return found + [f"the test `{name}`" for name in tests]


def _lines(patch: str) -> tuple[list[str], list[str]]:
    """Return the lines that a patch adds, and those that it removes or shows."""
    lines = [line for line in patch.splitlines() if not line.startswith(("+++", "---"))]
    added = [line[1:] for line in lines if line.startswith("+")]
    return added, [line[1:] for line in lines if line.startswith((" ", "-"))]


def _plain(text: str) -> str:
    return " ".join(text.split())


def _names(text: str, path: str) -> bool:
    return re.search(rf"(?<![\w/.-]){re.escape(path)}(?!\w)", text) is not None
