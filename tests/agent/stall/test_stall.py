"""Test the stall detector: what counts as a loop, what never does, and what follows."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.stall import QUIET, ObservedCall, StallDetector, StallVerdict, Thresholds

LIMITS = Thresholds()


def seen(
    code: str = "",
    content: str = "exit code: 0",
    *,
    name: str = "code_exec",
    arguments: dict[str, Any] | None = None,
    exit_code: int | None = 0,
    tree: str = "",
    **more: Any,
) -> ObservedCall:
    """Return a finished call, of code_exec by default."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    arguments = {"code": code} if arguments is None else arguments
    return ObservedCall(name, arguments, content, digest, bool(exit_code), exit_code, tree, **more)


def read(path: str, first: int, last: int, *, text: str = "line") -> ObservedCall:
    content = "\n".join(f"{number}\t{text} {number}" for number in range(first, last + 1))
    return seen(content=content, name="file_read", arguments={"path": path, "start": first, "end": last})


def of_file_tools(call: ObservedCall) -> ObservedCall:
    """Return the call as file tools report it, without an exit code."""
    return dataclasses.replace(call, exit_code=None)


def edit(path: str, old: str, new: str, *, tree: str = "") -> ObservedCall:
    arguments = {"path": path, "old": old, "new": new}
    return seen(content=f"edited {path} from line 1", name="file_edit", arguments=arguments, tree=tree)


def answer(
    detector: StallDetector, *, calls: int = 1, text: str = "next", finish: str = "tool_calls"
) -> StallVerdict | None:
    return detector.answered(reasoning="hm", text=text, calls=calls, finish=finish)


def feed(calls: Iterable[ObservedCall], detector: StallDetector | None = None) -> list[StallVerdict | None]:
    """Return the verdicts on these calls, one call a turn."""
    detector = detector or StallDetector()
    verdicts = []
    for call in calls:
        assert answer(detector) is None
        verdicts.append(detector.see(call))
    return verdicts


def actions(verdicts: Iterable[StallVerdict | None]) -> list[str | None]:
    return [verdict.action if verdict else None for verdict in verdicts]


def first(verdicts: Sequence[StallVerdict | None]) -> tuple[int, str] | None:
    """Return the number (from 1) of the first call with a verdict, and the rule of the verdict."""
    return next(((at, v.rule) for at, v in enumerate(verdicts, start=1) if v is not None), None)


def news(number: int) -> ObservedCall:
    """Return a new call with a new result."""
    return seen(f"look {number}", f"exit code: 0\nstdout:\nfact {number}\nand fact {number + 1000}")


# -- loops ---------------------------------------------------------------------------------------------------------


def test_repetition_gets_a_note_then_force_then_stop() -> None:
    verdicts = feed([seen("make", "exit code: 0\nstdout:\nnothing to do")] * 6)
    assert actions(verdicts) == [None, None, "tell", "force", "stop", "stop"]
    assert {verdict.rule for verdict in verdicts if verdict} == {"same-call-same-result"}
    told, stopped = verdicts[2], verdicts[4]
    assert told is not None
    assert stopped is not None
    assert told.text.startswith(
        "code_exec was called 3 times in a row with the same arguments and the same result. "
    )
    assert (stopped.count, stopped.text) == (
        5,
        "code_exec was called 5 times in a row with the same arguments and the same result",
    )


@given(st.lists(st.integers(0, 2), min_size=3, max_size=3).filter(any))
def test_unrelated_calls_between_hide_nothing(gaps: list[int]) -> None:
    """Four equal calls within twelve are a loop, even if other calls in between show something new."""
    calls = [seen("make", "a\nb")]
    for number, gap in enumerate(gaps):
        calls += [news(10 * number + each) for each in range(gap)]
        calls.append(seen("make", "a\nb"))
    verdicts = feed(calls)
    row = 1 + next(at for at, gap in enumerate([*gaps, 1]) if gap)  # equal calls in a row at the start
    if row < 3 and gaps[1:] != [0, 0]:
        assert first(verdicts) == (len(calls), "same-call-same-result")
    assert verdicts[-1] is not None


