"""Test `m3agent context`: its output, options, refusals and exit codes, with and without a cache."""

from __future__ import annotations

import inspect
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from m3agent.agent.context.packer import PackOptions
from m3agent.cli import app as cli
from m3agent.cli import context as command
from m3agent.util.errors import OUTPUT_CLOSED
from tests.agent.repositories import NewRepo, run_git
from tests.agent.small_tokenizer import write_tokenizer
from tests.command_line import Process, Stream

pytestmark = pytest.mark.integration

HEAVY = {"typer", "click", "pydantic", "typing", "re", "dataclasses", "subprocess", "pathlib", "enum", "json"}


class Program:
    """The installed command, with its own folders."""

    def __init__(self, folder: Path) -> None:
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
        }

    def __call__(self, *args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        process = self.start(*args, cwd=cwd)
        output, errors = process.communicate()
        return subprocess.CompletedProcess(args, process.wait(), output, errors)

    def start(self, *args: str | Path, cwd: Path | None = None, stdout: Stream = subprocess.PIPE) -> Process:
        return Process("context", *map(str, args), cwd=cwd, env=self.env, stdout=stdout)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def repo(new_repo: NewRepo) -> Path:
    return new_repo(
        files={"a.py": b"x = 1\n", "d/b.md": b"text\n", "logo.png": b"\x89PNG", ".env": b"TOKEN=hush"}
    )


@pytest.mark.integration
def test_the_text_goes_to_standard_output(program: Program, repo: Path) -> None:
    argv = [sys.executable, "-m", "m3agent.agent", "context", "--repo", str(repo)]
    done = subprocess.run(argv, env=program.env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        b'<file path="d/b.md">\ntext\n</file>\n<file path="a.py">\nx = 1\n</file>\n'
        b"<not_shown>\nThese files exist but are not shown here; file_read reads them:\nlogo.png\n</not_shown>\n"
    )
    assert (
        done.stderr.decode()[1:] == "56 tokens in 2 files, 2 left out\n"
    )  # after ≈, or ~ where the locale is C
    assert program("--repo", repo / "d").stdout == done.stdout
    assert program(cwd=repo).stdout == done.stdout


def test_the_whole_command_line_answers_the_same(program: Program, repo: Path) -> None:
    quick = program("--repo", repo, "--exclude", "*.md", "--budget", "500")
    (repo / ".m3agent.toml").write_text("context_budget = 500\n")
    whole = program("--repo", repo, "--exclude", "*.md", "--exclude", ".m3agent.toml")
    assert (whole.returncode, whole.stdout.replace(b".m3agent.toml\n", b"")) == (0, quick.stdout)


@pytest.mark.integration
def test_a_pack_from_cache_imports_next_to_nothing(program: Program, repo: Path, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    code = (
        "import os, sys\n"
        "os._exit = lambda code: print(*sys.modules, file=sys.stderr)\n"
        "from m3agent.cli.context import main\n"
        "main(sys.argv[1:])\n"
    )
    argv = [sys.executable, "-c", code, "--repo", str(repo), "--tokenizer", str(tokenizer), "-o", os.devnull]
    subprocess.run(argv, env=program.env, capture_output=True, check=True)
    done = subprocess.run(argv, env=program.env, capture_output=True, text=True, check=True)
    assert set(done.stderr.split()) & HEAVY == set()
    assert "m3agent.agent.context.pack" in done.stderr
    assert not {"m3agent.agent.context.chunks", "m3agent.agent.context.tokenizer.counter"} & set(
        done.stderr.split()
    )


def test_the_quick_way_has_the_options_of_the_whole_command_line() -> None:
    """The fast parser knows only options of the full command line, so it answers none that --help does not document."""
    names = {f"--{name}" for name in inspect.signature(cli.context).parameters}
    assert {*command.VALUES, "--stats"} - {"-o"} <= names
    known = {*inspect.get_annotations(PackOptions), *inspect.signature(command.run).parameters}
    assert {"budget", "include", "exclude", "output", "stats", "verify", "issue"} <= known


def test_a_file_is_written_whole_or_not_at_all(program: Program, repo: Path, tmp_path: Path) -> None:
    out = tmp_path / "context.txt"
    done = program("--repo", repo, "-o", out)
    assert (done.returncode, done.stdout) == (0, b"")
    assert out.read_bytes() == program("--repo", repo).stdout
    missing = program("--repo", repo, "--output", tmp_path / "none" / "context.txt")
    assert missing.returncode == 3
    assert b"No such file or directory" in missing.stderr and b"Traceback" not in missing.stderr
    assert program("--repo", repo, "-o", "/dev/full").returncode == 3
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("context")) == [
        "context.txt"
    ]


@pytest.mark.parametrize("target", ["/dev/zero", "a pipe"])
def test_settings_that_are_no_file(program: Program, repo: Path, target: str) -> None:
    """Reading them would use all memory, or wait for ever."""
    if target == "a pipe":
        os.mkfifo(repo / "pyproject.toml")
    else:
        (repo / "pyproject.toml").symlink_to(target)
    limited = [
        "prlimit",
        f"--as={2 << 30}",
        sys.executable,
        "-m",
        "m3agent.agent",
        "context",
        "--repo",
        str(repo),
    ]
    done = subprocess.run(limited, env=program.env, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert b"x = 1" in done.stdout


def test_statistics(program: Program, repo: Path) -> None:
    done = program("--repo", repo, "--stats")
    lines = done.stdout.decode().splitlines()
    assert lines[0].split() == ["shown", "files", "tokens", "bytes"]
    assert {line.split()[0]: line.split()[1] for line in lines[1:3]} == {".md": "1", ".py": "1"}
    assert [line.split() for line in lines[5:]] == [
        ["credentials", "1", ".env", "1"],
        ["image", "1", ".png", "1"],
    ]


def test_include_exclude_and_ignore_file(program: Program, repo: Path) -> None:
    def shown(*args: str) -> set[str]:
        lines = program("--repo", repo, *args).stdout.decode().splitlines()
        return {line.split('"')[1] for line in lines if line.startswith("<file ")}

    assert shown("--include", "*.py") == {"a.py"}
    assert shown("--include", "*.py", "--include", "d/") == {"a.py", "d/b.md"}
    assert shown("--exclude=*.py") == {"d/b.md"}
    assert shown("--include", "d/", "--exclude", "*.md") == set()
    (repo / ".m3agentignore").write_text("/d/\n")
    assert shown() == {"a.py", ".m3agentignore"}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("args", "says", "code"),
    [
        (["--budget", "0"], "--budget", 2),
        (["--budget", "many"], "--budget", 2),
        (["--budget", "1"], "fits into 1 tokens: give more with --budget", 2),
        (["--prefix", "cold"], "--prefix", 2),
        (["--bogus"], "--bogus", 2),
        (["--repo"], "--repo", 2),
        (["--repo", "/nonexistent"], "There is no folder /nonexistent", 2),
        (["--tokenizer", "/nonexistent"], "/nonexistent", 2),
        (["--verify"], "--verify needs the model's tokenizer", 2),
        (["--issue", ""], "issue", 2),
    ],
)
def test_mistakes_are_one_clear_sentence(
    args: list[str], says: str, code: int, program: Program, repo: Path
) -> None:
    where = [] if "--repo" in args else ["--repo", str(repo)]
    done = program(*where, *args)
    assert done.returncode == code, done.stderr
    assert says in done.stderr.decode() and b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_no_repository_and_no_commit(program: Program, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert b"not in a git repository" in program("--repo", tmp_path / "empty").stderr
    run_git(tmp_path / "empty", "init", "--quiet")
    done = program("--repo", tmp_path / "empty")
    assert done.returncode == 2 and b"has no commit" in done.stderr


def test_a_work_tree_that_the_repository_places_elsewhere(
    program: Program, repo: Path, tmp_path: Path
) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "key").write_text("hush")
    run_git(repo, "config", "core.worktree", str(tmp_path / "victim"))
    done = program("--repo", repo)
    assert done.returncode == 3 and b"core.worktree" in done.stderr and b"hush" not in done.stdout


def test_worktrees_submodules_and_bare_clones(program: Program, repo: Path, tmp_path: Path) -> None:
    expected = program("--repo", repo).stdout
    run_git(repo, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    run_git(tmp_path, "clone", "--quiet", "--bare", str(repo), "bare.git")
    (tmp_path / "link").symlink_to(repo)
    for name in ("tree", "bare.git", "link"):
        assert program("--repo", tmp_path / name).stdout == expected, name
    done = program("--repo", tmp_path / "bare.git", "--include", "*.py")
    assert done.returncode == 2 and b"work tree" in done.stderr


def test_git_is_not_installed(program: Program, repo: Path, tmp_path: Path) -> None:
    run_git(repo, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    program.env["PATH"] = str(tmp_path)
    for folder in (repo, tmp_path / "tree"):
        done = program("--repo", folder)
        assert (done.returncode, done.stdout) == (3, b"")
        assert done.stderr.startswith(b"m3agent: git is not installed") and done.stderr.count(b"\n") == 1


def test_exact_counts_and_their_proof(program: Program, repo: Path, tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    done = program("--repo", repo, "--tokenizer", tokenizer, "--verify")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"sum of the chunks ") and b" = " in done.stdout
    assert "≈" not in done.stderr.decode()


def test_a_closed_pipe_ends_it_as_in_a_shell(program: Program, repo: Path) -> None:
    (repo / "big.txt").write_text("line\n" * 100_000)
    with program.start("--repo", repo) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait() == OUTPUT_CLOSED
        assert process.stderr.read() == b""


def test_a_terminal_is_not_flooded(program: Program, repo: Path) -> None:
    master, slave = pty.openpty()
    process = program.start("--repo", repo, stdout=slave)
    _, said = process.communicate()
    assert process.returncode == 0
    os.write(slave, b"end\n")
    assert os.read(master, 1000) == b"end\r\n"
    assert b"-o" in said
    os.close(slave)
    os.close(master)


def test_the_issue_ranks_what_does_not_fit(program: Program, new_repo: NewRepo) -> None:
    body = "".join(f"def helper_{n}(value):\n    return value + {n}\n" for n in range(40))
    files = {f"pkg/mod{n}.py": body.encode() for n in range(20)}
    files["pkg/colour.py"] = b"def blend_colours(one, two):\n    return one\n" + body.encode()
    root = new_repo("large", files=files)
    whole = program(
        "--repo", root, "--issue", "blend_colours forgets its second argument", "--budget", "4000"
    )
    assert whole.returncode == 0, whole.stderr
    assert b'<file path="pkg/colour.py">' in whole.stdout
    assert b"<not_shown>" in whole.stdout
