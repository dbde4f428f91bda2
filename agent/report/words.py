"""Say in words what a line of the log means and what a tool call does. The screen, the report page and editors use these words.

Nothing here relies on a field of a line: one that is missing or has the wrong type is unknown. The texts come from models and
repositories: each view makes them printable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from m3agent.agent.report import text as show
from m3agent.agent.session.log_reader import Line, number, text, whole
from m3agent.agent.session.record import is_embedded
from m3agent.agent.verify.test_sets import TEST_SETS
from m3agent.tools.registry import traits_of, understood
from m3agent.util.counted import counted, first_of
from m3agent.util.json_value import items, mapping, mappings, strings
from m3agent.util.sanitize import last_line, printable_line

MOST_TITLE = 120  # characters
MOST_OUTCOME = 100  # characters
NO_TESTS = "no tests"
OUTCOMES = ("passed", "failed", "errored", "skipped")


def step_title(name: str, arguments: Mapping[str, Any] | None) -> str:
    """Return what a call does, such as `edit src/deck.py`. The name and the arguments come from the model.

    A program that begins with a comment has the comment as its title, without a verb before it.
    """
    traits, read = understood(name, arguments)
    about = printable_line(traits.title(read), MOST_TITLE)
    if about.startswith("# "):
        return about.removeprefix("# ")
    return f"{traits.verb or printable_line(name, 64)} {'everything' if about == '.' else about}".rstrip()


def step_outcome(finished: Line) -> str:
    """Return the outcome of a call in a few words; empty if success is all there is to say."""
    status, lines = text(finished, "status"), text(finished, "content").splitlines() or [""]
    first = lines[0].removeprefix("error: ")
    if status == "done":
        outcome = _outcome_when_done(finished, first, lines[1:])
    else:
        outcome = first if first.startswith(status) else f"{status}: {first}".rstrip(": ")
    return printable_line(outcome, MOST_OUTCOME)


def _outcome_when_done(finished: Line, first: str, rest: Sequence[str]) -> str:
    """Return the outcome of a call that ended; `first` and `rest` are the lines of its result."""
    data, code = mapping(finished, "data"), finished.get("exit_code")
    counts = {name: len(items(data, name)) for name in OUTCOMES}
    if any(counts.values()):
        return outcome_counts(counts)
    if first.startswith("0 passed"):
        return NO_TESTS
    kind = "" if finished.get("is_error") is True else traits_of(text(finished, "name")).kind
    if kind == "read":
        return counted(1 + len(rest), "line")
    if kind == "edit":
        return next(iter(rest), "")  # the diff says what changed; a second line is a caveat
    if not isinstance(code, int) or data.get("timed_out") or "passed" in data:
        return first
    output = last_line("\n".join(rest))
    is_brief = len(output) <= MOST_OUTCOME and '{"' not in output  # the others are for programs
    parts = (f"exit {code}" if code else "", output if is_brief else "")
    return ": ".join(filter(None, parts))


def outcome_counts(counts: Mapping[str, int]) -> str:
    """Return the counts of test outcomes that are not zero: `23 passed, 1 failed`."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or NO_TESTS


LEAST_SHARE = 0.001  # of the window that is shown as a number
MOST_NAMES = 20  # most names of test suites

STALL_ACTIONS = {
    "told": "the model was told",
    "forced": "a different step was demanded",
    "stopped": "the session was stopped",
}


def uncommitted(session_started: Line) -> str:
    """Return the number of changed and new files as the end of a clause; empty if there are none."""
    count = whole(session_started, "repository", "dirty")
    return f", {counted(count, 'uncommitted file')} included" if count else ""


def server_label(session_started: Line) -> str:
    """Return what to call the thing that answers: the engine `embedded` is no server."""
    return "model" if is_embedded(session_started) else "server"


def model(endpoint_probed: Line) -> str:
    """Return the name of the model and its server's software: `MiniMax-M3 (vllm 0.24.0)`."""
    software = " ".join(filter(None, (text(endpoint_probed, "flavour"), text(endpoint_probed, "version"))))
    return f"{text(endpoint_probed, 'model')} ({software or 'an unknown server'})"


def context(context_packed: Line) -> str:
    """Return the size of the packed repository."""
    files, tokens = number(context_packed, "files"), number(context_packed, "tokens")
    dropped = sum(whole(context_packed, "dropped", kind) or 0 for kind in mapping(context_packed, "dropped"))
    redacted = len(items(context_packed, "redacted"))
    approx = "" if context_packed.get("exact") is True else "≈"
    return ", ".join(
        (
            f"{show.UNKNOWN} files" if files is None else counted(files, "file"),
            f"{approx}{show.count(tokens)} tokens",
            *([f"{dropped:,} left out"] if dropped else []),
            *([f"secrets redacted in {redacted}"] if redacted else []),
        )
    )


