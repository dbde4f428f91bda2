"""The policy is a pure function of the request. It acts only through the given tools, and explains when it gives up."""

from __future__ import annotations

import ast
import copy
import json
import math
import re
import zlib
from pathlib import Path

import pytest

from m3agent.serving import embedded
from m3agent.serving.embedded.policy import respond
from m3agent.serving.embedded.repair import Budget, nothing_tried, read_probe, read_test_run
from tests.serving.embedded.faults import CALENDAR, FAULTS, STOCK, Fault
from tests.serving.embedded.workbench import TOOLS, Workbench


def bench_of(folder: Path, fault: Fault) -> Workbench:
    return Workbench.of(folder, fault.written(), fault.issue)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """The finished conversation about STOCK, with a seed and without a time limit. Tests only read it."""
    bench = bench_of(tmp_path_factory.mktemp("stock"), STOCK)
    bench.budget = Budget(candidates=400, seconds=math.inf, seed=7)
    bench.converse()
    return bench


@pytest.fixture(scope="module")
def calendar(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """The finished conversation about CALENDAR. Tests only read it."""
    bench = bench_of(tmp_path_factory.mktemp("calendar"), CALENDAR)
    bench.converse()
    return bench


def begun(folder: Path, whole: Workbench, fault: Fault, turns: int) -> Workbench:
    """Return a conversation cut after `turns`, with the original files."""
    bench = bench_of(folder, fault)
    bench.budget = whole.budget
    bench.messages = copy.deepcopy(whole.messages[: 1 + 2 * turns])
    return bench


def calls(bench: Workbench) -> list[dict[str, str]]:
    """Return the called function and its arguments (as JSON) of each turn."""
    return [message["tool_calls"][0]["function"] for message in bench.messages[1::2]]


@pytest.mark.slow  # quick: test_repairs and test_the_seed_orders_what_is_equal
@pytest.mark.integration
def test_repairs_with_a_seed(stock: Workbench) -> None:
    check_repair(copy.deepcopy(stock), STOCK)


@pytest.mark.linux  # the probe runs in a sandbox
@pytest.mark.integration
def test_repairs(calendar: Workbench) -> None:
    check_repair(copy.deepcopy(calendar), CALENDAR)


@pytest.mark.linux
@pytest.mark.integration
def test_a_measurement_that_was_interrupted_and_made_again_is_no_reason(
    tmp_path: Path, calendar: Workbench
) -> None:
    bench = begun(tmp_path, calendar, CALENDAR, 1)
    bench.take_turn(bench.ask(), "interrupted: the call started and did not finish")
    bench.take_turn(bench.ask())
    assert "did not answer" not in bench.ask(tool_choice="none").text


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault not in (STOCK, CALENDAR)], ids=lambda fault: fault.name
)
def test_repairs_the_others(tmp_path: Path, fault: Fault) -> None:
    bench = bench_of(tmp_path, fault)
    bench.converse()
    check_repair(bench, fault)


def check_repair(bench: Workbench, fault: Fault) -> None:
    """Assert that the conversation of `bench` has ended with a repair."""
    last = bench.ask()
    assert "All tests pass" in last.text
    assert re.search(r"Tried \d+ candidate", last.text)
    assert bench.text(fault.path) != fault.written()[fault.path]
    run = read_test_run(bench.run_tests("pytest", 60))
    assert run is not None and run.passed and not run.red
    for path, text in fault.written().items():
        assert path == fault.path or bench.text(path) == text
    # The policy replays its state from the history, so each part of the history gets the same answer again.
    for end, message in enumerate(bench.messages):
        if message["role"] == "assistant":
            again = respond({**bench.request(), "messages": bench.messages[:end]}, bench.budget)
            assert again.calls[0].name == message["tool_calls"][0]["function"]["name"]
    # The policy stays finished when the harness asks again.
    bench.messages += [
        {"role": "assistant", "content": last.text},
        {"role": "user", "content": "Is that all?"},
    ]
    asked = bench.ask()
    assert not asked.calls
    assert "All tests pass" in asked.text


SHOP = {
    "shop/__init__.py": "",
    "shop/cart.py": "def count(pens):\n    return len(pens) - 1\n",
    "shop/shipping.py": "def is_free(total):\n    return total < 50\n",
    "test_cart.py": "from shop.cart import count\n\ndef test_count(): assert count('abc') == 3\ndef test_none(): assert count('') == 0\n",
    "test_shipping.py": "from shop.shipping import is_free\n\ndef test_free(): assert is_free(60)\ndef test_paid(): assert not is_free(9)\n",
}


