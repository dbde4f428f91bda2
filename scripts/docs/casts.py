"""Record m3agent on a terminal: real runs, as asciinema casts and as pictures (SVG) for README and documentation.

    python -m scripts.docs.casts [NAME...] [--columns 80] [--output docs/casts]

Each recording is one cast (asciicast v2) and one picture of its last screen, or of a screen while it ran. The recording
`report` is one picture (PNG) of the page that it writes, for which Chromium must be on PATH. Paths of this machine are
replaced by others of the same length, so that the layout stays as it was.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import fcntl
import html
import json
import os
import re
import secrets
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyte

from scripts.docs.browser import photograph

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "casts"
SHOWN = "/home/ada/project"
"""Stands for the folder of the recording, whose path is as long."""
PROJECT = "ferry"
"""The folder in it in which the commands run."""
ROWS = 40  # of the terminal
TALLEST = 400  # rows of a picture, before blank ones are left out
SPINNING = re.compile("[\u2801-\u28ff]")
LONGEST = 900.0  # seconds of one command
PAUSE = 2.0  # most seconds between two events of a cast
PAGE = (1100, 2400)  # the pixels of a page that its picture shows

UNTESTED = {
    "shop.py": "def total(prices):\n    return sum(prices)\n",
    "test_shop.py": "from shop import total\n\n\ndef test_total():\n    assert total([1, 2], discount=0.5) == 1.5\n",
    "ISSUE.md": "total() should take a discount\n\ntotal([1, 2], discount=0.5) should be 1.5.\n",
}
"""A feature is missing. The engine `embedded` only mends small faults, so it cannot write it."""
BENCHMARK = {
    "rows/programs/adder/adder.py": "def add(a, b):\n    return a - b\n",
    "rows/programs/adder/test_adder.py": "from adder import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
    "rows/programs/adder/ISSUE.md": "add(2, 3) should be 5.\n",
    "rows/gold/adder.py": "def add(a, b):\n    return a + b\n",
    "rows/programs/shop/shop.py": UNTESTED["shop.py"],
    "rows/programs/shop/test_shop.py": UNTESTED["test_shop.py"],
    "rows/programs/shop/ISSUE.md": UNTESTED["ISSUE.md"],
    "rows/gold/shop.py": "def total(prices, discount=0):\n    return sum(prices) * (1 - discount)\n",
    "rows/programs/largest/largest.py": (
        "def largest(values):\n    best = values[0]\n    for value in values:\n"
        "        if value < best:\n            best = value\n    return best\n"
    ),
    "rows/programs/largest/test_largest.py": (
        "from largest import largest\n\n\ndef test_largest():\n    assert largest([1, 3, 2]) == 3\n"
    ),
    "rows/programs/largest/ISSUE.md": "largest([1, 3, 2]) should be 3.\n",
    "rows/gold/largest.py": "def largest(values):\n    return max(values)\n",
}
"""A benchmark with three instances; one of them needs a feature."""


@dataclass(frozen=True)
class Recording:
    """A recording.

    Attributes:
        commands: What is typed.
        prepare: Fills the folder in which the commands run.
        interrupt: The text after which Ctrl-C is pressed, in the first command.
        running: Whether the picture shows the last moment at which a command runs; otherwise it shows the end.
        page: The page that the commands write. If there is one, the picture shows it instead of the terminal.
    """

    commands: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda _: None
    interrupt: str = ""
    running: bool = False
    page: str = ""


def repository(files: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return a function that makes a git repository with these files."""

    def prepare(folder: Path) -> None:
        files(folder)
        git = ["git", "-C", str(folder), "-c", "user.name=Ada", "-c", "user.email=ada@example.invalid"]
        for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "first"]):
            subprocess.run([*git, *words], check=True)

    return prepare


def ferry(folder: Path) -> None:
    """Copy the example package with a bug."""
    shutil.copytree(ROOT / "examples" / "ferry", folder, dirs_exist_ok=True)


def written(files: dict[str, str]) -> Callable[[Path], None]:
    """Return a function that writes files."""

    def write(folder: Path) -> None:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


