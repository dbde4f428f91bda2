"""Which instances are bug reports, and which are features."""

from __future__ import annotations

from dataclasses import replace

import pytest

from m3agent.evals.create.mine import score
from m3agent.evals.create.statement import Kind, kind_of
from tests.evals.create.test_create_statement import PLAIN

WRONG = "E   assert 3 == 5"
NO_NAME = "E   AttributeError: module 'shop' has no attribute 'totals'"
NO_ARGUMENT = "E   TypeError: total() got an unexpected keyword argument 'tax'"
NO_MODULE = "E   ModuleNotFoundError: No module named 'shop.tax'"
OTHER_TYPE = "E   TypeError: unsupported operand type(s) for +: 'int' and 'str'"


@pytest.mark.parametrize(
    ("message", "errors", "kind"),
    [
        ("Fix the sum of totals\n\nFixes #12", [WRONG], "bug"),
        ("Fix the sum of totals", [NO_NAME, WRONG], "bug"),
        ("fix: totals crash with text", [OTHER_TYPE], "bug"),
        ("Add support for taxes", [NO_MODULE], "feature"),
        ("feat: taxes", [NO_ARGUMENT, NO_NAME], "feature"),
        ("Totals with taxes", [NO_ARGUMENT], "feature"),
        ("Allow several baskets", [WRONG], "feature"),
        ("Fix a bug: totals have taxes", [NO_ARGUMENT], "unclear"),
        ("Round totals", [WRONG], "unclear"),
        ("Round totals", [], "unclear"),
    ],
)
def test_words_and_errors_decide(message: str, errors: list[str], kind: Kind) -> None:
    candidate = replace(PLAIN, messages=(message,), score=score([message]))
    assert kind_of(candidate, {f"t.py::test_{number}": text for number, text in enumerate(errors)}) == kind
