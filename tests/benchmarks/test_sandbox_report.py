import pytest
from benchmarks.sandbox_report import Row, Target, bars, number, table

SHELL = Row("shell", "ms", {"m3agent": [3.0, 1.0, 2.0], "docker exec": [44.0, 40.0], "peer": "not installed"})
RATE = Row("rate", "calls/s", {"m3agent": [100.0], "docker exec": [4.0]}, more_is_better=True)


def test_ratios_say_how_many_times_better_ours_is() -> None:
    assert SHELL.medians() == {"m3agent": 2.0, "docker exec": 42.0}
    assert SHELL.ratios() == {"docker exec": 21.0}
    assert RATE.ratios() == {"docker exec": 25.0}


def test_no_ratio_without_our_own_value() -> None:
    assert Row("r", "ms", {"m3agent": "it failed", "docker exec": [1.0]}).ratios() == {}
    assert Row("r", "processes", {"m3agent": [0.0], "docker exec": [4.0]}).ratios() == {}


@pytest.mark.parametrize(
    ("least", "aim", "verdict"),
    [(15, 20, (21.0, "aim met")), (21, 22, (21.0, "met")), (22, 30, (21.0, "MISSED"))],
)
def test_targets(least: float, aim: float, verdict: tuple[float, str]) -> None:
    assert Target("shell", "docker exec", least, aim).verdict([SHELL]) == verdict


@pytest.mark.parametrize(("row", "peer"), [("shell", "peer"), ("shell", "nobody"), ("other", "docker exec")])
def test_a_target_without_its_numbers_is_not_met(row: str, peer: str) -> None:
    assert Target(row, peer, 1, 1).verdict([SHELL]) == (None, "not measured")


def test_the_table_has_a_line_for_each_contestant_and_target() -> None:
    lines = table([SHELL, RATE], [Target("shell", "docker exec", 15, 20)]).splitlines()
    assert "| shell | m3agent | 2.00 ms |  |" in lines
    assert "| shell | docker exec | 42.0 ms | 21.0x |" in lines
    assert "| shell | peer | not installed | |" in lines
    assert lines[-1] == "| shell: 15x better than docker exec | 20x | 21.0x | aim met |"


def test_bars_are_as_long_as_the_numbers_say() -> None:
    title, ours, theirs = bars(SHELL).splitlines()
    assert title == "shell (ms)"
    assert (ours.count("█"), theirs.count("█")) == (2, 40)
    assert ours.endswith(" 2.00")


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.0, "0.00")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text