@given(st.integers(2, 4), st.integers(0, 9))
def test_cycles(length: int, salt: int) -> None:
    cycle = [seen(f"step {salt} {number}", f"first {number}\nsecond") for number in range(length)]
    verdicts = feed(cycle * 3)
    assert first(verdicts) is not None
    assert first(feed(cycle * 2)) is None
    # in a long cycle, the rule for eight calls without anything new applies before the third round ends
    assert {v.rule for v in verdicts if v} <= {"cycle", "nothing-new"}
    without = StallDetector(dataclasses.replace(LIMITS, nothing_new=0))
    assert first(feed(cycle * 3, without)) == (3 * length, "cycle")


def test_the_same_error_whatever_the_arguments() -> None:
    calls = [
        seen(
            f"javac -v{n} A.java",
            f"exit code: 127\nstderr:\nbash: line {n}: javac: command not found",
            exit_code=127,
        )
        for n in range(4)
    ]
    assert first(feed(calls)) == (4, "same-error")
    differing = [
        seen(f"run {n}", f"exit code: 1\nstderr:\nKeyError: '{'abcd'[n]}'", exit_code=1) for n in range(4)
    ]
    assert first(feed(differing)) is None


def test_nothing_new() -> None:
    some = [news(number) for number in range(5)]
    order = [0, 2, 4, 1, 3, 4, 0, 2]
    begin = [edit("a", "x", "y"), *some]
    verdicts = feed([*begin, *(some[number] for number in order)])
    assert first(verdicts) == (len(begin) + LIMITS.nothing_new, "nothing-new")


def test_reading_again_what_was_read() -> None:
    begin = [edit("b", "x", "y"), read("a", 1, 60), *(news(number) for number in range(3))]
    # each read has a new range within the lines read before; other calls keep showing something new
    calls = [call for n in range(6) for call in (read("a", 2 + n, 20 + n), news(50 + n))]
    verdicts = feed([*begin, *calls])
    assert first(verdicts) == (len(begin) + 11, "re-reading")


def test_a_work_tree_that_goes_back_and_forth() -> None:
    there, back = edit("a", "x", "y", tree="2"), edit("a", "y", "x", tree="1")
    verdicts = feed([news(0), *([dataclasses.replace(news(1), tree="1")]), there, back, there, back])
    assert first(verdicts) == (6, "returns")
    onward = [edit("a", str(n), str(n + 1), tree=str(n)) for n in range(20)]
    assert first(feed(onward)) is None


def rounds(failing: Sequence[Sequence[str]]) -> list[ObservedCall]:
    """Return edits and test runs in turn; after each edit, these tests fail."""
    calls = []
    for number, ids in enumerate(failing):
        calls.append(edit("a", f"try {number}", f"try {number + 1}", tree=str(number)))
        content = f"1 passed, {len(ids)} failed\n" + "\n".join(f"FAILED {each}" for each in ids)
        calls.append(
            seen(content=content, name="test_runner", arguments={"test_file": "."}, exit_code=1, tree=str(number),
                 failing=frozenset(ids))
        )  # fmt: skip
    return calls


def test_failures_that_no_edit_moves() -> None:
    assert first(feed(rounds([["t"]] * 4))) is None
    assert first(feed(rounds([["t"]] * 5))) == (10, "unmoved-failures")
    assert first(feed(rounds([["t", "u"], ["t", "u"], ["t", "u"], ["t"], ["t"], ["t"], ["t"]]))) is None


@pytest.mark.parametrize(
    ("rule", "limit", "given"),
    [
        ("empty-answer", 3, {"text": " \n", "finish": "stop", "calls": 0}),
        ("cut-off", 3, {"text": "and then", "finish": "length", "calls": 0}),
    ],
)
def test_answers_that_lead_nowhere(rule: str, limit: int, given: dict[str, Any]) -> None:
    detector = StallDetector()
    verdicts = [answer(detector, **given) for _ in range(limit + 2)]
    assert actions(verdicts) == [None, None, "tell", "force", "stop"]
    assert verdicts[limit - 1] is not None
    assert {verdict.rule for verdict in verdicts if verdict} == {rule}
    detector = StallDetector()
    for _ in range(10):
        assert answer(detector, **given) is None
        assert answer(detector) is None


