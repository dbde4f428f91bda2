"""Test the texts of an editor's cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from m3agent.agent.acp.updates import MOST_IN_LINE, Updates


def test_a_card_has_the_words_of_the_screen_and_no_data_for_programs(tmp_path: Path) -> None:
    told: list[Any] = []
    updates = Updates(tmp_path, tmp_path / "session", told.append)
    call = {"call": 1, "name": "code_exec", "tree": "t"}
    updates.see(
        {"type": "call.started", **call, "arguments": {"code": "import os\n# measure the lines\nprint(1)"}}
    )
    packed = "eNq1WEtv4zYQ" * 500
    content = f"exit code: 0\nstdout:\nM3-REPAIR {packed}\nend"
    updates.see({"type": "call.finished", **call, "status": "done", "is_error": False, "content": content})
    assert told[0].title == "run measure the lines"
    shown = told[1].content[0].content.text
    assert shown.startswith("exit code: 0\nstdout:\nM3-REPAIR eNq1")
    assert shown.endswith(f"… ({len('M3-REPAIR ' + packed) - MOST_IN_LINE:,} characters more)\nend")
    assert max(map(len, shown.splitlines())) < MOST_IN_LINE + 40
