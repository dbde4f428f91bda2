"""Mode ``judge``: try candidates in order; the tests decide which of them pass."""

# Runs inside the sandbox: os.path starts faster than pathlib.
# ruff: noqa: B905, PTH100, PTH118, PTH123

from __future__ import annotations

import contextlib
import gc
import importlib.machinery
import math
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from m3agent.serving.embedded.probe.processes import (
    Channel,
    Verdicts,
    end_with_parent,
    forked,
    messages,
    reap,
)
from m3agent.serving.embedded.probe.session import Clock, fork, only, recorder, run_pytest, warm_up
from m3agent.serving.embedded.probe.swap import ImportTimeCalls, Original, live_functions
from m3agent.serving.embedded.probe.tree import Tree, decoded, processors, scratch, spliced

OTHERS_SECONDS = 4.0
"""Seconds that a candidate which fixes a test gets for the tests beside it, before all tests run afresh."""


class Task(types.SimpleNamespace):
    """The input of the judge, the same for every candidate: the fields of the request, and what follows from them."""

    def __init__(self, asked: dict[str, Any]) -> None:
        super().__init__(**asked)
        self.root = os.path.abspath(asked["root"])
        self.failing, self.doubted, self.hung = (set(asked[name]) for name in ("failing", "doubted", "hung"))
        self.limit: float = max(0.5, min(8 * asked["slowest"], asked["slowest"] + 2))
        self.first_limit: float = min(self.limit, max(1.0, 8 * asked["beside"]))
        self.sources: dict[str, str] = {}
        self.encodings: dict[str, str] = {}
        for rel in self.files:
            with open(os.path.join(self.root, rel), "rb") as file:
                self.sources[rel], self.encodings[rel] = decoded(file.read())

    def content(self, index: int) -> tuple[str, bytes]:
        """Return the file that candidate `index` changes, and its new content."""
        number, edits = self.candidates[index]
        rel = self.files[number]
        return rel, spliced(self.sources[rel], edits).encode(self.encodings[rel])

    def all_tests(self, items: list[Any]) -> list[Any]:
        """Return all tests that count, in their own order: some depend on tests before them."""
        return [item for item in items if item.nodeid not in self.doubted]

    def neighbours(self, items: list[Any]) -> list[Any]:
        """Return the tests that did not fail; those beside a failing test come first: they break soonest."""
        groups = {node.rpartition("::")[0] for node in self.failing}
        near = (item for item in items if item.nodeid not in self.failing)
        return sorted(near, key=lambda item: item.nodeid.rpartition("::")[0] not in groups)

    def fixed(self, ended: dict[str, str]) -> list[str]:
        """Return the failing tests that pass according to `ended` (node id: outcome)."""
        found = []
        for node in sorted(self.failing):
            if "::" in node:
                good = ended.get(node) == "passed"
            else:
                inside = [outcome for other, outcome in ended.items() if other.startswith(node + "::")]
                good = node not in ended and "passed" in inside and not set(inside) - {"passed", "skipped"}
            if good:
                found.append(node)
        return found

    def regressed(self, ended: dict[str, str]) -> bool:
        """Tell whether a test that used to pass now fails."""
        return any(
            outcome not in ("passed", "skipped")
            and node not in self.failing
            and node.split("::")[0] not in self.failing
            and node not in self.doubted
            for node, outcome in ended.items()
        )


def serve(channel: Channel, task: Task, tree: Tree, requests: int) -> None:
    """Collect the first failing tests, then judge the candidates that arrive as numbers on `requests`."""
    calls = ImportTimeCalls()
    clock = Clock(task.first_limit)

    def loop(session: Any) -> bool:
        plugin.tracer = None
        functions = live_functions()
        items = [item for node in task.first for item in session.items if item.nodeid == node]
        others = task.neighbours(session.items)
        sound: dict[tuple[str, ...], bool] = {}
        by_id = {item.nodeid: item for item in others}
        originals = {rel: Original(os.path.join(tree.place, rel), text) for rel, text in task.sources.items()}
        # Garbage collectors of forks then skip the existing objects, so these stay in shared memory.
        gc.collect()
        if hasattr(gc, "freeze"):  # since Python 3.7, and not in PyPy
            gc.freeze()
        channel.send(t="ready", ids=[item.nodeid for item in items])

        def replacements(index: int) -> tuple[list[Any] | None, bool]:
            """Return functions with their new code; without any, None and whether the candidate changes nothing."""
            number, edits = task.candidates[index]
            try:
                changed = originals[task.files[number]].changes(edits, calls.ran)
            except (SyntaxError, ValueError, RecursionError):
                return None, True
            if not changed or any(needed and key not in functions for key, (_, needed) in changed.items()):
                return None, changed == {}
            codes = [(functions.get(key, ()), code) for key, (code, _) in changed.items()]
            return [(function, code) for live, code in codes for function in live], True

        def fails_by_itself(node: str, before: list[Any]) -> bool:
            """Tell whether a test fails after these tests with the original code too: in another order it may."""
            order = tuple(item.nodeid for item in before)
            if order not in sound:
                alone = swapped_in(session, plugin, clock, items, before, [], task, anyway=True)
                sound[order] = alone.get(node) == "passed"
            return not sound[order]

        def tried(index: int) -> tuple[dict[str, str] | None, bool]:
            """Return the outcomes, None if there are none, and whether the candidate was swapped in."""
            pairs, swapped = replacements(index)
            if pairs is None:
                return None, swapped
            first = [task.watching[place] for place in task.watched[index]]
            watching = [by_id[node] for node in first if node in by_id]
            follow = [*watching, *(item for item in others if item not in watching)]
            ended = swapped_in(session, plugin, clock, items, follow, pairs, task)
            places = {item.nodeid: number for number, item in enumerate(follow, 1)}
            broken = [node for node, outcome in ended.items() if task.regressed({node: outcome})]
            for node in broken:
                if node != "late" and fails_by_itself(node, follow[: places.get(node, 0)]):
                    del ended[node]
            if tree.small:
                tree.restore()  # before the verdict: after it, the judge uses the copy
            return ended, True

        with os.fdopen(requests) as lines:
            for line in lines:
                ended, swapped = tried(int(line))
                channel.send(t="verdict", ended=ended, swapped=swapped)
        return True

    plugin = recorder(channel, tree, task.all_tests, clock, calls, loop)
    files = sorted({node.split("::")[0] for node in task.first})
    run_pytest(channel, tree, files, task.extra, plugin)


