"""Environments: the contents of layers, and real images built from package registries."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from m3agent.evals.data.instance import Environment, Instance, Source, Task
from m3agent.evals.data.results import Verdict
from m3agent.evals.environments import environments as environments_module
from m3agent.evals.environments.environments import Environments
from m3agent.evals.environments.recipe import (
    EXACT,
    VENV,
    dependency_layer,
    era_of,
    in_era,
    instance_layer,
    prebuilt_layer,
)
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.validate import HARMLESS
from m3agent.sandbox.backends.docker_machine import LABEL
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.declared.preparation import SuiteNeeds
from m3agent.sandbox.errors import EnvironmentBuildFailed
from m3agent.sandbox.images.debian import DEBIAN, RELEASED, just_built, nearest
from m3agent.sandbox.store.workspace import Workspace
from tests.evals.bases import needs_base, needs_docker
from tests.evals.calc_instance import FILES, TO_FIX, TO_KEEP, small_instance


def task(**environment: object) -> Task:
    return Task(
        instance_id="a-1",
        repo="a/b",
        statement="x",
        created_at=datetime(2022, 5, 6, 23, 59, tzinfo=UTC),
        source=Source(kind="folder", location="/none"),
        environment=Environment.model_validate(environment),
    )


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("3.9", "3.9"), ("3.10", "3.9"), ("3.6", "3.9"), ("3.11", "3.11"), ("3.12", "3.11"), ("3.15", "3.13")],
)
def test_the_nearest_python_is_the_newest_that_is_not_newer(wanted: str, found: str) -> None:
    assert nearest(wanted) == found


def test_every_python_of_a_base_has_its_day() -> None:
    assert set(DEBIAN) <= set(RELEASED)


def test_a_prebuilt_image_keeps_its_toolchains() -> None:
    path = prebuilt_layer("/usr/local/go/bin:/usr/bin").env["PATH"].split(":")
    assert path[:2] == ["/opt/miniconda3/envs/testbed/bin", "/opt/miniconda3/bin"]
    assert path[-1] == "/usr/local/go/bin" and path.count("/usr/bin") == 1


MODULE = {"go.mod": "module a\n", "add_test.go": "package a\n"}


@pytest.mark.parametrize(
    ("files", "suites"),
    [(MODULE, ["go:."]), ({**MODULE, "test_calc.py": ""}, None), ({"calc.py": ""}, None)],
    ids=["another language", "Python as well", "no tests"],
)
async def test_code_without_tests_in_python_gets_what_its_tests_need(
    files: dict[str, str], suites: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_suites(_: object, workspace: Workspace, needs: Sequence[SuiteNeeds], *__: object) -> str:
        assert workspace.entries(workspace.base).keys() == files.keys()
        return " ".join(one.name for one in needs)

    monkeypatch.setattr(environments_module, "connect", MagicMock)
    monkeypatch.setattr(environments_module, "find_image", lambda *_: Image("the default"))
    monkeypatch.setattr(environments_module, "make_room", lambda *_, **__: None)
    monkeypatch.setattr(environments_module, "with_suites", with_suites)
    instance = small_instance(tmp_path, files, patch="", test_patch="")
    image = await Environments(tmp_path / "state", print).image(instance.task)
    assert image == (" ".join(suites) if suites else "the default")


@pytest.mark.integration
@needs_docker
def test_an_image_that_was_removed_just_after_its_build_is_an_error_of_the_machine() -> None:
    api = connect()
    with pytest.raises(EnvironmentBuildFailed, match="removed just after it was built"):
        just_built(api, "m3agent-env:removed")
    api.close()


def test_packages_are_as_of_the_day_but_never_from_before_the_python_was_ripe() -> None:
    assert era_of(task(), "3.9") == date(2022, 5, 6)
    assert era_of(task(), "3.11") == date(2023, 10, 24)
    assert era_of(task(exclude_newer="2020-01-02T00:00:00Z"), "3.11") == date(2020, 1, 2)
    assert era_of(task().model_copy(update={"created_at": None}), "3.11") is None


def test_the_day_is_that_of_utc() -> None:
    assert era_of(task(exclude_newer="2020-01-02T23:00:00-05:00"), "3.11") == date(2020, 1, 3)
    assert era_of(task(exclude_newer="2020-01-02T23:00:00"), "3.11") == date(2020, 1, 2)


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("python -m pip install -e '.[dev]'", "-e '.[dev]'"),
        ("pip install -q 'docutils==0.17.1' 'pytest<8'", "-q 'docutils==0.17.1' 'pytest<8'"),
        ("pip3 install a", "a"),
    ],
)
def test_lines_that_only_install_are_installed_as_of_the_day(line: str, arguments: str) -> None:
    made = in_era(line)
    assert made.startswith("in_era ") and f" {arguments} || {{ {line}; }}" in made


@pytest.mark.parametrize(
    "line",
    [
        "pip install a && pip install b",
        "sed -i s/a/b/ setup.py",
        "pip install $(cat x)",
        "pip uninstall a",
        "make",
    ],
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert in_era(line) == line


@pytest.mark.parametrize(
    ("line", "exact"),
    [("a==1.2", True), ("a[b]==1", True), ("a == 2", True), ("a>=1", False), ("a==1.*", False), ("a", False)],
)
def test_versions_named_exactly_are_known(line: str, exact: bool) -> None:
    assert bool(EXACT.match(line)) is exact


def test_an_exact_version_counts_whatever_its_age() -> None:
    layer = dependency_layer(Environment(pip_packages=("young==9.9", "other")), date(2020, 1, 2), "3.9")
    assert "--exclude-newer 2020-01-02" in layer.script
    assert "--exclude-newer-package young=" in layer.script and "package other=" not in layer.script
    assert layer.files["requirements.txt"] == b"pytest\n"
    assert layer.files["packages.txt"] == b"young==9.9\nother\n"


def test_what_names_pytest_itself_gets_no_second_one() -> None:
    for line in ("pytest", "pytest<8", "pytest==7.1"):
        layer = dependency_layer(Environment(pip_packages=(line,)), None, "3.11")
        assert layer.files["requirements.txt"] == b""
    layer = dependency_layer(Environment(pip_packages=("pytest-cov",)), None, "3.11")
    assert layer.files["requirements.txt"] == b"pytest\n"


def test_values_of_variables_are_quoted() -> None:
    layer = instance_layer(task(variables={"A": "x; rm -rf /"}, install="make"), None, "c" * 40)
    assert "export A='x; rm -rf /'\n" in layer.script


SETUP = """\
from setuptools import setup, Extension
setup(name="calc", version="1", py_modules=["calc"], ext_modules=[Extension("fast", ["fast.c"])],
      install_requires=["iniconfig"])
