"""The repair: a generator that yields tool calls and receives their results.

It uses only those results and the issue's text, so the same history always leads to the same next call.
"""

import base64
import contextlib
import difflib
import json
import math
import re
import zlib
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from m3agent.serving.embedded.candidates import PatchCandidate, candidates, minimal_edit
from m3agent.serving.embedded.languages import (
    FAMILIES,
    Curly,
    Language,
    Python,
    Source,
    failing_suites,
    language_of,
    units_of,
)
from m3agent.serving.embedded.localise import issue_words
from m3agent.serving.embedded.operators.base import Hints
from m3agent.serving.embedded.probe import MARK, bundle
from m3agent.serving.embedded.request import Conversation, NamedSuite
from m3agent.serving.embedded.syntax import available
from m3agent.util.about_issue import IssueWords

ROOM = 24_000
"""Most characters of packed data in one result: tools cut results longer than about 30,000."""
BATCH_CHARACTERS = 120_000
"""Most characters of edits in one call."""
FIRST_BATCH = 600
"""Candidates in the first call."""
LATER_BATCH = 1500
"""Candidates in each later call."""
CHOICE_COST = 0.8
"""Further candidates are judged after the first one that passes only if they cost at most this much more."""
EXTRA = "m3agent's extra outlines: `make install EXTRAS=outlines` in m3agent's checkout installs it"
SUITE_SECONDS = 90
"""Seconds for the run of the suite without the tracer."""
FIRST_RUN_SECONDS = 100
"""Seconds for the first run of the tests."""
MOST_SHOWN = 3
"""Most changes that pass, beside the one that is taken, in the report."""
FILES = 16
READS = 32
"""Most calls that read files; at most `FILES` files are read."""
COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!="))
ROUNDS = 3
"""Most searches, each from the files as the previous one changed them."""


@dataclass(frozen=True)
class Budget:
    """Limits of the search."""

    candidates: int = 6000
    """Most candidates to try."""
    seconds: float = 240.0
    """Most seconds of judging, as measured inside the sandbox."""
    seed: int = 0
    """Decides the order of equal ranks."""

    @classmethod
    def chosen(cls, candidates: int | None, seed: int) -> Self:
        """Return the budget that a user chose.

        With a number of candidates, there is no time limit, so the search is repeatable.
        """
        return cls(seed=seed) if candidates is None else cls(candidates, math.inf, seed)


@dataclass(frozen=True)
class RepairStep:
    """One turn: the reasoning, and the call."""

    reasoning: str
    name: str
    arguments: dict[str, Any]


Steps = Generator[RepairStep, str, None]


@dataclass
class State:
    """The results so far, from which the report is made."""

    failing: list[str] = field(default_factory=list)
    tried: int = 0
    plausible: int = 0
    changes: list[str] = field(default_factory=list)
    note: str = ""
    """What the person should know about the choice of tests."""
    outcome: str = ""
    unchanged: bool = True
    judged: str = Python.judged

    def report(self) -> str:
        """Return in plain words what was done and why it ended."""
        lines = []
        if self.failing:
            shown = ", ".join(self.failing[:3]) + (", …" if len(self.failing) > 3 else "")
            lines.append(f"Failing at the start: {len(self.failing)} ({shown}). {self.note}".rstrip())
        if self.tried:
            lines.append(
                f"Tried {self.tried} candidate changes; {self.plausible} of them passed {self.judged}."
            )
        if self.unchanged:
            lines.insert(0, f"No change: {self.outcome or 'the search has not ended yet.'}")
        else:
            lines += [*self.changes, self.outcome or "The search has not ended yet."]
        return "\n".join(lines)


@dataclass(frozen=True)
class TestRun:
    """The first line and the test ids of a `test_runner` result."""

    __test__ = False

    passed: int
    failed: int
    red: frozenset[str]
    ran: bool
    complete: bool


