"""Mode ``spectrum``: run the tests, and find the lines that failing and passing tests run."""

# Runs inside the sandbox: os.path starts faster than pathlib.
# ruff: noqa: PTH100, PTH118

from __future__ import annotations

import math
import os
import sys
import threading
import time
import types
from typing import Any

from m3agent.serving.embedded.probe.processes import Channel, messages, reap
from m3agent.serving.embedded.probe.session import Clock, fork, only, recorder, run_pytest, warm_up
from m3agent.serving.embedded.probe.tree import Tree, is_test, pack, scratch, suspected, too_big_to_copy

FAILING = 40
HUNG = 4
PASSING = 150
"""Most tests of each kind that run under the tracer; passing tests beside failing ones come first."""

RESTARTS = 25
SAMPLES = 12
"""Number of returns of one function at which its variables are examined."""
WATCHERS = 4


class Tracer:
    """Line coverage of project files (without tests) by sys.settrace."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._names: dict[str, str | None] = {}
        self._lines: set[tuple[str, int]] = set()
        self._sampled: dict[types.CodeType, int] = {}
        self.kinds: dict[str, dict[str, set[str]]] = {}

    def begin(self) -> None:
        """Start recording, without earlier lines."""
        self._lines = set()
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def take(self) -> dict[str, list[int]]:
        """Stop recording; return the lines that ran since `begin`, by file."""
        sys.settrace(None)
        threading.settrace(None)
        found: dict[str, list[int]] = {}
        for rel, line in sorted(self._lines):
            found.setdefault(rel, []).append(line)
        return found

    def take_kinds(self) -> dict[str, dict[str, list[str]]]:
        """Return and forget the types seen: ``file:first line`` of a function, variable, type names."""
        kinds = {
            key: {name: sorted(seen) for name, seen in names.items()} for key, names in self.kinds.items()
        }
        self.kinds = {}
        return kinds

    def _enter(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        path = frame.f_code.co_filename
        if path not in self._names:
            rel = self._tree.rel(os.path.abspath(path))
            self._names[path] = None if rel is None or is_test(rel) or not rel.endswith(".py") else rel
        name = self._names[path]
        if name is None:
            return None
        add = self._lines.add

        def local(frame: types.FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                add((name, frame.f_lineno))
            elif event == "return":
                self._sample(name, frame)
            return local

        add((name, frame.f_lineno))
        return local

    def _sample(self, name: str, frame: types.FrameType) -> None:
        code = frame.f_code
        seen = self._sampled.get(code, 0)
        if seen >= SAMPLES or code.co_name == "<module>":
            return
        self._sampled[code] = seen + 1
        names = self.kinds.setdefault(f"{name}:{code.co_firstlineno}", {})
        for variable, value in frame.f_locals.items():
            names.setdefault(variable, set()).add(type(value).__name__)


class Suite:
    """Runs of the suite in one tree; restarted after tests that end their process."""

    def __init__(self, tree: Tree, targets: list[str], extra: list[str]) -> None:
        self.tree = tree
        self.targets = targets
        self.extra = extra
        self.reason = ""
        self.imported: dict[str, list[int]] = {}
        self.kinds: dict[str, dict[str, list[str]]] = {}

    def run(
        self, wanted: set[str] | None, test_seconds: float, seconds: float, traced: bool
    ) -> tuple[dict[str, dict[str, Any]], bool]:
        """Run the wanted tests (node ids; None for all); return the results by node id, and whether all tests ran.

        `traced` says whether lines are recorded.
        """
        ended: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + seconds
        limit = test_seconds
        for _ in range(RESTARTS):
            collected, current, complete = self._once(wanted, limit, deadline, traced, ended)
            if complete:
                return ended, True
            if current is not None:
                hung = {"id": current, "o": "timeout", "s": limit, "frames": [], "error": "did not end"}
                ended[current] = hung
                slowest = max((end["s"] for end in ended.values() if end["o"] == "passed"), default=0)
                limit = min(limit, max(1.0, 10 * slowest))
            if collected is None or time.monotonic() > deadline:
                break
            wanted = set(collected) - ended.keys()
            if not wanted:
                break
        return ended, False

    def _once(
        self,
        wanted: set[str] | None,
        limit: float,
        deadline: float,
        traced: bool,
        ended: dict[str, dict[str, Any]],
    ) -> tuple[list[str] | None, str | None, bool]:
        tracer = Tracer(self.tree) if traced else None
        clock = Clock(limit)

        def body(channel: Channel) -> None:
            choose = None if wanted is None else only(wanted)
            plugin = recorder(channel, self.tree, choose, clock, tracer, None)
            run_pytest(channel, self.tree, self.targets, self.extra, plugin)

        pid, reader = fork(self.tree, body)
        collected: list[str] | None = None
        current: str | None = None
        # This loop ends a test that neither its timer nor its own code ends.
        until = [deadline]
        try:
            for message in messages(reader, lambda: until[0]):
                kind = message["t"]
                if kind == "start":
                    current = message["id"]
                    until[0] = min(deadline, time.monotonic() + 4 * limit + 2)
                elif kind == "end":
                    ended[message["id"]] = message
                    self._learn(message.pop("kinds", {}))
                    current = None
                    until[0] = deadline
                elif kind == "collected":
                    collected = message["ids"]
                elif kind == "import":
                    for rel, lines in message["lines"].items():
                        self.imported.setdefault(rel, lines)
                elif kind == "reason":
                    self.reason = message["text"]
                elif kind == "done":
                    return collected, None, True
                elif kind == "broken":
                    return None, None, False
        finally:
            os.close(reader)
            reap(pid)
            self.tree.restore()
        return collected, current, False

    def _learn(self, kinds: dict[str, dict[str, list[str]]]) -> None:
        for where, names in kinds.items():
            table = self.kinds.setdefault(where, {})
            for name, seen in names.items():
                table[name] = sorted({*table.get(name, []), *seen})


def watchers(
    ended: dict[str, dict[str, Any]], bad: set[str]
) -> tuple[list[str], dict[tuple[str, int], list[int]]]:
    """Select a few of the cheapest passing tests for each line: they notice first when it breaks.

    Return their node ids, and for each file and line their indices in that list.
    """
    good = sorted((node for node in ended if node not in bad), key=lambda node: (ended[node]["s"], node))
    watched: dict[tuple[str, int], list[str]] = {}
    for node in good:
        for rel, lines in (ended[node].get("lines") or {}).items():
            for line in lines:
                chosen = watched.setdefault((rel, line), [])
                if len(chosen) < WATCHERS:
                    chosen.append(node)
    used = sorted({node for nodes in watched.values() for node in nodes})
    places = {node: number for number, node in enumerate(used)}
    return used, {where: [places[node] for node in nodes] for where, nodes in watched.items()}


def effort(seconds: float) -> int:
    """Classify tests coarsely by duration, so that a busy machine selects the same tests."""
    return 0 if seconds < 0.3 else round(math.log2(seconds / 0.3) / 2) + 1


def groups(bad: list[dict[str, Any]]) -> list[str]:
    """Select the cheapest failing test for each kind of failure, at most eight.

    A kind is the deepest project line and the exception.
    """
    chosen: dict[str, dict[str, Any]] = {}
    for end in sorted(bad, key=lambda end: (end["o"] == "timeout", effort(end["s"]), end["id"])):
        frames = [frame for frame in end["frames"] if not is_test(frame[0])]
        where = frames[-1][:2] if frames else end["id"].split("[")[0]
        chosen.setdefault(f"{where}{end['error'].split(':')[0]}", end)
    return [end["id"] for end in list(chosen.values())[:8]]


def spectrum(asked: dict[str, Any]) -> dict[str, Any]:
    """Measure the suite.

    ``asked`` contains root, targets, extra, test_seconds, seconds, room, and red. ``red`` lists the node ids
    that are known to fail in the repository itself (None if unknown).
    """
    started = time.monotonic()
    root = os.path.abspath(asked["root"])
    warm_up(root)
    with scratch() as folder:
        private = not too_big_to_copy(root)
        result = measure(Tree(root, os.path.join(folder, "w") if private else None), asked)
        if private and result["failed"] and not result["lines"]:
            # Nothing in the copy ran: perhaps the project is installed from its own folder.
            second = measure(Tree(root, None), asked)
            if second["lines"]:
                result, private = second, False
    seconds = round(time.monotonic() - started, 2)
    return {"mode": "spectrum", "private": private, "seconds": seconds, "packed": pack(result, asked["room"])}


def failing_tests(
    ended: dict[str, dict[str, Any]], red: set[str]
) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Return the results of the failing tests, and the tests that fail here but not in the repository itself (`red`).

    The latter fail because of the copy or the limits, so they are no evidence.
    """
    bad = {node: end for node, end in ended.items() if end["o"] not in ("passed", "skipped")}
    doubted = set(bad) - red if red.intersection(bad) else set()
    return {node: end for node, end in bad.items() if node not in doubted}, doubted