"""
FAST = """\
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fast", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_fast(void) { return PyModule_Create(&module); }
"""


def installable(folder: Path) -> Instance:
    """Return the small instance as a package with a compiled module that its tests need."""
    files = {
        **FILES,
        "setup.py": SETUP,
        "fast.c": FAST,
        "tests/conftest.py": "import calc, fast, iniconfig\nfrom importlib.metadata import version\nversion('calc')\n",
        ".gitignore": "build/\n",
    }
    instance = small_instance(folder, files)
    recipe = {
        "python": "3.11",
        "pip_packages": ("iniconfig==2.0.0",),
        "pre_install": ('sed -i \'s/version="1"/version="1.5"/\' setup.py',),
        "install": "python -m pip install -e .",
        "variables": {"NAMED": "yes"},
    }
    environment = Environment.model_validate(recipe)
    return instance.model_copy(
        update={
            "task": instance.task.model_copy(
                update={"environment": environment, "created_at": datetime(2024, 3, 1, tzinfo=UTC)}
            )
        }
    )


def compiled_files(image: str) -> bytes:
    find = f"find {VENV} -path '*/_pytest/__pycache__/*.pyc'"
    words = ["docker", "run", "--rm", "--network", "none", image, "sh", "-c", find]
    return subprocess.run(words, check=True, capture_output=True).stdout


@pytest.mark.slow
@needs_base
@pytest.mark.usefixtures("images_alone")
@pytest.mark.timeout(1200)
async def test_an_environment_is_built_once_and_its_instance_graded(tmp_path: Path) -> None:
    said: list[str] = []
    state = tmp_path / "state"
    instance = installable(tmp_path / "instance")
    environments, grader = Environments(state, said.append), Grader(state, said.append, official=True)
    image = await environments.image(instance.task)
    told = len(said)
    assert await environments.image(instance.task) == image and len(said) == told, (
        "the second time nothing is built"
    )
    api = connect()
    labels = api.inspect_image(image)["Config"]["Labels"]
    api.close()
    assert await asyncio.to_thread(compiled_files, image), "packages are compiled when they are installed"
    assert labels[LABEL] == "1" and labels[f"{LABEL}.environment"] == image.partition(":")[2]
    row = {
        "eval_script": (
            "#!/bin/bash\nset -uxo pipefail\nsource /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed\n"
            f"git apply -v - <<'EOF_TESTS'\n{instance.answer.test_patch}EOF_TESTS\n"
            ": '>>>>> Start Test Output'\npytest -rA tests/test_calc.py\n: '>>>>> End Test Output'\n"
        ),
        "log_parser": "parse_log_pytest",
    }
    instance = instance.model_copy(update={"answer": instance.answer.model_copy(update={"row": row})})
    strict, official = await grader.grade(instance, instance.answer.patch.encode(), image, tmp_path)
    assert strict.verdict is Verdict.RESOLVED, strict
    assert (strict.fail_to_pass.passed, strict.pass_to_pass.passed) == (len(TO_FIX), len(TO_KEEP))
    assert official is not None and official.resolved is True, official
    strict, official = await grader.grade(instance, HARMLESS, image, tmp_path)
    assert strict.verdict is Verdict.UNRESOLVED and official is not None and official.resolved is False


@pytest.mark.slow
@needs_base
@pytest.mark.usefixtures("images_alone")
@pytest.mark.timeout(900)
async def test_what_cannot_be_built_says_why(tmp_path: Path) -> None:
    environments = Environments(tmp_path / "state", print)
    instance = small_instance(tmp_path / "instance")
    environment = Environment(python="3.11", install="echo the reason; exit 3")
    with pytest.raises(EnvironmentBuildFailed, match="the reason"):
        await environments.image(instance.task.model_copy(update={"environment": environment}))
