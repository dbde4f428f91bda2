"""Find the outcomes of a run that belong to a test name in a row.

The names in rows come from official log parsers. For Python, they can be node ids, ids cut at the first blank, ids whose
parameter is only the end of a path, bare function names, and junk that is not a test.

For other languages, they are m3agent's ids, or the names that the language's own runner prints, without a file. There, each
name must belong to exactly one test (`ids_of`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from m3agent.tools.runners.suites import without_suite
from m3agent.util.sanitize import printable_line

PARAMETER = re.compile(r"(.*?)\[(.*)\]", re.DOTALL)
JUNK = re.compile(r"\[?\d*%?\]?")
"""Parts of progress lines that official parsers mistake for tests, such as `[` and `[100%]`."""


def is_junk(name: str) -> bool:
    """Return whether a name in a row is not a test."""
    return JUNK.fullmatch(name.strip()) is not None


class Outcomes:
    """Outcomes by test id, with lookup by the names that rows use.

    Args:
        ids: The ids of the names that are not ids themselves, for another language than Python; None for Python.
    """

    def __init__(self, outcomes: Mapping[str, str], ids: Mapping[str, str] | None = None) -> None:
        self._outcomes = outcomes
        self._ids = ids
        self._names: dict[str, list[str]] = {}
        for ident in outcomes if ids is None else ():
            for name in _names(ident):
                self._names.setdefault(name, []).append(ident)

    def passed(self, name: str) -> bool:
        """Return whether the name matches at least one test and all matching tests passed."""
        idents = self.idents(name)
        return bool(idents) and all(self._outcomes[ident] in {"passed", "xfailed"} for ident in idents)

    def idents(self, name: str) -> list[str]:
        """Return the test ids that a name matches."""
        if self._ids is not None:
            ident = self._ids.get(name, name)
            return [ident] if ident in self._outcomes else []
        if name in self._outcomes:
            return [name]
        if name in self._names:
            return self._names[name]
        if name.count("[") > name.count("]"):  # cut off inside its parameter
            return [ident for ident in self._outcomes if ident.startswith(name)]
        return []

    def counts(self, name: str) -> bool:
        """Return whether a name is that of a test, and not junk of a parser of pytest's output."""
        return self._ids is not None or not is_junk(name)


def failed_ids(names: Iterable[str], outcomes: Outcomes) -> tuple[int, list[str]]:
    """Return the number of names that passed, and the names that did not. Junk is not counted."""
    wanted = [name for name in names if outcomes.counts(name)]
    failed = [name for name in wanted if not outcomes.passed(name)]
    return len(wanted) - len(failed), failed


def _names(ident: str) -> set[str]:
    """Return the other names under which a row may list a node id."""
    names = {ident.split()[0] if ident.split() else ident}
    path, _, function = ident.rpartition("::")
    if match := PARAMETER.fullmatch(ident):
        main, option = match.groups()
        if option.startswith("/") and not option.startswith("//") and "*" not in option:
            names.add(f"{main}[/{option.split('/')[-1]}]")
    if path:
        names.add(function)
        names.add(function.partition("[")[0])
        # unittest's form: `test_x (package.module.Class)`
        file, *classes = path.split("::")
        dotted = ".".join([file.removesuffix(".py").replace("/", "."), *classes])
        names.add(f"{function} ({dotted})")
    return names - {ident}


_BETWEEN = re.compile(r"\s*(?:::|[>\u203a#/.])\s*|\s+")
"""What separates groups, tests and words in the names of tests: runners, their reporters and parsers differ in it."""
_BORDER = re.compile(r"\s*(?:::|[>\u203a#/.])\s*")
"""What separates only groups and tests."""
_DURATION = re.compile(r"\s*[(\[]\d+(?:\.\d+)?\s*m?s[)\]]$")


def ids_of(names: Iterable[str], idents: Collection[str]) -> dict[str, str]:
    """Return the id of each name in a row of another language than Python.

    A name is an id, else the name of exactly one test, with its groups, else that of exactly one test without its outer
    groups. A duration at its end does not count, and all separators are alike.

    Args:
        idents: The ids of a run with the reference.

    Raises:
        ValueError: A name belongs to no test or to several, or two names belong to the same one.
    """
    whole, inner = _by_form(idents)
    ids = {}
    for name in names:
        form = _form(_DURATION.sub("", name))
        fits = [name] if name in idents else whole.get(form) or inner.get(form) or []
        shown = printable_line(name, 200)
        if not fits:
            raise ValueError(f"no test with the reference patch has the name {shown}")
        if len(fits) > 1:
            raise ValueError(f"the name {shown} fits several tests, such as {' and '.join(sorted(fits)[:2])}")
        ids[name] = fits[0]
    times = Counter(ids.values())
    twice = [name for name, ident in ids.items() if times[ident] > 1]
    if twice:
        same = [printable_line(name, 200) for name in twice if ids[name] == ids[twice[0]]]
        raise ValueError(f"the names {' and '.join(same[:2])} fit the same test")
    return ids


def _by_form(idents: Collection[str]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the ids by the forms of their whole names, and by those without outer groups."""
    whole, inner = dict[str, list[str]](), dict[str, list[str]]()
    for ident in idents:
        first, *others = _forms(ident)
        for known, forms in ((whole, first), (inner, set().union(*others))):
            for form in forms - {""}:
                known.setdefault(form, []).append(ident)
    return whole, inner


def _forms(ident: str) -> Iterator[set[str]]:
    """Yield the forms of an id's whole name, with and without its file, and then those without its outer groups."""
    file, _, name = without_suite(ident).partition("::")
    yield {_form(name), _form(f"{file} {name}")}
    for border in _BORDER.finditer(name):
        yield {_form(name[border.end() :])}


def _form(name: str) -> str:
    return " ".join(filter(None, _BETWEEN.split(name)))
