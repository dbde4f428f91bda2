"""Test the recordings of the documentation: their recorder, and that the pictures come from the recordings."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import pyte
import pytest

from scripts.docs import browser
from scripts.docs.casts import (
    FOLDER,
    HEIGHT,
    MARGIN,
    RECORDINGS,
    SHOWN,
    WIDTH,
    Recording,
    picture,
    record,
    write_page,
)

CASTS = sorted(FOLDER.glob("*.cast"))
COLUMNS = """
  const seen = [];
  for (const text of page.document.querySelectorAll("text")) {
    const matrix = text.getScreenCTM(), range = page.document.createRange();
    [...text.firstChild.data].forEach((letter, index) => {
      range.setStart(text.firstChild, index);
      range.setEnd(text.firstChild, index + 1);
      const left = (range.getBoundingClientRect().left - matrix.e) / matrix.a;
      seen.push([Number(text.getAttribute("y")), left, letter]);
    });
  }
  return JSON.stringify(seen);
"""
"""Returns each letter of a picture with its row and its left edge, in JavaScript."""


def drawn(svg: Path) -> list[str]:
    """Return the lines that Chromium shows of a picture. Each letter is in the column at whose place it is drawn."""
    rows: dict[int, dict[int, str]] = {}
    for y, left, letter in json.loads(browser.evaluate(svg, COLUMNS)):
        if letter != " ":
            column = round((left - MARGIN) / WIDTH)
            rows.setdefault((y - MARGIN) // HEIGHT, {})[column] = letter
    return [
        "".join(rows.get(y, {}).get(x, " ") for x in range(max(rows.get(y, {0: ""})) + 1)).rstrip()
        for y in range(max(rows) + 1)
    ]


def last_screen(cast: str) -> list[str]:
    """Return the lines of a recording's last screen."""
    header, *events = (json.loads(line) for line in cast.splitlines())
    screen = pyte.Screen(header["width"], 400)
    pyte.Stream(screen).feed("".join(text for _, _, text in events))
    return "\n".join(line.rstrip() for line in screen.display).rstrip().split("\n")


@pytest.mark.slow  # quick: the tests of what is recorded, above
@pytest.mark.usefixtures("chromium")
@pytest.mark.integration
def test_a_browser_shows_every_letter_in_its_column(tmp_path: Path) -> None:
    shown = (
        "  36            return False\r\n   37 \x1b[31m-        return <a>  & b\x1b[0m   end\r\n\r\n"
        f"\x1b[1mbold      and wide  \x1b[0m\x1b[3m  italic    ✓ é\x1b[0m\r\n{'m' * 40}"
    )
    header = {"version": 2, "width": 40, "height": 40, "title": "columns"}
    cast = "\n".join(map(json.dumps, [header, [0.0, "o", shown]]))
    svg = tmp_path / "columns.svg"
    svg.write_text(picture(cast))
    assert drawn(svg) == last_screen(cast)
    assert drawn(svg)[1] == "   37 -        return <a>  & b   end"


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")
@pytest.mark.integration
@pytest.mark.parametrize(
    "path", [path for path in CASTS if not RECORDINGS[path.stem].running], ids=lambda path: path.stem
)
def test_a_browser_shows_a_picture_as_it_was_recorded(path: Path) -> None:
    assert drawn(path.with_suffix(".svg")) == last_screen(path.read_text())


@pytest.mark.slow  # reading a long recording takes seconds
@pytest.mark.parametrize("path", CASTS, ids=lambda path: path.stem)
def test_a_picture_shows_its_recording(path: Path) -> None:
    cast = path.read_text()
    header, *events = (json.loads(line) for line in cast.splitlines())
    assert (header["version"], header["width"]) == (2, 80)
    times = [moment for moment, _, _ in events]
    assert times == sorted(times)
    assert not re.search(r"/(tmp|root|work)/", cast), "a path of the machine that recorded it"
    svg = path.with_suffix(".svg").read_text()
    assert svg == picture(cast, running=RECORDINGS[path.stem].running), "run python -m scripts.docs.casts"
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_there_are_recordings() -> None:
    assert {path.stem for path in CASTS} <= RECORDINGS.keys()
    assert {"fix", "failed", "attempts", "resume"} <= {path.stem for path in CASTS}


@pytest.mark.integration
def test_the_recorder_runs_commands_on_a_terminal() -> None:
    shell = r"""sh -c 'printf "\033[31mred\033[0m <&> "; tput cols; pwd; read -r line || true; sleep 60'"""
    cast = record(Recording((shell, "echo second"), interrupt="/ferry"), columns=70)
    header, *events = (json.loads(line) for line in cast.splitlines())
    assert header == {"version": 2, "width": 70, "height": 40, "title": shell}
    said = "".join(text for _, _, text in events)
    assert "\x1b[31mred\x1b[0m <&> 70\r\n" in said
    assert f"{SHOWN}/ferry\r\n" in said
    assert said.endswith("$ echo second\x1b[0m\r\nsecond\r\n\r\n")
    texts = ElementTree.fromstring(picture(cast)).iter("{http://www.w3.org/2000/svg}text")
    shown = {text.text: text.get("fill") for text in texts}
    assert shown["red"] == "#f47067"
    assert "second" in shown
    assert f"{SHOWN}/ferry" in shown


@pytest.mark.integration
def test_the_recorder_reads_a_page_that_the_commands_write() -> None:
    page = write_page(Recording(("sh -c 'pwd > page.html'",), page="page.html"), columns=80)
    assert page == f"{SHOWN}/ferry\n"


@pytest.mark.slow  # quick: the tests of what is recorded, above
@pytest.mark.usefixtures("chromium")
@pytest.mark.integration
def test_a_photograph_is_as_wide_as_a_phone(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text("<!doctype html><p>text</p>")
    assert browser.evaluate(page, "return page.innerWidth", width=390) == "390"
    browser.photograph(page, picture, 390, 700)
    assert struct.unpack(">II", picture.read_bytes()[16:24]) == (390, 700)
