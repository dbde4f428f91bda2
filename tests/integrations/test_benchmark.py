"""Rewards for what agents leave: 1, 0, or none if the machine is at fault."""

from __future__ import annotations

import asyncio
import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from m3agent.integrations import benchmark as module
from m3agent.integrations.benchmark import Benchmark
from m3agent.sandbox.errors import EngineUnavailable
from tests.conftest import later
from tests.evals.data_rows import write_program

BUGGY = "def add(a, b):\n    return a - b\n"
FIXED = BUGGY.replace("-", "+")
TEST = "from adder import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"

pytestmark = pytest.mark.integration


@pytest.fixture
def one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """A benchmark whose instances have the image of ordinary sandboxes."""
    write_program(tmp_path / "rows", "adder", BUGGY, FIXED, TEST, "add(2, 3) should be 5.")

    async def image(self: Benchmark, ident: str) -> None:
        """Return None: the usual image of sandboxes."""

    monkeypatch.setattr(Benchmark, "image", image)
    return Benchmark(str(tmp_path / "rows"))


def left(files: dict[str, str]) -> bytes:
    """Return a work tree as an adapter brings it from the container."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def files_of(code: bytes) -> Iterator[tuple[str, str]]:
    with tarfile.open(fileobj=io.BytesIO(code)) as archive:
        for member in archive:
            if member.isfile() and not member.name.startswith("./.git/"):
                content = archive.extractfile(member)
                assert content is not None
                yield member.name.removeprefix("./"), content.read().decode()


def test_the_code_is_a_repository_without_the_fix(one_program: Benchmark, tmp_path: Path) -> None:
    code = asyncio.run(one_program.code("adder"))
    with tarfile.open(fileobj=io.BytesIO(code)) as archive:
        assert {(member.uid, member.gid, member.uname) for member in archive} == {(0, 0, "")}
    (tmp_path / "code").mkdir()
    subprocess.run(["tar", "-xz", "-C", tmp_path / "code"], input=code, check=True)
    log = subprocess.run(
        ["git", "log", "--format=%H"], cwd=tmp_path / "code", check=True, capture_output=True, text=True
    )
    assert len(log.stdout.split()) == 1
    assert dict(files_of(code))["adder.py"] == BUGGY
    assert FIXED.encode() not in code


@pytest.mark.slow  # quick: tests/evals/export/test_eval_export.py
@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"adder.py": FIXED}, "resolved"),
        ({}, "empty"),
        later({"adder.py": FIXED.replace("+", "*")}, "unresolved"),
        later({"conftest.py": "import os\nos._exit(0)\n", ".git/hooks/x": "#!/bin/sh\n"}, "unresolved"),
    ],
    ids=["fixed", "unchanged", "wrong", "forged"],
)
async def test_what_the_agent_left_decides(
    one_program: Benchmark, change: dict[str, str], verdict: str
) -> None:
    """The grader's own tests try more wrong and forged patches."""
    given = await one_program.reward(
        "adder", left({**dict(files_of(await one_program.code("adder"))), **change})
    )
    assert (given.value, given.grade.verdict) == (float(verdict == "resolved"), verdict), given.grade


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"no tar",
        left({"adder.py": FIXED})[:-20],
        left({"../adder.py": FIXED}),
        left({"a": "", "a/b": ""}),
        left({"x" * 300: ""}),
    ],
    ids=["empty", "no tar", "cut", "outside", "a file as a folder", "long name"],
)
async def test_a_tree_that_cannot_be_read_is_the_agents_fault(one_program: Benchmark, damaged: bytes) -> None:
    given = await one_program.reward("adder", damaged)
    assert (given.value, given.grade.verdict) == (0.0, "error")


async def test_a_fault_of_the_machine_is_no_reward(
    one_program: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def image(self: Benchmark, ident: str) -> None:
        raise EngineUnavailable("no engine answers")

    monkeypatch.setattr(Benchmark, "image", image)
    given = await one_program.reward("adder", left({"adder.py": FIXED}))
    assert (given.value, given.grade.verdict) == (None, "infra")
    assert "no engine answers" in given.grade.reason


def test_a_process_reads_a_benchmark_once(tmp_path: Path, one_program: Benchmark) -> None:
    source = str(tmp_path / "rows")
    assert module.benchmark(source) is module.benchmark(source)
