"""Test the texts of an editor's cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from m3agent.agent.acp.updates import MOST_IN_LINE, Updates


def test_a_card_has_the_words_of_the_screen_and_no_data_for_programs(tmp_path: Path) -> None:
    told: list[Any] = []
    updates = Updates(tmp_path, tmp_path / "session", told.append)
    call = {"call": 1, "name": "code_exec", "tree": "t"}
    packed = "eNq1WEtv4zYQ" * 500
    code = f"import os\n# measure the lines\nDATA = '{packed}'"
    updates.see({"type": "call.started", **call, "arguments": {"code": code, "timeout": 60}})
    content = f"exit code: 0\nstdout:\nM3-REPAIR {packed}\n{'long line ' * 100}\nend"
    updates.see({"type": "call.finished", **call, "status": "done", "is_error": False, "content": content})
    assert told[0].title == "run measure the lines"
    assert told[0].raw_input == {
        "code": "import os\n# measure the lines\nDATA = '(6,000 characters of data)'",
        "timeout": 60,
    }
    shown = told[1].content[0].content.text.splitlines()
    assert shown[:3] == ["exit code: 0", "stdout:", "M3-REPAIR (6,000 characters of data)"]
    assert shown[3] == f"{('long line ' * 100)[:MOST_IN_LINE]}… ({1000 - MOST_IN_LINE:,} characters more)"
    assert shown[4:] == ["end"]
