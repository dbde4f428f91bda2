"""Source is parsed in several threads at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from m3agent.util.python_ast import parse

SOURCE = "\n".join(
    f"def f{number}(a, *b, c=(1, [2, {{3: 4}}])):\n    return a + b[c]" for number in range(200)
)


class Cycle:
    """Garbage whose finalizer lets other threads run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(300):
            pass


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """Let the garbage collector run, and threads change, much more often."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_collector")
def test_threads_do_not_disturb_each_other() -> None:
    """Without the lock, this fails on Python 3.11."""

    def work() -> int:
        numbers = set()
        for _ in range(8):
            for _ in range(20):
                Cycle()
            numbers.add(len(parse(SOURCE).body))
        return numbers.pop()

    with ThreadPoolExecutor(4) as pool:
        assert [future.result() for future in [pool.submit(work) for _ in range(4)]] == [200] * 4


def test_modes() -> None:
    assert parse("1 + 1", "eval").body.lineno == 1
    with pytest.raises(SyntaxError):
        parse("1 +")
