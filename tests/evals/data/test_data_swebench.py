"""How the fields of a row are used, and the errors for an invalid row."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from m3agent.evals.data.instance import DataError, Instance
from m3agent.evals.data.load import load
from m3agent.evals.data.recipe import runner_of
from tests.evals.data_rows import GOLD, TESTS, a_row, write_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "repos").mkdir(parents=True)
    (folder / "repos" / "calc.tar.gz").write_bytes(b"")
    (tmp_path / "outside.tar.gz").write_bytes(b"")
    (folder / "link.tar.gz").symlink_to(tmp_path / "outside.tar.gz")
    (folder / "loop.tar.gz").symlink_to("loop.tar.gz")
    return folder


def read(folder: Path, **changes: Any) -> Instance:
    return load(write_rows(folder / "instances.jsonl", a_row(**changes)))[0]


def test_the_agents_side_has_nothing_that_tells_the_fix_or_the_tests(folder: Path) -> None:
    recipe = {"python": "3.9", "test_cmd": "pytest -rA", "test_cmd_full": "pytest -rA tests/test_secret.py"}
    secret: dict[str, Any] = {
        "patch": GOLD.replace("half", "secret"),
        "test_patch": TESTS.replace("half", "secret"),
    }
    secret |= {"FAIL_TO_PASS": ["secret"], "PASS_TO_PASS": ["secret"], "eval_script": "secret"}
    instance = read(folder, **secret, any_new_field="secret", environment=recipe)
    assert "secret" not in instance.task.model_dump_json()
    assert instance.answer.row["any_new_field"] == "secret"
    assert instance.answer.row["hints_text"] == "a-hint-that-is-secret"
    assert instance.answer.test_command == "pytest -rA tests/test_secret.py"


def test_every_field_has_its_place(folder: Path) -> None:
    task = read(folder).task
    assert (task.instance_id, task.repo, task.base_commit) == ("someone__calc-1", "someone/calc", "1" * 40)
    assert (task.statement, task.version) == ("half(4) is 1", "1.2")
    assert task.created_at == datetime(2020, 6, 29, 21, 51, 15, tzinfo=UTC)
    answer = read(folder).answer
    assert (answer.patch, answer.test_patch) == (GOLD, TESTS)
    assert answer.fail_to_pass == ("tests/test_calc.py::test_half",)
    assert answer.pass_to_pass == ("tests/test_calc.py::test_other",)
    assert answer.row == a_row()


def test_test_ids_stay_as_they_are(folder: Path) -> None:
    junk = ["[", "[100%]", "tests/t.py::t[a", "tests/t.py::t[a b]", "test_x (a.b.C)", "äöü"]
    assert read(folder, FAIL_TO_PASS=junk).answer.fail_to_pass == tuple(junk)
    assert read(folder, PASS_TO_PASS=json.dumps(junk)).answer.pass_to_pass == tuple(junk)


def test_line_ends_of_a_patch_are_kept(folder: Path) -> None:
    patch = GOLD.replace("\n", "\r\n")
    assert read(folder, patch=patch).answer.patch == patch


def test_a_patch_need_not_be_gits(folder: Path) -> None:
    plain = "".join(GOLD.splitlines(keepends=True)[1:])
    assert read(folder, patch=plain).answer.patch == plain
    rename = "diff --git a/x.py b/y.py\nsimilarity index 100%\nrename from x.py\nrename to y.py\n"
    assert read(folder, patch=rename, test_patch="").answer.test_patch == ""


@pytest.mark.parametrize("date", ["2018-12-27 09:11:17", "2018-12-27T09:11:17Z", "2018-12-27T10:11:17+01:00"])
def test_a_date_without_a_zone_is_in_utc(folder: Path, date: str) -> None:
    assert read(folder, created_at=date).task.created_at == datetime(2018, 12, 27, 9, 11, 17, tzinfo=UTC)


@pytest.mark.parametrize(
    "name", ["hints_text", "created_at", "version", "environment_setup_commit", "environment"]
)
@pytest.mark.parametrize("value", [..., None])
def test_some_fields_may_be_absent(folder: Path, name: str, value: object) -> None:
    assert read(folder, **{name: value}).id == "someone__calc-1"


FAULTS: list[tuple[str, Any, str]] = [
    *[
        (name, ..., "missing")
        for name in ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement")
    ],
    *[(name, ..., "missing") for name in ("FAIL_TO_PASS", "PASS_TO_PASS")],
    ("instance_id", "", "empty"),
    ("instance_id", "../up", "not an id"),
    ("instance_id", "a/b", "not an id"),
    ("instance_id", "a" * 201, "not an id"),
    ("instance_id", 7, "not a number"),
    ("repo", "a b", "owner/name"),
    ("repo", "--upload-pack=x/y", "owner/name"),
    ("base_commit", "HEAD", "whole commit id"),
    ("base_commit", "1" * 39, "whole commit id"),
    ("patch", "", "not a patch"),
    ("patch", "just words", "not a patch"),
    ("patch", ["a"], "a string is expected, not a list"),
    ("patch", GOLD + "\ud800", "half a surrogate pair"),
    ("patch", GOLD + "\0", "NUL"),
    ("test_patch", "words", "not a patch"),
    ("problem_statement", " \n", "empty"),
    ("problem_statement", None, "not null"),
    ("FAIL_TO_PASS", '["a"', "JSON list of test ids"),
    ("FAIL_TO_PASS", "[" * 100_000, "JSON list of test ids"),
    ("FAIL_TO_PASS", '{"a": 1}', "not an object"),
    ("FAIL_TO_PASS", [1], "not a number"),
    ("PASS_TO_PASS", None, "not null"),
    ("created_at", "yesterday", "not a date"),
    ("created_at", 5, "not a number"),
    ("version", 1.2, "not a number"),
    ("environment", "pip", "not a string"),
    ("environment", {"pip_packages": [3]}, "environment.pip_packages"),
    ("environment", {"env": {"A": 1}}, "environment.env.A"),
    ("environment", {"env": ["A=1"]}, "environment.env"),
    ("environment", {"exclude_newer": "soon"}, "environment.exclude_newer"),
    ("environment", {"install": "pip\0"}, "environment.install"),
    ("eval_script", 1, "not a number"),
    ("image", [], "not a list"),
]


@pytest.mark.parametrize(("name", "value", "said"), FAULTS)
def test_faults_are_reported_with_file_row_and_field(
    folder: Path, name: str, value: object, said: str
) -> None:
    path = folder / "instances.jsonl"
    write_rows(path, a_row(instance_id="first"), a_row(**{name: value}))
    with pytest.raises(DataError) as raised:
        load(str(path))
    text = str(raised.value)
    assert text.startswith(f"{path} row 2, field {name}")
    assert said in text
    assert len(text) < len(str(path)) + 300


def test_an_archive_is_found_beside_the_rows(folder: Path) -> None:
    source = read(folder, repo_archive="repos/calc.tar.gz", repo_ref="refs/heads/base/x").task.source
    assert source.kind == "archive"
    assert Path(source.location) == (folder / "repos/calc.tar.gz").resolve()
    assert source.ref == "refs/heads/base/x"
    assert read(folder, repo_archive="repos/calc.tar.gz").task.source.ref == "1" * 40


def test_without_an_archive_the_code_is_where_the_benchmark_has_it_from(folder: Path) -> None:
    source = read(folder).task.source
    assert (source.kind, source.location) == ("git", "https://github.com/someone/calc.git")
    assert source.ref == "1" * 40


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../outside.tar.gz", "outside the data's folder"),
        ("repos/../../outside.tar.gz", "outside the data's folder"),
        ("/etc/passwd", "outside the data's folder"),
        ("link.tar.gz", "outside the data's folder"),
        ("loop.tar.gz", "repo_archive"),
        ("repos", "does not exist"),
        ("repos/none.tar.gz", "does not exist"),
        ("x" * 3000, "repo_archive"),
    ],
)
def test_an_archive_that_leads_out_or_is_not_there_is_refused(folder: Path, name: str, said: str) -> None:
    with pytest.raises(DataError, match="row 1, field repo_archive") as raised:
        read(folder, repo_archive=name)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "ref", ["--upload-pack=x", "a..b", "a b", "a:b", "+a", "", "a^{/x}", "a//b", "a/", "a\n"]
)
def test_what_is_no_plain_ref_is_refused(folder: Path, ref: str) -> None:
    with pytest.raises(DataError, match="repo_ref"):
        read(folder, repo_archive="repos/calc.tar.gz", repo_ref=ref)


def test_a_recipe_becomes_an_environment(folder: Path) -> None:
    recipe = {
        "python_official": "3.10",
        "python_used": "3.9",
        "requirements_txt": "# tests\nattrs==1\n\n  six  # old\n",
        "packages": "numpy=1.19 'scipy<2' mpmath -c conda-forge-like",
        "pip_packages": ["mpmath==1.3.0", "Type_Stubs"],
        "extra_pip": ["pytest (latest, if the spec does not install one)", "type-stubs (any)", "six"],
        "pre_install": ["sed -i s/a/b/ setup.py"],
        "install": "pip install -e .",
        "env": {"A": "1"},
        "eval_commands": ["export LANG=en_US.UTF-8", "locale-gen && true"],
        "services": [],
        "base": "whatever",
    }
    environment = read(folder, environment=recipe).task.environment
    assert environment.python == "3.9"
    assert environment.requirements == ("attrs==1", "six  # old")
    assert environment.pip_packages[:2] == ("numpy==1.19.*", "scipy<2")
    assert environment.pip_packages[-3:] == ("mpmath==1.3.0", "Type_Stubs", "pytest")
    assert "mpmath" not in environment.pip_packages, "the later step of two would win"
    assert environment.pre_install == ("sed -i s/a/b/ setup.py",)
    assert environment.install == "pip install -e ."
    assert environment.variables == {"A": "1", "LANG": "en_US.UTF-8"}
    assert environment.image is None


@pytest.mark.parametrize("packages", ["requirements.txt", "environment.yml", None])
def test_the_name_of_a_file_is_no_package(folder: Path, packages: str | None) -> None:
    assert read(folder, environment={"packages": packages}).task.environment.pip_packages == ()


def test_an_image_counts_only_where_the_row_has_no_recipe(folder: Path) -> None:
    assert read(folder, image="some/image:1").task.environment.image is None
    assert read(folder, image="some/image:1", environment=...).task.environment.image == "some/image:1"
    assert read(folder, environment={"image": "some/image:1"}).task.environment.image == "some/image:1"


@pytest.mark.parametrize(
    ("command", "runner"),
    [
        ("pytest -rA tests/test_a.py", "pytest"),
        ("python -X dev -m pytest -rA", "pytest"),
        ("tox --current-env -epy39 -v -- tests/test_a.py", "pytest"),
        ("./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 admin_views", "django"),
        ("PYTHONWARNINGS='ignore::UserWarning' bin/test -C --verbose a.py", "sympy"),
        ("python -m unittest -v tests.test_a", "unittest"),
        ("pytest -k 'unittest or bin' 'an open quote", "pytest"),
        ("pytest tests/unittest_modutils.py", "pytest"),
        ("", "pytest"),
    ],
)
def test_the_runner_is_seen_from_the_command(command: str, runner: str) -> None:
    assert runner_of(command) == runner


def test_the_test_command_comes_from_the_script_or_from_the_patch(folder: Path) -> None:
    script = "cd /testbed\n: '>>>>> Start Test Output'\npytest -rA a.py\n: '>>>>> End Test Output'\ngit checkout x\n"
    assert read(folder, eval_script=script).answer.test_command == "pytest -rA a.py"
    more = TESTS + TESTS.replace("test_calc.py", "data.json")
    only_command = {"test_patch": more, "environment": {"test_cmd": "pytest -rA"}}
    assert read(folder, **only_command).answer.test_command == "pytest -rA tests/test_calc.py"
    django = {"test_cmd": "./tests/runtests.py --parallel 1"}
    answer = read(folder, test_patch=TESTS.replace("test_calc", "admin/test_x"), environment=django).answer
    assert answer.test_command == "./tests/runtests.py --parallel 1 admin.test_x"
    assert answer.runner == "django"


@pytest.mark.integration
def test_official_tables_replace_a_recipe_without_importing_their_package(folder: Path) -> None:
    package = folder / "lib" / "swebench"
    (package / "harness" / "constants").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "harness" / "constants" / "python.py").write_text(
        "MAP_REPO_VERSION_TO_SPECS_PY = {'someone/calc': {'1.2': {'python': '3.6', 'packages': 'requirements.txt',"
        " 'pip_packages': ['six'], 'test_cmd': 'pytest -rA', 'nano_cpus': 2}}}\n"
        "MAP_REPO_TO_REQS_PATHS = {'someone/calc': ['requirements/dev.txt']}\n"
    )
    rows = write_rows(folder / "instances.jsonl", a_row(environment=...))
    code = f"from m3agent.evals.data.load import load; print(load({rows!r})[0].model_dump_json())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(folder / "lib")},
        capture_output=True,
        text=True,
        check=True,
    )
    instance = Instance.model_validate_json(done.stdout)
    environment = instance.task.environment
    assert (environment.python, environment.pip_packages) == ("3.6", ("six", "pytest"))
    assert environment.requirements_files == ("requirements/dev.txt",)
    assert environment.variables == {"SETUPTOOLS_SCM_PRETEND_VERSION": "1.2.0"}
    assert instance.answer.test_command == "pytest -rA tests/test_calc.py"


NO_PYTHON = TESTS.replace("tests/test_calc.py", "web/add.test.js")
NAMES = {"FAIL_TO_PASS": ["adds"], "PASS_TO_PASS": []}


@pytest.mark.parametrize(
    ("row", "runner"),
    [
        ({}, "pytest"),
        ({"environment": {"test_cmd": "make test"}}, "pytest"),
        ({"test_patch": NO_PYTHON}, "pytest"),  # its ids name files of Python
        ({**NAMES, "test_patch": NO_PYTHON, "environment": {"test_cmd": "tox -e py39"}}, "pytest"),
        ({**NAMES, "test_patch": NO_PYTHON, "environment": {"test_cmd": "npx jest"}}, ""),
        ({**NAMES, "test_patch": NO_PYTHON}, ""),
        ({**NAMES, "test_patch": NO_PYTHON, "environment": {"test_cmd": "bin/test"}}, ""),
        ({**NAMES, "environment": {"test_cmd": "bin/test"}}, "sympy"),
        ({**NAMES, "test_patch": ""}, ""),
        # files of Python as data of tests in another language
        ({"FAIL_TO_PASS": ["rules::tests::path_new_e25_py"], "PASS_TO_PASS": []}, ""),
        ({"FAIL_TO_PASS": ["basics/slice_indices.py"], "PASS_TO_PASS": []}, ""),
        ({"FAIL_TO_PASS": ["check reports an error of models.py"], "PASS_TO_PASS": []}, "pytest"),
        ({"environment": {"test_runner": "go"}}, "go"),
        ({"environment": {"test_runner": "unittest"}}, "unittest"),
    ],
)
def test_only_rows_of_python_get_a_runner_of_python(folder: Path, row: dict[str, Any], runner: str) -> None:
    assert read(folder, **row).answer.runner == runner


@pytest.mark.parametrize("name", ["nunit", "command"])
def test_a_runner_that_cannot_be_graded_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(
        DataError, match=rf"row 1, field environment.test_runner: '{name}' is no runner .* go, .* vitest"
    ):
        read(folder, environment={"test_runner": name})