@pytest.mark.slow  # quick: tests/util/test_about_issue.py
@pytest.mark.linux  # the probe runs in a sandbox
@pytest.mark.integration
@pytest.mark.parametrize(
    ("issue", "changed"),
    [
        ("count() says 2 for three pens", ["shop/cart.py"]),
        ("is_free is wrong for 60", ["shop/shipping.py"]),
        ("Everything is wrong here", ["shop/cart.py", "shop/shipping.py"]),
    ],
)
def test_what_the_issue_is_not_about_is_left_alone(tmp_path: Path, issue: str, changed: list[str]) -> None:
    bench = Workbench.of(tmp_path, SHOP, issue)
    report = bench.converse()
    assert [path for path, text in SHOP.items() if bench.text(path) != text] == changed
    assert ("that the issue is not about" in report.text) == (len(changed) == 1)


@pytest.mark.slow  # quick: test_repairs
@pytest.mark.linux  # the probe runs in a sandbox
@pytest.mark.integration
def test_other_changes_that_pass_are_shown(tmp_path: Path) -> None:
    """A person can see from them which test is missing."""
    files = {
        "best.py": "def best(xs):\n    top = xs[0]\n    for x in xs:\n        if x < top:\n            top = x\n    return top\n",
        "test_best.py": "from best import best\n\n\ndef test_best():\n    assert best([1, 3, 2]) == 3\n",
    }
    bench = Workbench.of(tmp_path, files, "best() returns the smallest")
    bench.converse()
    _, _, last = bench.ask().text.partition("All tests pass with it. ")
    assert re.match(r"Of the (\d+) changes that pass, I took the smallest", last)
    assert "add a test that fails with it, and run the fix again.\nNot taken: best.py, line " in last
    assert "-        if x < top:\n+        if " in last


@pytest.mark.linux  # the probe runs in a sandbox
@pytest.mark.integration
def test_replay_is_deterministic(tmp_path: Path, calendar: Workbench) -> None:
    for turns in range(3):
        bench = begun(tmp_path / str(turns), calendar, CALENDAR, turns)
        reply = bench.ask()
        assert bench.ask() == reply
        assert json.dumps(reply.calls[0].arguments) == calls(calendar)[turns]["arguments"]
    bench = begun(tmp_path, calendar, CALENDAR, 3)
    one, other = bench.ask(), respond(copy.deepcopy(bench.request()), bench.budget)
    assert one.calls == other.calls
    assert "judge" in one.calls[0].arguments["code"]


@pytest.mark.linux  # the probe runs in a sandbox
@pytest.mark.integration
def test_the_seed_orders_what_is_equal(tmp_path: Path, calendar: Workbench) -> None:
    bench = begun(tmp_path, calendar, CALENDAR, 3)
    other = respond(bench.request(), Budget(seed=1))
    assert other.calls != bench.ask().calls


@pytest.mark.integration
def test_no_failing_test_means_nothing_to_judge_by(tmp_path: Path) -> None:
    bench = Workbench.of(tmp_path, CALENDAR.files)
    last = bench.converse()
    assert last.text.startswith("No change: ")
    assert {path: bench.text(path) for path in CALENDAR.files} == CALENDAR.files


@pytest.mark.integration
def test_no_tests(tmp_path: Path) -> None:
    last = Workbench.of(tmp_path, {"m.py": "x = 1\n"}).converse()
    assert last.text.startswith("No change: there are no tests here")


@pytest.mark.slow  # quick: test_probe.py
@pytest.mark.integration
def test_test_files_are_never_edited(tmp_path: Path) -> None:
    files = {"m.py": "def f():\n    return 1\n", "test_m.py": "def test_x():\n    assert 1 == 2\n"}
    bench = Workbench.of(tmp_path, files)
    last = bench.converse()
    assert last.text.startswith("No change: ")
    assert bench.text("test_m.py") == files["test_m.py"]


@pytest.mark.slow
@pytest.mark.linux  # the probe runs in a sandbox
@pytest.mark.integration
def test_embedded_engine_says_that_no_candidate_works(tmp_path: Path) -> None:
    files = {
        "m.py": "def f(x):\n    return x\n",
        "test_m.py": "from m import f\n\n\ndef test_f():\n    assert f(7) == 'seven'\n\n\ndef test_g():\n    assert f(8) == 'eight'\n",
    }
    bench = Workbench.of(tmp_path, files)
    bench.budget = Budget(candidates=20, seconds=20)
    last = bench.converse()
    assert re.match(r"No change: none of \d+ candidate changes makes", last.text)
    assert bench.text("m.py") == files["m.py"]