def swapped_in(
    session: Any,
    plugin: Any,
    clock: Clock,
    items: list[Any],
    others: list[Any],
    pairs: list[Any],
    task: Task,
    anyway: bool = False,
) -> dict[str, str]:
    """Run `items` in a fork of this process, with the code of `pairs` (function, code) swapped in.

    If one of them passes (or with `anyway`), `others` run too, for a few seconds or until one fails.
    """
    reader, writer = os.pipe()

    def body() -> None:
        os.setsid()
        end_with_parent()
        os.close(reader)
        plugin.channel = Channel(writer)
        for function, code in pairs:
            function.__code__ = code
        run = session.config.hook.pytest_runtest_protocol
        passed = anyway
        for item, following in zip(items, [*items[1:], None]):
            if item is not items[0] and not passed and item.nodeid in task.hung:
                break  # tests that hung before take longest, and cheaper ones still fail
            run(item=item, nextitem=following)
            passed = passed or plugin.outcome == "passed"
            if plugin.timed_out:
                break
        over = time.monotonic() + OTHERS_SECONDS
        clock.allow(task.limit)
        for item, following in zip(others, [*others[1:], None]) if passed and not plugin.timed_out else ():
            run(item=item, nextitem=following)
            if plugin.outcome not in ("passed", "skipped") or time.monotonic() > over:
                break
        plugin.channel.send(t="done")

    pid = forked(body)
    os.close(writer)
    ended, last = gathered(pid, reader, 4 * task.first_limit + 1, 4 * task.limit + 1)
    return {**ended, "late": "timeout"} if last == "late" else ended


def gathered(
    pid: int,
    fd: int,
    seconds: float,
    more: float,
    deadline: float = math.inf,
    enough: Callable[[str, str], bool] = lambda node, outcome: False,
) -> tuple[dict[str, str], str]:
    """Collect outcomes from a child, and end it; return them, and the kind of the last message.

    It has some seconds, at least `more` after each test, and ends early when the outcome of a test is `enough`.
    """
    ended: dict[str, str] = {}
    until = [time.monotonic() + seconds]
    kind = ""
    try:
        for message in messages(fd, lambda: min(until[0], deadline)):
            kind = message["t"]
            if kind == "end":
                ended[message["id"]] = message["o"]
                until[0] = max(until[0], time.monotonic() + more)
            if kind == "done" or (kind == "end" and enough(message["id"], message["o"])):
                break
        return ended, kind
    finally:
        os.close(fd)
        reap(pid)


def put(tree: Tree, rel: str, content: bytes) -> None:
    """Give `rel` the candidate's content: on disk in a private copy, otherwise for this process's imports."""
    path = os.path.join(tree.place, rel)
    if tree.private:
        with open(path, "wb") as file:
            file.write(content)
        return
    original = importlib.machinery.SourceFileLoader.get_data

    def get_data(self: Any, asked: Any) -> bytes:
        return content if os.path.abspath(asked) == path else original(self, asked)

    importlib.machinery.SourceFileLoader.get_data = get_data  # type: ignore[method-assign, assignment]
    sys.dont_write_bytecode = True


