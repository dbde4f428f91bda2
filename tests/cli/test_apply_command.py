"""Test `m3agent apply`: it writes the patch of an earlier fix under the same conditions as `fix --apply`."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.cli.resume import NO_ADVICE
from tests.agent.scripted import (
    BUGGY,
    DONE,
    FIX,
    ISSUE,
    NOT_TESTED,
    UNTESTED,
    MakeRepo,
    calls,
    fix,
    one_sentence,
)
from tests.command_line import Process, run
from tests.servers.misbehaving import MisbehavingServer

pytestmark = pytest.mark.integration

FIXED = BUGGY["calc.py"].replace("a - b", "a + b")


@pytest.fixture
def fixed(server: MisbehavingServer, make_repo: MakeRepo, own_state: Path) -> tuple[Path, Path]:
    """Return a repository, and the folder of a session with an unverified patch for it."""
    server.answers = [FIX, NOT_TESTED]
    repo = make_repo(UNTESTED)
    done = fix(repo, server.url)
    assert done.returncode == 1
    [session] = (own_state / "state" / "sessions").glob("*-*")
    assert done.stderr.splitlines()[-3:] == [
        f"next       m3agent apply --repo {repo}  read the patch first; then this writes it into your work tree",
        f"           m3agent sessions fork last --repo {repo} --tell TEXT  continues with your advice",
        f"           m3agent report --repo {repo}  shows each step",
    ]
    return repo, session


def test_the_last_patch_is_written_once(fixed: tuple[Path, Path]) -> None:
    repo, session = fixed
    for said in (
        f"applied the unverified patch to {repo}: calc.py; git diff shows it, and 'm3agent apply --undo' takes it back",
        f"{repo} has the unverified patch already: calc.py",
    ):
        done = run("apply", cwd=repo)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == f"m3agent: {said}\n"
        assert (repo / "calc.py").read_text() == FIXED
    assert run("apply", session.name[:-2], cwd=Path("/")).returncode == 0
    for code in (0, 5):
        assert run("apply", "--undo", cwd=repo).returncode == code
        assert (repo / "calc.py").read_text() == UNTESTED["calc.py"]


def test_undo_means_the_patch_that_was_written_last(
    fixed: tuple[Path, Path], server: MisbehavingServer
) -> None:
    repo, _ = fixed
    assert run("apply", cwd=repo).returncode == 0
    server.answers = [DONE]
    assert fix(repo, server.url).returncode == 1
    assert run("apply", "--undo", cwd=repo).returncode == 0
    assert (repo / "calc.py").read_text() == UNTESTED["calc.py"]


@pytest.mark.slow
def test_advice_for_the_embedded_engine_is_refused_before_anything_is_copied(
    fixed: tuple[Path, Path], own_state: Path
) -> None:
    repo, session = fixed
    log = session / "events.jsonl"
    log.write_text(log.read_text().replace('"source":"named"', '"source":"embedded"'))
    done = run("sessions", "fork", "last", "--tell", "The bug is in calc.py.", cwd=repo)
    assert (done.returncode, one_sentence(done)) == (2, f"m3agent: {NO_ADVICE}")
    assert len([*(own_state / "state" / "sessions").glob("*-*")]) == 1


@pytest.mark.parametrize(
    ("change", "instead"),
    [
        (
            lambda text: "mine\n",
            "lines at the patch's places changed, too: commit your change and run the fix again, or read {} and change them by hand",
        ),
        (
            lambda text: text + "\n\nMINE = 1\n",
            "the lines of the patch did not change, so 'git apply {}' applies it",
        ),
    ],
)
def test_changes_of_the_user_are_not_overwritten(
    fixed: tuple[Path, Path], change: Callable[[str], str], instead: str
) -> None:
    repo, session = fixed
    mine = change((repo / "calc.py").read_text())
    (repo / "calc.py").write_text(mine)
    done = run("apply", cwd=repo)
    assert done.returncode == 5
    said = "calc.py has uncommitted changes: nothing was written"
    assert one_sentence(done) == f"m3agent: {said}; {instead.format(session / 'patch.diff')}"
    assert (repo / "calc.py").read_text() == mine


def test_a_patch_in_the_place_of_an_earlier_one(
    fixed: tuple[Path, Path], server: MisbehavingServer, own_state: Path
) -> None:
    """A person applies a patch, refines it, and applies what came out."""
    repo, session = fixed
    assert run("apply", cwd=repo).returncode == 0
    server.answers = [
        calls("file_write", path="calc.py", content="def add(a, b):\n    return b + a\n"),
        NOT_TESTED,
    ]
    assert run("sessions", "fork", "last", "--tell", "The other way around.", cwd=repo).returncode == 1
    refused = run("apply", cwd=repo)
    assert (refused.returncode, session.name in refused.stderr) == (5, True)
    for words in (("apply", "--undo"), ("apply",)):
        assert run(*words, cwd=repo).returncode == 0
    assert "b + a" in (repo / "calc.py").read_text()


def test_last_means_this_repository(
    fixed: tuple[Path, Path], make_repo: MakeRepo, tmp_path: Path, own_state: Path
) -> None:
    repo, session = fixed
    other = shutil.copytree(repo, tmp_path / "other")
    for name, said in (
        ("last", f"there is no fix about {other}: "),
        (
            session.name,
            f"session {session.name} is about {repo}, and this is {other}: name its repository with --repo",
        ),
    ):
        done = run("apply", name, cwd=other)
        assert (done.returncode, said in one_sentence(done)) == (2, True), done.stderr
    assert (repo / "calc.py").read_text() == UNTESTED["calc.py"]
    assert run("apply", "--repo", str(repo), cwd=other).returncode == 0
    assert (repo / "calc.py").read_text() == FIXED
    assert (other / "calc.py").read_text() == UNTESTED["calc.py"]


@pytest.mark.slow  # quick: test_last_means_this_repository
def test_sessions_that_have_nothing_to_apply(fixed: tuple[Path, Path]) -> None:
    repo, session = fixed
    log, patch = session / "events.jsonl", session / "patch.diff"
    lines = log.read_text().splitlines()
    log.write_text(
        "".join(
            f"{line}\n" for line in [*lines[:-1], json.dumps({**json.loads(lines[-1]), "status": "limit"})]
        )
    )
    done = run("apply", cwd=repo)
    assert (done.returncode, "only verified and unverified patches are applied" in done.stderr) == (5, True)
    done = run("apply", "--undo", cwd=repo)
    assert (done.returncode, "no patch of m3agent is written" in done.stderr) == (5, True)
    log.write_text("".join(f"{line}\n" for line in lines))
    shutil.rmtree(session / "trees.git")
    done = run("apply", cwd=repo)
    assert (done.returncode, f"'git apply {patch}'" in done.stderr) == (2, True)
    patch.unlink()
    done = run("apply", cwd=repo)
    assert done.returncode == 2
    assert (
        one_sentence(done)
        == f"m3agent: session {session.name} has no patch (status unverified); `m3agent sessions list` shows the others"
    )
    assert (repo / "calc.py").read_text() == UNTESTED["calc.py"]


def read_all(leader: int) -> bytes:
    """Return what was written to a terminal until its other end was closed, and close it."""
    written = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(leader, 65536):
            written += piece
    os.close(leader)
    return written


@pytest.mark.slow  # quick: tests/agent/ui/test_result.py
@pytest.mark.parametrize(
    ("env", "coloured"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)]
)
def test_a_patch_has_colours_on_a_terminal_only(
    server: MisbehavingServer, make_repo: MakeRepo, env: dict[str, str], coloured: bool
) -> None:
    server.answers = [FIX, NOT_TESTED]
    leader, follower = pty.openpty()
    with Process(
        "fix",
        ISSUE,
        "--repo",
        str(make_repo(UNTESTED)),
        "--endpoint",
        server.url,
        "-q",
        stdout=follower,
        env=env,
    ) as process:
        process.wait()
    os.close(follower)
    written = read_all(leader).decode()
    assert ("\x1b[32m+    return a + b\x1b[0m\r\n" in written) == coloured
    assert ("\r\n+    return a + b\r\n" in written) != coloured


@pytest.mark.slow  # quick: test_a_quiet_fix_says_how_it_ended
def test_on_one_terminal_the_end_comes_after_the_patch(
    server: MisbehavingServer, make_repo: MakeRepo
) -> None:
    server.answers = [FIX, NOT_TESTED]
    leader, follower = pty.openpty()
    arguments = ["fix", ISSUE, "--repo", str(make_repo(UNTESTED)), "--endpoint", server.url]
    with Process(
        *arguments, stdout=follower, stderr=follower, env={"TERM": "xterm", "NO_COLOR": "1"}
    ) as process:
        os.close(follower)
        written = read_all(leader)
        process.wait()
    places = [written.rindex(text) for text in (b"+    return a + b", b"! unverified", b"m3agent apply")]
    assert places == sorted(places)
    assert written.count(b"! unverified") == 1


def test_quiet_and_verbose_exclude_each_other(make_repo: MakeRepo) -> None:
    done = run("fix", ISSUE, "--repo", str(make_repo(UNTESTED)), "-q", "-v")
    assert done.returncode == 2
    assert one_sentence(done) == "m3agent: --quiet and --verbose exclude each other: give only one"


@pytest.mark.slow
def test_a_quiet_fix_says_how_it_ended(server: MisbehavingServer, make_repo: MakeRepo) -> None:
    server.answers = [FIX, DONE, NOT_TESTED]
    done = fix(make_repo(UNTESTED), server.url, "-q")
    starts = [line[:10].strip() for line in done.stderr.splitlines()]
    starts = [start for start in starts if start != "note: wait"]  # which a slow machine adds
    assert starts == ["note: no t", "! unverifi", "patch", "next", "", ""]
