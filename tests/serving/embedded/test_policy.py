"""The policy: a pure function of the request that acts through the tools it was given, and gives up in plain words."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from m3agent.serving import embedded
from m3agent.serving.embedded.policy import respond
from m3agent.serving.embedded.repair import Budget, read_probe, read_test_run
from tests.serving.embedded.faults import CALENDAR, CLOCK, CONFIG, FAULTS, STOCK, Fault
from tests.serving.embedded.workbench import TOOLS, Workbench


def bench_of(folder: Path, fault: Fault) -> Workbench:
    return Workbench.of(folder, fault.written(), fault.issue)


@pytest.mark.parametrize("fault", [STOCK, CONFIG], ids=lambda fault: fault.name)
def test_repairs(tmp_path: Path, fault: Fault) -> None:
    check_repair(bench_of(tmp_path, fault), fault)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault not in (STOCK, CONFIG)], ids=lambda fault: fault.name
)
def test_repairs_the_others(tmp_path: Path, fault: Fault) -> None:
    check_repair(bench_of(tmp_path, fault), fault)


def check_repair(bench: Workbench, fault: Fault) -> None:
    last = bench.converse()
    assert "All tests pass" in last.text
    assert re.search(r"Tried \d+ candidate", last.text)
    assert bench.text(fault.path) != fault.written()[fault.path]
    run = read_test_run(bench.run_tests("pytest", 60))
    assert run is not None and run.passed and not run.red
    for path, text in fault.written().items():
        assert path == fault.path or bench.text(path) == text
    # Everything is replayed from the history: same request, same answer; and the whole history up to each turn.
    for end, message in enumerate(bench.messages):
        if message["role"] == "assistant":
            again = respond({**bench.request(), "messages": bench.messages[:end]}, bench.budget)
            assert again.calls[0].name == message["tool_calls"][0]["function"]["name"]
    # Done is done, also when the harness asks once more.
    bench.messages += [
        {"role": "assistant", "content": last.text},
        {"role": "user", "content": "Is that all?"},
    ]
    asked = bench.ask()
    assert not asked.calls
    assert "All tests pass" in asked.text


def test_replay_is_deterministic(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, CALENDAR)
    for _ in range(3):
        reply = bench.ask()
        assert bench.ask() == reply
        bench.take_turn(reply)
    one, other = bench.ask(), respond(copy.deepcopy(bench.request()), bench.budget)
    assert one.calls == other.calls
    assert "judge" in one.calls[0].arguments["code"]


def test_the_seed_orders_what_is_equal(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, CALENDAR)
    for _ in range(3):
        bench.take_turn(bench.ask())
    other = respond(bench.request(), Budget(seed=1))
    assert other.calls != bench.ask().calls


def test_no_failing_test_means_nothing_to_judge_by(tmp_path: Path) -> None:
    bench = Workbench.of(tmp_path, CALENDAR.files)
    last = bench.converse()
    assert last.text.startswith("No change: all tests pass")
    assert {path: bench.text(path) for path in CALENDAR.files} == CALENDAR.files


def test_no_tests(tmp_path: Path) -> None:
    last = Workbench.of(tmp_path, {"m.py": "x = 1\n"}).converse()
    assert last.text.startswith("No change: there are no tests here")


def test_test_files_are_never_edited(tmp_path: Path) -> None:
    files = {"m.py": "def f():\n    return 1\n", "test_m.py": "def test_x():\n    assert 1 == 2\n"}
    bench = Workbench.of(tmp_path, files)
    last = bench.converse()
    assert last.text.startswith("No change: ")
    assert bench.text("test_m.py") == files["test_m.py"]


def test_out_of_reach_is_said(tmp_path: Path) -> None:
    files = {
        "m.py": "def f(x):\n    return x\n",
        "test_m.py": "from m import f\n\n\ndef test_f():\n    assert f(7) == 'seven'\n\n\ndef test_g():\n    assert f(8) == 'eight'\n",
    }
    bench = Workbench.of(tmp_path, files)
    bench.budget = Budget(candidates=50, seconds=20)
    last = bench.converse()
    assert re.match(r"No change: none of \d+ candidate changes makes", last.text)
    assert bench.text("m.py") == files["m.py"]


def test_imports_that_fail_are_localised_by_the_traceback(tmp_path: Path) -> None:
    fault = Fault(
        "import",
        {
            "m.py": "LIMITS = dict(low=2, high=7)\nWIDTH = LIMITS['high'] - LIMITS['low']\n\n\ndef width():\n    return WIDTH\n",
            "test_m.py": "from m import width\n\n\ndef test_width():\n    assert width() == 5\n",
        },
        "import fails",
        "m.py",
        "LIMITS['higher']",
        "LIMITS['high']",
    )
    bench = bench_of(tmp_path, fault)
    assert "All tests pass" in bench.converse().text
    assert bench.text("m.py") == fault.files["m.py"]


def test_source_that_does_not_parse_is_given_up_on(tmp_path: Path) -> None:
    files = {
        "m.py": "def f(:\n    return 1\n",
        "test_m.py": "from m import f\n\n\ndef test_f():\n    assert f() == 1\n",
    }
    last = Workbench.of(tmp_path, files).converse()
    assert last.text.startswith("No change: ")


def test_tool_choice_none_gets_a_summary(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, CALENDAR)
    bench.take_turn(bench.ask())
    bench.take_turn(bench.ask())
    bench.messages.append({"role": "user", "content": "The limit is reached."})
    reply = bench.ask(tool_choice="none")
    assert not reply.calls
    assert "the search has not ended yet" in reply.text


def test_a_history_of_somebody_else_is_not_gone_on_with(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, CALENDAR)
    bench.take_turn(bench.ask())
    bench.messages[1]["tool_calls"][0]["function"]["arguments"] = '{"test_file": "x"}'
    reply = bench.ask()
    assert not reply.calls
    assert "does not go on as I would have" in reply.text


@pytest.mark.parametrize(
    "result", ["", "error: no such tool", "interrupted", "exit code: 1\nstderr:\nboom", "M3-REPAIR {"]
)
def test_unusable_results_end_in_plain_words(tmp_path: Path, result: str) -> None:
    bench = bench_of(tmp_path, CALENDAR)
    reply = bench.ask()
    for _ in range(6):
        if reply.calls:
            bench.take_turn(reply, result)
            reply = bench.ask()
    assert not reply.calls
    assert reply.text.startswith("No change: ")


def test_notes_in_results_do_no_harm() -> None:
    noted = "2 passed, 1 failed, 0 errors, 0 skipped\nFAILED t.py::a\n    E  x\n\n[note: the same again]"
    run = read_test_run(noted)
    assert run is not None
    assert (run.passed, run.red, run.complete) == (2, frozenset({"t.py::a"}), True)
    assert read_probe('exit code: 0\nstdout:\nM3-REPAIR {"mode":"read"}\n\n[note: x]') == {"mode": "read"}


def test_missing_tools_are_named() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS[-1:]}
    assert "was not given code_exec and file_edit" in respond(body, Budget()).text


def test_arguments_a_tool_does_not_know_are_left_out(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, CALENDAR)
    tools = copy.deepcopy(TOOLS)
    del tools[-1]["function"]["parameters"]["properties"]["timeout"]
    assert bench.ask(tools=tools).calls[0].arguments == {"test_file": ".", "framework": "pytest"}


def test_a_change_that_does_not_hold_is_taken_back(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, CALENDAR)
    reply = bench.ask()
    while reply.calls[0].name != "file_edit":
        bench.take_turn(reply)
        reply = bench.ask()
    bench.take_turn(reply)
    bench.take_turn(
        bench.ask(), "1 passed, 3 failed, 0 errors, 0 skipped\nFAILED tests/test_dates.py::test_leap"
    )
    last = bench.converse()
    assert last.text.startswith("No change: changes that passed in my private copy")
    assert bench.text("dates.py") == CALENDAR.written()["dates.py"]


def test_the_engine_knows_no_benchmark() -> None:
    folder = Path(embedded.__file__).parent
    texts = [path.read_text().lower() for path in folder.rglob("*.py")]
    words = (
        "quix",
        "swe-bench",
        "swebench",
        "mergesort",
        "bitcount",
        "levenshtein",
        "palindrome",
        "powerset",
        "gcd",
    )
    names = [fault.name for fault in (CLOCK, STOCK)]
    assert not [word for word in words for text in texts if word in text]
    assert not [name for name in names for text in texts if f'"{name}"' in text]
