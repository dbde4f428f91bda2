"""The programs for sandboxes in the form for old Pythons: what changes, and that nothing in them is newer than Python 3.5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import vermin  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.certificate import build
from m3agent.sandbox.backends import pip_launcher, pytest_bundle
from m3agent.sandbox.protocol import channel, supervisor
from m3agent.serving.embedded import probe
from m3agent.util.portable_source import portable, portable_file

ROOT = Path(__file__).parents[2]
OLDEST = (3, 5)
USED_IF_THERE = (
    "importlib.metadata",
    "gc.freeze",
    "sys.addaudithook",
    "os.register_at_fork",
    "os.posix_spawn",
    "os.POSIX_SPAWN_OPEN",
    "os.POSIX_SPAWN_DUP2",
)
"""Newer functions and modules, each used only if the interpreter has it."""


def programs() -> Iterator[tuple[str, str]]:
    """Yield name and text of each program that runs in a sandbox."""
    patterns = ("tools/in_sandbox/*.py", "sandbox/images/*_script.py", "evals/grade/unittest_program.py")
    files = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    files += [Path(str(module.__file__)) for module in (pip_launcher, supervisor)]
    files.append(ROOT / "evals/grade/log_reader.py")
    for path in files:
        yield path.name, portable_file(path)
    for mode in probe._MODES:
        yield f"probe, {mode}", probe.bundle(mode, "{}")
    yield "BOOT", channel.BOOT
    yield "PROBE", pytest_bundle.PROBE
    yield "certificate", build._LISTED


@pytest.mark.parametrize(("name", "text"), [pytest.param(*each, id=each[0]) for each in programs()])
def test_nothing_is_newer_than_the_oldest_python(name: str, text: str) -> None:
    config = vermin.Config()
    for member in USED_IF_THERE:
        config.add_exclusion(member)
    needed = vermin.detect(text, config, name)[1]
    assert needed is None or needed <= OLDEST


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("from __future__ import annotations\nx = 1", "pass\nx = 1"),
        ("from typing import Any, Dict\nHeader = Dict[str, int]\ndef f(a: Any) -> Any: return a",
         "from typing import Dict\nHeader = Dict[str, int]\ndef f(a) : return a"),
        ("def f(a: int, *b: int, c: 'int' = 1, **d: int) -> int:\n    '''Text\n    of two lines.'''\n    return a",
         "def f(a, *b, c = 1, **d) :\n    pass\n\n    return a"),
        ("def f(\n    *,\n    a: int = 1,\n) -> int:\n    return a", "def f(\n    *,\n    a = 1\n) :\n    return a"),
        ("class A:\n    x: int\n    y: list[int] = (\n        2)", "class A:\n    pass\n    y = (\n        2)"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING or __package__:\n    import a\nelse:\n    import b",
         "pass\nif False:\n    pass\nelse:\n    import b"),
    ],
)  # fmt: skip
def test_what_changes(source: str, result: str) -> None:
    assert portable(source) == result


@given(
    text=st.text("{}a\n'\"\\é€", max_size=6),
    value=st.one_of(st.integers(-9, 999), st.floats(-9, 999), st.text("ab{}é", max_size=4)),
    conversion=st.sampled_from(["", "!r", "!s", "!a"]),
    width=st.integers(0, 9),
)
def test_an_f_string_keeps_its_value(text: str, value: object, conversion: str, width: int) -> None:
    shown = repr(text)[1:-1].replace("{", "{{").replace("}", "}}")
    quote = repr(text)[0]
    source = f"result = f{quote}{shown}{{value{conversion}:>{{width}}}}{shown}{{width:03d}}{quote}"
    values = [{"value": value, "width": width} for _ in range(2)]
    exec(source, values[0])
    exec(portable(source), values[1])
    assert values[0]["result"] == values[1]["result"]