@pytest.mark.slow  # quick: test_localise.py
@pytest.mark.integration
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
    bench.budget = Budget(candidates=40)  # each candidate is imported in a new process, which takes a while
    assert "All tests pass" in bench.converse().text
    assert bench.text("m.py") == fault.files["m.py"]


@pytest.mark.slow  # quick: test_embedded_engine_says_that_no_candidate_works
def test_source_that_does_not_parse_is_given_up_on(tmp_path: Path) -> None:
    files = {
        "m.py": "def f(:\n    return 1\n",
        "test_m.py": "from m import f\n\n\ndef test_f():\n    assert f() == 1\n",
    }
    last = Workbench.of(tmp_path, files).converse()
    assert last.text.startswith("No change: ")


@pytest.mark.linux  # the probe runs in a sandbox
@pytest.mark.integration
def test_tool_choice_none_gets_a_summary(tmp_path: Path, calendar: Workbench) -> None:
    bench = begun(tmp_path, calendar, CALENDAR, 2)
    bench.messages.append({"role": "user", "content": "The limit is reached."})
    reply = bench.ask(tool_choice="none")
    assert not reply.calls
    assert "the search has not ended yet" in reply.text


@pytest.mark.integration
def test_a_history_of_somebody_else_is_not_gone_on_with(tmp_path: Path, calendar: Workbench) -> None:
    bench = begun(tmp_path, calendar, CALENDAR, 1)
    bench.messages[1]["tool_calls"][0]["function"]["arguments"] = '{"test_file": "x"}'
    reply = bench.ask()
    assert not reply.calls
    assert "does not follow my own steps" in reply.text


@pytest.mark.linux  # the probe runs in a sandbox
@pytest.mark.integration
@pytest.mark.parametrize(
    ("old", "new", "goes_on"),
    [
        ("def spectrum(", "# as an older version wrote it\ndef spectrum(", True),
        (
            "# find the lines that the failing tests run\n",
            "# measure which lines failing and passing tests run\n",
            True,
        ),
        ('"seconds"', '"sceonds"', False),
    ],
)
def test_programs_of_other_versions_do_the_same_job(
    tmp_path: Path, calendar: Workbench, old: str, new: str, goes_on: bool
) -> None:
    bench = begun(tmp_path, calendar, CALENDAR, 2)
    call = bench.messages[3]["tool_calls"][0]["function"]
    arguments = json.loads(call["arguments"])
    assert old in arguments["code"]
    call["arguments"] = json.dumps({**arguments, "code": arguments["code"].replace(old, new)})
    assert bool(bench.ask().calls) == goes_on


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
    assert "I lack code_exec and file_edit" in respond(body, Budget()).text


def test_arguments_a_tool_does_not_know_are_left_out(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, CALENDAR)
    tools = copy.deepcopy(TOOLS)
    del tools[-1]["function"]["parameters"]["properties"]["timeout"]
    assert bench.ask(tools=tools).calls[0].arguments == {"test_file": ".", "framework": "pytest"}


@pytest.mark.linux  # the probe runs in a sandbox
@pytest.mark.integration
def test_a_change_that_does_not_hold_is_taken_back(tmp_path: Path, calendar: Workbench) -> None:
    edit = [call["name"] for call in calls(calendar)].index("file_edit")
    bench = begun(tmp_path, calendar, CALENDAR, edit)
    bench.take_turn(bench.ask())
    bench.take_turn(
        bench.ask(), "1 passed, 3 failed, 0 errors, 0 skipped\nFAILED tests/test_dates.py::test_leap"
    )
    last = bench.converse()
    assert last.text.startswith("No change: changes that passed in my private copy")
    assert bench.text("dates.py") == CALENDAR.written()["dates.py"]


@pytest.mark.linux  # the probe runs in a sandbox
@pytest.mark.integration
def test_a_partial_change_that_cannot_be_written_is_no_success(tmp_path: Path, calendar: Workbench) -> None:
    edit = [call["name"] for call in calls(calendar)].index("file_edit")
    bench = begun(tmp_path, calendar, CALENDAR, edit)
    judged = bench.messages[-1]
    judged["content"] = re.sub(
        r'"fixed":(\d)', lambda found: f'"fixed":{int(found[1]) - 1}', judged["content"]
    )
    while (reply := bench.ask()).calls[0].name == "code_exec":
        bench.take_turn(reply, "interrupted")
    bench.take_turn(reply, "error: it changed")
    assert bench.ask().text.startswith("No change: the change could not be written: error: it changed")


