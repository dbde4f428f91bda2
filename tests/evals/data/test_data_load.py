"""Benchmarks in all supported formats, valid and invalid."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.evals.data import load as load_module
from m3agent.evals.data.instance import DataError
from m3agent.evals.data.load import digest, load
from tests.evals.data_rows import GOLD, SHARED, a_row, write_rows

THREE = [a_row(instance_id=f"someone__calc-{n}") for n in (3, 1, 2)]


def ids(source: str, **options: Any) -> list[str]:
    return [instance.id for instance in load(source, **options)]


def wrong(source: str, **options: Any) -> str:
    with pytest.raises(DataError) as raised:
        load(source, **options)
    return str(raised.value)


def test_every_form_of_file_gives_the_same_instances(tmp_path: Path) -> None:
    lines = write_rows(tmp_path / "instances.jsonl", *THREE)
    (tmp_path / "list.json").write_text(json.dumps(THREE))
    (tmp_path / "by_id.json").write_text(json.dumps({row["instance_id"]: row for row in THREE}))
    forms = [lines, str(tmp_path), str(tmp_path / "list.json"), str(tmp_path / "by_id.json")]
    assert {digest(load(form)) for form in forms} == {digest(load(lines))}
    assert ids(lines) == ["someone__calc-3", "someone__calc-1", "someone__calc-2"]


def test_parquet_gives_the_same_instances(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = write_rows(tmp_path / "rows.jsonl", *THREE)
    parquet.write_table(arrow.Table.from_pylist(THREE), tmp_path / "rows.parquet")
    assert digest(load(str(tmp_path / "rows.parquet"))) == digest(load(lines))
    (tmp_path / "rows.parquet").write_bytes((tmp_path / "rows.parquet").read_bytes()[:-9])
    assert "cannot be read as Parquet" in wrong(str(tmp_path / "rows.parquet"))


@pytest.mark.integration
@pytest.mark.parametrize(("source", "package"), [("x.parquet", "pyarrow"), ("owner/name:dev", "datasets")])
def test_missing_package_is_named(tmp_path: Path, source: str, package: str) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.modules['pyarrow.parquet'] = None\n"
        "from m3agent.evals.data.load import load\n"
        f"try: load({source!r})\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("DataError")
    assert f"needs the package {package}: install m3agent[data] as docs/install.md says." in done.stdout


def test_only_selected_rows_are_read_beyond_the_id(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", *THREE, {"instance_id": "broken"})
    assert ids(source, ids=["someone__calc-2", "someone__calc-3"]) == ["someone__calc-3", "someone__calc-2"]
    assert "row 4" in wrong(source)


def test_unknown_id_is_named_with_the_nearest(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", *THREE)
    said = wrong(source, ids=["someone__calc-1", "somone_calc-2"])
    assert "somone_calc-2" in said
    assert said.endswith("the nearest is someone__calc-2")


def test_a_second_row_with_the_same_id_is_refused_with_both_places(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", *THREE, THREE[1])
    assert "row 4" in wrong(source)
    assert "row 2" in wrong(source)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_rows_is_no_benchmark(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    assert "no instances" in wrong(str(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", b'{"instance_id": "a"', "row 1: it is not JSON"),
        ("rows.jsonl", b"\n[1]\n", "row 2: a JSON object is expected"),
        ("rows.jsonl", b"\xff\xfe{}", "row 1: it is not JSON"),
        ("rows.jsonl", b'{"a": NaN}', "NaN"),
        ("rows.jsonl", b'{"a": ' + b"1" * 5000 + b"}", "row 1: it is not JSON"),
        ("rows.jsonl", b"[" * 200_000, "row 1"),
        ("rows.json", b'"text"', "a list of rows is expected"),
        ("rows.json", b"[{}]", "rows.json row 1, field instance_id: it is missing"),
        ("rows.csv", b"a,b", "ends in .jsonl, .json, .parquet"),
    ],
)
def test_file_without_valid_rows_is_named_with_the_place(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert said in wrong(str(tmp_path / name))
    assert str(tmp_path / name) in wrong(str(tmp_path / name))


@pytest.mark.parametrize("source", ["nowhere.jsonl", "nowhere/at/all", "x" * 5000, "a\0b", ""])
def test_missing_input_is_reported_in_one_sentence(tmp_path: Path, source: str) -> None:
    said = wrong(source and str(tmp_path / source))
    assert "\n" not in said


def test_a_folder_without_data_says_what_is_looked_for(tmp_path: Path) -> None:
    assert "instances.jsonl or programs" in wrong(str(tmp_path))


def test_a_file_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "rows.jsonl"  # a pipe can be read only once
    os.mkfifo(pipe)
    content = b"".join(json.dumps(row).encode() + b"\n" for row in THREE)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    assert len(load(str(pipe))) == 3
    writer.join()


@pytest.mark.slow
def test_a_row_of_fifty_megabytes_is_read(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", a_row(problem_statement="x" * (50 << 20)))
    assert len(load(source)[0].task.statement) == 50 << 20


def test_a_line_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.truncate(load_module.MOST_ROW + 1)
    assert "not a file of rows" in wrong(str(path))


def test_the_digest_is_of_what_instances_say_and_not_of_where_they_are(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "repo.tar").write_bytes(b"")
        write_rows(tmp_path / name / "instances.jsonl", a_row(repo_archive="repo.tar"), *THREE[:1])
    here, there = (load(str(tmp_path / name)) for name in ("here", "there"))
    assert here[0].task.source != there[0].task.source
    assert digest(here) == digest(there) == digest(reversed(here))
    other = load(write_rows(tmp_path / "other.jsonl", a_row(patch=GOLD.replace("// 2", "/ 2")), *THREE[:1]))
    assert digest(other) != digest(load(write_rows(tmp_path / "same.jsonl", a_row(), *THREE[:1])))
    assert digest(here) != digest(here[:1])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from([*sorted(a_row()), "image", "eval_script", "repo_archive", "repo_ref", "x"])
SPOILT = st.dictionaries(FIELDS, JSON, max_size=4).map(lambda changes: a_row(**changes))
RECIPES = st.dictionaries(
    st.sampled_from(
        ["python", "requirements_txt", "packages", "pip_packages", "env", "test_cmd", "exclude_newer"]
    ),
    JSON,
    max_size=3,
).map(lambda recipe: a_row(environment=recipe))


def instances_or_one_sentence(content: bytes, suffix: str = ".jsonl") -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows{suffix}"
        path.write_bytes(content)
        try:
            instances = load(str(path))
        except DataError as error:
            assert "\n" not in str(error)
            return
        assert instances
        digest(instances)
        for instance in instances:
            instance.model_dump_json()


@settings(max_examples=100)
@given(st.lists(SPOILT | RECIPES | JSON, max_size=3))
def test_rows_of_anything_give_instances_or_one_sentence(rows: list[Any]) -> None:
    instances_or_one_sentence("\n".join(map(json.dumps, rows)).encode())


WHOLE = "".join(json.dumps(row) + "\n" for row in THREE).encode()


@settings(max_examples=100)
@given(st.integers(0, len(WHOLE)), st.binary(max_size=200), st.sampled_from([".jsonl", ".json"]))
def test_cut_and_spoilt_files_give_instances_or_one_sentence(cut: int, more: bytes, suffix: str) -> None:
    instances_or_one_sentence(more, suffix)
    instances_or_one_sentence(WHOLE[:cut] + more, suffix)
    instances_or_one_sentence(WHOLE[:cut] + more + WHOLE[cut + len(more) :], suffix)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real benchmark data beside the repository")
def test_real_data_is_read_whole(tmp_path: Path) -> None:
    instances = load(str(SHARED / "swebench-dev"))
    assert len(instances) == 12
    assert sum(len(i.answer.fail_to_pass) for i in instances) == 24
    assert sum(len(i.answer.pass_to_pass) for i in instances) == 325
    shutil.copy(SHARED / "swebench-dev" / "instances.jsonl", tmp_path)
    shutil.copytree(SHARED / "swebench-dev" / "repos", tmp_path / "repos")
    assert digest(load(str(tmp_path))) == digest(instances)
