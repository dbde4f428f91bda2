"""Commands and answers that every sandbox has, on every backend: `python`, `pip`, `pytest`, `git log`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from m3agent.sandbox.backends.launchers import launcher_files
from m3agent.sandbox.backends.sandbox import BASE_MESSAGE, Sandbox

SandboxOf = Callable[..., Sandbox]


def test_commands_that_the_image_has_are_not_supplied() -> None:
    assert [path for path, *_ in launcher_files(["python"])] == [
        "bin/pytest",
        "bin/pip",
        "bin/pip3",
        "bash_start",
    ]


@pytest.mark.slow
async def test_commands_are_those_of_python3(sandbox_of: SandboxOf) -> None:
    files: dict[str, str | bytes] = {"tests/test_a.py": "import sys\ndef test_a(): print(sys.executable)\n"}
    async with sandbox_of(files) as sandbox:

        async def shell(line: str) -> tuple[int, str]:
            done = await sandbox.exec(["sh", "-c", line], env=sandbox.typed_env)
            return done.exit, (done.stdout + done.stderr).decode()

        where = "-c 'import sys; print(sys.executable, sys.version.split()[0])'"
        own = await shell(f"python3 {where}")
        assert own[1].split()[1] == sandbox.python
        assert await shell(f"python {where}") == own
        code, text = await shell("pytest -q -s tests")
        assert (code, "1 passed" in text, own[1].split()[0] in text) == (0, True, True), text
        code, text = await shell("python -m pytest -q tests")
        assert (code, "1 passed" in text) == (0, True), text
        assert (await sandbox.exec(["python", "-c", "import sys; sys.exit(7)"])).exit == 7

        for name in ("python", "pytest", "pip"):
            assert (await sandbox.exec([name, "--version"])).exit == 0, (
                "the tests of a repository find it as well"
            )

        code, text = await shell("pip install no-such-package pytest")
        assert (code, "no network" in text, "Not installed: no-such-package\n" in text) == (1, True, True), (
            text
        )
        assert "pytest 8" in text or "pytest 9" in text
        code, text = await shell("pip3 list")
        assert (code, "pytest" in text) == (0, True), text

        code, text = await shell("git log --stat")
        assert all(line in text for line in BASE_MESSAGE)
        assert (code, "test_a.py" in text) == (0, False), text


async def test_a_program_cannot_replace_what_m3agent_runs(sandbox_of: SandboxOf) -> None:
    forge = "for name in python3 sh; do printf '#!/bin/sh\\necho forged\\n' > $name; chmod +x $name; done"
    async with sandbox_of() as sandbox:
        assert (await sandbox.exec(["sh", "-c", f"cd /opt/m3agent/bin && {forge}"])).exit == 0
        assert (await sandbox.exec(["python3", "-c", "print('own')"])).stdout == b"own\n"
        assert (await sandbox.exec(["sh", "-c", "echo own"])).stdout == b"own\n"
