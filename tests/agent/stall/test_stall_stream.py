"""Test finding chants in a stream: however the stream is cut, and without false alarms on merely regular text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.stall import StallDetector, StallVerdict, Thresholds

PARAGRAPH = (
    "Wait, let me check the parser again. The parser reads the header first, and then the body. "
    "If the header is empty, the body is skipped, so the test should pass. But it does not. "
)


def hear(pieces: list[str], detector: StallDetector | None = None) -> StallVerdict | None:
    """Return the first verdict on a stream of these pieces."""
    detector = detector or StallDetector()
    return next((verdict for piece in pieces if (verdict := detector.hear(piece)) is not None), None)


def cut(text: str, sizes: list[int]) -> list[str]:
    """Return the text in pieces whose sizes repeat `sizes`."""
    pieces: list[str] = []
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(text):
            return pieces
        pieces.append(text[at : at + size])
        at += size
    return pieces


def prose(words: int, seed: int = 1) -> str:
    """Return text that does not repeat itself."""
    state = seed
    out: list[str] = []
    for _ in range(words):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(f"w{state % 9973}")
    return " ".join(out)


@pytest.mark.parametrize("said", ["I will now write the test. ", PARAGRAPH, "no ", "我再检查一遍 "])
def test_a_chant_is_heard(said: str) -> None:
    verdict = hear([prose(200), said * (12_000 // len(said))])
    assert verdict is not None
    assert (verdict.action, verdict.rule) == ("tell", "chant")


def test_what_has_a_form_is_no_chant() -> None:
    numbered = "".join(
        f"{n}. Read file number {n} and compare it with the one before it.\n" for n in range(400)
    )
    table = "".join(
        f"| case {n} | {n * n} | passed | the same remark in each of the rows |\n" for n in range(300)
    )
    remark = "this case is read from the table, compared with the one stored, and reported where they differ"
    assert hear(["".join(f"{n}: {remark}\n" for n in range(300))]) is None
    assert hear([prose(3000)]) is None
    assert hear([numbered]) is None
    assert hear([table]) is None
    assert hear(["=" * 1500, prose(400)]) is None
    assert hear([prose(100), PARAGRAPH * 6, prose(500, seed=2)]) is None


def test_data_in_a_block_of_code_may_repeat_itself() -> None:
    rows = "    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],\n" * 40
    assert hear([f"{prose(300)}\n", rows]) is not None
    assert hear([f"{prose(300)}\n```python\n", rows, "```\n", prose(300)]) is None
    assert hear(["```\n", rows * 20]) is not None
    long_row = f"    {prose(50)},\n"
    assert hear([f"{long_row * 35}"]) is not None
    assert hear(["```python\n", long_row * 35]) is None, "in code, more repetitions are needed"


@given(
    before=st.integers(0, 300),
    said=st.text(min_size=1, max_size=300),
    times=st.integers(0, 60),
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=6),
)
def test_the_pieces_do_not_matter(before: int, said: str, times: int, sizes: list[int]) -> None:
    text = prose(before) + said * times + prose(100, seed=3)
    whole, pieces = hear([text]), hear(cut(text, sizes))
    assert (whole is None) == (pieces is None)
    assert whole == pieces


def test_each_answer_is_heard_for_itself() -> None:
    detector = StallDetector()
    for _ in range(40):
        assert hear([PARAGRAPH * 8], detector) is None
        detector.answered(reasoning=PARAGRAPH * 8, text="", calls=1, finish="tool_calls")


def test_chants_get_a_note_then_force_then_stop() -> None:
    detector = StallDetector()
    met = []
    for _ in range(3):
        verdict = hear([PARAGRAPH * 60], detector)
        assert verdict is not None
        met.append(verdict.action)
    assert met == ["tell", "force", "stop"]


def test_the_turn_it_may_begin_in() -> None:
    detector = StallDetector(Thresholds(first_turn_chant=3))
    for _ in range(2):
        assert hear([PARAGRAPH * 60], detector) is None
        detector.answered(reasoning="", text="a", calls=1, finish="tool_calls")
    assert hear([PARAGRAPH * 60], detector) is not None
