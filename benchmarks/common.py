"""Functions shared by the benchmarks: run `m3agent fix` as a user does, and run tests in a fresh sandbox."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import AnyStr

from m3agent.sandbox.backends.factory import SandboxSpec, choose_backend, new_sandbox
from m3agent.sandbox.store.git import TreeStore
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.run_tests import Selection, run_in_sandbox
from m3agent.tools.test_report import TestReport

IDENTITY = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
TIDY_UP = 30
"""Seconds that a fix gets after its time limit to stop its sandbox."""


@dataclass(frozen=True)
class Fixed:
    """How one `m3agent fix` ended.

    exit: 124 if it exceeded its time limit; said: last line of its standard error; text: all of its standard error.
    """

    patch: bytes
    exit: int
    seconds: float
    said: str
    text: str = ""


def git(folder: Path, *args: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. The caller must check the exit status."""
    return subprocess.run(
        ["git", *IDENTITY, *args], cwd=folder, input=stdin, capture_output=True, check=False
    )


def commit_all(folder: Path, message: str) -> None:
    """Turn a folder into a git repository with one commit of all its files."""
    for args in (("init", "-q"), ("add", "-A", "-f"), ("commit", "-q", "-m", message)):
        done = git(folder, *args)
        if done.returncode:
            raise SystemExit(f"git {args[0]} failed in {folder}: {done.stderr.decode(errors='replace')}")


def write_out(store: TreeStore, tree: str, folder: Path) -> None:
    """Write the files of a tree into a folder, byte for byte."""
    for entry in store.list_tree(tree):
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        content = store.get_blob(entry.sha)
        if stat.S_ISLNK(entry.mode):
            path.symlink_to(content.decode())
        elif stat.S_ISREG(entry.mode):
            path.write_bytes(content)
            path.chmod(stat.S_IMODE(entry.mode))


def name_of(clone: Path) -> str:
    """Return the name of a clone's repository: `owner/name` if its folder is called `owner+name`."""
    folder = clone.resolve()
    return (folder.parent if folder.name in {"repo", ".git"} else folder).name.replace("+", "/")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of command lines whose help is a module's docstring as it is."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def say(text: str) -> None:
    """Print a note to standard error at once."""
    print(text, file=sys.stderr, flush=True)


def write_json(file: Path | None, value: object) -> None:
    """Write results into the file of `--json`, if one is given."""
    if file is not None:
        file.write_text(json.dumps(value, indent=1, default=asdict) + "\n")


def communicated(process: subprocess.Popen[AnyStr], seconds: float) -> tuple[AnyStr, AnyStr, bool]:
    """Wait for a process, and interrupt it after `seconds`. Return its output, its messages, and whether it was interrupted."""
    late = False
    try:
        output, messages = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        late = True
        process.send_signal(signal.SIGINT)
        try:
            output, messages = process.communicate(timeout=TIDY_UP)
        except subprocess.TimeoutExpired:
            process.kill()
            output, messages = process.communicate()
    return output, messages, late


def run_fix(issue: Path, repo: Path, seconds: float) -> Fixed:
    """Run `m3agent fix ISSUE --engine embedded`; a patch printed after `seconds` of wall time does not count."""
    command = [sys.executable, "-m", "m3agent", "fix", str(issue), "--repo", str(repo)]
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, "--engine", "embedded"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    patch, said, late = communicated(process, seconds)
    if late:
        patch = b""
    took = round(time.monotonic() - started, 1)
    lines = said.decode(errors="replace").strip().splitlines()
    last = f"over its {seconds:g} s" if late else lines[-1].strip() if lines else "nothing said"
    return Fixed(patch, 124 if late else process.returncode, took, last, "\n".join(lines))


def run_tests(
    workspace: Workspace, targets: Sequence[str] = (".",), seconds: float = 300
) -> list[TestReport]:
    """Run each target's tests on the base of `workspace`, one after the other in one fresh sandbox."""

    async def run() -> list[TestReport]:
        spec = SandboxSpec()
        backend = await choose_backend(spec, lambda _: None)
        async with new_sandbox(backend, spec, workspace, lambda _: None) as sandbox:
            return [await run_in_sandbox(sandbox, Selection([target]), timeout=seconds) for target in targets]

    return asyncio.run(run())