# -- never loops ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 60))
def test_polling_what_changes(times: int) -> None:
    calls = [seen("wc -l log", f"exit code: 0\nstdout:\n{17 * n} log") for n in range(times)]
    assert first(feed(calls)) is None


def after_edits(times: int, call: Callable[[int], ObservedCall]) -> list[ObservedCall]:
    """Return edits, each followed by a call that knows its number."""
    numbers = range(times)
    return [each for n in numbers for each in (edit("a", f"try {n}", f"try {n + 1}", tree=str(n)), call(n))]


NEVER = {
    "assertions that fail are not one error": [
        seen(f"try {n}", f"exit code: 1\nstderr:\nAssertionError\nseen {'abcdefgh'[n]}", exit_code=1)
        for n in range(8)
    ],
    "tests that pass after each edit are a check": after_edits(
        10, lambda n: seen("pytest", "exit code: 0\nstdout:\n5 passed in 0.1s", tree=str(n))
    ),
    "polling a state that alternates": [
        seen("state", f"exit code: 0\nstdout:\n{'up' if n % 2 else 'down'}\nend") for n in range(7)
    ],
    "a command that gets somewhere each time": [
        seen("git rebase --continue", "done\nnext", tree=str(n)) for n in range(20)
    ],
    "moving files in git": [seen(f"git mv a{n} b{n}", tree=str(n)) for n in range(30)],
    "moving files": [seen(f"mv a{n} b{n}") for n in range(30)],
    "searches for new words": [seen(f"grep -r word{n} .", "exit code: 1", exit_code=1) for n in range(30)],
    "paging through a file": [read("a", 1 + 40 * n, 60 + 40 * n) for n in range(30)],
    "reading again what has changed": after_edits(12, lambda n: read("a", 1, 9, text=f"v{n}")),
    "reading the same after each change": after_edits(12, lambda n: read("b", 1 + n % 5, 60)),
}


@pytest.mark.parametrize("calls", NEVER.values(), ids=NEVER)
def test_what_is_never_a_loop(calls: list[ObservedCall]) -> None:
    assert first(feed(calls)) is None


