"""Packaging: wheel, source distribution, links, imports, versions."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

import m3agent
from tests.installs import ROOT, build

PACKAGES = ["agent", "cli", "evals", "integrations", "sandbox", "serving", "tools", "util"]
# Packages that `m3agent --help` must not import. It may import typer, click and the standard library.
HEAVY = [
    "docker",
    "git",
    "httpx",
    "httpx2",
    "jinja2",
    "openai",
    "pydantic",
    "pytest",
    "requests",
    "rich",
    "starlette",
    "tenacity",
    "uvicorn",
]


def sources() -> set[str]:
    """Return the Python files of the packages, with their names in the distribution `m3agent`."""
    return {
        f"m3agent/{path.relative_to(ROOT).as_posix()}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = f"m3agent-{m3agent.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"m3agent", "m3agent_verifiers.py", metadata}
    assert {name for name in names if name.endswith(".py")} == {
        *sources(),
        "m3agent/__init__.py",
        "m3agent/__main__.py",
        "m3agent_verifiers.py",
    }
    assert {name.split("/")[1] for name in names if name.startswith("m3agent/")} == {
        *PACKAGES,
        "__init__.py",
        "__main__.py",
        "py.typed",
    }
    assert f"{metadata}/licenses/LICENSE" in names


def test_the_wheel_holds_the_tables_and_option_listings_and_reads_them(wheel: Path) -> None:
    tables = (path for package in PACKAGES for path in (ROOT / package).rglob("*.toml"))
    files = [*(ROOT / "serving").glob("plan/listings/*"), *tables]
    data = {path.relative_to(ROOT).as_posix() for path in files}
    with zipfile.ZipFile(wheel) as archive:
        assert {f"m3agent/{name}" for name in data} <= set(archive.namelist())
    program = "import sys; sys.path.insert(0, sys.argv[1])\n"
    program += "from m3agent.serving.plan.listing import listing; print(listing('vllm').version)\n"
    program += "from m3agent.serving.facts.table import TABLES, raw_rows, raw_text\n"
    program += "print(all(raw_rows(table, raw_text(table)) for table in TABLES))"
    command = [sys.executable, "-I", "-c", program, str(wheel)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0.33.0\nTrue\n"


def test_the_wheel_holds_the_reporters_of_test_runners(wheel: Path) -> None:
    found = (ROOT / "tools/runners").rglob("reporters/*")
    reporters = {path.relative_to(ROOT).as_posix() for path in found if path.is_file()}
    assert reporters
    with zipfile.ZipFile(wheel) as archive:
        assert {f"m3agent/{name}" for name in reporters} <= set(archive.namelist())


def test_the_wheel_installs_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(f"m3agent-{m3agent.__version__}.dist-info/entry_points.txt").decode()
    assert "m3agent = m3agent.__main__:main" in entry_points


def test_the_wheel_works_from_its_own_files(wheel: Path) -> None:
    """Without the links of `src/`: the wheel alone on the path provides every package."""
    program = "import importlib, sys; sys.path.insert(0, sys.argv[1])\n"
    program += f"for name in {PACKAGES}: print(importlib.import_module('m3agent.' + name).__file__)"
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(wheel)], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [f"{wheel}/m3agent/{name}/__init__.py" for name in PACKAGES]


@pytest.mark.slow
@pytest.mark.integration
def test_the_source_distribution_builds_the_same(tmp_path: Path) -> None:
    (tmp_path / "sdist").mkdir()
    archive = build("sdist", tmp_path / "sdist")
    with tarfile.open(archive) as packed:
        names = {name.split("/", 1)[1] for name in packed.getnames()}
    assert {name.removeprefix("m3agent/") for name in sources()} <= names
    assert not [name for name in names if re.match(r"(\.venv|\.setup|\.git)/|.*\.pyc$", name)]


@pytest.mark.parametrize("package", PACKAGES)
def test_links_lead_to_the_packages(package: str) -> None:
    link = ROOT / "src" / "m3agent" / package
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == ROOT / package


def test_there_is_nothing_else_beside_the_links() -> None:
    names = {path.name for path in (ROOT / "src" / "m3agent").iterdir()} - {"__pycache__"}
    assert names == {*PACKAGES, "__init__.py", "__main__.py", "py.typed"}


def test_version_is_printed_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == m3agent.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", m3agent.__version__)
    assert f"## [{m3agent.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.integration
def test_the_command_line_starts_light() -> None:
    """Protect the start time of `m3agent --help` without measuring it: it must not import heavy packages."""
    program = f"import m3agent.cli.app, sys; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def normal(name: str) -> str:
    """Return a distribution's name in normal form, as packaging tools compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.slow
def test_every_import_is_declared() -> None:
    """pyproject.toml declares every package that the product imports, also if another dependency would install it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {normal(re.split(r"[^\w.-]", requirement)[0]) for listed in lists for requirement in listed}
    known = {*sys.stdlib_module_names, "m3agent", "_typeshed"}
    provided = packages_distributions()
    undeclared = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in {*PACKAGES}
        - {"integrations"}  # only the frameworks import these, so they are installed
        for path in (ROOT / package).rglob("*.py")
        for name in {module.partition(".")[0] for module in imported(path)} - known
        if declared.isdisjoint(map(normal, provided.get(name, [])))
    ]
    assert undeclared == []


def test_a_tag_publishes_what_passed_the_checks_without_a_stored_password() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert "secrets." not in text
    assert "password" not in text
    assert "workflow_call:" in (ROOT / jobs["checks"]["uses"]).read_text()
    assert set(jobs["publish"]["needs"]) == jobs.keys() - {"publish"}
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert not [step for step in jobs["publish"]["steps"] if "run" in step], "none of our code gets the token"


@pytest.mark.slow
@pytest.mark.integration
def test_a_release_checks_the_names_of_the_packages(wheel: Path, tmp_path: Path) -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    [check] = re.findall(r"run: (test -f .*)", text)
    (tmp_path / "dist").mkdir()
    for name in (wheel.name, build("sdist", tmp_path / "sdist").name):
        (tmp_path / "dist" / name).touch()
    for tag, passes in ((f"v{m3agent.__version__}", True), ("v9.9.9", False)):
        done = subprocess.run(["bash", "-c", check], cwd=tmp_path, env={"GITHUB_REF_NAME": tag}, check=False)
        assert (done.returncode == 0) == passes
