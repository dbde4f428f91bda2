"""Environments: the contents of layers, and real images built from package registries."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from m3agent.evals.data.instance import Environment, Instance, Source, Task
from m3agent.evals.data.results import Verdict
from m3agent.evals.environments import environments as environments_module
from m3agent.evals.environments.environments import Environments
from m3agent.evals.environments.recipe import (
    EXACT,
    VENV,
    Layer,
    era_of,
    in_era,
    instance_layer,
    packages_layer,
    prebuilt_layer,
    python_layer,
    resolution,
)
from m3agent.evals.grade.grader import Grader
from m3agent.evals.grade.validate import HARMLESS, validate
from m3agent.sandbox.backends.docker_machine import LABEL
from m3agent.sandbox.backends.engine import connect
from m3agent.sandbox.backends.image import Image
from m3agent.sandbox.declared.preparation import SuiteNeeds
from m3agent.sandbox.errors import EngineFailed, EnvironmentBuildFailed, SandboxDied
from m3agent.sandbox.images.debian import BaseImage, just_built
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
    ("python", "pip", "setuptools"),
    [
        ("3.5", "20.3.4", "setuptools==50.3.2"),
        ("3.6", "21.3.1", "setuptools==59.6.0"),
        ("3.7", "24.0", "setuptools==68.0.0"),
        ("3.12", "24.0", "setuptools"),
    ],
)
def test_the_virtual_environment_has_what_its_python_supports(python: str, pip: str, setuptools: str) -> None:
    script = python_layer(Environment(python=python), python).script
    assert f"command -v python{python} || command -v python3" in script
    assert f"pip install -q pip=={pip} " in script and f"pip install -q {setuptools} wheel\n" in script


def test_a_prebuilt_image_keeps_its_toolchains() -> None:
    path = prebuilt_layer("/usr/local/go/bin:/usr/bin").env["PATH"].split(":")
    assert path[:2] == ["/opt/miniconda3/envs/testbed/bin", "/opt/miniconda3/bin"]
    assert path[-1] == "/usr/local/go/bin" and path.count("/usr/bin") == 1


@pytest.mark.parametrize(
    ("error", "kind"), [(EngineFailed, SandboxDied), (EnvironmentBuildFailed, EnvironmentBuildFailed)]
)
async def test_an_engine_that_fails_does_not_make_an_instance_invalid(
    error: type[Exception], kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments_module, "connect", MagicMock)
    monkeypatch.setattr(environments_module, "base_image", MagicMock(side_effect=error("it")))
    with pytest.raises(kind, match=r"^it$") as caught:
        await Environments(tmp_path / "state", print).image(task(python="3.11"))
    assert type(caught.value) is kind


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


@pytest.mark.docker
@needs_docker
async def test_an_image_that_no_registry_has_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments_module, "pull", lambda *_: False)
    found = await validate(
        Instance(task=task(image="nobody/none:1"), answer=small_instance(tmp_path / "instance").answer),
        Environments(tmp_path / "state", print),
        Grader(tmp_path / "state", print),
    )
    why = "no registry has nobody/none:1, and the row does not say how to build it"
    assert (found.valid, found.machine_failed, found.reason) == (False, False, why)


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


DAY = date(2020, 1, 2)


def test_an_exact_version_counts_whatever_its_age() -> None:
    environment = Environment(pip_packages=("young==9.9", "other"))
    for layer in (resolution(environment, DAY), packages_layer(environment, DAY)):
        assert "--exclude-newer 2020-01-02" in layer.script
        assert "--exclude-newer-package young=" in layer.script and "package other=" not in layer.script
        assert layer.files == {"requirements.txt": b"pytest\n", "packages.txt": b"young==9.9\nother\n"}


def test_what_names_pytest_itself_gets_no_second_one() -> None:
    for line in ("pytest", "pytest<8", "pytest==7.1"):
        layer = packages_layer(Environment(pip_packages=(line,)), None)
        assert layer.files["requirements.txt"] == b""
    layer = packages_layer(Environment(pip_packages=("pytest-cov",)), None)
    assert layer.files["requirements.txt"] == b"pytest\n"


def test_what_was_resolved_takes_the_place_of_the_date() -> None:
    environment, found = Environment(pip_packages=("a==1",)), {"requirements.txt": b"pytest==5.3.2\n"}
    layer = packages_layer(environment, DAY, found)
    assert layer == packages_layer(environment, date(2020, 1, 3), found)
    assert layer.files == found and "exclude-newer" not in layer.script
    assert packages_layer(environment, DAY) != packages_layer(environment, date(2020, 1, 3))
    assert packages_layer(environment, DAY, {}) == packages_layer(environment, DAY)


class Machine:
    """An engine in memory: it has the images that were built, and resolves packages as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, resolved: Mapping[str, Mapping[str, bytes]]) -> None:
        self.images: dict[str, str] = {}
        self.resolved = resolved
        self.asked: list[str] = []

        def files_of(_: object, layer: Layer, below: Image, *__: object, log: Path, **___: object) -> object:
            log.touch()
            day = re.findall(r"--exclude-newer (\S+)", layer.script)[0]
            self.asked.append(day)
            return dict(self.resolved[day])

        def build_layer(_: object, layer: Layer, below: Image, tag: str, **__: object) -> None:
            self.images[tag] = layer.name

        def image(_: object, tag: str) -> Image | None:
            return Image(tag, ident=tag) if tag in self.images else None

        code = SimpleNamespace(path=Path("/none"), proof=SimpleNamespace(head="c" * 40))
        base = BaseImage(Image("base", ident="base"), "3.11")
        for name, fake in {
            "connect": MagicMock,
            "base_image": lambda *_, **__: base,
            "codebase": lambda *_: code,
            "make_room": lambda *_, **__: None,
            "local_image": image,
            "just_built": image,
            "build_layer": build_layer,
            "files_of": files_of,
        }.items():
            monkeypatch.setattr(environments_module, name, fake)

    @property
    def built(self) -> Counter[str]:
        return Counter(self.images.values())


