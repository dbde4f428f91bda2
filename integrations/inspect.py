"""m3agent as an agent of Inspect, and its benchmarks as a task (written for Inspect 0.3.285).

    inspect eval m3agent/resolve -T source=ROWS -T bundle=dist/m3agent-0.1.0-linux-x86_64.pyz --model openai-api/NAME/MODEL

The agent works with other tasks, too: `m3agent(cwd="/testbed")` is a solver.

Inspect's bridge does not pass reasoning on, so M3 loses its thoughts between turns: compare scores from here only with
each other. Inspect's configuration decides about sampling parameters, not m3agent.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.agent import Agent, AgentState, agent, sandbox_agent_bridge
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import (
    ComposeConfig,
    ComposeService,
    ExecRemoteAwaitableOptions,
    SandboxEnvironmentSpec,
    sandbox,
)

from m3agent.integrations import in_container
from m3agent.integrations.benchmark import benchmark, pack_command

CODE = "m3agent-code.tar.gz"


@agent
def m3agent(bundle: str | None = None, cwd: str | None = None, *, training: bool = False) -> Agent:
    """Run `m3agent fix` in the sandbox, with the last message of the user as the issue.

    Args:
        bundle: File of `make bundle` to install from (default: $M3AGENT_BUNDLE). Without one, the sandbox must have
            m3agent.
        cwd: The repository's folder in the sandbox; None for the sandbox's own.
        training: Make the conversation fit for training a model (docs/fix.md).
    """

    async def execute(state: AgentState) -> AgentState:
        box = sandbox()
        await _install(in_container.find_bundle(bundle))
        where = (await _shell("mktemp -d")).strip()
        async with sandbox_agent_bridge(state) as bridge:
            await box.write_file(f"{where}/issue.md", state.messages[-1].text)
            endpoint = f"http://localhost:{bridge.port}/v1"
            env = in_container.fix_environment(endpoint, None, "inspect", f"{where}/state")
            command = in_container.fix_command(f"{where}/issue.md", training=training)
            options = ExecRemoteAwaitableOptions(cwd=cwd, env=env)
            done = await box.exec_remote(["sh", "-c", command], options, stream=False)
        if not done.success:
            raise RuntimeError(
                f"m3agent ended with exit code {done.returncode}: {done.stderr.strip()[-2000:]}"
            )
        return bridge.state

    return execute


@task
def resolve(source: str, bundle: str | None = None, sandbox_type: str = "docker") -> Task:
    """Resolve the instances of a benchmark.

    Args:
        source: A benchmark as `m3agent eval run` takes it: a file of rows, or a folder.
        bundle: See `m3agent`.
        sandbox_type: `docker`, or `local` for this machine, which must be a container then.
    """
    found = benchmark(source)
    samples = [
        Sample(
            input=instance.task.statement,
            id=ident,
            sandbox=sandbox_type
            if sandbox_type == "local"
            else _container(sandbox_type, found.image_now(ident)),
        )
        for ident, instance in found.instances.items()
    ]
    return Task(
        dataset=MemoryDataset(samples),
        setup=code(source),
        solver=m3agent(bundle),
        scorer=strict_grader(source),
        sandbox="local" if sandbox_type == "local" else None,
    )


def _container(kind: str, image: str) -> SandboxEnvironmentSpec:
    service = ComposeService(image=image, command="tail -f /dev/null", init=True, x_local=True)
    return SandboxEnvironmentSpec(kind, ComposeConfig(services={"default": service}))


@solver
def code(source: str) -> Solver:
    """Put an instance's code into the sandbox's work folder.

    Args:
        source: The benchmark.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().write_file(CODE, await benchmark(source).code(str(state.sample_id)))
        await _shell(f"tar -xzf {CODE} && rm {CODE}")
        return state

    return solve


@scorer(metrics=[accuracy(), stderr()])
def strict_grader(source: str) -> Scorer:
    """Grade the work folder under m3agent's own rules, in a fresh sandbox on this machine.

    Args:
        source: The benchmark.
    """

    async def score(state: TaskState, target: Target) -> Score:
        left = (await _shell("mktemp")).strip()
        await _shell(pack_command(left, "."))
        given = await benchmark(source).reward(
            str(state.sample_id), await sandbox().read_file(left, text=False)
        )
        if given.value is None:  # an error of the sample, which is not counted
            raise RuntimeError(f"{state.sample_id} cannot be graded: {given.grade.reason}")
        return Score(
            value=given.value, explanation=given.grade.reason, metadata=given.grade.model_dump(mode="json")
        )

    return score


async def _install(bundle: Path | None) -> None:
    """Install m3agent in the sandbox from a bundle. Without one, the sandbox must have m3agent.

    Raises:
        RuntimeError: It has none, or the installation fails.
    """
    if bundle is not None:
        await sandbox().write_file(in_container.BUNDLE, await asyncio.to_thread(bundle.read_bytes))
        await _shell(in_container.INSTALL)
    elif not (await sandbox().exec(["sh", "-c", in_container.PRESENT])).success:
        raise RuntimeError(in_container.MISSING)


async def _shell(command: str) -> str:
    """Run a shell command in the sandbox and return its output.

    Raises:
        RuntimeError: It fails.
    """
    done = await sandbox().exec(["sh", "-c", command])
    if not done.success:
        raise RuntimeError(f"{command}: {done.stderr.strip()[-500:]}")
    return done.stdout
