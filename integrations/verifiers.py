"""m3agent as a harness of Verifiers, and its benchmarks as a taskset (written for Verifiers 0.4).

    vf-eval m3agent-verifiers --no-push --env.taskset.source ROWS --env.agent.runtime.type docker \
        --env.agent.harness.id m3agent-verifiers --env.agent.harness.bundle dist/m3agent-0.1.0-linux-x86_64.pyz

The harness works with other tasksets, too.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.configs.task import TaskConfig
from verifiers.v1.configs.taskset import TasksetConfig
from verifiers.v1.errors import MODEL_TRANSPORT_ERROR_EXIT_CODE, SandboxError
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult, Runtime
from verifiers.v1.state import State
from verifiers.v1.task import Task, TaskData
from verifiers.v1.taskset import Taskset
from verifiers.v1.trace import Trace
from verifiers.v1.utils.decorators import reward

from m3agent.integrations import in_container
from m3agent.integrations.benchmark import benchmark, pack_command
from m3agent.util.errors import EnvironmentFault, ServerFault

LEFT, CODE = "/tmp/m3agent-left.tar.gz", "/tmp/m3agent-code.tar.gz"  # noqa: S108  # in a container of one task
FOLDER = "/testbed"
"""The work tree in the container: benchmarks' own images have their code there."""


class M3AgentConfig(HarnessConfig):
    """Options of the harness, under `--env.agent.harness.*`."""

    bundle: str | None = None
    """File of `make bundle` to install from (default: $M3AGENT_BUNDLE). Without one, the image must have m3agent."""
    training: bool = True
    """Make the conversation fit for training a model: one branch that only grows (docs/fix.md)."""


class M3AgentHarness(Harness[M3AgentConfig]):
    """Run `m3agent fix` in the task's container, with the task's prompt as the issue."""

    async def setup(self, runtime: Runtime) -> None:
        """Install m3agent.

        Raises:
            RuntimeError: It cannot be installed, or there is no bundle and the image has none.
        """
        bundle = in_container.find_bundle(self.config.bundle)
        command = in_container.PRESENT
        if bundle is not None:
            await runtime.write(in_container.BUNDLE, await asyncio.to_thread(bundle.read_bytes))
            command = in_container.INSTALL
        done = await runtime.run(["sh", "-c", command], {})
        if done.exit_code != 0:
            raise RuntimeError(
                f"{done.stderr.strip()[-500:]} {in_container.MISSING if bundle is None else ''}".strip()
            )

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:
        """Run the fix to its end.

        Raises:
            SandboxError: The container cannot run m3agent: the sample says nothing about the model.
        """
        _, prompt = self.resolve_text_prompt(data)
        folder = f"/tmp/m3agent-{trace.id}"  # noqa: S108  # in a container of one task
        await runtime.write(f"{folder}/issue.md", (prompt or "").encode())
        command = in_container.fix_command(f"{folder}/issue.md", training=self.config.training)
        env = in_container.fix_environment(endpoint, secret, ctx.model, f"{folder}/state")
        done = await runtime.run_program(["sh", "-c", command], {**self.config.resolved_env, **env})
        if done.exit_code == ServerFault.exit_code:
            return replace(done, exit_code=MODEL_TRANSPORT_ERROR_EXIT_CODE)
        if done.exit_code == EnvironmentFault.exit_code:
            raise SandboxError(f"m3agent cannot work in this container: {done.stderr.strip()[-2000:]}")
        return done


class InstanceData(TaskData):
    """An instance of a benchmark. `id` is that of the instance."""

    source: str
    """The benchmark as `m3agent eval run` takes it."""


class InstanceTask(Task[InstanceData, State, TaskConfig]):
    """Resolve an instance; the reward is that of m3agent's strict grader, in a fresh sandbox on this machine."""

    NEEDS_CONTAINER = True

    async def setup(self, trace: Trace, runtime: Runtime) -> None:
        """Put the code into the container."""
        await runtime.write(CODE, await benchmark(self.data.source).code(self.data.id or ""))
        await _shell(runtime, f"mkdir -p {FOLDER} && tar -xzf {CODE} -C {FOLDER} && rm {CODE}")

    @reward
    async def resolved(self, trace: Trace, runtime: Runtime) -> float:
        """Return 1 for a resolved instance and 0 for another.

        Raises:
            SandboxError: The machine or the instance is at fault, so there is no reward.
        """
        await _shell(runtime, pack_command(LEFT, FOLDER))
        given = await benchmark(self.data.source).reward(self.data.id or "", await runtime.read(LEFT))
        if given.value is None:
            raise SandboxError(f"{self.data.id} cannot be graded: {given.grade.reason}")
        trace.info["m3agent"] = given.grade.model_dump(mode="json")
        return given.value


class BenchmarkConfig(TasksetConfig):
    """Options of the taskset, under `--env.taskset.*`."""

    source: str = ""
    """A benchmark as `m3agent eval run` takes it: a file of rows, or a folder. Verifiers wants a default; it is refused."""


class BenchmarkTaskset(Taskset[InstanceTask, BenchmarkConfig]):
    """The instances of a benchmark of any format that m3agent reads."""

    def load(self) -> Iterable[InstanceTask]:
        """Yield the instances. An image that is not here is built when its instance is reached.

        Raises:
            ValueError: No benchmark is named.
            DataError: The data cannot be used; the message names file, row and field.
        """
        source = self.config.source
        if not source:
            raise ValueError("m3agent-verifiers needs a benchmark: give --env.taskset.source ROWS.")
        found = benchmark(source)
        for ident, instance in found.instances.items():
            image = found.image_now(ident)
            data = InstanceData(
                id=ident, prompt=instance.task.statement, image=image, workdir=FOLDER, source=source
            )
            yield InstanceTask(data, self.config.task)


async def _shell(runtime: Runtime, command: str) -> None:
    done = await runtime.run(["sh", "-c", command], {})
    if done.exit_code != 0:
        raise SandboxError(f"{command}: {done.stderr.strip()[-500:]}")


__all__ = ["BenchmarkTaskset", "M3AgentHarness"]
