"""m3agent as an agent that Harbor installs in a task's container (written for Harbor 0.25).

    M3AGENT_BUNDLE=dist/m3agent-0.1.0-linux-x86_64.pyz \
    harbor run -p TASKS -a m3agent.integrations.harbor:M3Agent -m openai/MiniMax-M3 --base-url URL --api-key-name KEY
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import tempfile
from pathlib import Path, PurePosixPath
from typing import ClassVar

from harbor.agents.agent_auth_resolution import ModelConnectionSpec
from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.installed.base import BaseInstalledAgent, with_prompt_template
from harbor.agents.options import InstalledAgentOptions
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.agent.rollout_detail import RolloutDetail
from harbor.models.model_api_format import ModelApiFormat
from pydantic import Field

from m3agent.integrations import in_container

ENDPOINT, KEY = "M3AGENT_ENDPOINT", "M3AGENT_API_KEY"
ISSUE, RESULT, STATE = "issue.md", "result.json", "state"
"""Names in the folder of the agent's logs, which Harbor brings back."""


class Options(InstalledAgentOptions):
    """The options of `--ak NAME=VALUE`."""

    bundle: str | None = Field(
        default=None, description="File of `make bundle` to install from (default: $M3AGENT_BUNDLE)."
    )
    training: bool = Field(default=False, description="Make the conversation fit for training a model.")


class M3Agent(BaseInstalledAgent):
    """Fix the issue that the task's instruction describes, in the container's work folder."""

    capabilities = AgentCapabilities(base_url=True, atif=True)
    options_model = Options
    options: Options
    MODEL_CONNECTION: ClassVar[ModelConnectionSpec] = ModelConnectionSpec(
        default_provider="openai",
        supported_api_formats=[ModelApiFormat.OPENAI_CHAT_COMPLETIONS],
        api_key_destination_names={"default": KEY},
        base_url_destination_names={"default": ENDPOINT},
        inject_default_base_url=True,
    )

    @staticmethod
    def name() -> str:
        """Return the agent's name."""
        return "m3agent"

    def get_version_command(self) -> str:
        """Return the command that prints the version in the container."""
        return f'PATH="$PATH:{in_container.PREFIX}/bin" m3agent --version'

    async def install(self, environment: BaseEnvironment) -> None:
        """Install from the bundle. Without one, the image must have m3agent.

        Raises:
            RuntimeError: The image has none.
        """
        bundle = in_container.find_bundle(self.options.bundle)
        if bundle is not None:
            await environment.upload_file(bundle, in_container.BUNDLE)
            await self.exec_as_root(environment, in_container.INSTALL)
        elif (await environment.exec(in_container.PRESENT)).return_code != 0:
            raise RuntimeError(in_container.MISSING)

    @with_prompt_template
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Run `m3agent fix`. Harbor raises an error if it ends with another exit code than 0."""
        logs = self.environment_logs_dir
        with tempfile.TemporaryDirectory(prefix="m3agent-harbor-") as folder:
            issue = Path(folder) / ISSUE
            issue.write_text(instruction, encoding="utf-8")
            await environment.upload_file(issue, str(logs / ISSUE))
        command = in_container.fix_command(
            str(logs / ISSUE), training=self.options.training, output=str(logs / RESULT)
        )
        await self.exec_as_agent(environment, command, env=self._env(logs))

    def _env(self, logs: PurePosixPath) -> dict[str, str]:
        """Return m3agent's environment variables.

        Raises:
            ValueError: No model is named, or it has no address.
        """
        connection = self.model_connection.env if self.model_connection else {}
        if not connection.get(ENDPOINT) or not self._parsed_model_name:
            raise ValueError("m3agent needs a model and its server: give -m openai/NAME and --base-url URL.")
        return in_container.fix_environment(
            connection[ENDPOINT], connection.get(KEY), self._parsed_model_name, str(logs / STATE)
        )

    def populate_context_post_run(self, context: AgentContext) -> None:
        """Write `trajectory.json`, and report the tokens. Harbor calls this after a timeout, too."""
        read = in_container.read_trajectory(self.logs_dir / STATE)
        if read is None:
            self.logger.warning("m3agent left no session in %s", self.logs_dir / STATE)
            return
        trajectory, tokens = read
        (self.logs_dir / "trajectory.json").write_text(json.dumps(trajectory, allow_nan=False), "utf-8")
        totals = trajectory.get("final_metrics") or {}
        context.n_input_tokens = totals.get("total_prompt_tokens")
        context.n_cache_tokens = totals.get("total_cached_tokens")
        context.n_output_tokens = totals.get("total_completion_tokens")
        context.cost_usd = totals.get("total_cost_usd")
        if tokens:
            turns = [tokens[turn] for turn in sorted(tokens)]
            context.rollout_details = [
                RolloutDetail(
                    prompt_token_ids=[list(turn.prompt) for turn in turns],
                    completion_token_ids=[list(turn.completion) for turn in turns],
                    logprobs=[list(turn.logprobs) for turn in turns],
                )
            ]
        result = self.logs_dir / RESULT
        found = in_container.read_result(result.read_text("utf-8")) if result.is_file() else None
        context.metadata = found.model_dump(mode="json") if found else None
