"""One peer of the sandbox benchmark, in the virtual environment that it was installed into.

    python benchmarks/sandbox_peer.py mini|swerex IMAGE PYTHON_PATH [RUN_ARGUMENT ...]

It reads one order per line (`start`, `shell`, `execute`, `code`, `write`, `read`, `timeout`, `stop`) and answers each
with a line of JSON: `ms`, the time that the peer took, and after `start` the `container`; or `error`. PYTHON_PATH is a
folder that one of the arguments mounts. There the image's python3 finds the peer's packages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

TEXT = ("0123456789abcdef\n" * 241)[:4095] + "\n"
FILE = "/tmp/bench.txt"
TREE = "setsid sleep 1000 & (sleep 1000 & sleep 1000) & sleep 1000"
TIMEOUT = 1


class Mini:
    """mini-swe-agent's docker environment: `docker exec` for everything."""

    def __init__(self, image: str, python_path: str, arguments: list[str]) -> None:
        self.image, self.arguments = image, arguments
        self.environment: Any = None

    async def start(self) -> str:
        from minisweagent.environments.docker import DockerEnvironment

        arguments = ["--rm", *self.arguments]
        self.environment = DockerEnvironment(image=self.image, run_args=arguments, container_timeout="1h")
        await self.shell()
        return str(self.environment.container_id)

    async def shell(self) -> None:
        self._run("true")

    async def code(self) -> None:
        self._run("python3 -c 'print(1)'")

    async def write(self) -> None:
        self._run(f"cat > {FILE} <<'END'\n{TEXT}END\n")

    async def read(self) -> None:
        assert len(self._run(f"cat {FILE}")) == len(TEXT)

    async def timeout(self) -> None:
        done = self.environment.execute({"command": TREE}, timeout=TIMEOUT)
        assert done["returncode"] == -1, done

    async def stop(self) -> None:
        # its own cleanup starts a detached `docker stop`, which takes ten seconds
        container, self.environment.container_id = self.environment.container_id, None
        remove = await asyncio.create_subprocess_exec("docker", "rm", "-f", container, stdout=2)
        await remove.wait()

    def _run(self, command: str) -> str:
        done = self.environment.execute({"command": command})
        assert done["returncode"] == 0, done
        return str(done["output"])


class SweRex:
    """SWE-ReX: an HTTP server in the container that controls a bash through its prompt."""

    def __init__(self, image: str, python_path: str, arguments: list[str]) -> None:
        from swerex.deployment.docker import DockerDeployment

        # as if the image had the package: otherwise SWE-ReX installs it at every start
        variables = ["-e", f"PYTHONPATH={python_path}", "-e", f"PATH={python_path}/bin:/usr/bin:/bin"]
        self.deployment = DockerDeployment(
            image=image, docker_args=[*arguments, *variables], pull="never", startup_timeout=60
        )

    async def start(self) -> str:
        from swerex.runtime.abstract import CreateBashSessionRequest

        await self.deployment.start()
        self.runtime = self.deployment.runtime
        await self.runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
        await self.shell()
        return str(self.deployment.container_name)

    async def shell(self) -> None:
        from swerex.runtime.abstract import BashAction

        done = await self.runtime.run_in_session(BashAction(command="true", timeout=30))
        assert done.exit_code == 0, done

    async def execute(self) -> None:
        await self._run(["sh", "-c", "true"])

    async def code(self) -> None:
        await self._run(["python3", "-c", "print(1)"])

    async def write(self) -> None:
        from swerex.runtime.abstract import WriteFileRequest

        await self.runtime.write_file(WriteFileRequest(path=FILE, content=TEXT))

    async def read(self) -> None:
        from swerex.runtime.abstract import ReadFileRequest

        assert (await self.runtime.read_file(ReadFileRequest(path=FILE))).content == TEXT

    async def timeout(self) -> None:
        from swerex.exceptions import CommandTimeoutError
        from swerex.runtime.abstract import BashAction

        with contextlib.suppress(CommandTimeoutError):
            await self.runtime.run_in_session(BashAction(command=TREE, timeout=TIMEOUT))
            raise AssertionError("no timeout")

    async def stop(self) -> None:
        await self.deployment.stop()

    async def _run(self, argv: list[str]) -> None:
        from swerex.runtime.abstract import Command

        done = await self.runtime.execute(Command(command=argv, timeout=30))
        assert done.exit_code == 0, done


async def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # both peers print to standard output
    peer = {"mini": Mini, "swerex": SweRex}[sys.argv[1]](sys.argv[2], sys.argv[3], sys.argv[4:])
    for line in sys.stdin:
        order: Callable[[], Awaitable[Any]] = getattr(peer, line.strip())
        started = time.perf_counter()
        try:
            result = await order()
        except Exception as error:  # noqa: BLE001 - the table shows every error
            answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}) + "\n")
            continue
        took = 1000 * (time.perf_counter() - started)
        answers.write(json.dumps({"ms": took, "container": result}) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
