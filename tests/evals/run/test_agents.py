"""Other agents as real programs: what they get, what m3agent takes from them, and that no process remains."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from m3agent.evals.data.instance import Task
from m3agent.evals.data.results import Verdict
from m3agent.evals.run.child import run_child
from m3agent.evals.run.left_diff import LeftDiff
from m3agent.evals.run.other_agent import OtherAgent, parse_command, parse_variables
from m3agent.evals.run.parts import Assignment, Delivery
from m3agent.sandbox.errors import PathEscapes
from m3agent.util.errors import UsageError
from tests.agent.repositories import write_files
from tests.conftest import TIME_LIMITS, git
from tests.evals.small import checkout, instance, write_programs

pytestmark = pytest.mark.integration


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return instance(write_programs(tmp_path / "programs"), "adder").task


async def deliver(
    task: Task,
    folder: Path,
    script: str,
    *more: str,
    seconds: float = 60,
    variables: Mapping[str, str] | None = None,
) -> Delivery:
    """Run a shell script as the agent, with the issue and `more` as its arguments. Return what it delivers."""
    folder.mkdir()
    checkout(task, folder / "repo")
    agent = OtherAgent(("sh", "-c", script, "agent", "{issue}", *more), variables or {}, seconds)
    return await agent.work(Assignment(task, 1, folder / "repo", "image:1", folder))


async def test_what_an_agent_changes_is_its_diff_also_what_is_new_or_committed(
    task: Task, tmp_path: Path
) -> None:
    script = """
        sed -i s/-/+/ adder.py; mkdir deep; echo new > deep/er.txt; chmod +x test_adder.py; ln -s adder.py link
        mkdir __pycache__; echo junk > __pycache__/x.pyc
        git -c user.name=a -c user.email=a@b.invalid commit -qam done
    """
    found = await deliver(task, tmp_path / "run", script)
    assert (found.status, found.fault, found.timed_out) == ("exit 0", None, False)
    checkout(task, tmp_path / "fresh")
    (tmp_path / "patch").write_bytes(found.patch)
    git(tmp_path / "fresh", "apply", "--index", str(tmp_path / "patch"))
    changed = git(tmp_path / "fresh", "diff", "--cached", "--name-only").splitlines()
    assert changed == ["adder.py", "deep/er.txt", "link", "test_adder.py"]
    assert (tmp_path / "fresh/adder.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert (tmp_path / "fresh/link").readlink() == Path("adder.py")
    assert os.access(tmp_path / "fresh/test_adder.py", os.X_OK)


async def test_a_diff_that_it_writes_counts_and_not_what_it_changed(task: Task, tmp_path: Path) -> None:
    found = await deliver(task, tmp_path / "run", "echo scratch > s.txt; echo 'the diff' > $2", "{output}")
    assert found.patch == b"the diff\n"


@pytest.mark.parametrize(
    ("text", "usage"),
    [
        ('{"prompt_tokens": 10, "completion_tokens": 2, "cost": 0.5, "x": 1}', (None, 10, 2, 0.5)),
        ('{"final_metrics": {"total_prompt_tokens": 9, "total_steps": 3}, "cost": 7}', (3, 9, None, None)),
        ('{"turns": -1, "prompt_tokens": true, "completion_tokens": 1e999, "cost": "1"}', (None,) * 4),
        ('{"turns": 1' + "0" * 400 + "}", (None,) * 4),
        ("[1]", (None,) * 4),
        ("no JSON", (None,) * 4),
    ],
    ids=["own names", "a trajectory", "no numbers", "a huge number", "a list", "no JSON"],
)
async def test_the_usage_that_it_reports(
    task: Task, tmp_path: Path, text: str, usage: tuple[object, ...]
) -> None:
    found = await deliver(task, tmp_path / "run", f"echo '{text}' > \"$2\"", "{usage}")
    told = found.usage
    assert (told.turns, told.prompt_tokens, told.completion_tokens, told.cost) == usage


async def test_it_is_given_the_statement_its_variables_and_nothing_else(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOR_IT", "yes")
    monkeypatch.setenv("M3AGENT_API_KEY", "secret")
    script = 'pwd > "$3"; cat "$1" >> "$3"; echo "\n$2" >> "$3"; env >> "$3"; touch "$HOME/there"'
    report = str(tmp_path / "report")
    await deliver(task, tmp_path / "run", script, "{image}", report, variables={"FOR_IT": "yes"})
    where, statement, *rest = Path(report).read_text().splitlines()
    assert (where, statement, rest[0]) == (str(tmp_path / "run/repo"), task.statement, "image:1")
    given = dict(line.split("=", 1) for line in rest[1:])
    assert set(given) - {"PWD", "_", "SHLVL", "OLDPWD", "LC_CTYPE"} == {"PATH", "HOME", "FOR_IT"}
    assert given["HOME"] != os.environ["HOME"]
    assert not Path(given["HOME"]).exists()


async def test_how_it_ended_says_whose_fault_an_empty_hand_is(task: Task, tmp_path: Path) -> None:
    nothing = await deliver(task, tmp_path / "1", "true")
    assert (nothing.patch, nothing.fault) == (b"", None)
    failed = await deliver(task, tmp_path / "2", "echo first >&2; echo no key >&2; exit 3")
    assert (failed.status, failed.reason, failed.fault) == ("exit 3", "no key", Verdict.ERROR)
    with_diff = await deliver(task, tmp_path / "3", "echo x > new.txt; exit 1")
    assert with_diff.patch and with_diff.fault is None
    killed = await deliver(task, tmp_path / "4", "kill -9 $$")
    assert (killed.status, killed.fault) == ("exit 137", Verdict.ERROR)


async def test_out_of_time_it_is_interrupted_and_its_diff_taken(task: Task, tmp_path: Path) -> None:
    script = "trap 'echo late > late.txt; exit 0' INT; echo early > early.txt; while :; do sleep 0.1; done"
    for limit in TIME_LIMITS:
        found = await deliver(task, tmp_path / str(limit), script, seconds=limit)
        if b"+early" in found.patch:
            break
    else:
        pytest.fail("it did not begin")
    assert found.timed_out
    assert b"+late" in found.patch and b"+early" in found.patch


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


STUBBORN = "trap '' INT TERM; setsid sh -c 'trap \"\" INT TERM; echo $$ > $0; sleep 600' pid & sleep 600"


@pytest.mark.slow
async def test_a_stubborn_one_is_killed_with_what_left_its_group(tmp_path: Path) -> None:
    for limit in TIME_LIMITS:
        end = await run_child(
            ["sh", "-c", STUBBORN],
            folder=tmp_path,
            cwd=tmp_path,
            env=dict(os.environ),
            seconds=limit,
            grace=0.5,
            patience=0.2,
        )
        if (tmp_path / "pid").exists():
            break
    else:
        pytest.fail("it did not begin")
    assert (end.exit_code, end.timed_out) == (137, True)
    assert not runs(int((tmp_path / "pid").read_text()))


async def test_cancelled_it_leaves_nothing_running(tmp_path: Path) -> None:
    work = asyncio.create_task(
        run_child(
            ["sh", "-c", STUBBORN],
            folder=tmp_path,
            cwd=tmp_path,
            env=dict(os.environ),
            seconds=60,
            grace=0.5,
            patience=0.2,
        )
    )
    until = time.monotonic() + 30
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not runs(int((tmp_path / "pid").read_text()))


def test_nothing_in_a_checkout_is_run_or_believed(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    write_files(repo, {"a.txt": "a\n", ".gitignore": "*.log\n"})
    before = LeftDiff(repo, tmp_path / "store.git")
    git(repo, "init", "-q")
    evil = f"touch '{tmp_path}/run-by-git'"
    git(repo, "config", "core.fsmonitor", evil)
    git(repo, "config", "filter.x.clean", f"{evil}; cat")
    git(repo, "config", "core.worktree", "/")
    write_files(repo, {".git/info/attributes": "* filter=x\n", ".git/info/exclude": "*\n"})
    write_files(repo, {"a.txt": "b\r\n", "new.txt": "n\n", "x.log": "ignored\n", ".gitignore": ""})
    os.mkfifo(repo / "pipe")
    patch = before.patch()
    assert b"+b\r\n" in patch and b"new.txt" in patch
    assert b"x.log" not in patch, "what the base ignores stays out, whatever the agent says now"
    assert not (tmp_path / "run-by-git").exists()


@pytest.mark.parametrize(("name", "target"), [("out", "/etc/passwd"), ("up", "../../x")])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, name: str, target: str) -> None:
    write_files(tmp_path / "repo", {"a.txt": "a\n"})
    before = LeftDiff(tmp_path / "repo", tmp_path / "store.git")
    (tmp_path / "repo" / name).symlink_to(target)
    with pytest.raises(PathEscapes):
        before.patch()


async def test_a_refused_change_is_the_agents_fault(task: Task, tmp_path: Path) -> None:
    found = await deliver(task, tmp_path / "run", "echo '* text' > .gitattributes")
    assert found.fault is Verdict.ERROR
    assert ".gitattributes" in found.reason


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("", "is empty"),
        ("sh 'open {issue}", "cannot be split"),
        ("sh {repo}", "no {issue}"),
        ("sh {issue} {model}", "has {model}"),
        ("no-such-program-here {issue}", "no program no-such-program-here"),
        ("./missing.sh {issue}", "no program ./missing.sh"),
    ],
)
def test_a_command_that_cannot_work_is_one_sentence(line: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_command(line)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_command_is_split_and_no_shell_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    literal = json.dumps({"a": 1})
    assert parse_command(f"sh -c 'echo \"$1\"; ls' '{literal}' {{issue}}") == (
        *("sh", "-c", 'echo "$1"; ls', literal, "{issue}"),
    )
    (tmp_path / "agent.sh").write_text("#!/bin/sh\n")
    (tmp_path / "agent.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert parse_command("./agent.sh {issue}")[0] == str(tmp_path / "agent.sh")


def test_variables_have_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "1")
    assert parse_variables(" HERE, ") == {"HERE": "1"}
    assert parse_variables(None) == {}
    with pytest.raises(UsageError, match="NOWHERE"):
        parse_variables("HERE,NOWHERE")
