"""Test the recordings of the documentation: their recorder, and that the pictures come from the recordings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.docs.casts import FOLDER, RECORDINGS, SHOWN, Recording, picture, record

CASTS = sorted(FOLDER.glob("*.cast"))


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
