"""Localise the fault: score lines by coverage spectrum, tracebacks and the text of the issue."""

import ast
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from m3agent.serving.embedded.source import FUNCTIONS, SourceFile, last_line
from m3agent.serving.embedded.syntax import PlainSource, SyntaxTree

Scores = dict[str, dict[int, float]]
"""Suspicion from 0 to 1, by file and line."""

DEEPEST_FRAME = 0.5
OTHER_FRAME = 0.15
NAMED_IN_ISSUE = 0.25
QUOTED_IN_ISSUE = 0.4
SAME_FUNCTION = 0.1
RAISED_HERE = 0.4
"""For the function in which a program failed: a Go program that panics does not say which lines ran."""
DEFINITION = 0.6
IMPORTED = 0.2
LINES = 700
"""Most lines with a score."""


def ochiai(failed: int, passed: int, all_failed: int) -> float:
    """Return the Ochiai coefficient of a line, by the numbers of failing and passing tests that ran it."""
    return failed / math.sqrt(all_failed * (failed + passed)) if failed and all_failed else 0.0


def issue_words(issue: str) -> set[str]:
    """Return the words of an issue text that look like identifiers."""
    quoted = " ".join(re.findall(r"`([^`]+)`", issue))
    words = set(re.findall(r"[A-Za-z_]\w+", quoted)) | set(re.findall(r"\b([A-Za-z_]\w+)\(", issue))
    return words | {
        word for word in re.findall(r"[A-Za-z_]\w+", issue) if "_" in word or re.search("[a-z][A-Z]", word)
    }


def quoted_code(issue: str) -> set[str]:
    """Return the pieces of code that an issue text quotes, if they are long enough to identify a place."""
    spans = re.findall(r"`([^`\n]{6,120})`", issue) + re.findall(r"'([^'\n]{6,120})'(?!\w)", issue)
    return {span.strip() for span in spans if re.search(r"\w\W+\w", span)}


def localise(spectrum: Mapping[str, Any], sources: Mapping[str, SourceFile], issue: str) -> Scores:
    """Score the lines of `sources` by the probe's spectrum.

    The base is Ochiai's coefficient. Higher scores get: the deepest project frame of each failure, functions
    that the issue names, and lines that it quotes. Definitions outside of functions are scored by the
    suspicion of the code that uses their names.
    """
    scores = _measured(spectrum, sources)
    words = issue_words(issue)
    for path, source in sources.items():
        _functions(source, scores[path], words, spectrum)
        _quoted(source.text, scores[path], issue)
    used = _names_used(sources, scores)
    for path, source in sources.items():
        _definitions(source, scores[path], used, spectrum["imported"].get(path, ()))
    return _normalised(scores)


def localise_plain(
    spectrum: Mapping[str, Any], sources: Mapping[str, PlainSource | SourceFile], issue: str
) -> Scores:
    """Score the lines of `sources`, which are not Python, as `localise` does.

    Functions are those that tree-sitter finds. A constant outside of functions is scored by the lines that name it.
    """
    scores = _measured(spectrum, sources)
    words = issue_words(issue)
    for path, source in sources.items():
        deepest = {line for *_, frames in spectrum["failed"] for own, line, _ in frames[-1:] if own == path}
        _quoted(source.text, scores[path], issue)
        _plain_functions(path, source.text, scores[path], words, deepest)
    _plain_definitions({path: source.text.split("\n") for path, source in sources.items()}, scores)
    return _normalised(scores)


def _plain_functions(
    path: str, text: str, lines: dict[int, float], words: set[str], deepest: set[int]
) -> None:
    """Raise the scores of the functions in which a test failed, and of those that the issue names."""
    try:
        functions = SyntaxTree(path, text).functions()
    except SyntaxError:
        return
    for name, (first, last) in [(name, span) for name, spans in functions.items() for span in spans]:
        span = range(first, last + 1)
        if deepest.intersection(span):
            for line in span:
                lines[line] = lines.get(line, 0.0) + RAISED_HERE
        if name in words:
            for line in lines.keys() & set(span):
                lines[line] += NAMED_IN_ISSUE


