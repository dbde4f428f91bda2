"""docs/serving-bench.md names every option, and its example is a valid result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import typer

from m3agent.cli.serve.bench import bench
from m3agent.serving.bench.result import from_json

TEXT = (Path(__file__).parents[3] / "docs" / "serving-bench.md").read_text()


def test_table_has_every_option() -> None:
    app = typer.Typer()
    app.command()(bench)
    known = {
        name for option in typer.main.get_command(app).params for name in option.opts if option.name != "help"
    }
    table = TEXT[TEXT.index("| option |") : TEXT.index("The table goes to")]
    named = set(re.findall(r"`(-[-a-z]+)", table)) | set(re.findall(r", `(--[-a-z]+)", table))
    assert {
        name for name in known if name not in ("--output", "--install-completion", "--show-completion")
    } == named


def test_the_example_is_a_result() -> None:
    example = json.loads(TEXT[TEXT.index("```json") + 7 : TEXT.rindex("```")])
    result = from_json(json.dumps(example))
    assert result.rows[0].key == ("cached", 65_536, 1)
    assert list(result.left_out) == example["left_out"]
