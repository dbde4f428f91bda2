"""Test the one run of the base tree's tests, and what is kept of it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.agent.verify import baseline as baselines
from m3agent.agent.verify.baseline import Baseline, BaselineRun, KeptBaselines, key_of
from m3agent.sandbox.backends.factory import SandboxSpec
from m3agent.sandbox.backends.sandbox import SandboxLimits
from m3agent.sandbox.errors import SandboxDied
from m3agent.sandbox.network.allow_list import parse_hosts
from m3agent.tools.run_tests import Bytecode
from m3agent.tools.test_report import TestReport
from tests.fakes.machine import MemoryMachine, memory_sandbox
from tests.fakes.trees import memory_workspace

REPORT = TestReport(
    ("a::x",), ("a::\u00e4",), (), ("b::z",), {"a::\u00e4": "E\nassert 1"}, True, False, 1.5, 1, "out", False
)
CUT_SHORT = dataclasses.replace(REPORT, complete=False)
KEY = "0" * 32


@dataclasses.dataclass
class ScriptedTests:
    """A suite that is run once for each call; `error` ends the run."""

    report: TestReport = REPORT
    error: Exception | None = None
    runs: int = 0
    may_end: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    cancelled: bool = False

    async def __call__(self) -> TestReport:
        self.runs += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return self.report


@pytest.fixture
def kept(tmp_path: Path) -> KeptBaselines:
    return KeptBaselines(tmp_path)


async def test_the_tests_run_once_in_the_background(kept: KeptBaselines) -> None:
    tests, told = ScriptedTests(), list[Baseline]()
    run = BaselineRun(tests, kept, None, told.append)
    run.start()
    run.start()
    assert run.known is None
    waiting = [asyncio.create_task(run.result()) for _ in range(2)]
    await asyncio.sleep(0)
    assert (tests.runs, run.known) == (1, None)
    tests.may_end.set()
    assert await asyncio.gather(*waiting) == [REPORT, REPORT]
    assert run.known is REPORT
    assert told == [Baseline(REPORT, cached=False)]
    assert not kept.folder.exists(), "without a key nothing is kept"


async def test_somebody_who_stops_waiting_does_not_stop_the_run(kept: KeptBaselines) -> None:
    tests = ScriptedTests()
    run = BaselineRun(tests, kept, None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.result(), 0.01)
    tests.may_end.set()
    assert await run.result() is REPORT
    assert tests.runs == 1


@pytest.mark.parametrize(
    "tests", [ScriptedTests(CUT_SHORT), ScriptedTests(error=SandboxDied("gone"))], ids=["cut short", "died"]
)
async def test_without_a_complete_result_nothing_is_known(kept: KeptBaselines, tests: ScriptedTests) -> None:
    told: list[Baseline] = []
    tests.may_end.set()
    run = BaselineRun(tests, kept, KEY, told.append)
    assert await run.result() is None
    assert (run.known, told, kept.read(KEY)) == (None, [], None)


async def test_a_run_without_time_for_all_tests_is_a_partial_result(kept: KeptBaselines) -> None:
    """Verification may use it. Others need a complete one, and no later session gets it."""
    part = dataclasses.replace(CUT_SHORT, stopped=True)
    told: list[Baseline] = []
    tests = ScriptedTests(part)
    tests.may_end.set()
    run = BaselineRun(tests, kept, KEY, told.append)
    assert not run.done
    assert await run.partial() is part
    assert run.done
    assert await run.result() is None
    assert (run.known, told, kept.read(KEY)) == (None, [Baseline(part, cached=False)], None)


async def test_a_run_under_way_is_ended(kept: KeptBaselines) -> None:
    tests = ScriptedTests()
    run = BaselineRun(tests, kept, KEY)
    await run.close()
    run.start()
    await asyncio.sleep(0.01)
    await run.close()
    assert tests.cancelled or tests.runs == 0
    assert (run.known, kept.read(KEY)) == (None, None)


async def test_a_later_session_uses_the_result(kept: KeptBaselines) -> None:
    tests = ScriptedTests()
    tests.may_end.set()
    await BaselineRun(tests, kept, KEY).result()
    told: list[Baseline] = []
    again = BaselineRun(tests, KeptBaselines(kept.folder.parent), KEY, told.append)
    assert await again.result() == REPORT
    assert told == [Baseline(REPORT, cached=True)]
    assert tests.runs == 1
    await BaselineRun(tests, kept, "1" * 32).result()
    assert tests.runs == 2, "another key is another result"


async def test_the_bytecode_is_kept_beside_the_result(kept: KeptBaselines) -> None:
    made = Bytecode()

    async def compiled() -> TestReport:
        made.content = b"code"
        return REPORT

    await BaselineRun(compiled, kept, KEY, bytecode=made).result()
    later = Bytecode()
    again = BaselineRun(ScriptedTests(), kept, KEY, bytecode=later)
    assert (await again.result(), later) == (REPORT, made)
    assert kept.read_bytecode("1" * 32) == b""


def test_kept_results_are_private(kept: KeptBaselines) -> None:
    kept.write(KEY, REPORT)
    [file] = kept.folder.iterdir()
    assert (kept.folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b"\xff", b'{"passed": 3}'])
def test_a_damaged_file_is_no_result(kept: KeptBaselines, content: bytes) -> None:
    kept.write(KEY, REPORT)
    [file] = kept.folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(content)
    assert kept.read(KEY) is None
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        assert kept.read(KEY) is None, "a torn file is no result"
    kept.write(KEY, REPORT)
    assert kept.read(KEY) == REPORT


def test_a_name_that_is_no_utf_8_does_not_stop_a_run(kept: KeptBaselines) -> None:
    kept.write(KEY, dataclasses.replace(REPORT, passed=("test_\udcff.py::test_a",)))
    assert kept.read(KEY) is None, "the tests run again"


def test_an_incomplete_result_is_not_kept(kept: KeptBaselines) -> None:
    kept.write(KEY, CUT_SHORT)
    assert not kept.folder.exists()


def test_without_a_place_to_write_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "baselines").write_text("a file where the folder should be")
    kept = KeptBaselines(tmp_path)
    kept.write(KEY, REPORT)
    assert kept.read(KEY) is None


def test_the_least_recently_used_results_are_deleted(
    kept: KeptBaselines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "MOST_KEPT", 2)
    for position, name in enumerate("abc"):
        kept.write(name, REPORT)
        os.utime(kept.folder / f"{name}.json", (position, position))
        if name == "b":
            assert kept.read("a") == REPORT, "reading is a use"
    assert (kept.read("a"), kept.read("b")) == (REPORT, None)


def test_large_results_are_deleted_before_their_number_is_reached(
    kept: KeptBaselines, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write("first", REPORT)
    monkeypatch.setattr(baselines, "MOST_BYTES", (kept.folder / "first.json").stat().st_size)
    os.utime(kept.folder / "first.json", (0, 0))
    kept.write("new", REPORT)
    assert (kept.read("first"), kept.read("new")) == (None, REPORT)
    monkeypatch.setattr(baselines, "MOST_BYTES", 1)
    kept.write("new", REPORT)
    assert kept.read("new") == REPORT, "the newest one is always kept"


async def test_the_key_changes_with_all_that_may_change_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = memory_workspace(tmp_path, {"a.py": ""})
    async with memory_sandbox(workspace) as sandbox:
        machine = sandbox.machine
        assert isinstance(machine, MemoryMachine)
        spec = SandboxSpec("docker")
        first = key_of(spec, "docker", sandbox, (600, 300))
        seen = {first}
        assert key_of(spec, "docker", sandbox, (600, 300)) == first

        def differs(make: Callable[[], str]) -> None:
            key = make()
            assert key not in seen
            seen.add(key)

        differs(lambda: key_of(spec, "bwrap", sandbox, (600, 300)))
        differs(lambda: key_of(spec, "docker", sandbox, (601, 300)))
        differs(lambda: key_of(spec, "docker", sandbox, (600, 301)))
        limits = SandboxLimits(memory=1 << 30)
        differs(lambda: key_of(dataclasses.replace(spec, limits=limits), "docker", sandbox, (600, 300)))
        hosts = parse_hosts("a.example")
        differs(lambda: key_of(dataclasses.replace(spec, allow_net=hosts), "docker", sandbox, (600, 300)))
        machine.image_id = "another"
        differs(lambda: key_of(spec, "docker", sandbox, (600, 300)))
        sandbox.python = "3.99.0"
        differs(lambda: key_of(spec, "docker", sandbox, (600, 300)))
        monkeypatch.setattr(baselines, "__version__", "0.0.0")
        differs(lambda: key_of(spec, "docker", sandbox, (600, 300)))
    async with memory_sandbox(memory_workspace(tmp_path / "2", {"a.py": "x"})) as other:
        differs(lambda: key_of(spec, "docker", other, (600, 300)))