def test_a_hard_bug_is_given_time() -> None:
    """The same test fails after each of many edits: the model gets notes, but more time than for plain repetition."""
    calls = after_edits(12, lambda n: seen("pytest", "F\nassert", exit_code=1, tree=str(n)))
    assert [(at // 2, action) for at, action in enumerate(actions(feed(calls)), start=1) if action] == [
        (4, "tell"),
        (7, "force"),
        (10, "stop"),
    ]
    unmoved = actions(feed(rounds([["t"]] * 11)))
    assert [(at // 2, action) for at, action in enumerate(unmoved, start=1) if action] == [
        (5, "tell"),
        (8, "force"),
        (11, "stop"),
    ]


def test_a_file_about_errors_is_no_failed_read() -> None:
    pages = [
        of_file_tools(read("a", 1 + 9 * n, 9 + 9 * n, text="raise ValueError: not found")) for n in range(12)
    ]
    assert first(feed([edit("b", "x", "y"), *pages])) is None
    changing = [of_file_tools(read("a", 1, 2, text=f"error: {n}")) for n in range(9)]
    assert first(feed([edit("b", "x", "y"), *changing])) is None


def test_much_reading_at_the_beginning() -> None:
    wide = read("a", 1, 200)
    again = [read("a", 1 + n, 50 + n) for n in range(14)]
    assert first(feed([wide, *again])) is None
    assert first(feed([edit("b", "x", "y"), wide, *again])) == (8, "re-reading")


@given(st.sampled_from(["failed", "errors", "tests left", "warnings"]))
def test_fewer_failures_are_progress(what: str) -> None:
    calls = [seen("check", f"exit code: 1\nstdout:\nin all {9 - n} {what}", exit_code=1) for n in range(8)]
    assert first(feed(calls)) is None


def test_equal_calls_of_one_turn_count_once() -> None:
    detector = StallDetector()
    answer(detector)
    answer(detector)
    answer(detector)
    assert [detector.see(seen("ls", "a\nb")) for _ in range(20)] == [None] * 20
    answer(detector)
    assert [detector.see(seen("ls", "a\nb")) for _ in range(20)] == [None] * 20
    answer(detector)
    verdicts = [detector.see(seen("ls", "a\nb")) for _ in range(20)]
    assert actions(verdicts) == ["tell"] + [None] * 19


def test_a_loop_speaks_once_a_turn() -> None:
    detector = StallDetector()
    turns = []
    for _ in range(5):
        answer(detector)
        turns.append(actions(detector.see(seen(code, f"{code}\nend")) for code in "ab"))
    assert turns == [[None, None]] * 2 + [[None, "tell"], ["force", None], ["stop", None]]


def test_one_call_is_no_cycle() -> None:
    limits = Thresholds(in_a_row=0, in_window=0, nothing_new=0)
    assert first(feed([seen("a", "b\nc")] * 12, StallDetector(limits))) is None


def test_the_opening_may_go_back_to_what_it_read() -> None:
    pages = [read("a", 1 + 10 * n, 10 + 10 * n) for n in range(3)]
    order = [0, 1, 2, 1, 0, 2, 2, 0, 1, 1, 2]
    limits = dataclasses.replace(LIMITS, in_window=0, in_a_row=0)
    assert first(feed([pages[n] for n in order], StallDetector(limits))) is None
    begun = [edit("b", "x", "y"), *(pages[n] for n in order)]
    assert first(feed(begun, StallDetector(dataclasses.replace(limits, rereads=0)))) == (12, "nothing-new")


# -- properties ----------------------------------------------------------------------------------------------------

NOISE = st.fixed_dictionaries(
    {
        "time": st.datetimes().map(lambda at: at.isoformat(sep=" ", timespec="seconds")),
        "clock": st.times().map(lambda at: at.isoformat(timespec="seconds")),
        "pid": st.integers(1, 99999),
        "tmp": st.from_regex(r"/tmp/[a-z0-9_]{8}/x\.txt", fullmatch=True),
        "seconds": st.floats(0, 999).map(lambda seconds: f"{seconds:.2f}s"),
        "uuid": st.uuids(),
        "address": st.integers(16, 2**48).map(hex),
        "color": st.sampled_from(["", "\x1b[31m", "\x1b[1;32m", "\x1b[0m"]),
        "spinner": st.sampled_from(["", "⠋", "⠙"]),
    }
)
BODY = "{color}{kind}{spinner} at {time} ({clock}), pid {pid}: {tmp} took {seconds}, {uuid} at {address}\nend of {kind}"
CALLS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.sampled_from([0, 1])), max_size=16
)


@given(calls=CALLS, data=st.data(), thresholds=st.sampled_from([LIMITS, QUIET]))
def test_noise_never_changes_a_verdict(
    calls: list[tuple[str, str, int]], data: st.DataObject, thresholds: Thresholds
) -> None:
    quiet, noisy = StallDetector(thresholds), StallDetector(thresholds)
    fixed = data.draw(NOISE)
    for code, kind, exit_code in calls:
        answer(quiet)
        answer(noisy)
        plain = quiet.see(seen(code, BODY.format(kind=kind, **fixed), exit_code=exit_code))
        other = noisy.see(seen(code, BODY.format(kind=kind, **data.draw(NOISE)), exit_code=exit_code))
        assert plain == other


@given(
    changed=st.integers(0, 11),
    kind=st.sampled_from(["row", "window", "two", "four"]),
    exit_code=st.integers(0, 1),
)
def test_any_changed_result_clears_it(changed: int, kind: str, exit_code: int) -> None:
    def call(code: str) -> ObservedCall:
        return seen(code, f"result of {code}\nend", exit_code=exit_code)

    calls = {
        "row": [call("a")] * 3,
        "window": [call("a"), news(1), call("a"), news(2), call("a"), news(3), call("a")],
        "two": [call("a"), call("b")] * 3,
        "four": [call("a"), call("b"), call("c"), call("d")] * 3,
    }[kind]
    limits = dataclasses.replace(LIMITS, nothing_new=0)
    verdicts = feed(calls, StallDetector(limits))
    assert verdicts[-1] is not None
    assert verdicts[:-1] == [None] * (len(calls) - 1)
    at = changed % len(calls)
    if kind == "window":
        at -= at % 2
    calls[at] = dataclasses.replace(calls[at], content="something else\nend", digest="else")
    assert first(feed(calls, StallDetector(limits))) is None


