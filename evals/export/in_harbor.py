"""Grade what an agent left, in a fresh container of a Harbor task; `m3agent eval export` copies this file into each task.

The container has the task's code at its base commit in /testbed. The agent's work tree comes as an archive. The tests, and
the files that decide how tests run, are the task's own. The reward is 1 if every listed test passed, else 0.

The code under test runs as root in this container, so it could forge its results. m3agent's own grader prevents that; use it
where a reward must be certain.

Example:
    python3 grade.py    # in the folder /tests of a task
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any

TASK, FILES = "task.json", "files"
"""Beside this file: what to run, and the files that replace the agent's."""
WORK = "/testbed"
LEFT = "/logs/artifacts/left.tar.gz"
REWARD = "/logs/verifier/reward.txt"
OUTCOMES = "outcomes.json"
GREEN = ("passed", "xfailed")
FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)
"""Errors of the machine. They end this program without a reward, which Harbor takes for an error and not for a failure."""
PYTEST = """\
import os, sys
sys.path.insert(0, sys.argv[1])
import grade, pytest
sys.path[0] = os.getcwd()
sys.exit(pytest.main(sys.argv[3:], [grade.Plugin(sys.argv[2])]))
"""
"""The work tree is added to `sys.path` only after these imports, so that it cannot replace what they import."""
MOST_BYTES, MOST_FILES = 1 << 30, 500_000
"""Largest work tree that is graded."""
LEAST_FREE = 64 << 20
"""Free bytes below which the disk counts as full, whoever filled it."""
USAGE_ERROR = 4
"""Exit status of pytest for options that it does not know."""


class Plugin:
    """A plugin of pytest that writes the outcome of each test to a file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the outcome of a phase of a test; a failed phase decides."""
        known = self.outcomes.get(report.nodeid)
        if report.failed or known == "failed":
            self.outcomes[report.nodeid] = "failed"
        elif report.skipped:
            # without the mark, the code under test may have called `pytest.xfail`
            expected = hasattr(report, "wasxfail") and "xfail" in report.keywords
            self.outcomes[report.nodeid] = "xfailed" if expected else "skipped"
        elif report.when == "call":
            self.outcomes[report.nodeid] = "passed"

    def pytest_sessionfinish(self) -> None:
        """Write the outcomes."""
        with open(self.path, "w") as file:
            json.dump(self.outcomes, file)


def extract(archive: str, folder: str) -> None:
    """Unpack regular files and symbolic links, none of them outside `folder` or below a link.

    Raises:
        ValueError: The archive is too large, or has an entry below a link.
    """
    links = []
    total = 0
    with tarfile.open(archive, "r:gz") as members:
        for number, member in enumerate(members, 1):
            total += member.size
            if total > MOST_BYTES or number > MOST_FILES:
                raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB or {MOST_FILES} files")
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if ".." in parts or ".git" in parts:
                continue
            path = os.path.join(folder, *parts)
            if member.isdir():
                os.makedirs(path, exist_ok=True)
            elif member.issym():
                links.append((member.linkname, path))
            elif member.isfile() or member.islnk():
                extract_file(members, member, path)
    for target, path in links:
        make_link(target, path, folder)