FIX = "m3agent fix ISSUE.md --engine embedded"
RECORDINGS = {
    "fix": Recording((FIX,), repository(ferry)),
    "failed": Recording((f"{FIX} --candidates 200",), repository(written(UNTESTED))),
    "attempts": Recording((f"{FIX} --attempts 2",), repository(ferry), running=True),
    "resume": Recording(
        (FIX, "m3agent sessions resume last", "m3agent apply"), repository(ferry), interrupt="find the lines"
    ),
    "plan": Recording(("m3agent plan --gpus 8xH200",)),
    "team": Recording(("m3agent plan --agents 10 --gpus 8xH200 --repository-tokens 700000",)),
    "serve": Recording(("m3agent serve --gpus 8xH200 --dry-run",)),
    "eval": Recording(("m3agent eval run rows -o run --engine embedded",), written(BENCHMARK)),
    "report": Recording((FIX, "m3agent report last -o report.html"), repository(ferry), page="report.html"),
}

Event = tuple[float, bytes]
"""When a piece of output arrived, in seconds from the beginning, and the piece."""


def record(recording: Recording, columns: int) -> str:
    """Run the commands on a terminal and return the cast."""
    with _ground() as base:
        return _recorded(recording, columns, base)


def write_page(recording: Recording, columns: int) -> str:
    """Run the commands on a terminal and return the page that they wrote."""
    with _ground() as base:
        _recorded(recording, columns, base)
        return (base / PROJECT / recording.page).read_text().replace(str(base), SHOWN)


@contextlib.contextmanager
def _ground() -> Iterator[Path]:
    """Make a folder whose path is as long as `SHOWN`, and remove it afterwards."""
    missing = len(SHOWN) - len(tempfile.gettempdir()) - 1
    base = Path(tempfile.gettempdir()) / secrets.token_hex(missing)[:missing]
    (base / PROJECT).mkdir(parents=True)
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _recorded(recording: Recording, columns: int, base: Path) -> str:
    folder = base / PROJECT
    recording.prepare(folder)
    events: list[Event] = []
    begun = time.monotonic()
    for number, command in enumerate(recording.commands):
        events.append((time.monotonic() - begun, f"\x1b[1m$ {command}\x1b[0m\r\n".encode()))
        keys = recording.interrupt if number == 0 else ""
        for piece in _run(command, folder, base, columns, keys):
            events.append((time.monotonic() - begun, piece))
        events.append((time.monotonic() - begun, b"\r\n"))
    return _cast(_replaced(events, str(base).encode()), columns, recording.commands[0])