def traced_tests(
    bad: dict[str, dict[str, Any]], good: dict[str, dict[str, Any]], around: set[str]
) -> set[str]:
    """Select the tests that run under the tracer: the cheapest, and of equal ones those `around` failing tests first."""
    hung = [node for node in sorted(bad) if bad[node]["o"] == "timeout"]
    ending = [node for node in bad if node not in hung]
    cheap_bad = sorted(ending, key=lambda node: (effort(bad[node]["s"]), node))[:FAILING] + hung[:HUNG]

    def worth(node: str) -> tuple[int, int, str]:
        near = (node.rpartition("::")[0] in around) + (node.partition("::")[0] in around)
        return effort(good[node]["s"]), -near, node

    return {*cheap_bad, *sorted(good, key=worth)[:PASSING]}


def measure(tree: Tree, asked: dict[str, Any]) -> dict[str, Any]:
    """Run the suite without the tracer, then its failing and its cheapest passing tests with it."""
    suite = Suite(tree, asked["targets"], asked["extra"])
    started = time.monotonic()
    ended, whole = suite.run(None, asked["test_seconds"], asked["seconds"], False)
    suite_seconds = time.monotonic() - started
    bad, doubted = failing_tests(ended, set(asked["red"] or ()))
    good = {node: end for node, end in ended.items() if end["o"] == "passed"}
    slowest = max((end["s"] for end in good.values()), default=0.0)
    traced: dict[str, dict[str, Any]] = {}
    around = {node.rpartition("::")[0] for node in bad} | {node.partition("::")[0] for node in bad}
    if bad:
        chosen = traced_tests(bad, good, around)
        traced, _ = suite.run(chosen, max(1.0, 10 * slowest), asked["seconds"] / 2, True)
    failing = list(bad.values())
    watching, watched = watchers(traced, set(bad))
    beside = [end["s"] for node, end in good.items() if node.rpartition("::")[0] in around]
    return {
        "passed": len(good),
        "failed": [[end["id"], end["o"], end["s"], end["error"], end["frames"]] for end in failing[:FAILING]],
        "failed_ids": [end["id"] for end in failing],
        "doubted": sorted(doubted),
        "groups": groups(failing),
        "traced": [len(traced.keys() & bad.keys()), len(traced.keys() & good.keys())],
        "whole": whole,
        "reason": suite.reason,
        "suite_seconds": round(suite_seconds, 3),
        "slowest": round(slowest, 4),
        "beside": round(max(beside, default=slowest), 4),
        "lines": suspected(((node in bad, end.get("lines") or {}) for node, end in traced.items()), watched),
        "watching": watching,
        "imported": suite.imported,
        "kinds": suite.kinds,
    }
