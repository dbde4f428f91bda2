"""The installation of requirements of which some cannot be installed, without an installation."""

from __future__ import annotations

import itertools
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from m3agent.sandbox.images import env_script
from m3agent.sandbox.images.env_script import downloaded_uv, install, make_environment, make_with_pip


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The requirements that are installed. A run fails if one of its requirements, or of its constraints, is bad."""
    there: set[str] = set()

    def run(argv: list[str], env: dict[str, str]) -> bool:
        values = {option: [v for o, v in itertools.pairwise(argv) if o == option] for option in argv}
        lines = {line for file in values["-r"] for line in Path(file).read_text().splitlines()}
        bounds = {line for file in values.get("-c", []) for line in Path(file).read_text().splitlines()}
        if any("bad" in line for line in lines | bounds):
            return False
        there.update(lines)
        return True

    monkeypatch.setattr(env_script, "HERE", tmp_path)
    monkeypatch.setattr(env_script, "run", run)
    return there


@pytest.mark.parametrize(
    ("sure", "optional", "constraints", "there", "notices"),
    [
        ("a b", "c", "", "a b c", []),
        ("a", "c bad1 d e bad2", "", "a c d e", ["bad1", "bad2"]),
        ("a", "bad1", "", "a", ["bad1"]),
        ("a", "c", "bad==1", "a c", ["the locked versions"]),
        ("a", "c bad1", "bad==1", "a c", ["the locked versions", "bad1"]),
        ("a bad1", "c", "", None, []),
    ],
)
def test_as_much_as_possible_is_installed(
    installed: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sure: str,
    optional: str,
    constraints: str,
    there: str | None,
    notices: list[str],
) -> None:
    for name, words in (("requirements", sure), ("optional", optional), ("constraints", constraints)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{word}\n" for word in words.split()))
    assert install(["uv"], {}) == (there is not None)
    assert installed == set((there or "").split())
    said = capsys.readouterr().out.splitlines()
    assert said == [f"notice: without {what}, which cannot be installed here" for what in notices]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that ran; each succeeds."""
    programs: list[list[str]] = []

    def run(argv: list[str], env: dict[str, str]) -> bool:
        assert "PIP_NO_CACHE_DIR" not in env or "pip" not in argv
        programs.append(argv)
        return True

    monkeypatch.setattr(env_script, "run", run)
    return programs


@pytest.mark.parametrize(
    ("version", "makes", "installs"),
    [
        ((3, 5), "-m venv", "/env/bin/python3 -m pip install"),
        ((3, 6), "uv venv", "uv pip install --python /env/bin/python3 --exclude-newer 2020-01-02"),
        (
            (3, 7),
            "uv venv",
            "uv pip install --python /env/bin/python3 --compile-bytecode --exclude-newer 2020-01-02",
        ),
    ],
)
def test_uv_installs_where_it_knows_the_python(
    ran: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, int],
    makes: str,
    installs: str,
) -> None:
    monkeypatch.setattr(env_script, "version_of", lambda *_: version)
    job = {"folder": "/env", "exclude_newer": "2020-01-02", "pythons": []}
    assert " ".join(make_environment("uv", job, {"PATH": ""})) == installs
    assert makes in " ".join(ran[0])


def test_uv_never_asks_an_index_for_what_the_tree_contains_and_takes_the_repositorys_overrides(
    ran: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_script, "version_of", lambda *_: (3, 11))
    monkeypatch.setattr(env_script, "HERE", tmp_path)
    job = {
        "folder": "/env",
        "exclude_newer": "",
        "pythons": [],
        "not_of_index": ["own-core"],
        "overrides": ["x>=3"],
    }
    assert make_environment("uv", job, {"PATH": ""})[-2:] == ["--override", str(tmp_path / "overrides.txt")]
    assert (tmp_path / "overrides.txt").read_text() == "own-core ; python_version < '0'\nx>=3\n"


@pytest.mark.parametrize(
    ("version", "installed"),
    [
        ((3, 5), ["pip==20.3.4", "setuptools==50.3.2"]),
        ((3, 6), ["pip==21.3.1", "setuptools==59.6.0"]),
        ((3, 9), ["pip"]),
    ],
)
def test_an_old_python_gets_the_last_pip_that_works_on_it(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], installed: list[str]
) -> None:
    monkeypatch.setattr(env_script, "version_of", lambda *_: version)
    assert make_with_pip("python3", "/env", {"PIP_NO_CACHE_DIR": "1"})
    assert [argv[-1] for argv in ran[1:]] == installed


@pytest.mark.parametrize(
    ("pythons", "on_path", "of_uv", "found"),
    [
        ([], (), None, "own"),
        (["3.99", "own"], ("3.99",), None, "own"),
        (["3.99"], ("3.99",), None, "/bin/python3.99"),
        (["3.98", "3.99"], ("3.99",), None, "/bin/python3.99"),
        (["3.99"], (), "/env/python/3.99", "/env/python/3.99"),
        (["3.99"], (), None, "own"),
    ],
)
def test_an_environment_gets_a_python_of_the_image_that_the_project_accepts(
    monkeypatch: pytest.MonkeyPatch,
    pythons: list[str],
    on_path: tuple[str, ...],
    of_uv: str | None,
    found: str,
) -> None:
    own = "{}.{}".format(*sys.version_info)
    named = {f"python{python}": f"/bin/python{python}" for python in on_path}
    monkeypatch.setattr(shutil, "which", lambda name, path: named.get(name))
    monkeypatch.setattr(env_script, "output", lambda *_: of_uv)
    job = {"folder": "/env", "pythons": [own if python == "own" else python for python in pythons]}
    expected = sys.executable if found == "own" else found
    assert env_script.find_python("uv", job, {"PATH": "/bin"}) == expected


def test_uv_is_taken_out_of_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], env: dict[str, str]) -> bool:
        folder = Path(argv[argv.index("--dest") + 1])
        folder.mkdir()
        with zipfile.ZipFile(folder / "uv-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("uv-1.0.data/scripts/uvx", "no")
            wheel.writestr("uv-1.0.data/scripts/uv", "program")
        return True

    monkeypatch.setattr(env_script, "run", run)
    monkeypatch.setattr(env_script, "SCRATCH", tmp_path)
    uv = Path(downloaded_uv(["pip"], {}))
    assert uv.read_text() == "program" and uv.stat().st_mode & 0o111