def _run(command: str, folder: Path, base: Path, columns: int, interrupt: str) -> Iterator[bytes]:
    leader, follower = os.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    drop = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    env = {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in drop and not name.startswith("M3AGENT_")
        },
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        "HOME": str(base / "home"),
        "M3AGENT_STATE": str(base / "state"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    process = subprocess.Popen(
        ["setsid", "--ctty", "env", "--default-signal=INT", *shlex.split(command)],
        cwd=folder,
        env=env,
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    seen, deadline = b"", time.monotonic() + LONGEST
    try:
        while time.monotonic() < deadline:
            if not select.select([leader], [], [], 0.1)[0]:
                if process.poll() is not None:
                    return
                continue
            with contextlib.suppress(OSError):  # Linux reports an error once the other side is closed
                piece = os.read(leader, 65536)
                yield piece
                seen += piece
                if interrupt and interrupt.encode() in seen:
                    interrupt = ""
                    os.write(leader, b"\x03")
                continue
            return
        raise SystemExit(f"{command} did not end within {LONGEST:.0f} s")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()
        os.close(leader)


def _replaced(events: Sequence[Event], base: bytes) -> list[Event]:
    """Return the events with the folder's path replaced. Both paths are equally long, so no event changes its length."""
    whole = b"".join(piece for _, piece in events).replace(base, SHOWN.encode())
    found, at = [], 0
    for moment, piece in events:
        found.append((moment, whole[at : at + len(piece)]))
        at += len(piece)
    return found


def _cast(events: Sequence[Event], columns: int, title: str) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    header = {"version": 2, "width": columns, "height": ROWS, "title": title}
    lines, last, shown_at = [json.dumps(header)], 0.0, 0.0
    for moment, piece in events:
        shown_at += min(PAUSE, moment - last)
        last = moment
        if text := decoder.decode(piece):
            lines.append(json.dumps([round(shown_at, 3), "o", text], ensure_ascii=False))
    return "\n".join(lines) + "\n"


# -- pictures ----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, MARGIN = 8.4, 18, 14  # of a cell and around all cells, in pixels; the font is 14 pixels high
FOREGROUND, BACKGROUND = "#d7dae0", "#16191f"
_WORDS = re.compile("[^ ]+(?: [^ ]+)*")
COLOURS = {
    "red": "#f47067",
    "green": "#6bc46d",
    "brown": "#daaa3f",
    "blue": "#6cb6ff",
    "magenta": "#dcbdfb",
    "cyan": "#56d4dd",
    "white": FOREGROUND,
    "black": "#545d68",
}


def picture(cast: str, *, running: bool = False) -> str:
    """Return a screen of a cast as an SVG.

    Args:
        cast: The cast.
        running: Whether to take the last screen that has the rows of running attempts; otherwise the last one.
    """
    header, *events = (json.loads(line) for line in cast.splitlines())
    screen = pyte.Screen(header["width"], TALLEST)
    stream = pyte.Stream(screen)
    chosen: list[list[Any]] = []
    for _, _, text in events:
        stream.feed(text)
        if running and SPINNING.search(text) and any(SPINNING.search(line) for line in screen.display):
            chosen = _cells(screen)
    rows = chosen or _cells(screen)
    width, height = header["width"] * WIDTH + 2 * MARGIN, len(rows) * HEIGHT + 2 * MARGIN
    font = "ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{html.escape(header["title"])}">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        f'<g font-family="{font}" font-size="14" fill="{FOREGROUND}">',
    ]
    for number, row in enumerate(rows):
        lines += _texts(row, MARGIN + number * HEIGHT + 13)
    return "\n".join([*lines, "</g>", "</svg>"]) + "\n"


def _cells(screen: pyte.Screen) -> list[list[Any]]:
    """Return the rows of a screen down to the last one that is not blank."""
    rows = [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]
    used = max((y for y, row in enumerate(rows) if any(cell.data.strip() for cell in row)), default=0)
    return rows[: used + 1]


def _texts(row: Sequence[Any], baseline: float) -> Iterator[str]:
    """Yield the texts of a row: its runs of cells that look the same, without runs of spaces.

    Each text has its exact place, whatever the font is. A browser would collapse a run of spaces.
    """
    start = 0
    while start < len(row):
        end = start
        while end < len(row) and _style(row[end]) == _style(row[start]):
            end += 1
        for words in _WORDS.finditer("".join(cell.data for cell in row[start:end])):
            x, width = MARGIN + (start + words.start()) * WIDTH, len(words[0]) * WIDTH
            yield (
                f'<text x="{x:.1f}" y="{baseline:.0f}" textLength="{width:.1f}"{_style(row[start])}>'
                f"{html.escape(words[0])}</text>"
            )
        start = end


def _style(cell: Any) -> str:
    colour = COLOURS.get(cell.fg)
    parts = [f' fill="{colour}"' if colour else "", ' font-weight="bold"' if cell.bold else ""]
    return "".join([*parts, ' font-style="italic"' if cell.italics else ""])


def main() -> None:
    """Record what the command line names; without names, everything."""
    parser = argparse.ArgumentParser(description="Record m3agent on a terminal.")
    parser.add_argument("names", nargs="*", choices=[*RECORDINGS, []], metavar="NAME")
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("--output", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or RECORDINGS:
        recording, target = RECORDINGS[name], arguments.output / name
        if recording.page:
            with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
                page.write(write_page(recording, arguments.columns))
                page.flush()
                photograph(Path(page.name), target.with_suffix(".png"), *PAGE)
            continue
        cast = record(recording, arguments.columns)
        target.with_suffix(".cast").write_text(cast)
        target.with_suffix(".svg").write_text(picture(cast, running=recording.running))


if __name__ == "__main__":
    main()
