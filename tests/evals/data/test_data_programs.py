"""Folders of small programs: how they become instances, and the errors for incomplete ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from m3agent.evals.data.instance import DataError
from m3agent.evals.data.load import digest, load
from tests.agent.repositories import write_files
from tests.conftest import git
from tests.evals.data_rows import SHARED

HALF = "def half(n):\n    return n // 3\n"
PROGRAM: dict[str, str | bytes] = {
    "programs/half/half.py": HALF,
    "programs/half/test_half.py": "from half import half\ndef test_half(): assert half(4) == 2\n",
    "programs/half/half.json": "[[4], 2]\n",
    "programs/half/ISSUE.md": "# half(4) is 1\n",
    "gold/half.py": HALF.replace("3", "2"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "set", PROGRAM)
    return tmp_path / "set"


def test_a_program_becomes_an_instance(folder: Path) -> None:
    (instance,) = load(str(folder))
    assert instance.id == "half"
    assert instance.task.statement == "# half(4) is 1\n"
    assert instance.answer.only == ("half.py",)
    assert instance.answer.timeout == 60
    assert instance.answer.fail_to_pass == ()
    assert instance.answer.runner == "pytest"
    assert "n // 2" not in instance.task.model_dump_json()


def test_its_patch_makes_the_right_module_of_the_faulty_one(folder: Path, tmp_path: Path) -> None:
    (folder / "gold" / "half.py").write_bytes(b"# no line end\r\ndef half(n): return n // 2")
    (instance,) = load(str(folder))
    copy = tmp_path / "copy"
    shutil.copytree(folder / "programs" / "half", copy)
    (tmp_path / "patch.diff").write_bytes(instance.answer.patch.encode())
    git(copy, "apply", str(tmp_path / "patch.diff"))
    assert (copy / "half.py").read_bytes() == (folder / "gold" / "half.py").read_bytes()


def test_running_the_tests_beforehand_changes_nothing(folder: Path) -> None:
    before = digest(load(str(folder)))
    write_files(
        folder / "programs" / "half", {"__pycache__/half.cpython-311.pyc": b"x", ".pytest_cache/x": b"x"}
    )
    write_files(folder / "programs", {"__pycache__/x.pyc": b"x", "README.md": b"x"})
    assert digest(load(str(folder))) == before
    write_files(folder / "programs" / "half", {"more.py": b"x"})
    assert digest(load(str(folder))) != before


@pytest.mark.parametrize(
    ("path", "content"),
    [(path, None) for path in PROGRAM if not path.endswith(".json")]
    + [
        ("gold/half.py", HALF.encode()),
        ("gold/half.py", b"\xff\xfe"),
        ("programs/half/ISSUE.md", b" \n"),
        ("programs/half/ISSUE.md", b"\xff\xfe"),
    ],
)
def test_a_program_that_is_not_whole_is_named_with_the_file(
    folder: Path, path: str, content: bytes | None
) -> None:
    (folder / path).unlink()
    if content is not None:
        (folder / path).write_bytes(content)
    with pytest.raises(DataError, match=Path(path).name):
        load(str(folder))


@pytest.mark.parametrize("path", ["gold/half.py", "programs/half/ISSUE.md", "programs/half/more.txt"])
def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").write_text("x\n")
    (folder / path).unlink(missing_ok=True)
    (folder / path).symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match="refused"):
        load(str(folder))


def test_invalid_id_is_refused(folder: Path) -> None:
    (folder / "programs" / "half").rename(folder / "programs" / "a b")
    with pytest.raises(DataError, match="a b: its name is not an id"):
        load(str(folder))


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real benchmark data beside the repository")
def test_real_programs_are_read() -> None:
    instances = load(str(SHARED / "quixbugs-dev"))
    assert len(instances) == 20
    assert len({instance.task.base_commit for instance in instances}) == 20
