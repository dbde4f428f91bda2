"""Test the replay of stall detectors: the peers' rules, SWE-agent's commands as calls, and alarms scored by labels."""

from __future__ import annotations

import pytest
from benchmarks.stall.data import Step, Window
from benchmarks.stall.moves import moves
from benchmarks.stall.peers import PEERS, Detector, Gemini, InARow, Move, OpenHands, Qwen, chants
from benchmarks.stall.replay import Row, our_alarms, score

from m3agent.agent.stall import Thresholds


def move(
    command: str, result: str = "", *, thought: str = "", tool: str = "shell", refused: bool = False
) -> Move:
    return Move(thought, command, tool, {"command": command}, result, refused)


def fires(detector: Detector, commands: str, *, result: str = "same") -> list[int]:
    """Return the steps (from 1) on which the detector fires; each letter is a command."""
    return [at for at, letter in enumerate(commands, 1) if detector.fires(move(letter, result))]


def test_openhands() -> None:
    assert fires(OpenHands(), "aaaaa") == [4, 5]
    assert fires(OpenHands(), "abababa") == [6, 7]
    assert fires(OpenHands(), "aaabaaa") == []
    results = [OpenHands() for _ in range(3)]
    assert not any(results[0].fires(move("a", str(n))) for n in range(9))
    assert [results[1].fires(move("a", str(n), refused=True)) for n in range(4)] == [
        False,
        False,
        False,
        True,
    ]
    assert not any(results[2].fires(move("a", thought=str(n))) for n in range(9))
    without = OpenHands(thoughts=False)
    assert [without.fires(move("a", thought=str(n))) for n in range(4)] == [False, False, False, True]


def test_gemini() -> None:
    assert fires(Gemini(), "aaaaa") == [5]
    assert fires(Gemini(), "ab" * 5) == [10]
    assert fires(Gemini(), "abcde" * 5) == [25]
    assert fires(Gemini(), "abcdef" * 5) == []


def test_chunks_of_a_message() -> None:
    said = "I will look into the file once more and then decide. "
    assert chants(said * 12)
    assert not chants(said * 8)
    assert not chants("".join(f"- {said}\n" for _ in range(20)))
    assert not chants(f"```\n{said * 20}\n```\n")
    assert not chants("".join(f"{n} and {n * n}, " for n in range(300)))


def test_cline_and_opencode() -> None:
    assert fires(InARow(3), "aaabaaaa") == [3, 7, 8]
    assert fires(PEERS["cline, hard"](), "aaaaaa") == [5, 6]
    assert fires(PEERS["opencode"](), "aabaa") == []


def test_qwen() -> None:
    assert fires(Qwen(), "aaaaa") == [5]
    # step 14 is the sixth a: six of a kind in the run
    assert fires(Qwen(), "abcdadeafagaha") == [14]
    assert fires(Qwen(), "ababab") == [6]
    assert fires(Qwen(), "abcdefgh") == []
    assert fires(Qwen(all_rules=True), "abcdefgh") == [8]  # eight calls of one tool
    reader = Qwen(all_rules=True)
    assert not any(reader.fires(move(str(n), tool="read_file" if n % 2 else "search")) for n in range(15))
    assert reader.fires(move("edit", tool="edit"))


VIEW = "[File: /repo/A.java (300 lines total)]\n(99 more lines above)\n100:int a;\n101:int b;\n(199 more lines below)"


@pytest.mark.parametrize("command", ["scroll_down", "goto 100", "open A.java 100"])
def test_a_view_is_a_read_of_numbered_lines(command: str) -> None:
    [(_, seen)] = moves([Step("", command, VIEW)])
    assert (seen.name, seen.content) == ("file_read", "100\tint a;\n101\tint b;")
    assert seen.arguments is not None
    assert seen.arguments["path"] == "/repo/A.java"


def test_scrolling_on_is_no_repetition() -> None:
    views = [VIEW.replace("100:", f"{n}00:").replace("101:", f"{n}01:") for n in range(1, 9)]
    recorded = list(moves(Step("", "scroll_down", view) for view in views))
    assert len({each.key for each, _ in recorded}) == len(views)
    assert our_alarms(recorded, Thresholds()) == []
    stuck = list(moves([Step("", "scroll_down", VIEW)] * 6))
    assert our_alarms(stuck, Thresholds())[0] == 3  # the first call had no open file yet


def test_edits_and_refusals() -> None:
    refusal = "Your proposed edit has introduced new syntax error(s).\n- E999 SyntaxError: invalid syntax"
    steps = [Step("", "edit 1:1\nx\nend_of_edit", VIEW), Step("", "edit 1:1\ny\nend_of_edit", refusal)]
    (_, done), (move, refused) = moves(steps)
    assert (done.name, done.is_error, done.content) == ("file_edit", False, "edited /repo/A.java")
    assert (refused.name, refused.is_error, move.refused) == ("file_edit", True, True)
    assert list(moves([Step("", "submit", "diff"), Step("", "exit_cost", "")])) == []


def test_failure_of_the_shell_is_recognised_by_its_text() -> None:
    steps = [Step("", "javac A.java", f"/bin/bash: line {n}: javac: command not found") for n in range(7, 12)]
    recorded = list(moves(steps))
    assert our_alarms(recorded, Thresholds()) == [2, 3, 4]
    assert our_alarms(recorded, Thresholds(), ends=True) == [4]


def test_alarms_against_labels() -> None:
    row = Row("x", [[3, 4, 9], [], [12]])
    windows = [
        Window("a", 0, 10),
        Window("a", 5, 4),
        Window("b", 0, 10),
        Window("c", 5, 10),
        Window("c", 0, 20),
    ]
    names = ["a", "b", "c"]
    found = score(names, row, windows, [4, None, 2, None, 5])
    assert (found.found, found.on_time, found.stalls) == (2, 1, 3)
    assert list(found.delays) == [-1, 7]
    assert (found.false, found.clear) == (1, 2)
    late = score(names, row, windows[:1], [8])
    # the alarm at 3 came too early to count
    assert (late.found, late.on_time, list(late.delays)) == (1, 0, [1])