def dated(day: str, number: int) -> Task:
    made = task(python="3.11", install="true", exclude_newer=f"{day}T12:00:00Z")
    return made.model_copy(update={"instance_id": f"a-{number}"})


async def test_instances_whose_packages_resolve_alike_share_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = {"requirements.txt": b"pytest==8.0\n"}, {"requirements.txt": b"pytest==8.1\n"}
    machine = Machine(
        monkeypatch,
        {"2024-03-01": old, "2024-03-02": old, "2024-03-09": new, "2024-04-01": {}, "2024-04-02": {}},
    )
    environments = Environments(tmp_path, print)
    for number, day in enumerate([*machine.resolved, "2024-03-01"]):
        await environments.image(dated(day, number))
    # those of the last two days could not be resolved: the date decides
    assert machine.built == {"virtual environment": 1, "packages": 4, "image": 5}
    assert machine.asked == list(machine.resolved), "what a date means is found once"
    await Environments(tmp_path, print).image(dated("2024-04-01", 9))
    assert machine.asked == list(machine.resolved), "also by the next process"
    assert not list(tmp_path.rglob("*.log")), "a resolution that succeeded leaves no log"


async def test_without_a_date_nothing_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {})
    undated = task(python="3.11").model_copy(update={"created_at": None})
    await Environments(tmp_path, print).image(undated)
    assert not machine.asked and machine.built == {"virtual environment": 1, "packages": 1, "image": 1}


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
    created = {"created_at": datetime(2024, 3, 1, tzinfo=UTC)}
    task = instance.task.model_copy(update={"environment": Environment.model_validate(recipe), **created})
    return instance.model_copy(update={"task": task})


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
    instance = instance.with_answer(row=row)
    strict, official = await grader.grade(instance, instance.answer.reference, image, tmp_path)
    assert strict.verdict is Verdict.RESOLVED, strict
    assert (strict.fail_to_pass.passed, strict.pass_to_pass.passed) == (len(TO_FIX), len(TO_KEEP))
    assert official is not None and official.resolved is True, official
    strict, official = await grader.grade(instance, HARMLESS, image, tmp_path)
    assert strict.verdict is Verdict.UNRESOLVED and official is not None and official.resolved is False


@pytest.mark.slow
@needs_base
@pytest.mark.usefixtures("images_alone")
@pytest.mark.timeout(900)
async def test_packages_are_resolved_and_shared_in_real_images(tmp_path: Path) -> None:
    """pytest 8.0.2 is of 2024-02-24, 8.1.0 of 2024-03-03; docopt has no wheel, so its environment keeps its date."""
    environments = Environments(tmp_path / "state", print)
    instance = small_instance(tmp_path / "instance")

    async def made(day: str, *packages: str) -> tuple[list[str], list[str]]:
        """Return the packages, and the ids of the layers below the instance's own."""
        recipe = {"python": "3.11", "pip_packages": packages, "exclude_newer": f"{day}T00:00:00Z"}
        environment = Environment.model_validate(recipe)
        image = await environments.image(instance.task.model_copy(update={"environment": environment}))
        words = ["docker", "run", "--rm", "--network", "none", image, "pip", "freeze", "--all"]
        done = await asyncio.to_thread(subprocess.run, words, check=True, capture_output=True, text=True)
        api = connect()
        layers = api.inspect_image(image)["RootFS"]["Layers"]
        api.close()
        return done.stdout.splitlines(), layers[:-1]

    first, below = await made("2024-02-26")
    assert "pytest==8.0.2" in first
    assert "setuptools==68.0.0" in first, "an installed version that fits is kept"
    assert (await made("2024-02-28")) == (first, below)
    old, dated = await made("2024-02-28", "pytest<8", "docopt")
    assert "pytest==7.4.4" in old and "docopt==0.6.2" in old
    assert (await made("2024-02-26", "pytest<8", "docopt"))[1] != dated != below
    _, with_option = await made("2024-02-26", "--prefer-binary", "pytest<8")
    assert (await made("2024-02-28", "--prefer-binary", "pytest<8"))[1] != with_option, (
        "options keep the date"
    )


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
