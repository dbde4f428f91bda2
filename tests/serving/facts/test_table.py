"""The tables of facts: each row is read, and a malformed one is named in one sentence."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pytest

from m3agent.serving.check.scrape import PanelRow
from m3agent.serving.client.models import ModelRow
from m3agent.serving.errors import TableError
from m3agent.serving.facts.table import (
    TABLES,
    Condition,
    filled,
    parse_rows,
    raw_rows,
    raw_text,
    rows,
    within,
)
from m3agent.serving.launch.engine_faults import EndRow, FaultRow
from m3agent.serving.launch.load_signs import Sign
from m3agent.serving.plan.engines import EngineRow
from m3agent.serving.plan.gpus import ArchitectureRow, Gpu
from m3agent.serving.plan.known_issues import KnownIssue, VersionRow
from m3agent.serving.plan.overlay import ChangeRow
from m3agent.serving.plan.recipe import Recipe
from m3agent.serving.plan.remarks import Remark

KINDS: dict[str, Any] = {
    "engines": EngineRow,
    "architectures": ArchitectureRow,
    "gpus": Gpu,
    "versions": VersionRow,
    "issues": KnownIssue,
    "recipes": Recipe,
    "changes": ChangeRow,
    "signs": Sign,
    "faults": FaultRow,
    "ends": EndRow,
    "models": ModelRow,
    "panels": PanelRow,
    "remarks": Remark,
}


def test_the_kinds_are_those_of_all_tables() -> None:
    assert tuple(KINDS) == TABLES


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_read_and_says_where_it_comes_from_and_when(table: str) -> None:
    found = rows(KINDS[table], table)
    assert len(found) == len(raw_rows(table, raw_text(table))) == raw_text(table).count(f"\n[[{table[:-1]}]]")
    assert all(row.source and date(2026, 11, 1) <= row.date for row in found)


# table, what is replaced in its text, what stands there instead, and what the sentence must say
MALFORMED = {
    "a wrong value": (
        "issues",
        'severity = "warn"',
        'severity = "maybe"',
        ("(others-gpus)", "field severity: "),
    ),
    "a missing field": ("issues", "remedy = ", "# ", ("row 1 (parameters-230b)", "field remedy: ")),
    "a misspelt field": ("issues", "effect = ", "efect = ", ("has a field efect; the fields are", "remedy")),
    "an unknown setting": ("issues", "{ dp = ", "{ ranks = ", ("(data-parallel-prefix)", "no setting ranks")),
    "an unknown test": ("issues", "{ over = 1 }", "{ above = 1 }", ("no test above for dp", "over, least")),
    "a wrong range": ("issues", '"<0.24"', '"0.24"', ("'0.24' is not a range of versions",)),
    "a wrong date": ("gpus", "date = 2026-11-21", 'date = "lately"', ("row 2 (H200)", "field date: ")),
    "a number as text": (
        "gpus",
        "usable_gib = 139.8",
        'usable_gib = "much"',
        ("(H200)", "field usable_gib: "),
    ),
    "an open quote": (
        "recipes",
        "--enable-auto-tool-choice\n",
        "--enable 'x\n",
        ("field argv: ", "No closing"),
    ),
    "a command in parts": (
        "recipes",
        "argv = '''",
        "argv = ['a']\nenv = '''",
        ("field argv: ", "is one text"),
    ),
    "a wrong pattern": (
        "faults",
        "pattern = 'invalid (",
        "pattern = 'invalid ((",
        ("row 1 (", "field pattern: "),
    ),
    "an unknown value": ("faults", "{nearest}", "{nearby}", ("{nearby} is no value; the values are name",)),
    "an unknown function": ("faults", 'reckon = "parser"', 'reckon = "guess"', ("no function guess",)),
    "an unknown phase": ("signs", 'phase = "weights"', 'phase = "heavy"', ("no phase heavy", "downloading")),
    "an unknown fact": ("signs", "(?P<version>", "(?P<age>", ("no fact age", "kv_tokens")),
    "an unknown signal": ("ends", '"SIGBUS"', '"SIGCAR"', ("field signals: ", "no signal SIGCAR")),
    "no TOML": ("versions", 'versions = ">=0.32"', "versions = >=0.32", ("it is not TOML (", "line ")),
    "something else": ("versions", "[[version]]", "[[row]]", ("every row begins with [[version]]",)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_row_is_one_sentence_with_file_row_field_and_remedy(name: str) -> None:
    table, old, new, parts = MALFORMED[name]
    text = raw_text(table)
    assert old in text
    with pytest.raises(TableError) as error:
        parse_rows(KINDS[table], table, text.replace(old, new, 1))
    said = str(error.value)
    assert said.startswith(f"serving/facts/{table}.toml: ")
    assert said.endswith("; correct it there, or install m3agent again to get the original")
    assert "\n" not in said
    assert all(part in said for part in parts), said


@pytest.mark.parametrize("template", ["{gpu.nam}", "{gpu:,}"])
def test_a_sentence_that_cannot_be_filled_in_is_named_with_its_table(template: str) -> None:
    with pytest.raises(TableError, match=f"^serving/facts/remarks.toml: '{re.escape(template)}' cannot be"):
        filled("remarks", template, {"gpu": rows(Gpu, "gpus")[0]})


@pytest.mark.parametrize(
    ("wanted", "fitting", "other"),
    [
        (4, 4, 8),
        ("", None, "x"),
        (["a", "b"], "b", "c"),
        ({"not": "a"}, "b", "a"),
        ({"not": ["a", "b"]}, None, "b"),
        ({"not": ""}, "a", None),
        ({"over": 4}, 5, 4),
        ({"over": 4}, 5, None),
        ({"least": 4}, 4, 3),
        ({"most": 4}, 4, 5),
        ({"most": 4}, 4, None),
        ({"has": "fp8"}, "fp8_e4m3", "auto"),
        ({"over": 1, "most": 4}, 4, 5),
    ],
)
def test_conditions(wanted: object, fitting: object, other: object) -> None:
    assert Condition({"x": wanted}, ["x"]).holds({"x": fitting})
    assert not Condition({"x": wanted}, ["x"]).holds({"x": other})


def test_a_condition_on_variables_names_them() -> None:
    condition = Condition({"env": {"A": "1", "B": {"not": "2"}}}, ["env"])
    assert condition.holds({"env": {"A": "1"}})
    assert not condition.holds({"env": {"A": "1", "B": "2"}})
    assert not condition.holds({"env": {}})


@pytest.mark.parametrize(
    ("version", "inside"),
    [("0.24.9", False), ("0.25", True), ("0.27.1rc1", True), ("0.27.1+cu130", False), (None, False)],
)
def test_ranges_of_versions(version: str | None, inside: bool) -> None:
    assert within(version, ">=0.25,<0.27.1") is inside


def test_each_table_explains_its_fields() -> None:
    for table, kind in KINDS.items():
        head = raw_text(table).partition(f"\n[[{table[:-1]}]]")[0]
        fields = set(kind.__dataclass_fields__) - {"known"}
        assert all(re.search(rf"\b{name}\b", head) for name in fields), (table, fields)
