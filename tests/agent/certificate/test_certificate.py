"""What a certificate says, and that every change of it is noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from m3agent import __version__
from m3agent.agent.certificate import build
from m3agent.agent.certificate.build import Change, digest_of, maker_of, statement_of
from m3agent.agent.certificate.statement import (
    Base,
    Environment,
    Source,
    Statement,
    check_folder,
    read,
    write,
)
from m3agent.agent.certificate.table import MOST_LISTED, table
from m3agent.agent.issue.load import Issue
from m3agent.agent.settings.settings import Settings
from m3agent.agent.verify.review import Finding
from m3agent.agent.verify.tree_runs import MadeRun
from m3agent.agent.verify.verify import Verification
from m3agent.serving.embedded.server import MODEL
from m3agent.tools.test_report import EMPTY
from m3agent.util.errors import EnvironmentFault, UsageError
from m3agent.util.sanitize import UNPRINTABLE
from scripts.docs.certificate_schema import SCHEMA, schema
from tests.fakes.trees import memory_workspace

ADD, DOUBLE = "test_calc.py::test_add", "test_calc.py::test_double"
ENVIRONMENT = Environment(
    sandbox="docker",
    isolated=True,
    image="m3agent-env:0",
    image_id="sha256:0",
    python="3.12.4",
    packages=("pytest==9.0",),
    network=(),
    memory=1 << 32,
    cpus=2.0,
)
ALL, SOME = ("python3", "-m", "pytest", "-q"), ("python3", "-m", "pytest", "-q", "./test_calc.py")
RUNS = (
    MadeRun("baseline", False, (DOUBLE,), (ADD,), (ALL,)),
    MadeRun("verify-before-again-1", False, (), (ADD,), (SOME,)),
    MadeRun("verify-after", True, (ADD, DOUBLE), (), (ALL,)),
    MadeRun("verify-repeat-1-1", True, (ADD,), (), (SOME,)),
    MadeRun("verify-repeat-1-2", True, (), (ADD,), (SOME,)),
    MadeRun("verify-inverted-1", None, (ADD,), (), (SOME,)),
)
FOUND = Verification(
    "verified",
    "1 test red before, green after",
    fixed=(ADD,),
    broken=(),
    still_red=(),
    new_tests=(),
    flaky=(DOUBLE,),
    before=replace(EMPTY, passed=(DOUBLE,), failed=(ADD,)),
    after=replace(EMPTY, passed=(ADD, DOUBLE)),
    old_tree="",
    new_tree="",
    seconds=1.5,
    undone=("conftest.py",),
    runs=RUNS,
)


def made(folder: Path, evidence: Verification = FOUND, text: bytes | None = None, **more: Any) -> Statement:
    """Return the certificate of a patch to one file."""
    folder.mkdir(exist_ok=True)
    workspace = memory_workspace(folder, {"calc.py": "a - b\n", "test_calc.py": ""})
    patch = workspace.patch(workspace.commit_changes(workspace.base, [("calc.py", 0o100644, b"a + b\n")], []))
    base = Base(commit="c" * 40, tree=workspace.base, uncommitted=0)
    source = more.pop("source", Source(kind="commits", commit="d" * 40))
    change = Change(workspace, patch, patch.text if text is None else text, base, source)
    started = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    of_it: dict[str, Any] = {"environment": ENVIRONMENT, "settings": Settings(), **more}
    return statement_of(change, evidence, started=started, **of_it)


def test_what_it_says(tmp_path: Path) -> None:
    issue = Issue("Wrong sums", "add() is wrong", "text", "0")
    found = json.loads(made(tmp_path, text=b"as given", issue=issue, made_by=maker_of("MiniMax-M3")).text())
    said = found["predicate"]
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["subject"] == [
        {"name": "patch", "digest": {"sha256": digest_of(b"as given")}},
        {"name": "result", "digest": {"gitTree": said["result_tree"]}},
    ]
    assert found["predicateType"] == "urn:m3agent:verification:v1"
    assert (said["verdict"], said["reason"], said["only_own_tests"]) == ("verified", FOUND.reason, False)
    assert said["patch"]["paths"] == ["calc.py"]
    assert said["suites"][0]["runner"] == "pytest"
    assert said["suites"][0]["ran"] is True
    assert said["commands"] == [
        {"argv": [*ALL], "without_patch": 1, "with_patch": 1, "on_copies": 0},
        {"argv": [*SOME], "without_patch": 1, "with_patch": 2, "on_copies": 1},
    ]
    assert said["put_back"] == ["conftest.py"]
    assert said["issue"] == {"title": "Wrong sums", "text": "add() is wrong", "source": "text"}
    assert (
        said["made_by"]["harness"]
        == said["tool"]["name"] + " " + said["tool"]["version"]
        == f"m3agent {__version__}"
    )
    assert said["started"] == "2026-03-04T05:06:07Z"
    assert said["tests"]["without_patch"] == {"passed": 1, "failed": 1, "errored": 0, "skipped": 0}


def test_the_runs_of_a_test_are_counted_on_each_side(tmp_path: Path) -> None:
    """Runs of inverted copies are of no side."""
    [fixed] = made(tmp_path).predicate.tests.red_to_green
    assert fixed.model_dump() == {
        "id": ADD,
        "without_patch": {"green": 0, "red": 2},
        "with_patch": {"green": 2, "red": 1},
    }
    [flaky] = made(tmp_path).predicate.tests.flaky
    assert (flaky.without_patch.green, flaky.with_patch.green) == (1, 1)


def test_a_file_has_the_same_certificate(tmp_path: Path) -> None:
    statement = made(tmp_path / "trees")
    write(statement, tmp_path / "c.json")
    assert read(tmp_path / "c.json") == statement
    assert (tmp_path / "c.json").read_bytes() == statement.text()


def test_each_flipped_byte_is_noticed(tmp_path: Path) -> None:
    data, path = made(tmp_path / "trees").text(), tmp_path / "c.json"
    path.write_bytes(data)
    read(path)
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(UsageError):
            read(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("verdict", "failed"), ("reason", "x"), ("result_tree", "x"), ("seal", "x"), ("put_back", [])],
)
def test_another_value_is_noticed(tmp_path: Path, name: str, value: object) -> None:
    """Also if the file is written again in its usual form."""
    plain = json.loads(made(tmp_path / "trees").text())
    plain["predicate"][name] = value
    path = tmp_path / "c.json"
    path.write_bytes(json.dumps(plain, indent=2).encode() + b"\n")
    with pytest.raises(UsageError, match="was changed after m3agent wrote it"):
        read(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is no certificate of m3agent: give a file that --certificate wrote"),
        (b"[]", "is no certificate of m3agent"),
        (b"\xff\xfe", "is no certificate of m3agent"),
        (b"[" * 100_000, "is no certificate of m3agent"),
        (b'{"predicateType": "other", "predicate": {"version": 1}}', "has another version than"),
        (
            b'{"predicateType": "urn:m3agent:verification:v1", "predicate": {"version": 2}}',
            "has another version than",
        ),
        (
            b'{"predicateType": "urn:m3agent:verification:v1", "predicate": {"version": 1}}',
            "was changed after",
        ),
    ],
)
def test_what_is_no_certificate(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        read(tmp_path / "c.json")


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: no such file or directory"):
        read(tmp_path / "nowhere.json")
    with pytest.raises(UsageError, match="give a file in a folder that exists"):
        check_folder(tmp_path / "nowhere" / "c.json")
    with pytest.raises(UsageError, match="give a file in a folder that exists"):
        check_folder(tmp_path)
    with pytest.raises(EnvironmentFault, match="cannot be written: no such file or directory"):
        write(made(tmp_path), tmp_path / "nowhere" / "c.json")


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    """They are written with escapes: JSON readers refuse lone surrogates."""
    odd = replace(FOUND, fixed=("caf\udce9.py::test",), runs=())
    [fixed] = made(tmp_path, odd).predicate.tests.red_to_green
    assert fixed.id == "caf\\udce9.py::test"


def test_the_schema_is_that_of_the_docs(tmp_path: Path) -> None:
    assert SCHEMA.read_text() == schema(), "run `make docs-pages`"
    said = json.loads(made(tmp_path).text())
    jsonschema.validate(said, json.loads(schema()))
    del said["predicate"]["verdict"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(said, json.loads(schema()))


# -- for people --------------------------------------------------------------------------------------------------------


def test_the_table(tmp_path: Path) -> None:
    odd = replace(FOUND, own_only=True, review=(Finding("calc.py", 3, "x", "reads frames"),))
    assert table(made(tmp_path, odd)).splitlines()[2:] == [
        "               calc.py",
        "red to green   1",
        f"               {ADD} (red in 2 of 2 runs without the patch, green in 2 of 3 runs with it)",
        "broken         0",
        "still red      0",
        "flaky          1",
        f"               {DOUBLE} (green in 1 of 1 run without the patch, green in 1 of 1 run with it)",
        "put back       1 file: the tests ran without the patch's changes to it",
        "               conftest.py",
        "review         1",
        "               calc.py:3 reads frames",
    ]


def test_the_tests_that_the_patch_adds_are_named(tmp_path: Path) -> None:
    lines = table(made(tmp_path, replace(FOUND, new_tests=("t.py::more",)))).splitlines()
    assert lines[lines.index("new tests      1") + 1].strip() == "t.py::more"


def test_the_table_says_that_nothing_was_isolated(tmp_path: Path) -> None:
    here = ENVIRONMENT.model_copy(update={"sandbox": "here", "isolated": False})
    assert table(made(tmp_path, environment=here)).startswith("verified (not isolated)  ")


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    many = replace(FOUND, broken=tuple(f"t.py::{n}" for n in range(MOST_LISTED + 3)))
    lines = table(made(tmp_path, many)).splitlines()
    assert f"broken         {MOST_LISTED + 3}" in lines
    assert (
        lines.index("               3 more")
        == lines.index(f"broken         {MOST_LISTED + 3}") + MOST_LISTED + 1
    )


def test_no_name_controls_the_terminal_or_forges_a_line(tmp_path: Path) -> None:
    hostile = "\x1b[2J\nverified       forged\r\u202e\udcff"
    odd = replace(
        FOUND,
        reason=hostile,
        fixed=(hostile,),
        undone=(hostile,),
        tampering=(hostile,),
        added_red=(hostile,),
        runs=(),
    )
    shown = table(made(tmp_path, odd))
    assert UNPRINTABLE.findall(shown.replace("\n", "")) == []
    assert [line for line in shown.splitlines() if line.startswith("verified")] == shown.splitlines()[:1]


# -- who made it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "licence"),
    [
        ("MiniMax-M3", build.M3_LICENCE),
        ("MiniMaxAI/MiniMax-M3-MXFP8", build.M3_LICENCE),
        ("minimax-m30", None),
        ("gpt-oss", None),
        ("", None),
        (MODEL, build.HARNESS_LICENCE),
    ],
)
def test_the_licence_of_the_model(model: str, licence: str | None) -> None:
    maker = maker_of(model)
    assert (maker.harness, maker.model, maker.model_licence) == (f"m3agent {__version__}", model, licence)


def test_runs_of_two_versions_of_a_test_are_not_mixed(tmp_path: Path) -> None:
    """A patch weakens a test: the old version decides and is red with the patch. In the second case only the new one shows the fix."""
    own = (
        MadeRun("verify-new-tests-before", False, (), (ADD,)),
        MadeRun("verify-new-tests-after", True, (ADD,), ()),
    )
    red = replace(EMPTY, failed=(ADD,))
    old = (MadeRun("baseline", False, (), (ADD,)), MadeRun("verify-after", True, (), (ADD,)))
    weakened = replace(
        FOUND,
        verdict="failed",
        fixed=(),
        still_red=(ADD,),
        flaky=(),
        before=red,
        after=red,
        runs=(*old, *own),
    )
    [found] = made(tmp_path, weakened).predicate.tests.still_red
    assert (found.with_patch.green, found.with_patch.red) == (0, 1)
    green = replace(EMPTY, passed=(ADD,))
    old = (MadeRun("baseline", False, (ADD,), ()), MadeRun("verify-after", True, (ADD,), ()))
    shown = replace(FOUND, flaky=(), before=green, after=green, runs=(*old, *own))
    [found] = made(tmp_path, shown).predicate.tests.red_to_green
    assert (found.without_patch.green, found.without_patch.red, found.with_patch.green) == (0, 1, 1)