def read_test_run(result: str) -> TestRun | None:
    """Parse a `test_runner` result; return None if it is not one."""
    head = re.search(r"^(\d+) passed, (\d+) failed, (\d+) errors?, (\d+) skipped(.*)$", result, re.MULTILINE)
    if head is None:
        return None
    counts = [int(part) for part in head.groups()[:4]]
    red = frozenset(re.findall(r"^(?:FAILED|ERROR) (.+)$", result, re.MULTILINE))
    failed = counts[1] + counts[2]
    if not red and failed:
        red = frozenset(("?",))
    return TestRun(counts[0], failed, red, sum(counts) > 0, not head[5])


def read_probe(result: str) -> dict[str, Any] | None:
    """Find the probe's line in a `code_exec` result; return None if it is missing or cut."""
    for line in result.splitlines():
        if line.startswith(MARK):
            try:
                found = json.loads(line[len(MARK) :])
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None


def unpack(text: str) -> bytes:
    """Undo the probe's packing."""
    return zlib.decompress(base64.b64decode(text))


class Ended(Exception):
    """The repair cannot go on; the text says why."""


class Repair:
    """One attempt at one issue."""

    def __init__(self, task: Conversation, budget: Budget) -> None:
        self.issue = task.issue
        self.tools = task.tools
        self.suites = task.suites
        self.budget = budget
        self.state = State()
        self._language: Language = Python()
        self._red: list[str] | None = None
        """The tests that fail in the repository itself, if its run reported all of them."""
        self._others = 0  # failing tests that are not repaired
        self._left = "that other runners report"  # what they are
        self._suite: NamedSuite | None = None
        self._is_narrowed = False

    def steps(self) -> Steps:
        """Yield calls until the repair has ended; the report is then complete."""
        try:
            lacking = {"code_exec", "file_edit"} - self.tools.keys()
            if lacking:
                raise Ended(f"I work through tools, and I lack {' and '.join(sorted(lacking))}.")
            if "test_runner" in self.tools:
                yield from self._first_run()
            for number in range(ROUNDS):
                if (yield from self._round(number)):
                    return
        except Ended as end:
            self.state.outcome = str(end)

    def _first_run(self) -> Steps:
        run: TestRun | None = None
        obstacle: re.Match[str] | None = None
        for framework in ("",) if self.suites else ("pytest", "unittest"):
            arguments = self._all_tests(framework, FIRST_RUN_SECONDS)
            said = "I run the tests first: the tests that fail judge a repair."
            result = yield self._step(said, "test_runner", arguments)
            run = read_test_run(result)
            if run is None:
                raise Ended(f"the tests cannot be run: {first_words(result)}")
            if run.ran:
                self._language = Python(framework)
                break
            obstacle = obstacle or re.search(r"^no tests ran: (.+)\.$", result, re.MULTILINE)
        if run is None or not run.ran:
            none = "there are no tests here, so no repair can be judged."
            raise Ended(f"no test could run: {obstacle[1]}." if obstacle else none)
        if not run.red and run.complete:
            raise Ended("all tests pass, so no repair can be judged.")
        # A test that fails only under the probe (because of its shorter limits, or in a copy) is no evidence.
        self._red = sorted(run.red) if run.complete and len(run.red) == run.failed else None
        if self.suites:
            self._choose(run)

    def _choose(self, run: TestRun) -> None:
        """Take the language of failing tests that the engine can change."""
        failing = failing_suites(sorted(run.red), self.suites)
        known = ((suite, language_of(suite, red)) for suite, red in failing.items())
        suite, language = next((pair for pair in known if pair[1] is not None), (None, None))
        if language is None or suite is None:
            able = ", ".join(["Python", *dict.fromkeys(FAMILIES.values())])
            runners = ", ".join(dict.fromkeys(suite.runner for suite in failing))
            raise Ended(f"the failing tests run with {runners}, and I can change only {able}.")
        self._language, self._suite = language, suite
        self._others = sum(len(red) for other, red in failing.items() if other != suite)
        self.state.judged = language.judged
        if isinstance(language, Curly):
            if not available():
                raise Ended(f"to change {language.name} I need {EXTRA}.")
            self.state.failing = failing[suite]

    def _all_tests(self, framework: str, timeout: int) -> dict[str, Any]:
        """Return the arguments of `test_runner` for all tests."""
        named = {"framework": framework} if framework else {}
        return {"test_file": ".", **named, "timeout": timeout}

    def _round(self, number: int) -> Generator[RepairStep, str, bool]:
        """Search once from the present state of the files; return whether the repair has ended."""
        state = self.state
        spectrum, private = yield from self._spectrum()
        state.failing = state.failing or spectrum["failed_ids"]
        if not spectrum["failed_ids"]:
            raise Ended(state.outcome or _not_started(spectrum) or self._language.harmless)
        sources = yield from self._read(spectrum)
        if not sources:
            name = self._language.name
            raise Ended(f"the failing tests run no {name} file of this repository that I could read.")
        scores = self._language.scores(spectrum, sources, self.issue)
        hints = self._hints(spectrum)
        texts = {path: source.text for path, source in sources.items()}
        limits = self.budget.candidates, self.budget.seed
        ranked = candidates(texts, scores, spectrum["kinds"], hints, *limits)
        full, partial = yield from self._search(ranked, sources, spectrum, private)
        if full:
            yield from self._settle(full, sources, spectrum)
        elif partial and (yield from self._narrow()):
            return number + 1 == ROUNDS
        elif partial:
            best = max(partial, key=lambda pair: (pair[1], -pair[0].doubt()))[0]
            yield from self._apply(best, sources)
            state.outcome = "Some of the failing tests pass with this; for the rest I found nothing."
            return number + 1 == ROUNDS
        elif state.unchanged:
            raise Ended(self._none_passed() if state.tried else nothing_tried(spectrum))
        return True

    def _none_passed(self) -> str:
        """Return that no candidate passed."""
        state = self.state
        them = "the failing test" if len(state.failing) == 1 else f"all {len(state.failing)} failing tests"
        limit = " The setting `candidates` tries more." if state.tried >= self.budget.candidates else ""
        return f"none of {state.tried} candidate changes makes {them} pass without breaking others.{limit}"

    def _narrow(self) -> Generator[RepairStep, str, bool]:
        """Leave failing tests alone that the issue is not about, and return whether there are any.

        Then the issue is about some of the failing tests, and no single change makes all of them pass.
        """
        language, failing = self._language, self.state.failing
        if self._is_narrowed:
            return False
        self._is_narrowed = True
        units: tuple[str, ...] = ()
        paths = sorted({ident.partition("::")[0] for ident in failing})
        texts = yield from self._texts(paths)
        about = IssueWords(self.issue).tests(failing, {path: text.encode() for path, text in texts.items()})
        if isinstance(language, Curly) and self._suite is not None:
            units = units_of(self._suite, sorted(about))
            about = {ident for ident in failing if units_of(self._suite, [ident])[0] in units}
        if not about or len(about) == len(failing):
            self.state.note = "The issue does not tell these tests apart, so I repair what I can."
            return False
        if isinstance(language, Curly):
            self._language = replace(language, units=units)
        self._red = sorted(about)
        self._others += len(failing) - len(about)
        self._left = "that the issue is not about"
        return True

    def _step(self, reasoning: str, name: str, arguments: Mapping[str, Any]) -> RepairStep:
        """Make a step, without arguments that the offered tool does not have."""
        known = self.tools[name] or arguments
        return RepairStep(reasoning, name, {key: arguments[key] for key in arguments if key in known})

    def _probe(
        self, reasoning: str, mode: str, asked: Mapping[str, Any], timeout: int
    ) -> Generator[RepairStep, str, dict[str, Any] | None]:
        arguments = {
            "code": bundle(mode, json.dumps({"root": ".", **asked}), self._language.written),
            "language": "python",
            "timeout": timeout,
        }
        result = ""
        for _ in range(2):
            result = yield self._step(reasoning, "code_exec", arguments)
            found = read_probe(result)
            if found is not None:
                return found
        self.state.outcome = f"the measuring program did not answer: {first_words(result)}"
        return None

    def _spectrum(self) -> Generator[RepairStep, str, tuple[dict[str, Any], bool]]:
        limits = {"test_seconds": 5.0, "seconds": SUITE_SECONDS, "room": ROOM}
        asked = {**self._language.tests(), **limits, "red": self._red}
        said = "Next I measure in a private copy which lines failing and passing tests run."
        found = yield from self._probe(said, self._language.measure, asked, 300)
        if found is None:
            raise Ended(self.state.outcome)
        if "problem" in found:
            raise Ended(found["problem"])
        spectrum: dict[str, Any] = json.loads(unpack(found["packed"]))
        return spectrum, bool(found["private"])

    def _read(self, spectrum: Mapping[str, Any]) -> Generator[RepairStep, str, dict[str, Source]]:
        """Read the suspected files, most suspected first."""
        weights: dict[str, float] = {}
        for path, rows in spectrum["lines"].items():
            weights[path] = sum(failed / (failed + passed) for _, failed, passed, _ in rows)
        for _, _, _, _, frames in spectrum["failed"]:
            for path, _, _ in frames:
                if self._language.may_change(path):
                    weights[path] = weights.get(path, 0.0) + 1.0
        for path in spectrum["imported"]:
            weights.setdefault(path, 0.0)
        sizes = {path: len(lines) for path, lines in spectrum["imported"].items()}
        wanted = sorted(weights, key=lambda path: (-weights[path], -sizes.get(path, 0), path))[:FILES]
        sources: dict[str, Source] = {}
        for path, text in (yield from self._texts(wanted)).items():
            with contextlib.suppress(SyntaxError, ValueError):  # files that do not parse are left out
                sources[path] = self._language.source(path, text)
        return sources

    def _texts(self, wanted: list[str]) -> Generator[RepairStep, str, dict[str, str]]:
        """Read files in this order; those that cannot be read, or are not UTF-8, are left out."""
        texts: dict[str, str] = {}
        partly = ""
        for _ in range(READS):
            if not wanted:
                break
            asked = {"files": wanted, "start": len(partly), "room": ROOM}
            found = yield from self._probe(f"I read {', '.join(wanted[:3])} exactly.", "read", asked, 60)
            if found is None:
                break
            wanted = [path for path in wanted if path not in found["missing"]]
            for path, piece in found["files"].items():
                partly += piece
                if len(partly) < found["sizes"][path]:
                    break
                with contextlib.suppress(ValueError, zlib.error):
                    texts[path] = unpack(partly).decode()
                wanted.remove(path)
                partly = ""
        return texts

    def _hints(self, spectrum: Mapping[str, Any]) -> Hints:
        errors = {error.split(":")[0] for _, _, _, error, _ in spectrum["failed"]}
        written = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", self.issue)
        numbers = tuple(dict.fromkeys(float(text) if "." in text else int(text) for text in written))
        quoted = re.findall(r"[\"']([^\"'\n]{1,24})[\"']", self.issue)
        quoted += re.findall(r"`([^`\n]{1,24})`", self.issue)
        wanted = {name for _, _, _, error, _ in spectrum["failed"] for name in expected_exceptions(error)}
        words = issue_words(self.issue) | {text for text in quoted if text in COMPARISONS}
        quoted += re.findall(r"'([^'\n]{1,24})'", spectrum.get("said", ""))
        strings = tuple(dict.fromkeys(quoted))[:16]
        return Hints(numbers[:12], strings, frozenset(words), frozenset(errors), frozenset(wanted))

    def _search(
        self,
        ranked: list[PatchCandidate],
        sources: Mapping[str, Source],
        spectrum: Mapping[str, Any],
        private: bool,
    ) -> Generator[RepairStep, str, tuple[list[PatchCandidate], list[tuple[PatchCandidate, int]]]]:
        """Let the tests judge batch after batch.

        Returns:
            The candidates that fix everything; and those that fix a part, with the number of fixed tests.
        """
        state = self.state
        full: list[PatchCandidate] = []
        partial: list[tuple[PatchCandidate, int]] = []
        ends = stops(ranked, self._language.choice)
        waiting = list(range(len(ranked)))
        size = FIRST_BATCH
        used = 0.0
        while waiting and self._may_go_on(used, is_partial=bool(partial) and not full):
            allowed = min(size, self.budget.candidates - state.tried)
            numbers = waiting[: fitting([ranked[number] for number in waiting[:allowed]])]
            batch = [ranked[number] for number in numbers]
            seconds = max(self._language.batch_seconds, 3 * spectrum["suite_seconds"])
            asked = {
                **self._language.tests(),
                **self._language.evidence(spectrum),
                "private": private,
                **self._watched(batch, sources, spectrum),
                "stops": [bisect_left(numbers, ends[number]) for number in numbers],
                "seconds": round(min(seconds, self.budget.seconds - used), 1),
                "candidates": self._written(batch, sources),
            }
            first = f"{batch[0].path}:{batch[0].mutation.line} ({batch[0].mutation.operator})"
            said = f"{len(batch)} candidates to judge, first at {first}."
            found = yield from self._probe(said, self._language.judge, asked, 600)
            if found is None:
                break
            verdicts: str = found["verdicts"]
            state.tried += len(verdicts) - verdicts.count("-")
            used += found["seconds"]
            # A batch may run out of time; its remaining candidates come first in the next one. A candidate
            # that uses up a batch alone is dropped.
            left = [number for number, verdict in zip(numbers, verdicts, strict=True) if verdict == "-"]
            waiting = left[len(left) == len(numbers) :] + waiting[len(numbers) :]
            for held in found["found"]:
                if held["fixed"] == len(spectrum["failed_ids"]):
                    full.append(batch[held["index"]])
                    waiting = [number for number in waiting if number < ends[numbers[held["index"]]]]
                else:
                    partial.append((batch[held["index"]], held["fixed"]))
            size = LATER_BATCH
        state.plausible += len(full)
        return full, partial

    def _may_go_on(self, used: float, *, is_partial: bool) -> bool:
        """Return whether the budget allows more candidates: half of them if changes fix a part and none fixes everything."""
        tried, most = self.state.tried, self.budget.candidates
        return tried < most and used < self.budget.seconds and not (is_partial and tried > most / 2)

    def _watched(
        self, batch: list[PatchCandidate], sources: Mapping[str, Source], spectrum: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the files for the probe, and the tests that run the line of each candidate."""
        watched = {
            (path, line): tests for path, rows in spectrum["lines"].items() for line, _, _, tests in rows
        }
        return {
            "files": sorted(sources),
            "watching": spectrum["watching"],
            "watched": [watched.get((each.path, each.mutation.line), []) for each in batch],
        }

    def _written(self, batch: list[PatchCandidate], sources: Mapping[str, Source]) -> list[list[Any]]:
        """Return candidates as the probe reads them: the number of the file, the edits, and what is around these."""
        files, around = sorted(sources), self._language.surroundings
        return [
            [
                files.index(each.path),
                [[edit.start, edit.end, edit.text] for edit in each.mutation.edits],
                *around(sources[each.path], each.mutation),
            ]
            for each in batch
        ]

    def _settle(
        self, full: list[PatchCandidate], sources: Mapping[str, Source], spectrum: Mapping[str, Any]
    ) -> Steps:
        """Write the best of the passing candidates and run the tests; if they fail, try the next one."""
        state = self.state
        chosen = sorted(full, key=lambda one: (one.doubt(), one.order))[: self._language.attempts]
        for candidate in chosen:
            yield from self._apply(candidate, sources)
            if "test_runner" not in self.tools:
                raise Ended("The tests passed with it in my own runs.")
            timeout = int(min(1800, max(120, 6 * spectrum["suite_seconds"])))
            arguments = self._all_tests(self._language.framework, timeout)
            again = "That run gave no test results; I run the tests again."
            for said in ("The change is made: do all tests pass now?", again):
                run = read_test_run((yield self._step(said, "test_runner", arguments)))
                if run is not None and run.ran:
                    break
            else:
                raise Ended("The tests passed with it in my own runs; the last test run gave no results.")
            if run.failed <= self._others and run.passed:
                state.outcome = "All tests pass with it."
                if run.failed:
                    others = f"{run.failed} {self._left}, as before"
                    state.outcome = f"All tests pass with it except {others}."
                if len(full) > 1:
                    state.outcome += (
                        f" Of the {len(full)} changes that pass, I took the smallest, most ordinary "
                        "one that is closest to the failure; the tests alone cannot tell them apart. "
                        "If it is the wrong one, add a test that fails with it, and run the fix again.\n"
                        + "\n".join(self._not_taken(full, candidate, sources))
                    )
                return
            text = sources[candidate.path].text
            yield self._edit(
                "It fails outside my copy; I revert it.", candidate, candidate.changed(text), text
            )
            state.changes.pop()
            state.unchanged = not state.changes
        raise Ended(
            "changes that passed in my private copy of the repository did not pass in the repository itself."
        )

    def _apply(self, candidate: PatchCandidate, sources: Mapping[str, Source]) -> Steps:
        text, mutation = sources[candidate.path].text, candidate.mutation
        changed = candidate.changed(text)
        said = f"I take this one: {mutation.operator} at {candidate.path}:{mutation.line}."
        result = yield self._edit(said, candidate, text, changed)
        if result.startswith("error: "):
            raise Ended(f"the change could not be written: {first_words(result)}")
        self.state.unchanged = False
        place = f"{candidate.path}, line {mutation.line} ({mutation.operator})"
        self.state.changes.append(f"Changed {place}:\n{diff_lines(text, changed)}")

    def _edit(self, reasoning: str, candidate: PatchCandidate, before: str, after: str) -> RepairStep:
        old, new = minimal_edit(before, after)
        return self._step(reasoning, "file_edit", {"path": candidate.path, "old": old, "new": new})

    def _not_taken(
        self, full: list[PatchCandidate], taken: PatchCandidate, sources: Mapping[str, Source]
    ) -> Iterator[str]:
        """Yield the best of the other changes that pass."""
        others = sorted((one for one in full if one is not taken), key=lambda one: (one.doubt(), one.order))
        for one in others[:MOST_SHOWN]:
            text = sources[one.path].text
            place = f"{one.path}, line {one.mutation.line} ({one.mutation.operator})"
            yield f"Not taken: {place}:\n{diff_lines(text, one.changed(text))}"
        if len(others) > MOST_SHOWN:
            yield f"Not taken: {len(others) - MOST_SHOWN} more."


def fitting(batch: list[PatchCandidate]) -> int:
    """Return how many of the first candidates fit into one call."""
    size = 0
    for number, candidate in enumerate(batch):
        size += sum(len(edit.text) + 24 for edit in candidate.mutation.edits)
        if size > BATCH_CHARACTERS and number:
            return number
    return len(batch)


def stops(ranked: list[PatchCandidate], choice: int) -> list[int]:
    """Return, for each candidate, the number of the candidate to stop before if it passes.

    `ranked` is in order of trial. At most `choice` candidates follow one that passes.
    """
    found: list[int] = []
    end = 0
    for number, candidate in enumerate(ranked):
        while end < len(ranked) and ranked[end].order <= candidate.order + CHOICE_COST:
            end += 1
        found.append(min(end, number + 1 + choice))
    return found


def diff_lines(before: str, after: str) -> str:
    """Return the changed lines, marked with ``-`` and ``+``."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def first_words(result: str) -> str:
    """Return the beginning of a tool result, as one line."""
    return " ".join(result.split())[:300]


def expected_exceptions(error: str) -> list[str]:
    """Return the names of exceptions that a failed test expected but did not get.

    The wordings are pytest's and unittest's.
    """
    pairs = re.findall(r"DID NOT RAISE (?:<class ')?(?:\w+\.)*(\w+)|\b(\w+) not raised", error)
    return [one or other for one, other in pairs]


def _not_started(spectrum: Mapping[str, Any]) -> str:
    """Return why no test started; empty if tests started."""
    reason = spectrum.get("reason")
    return f"the tests do not start in my measurement: {reason.rstrip('.')}." if reason else ""


def nothing_tried(spectrum: Mapping[str, Any]) -> str:
    """Return why no candidate was tried."""
    if all(outcome == "uncollected" for _, outcome, *_ in spectrum["failed"]):
        return "the failing tests cannot be imported here, and no small change of the code is worth a try."
    return "no small change of the code that the failing tests run is worth a try."
