"""What sandboxes without an image of their own see of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from m3agent.sandbox.backends.image import DEFAULT_PATH, HOST_CONFIGURATIONS, HOST_FOLDERS, host_folders
from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits


def test_of_etc_only_named_parts_are_shown() -> None:
    shown = [Path(path) for path in host_folders() if path not in HOST_FOLDERS]
    for path in shown:
        assert any(path.match(f"/etc/{pattern}") for pattern in HOST_CONFIGURATIONS)
    for secret in (
        "/etc/shadow",
        "/etc/maven/settings.xml",
        "/etc/php/8.2/cli/php.ini",
        "/etc/ssl/private/key",
    ):
        assert not any(path == Path(secret) or path in Path(secret).parents for path in shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words"), [("javac", ["-version"]), ("mvn", ["-v"]), ("phpunit", ["--version"])]
)
async def test_toolchains_with_settings_in_etc_start(
    program: str, words: list[str], sandbox_of: Callable[..., Sandbox]
) -> None:
    if shutil.which(program, path=DEFAULT_PATH) is None:
        pytest.skip(f"this machine has no {program} under /usr")
    async with sandbox_of(limits=SandboxLimits()) as sandbox:  # Java needs much address space
        done = await sandbox.exec([program, *words])
        assert done.exit == 0, done.stdout + done.stderr
        assert (await sandbox.exec(["cat", "/etc/maven/settings.xml"])).exit != 0
