"""Which files belong to the tests, and which decide how tests run, by their paths: the rows of `path_rules.toml`."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_FORMS = {
    "tests": ("tests", "{}"),
    "never_tests": ("never_tests", "{}"),
    "surroundings": ("surroundings", "{}"),
    "files": ("surroundings", "(^|/)({})$"),
    "folders": ("surroundings", "(^|/)({})/"),
}
"""The field of `Rules` for each field of a row, and the form of its patterns."""


@dataclass(frozen=True)
class Rules:
    """What the path of a file says."""

    tests: re.Pattern[str]
    surroundings: re.Pattern[str]
    never_tests: re.Pattern[str]

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests: a test, its helpers or its data."""
        return bool(self.tests.search(path) and not self.never_tests.search(path))

    def is_surrounding(self, path: str) -> bool:
        """Return whether a file decides which tests run, how they are built, or which libraries they use."""
        return bool(self.surroundings.search(path))


def _rules() -> dict[str, Rules]:
    """Return the rules by the names in the rows. No path matches a field that no row of a name has."""
    patterns: dict[str, dict[str, list[str]]] = defaultdict(lambda: {name: [] for name, _ in _FORMS.values()})
    for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["rules"]:
        for name in row.pop("runners").split():
            for kind, texts in row.items():
                known, form = _FORMS[kind]
                patterns[name][known] += map(form.format, texts)
    return {
        name: Rules(**{kind: re.compile("|".join(texts) or "(?!)") for kind, texts in kinds.items()})
        for name, kinds in patterns.items()
    }


RULES = _rules()
C, JS = RULES["ctest"], RULES["jest"]


def is_code(path: str) -> bool:
    """Return whether a file of JavaScript or TypeScript can contain tests: it is code, not declarations of types."""
    return bool(re.search(r"\.[cm]?[jt]sx?$", path)) and not re.search(r"\.d\.[cm]?ts$", path)