def _plain_definitions(rows: Mapping[str, list[str]], scores: Scores) -> None:
    """Score the lines that define what the scored lines name."""
    used: dict[str, float] = {}
    for path, lines in scores.items():
        for line, score in lines.items():
            for name in re.findall(r"\w+", "".join(rows[path][line - 1 : line])):
                used[name] = max(used.get(name, 0.0), score)
    for path, texts in rows.items():
        for number, text in enumerate(texts, start=1):
            defined = re.match(r"(?:export )?(?:const|var|let)\s+(\w+)\b.*=|\t(\w+)\b[^:({]*(?:=|:\s)", text)
            value = DEFINITION * used.get((defined[1] or defined[2]) if defined else "", 0.0)
            if value:
                scores[path].setdefault(number, value)


def _measured(spectrum: Mapping[str, Any], paths: Iterable[str]) -> Scores:
    """Return the lines' Ochiai coefficients, raised for the frames of failures."""
    scores: Scores = {path: {} for path in paths}
    all_failed = spectrum["traced"][0]
    for path, rows in spectrum["lines"].items():
        if path in scores:
            scores[path] = {line: ochiai(failed, passed, all_failed) for line, failed, passed, _ in rows}
    failures = spectrum["failed"]
    for *_, frames in failures:
        own = [(path, line) for path, line, _ in frames if path in scores]
        for path, line in dict.fromkeys(own):
            bonus = DEEPEST_FRAME if (path, line) == own[-1] else OTHER_FRAME
            scores[path][line] = scores[path].get(line, 0.0) + bonus / len(failures)
    return scores


def _quoted(text: str, lines: dict[int, float], issue: str) -> None:
    """Raise the score of lines that the issue quotes."""
    quotes = quoted_code(issue)
    for number, line in enumerate(text.split("\n"), start=1):
        if number in lines and any(quote in line for quote in quotes):
            lines[number] += QUOTED_IN_ISSUE


def _functions(
    source: SourceFile, lines: dict[int, float], words: set[str], spectrum: Mapping[str, Any]
) -> None:
    deepest = set[int]()
    for *_, frames in spectrum["failed"]:
        deepest.update([line for path, line, _ in frames if path == source.path][-1:])
    for node in ast.walk(source.tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            span = range(node.lineno, last_line(node) + 1)
            bonus = NAMED_IN_ISSUE if node.name in words else 0.0
            if isinstance(node, ast.ClassDef):
                bonus /= 4
            elif deepest.intersection(span):
                bonus += SAME_FUNCTION
            for line in lines.keys() & set(span):
                lines[line] += bonus


def _names_used(sources: Mapping[str, SourceFile], scores: Scores) -> dict[str, float]:
    """Map each name that suspected code reads to the highest suspicion of the lines that read it."""
    used: dict[str, float] = {}
    for path, source in sources.items():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Name | ast.Attribute) and node.lineno in scores[path]:
                name = node.id if isinstance(node, ast.Name) else node.attr
                used[name] = max(used.get(name, 0.0), scores[path][node.lineno])
    return used


def _definitions(
    source: SourceFile, lines: dict[int, float], used: Mapping[str, float], imported: Iterable[int]
) -> None:
    """Score statements of modules and classes; every test runs these when it imports them."""
    known = set(imported)
    for statement in source.statements():
        if source.function(statement) is not None or isinstance(statement, ast.ClassDef):
            continue
        first, last = source.header(statement)
        if isinstance(statement, FUNCTIONS):
            if statement.name in used and first not in lines:
                lines[first] = DEFINITION * used[statement.name]
            continue
        names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
        defined = (used.get(node.id, 0.0) for node in names if isinstance(node.ctx, ast.Store))
        value = max(defined, default=0.0) * DEFINITION
        if value or known.intersection(range(first, last + 1)):
            lines[first] = max(lines.get(first, 0.0), value or IMPORTED)


def _normalised(scores: Scores) -> Scores:
    highest = max((score for lines in scores.values() for score in lines.values()), default=0.0)
    if not highest:
        return {}
    every = ((score, path, line) for path, lines in scores.items() for line, score in lines.items())
    kept: Scores = {}
    for score, path, line in sorted(every, key=lambda item: (-item[0] / highest, item[1:]))[:LINES]:
        kept.setdefault(path, {})[line] = score / highest
    return kept
