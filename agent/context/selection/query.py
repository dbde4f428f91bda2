"""Turn an issue into a query: its terms, names, and the files and modules that it mentions."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from m3agent.agent.context.languages import is_code, is_prose
from m3agent.agent.context.selection.imports import FOLDER_FILES, in_common
from m3agent.agent.context.selection.terms import code, tally_of, words

LONGEST_ISSUE = 200_000
"""Only this many characters of an issue are read; the rest of a longer one is seldom prose."""

# matches: a/b.py, C:\a\b.py, a/b.py:12; a.b.c; a::b
_MENTION = re.compile(r"[\w.@+:/\\-]+")
_LONGEST_MENTION = 300
_LINE_NUMBER = re.compile(r":\d.*")
_SEPARATORS = re.compile(r"[:/\\]+")


@dataclass(frozen=True)
class Query:
    """An issue in the form that files are compared with."""

    terms: dict[int, float]
    """Weight of each term, by the term's code."""
    names: frozenset[int]
    """Codes of complete words, which may be names of definitions."""
    files: tuple[tuple[str, ...], ...]
    """File names in the issue, as the parts of their paths."""
    modules: tuple[tuple[str, ...], ...]
    """Dotted names in the issue, as their parts."""


def read_issue(issue: str) -> Query:
    """Return the query for an issue; it is empty for an issue without words."""
    issue = issue[:LONGEST_ISSUE]
    found = words(issue)
    files: dict[tuple[str, ...], None] = {}
    modules: dict[tuple[str, ...], None] = {}
    for mention in dict.fromkeys(_MENTION.findall(issue)):
        parts = _parts(mention)
        if parts and (is_code(parts[-1]) or is_prose(parts[-1])):
            files[tuple(part.lower() for part in parts)] = None
        else:
            names_in = tuple(filter(None, ".".join(parts).lower().split(".")))
            if len(names_in) > 1:
                modules[names_in] = None
    return Query(
        {term: 1 + math.log(number) for term, number in tally_of(found).items()},
        frozenset(code(word.strip("_").casefold()) for word in found),
        tuple(files),
        tuple(modules),
    )


def _parts(mention: str) -> list[str]:
    if len(mention) > _LONGEST_MENTION:
        return []
    whole = _LINE_NUMBER.sub("", mention).strip(".:-")
    return [part for part in _SEPARATORS.split(whole) if part not in ("", ".", "..")]


def mentioned(paths: Sequence[str], query: Query) -> list[float]:
    """Return for each file how clearly the issue mentions it: from 0 to 1.

    The value is 1 for a unique mention, and 1/n if n files match. For a path in the issue, for example from a
    traceback, the last part must be the file's name; the files that share the most folders before it match. A
    dotted name matches the modules of its longest prefix that matches any.
    """
    values = [0.0] * len(paths)
    if not query.files and not query.modules:
        return values
    by_name: dict[str, list[tuple[int, list[str]]]] = {parts[-1]: [] for parts in query.files}
    by_stem: dict[str, list[tuple[int, list[str]]]] = {name: [] for parts in query.modules for name in parts}
    for index, path in enumerate(paths):
        parts = path.lower().split("/")
        if parts[-1] in by_name:
            by_name[parts[-1]].append((index, parts))
        if (module := _module(parts))[-1] in by_stem:
            by_stem[module[-1]].append((index, module))
    for file in query.files:
        _credit(values, by_name[file[-1]], file, least=1)
    for dotted in query.modules:
        for least in (2, 1):
            if any(
                _credit(values, by_stem[dotted[end - 1]], dotted[:end], least)
                for end in range(len(dotted), 0, -1)
            ):
                break
    return values


def _module(parts: list[str]) -> list[str]:
    *folders, name = parts
    stem = name.partition(".")[0]
    return folders if stem in FOLDER_FILES and folders else [*folders, stem]


def _credit(
    values: list[float], named: Sequence[tuple[int, list[str]]], parts: tuple[str, ...], least: int
) -> bool:
    """Credit a mention to the files whose last parts agree most with `parts`.

    At least `least` parts must agree. Return whether any file does.
    """
    shared = [(in_common(reversed(path), reversed(parts)), index) for index, path in named]
    most = max(shared, default=(0, 0))[0]
    if most < least:
        return False
    meant = [index for number, index in shared if number == most]
    for index in meant:
        values[index] = max(values[index], 1 / len(meant))
    return True