class Slot:
    """A work place that tries candidates one after the other.

    First the cheapest failing tests run, in a process that has collected them and swaps candidates in. If
    that is not possible, they run after a fresh import. All tests run afresh for the candidates that pass these.
    """

    def __init__(self, task: Task, tree: Tree, deadline: float) -> None:
        self.task = task
        self.tree = tree
        self.deadline = deadline
        self._until = time.monotonic() + 60
        requests, self._requests = os.pipe()

        def body(channel: Channel) -> None:
            os.close(self._requests)
            serve(channel, task, tree, requests)

        self._server, self._answers = fork(tree, body)
        os.close(requests)
        self._messages = messages(self._answers, lambda: min(self._until, deadline))
        ready = self._answer("ready")
        self._swapping = ready is not None and set(ready["ids"]) == set(task.first)

    def _answer(self, kind: str) -> dict[str, Any] | None:
        """Return the server's next message of a kind; None if it ended or is late."""
        return next((message for message in self._messages if message["t"] == kind), None)

    def close(self) -> None:
        """End the server."""
        os.close(self._requests)
        os.close(self._answers)
        reap(self._server)

    def judged(self, index: int) -> tuple[str, int]:
        """Return the verdict on a candidate, and the number of failing tests that it fixes."""
        try:
            verdict = self._screened(index)
            found = (verdict, 0) if verdict else self._decided(index)
        except UnicodeEncodeError:  # the file's encoding lacks a character of the candidate
            found = ("x", 0)
        return ("-", 0) if time.monotonic() > self.deadline else found

    def _screened(self, index: int) -> str:
        """Return the verdict of the first tests; empty if all tests have to run."""
        answer = self._swapped(index) if self._swapping else None
        if answer is None or (answer["ended"] is None and not answer["swapped"]):
            ended, done = self._run(index, False)
            return "" if "passed" in ended.values() else "f" if done else "t"
        ended = answer["ended"]
        if ended is None:
            return "x"  # it does not compile, or changes nothing
        if self.task.first and "passed" not in ended.values():
            return "t" if "timeout" in ended.values() else "f"
        return "r" if self.task.regressed(ended) else ""

    def _swapped(self, index: int) -> dict[str, Any] | None:
        """Let the server try a candidate; None if it does not answer, and then never again."""
        patience = 4 * self.task.limit + 1
        beside = 2 * (OTHERS_SECONDS + patience)  # with the candidate and, if that fails, without it
        self._until = time.monotonic() + patience * (len(self.task.first) + 1) + beside
        answer = None
        with contextlib.suppress(BrokenPipeError):
            os.write(self._requests, b"%d\n" % index)
            answer = self._answer("verdict")
        self._swapping = answer is not None
        return answer

    def _run(self, index: int, everything: bool) -> tuple[dict[str, str], bool]:
        """Run the first or all tests after a fresh import; return the outcomes, and whether all of them ran."""
        task, tree = self.task, self.tree
        rel, content = task.content(index)
        files = sorted({node.split("::")[0] for node in (task.failing if everything else task.first)})
        targets = task.targets if everything and task.whole else files
        by_file = everything or not all("::" in node for node in task.first or [""])
        choose = task.all_tests if by_file else only(set(task.first))

        def body(channel: Channel) -> None:
            put(tree, rel, content)
            plugin = recorder(channel, tree, choose, Clock(task.limit), None, None)
            run_pytest(channel, tree, targets, task.extra, plugin)

        seconds = 4 * task.limit + 10 + (4 * task.suite_seconds if everything else 0)
        try:
            ended, last = gathered(
                *fork(tree, body),
                seconds,
                4 * task.limit + 2,
                self.deadline,
                lambda node, outcome: everything and task.regressed({node: outcome}),
            )
        finally:
            tree.restore()
        return ended, last == "done"

    def _decided(self, index: int) -> tuple[str, int]:
        """Return the verdict of all tests."""
        task = self.task
        ended, done = self._run(index, True)
        fixed = task.fixed(ended)
        passed = sum(outcome == "passed" for outcome in ended.values())
        lost = task.whole and passed < task.passed + len([node for node in fixed if "::" in node])
        if not done or not fixed or lost or task.regressed(ended):
            return ("r" if fixed or not done else "f"), 0
        return ("P" if len(fixed) == len(task.failing) else "p"), len(fixed)


def judge(asked: dict[str, Any]) -> dict[str, Any]:
    """Try the candidates of `asked`; report one letter for each, and those that pass (see `Verdicts`)."""
    verdicts = Verdicts(asked)
    task = Task(asked)
    warm_up(task.root)

    def work(place: str | None, numbers: Iterator[int]) -> Iterator[tuple[str, int]]:
        slot = Slot(task, Tree(task.root, place), verdicts.deadline)
        try:
            for index in numbers:
                yield slot.judged(index)
        finally:
            slot.close()

    with scratch() as folder:
        count = min(processors(), max(1, len(task.candidates))) if asked["private"] else 1
        places = [os.path.join(folder, f"w{number}") if asked["private"] else None for number in range(count)]
        verdicts.share(range(len(task.candidates)), [partial(work, place) for place in places])
    return verdicts.result("judge")
