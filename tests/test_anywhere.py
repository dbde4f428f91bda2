"""`make test-anywhere`: the table of surroundings, what each of them starts, and that a shuffled run is repeatable."""

from __future__ import annotations

import ast
import itertools
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from scripts.quality import anywhere
from scripts.quality.anywhere import (
    ROOT,
    SURROUNDINGS,
    TOGETHER,
    NotHere,
    Surrounding,
    chosen,
    command_of,
    environ_of,
    main,
    prepare,
    together,
)
from scripts.quality.shuffled import SEED, pytest_collection_modifyitems
from tests.agent.repositories import write_files

IN_COMMON = {"name", "environ", "user", "is_whole"}
"""Fields that several surroundings of one run may have."""
NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each program be installed, and the user be root."""
    monkeypatch.setattr(anywhere, "program", lambda name, package: name)
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_names_are_distinct_and_each_surrounding_differs() -> None:
    names = [one.name for one in SURROUNDINGS]
    assert len({*names}) == len(names)
    assert all(re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", name) for name in names)
    assert all(one != Surrounding(one.name, is_whole=one.is_whole) for one in SURROUNDINGS)


def test_moments_are_instants_in_the_future() -> None:
    moments = [datetime.fromisoformat(one.moment) for one in SURROUNDINGS if one.moment]
    assert min(moments) > NOW.replace(tzinfo=None)
    assert {(moment.month, moment.day) for moment in moments} >= {(2, 28), (12, 31)}


@pytest.mark.parametrize(
    ("one", "command"),
    [
        (Surrounding("as it is"), ""),
        (Surrounding("one", cores="0"), "taskset --cpu-list 0"),
        (Surrounding("young", uptime=5), "unshare --time --monotonic -995 --boottime -995"),
        (Surrounding("old", uptime=5000), "unshare --time --monotonic 4000 --boottime 4000"),
        (Surrounding("other", user=True), "unshare --user --map-user=1000 --map-group=1000"),
        (
            Surrounding("all", cores="0", uptime=1001, user=True),
            "taskset --cpu-list 0 unshare --time --monotonic 1 --boottime 1 unshare --user --map-user=1000 --map-group=1000",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Surrounding) else "",
)
def test_the_words_before_pytest(one: Surrounding, command: str) -> None:
    assert " ".join(command_of(one, uptime=1000.2)) == command


def test_without_root_a_clock_is_shifted_in_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert command_of(Surrounding("young", uptime=5), uptime=5)[-1] == "--map-root-user"


def test_the_variables(tmp_path: Path) -> None:
    assert environ_of(Surrounding("as it is"), tmp_path, NOW) == {}
    one = Surrounding(
        "all",
        {"TZ": "UTC"},
        moment="2026-11-01T00:01:00",
        locale=("xx", "UTF-8"),
        home="h",
        temporary="t",
        seed=3,
    )
    assert environ_of(one, tmp_path, NOW) == {
        "TZ": "UTC",
        "LD_PRELOAD": str(tmp_path / "shifted_date"),
        "DATE_AHEAD": "60",
        "LOCPATH": str(tmp_path),
        "HOME": str(tmp_path / "h"),
        "TMPDIR": str(tmp_path / "t"),
        "TEST_ORDER_SEED": "3",
        "PYTHONHASHSEED": "3",
    }


def test_folders_are_made(tmp_path: Path) -> None:
    assert prepare(Surrounding("one", home="my home", temporary="my files"), tmp_path) == ROOT
    prepare(Surrounding("other", home="closed", writable=False), tmp_path)
    writable = {folder.name: bool(folder.stat().st_mode & stat.S_IWUSR) for folder in tmp_path.iterdir()}
    assert writable == {"my home": True, "my files": True, "closed": False}


def test_only_takes_names_and_their_beginnings() -> None:
    assert chosen("") == list(SURROUNDINGS)
    assert [one.name for one in chosen("order-2, clock")] == [
        *("clock-seconds", "clock-minutes", "clock-years"),
        "order-2",
    ]
    assert chosen("umask+order-1") == [Surrounding("umask+order-1", umask=0o077, seed=1)]


def test_an_unknown_name_is_an_error_that_lists_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "clock,moon"])
    assert "there is no surrounding 'moon'; there are clock-seconds, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "status", "line"),
    [
        ((0, "..\n3 passed"), 0, "zone-chatham: 3 passed ("),
        ((5, "no tests ran"), 0, "zone-chatham: no tests ran ("),
        ((1, "FAILED a.py::test_b - assert\n1 failed"), 1, "zone-chatham: a.py::test_b ("),
        ((3, "INTERNALERROR"), 1, "zone-chatham: pytest ended with exit status 3 ("),
        (NotHere("x is missing"), 2, "zone-chatham: not possible here: x is missing"),
    ],
)
def test_the_exit_status_and_the_lines(
    first: tuple[int, str] | NotHere,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran: list[tuple[str, bool, list[str]]] = []

    def run(one: Surrounding, marked: str, arguments: list[str]) -> tuple[int, str]:
        ran.append((one.name, "not integration" in marked, arguments))
        if len(ran) > 1:
            return 0, "9 passed"
        if isinstance(first, NotHere):
            raise first
        return first

    monkeypatch.setattr(anywhere, "run", run)
    assert main(["--only", "user,zone", "-n", "2"]) == status
    assert ran == [("zone-chatham", False, ["-n", "2"]), ("user", True, ["-n", "2"])]
    said = capsys.readouterr().out.splitlines()
    assert said[-2].startswith(line)
    assert said[-1].startswith("user: 9 passed (")


def test_each_surrounding_is_part_of_one_common_run() -> None:
    by_name = {one.name: one for one in SURROUNDINGS}
    assert sorted(itertools.chain(*TOGETHER)) == sorted(by_name)
    for names in TOGETHER:
        differing = [
            {part.name for part in fields(Surrounding) if getattr(one, part.name) != part.default} - IN_COMMON
            for one in map(by_name.__getitem__, names)
        ]
        assert len(set().union(*differing)) == sum(map(len, differing)), f"{names} exclude each other"


def test_a_common_run_differs_in_everything() -> None:
    one = together(
        [Surrounding("a", {"TZ": "UTC"}, uptime=5), Surrounding("b", {"LC_ALL": "C"}, is_whole=False)]
    )
    assert one == Surrounding("a+b", {"TZ": "UTC", "LC_ALL": "C"}, uptime=5, is_whole=False)


def test_what_fails_in_a_common_run_runs_in_each_surrounding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, list[str]]] = []

    def run(one: Surrounding, _: str, arguments: list[str]) -> tuple[int, str]:
        ran.append((one.name, arguments))
        is_red = {"umask", "date"} <= {*one.name.split("+")}
        return (1, "FAILED a.py::test_b - assert") if is_red else (0, "9 passed")

    monkeypatch.setattr(anywhere, "run", run)
    monkeypatch.setattr(anywhere, "SURROUNDINGS", tuple(map(Surrounding, ("umask", "date", "order"))))
    monkeypatch.setattr(anywhere, "TOGETHER", (("umask", "date"), ("order",)))
    assert main(["-n", "2"]) == 1
    assert ran == [
        ("umask+date", ["-n", "2"]),
        *((name, ["a.py::test_b", "-n", "2"]) for name in ("umask", "date")),
        ("order", ["-n", "2"]),
    ]


def test_a_seed_decides_the_order_and_files_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [SimpleNamespace(path=Path(file), number=number) for file in "abcde" for number in range(5)]
    orders = []
    for seed in ("1", "1", "2"):
        monkeypatch.setenv(SEED, seed)
        shuffled = list(items)
        pytest_collection_modifyitems(cast(list[pytest.Item], shuffled))
        orders.append([(item.path.name, item.number) for item in shuffled])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == [(item.path.name, item.number) for item in items] != orders[0]
    assert len(list(itertools.groupby(file for file, _ in orders[0]))) == 5


@pytest.mark.linux
@pytest.mark.integration
def test_the_clock_is_shifted_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if {*Path("/proc/self/timens_offsets").read_text("utf-8").split()} != {"monotonic", "boottime", "0"}:
        pytest.skip("the clock is shifted already")
    command = command_of(Surrounding("old", uptime=1e9), time.monotonic())
    asks = [sys.executable, "-c", "import time; print(time.monotonic())"]
    done = subprocess.run([*command, *asks], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no time namespace here: {done.stderr.strip()}")
    assert 1e9 - 1 <= float(done.stdout) < 1e9 + 100


@pytest.mark.linux
@pytest.mark.integration
def test_the_date_is_shifted_in_each_program(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    if "DATE_AHEAD" in os.environ:
        pytest.skip("the date is shifted already")
    one = Surrounding("leap day", moment="2028-02-29T12:00:00")
    prepare(one, tmp_path)
    environ = os.environ | environ_of(one, tmp_path, datetime.now(UTC))
    asks = "import time; print(time.strftime('%F', time.gmtime())); time.sleep(0.01)"
    for command in ([sys.executable, "-c", asks], ["date", "-u", "+%F"]):
        done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
        assert done.stdout == "2028-02-29\n"


@pytest.mark.integration
def test_a_copy_has_what_is_not_committed_and_is_set_up(
    make_repo: Callable[[dict[str, str | bytes]], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"Makefile": "python:\n\techo > set-up\n", "old": "a", "gone": "b", ".gitignore": "secret\n"}
    root = make_repo(dict(files))
    (root / "gone").unlink()
    write_files(root, {"old": "changed", "folder/new": "c", "secret": "d"})
    monkeypatch.setattr(anywhere, "ROOT", root)
    copy = prepare(Surrounding("path", checkout="my checkout é"), tmp_path)
    names = {path.name: path for path in copy.rglob("*") if path.is_file() and ".git/" not in str(path)}
    assert names.keys() == {"Makefile", ".gitignore", "old", "new", "set-up"}
    assert names["old"].read_text() == "changed"


def test_the_products_files_do_not_depend_on_the_locale() -> None:
    least = {"read_text": 1, "write_text": 2}  # arguments with which the encoding is given
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("agent", "cli", "evals", "integrations", "sandbox", "serving", "tools", "util")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"\b(read|write)_text\(", source := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and len(node.args) < least.get(node.func.attr, 0)
        and "encoding" not in {keyword.arg for keyword in node.keywords}
    ]
    assert found == []