def extract_file(members: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """Unpack one regular file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    source = members.extractfile(member)
    assert source is not None
    with source, open(path, "wb") as file:
        shutil.copyfileobj(source, file)
    os.chmod(path, 0o755 if member.mode & 0o100 else 0o644)


def make_link(target: str, path: str, folder: str) -> None:
    """Make a symbolic link, unless it would be below another one."""
    parent = os.path.dirname(path)
    while len(parent) > len(folder):
        if os.path.islink(parent):
            raise ValueError(f"{path} is below a link")
        parent = os.path.dirname(parent)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target, path)


def git(*words: str, tree: str | None = None) -> list[str]:
    """Run git in the task's repository, perhaps with another work tree, and return the names that it prints."""
    tree = tree or WORK
    command = ["git", f"--git-dir={WORK}/.git", f"--work-tree={tree}", *words]
    done = subprocess.run(command, cwd=tree, check=True, stdout=subprocess.PIPE)
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def take_over(left: str) -> None:
    """Bring the work tree into the state that the agent left. Files that git ignores stay as they are."""
    git("add", "-A", tree=left)
    for name in git("diff", "--cached", "--name-only", "--no-renames", "--diff-filter=D", "-z", "HEAD"):
        remove(name)
    git("checkout-index", "--all", "--force")


def remove(name: str) -> None:
    """Remove a file of the work tree."""
    path = os.path.join(WORK, name)
    if os.path.lexists(path):
        os.remove(path)


def put_back(files: str, removed: list[str], never_new: list[str]) -> None:
    """Undo changes to tests and to files that decide how tests run.

    Args:
        never_new: Names of files that an agent may not add, in any folder.
    """
    for name in git("diff", "--cached", "--name-only", "--no-renames", "--diff-filter=A", "-z", "HEAD"):
        if os.path.basename(name) in never_new:
            remove(name)
    for name in removed:
        remove(name)
    for folder, _, names in os.walk(files):
        for name in names:
            source = os.path.join(folder, name)
            inside = os.path.relpath(source, files)
            target = os.path.join(WORK, inside)
            plain_folders(os.path.dirname(inside))
            if os.path.lexists(target):
                os.remove(target)
            with open(source, "rb") as old, open(target, "wb") as new:
                new.write(old.read())
            os.chmod(target, os.stat(source).st_mode)


def plain_folders(path: str) -> None:
    """Make a folder of the work tree. A file or a link in its way is removed."""
    whole = WORK
    for part in path.split("/") if path else ():
        whole = os.path.join(whole, part)
        if os.path.islink(whole) or not os.path.isdir(whole):
            if os.path.lexists(whole):
                os.remove(whole)
            os.mkdir(whole)


def outcomes_of(task: dict[str, Any], folder: str) -> dict[str, str]:
    """Run the tests and return the outcome of each test that ended."""
    path = os.path.join(folder, OUTCOMES)
    tests = os.path.dirname(os.path.abspath(__file__))
    root = os.path.realpath(WORK)  # else ids would start with the path from the link to its target
    words = ["-p", "no:cacheprovider", f"--rootdir={root}", "--continue-on-collection-errors", "--maxfail=0"]
    words += [*task["options"], *task["targets"]]
    command = [sys.executable, "-I", *task["python"], "-c", PYTEST, tests, path]
    environment = {**os.environ, **task["env"]}
    end = time.monotonic() + task["timeout"]
    for without in ([], ["-o", "addopts=", "-o", "required_plugins="]):  # they may name what is not installed
        words += without
        try:
            done = subprocess.run(
                [*command, *words], cwd=root, check=False, env=environment, timeout=end - time.monotonic()
            )
        except subprocess.TimeoutExpired:
            print(f"the tests took longer than {task['timeout']:g} s")
            return {}
        if done.returncode != USAGE_ERROR:
            break
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def prepare(task: dict[str, Any], here: str, left: str) -> bool:
    """Prepare the work tree for the tests; return whether the files that the agent left can be used.

    Whatever goes wrong with them is the agent's failure, except for a fault of the machine.
    """
    try:
        extract(LEFT, left)
        take_over(left)
        put_back(os.path.join(here, FILES), task["removed"], task["never_new"])
    except Exception as error:  # tarfile and git can fail in many ways
        fault = isinstance(error, OSError) and error.errno in FAULTS
        if fault or shutil.disk_usage(left).free < LEAST_FREE:
            raise
        print(f"the work tree cannot be used: {error}")
        return False
    return True


def main() -> int:
    """Grade, print the tests that did not pass, and write the reward."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, TASK)) as file:
        task = json.load(file)
    scratch = tempfile.mkdtemp()
    left = os.path.join(scratch, "left")
    os.mkdir(left)
    outcomes = outcomes_of(task, scratch) if prepare(task, here, left) else {}
    failed = [name for name in task["tests"] if outcomes.get(name) not in GREEN]
    for name in failed:
        print(f"{name}: {outcomes.get(name, 'no result')}")
    print(f"{len(task['tests']) - len(failed)} of {len(task['tests'])} tests passed")
    os.makedirs(os.path.dirname(REWARD), exist_ok=True)
    with open(REWARD, "w") as file:
        file.write("0\n" if failed else "1\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