@given(before=st.integers(0, 12))
def test_changed_result_restarts_the_count(before: int) -> None:
    detector = StallDetector()
    same, other = seen("a", "result\nend"), seen("a", "another\nend")
    feed([same] * before, detector)
    assert feed([other], detector) == [None]
    assert actions(feed([same] * 3, detector)) == [None, None, "tell"]


@given(st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 1])), max_size=6), max_size=2))
def test_never_before_the_third_turn(turns: list[list[tuple[str, int]]]) -> None:
    """No rule applies earlier, even if the first call already reaches every limit."""
    detector = StallDetector(
        Thresholds(in_a_row=1, in_window=1, same_error=1, nothing_new=1, rereads=1, empty=1, cut_off=1)
    )
    for calls in turns:
        assert answer(detector, calls=len(calls), text="", finish="stop") is None
        for code, exit_code in calls:
            assert detector.see(seen(code, "error: no\nend", exit_code=exit_code)) is None
    for _ in range(3 - len(turns)):
        answer(detector)
    assert detector.see(seen("c", "a\nb")) is not None


@given(CALLS)
def test_at_most_two_notes_a_run_and_no_skipped_step(calls: list[tuple[str, str, int]]) -> None:
    verdicts = feed(seen(code, f"{kind}\nend", exit_code=exit_code) for code, kind, exit_code in calls)
    done = [action for action in actions(verdicts) if action]
    assert done.count("tell") <= LIMITS.tells
    assert done[:1] in ([], ["tell"])
    if "stop" in done:
        assert "force" in done[: done.index("stop")]


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers(), max_size=4))
def test_the_order_of_arguments_is_no_difference(arguments: dict[str, Any]) -> None:
    turned = {key: arguments[key] for key in reversed(arguments)}
    calls = [seen(content="a\nb", arguments=each) for each in (arguments, turned, arguments)]
    assert first(feed(calls)) == (3, "same-call-same-result")


@pytest.mark.parametrize(
    "piece", ["7", "a", "\\r", " ", "/tmp/", "0x", "3 failed", "pid 1", "ErrorError", "12:00", "\x1b["]
)
def test_long_lines_of_anything_are_read_at_once(piece: str) -> None:
    """A pattern that scans backwards from each character would take minutes on these lines."""
    text = piece * (30_000 // len(piece))
    calls = [seen("a", f"{text} errors {text}\nend", exit_code=1)] * 3
    assert first(feed(calls)) == (3, "same-call-same-result")


# -- actions on a loop ---------------------------------------------------------------------------------------------


def test_returning_loop_continues_at_its_last_step() -> None:
    detector = StallDetector()
    loop = [seen("make", "a\nb")] * 3
    assert actions(feed(loop, detector))[-1] == "tell"
    feed((news(number) for number in range(20)), detector)
    assert actions(feed(loop, detector)) == [None, None, "force"]
    feed((news(number) for number in range(20, 40)), detector)
    assert actions(feed(loop, detector)) == [None, None, "stop"]


def test_third_loop_gets_no_note() -> None:
    detector = StallDetector()
    met = []
    for number in range(3):
        met += actions(feed([seen(f"make {number}", f"a\n{number}")] * 3, detector))[2:]
        feed((news(30 * number + each) for each in range(20)), detector)
    assert met == ["tell", "tell", "force"]


def test_quiet_waits_longer() -> None:
    assert first(feed([seen("make", "a\nb")] * 6, StallDetector(QUIET))) == (6, "same-call-same-result")


# -- the table in the docs -----------------------------------------------------------------------------------------


def test_the_documented_table_is_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "stall.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE)

    def shown(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else f"{value:,}"

    fields = [field.name for field in dataclasses.fields(Thresholds)]
    assert documented == [
        (name, shown(getattr(LIMITS, name)), shown(getattr(QUIET, name))) for name in fields
    ]


def test_the_documented_rules_are_those_of_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "stall.md").read_text()
    documented = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \|$", text, re.MULTILINE)
    code = Path(inspect.getfile(StallDetector)).read_text()
    assert sorted(documented) == sorted(re.findall(r'\bHit\(\s*"([a-z-]+)"', code))
