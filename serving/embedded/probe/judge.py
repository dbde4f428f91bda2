"""Mode ``judge``: try candidates in order; the tests decide which of them pass."""

# Runs inside the sandbox: os.path starts faster than pathlib.
# ruff: noqa: PTH100, PTH118, PTH123

from __future__ import annotations

import contextlib
import gc
import importlib.machinery
import os
import shutil
import sys
import tempfile
import time
from typing import Any

from m3agent.serving.embedded.probe.jobs import Jobs, ProbeJob
from m3agent.serving.embedded.probe.session import (
    Channel,
    Clock,
    end_with_parent,
    fork,
    messages,
    only,
    reap,
    recorder,
    run_pytest,
    warm_up,
)
from m3agent.serving.embedded.probe.swap import ImportTimeCalls, Original, live_functions, spliced
from m3agent.serving.embedded.probe.tree import Tree, processors

OTHERS_SECONDS = 4.0
"""Seconds that a candidate which fixes a test gets for the tests beside it, before all tests run afresh."""


class Task:
    """The input of the judge, the same for every candidate."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.root: str = os.path.abspath(asked["root"])
        self.extra: list[str] = asked["extra"]
        self.targets: list[str] = asked["targets"]
        self.first: list[str] = asked["first"]
        self.failing = set(asked["failing"])
        self.doubted = set(asked["doubted"])
        self.hung = set(asked["hung"])
        self.watching: list[str] = asked["watching"]
        self.watched: list[list[int]] = asked["watched"]
        self.passed: int = asked["passed"]
        self.whole: bool = asked["whole"]
        self.limit: float = max(0.5, min(8 * asked["slowest"], asked["slowest"] + 2))
        self.first_limit: float = min(self.limit, max(1.0, 8 * asked["beside"]))
        self.suite_seconds: float = asked["suite_seconds"]
        self.files: list[str] = asked["files"]
        self.candidates: list[list[Any]] = asked["candidates"]
        self.sources: dict[str, str] = {}
        for rel in self.files:
            with open(os.path.join(self.root, rel), "rb") as file:
                self.sources[rel] = file.read().decode("utf-8")

    def text(self, index: int) -> tuple[str, str]:
        """Return the file that candidate `index` changes, and its new text."""
        number, edits = self.candidates[index]
        rel = self.files[number]
        return rel, spliced(self.sources[rel], edits)

    def all_tests(self, items: list[Any]) -> list[Any]:
        """Return all tests that count, in their own order: some depend on tests before them."""
        return [item for item in items if item.nodeid not in self.doubted]

    def beside(self, items: list[Any]) -> list[Any]:
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


class Slot:
    """A work place that tries candidates one after the other."""

    def __init__(self, task: Task, tree: Tree, jobs: Jobs) -> None:
        self.task = task
        self.tree = tree
        self.jobs = jobs
        self.busy = False
        self.current = -1
        self.server: ProbeJob | None = None
        self.requests = -1
        self.ready = False
        self.swapping = True

    def start_server(self, heard: Any, ended: Any) -> None:
        """Start the process that has collected the tests and that swaps candidates in."""
        reader, self.requests = os.pipe()

        def body(channel: Channel) -> None:
            os.close(self.requests)
            serve(channel, self.task, self.tree, reader)

        pid, fd = fork(self.tree, body)
        os.close(reader)
        self.server = ProbeJob(pid, fd, time.monotonic() + 60, heard, ended)
        self.jobs.add(self.server)

    def drop_server(self) -> None:
        """Clean up after a server that ended."""
        if self.requests >= 0:
            os.close(self.requests)
        self.server, self.requests, self.ready = None, -1, False


def serve(channel: Channel, task: Task, tree: Tree, requests: int) -> None:
    """Collect the first failing tests, then judge the candidates that arrive as numbers on `requests`."""
    calls = ImportTimeCalls()
    clock = Clock(task.first_limit)

    def loop(session: Any) -> bool:
        plugin.tracer = None
        functions = live_functions()
        items = [item for node in task.first for item in session.items if item.nodeid == node]
        others = task.beside(session.items)
        sound: dict[tuple[str, ...], bool] = {}
        by_id = {item.nodeid: item for item in others}
        originals = {rel: Original(os.path.join(tree.place, rel), text) for rel, text in task.sources.items()}
        # Garbage collectors of forks then skip the existing objects, so these stay in shared memory.
        gc.collect()
        if hasattr(gc, "freeze"):  # since Python 3.7, and not in PyPy
            gc.freeze()
        channel.send(t="ready", ids=[item.nodeid for item in items])
        with os.fdopen(requests) as lines:
            for line in lines:
                index = int(line)
                number, edits = task.candidates[index]
                try:
                    found = originals[task.files[number]].changes(edits, calls.ran)
                except (SyntaxError, ValueError, RecursionError):
                    channel.send(t="verdict", index=index, ended=None, swapped=True)
                    continue
                if not found or any(needed and key not in functions for key, (_, needed) in found.items()):
                    channel.send(t="verdict", index=index, ended=None, swapped=found == {})
                    continue
                pairs = [
                    (function, code)
                    for key, (code, _) in found.items()
                    for function in functions.get(key, ())
                ]
                watching = [
                    by_id[node]
                    for node in map(task.watching.__getitem__, task.watched[index])
                    if node in by_id
                ]
                follow = [*watching, *(item for item in others if item not in watching)]
                ended = swapped_in(session, plugin, clock, items, follow, pairs, task)
                broken = [node for node, outcome in ended.items() if task.regressed({node: outcome})]
                for node in [node for node in broken if node != "late"]:
                    # In another order, a test may fail by itself. Running it with the original code decides.
                    before = follow[
                        : 1 + next((n for n, item in enumerate(follow) if item.nodeid == node), -1)
                    ]
                    order = tuple(item.nodeid for item in before)
                    if order not in sound:
                        alone = swapped_in(session, plugin, clock, items, before, [], task, anyway=True)
                        sound[order] = alone.get(node) == "passed"
                    if not sound[order]:
                        del ended[node]
                if tree.small:
                    tree.restore()  # before the verdict: after it, the judge uses the copy
                channel.send(t="verdict", index=index, ended=ended, swapped=True)
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
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            end_with_parent()
            os.close(reader)
            plugin.channel = Channel(writer)
            for function, code in pairs:
                function.__code__ = code
            passed = anyway
            for number, item in enumerate(items):
                if number and not passed and item.nodeid in task.hung:
                    break  # tests that hung before take longest, and cheaper ones still fail
                following = items[number + 1] if number + 1 < len(items) else None
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                passed = passed or plugin.outcome == "passed"
                if plugin.timed_out:
                    break
            over = time.monotonic() + OTHERS_SECONDS
            clock.allow(task.limit)
            for number, item in enumerate(others if passed and not plugin.timed_out else ()):
                following = others[number + 1] if number + 1 < len(others) else None
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if plugin.outcome not in ("passed", "skipped") or time.monotonic() > over:
                    break
            plugin.channel.send(t="done")
        finally:
            os._exit(0)
    os.close(writer)
    ended: dict[str, str] = {}
    until = [time.monotonic() + 4 * task.first_limit + 1]
    try:
        for message in messages(reader, lambda: until[0]):
            if message["t"] == "end":
                ended[message["id"]] = message["o"]
                until[0] = time.monotonic() + 4 * task.limit + 1
            elif message["t"] == "late":
                ended["late"] = "timeout"
            elif message["t"] == "done":
                break
    finally:
        os.close(reader)
        reap(pid)
    return ended


def put(tree: Tree, rel: str, text: str) -> None:
    """Give `rel` the candidate's text: on disk in a private copy, otherwise for this process's imports."""
    path = os.path.join(tree.place, rel)
    if tree.private:
        with open(path, "wb") as file:
            file.write(text.encode())
        return
    original = importlib.machinery.SourceFileLoader.get_data

    def get_data(self: Any, asked: Any) -> bytes:
        return text.encode() if os.path.abspath(asked) == path else original(self, asked)

    importlib.machinery.SourceFileLoader.get_data = get_data  # type: ignore[method-assign, assignment]
    sys.dont_write_bytecode = True


class Judge:
    """Assign candidates to slots: first the cheapest failing tests run, then all tests for the survivors."""

    def __init__(self, task: Task, slots: list[Slot], jobs: Jobs, seconds: float, stops: list[int]) -> None:
        self.task = task
        self.slots = slots
        self.jobs = jobs
        self.deadline = time.monotonic() + seconds
        self.stops = stops  # per candidate: where to stop once it passes
        self.cutoff = len(task.candidates)
        self.verdicts = ["-"] * len(task.candidates)
        self.found: list[dict[str, Any]] = []
        self.next = 0
        self.fresh: list[tuple[int, bool]] = []  # (candidate, whether all tests run)

    def run(self) -> None:
        """Judge until the candidates or the time run out, or enough candidates pass."""
        for slot in self.slots:
            self._start(slot)
        while time.monotonic() < self.deadline:
            for slot in self.slots:
                self._feed(slot)
            if not any(slot.busy for slot in self.slots) and not self.fresh and self.next >= self.cutoff:
                break
            self.jobs.wait(self.deadline)
        self.jobs.stop_all()

    def _start(self, slot: Slot) -> None:
        def heard(message: dict[str, Any]) -> None:
            if message["t"] == "ready":
                slot.ready = True
                slot.swapping = set(message["ids"]) == set(self.task.first)
            elif message["t"] == "verdict":
                slot.busy = False
                self._screened(message["index"], message["ended"], message["swapped"])
            if slot.server is not None:
                slot.server.deadline = time.monotonic() + 1e6

        def ended() -> None:
            slot.drop_server()
            slot.swapping = (
                False  # there is no server, or a candidate crashed it: from here on, import afresh
            )
            if slot.busy:
                slot.busy = False
                self.fresh.append((slot.current, False))

        slot.start_server(heard, ended)

    def _feed(self, slot: Slot) -> None:
        if slot.busy:
            return
        if self.fresh:
            index, everything = self.fresh.pop(0)
            self._run_fresh(slot, index, everything)
        elif self.next < self.cutoff and (slot.ready or not slot.swapping):
            index = self.next
            self.next += 1
            if slot.swapping and slot.server is not None:
                slot.busy = True
                slot.current = index
                patience = 4 * self.task.limit + 1
                beside = 2 * (OTHERS_SECONDS + patience)  # with the candidate and, if that fails, without it
                slot.server.deadline = time.monotonic() + patience * (len(self.task.first) + 1) + beside
                # A dead server does not answer: its end is noticed later, and the candidate is tried afresh.
                with contextlib.suppress(BrokenPipeError):
                    os.write(slot.requests, b"%d\n" % index)
            else:
                self._run_fresh(slot, index, False)

    def _screened(self, index: int, ended: dict[str, str] | None, swapped: bool) -> None:
        if ended is None:
            if swapped:
                self.verdicts[index] = "x"  # does not compile, or changes nothing
            else:
                self.fresh.append((index, False))
        elif self.task.first and "passed" not in ended.values():
            self.verdicts[index] = "t" if "timeout" in ended.values() else "f"
        elif self.task.regressed(ended):
            self.verdicts[index] = "r"
        else:
            self.fresh.append((index, True))

    def _run_fresh(self, slot: Slot, index: int, everything: bool) -> None:
        task = self.task
        rel, text = task.text(index)
        files = sorted({node.split("::")[0] for node in (task.failing if everything else task.first)})
        targets = task.targets if everything and task.whole else files
        by_file = everything or not all("::" in node for node in task.first or [""])
        choose = task.all_tests if by_file else only(set(task.first))

        def body(channel: Channel) -> None:
            put(slot.tree, rel, text)
            plugin = recorder(channel, slot.tree, choose, Clock(task.limit), None, None)
            run_pytest(channel, slot.tree, targets, task.extra, plugin)

        ended: dict[str, str] = {}
        state = {"done": False, "over": False}
        pid, fd = fork(slot.tree, body)

        def heard(message: dict[str, Any]) -> None:
            if state["over"]:
                return
            if message["t"] == "end":
                ended[message["id"]] = message["o"]
                job.deadline = max(job.deadline, time.monotonic() + 4 * task.limit + 2)
                if everything and task.regressed({message["id"]: message["o"]}):
                    state["over"] = True
                    self.jobs.stop(job)
                    finish()
            elif message["t"] == "done":
                state["done"] = True

        def finish() -> None:
            slot.busy = False
            slot.tree.restore()
            if everything:
                self._decide(index, ended, state["done"])
            elif any(outcome == "passed" for outcome in ended.values()):
                self.fresh.append((index, True))
            else:
                self.verdicts[index] = "f" if state["done"] else "t"

        slot.busy = True
        allowed = 4 * task.limit + 10 + (4 * task.suite_seconds if everything else 0)
        job = ProbeJob(pid, fd, time.monotonic() + allowed, heard, finish)
        self.jobs.add(job)

    def _decide(self, index: int, ended: dict[str, str], done: bool) -> None:
        fixed = self.task.fixed(ended)
        passed = sum(outcome == "passed" for outcome in ended.values())
        lost = self.task.whole and passed < self.task.passed + len([node for node in fixed if "::" in node])
        if not done or not fixed or lost or self.task.regressed(ended):
            self.verdicts[index] = "r" if fixed or not done else "f"
            return
        full = len(fixed) == len(self.task.failing)
        self.verdicts[index] = "P" if full else "p"
        self.found.append({"index": index, "fixed": len(fixed)})
        if full:
            self.cutoff = min(self.cutoff, self.stops[index])


def judge(asked: dict[str, Any]) -> dict[str, Any]:
    """Try the candidates of `asked`; report one letter for each, and those that pass.

    The letters are: ``P`` fixes all failing tests, ``p`` a part of them, ``r`` breaks another test, ``f``
    fixes nothing, ``t`` ran into a time limit, ``x`` does not compile or changes nothing, ``-`` was not
    tried.
    """
    started = time.monotonic()
    warm_up()
    task = Task(asked)
    folder = tempfile.mkdtemp(prefix="m3-probe-")
    jobs = Jobs()
    try:
        count = min(processors(), max(1, len(task.candidates))) if asked["private"] else 1
        places = [os.path.join(folder, f"w{number}") if asked["private"] else None for number in range(count)]
        slots = [Slot(task, Tree(task.root, place), jobs) for place in places]
        judging = Judge(task, slots, jobs, asked["seconds"], asked["stops"])
        judging.run()
    finally:
        jobs.stop_all()
        shutil.rmtree(folder, ignore_errors=True)
    for index in range(judging.cutoff, len(judging.verdicts)):
        judging.verdicts[index] = "-"
    return {
        "mode": "judge",
        "verdicts": "".join(judging.verdicts),
        "found": sorted(
            (found for found in judging.found if found["index"] < judging.cutoff),
            key=lambda found: found["index"],
        ),
        "seconds": round(time.monotonic() - started, 2),
    }
