"""The tables of facts: each row is read, and a malformed one is named in one sentence."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import date
from pathlib import Path

import pytest

from m3agent.cli.facts import kinds
from m3agent.serving.errors import TableError
from m3agent.serving.facts.table import (
    TABLES,
    Condition,
    filled,
    parse_rows,
    raw_rows,
    raw_text,
    rows,
    table_error,
    within,
)
from m3agent.serving.plan.gpus import Gpu
from m3agent.serving.plan.known_issues import Setup

KINDS = kinds()


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_read_and_says_where_it_comes_from_and_when(table: str) -> None:
    found = rows(KINDS[table], table)
    assert len(found) == len(raw_rows(table, raw_text(table))) == raw_text(table).count(f"\n[[{table[:-1]}]]")
    assert all(row.source and date(2026, 11, 1) <= row.date for row in found)


# table, what is replaced in its text (all of a line after `field = .*`), what stands there instead, and what the sentence must say
MALFORMED = {
    "a wrong value": (
        "issues",
        'severity = "warn"',
        'severity = "maybe"',
        ("(others-gpus)", "field severity: "),
    ),
    "a missing field": ("issues", "remedy = ", "# ", ("(parameters-230b)", "field remedy: ")),
    "a misspelt field": (
        "issues",
        "effect = ",
        "efect = ",
        ("field efect: there is no field efect; did you mean effect? The fields are source, date",),
    ),
    "an unknown setting": (
        "issues",
        "{ dp = ",
        "{ ranks = ",
        ("(data-parallel-prefix)", "field when, entry 1: there is no setting ranks"),
    ),
    "an unknown test": (
        "issues",
        "{ over = 1 }",
        "{ above = 1 }",
        ("dp: there is no test above; did you mean over? The tests are not, over, least",),
    ),
    "a wrong range": ("issues", 'versions = "<', 'versions = "', ("' is not a range of versions",)),
    "a wrong date": (
        "gpus",
        "date = .*",
        'date = "lately"',
        ('field date: "lately" is no date; write it like',),
    ),
    "a number as text": (
        "gpus",
        "usable_gib = .*",
        'usable_gib = "139.8"',
        ('(H100-80), field usable_gib: "139.8" is no number; write digits without quotes',),
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
        ("(", "field pattern: "),
    ),
    "an unknown value": ("faults", "{nearest}", "{nearby}", ("{nearby} is no value; the values are name",)),
    "an unknown function": ("faults", 'reckon = "parser"', 'reckon = "guess"', ("no function guess",)),
    "an unknown phase": ("signs", 'phase = "weights"', 'phase = "heavy"', ("no phase heavy", "downloading")),
    "an unknown fact": ("signs", "(?P<version>", "(?P<age>", ("no fact age", "kv_tokens")),
    "an unknown signal": ("ends", '"SIGBUS"', '"SIGCAR"', ("field signals: ", "no signal SIGCAR")),
    "an example that does not fit": (
        "issues",
        "example = .*",
        'example = { engine = "sglang" }',
        ("(parameters-230b), field example: the row does not apply to it",),
    ),
    "a neighbour that is no other": (
        "issues",
        "unlike = .*",
        "unlike = {}",
        ("field unlike: with these changes the row still applies",),
    ),
    "a setting in an example": (
        "issues",
        "unlike = .*",
        'unlike = { verion = "0.23.0" }',
        ("field unlike: there is no setting verion; did you mean version?",),
    ),
    "a range upside down": (
        "issues",
        'versions = "<',
        'versions = ">=9,<',
        ("field when, entry 1: the range >=9,<", " is upside down: no version is from 9 to "),
    ),
    "a range of numbers upside down": (
        "issues",
        "{ over = 4 }",
        "{ least = 8, most = 4 }",
        ("draft_kv_heads: the range is upside down, nothing is from 8 to 4",),
    ),
    "a range of pip upside down": (
        "versions",
        "versions = .*",
        'versions = ">=0.32,<0.30"',
        ("(", "field versions: the range >=0.32,<0.30 is upside down"),
    ),
    "prices upside down": (
        "gpus",
        "spot = .*",
        "spot = 50",
        ("(H100-80), field spot: 50.0 is more than on_demand",),
    ),
    "a negative price": ("gpus", "spot = .*", "spot = -1.82", ("(H100-80), field spot: -1.82 is no number",)),
    "a price of nothing": ("gpus", "spot = .*", "spot = nan", ("(H100-80), field spot: nan is no number",)),
    "a price from nowhere": ("gpus", "prices = ", "# ", ("(H100-80), field prices: it says where",)),
    "a source of no price": (
        "gpus",
        "spot = .*",
        'spot_prices = "a list"',
        ("(H100-80), field spot_prices: it says where spot comes from; give both",),
    ),
    "no memory": ("gpus", "usable_gib = .*", "usable_gib = 0", ("field usable_gib: 0.0 is not within",)),
    "memory in MiB": (
        "gpus",
        "usable_gib = .*",
        "usable_gib = 183000",
        ("(H100-80), field usable_gib: 183000.0 is not within 40 to 600: give GiB of one GPU",),
    ),
    "too little memory": ("gpus", "usable_gib = .*", "usable_gib = 17.83", ("17.83 is not within",)),
    "a price of a hundred GPUs": ("gpus", "on_demand = .*", "on_demand = 484", ("give dollars for an hour",)),
    "no GPUs in a machine": ("gpus", "node = .*", "node = 0", ("(GB200), field node: 0 is not within",)),
    "a price of one token": ("models", "prompt = .*", "prompt = 3e-7", ("dollars for a million tokens",)),
    "a window in thousands": ("models", "window = .*", "window = 512", ("512 is not within", "tokens")),
    "a factor of nothing": ("models", "times = .*", "times = 0.5", ("field times: 0.5 is not within 1 to",)),
    "a misspelt GPU in a condition": (
        "issues",
        'gpu = "H20-96", text_only',
        'gpu = "H2096", text_only',
        ("field when, entry 1: gpu: there is no GPU H2096; did you mean H20-96? The GPUs are H100-80",),
    ),
    "a misspelt GPU in an example": (
        "issues",
        '{ gpu = "A100-80", version',
        '{ gpu = "A10080", version',
        ("field example, gpu: there is no GPU A10080; did you mean A100-80?",),
    ),
    "a doubled name": ("gpus", '"H20-96"', '"H200"', ("(H200), field name: line ", " has H200 too; rename")),
    "a doubled alias": ("gpus", '"H200-141"', '"H100"', ("(H200), field aliases: line ", " has H100 too")),
    "a misspelt architecture": (
        "gpus",
        '"hopper"',
        '"hoper"',
        (
            "(H100-80), field architecture: there is no value hoper; did you mean hopper? The values are ampere",
        ),
    ),
    "a misspelt architecture in a condition": (
        "issues",
        'architecture = { not = "blackwell" }',
        'architecture = { not = "blackwel" }',
        ("field when, entry 1: architecture: there is no value blackwel; did you mean blackwell?",),
    ),
    "a misspelt engine": (
        "recipes",
        'engine = "vllm"',
        'engine = "vlm"',
        ("field engine: there is no value vlm",),
    ),
    "a misspelt engine of a panel": ("panels", 'engine = "vllm"', 'engine = "vlm"', ("did you mean vllm?",)),
    "a misspelt engine's row": ("engines", 'name = "vllm"', 'name = "vlm"', ("did you mean vllm?",)),
    "a misspelt engine of a change": (
        "changes",
        '"vllm"',
        '"vlm"',
        ("field when, entry 1: engine: there is no",),
    ),
    "a misspelt precision": (
        "architectures",
        '["mxfp8"]',
        '["mxpf8"]',
        ("(ampere), field precisions, entry 1: there is no value mxpf8; did you mean mxfp8?",),
    ),
    "a misspelt value of a remark": (
        "remarks",
        '"idle"',
        '"idel"',
        ("host: there is no value idel; did you",),
    ),
    "a text for a number in a condition": (
        "issues",
        "{ over = 4 }",
        '{ over = "4" }',
        ('"4" is no whole number',),
    ),
    "a number for a text": (
        "models",
        'name = "MiniMax-M3"',
        "name = 3",
        ("field name: 3 is no text; write it in",),
    ),
    "a text for a list": (
        "gpus",
        '["H100"]',
        '"H100"',
        ('field aliases: "H100" is no list; write it in brackets',),
    ),
    "a word for true": ("gpus", "measured = true", 'measured = "yes"', ("neither true nor false",)),
    "a missing source": ("models", "source = ", "# ", ("(MiniMax-M3), field source: it is missing",)),
    "an empty source": ("ends", "source = .*", 'source = " "', ("field source: it is empty",)),
    "a missing date": ("models", "date = ", "# ", ("(MiniMax-M3), field date: it is missing",)),
    "a table for no text": ("models", "prompt = .*", "prompt = {}", ("field prompt: {} is no number",)),
    "no value": ("architectures", "precisions = .*", "precisions = []", ("field precisions: it is empty",)),
    "a version for a range": (
        "architectures",
        "fp8_index = .*",
        'fp8_index = "0.32"',
        ("(hopper), field fp8_index: '0.32' is not a range of versions such as",),
    ),
    "a layout that M3 cannot have": (
        "architectures",
        "sglang_tp = .*",
        "sglang_tp = [3]",
        ("(hopper), field sglang_tp: M3 cannot be spread over 3 GPUs",),
    ),
    "another vendor's architecture": (
        "gpus",
        "vendor = .*",
        'vendor = "amd"',
        ("(H100-80), field vendor: amd has no GPUs of the architecture hopper",),
    ),
    "a dear cache": ("models", "cached = .*", "cached = 5", ("field cached: 5.0 is more than prompt",)),
    "a field that a value lacks": (
        "remarks",
        "wish.context",
        "wish.contxt",
        ("field said: there is no field {wish.contxt}; did you mean wish.context?",),
    ),
    "no quotes": (
        "versions",
        "versions = .*",
        "versions = >=0.32",
        (": line ", ": TOML cannot read 'versions = >=0.32'; write a text in straight quotes at both ends"),
    ),
    "one quote": (
        "gpus",
        'vendor = "nvidia"',
        'vendor = nvidia"',
        (" (H100-80): TOML cannot read 'vendor = nvidia\"'; write a text",),
    ),
    "a comma in a number": (
        "gpus",
        "on_demand = .*",
        "on_demand = 4,84",
        (" (H100-80): TOML cannot read 'on_demand = 4,84'; write a number with a point, such as 4.84",),
    ),
    "a day that does not exist": ("gpus", "date = .*", "date = 2026-13-29", ("(H100-80)", "YYYY-MM-DD")),
    "a thirtieth of February": ("gpus", "date = .*", "date = 2026-02-30", ("(H100-80)", "YYYY-MM-DD")),
    "a word of English": ("gpus", "measured = .*", "measured = no", ("(H100-80)", "write true or false")),
    "a sign of a currency": ("gpus", "spot = .*", "spot = $1.43", ("(H100-80)", "write only the number")),
    "a list without an end": (
        "gpus",
        "aliases = .*",
        'aliases = ["H100"',
        ("(H100-80)", "'aliases = [\"H100\"'; write a list in brackets"),
    ),
    "a text without an end": ("ends", 'said = """', "said = '''", ("not closed at its end",)),
    "a doubled field": ("gpus", "spot = .*", "on_demand = 2.0", ("this field twice; remove one line",)),
    "no equals sign": ("gpus", "spot = .*", "spot 1.43", ("write a field as: name = value",)),
    "something else": ("versions", "[[version]]", "[[row]]", ("every row begins with [[version]]",)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_row_is_one_sentence_with_file_row_field_and_remedy(name: str) -> None:
    table, old, new, parts = MALFORMED[name]
    text = raw_text(table)
    pattern = rf"(?m)^{old}" if old.endswith(".*") else re.escape(old)
    changed, count = re.subn(pattern, lambda _: new, text, count=1)
    assert count == 1
    with pytest.raises(TableError) as error:
        parse_rows(KINDS[table], table, changed)
    said = str(error.value)
    assert said.startswith(f"serving/facts/{table}.toml: ")
    assert said.endswith(" to get the original")
    assert "\n" not in said
    assert all(part in said for part in parts), said


def test_the_original_comes_from_git_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("m3agent.serving.facts.table.__file__", str(tmp_path / "serving/facts/table.py"))
    assert str(table_error("gpus", "x")).endswith(
        "; correct it there, or install m3agent again to get the original"
    )
    (tmp_path / ".git").mkdir()
    assert "or drop your changes with `git checkout -- serving/facts/gpus.toml`" in str(
        table_error("gpus", "x")
    )


@pytest.mark.parametrize(
    ("table", "name"), [("gpus", "H200"), ("architectures", "cdna4"), ("engines", "dynamo")]
)
def test_a_row_that_the_program_needs_cannot_be_removed(
    table: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, row = re.split(rf'(?=\n\[\[\w+\]\]\n(?:#.*\n)?name = "{name}")', raw_text(table))
    rest = re.sub(r"\A\n\[\[(.|\n)*?(?=\n\[\[|\Z)", "", row)
    monkeypatch.setattr("m3agent.serving.facts.table.raw_text", lambda _: before + rest)
    with pytest.raises(TableError, match=rf"^serving/facts/{table}.toml: there is no row {name}, which"):
        rows(KINDS[table], table)


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
    condition = Condition({"x": wanted}, {"x": int | str})
    assert condition.holds({"x": fitting})
    assert not condition.holds({"x": other})


def test_a_condition_on_variables_names_them() -> None:
    condition = Condition({"env": {"A": "1", "B": {"not": "2"}}}, {"env": dict})
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
        named = {field.name for field in fields(kind)}
        named |= {field.name for field in fields(Setup)} if table == "issues" else set()
        assert all(re.search(rf"\b{name}\b", head) for name in named), (table, named)