def share_of_window(tokens: float | None, window: int | None) -> str:
    """Return the share of the model's window that the repository takes, as the end of a clause; empty if unknown."""
    if not tokens or not window:
        return ""
    share = tokens / window
    return f", {f'{share:.1%}' if share >= LEAST_SHARE else 'less than 0.1%'} of the model's window"


def baseline(line: Line) -> str:
    """Return the outcome of the tests without a change."""
    counts = outcome_counts({name: len(items(line, name)) for name in OUTCOMES})
    known = line.get("cached") is True
    when = "known from an earlier session" if known else show.duration(number(line, "seconds"))
    stopped = "" if line.get("complete") is not False else "; there was no time for more tests"
    without = "" if counts == NO_TESTS else " without a change"
    return f"{counts}{without} ({when}){stopped}"


def stall(line: Line) -> str:
    """Return why the run makes no progress, and what was done."""
    said, action = text(line, "text").partition("\n\n")[0], text(line, "action")
    return f"no progress: {said} ({STALL_ACTIONS.get(action, action)})"


def retry(line: Line) -> str:
    """Return why a request is sent again, and when."""
    return f"asking again in {number(line, 'wait') or 0:.0f} s: {text(line, 'reason')}"


def cache_lost(line: Line) -> str:
    """Return what it cost that the server's cache no longer had the conversation, and why that may be."""
    again, expected = whole(line, "read_again") or 0, whole(line, "expected") or 0
    seconds, reason = number(line, "seconds"), text(line, "reason")
    time = "" if seconds is None else f", first token after {seconds:.1f} s"
    why = f"a request failed ({reason})" if reason else "another server answered, or the cache was full"
    return f"{again:,} of {expected:,} tokens had left the cache and were read again{time}: {why}"


def price_step(line: Line) -> str:
    """Return that requests are about to cost more, because the conversation is long."""
    tokens, step, times = whole(line, "tokens") or 0, whole(line, "step") or 0, number(line, "times") or 1
    return (
        f"the conversation has {tokens:,} tokens: above {step:,}, a request costs {times:g} times as much; "
        "a lower --context-budget leaves more room"
    )


def not_done(gate: Line) -> str:
    """Return what is missing although the model said that it is done; empty if nothing is."""
    missing = text(gate, "missing")
    return f"not done yet: {missing}" if missing else ""


def sent_back(feedback: Line) -> str:
    """Return that a verdict goes back to the model, as the end of a clause or the beginning of the message."""
    return f"this goes back to the model (message {show.count(whole(feedback, 'round'))})"


def fresh_places(*, isolated: bool) -> str:
    """Return where a verification runs the tests: without isolation, in copies of the repository and no sandboxes."""
    return "fresh sandboxes" if isolated else "fresh copies"


def evidence(verify: Line, compared: int, *, isolated: bool) -> list[str]:
    """Return what a verdict rests on, in parts; empty if no test ran.

    Args:
        compared: Number of tests that ran with and without the patch.
    """
    parts = [_check(each) for each in mappings(verify, "checks")]
    if not compared:
        return parts
    said = f"{counted(compared, 'test')} with and without the patch, in {fresh_places(isolated=isolated)}"
    if runs := whole(verify, "repeats"):
        said += f"; {counted(runs, 'more run')} of the tests near the change"
    parts.insert(0, said)
    if suites := strings(verify, "left_out"):
        parts.append(f"not run, as the patch does not affect them: {first_of(suites, MOST_NAMES)}")
    if paths := strings(verify, "undone"):
        parts.append(
            f"the tests ran without these changes, which the patch still has: {first_of(paths, MOST_NAMES)}"
        )
    return parts


def _check(check: Mapping[str, Any]) -> str:
    """Return what a declared check shows."""
    new, silent = items(check, "new"), text(check, "silent")
    said = f"shows nothing: {silent}" if silent else "no new problem"
    return f"{text(check, 'command')}: {counted(len(new), 'new problem') if new else said}"


def deciding_tests(verify: Line) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the tests that decide a verdict: what they were before the patch and after it, and their ids.

    A test that several fields name comes once: a red test that the patch adds may also be red without the change.
    """
    seen: set[str] = set()
    for each in TEST_SETS:
        if each.after:
            tests = [test for test in strings(verify, each.event) if test not in seen]
            seen.update(tests)
            if tests:
                yield each.before, each.after, tests


def change_of_tests(before: str, after: str) -> str:
    """Return what happened to the tests that decide a verdict: `red before, green after`."""
    if before == after == "varies":
        return "with changing outcomes"
    return f"{'not there' if before == '-' else before} before, {after} after"


WARNINGS: Mapping[str, Callable[[Line], str]] = {
    "stall": stall,
    "retry": retry,
    "cache.lost": cache_lost,
    "price.step": price_step,
    "gate": not_done,
}
"""Types of lines that warn, and what they say; an empty text warns of nothing."""
