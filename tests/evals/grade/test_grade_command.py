"""`m3agent eval validate` and `eval grade` from the command line."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from m3agent.cli.app import app
from m3agent.evals.data.predictions import read_predictions
from m3agent.evals.grade import validate as validate_module
from m3agent.evals.grade.validate import Validation
from m3agent.util.errors import UsageError
from tests.command_line import run
from tests.evals.bases import needs_docker
from tests.evals.data_rows import write_program

PROGRAM = "def half(n):\n    return n // 3\n"
TESTS = "from half import half\n\n\ndef test_half():\n    assert half(8) == 4\n\n\ndef test_zero():\n    assert half(0) == 0\n"


def m3agent(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run("eval", *map(str, arguments))


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A benchmark folder with one program."""
    fixed, issue = PROGRAM.replace("3", "2"), "half(8) should be 4\n"
    return write_program(tmp_path / "programs-of-ours", "half", PROGRAM, fixed, TESTS, issue)


@pytest.mark.slow  # quick: test_grade_small.py and the other tests here
@pytest.mark.integration
@needs_docker
def test_from_validation_to_grades(programs: Path, tmp_path: Path) -> None:
    kept = tmp_path / "validation.json"
    done = m3agent("validate", programs, "--runs", "1", "-o", kept)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(
        f"m3agent: next: m3agent eval run {programs} -o RUN --validation {kept} --endpoint URL\n"
    )
    assert "1 of 1 instances are valid" in done.stdout
    assert json.loads(kept.read_text())["instances"][0]["fail_to_pass"] == ["test_half.py::test_half"]
    done = m3agent("grade", programs, "gold", "--validation", kept, "--json")
    assert done.returncode == 0, done.stderr
    [one] = json.loads(done.stdout)["instances"]
    assert (one["instance_id"], one["strict"]["verdict"]) == ("half", "resolved")
    assert "official rules need" in one["official"]["reason"]
    assert json.loads(done.stdout)["differences"] == []
    predictions = tmp_path / "preds.json"
    predictions.write_text(json.dumps({"half": {"model_patch": "nonsense"}}))
    done = m3agent("grade", programs, predictions, "--no-official")
    assert done.returncode == 0, done.stderr
    assert "0 of 1 resolved by m3agent's rules\n" in done.stdout and " error " in done.stdout


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("validate", "{programs}/none.jsonl"), "none.jsonl"),
        (("run", "{programs}/none.jsonl", "-o", "{programs}/run", "--engine", "embedded"), "none.jsonl"),
        (
            ("run", "{programs}/none.jsonl", "-o", "{programs}/run", "--agent-name", "x"),
            "--agent-name is only for",
        ),
        (("validate", "{programs}", "--ids", "haff"), "half"),
        (("validate", "{programs}", "-o", "{programs}/no/where.json"), "there is no folder"),
        (("grade", "{programs}", "{programs}/none.json"), "none.json cannot be read"),
        (("grade", "{programs}", "gold", "--validation", "{programs}/gold/half.py"), "is not a file that"),
        (
            ("grade", "{programs}", "gold", "--validation", "nope.jsonl"),
            "cannot be read (no such file or directory)",
        ),
    ],
)
def test_wrong_use_is_one_sentence(programs: Path, arguments: tuple[str, ...], said: str) -> None:
    done = m3agent(*(argument.format(programs=programs) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("m3agent: ") and said in done.stderr and done.stderr.count("\n") == 1


def test_others_may_read_what_validation_found(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def validated(*_: object, on_done: Callable[[Validation], None], **__: object) -> list[Validation]:
        validation = Validation(instance_id="half", valid=True)
        on_done(validation)
        return [validation]

    monkeypatch.setattr(validate_module, "validate_all", validated)
    kept, mask = tmp_path / "validation.json", os.umask(0o022)
    try:
        done = CliRunner().invoke(app, ["eval", "validate", str(programs), "-o", str(kept)])
    finally:
        os.umask(mask)
    assert done.exit_code == 0, done.stderr
    assert stat.S_IMODE(kept.stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (
            "p.json",
            '{"a": {"model_patch": "x"}, "b": {"model_patch": null}, "c": "y"}',
            {"a": b"x", "b": b"", "c": b"y"},
        ),
        ("p.json", '[{"instance_id": "a", "model_patch": "x\\r\\n"}]', {"a": b"x\r\n"}),
        (
            "p.jsonl",
            '{"instance_id": "a", "model_patch": "x"}\n\n{"instance_id": "b", "patch": "y"}\n',
            {"a": b"x", "b": b"y"},
        ),
        (
            "p.jsonl",
            '\ufeff{"instance_id": "a", "model_patch": "x\u2028\x85y"}\r\n',
            {"a": "x\u2028\x85y".encode()},
        ),
        ("p.json", '\ufeff{"a": "x"}', {"a": b"x"}),
        (
            "p.jsonl",
            '{"instance_id": "a", "model_patch": "\\ud800"}\n{"instance_id": "b", "model_patch": "\\udcff"}',
            {"a": b"\xed\xa0\x80", "b": b"\xff"},
        ),
    ],
)
def test_predictions_of_every_shape_are_read(
    tmp_path: Path, name: str, text: str, found: dict[str, bytes]
) -> None:
    file = tmp_path / name
    file.write_text(text, "utf-8", newline="")
    assert read_predictions(file) == found


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.jsonl", '{"instance_id": "a", "model_patch": "x"}\n{', "line 2 is not JSON"),
        ("p.jsonl", '{"model_patch": "x"}', "line 1 has no instance_id"),
        ("p.json", '[{"instance_id": "a", "model_patch": 3}]', "model_patch is not a string"),
        ("p.json", "[1]", "entry 1 is not an object"),
        ("p.json", "3", "holds no predictions"),
        (
            "p.jsonl",
            '{"instance_id": "a", "patch": "x"}\n{"instance_id": "a", "patch": ""}',
            "a occurs twice",
        ),
        ("p.jsonl", '{"instance_id": "a", "patches": "x"}', r"line 1 \(a\) has no model_patch"),
        ("p.json", '{"a": {"patches": "x"}}', r"p.json, a \(a\) has no model_patch"),
    ],
)
def test_what_is_no_prediction_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_predictions(file)
