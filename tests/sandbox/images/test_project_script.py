"""What of a project's build is kept, without a build."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from m3agent.sandbox.images import project_script
from m3agent.sandbox.images.project_script import kept_files, places, rust_problem

MODULE = "fast.cpython-311-x86_64-linux-gnu.so"


def test_paths_in_the_wheel_become_paths_in_the_tree() -> None:
    tracked = ["src/own/__init__.py", "other.py", "tests/own/__init__.py", "lib/deep/more/__init__.py"]
    built = dict.fromkeys(
        ["own/__init__.py", "own/_v.py", f"own/{MODULE}", "other.py", "deep/more/__init__.py", MODULE], b""
    )
    found = places(tracked, built)
    assert found["own/_v.py"] == "src/own/_v.py"
    assert found[f"own/{MODULE}"] == f"src/own/{MODULE}"
    assert found["other.py"] == "other.py"
    assert found["deep/more/__init__.py"] == "lib/deep/more/__init__.py"
    assert found[MODULE] == MODULE


def test_a_wheel_that_shares_nothing_with_the_tree() -> None:
    assert places([], {f"own/{MODULE}": b""}) == {f"own/{MODULE}": f"own/{MODULE}"}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A build whose wheel has much that nobody asked for."""
    monkeypatch.setattr(project_script, "TREE", tmp_path / "tree")
    monkeypatch.setattr(project_script, "WHEELS", tmp_path)
    (tmp_path / "tree/own").mkdir(parents=True)
    (tmp_path / "tree/own/_v.py").write_bytes(b"from the tree")
    with zipfile.ZipFile(tmp_path / "own-1.whl", "w") as wheel:
        for name in ("own/__init__.py", "own/_v.py", "own/_w.py", "own/extra.py", f"own/{MODULE}"):
            wheel.writestr(name, b"from the wheel")
        for name in ("sitecustomize.py", "own.pth", "conftest.so", "sitecustomize.abi3.so", "own/test_x.so"):
            wheel.writestr(name, b"never")
        wheel.writestr("own-1.dist-info/METADATA", b"never")
        wheel.writestr(f"own-1.data/platlib/own/more.{MODULE}", b"from the wheel")
        wheel.writestr("own-1.data/scripts/x.so", b"never")
    files = ["own/__init__.py", "setup.py"]
    return {"version_files": ["own/_v.py", "own/_w.py"], "extensions": True, "tracked": files}


def test_only_version_files_and_modules_are_kept(job: dict[str, Any]) -> None:
    assert kept_files(job) == {
        "own/_v.py": b"from the tree",
        "own/_w.py": b"from the wheel",
        f"own/{MODULE}": b"from the wheel",
        f"own/more.{MODULE}": b"from the wheel",
    }


def test_modules_are_kept_only_if_the_project_compiles_some(job: dict[str, Any]) -> None:
    assert kept_files({**job, "extensions": False}).keys() == {"own/_v.py", "own/_w.py"}


def test_a_file_of_the_tree_is_never_replaced(job: dict[str, Any]) -> None:
    job["tracked"] += [f"own/{MODULE}"]
    assert f"own/{MODULE}" not in kept_files(job)


def test_a_build_without_a_wheel_keeps_what_it_wrote_before(job: dict[str, Any]) -> None:
    (project_script.WHEELS / "own-1.whl").unlink()
    assert kept_files(job) == {"own/_v.py": b"from the tree"}


@pytest.mark.parametrize(
    ("wanted", "has", "problem"),
    [
        ("1.95", "cargo 1.96.0 (abc 2026-01-01)\n", None),
        ("1.95.1", "cargo 1.95.0", None),
        ("", "cargo 1.63.0", None),
        ("1.95", "cargo 1.85.0 (Debian)", "needs Rust 1.95, and the image has only 1.85.0"),
        ("1.100", "cargo 1.96.0", "needs Rust 1.100, and the image has only 1.96.0"),
        ("", None, "needs Rust, and the image has none"),
    ],
)
def test_a_rust_that_is_too_old_is_named(wanted: str, has: str | None, problem: str | None) -> None:
    assert rust_problem(wanted, has) == (problem and f"the project's build {problem}")
