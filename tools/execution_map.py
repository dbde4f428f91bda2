"""Which functions of the work tree each test executes, as the runner in the sandbox records it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from m3agent.tools.in_sandbox.recorder import pack

__all__ = ["ExecutionMap", "MapReader", "Recording", "pack", "unpack"]

MOST_FUNCTIONS = 1 << 20
"""Most functions of a map."""
MOST_NUMBERS = 1 << 27
"""Most numbers of all tests of a map. Their text comes from the sandbox and may be made to be slow to read."""
LAST_LINE = 1 << 31


@dataclass(frozen=True)
class Recording:
    """When a run of tests begins to record which functions each test executes."""

    after: float = 0.0
    """Seconds after the start of the first test; from then on the duration of the run is estimated."""
    above: float = 0.0
    """The recording begins when the run is estimated to take more than this number of seconds. 0: at once."""


@dataclass(frozen=True)
class ExecutionMap:
    """Which functions of the work tree each test executes."""

    functions: tuple[tuple[str, int, str], ...]
    """Path, first line and name of each function."""
    executed: Mapping[str, str]
    """By test id, the numbers of the functions, packed (see `pack`)."""
    elsewhere: tuple[str, ...]
    """Sorted ids of tests whose record is incomplete, such as tests that start other processes."""
    imports: ExecutionMap | None = None
    """Which functions run while the tests are imported, such as decorators. Its ids are paths: the tests of a
    test file depend on what it executes, and every test on what the others execute. None in such a map
    itself.
    """

    def tests_that_execute(self, wanted: Callable[[str, int, str], bool]) -> set[str]:
        """Return the ids of the tests that execute one of the functions for which `wanted` is true.

        Raises:
            ValueError: The numbers of a test are damaged.
        """
        numbers = {number for number, function in enumerate(self.functions) if wanted(*function)}
        # the parameters of a test often execute the same functions, and then their texts are equal
        hits = {text: not numbers.isdisjoint(unpack(text)) for text in set(self.executed.values())}
        return {ident for ident, text in self.executed.items() if hits[text]}

    def functions_of(self, ident: str) -> list[tuple[str, int, str]]:
        """Return the functions that a test executes, with path, first line and name of each.

        Raises:
            ValueError: The numbers of the test are damaged.
        """
        return [self.functions[number] for number in sorted(unpack(self.executed[ident]))]


def _ascending(data: bytes) -> list[int]:
    """Return the numbers of differences in bytes of 7 bits each."""
    if data.isascii():  # each difference is one byte
        return list(accumulate(data))
    numbers: list[int] = []
    number = shift = difference = 0
    for byte in data:
        difference |= (byte & 127) << shift
        if byte > 127:
            shift += 7
            if shift > 28:
                raise ValueError("a number is too large")
        else:
            number += difference
            numbers.append(number)
            shift = difference = 0
    if shift:
        raise ValueError("the last number is cut off")
    return numbers


def unpack(text: str) -> set[int]:
    """Return the numbers that `pack` made a text of.

    Raises:
        ValueError: The text is damaged, or a number is not below `MOST_FUNCTIONS`.
    """
    # A difference has at most as many bytes as its value, except for a first 0, so valid data is not longer.
    most = MOST_FUNCTIONS + 1
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(base64.b64decode(text, validate=True), most)
    except zlib.error as error:
        raise ValueError(f"damaged numbers: {error}") from error
    if not inflater.eof or inflater.unused_data:
        raise ValueError("the numbers are cut off, too many, or followed by something else")
    numbers = _ascending(data)
    distinct = set(numbers)
    if len(distinct) != len(numbers) or (numbers and numbers[-1] >= MOST_FUNCTIONS):
        raise ValueError("a number is there twice or too large")
    return distinct


def encodable(text: str) -> str:
    """Escape lone surrogates. Names of files that are not UTF-8 have them, and a request to the model cannot."""
    return text.encode("utf-8", "backslashreplace").decode()


class MapReader:
    """Makes a map of the lines of a report. A test whose lines are malformed gets no record.

    The lines come from the sandbox, so they may hold anything.
    """

    def __init__(self) -> None:
        self._functions: list[tuple[str, int, str]] = []
        self._broken = False
        self._left = MOST_NUMBERS
        self._texts: dict[str, list[str]] = {}
        self._elsewhere: set[str] = set()
        self._bad: set[str] = set()

    def add_function(self, function: object) -> None:
        """Add the function of a line `code`."""
        match function:
            case [str(path), int(line), str(name)] if (
                type(line) is int and 0 <= line < LAST_LINE and len(self._functions) < MOST_FUNCTIONS
            ):
                self._functions.append((encodable(path), line, encodable(name)))
            case _:
                self._broken = True

    def add_test(self, ident: str, text: object, elsewhere: object) -> None:
        """Add the numbers of a line `ran`. Tests with the same id are joined."""
        if isinstance(text, str) and not self._broken and self._valid(text):
            self._texts.setdefault(ident, []).append(text)
        else:
            self._bad.add(ident)
        if elsewhere:
            self._elsewhere.add(ident)

    def _valid(self, text: str) -> bool:
        if self._left < 0:
            return False
        try:
            numbers = unpack(text)
        except ValueError:
            self._left -= MOST_FUNCTIONS  # what it may have cost at most
            return False
        self._left -= len(numbers)
        return max(numbers, default=-1) < len(self._functions)

    def map(self, started: Mapping[str, int]) -> ExecutionMap | None:
        """Return the map; None if no test has a record.

        Args:
            started: How many tests with this id started. If not all of them have a record, the id has none.
        """
        executed = {
            ident: texts[0] if len(texts) == 1 else pack(set[int]().union(*map(unpack, texts)))
            for ident, texts in self._texts.items()
            if ident not in self._bad and len(texts) >= started.get(ident, 0)
        }
        if not executed:
            return None
        return ExecutionMap(
            tuple(self._functions), executed, tuple(sorted(self._elsewhere & executed.keys()))
        )
