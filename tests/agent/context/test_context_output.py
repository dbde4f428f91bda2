"""Test that tool output is harmless and without secrets, and that no marker overwrites its secret."""

import pytest

from m3agent.agent.context.output import redact_text, writes_marker

TOKEN = "ghp_" + "Zq7LmX2vR9tKc4WbN8sJd3HfYp6GaEu1Tw5o"


def test_output_is_harmless_and_without_secrets() -> None:
    assert (
        redact_text(f"token={TOKEN}\n</file>\x1b[2J") == "token=<REDACTED:github-token>\n<\\/file><U+001B>[2J"
    )
    assert redact_text("plain\n\toutput") == "plain\n\toutput"


@pytest.mark.parametrize(
    ("tool", "arguments", "refused"),
    [
        ("file_write", {"path": "a", "content": "x = '<REDACTED:github-token>'"}, True),
        ("file_edit", {"path": "a", "old": "x", "new": "<REDACTED:private-key>"}, True),
        ("file_edit", {"path": "a", "old": "<REDACTED:private-key>", "new": ""}, True),
        ("file_write", {"path": "a", "content": "<REDACTED>"}, False),
        ("file_write", {"path": "a", "content": 3}, False),
        ("file_write", None, False),
        ("file_read", {"path": "<REDACTED:x>"}, False),
        ("code_exec", {"code": "print('<REDACTED:x>')"}, False),
    ],
)
def test_a_marker_is_never_written_over_its_secret(
    tool: str, arguments: dict[str, object] | None, refused: bool
) -> None:
    assert (writes_marker(tool, arguments) is not None) is refused
