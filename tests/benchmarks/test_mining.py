import subprocess
from pathlib import Path

import pytest
from benchmarks.mining import mine, open_history

from m3agent.sandbox.store.git import GitFailed

BEFORE = '"""Doc."""\n\n\ndef f(x):\n    """Doc."""\n    return x - 1\n'


def commit(repo: Path, message: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        (repo / path).parent.mkdir(exist_ok=True)
        (repo / path).write_text(text)
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for args in (["add", "-A"], [*identity, "commit", "-q", "-m", message]):
        subprocess.run(["git", *args], cwd=repo, check=True)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    repo = tmp_path / "repo"
    repo.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=repo, check=True)
    commit(repo, "Fix nothing: the first commit", {"f.py": BEFORE, "tests/test_f.py": "x = 0\n"})
    return repo


def found(repo: Path, tmp_path: Path) -> list[tuple[str, int, int]]:
    store, head = open_history(repo, tmp_path / "store.git")
    return [(repair.message, repair.added, repair.removed) for repair in mine(store, head)]


def test_counts_code_alone_and_takes_the_newest_first(repo: Path, tmp_path: Path) -> None:
    one = BEFORE.replace("Doc.", "Doc,\n\n    more,\n    and more.").replace("x - 1", "x + 1")
    commit(repo, "Fix the sign", {"f.py": one, "tests/test_f.py": "x = 1\n", "NEWS": "sign\n"})
    guarded = one.replace("    return", "    # a guard\n\n    if x is None:\n        return 0\n    return")
    commit(repo, "No bug any more\n\nBody.", {"f.py": guarded, "tests/test_f.py": "x = 2\n"})
    assert found(repo, tmp_path) == [("No bug any more\n\nBody.", 2, 0), ("Fix the sign", 1, 1)]


@pytest.mark.parametrize(
    ("message", "files"),
    [
        ("Add a feature", {"f.py": BEFORE.replace("- 1", "+ 1"), "tests/test_f.py": "x = 1\n"}),
        ("Fix without a test", {"f.py": BEFORE.replace("- 1", "+ 1")}),
        ("Fix the docstring", {"f.py": BEFORE.replace("Doc", "Text"), "tests/test_f.py": "x = 1\n"}),
        ("Fix the layout", {"f.py": BEFORE.replace("x - 1", "x  -  1"), "tests/test_f.py": "x = 1\n"}),
        ("Fix syntax", {"f.py": "print 1\n", "tests/test_f.py": "x = 1\n"}),
        ("Fix two", {"f.py": BEFORE.replace("- 1", "+ 1"), "g.py": "", "tests/test_f.py": "x = 1\n"}),
        ("Fix a lot", {"f.py": BEFORE + "a = 1\nb = 2\nc = 3\nd = 4\n", "tests/test_f.py": "x = 1\n"}),
    ],
)
def test_leaves_out(repo: Path, tmp_path: Path, message: str, files: dict[str, str]) -> None:
    commit(repo, message, files)
    assert found(repo, tmp_path) == []


def test_folder_that_is_not_a_repository(tmp_path: Path) -> None:
    with pytest.raises(GitFailed):
        open_history(tmp_path, tmp_path / "store.git")
