"""`m3agent sessions export`: write sessions as trajectories for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from m3agent.cli.common import All, Repo, argument, option, print_bytes, say, session_names, sessions_here
from m3agent.util.errors import UsageError

if TYPE_CHECKING:
    from m3agent.agent.session.record import SessionRecord


def export(
    sessions: Annotated[
        list[str] | None,
        argument(
            "Ids, beginnings of ids, or 'last'; sft exports all of the repository if none is named.",
            "SESSION...",
            autocompletion=session_names,
        ),
    ] = None,
    format: Annotated[  # noqa: A002  # the option's name
        Literal["atif", "sft"],
        option("atif: one session, ATIF 1.8 (JSON); sft: verified sessions, chat format (JSONL)."),
    ] = "atif",
    output: Annotated[
        str, option("--output", "-o", "Write to this file; - is standard output.", "FILE")
    ] = "-",
    repo: Repo = Path(),
    every: All = False,
) -> None:
    """Write sessions as trajectories: ATIF for viewers and benchmarks, chat-format JSONL to train on."""
    from m3agent.agent.report.write import check_target, write_page

    if output != "-":
        check_target(Path(output))
    known = sessions_here(repo, every=every, shows=True)
    if format == "sft" and not sessions:
        folders = [Path(summary.folder) for summary in known.list() if not summary.problem]
    else:
        folders = [known.find(name) for name in sessions or ()]
    if format == "atif" and len(folders) != 1:
        raise UsageError("--format atif writes one session: give one")
    if format == "atif":
        written = _atif(folders[0])
    else:
        written, left_out = _sft(folders)
        if left_out:
            say(f"left out {left_out}: not verified, or incomplete")
    if output == "-":
        print_bytes(written)
    else:
        write_page(Path(output), written)


def _atif(folder: Path) -> bytes:
    from m3agent.agent.session.token_log import read_tokens
    from m3agent.agent.trajectory.atif import to_atif

    found = to_atif(*_read(folder), read_tokens(folder))
    return json.dumps(found, indent=1, allow_nan=False).encode() + b"\n"


def _sft(folders: list[Path]) -> tuple[bytes, int]:
    """Return the lines, and the number of sessions without one."""
    import io

    from m3agent.agent.trajectory.sft import to_sft, write_jsonl

    rows = [row for folder in folders if (row := to_sft(*_read(folder))) is not None]
    out = io.BytesIO()
    count = write_jsonl(rows, out)
    return out.getvalue(), len(folders) - count


def _read(folder: Path) -> tuple[SessionRecord, list[dict[str, Any]] | None]:
    """Read a session's record, and its messages if they were kept, without changing anything on the disk."""
    from m3agent.agent.session.messages import read_messages
    from m3agent.agent.session.record import read_session

    return read_session(folder), read_messages(folder)
