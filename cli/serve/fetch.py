"""`m3agent serve fetch`: download a checkpoint, or continue that, and check every file of it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from m3agent.cli.common import AsJson, argument, option, print_json, run, say
from m3agent.cli.serve.app import serve_app
from m3agent.util.as_typed import as_typed
from m3agent.util.errors import EnvironmentFault, UsageError
from m3agent.util.sanitize import print_text

if TYPE_CHECKING:
    from m3agent.serving.launch.hub import Snapshot


@serve_app.command()
def fetch(
    model: Annotated[
        str | None, argument("A name on Hugging Face.", "[NAME]", show_default="what serve would take here")
    ] = None,
    revision: Annotated[
        str | None, option("A branch, a tag or a commit.", "REVISION", show_default="main")
    ] = None,
    to: Annotated[
        Path | None, option("Folder for the files.", "FOLDER", show_default="Hugging Face's cache")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a checkpoint from Hugging Face, and check every file; after an interruption, continue.

    Then `serve` needs no network. HF_ENDPOINT names a mirror, HF_HOME the folder of the cache, HF_TOKEN your token. Exit codes:
    2 no such model or revision; 3 no space; 4 the hub fails, or a checksum is wrong.
    """
    run(_fetch(model or _default(), revision, to, as_json=as_json))


def _default() -> str:
    """Return the checkpoint that `serve` would take on this machine; the original one if it has no GPU for it."""
    from m3agent.cli.serve.options import ServeRequest, choose
    from m3agent.serving.plan.recipe import BF16

    try:
        return choose(ServeRequest(), os.environ, key=None, local=False).prepared.job.model
    except (EnvironmentFault, UsageError):
        return BF16


async def _fetch(model: str, revision: str | None, to: Path | None, *, as_json: bool) -> None:
    import asyncio

    from m3agent.agent.ui.serve_display import FetchView
    from m3agent.serving.launch import hub
    from m3agent.serving.launch.checkpoint import check_name
    from m3agent.util.daemon_thread import in_background

    try:
        check_name(model)
        snapshot = await in_background(lambda: hub.look_up(model, revision, to))
        hub.remove_unfinished(snapshot)
        missing = sum(file.size for file in snapshot.missing())
        _announce(snapshot, missing, hub.check_room(snapshot, missing))
        with FetchView() as view:
            if missing:
                told = view.stage("downloading", missing)
                await in_background(lambda: hub.download(snapshot, told))
            told = view.stage("checking", snapshot.size)
            await in_background(lambda: hub.check_files(snapshot, told))
        hub.keep_revision(snapshot)
    except asyncio.CancelledError:
        say("interrupted: what is whole stays, and the same command continues")
        raise
    _report(snapshot, missing, as_json=as_json)


def _announce(snapshot: Snapshot, missing: int, free: int) -> None:
    from m3agent.agent.report.text import size

    say(
        f"{snapshot.name} at commit {snapshot.commit} ({snapshot.revision}): {len(snapshot.files)} files, {size(snapshot.size)}, of "
        f"which {size(missing)} are missing in {snapshot.folder}, where {size(free)} are free"
    )


def _report(snapshot: Snapshot, missing: int, *, as_json: bool) -> None:
    from m3agent.serving.plan.draft import known_draft

    if as_json:
        told = {
            "model": snapshot.name,
            "revision": snapshot.revision,
            "commit": snapshot.commit,
            "folder": str(snapshot.folder),
            "files": len(snapshot.files),
            "bytes": snapshot.size,
            "downloaded": missing,
        }
        print_json(told)
        return
    print_text(str(snapshot.folder))
    flag = "--model" if known_draft(snapshot.name) is None else "--draft-model"
    command = as_typed(f"m3agent serve {flag} {shlex.quote(str(snapshot.folder))}")
    say(f"all {len(snapshot.files)} files have the hub's checksums; next: {command}")