PROGRAMS = """
    bitcount breadth_first_search bucketsort depth_first_search detect_cycle find_first_in_sorted find_in_sorted flatten
    gcd get_factors hanoi is_valid_parenthesization kheapsort knapsack kth lcs_length levenshtein lis
    longest_common_subsequence max_sublist_sum mergesort minimum_spanning_tree next_palindrome next_permutation pascal
    possible_change powerset quicksort reverse_linked_list rpn_eval shortest_path_length shortest_path_lengths
    shortest_paths shunting_yard sieve sqrt subsequences to_base topological_ordering wrap
"""
PROJECTS = """
    astropy django flask matplotlib pylint requests seaborn sklearn sphinx sympy xarray boltons more_itertools sqlparse
    slugify humanize quixbugs swebench swe_bench gold
"""
ORDINARY = {"sqrt", "requests"}
"""Words above that the engine's own code needs: a function of `math`, and the requests of a process on a pipe."""


def test_the_engine_knows_no_benchmark() -> None:
    """The engine's strings and identifiers contain no name of a benchmark, its programs or its projects."""
    folder = Path(embedded.__file__).parent
    known = {*PROGRAMS.split(), *PROJECTS.split()} - ORDINARY
    used: dict[str, str] = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            text = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "value")]
            for word in {
                word for part in text if isinstance(part, str) for word in re.findall(r"\w+", part.lower())
            }:
                used[word] = path.name
    assert len(used) > 500
    assert not {word: used[word] for word in known & used.keys()}


@pytest.mark.slow  # quick: test_repairs
def test_the_names_of_files_do_not_matter(tmp_path: Path, stock: Workbench) -> None:
    renamed = {
        path.replace("stock", "zebra"): text.replace("import stock", "import zebra").replace(
            "from stock", "from zebra"
        )
        for path, text in STOCK.written().items()
    }
    other = Workbench.of(tmp_path, renamed, STOCK.issue)
    other.budget = stock.budget
    other.converse()
    assert stock.text("stock.py") == other.text("zebra.py") != STOCK.written()["stock.py"]


@pytest.mark.slow  # quick: test_replay_is_deterministic
@pytest.mark.integration
def test_the_same_seed_and_candidates_give_the_same_patch(tmp_path: Path, stock: Workbench) -> None:
    again = bench_of(tmp_path, STOCK)
    again.budget = stock.budget
    reports = [re.sub(r"in \d+ s", "", last.text) for last in (stock.ask(), again.converse())]
    assert reports[0] == reports[1]
    assert stock.text(STOCK.path) == again.text(STOCK.path) != STOCK.written()[STOCK.path]


@pytest.mark.slow
@pytest.mark.integration
def test_a_batch_cut_by_time_loses_no_candidate(
    tmp_path: Path, calendar: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each candidate is judged once and in order, however short the batches are."""
    report = calendar.ask().text
    monkeypatch.setattr("m3agent.serving.embedded.languages.Python.batch_seconds", 1.5)
    cut = bench_of(tmp_path, CALENDAR)
    assert cut.converse().text.splitlines()[2:] == report.splitlines()[2:]
    assert len(cut.messages) >= len(calendar.messages)
    assert cut.text(CALENDAR.path) == calendar.text(CALENDAR.path)


@pytest.mark.slow
def test_a_long_file_is_read_in_pieces(tmp_path: Path) -> None:
    """The packed text of the file is longer than the longest answer."""
    noise = [format(zlib.crc32(b"%d" % n), "08x") for n in range(8000)]
    filler = "".join(f'TEXT_{n} = "{"".join(noise[n : n + 400])}"\n' for n in range(0, 8000, 400))
    files = {path: (filler + text if path == STOCK.path else text) for path, text in STOCK.written().items()}
    bench = Workbench.of(tmp_path, files, STOCK.issue)
    assert "All tests pass" in bench.converse().text
    assert sum('"mode":"read"' in message["content"] for message in bench.messages) > 1
    assert bench.text(STOCK.path) != files[STOCK.path]


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (["uncollected"], "the failing tests cannot be imported here"),
        (["uncollected", "failed"], "no small change of the code that the failing tests run"),
    ],
)
def test_an_import_error_is_named_where_nothing_can_be_tried(outcomes: list[str], said: str) -> None:
    assert nothing_tried({"failed": [["t.py", one, 0.0, "", []] for one in outcomes]}).startswith(said)
