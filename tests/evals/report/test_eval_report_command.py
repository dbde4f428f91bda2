"""`m3agent eval report` from the command line: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from m3agent.cli.app import app
from m3agent.evals.data.run_folder import RunFolder
from tests.agent.report.test_report_model import Write, a_fix, write
from tests.agent.report.test_report_page import Page
from tests.evals.report.made import FIX, official, result, run_folder

__all__ = ["write"]  # a fixture


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["eval", "report", *map(str, arguments)])


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    results = [
        result("o__a-1", official=official(True)),
        result("o__a-2", "unresolved"),
        result("o__b-1", "empty"),
    ]
    return run_folder(tmp_path / "run", results)


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (("o__a-1", "o__a-2"), "there is only one repository"),
        (("o__a-1", "o__b-1"), "all repositories have the same rate"),
    ],
)
def test_an_interval_that_is_not_defined_has_a_reason(tmp_path: Path, ids: tuple[str, ...], why: str) -> None:
    folder = run_folder(tmp_path / "run", [result(name) for name in ids])
    shown = " ".join(command(folder.path).stdout.split())
    assert f"interval, by repository not defined: {why} " in shown


@pytest.mark.integration
def test_the_table_is_the_product(run: RunFolder) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "m3agent.agent", "eval", "report", str(run.path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert (
        done.stderr
        == f"m3agent: next: m3agent eval report {run.path} -o report.html shows each attempt's steps\n"
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "m3agent 0.1.0: 3 instances of 2 repositories, 1 attempt at each"
    assert lines[2].split(maxsplit=1) == ["resolved", "33.3% of 3 instances (1 of 3 attempts)"]
    assert lines[3].split("  ")[-1].strip() == "6.1% to 79.2%"
    assert "tampering noticed" not in done.stdout, "a zero says nothing"
    assert lines[-3:] == [
        "NOT RESOLVED  VERDICT     REASON", "o__b-1        empty       it is empty", "o__a-2        unresolved  it is unresolved",
    ]  # fmt: skip


def test_one_instance_is_not_called_several(tmp_path: Path) -> None:
    done = command(run_folder(tmp_path / "run", [result("o__a-1", "unresolved")]).path)
    (resolved,) = [line for line in done.stdout.splitlines() if line.startswith("resolved ")]
    assert resolved.split(maxsplit=1)[1] == "0.0% of 1 instance (0 of 1 attempt)"


def test_all_files_are_written_at_once(run: RunFolder, tmp_path: Path, write: Write) -> None:
    write(*a_fix()).rename(run.attempt("o__a-1", 1) / "session")
    run.finish(result("o__a-1", session="attempts/o__a-1/1/session"), FIX)
    names = ("page.html", "junit.xml", "official.json", "predictions.jsonl")
    page, junit, official_file, predictions = (tmp_path / name for name in names)
    done = command(
        run.path,
        "-o",
        page,
        "--json",
        "--junit",
        junit,
        "--official",
        official_file,
        "--predictions",
        predictions,
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["format"], found["complete"], found["comparison"]) == (1, True, None)
    assert found["score"]["worst"]["value"] == pytest.approx(1 / 3)
    assert found["results"][0]["instance_id"] == "o__b-1"
    assert Page(page.read_text()).links == ["data:,", "page_files/o__a-1-1.html"]
    assert (tmp_path / "page_files" / "o__a-1-1.html").is_file()
    assert ElementTree.fromstring(junit.read_bytes()).get("tests") == "3"
    assert json.loads(official_file.read_text())["resolved_ids"] == ["o__a-1"]
    assert json.loads(predictions.read_text().splitlines()[0])["model_patch"] == FIX.decode()
    assert "2 by m3agent's rules only" in done.stderr
    assert f"wrote {page}" in done.stderr
    assert "and beside it the pages of 1 sessions" in done.stderr


def test_the_same_run_makes_the_same_bytes(run: RunFolder) -> None:
    assert command(run.path, "--json").stdout == command(run.path, "--json").stdout
    first, second = (command(run.path, "-o", "-").stdout for _ in range(2))
    assert first == second
    Page(first)


def test_a_run_that_is_not_complete_has_no_score(run: RunFolder, tmp_path: Path) -> None:
    run.finish(result("o__a-2", "infra"), b"")
    (run.attempt("o__b-1", 1) / "result.json").unlink()
    page = tmp_path / "page.html"
    for arguments in (
        [],
        ["--json"],
        ["-o", page],
        ["--junit", page],
        ["--official", page],
        ["--predictions", page],
    ):
        done = command(run.path, *arguments)
        assert done.exit_code == 3
        assert done.stdout == ""
        assert not page.exists()
        assert (
            "2 of 3 attempts have no result, 1 of them because the machine or the model server failed"
            in done.stderr
        )
        assert "--allow-incomplete" in done.stderr
        assert done.stderr.count("\n") == 1


def test_with_leave_an_incomplete_run_has_a_range(run: RunFolder) -> None:
    run.finish(result("o__a-2", "infra"), b"")
    done = command(run.path, "--allow-incomplete")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[1].startswith("INCOMPLETE: 1 of 3 attempts has no result")
    assert "33.3% to 66.7% of 3 instances" in done.stdout


def test_two_runs_are_compared(run: RunFolder, tmp_path: Path) -> None:
    other = run_folder(
        tmp_path / "other", [result("o__a-1", "empty"), result("o__a-2"), result("o__b-1")], agent="other 2"
    )
    done = command(run.path, "--compare", other.path)
    assert done.exit_code == 0, done.stderr
    for said in (
        "compared with",
        f"{other.path} (other 2)",
        "33.3% and 66.7%",
        "-33.3 points",
        "p = 1",
        "1: o__a-1",
        "2: o__a-2, o__b-1",
    ):
        assert said in done.stdout, said
    assert json.loads(command(run.path, "--compare", other.path, "--json").stdout)["comparison"]["won"] == [
        "o__a-1"
    ]


def test_neither_of_two_runs_may_be_incomplete(run: RunFolder, tmp_path: Path) -> None:
    other = run_folder(tmp_path / "other", [result("o__a-1")], instances=["o__a-1", "o__a-2"])
    done = command(run.path, "--compare", other.path)
    assert done.exit_code == 3
    assert str(other.path) in done.stderr
    done = command(run.path, "--compare", other.path, "--allow-incomplete")
    assert done.exit_code == 0
    assert "1 invalid or incomplete in one of them" in done.stdout


def test_several_attempts_go_into_the_official_files_by_their_first(tmp_path: Path) -> None:
    run = run_folder(
        tmp_path / "run", [result("o__a-1", "unresolved"), result("o__a-1", attempt=2)], attempts=2
    )
    done = command(run.path, "--official", tmp_path / "official.json")
    assert "they contain the first of 2" in done.stderr
    assert "pass@2" in done.stdout


def test_wrong_use_is_reported_in_one_sentence(run: RunFolder, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    (tmp_path / "damaged_files").write_text("")
    run.finish(result("o__a-2", "unresolved", session="attempts"), FIX)
    wrong: list[tuple[list[str | Path], str]] = [
        ([tmp_path / "no"], "is not a run's folder"),
        ([run.path, "--compare", tmp_path], "is not a run's folder"),
        ([run.path, "-o", tmp_path / "no" / "page.html"], "there is no folder"),
        ([run.path, "-o", tmp_path], "this is a folder"),
        ([run.path, "-o", "-", "--json"], "both write to standard output"),
        ([run.path, "-o", page, "--junit", page], "two of the options name the same file"),
        ([run.path, "-o", tmp_path / "damaged.html"], "it is not a folder: name another page"),
    ]
    for arguments, said in wrong:
        done = command(*arguments)
        assert done.exit_code == 2, arguments
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""


def test_a_damaged_result_names_its_file(run: RunFolder) -> None:
    file = run.attempt("o__a-2", 1) / "result.json"
    file.write_text("{")
    done = command(run.path)
    assert done.exit_code == 2
    assert str(file) in done.stderr


def test_a_patch_that_is_gone_stops_the_predictions(run: RunFolder, tmp_path: Path) -> None:
    (run.attempt("o__a-2", 1) / "patch.diff").unlink()
    done = command(run.path, "--predictions", tmp_path / "p.jsonl")
    assert done.exit_code == 2
    assert "the patch cannot be read (no such file or directory)" in done.stderr
    assert not (tmp_path / "p.jsonl").exists()
