"""m3agent as an agent server of NeMo Gym (written for NeMo Gym 0.7; 0.4 works too).

The server runs `m3agent eval run` for each rollout: the fix in one sandbox, the strict grader in another.

NeMo Gym needs another version of the package `openai` than m3agent, so the two cannot share an environment. This file
imports nothing of m3agent. Copy it into Gym, where each agent has a folder:

    responses_api_agents/m3agent_agent/app.py
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from time import time
from uuid import uuid4

from fastapi import Request
from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef
from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseInputTokensDetails,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
    NeMoGymResponseOutputTokensDetails,
    NeMoGymResponseUsage,
)
from nemo_gym.server_utils import get_server_url, is_nemo_gym_fastapi_entrypoint
from pydantic import BaseModel, ConfigDict

MASKED = {"infra", "invalid"}
"""Verdicts that say nothing about the model (docs/eval.md)."""
GRACE = 90.0
"""Seconds that m3agent has to end its sandboxes after an interruption."""


class M3AgentConfig(BaseResponsesAPIAgentConfig):
    """The server's configuration."""

    model_server: ModelServerRef
    source: str
    """A benchmark as `m3agent eval run` takes it: a file of rows, or a folder."""
    model: str
    """The model's name, as requests have it."""
    command: tuple[str, ...] = ("m3agent",)
    """m3agent's program, which has an environment of its own."""
    options: tuple[str, ...] = ()
    """More options of `m3agent eval run`, such as `--max-turns 50`."""
    runs: str = "results/m3agent"
    """Folder that keeps the run of each rollout: session, patch and grade."""
    training: bool = True
    """Make the conversation fit for training a model (docs/fix.md)."""


class M3AgentRequest(BaseRunRequest):
    """A row of the data set."""

    model_config = ConfigDict(extra="allow")

    instance_id: str


class M3AgentResponse(BaseVerifyResponse):
    """The reward, with the verdict that it comes from."""

    model_config = ConfigDict(extra="allow")

    verdict: str
    run: str
    mask_sample: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None


class Attempt(BaseModel):
    """What m3agent writes into an attempt's `result.json`."""

    verdict: str
    reason: str = ""
    usage: dict[str, float | None] = {}


class M3AgentServer(SimpleResponsesAPIAgent):
    """Serve rollouts."""

    config: M3AgentConfig

    async def responses(
        self,
        request: Request,
        body: NeMoGymResponseCreateParamsNonStreaming = Body(),  # noqa: B008  # as FastAPI reads it
    ) -> NeMoGymResponse:
        """Raise ValueError: only `/run` names an instance."""
        raise ValueError("m3agent needs an instance of its benchmark: call /run.")

    async def run(self, request: Request, body: M3AgentRequest) -> M3AgentResponse:
        """Let m3agent attempt an instance. The sample is masked if the machine or the instance is at fault."""
        folder = Path(self.config.runs).absolute() / f"{body.instance_id}-{uuid4().hex[:12]}"
        said = await self._attempt(body, folder)
        file = folder / "attempts" / body.instance_id / "1" / "result.json"
        found = Attempt(verdict="infra", reason=said)
        if file.is_file():
            found = Attempt.model_validate_json(file.read_bytes())
        masked = found.verdict in MASKED
        return M3AgentResponse(
            **body.model_dump(),
            response=_response(body.responses_create_params, self.config.model, found),
            reward=float(found.verdict == "resolved"),
            verdict=found.verdict,
            run=str(folder),
            mask_sample=masked,
            failure_kind=f"m3agent:{found.verdict}" if masked else None,
            failure_reason=found.reason if masked else None,
        )

    async def _attempt(self, body: M3AgentRequest, folder: Path) -> str:
        """Run m3agent to its end; return the last lines that it wrote to standard error."""
        endpoint = get_server_url(self.config.model_server.name).replace("//0.0.0.0:", "//127.0.0.1:")
        if hasattr(self, "base_url_for_run"):  # newer versions tell rollouts apart by the path
            endpoint = self.base_url_for_run(endpoint, body)
        folder.parent.mkdir(parents=True, exist_ok=True)
        words = ["eval", "run", self.config.source, "--json", *self.config.options]
        words += ["--ids", body.instance_id, "--output", str(folder)]
        process = await asyncio.create_subprocess_exec(
            *self.config.command,
            *words,
            env={
                **os.environ,
                "M3AGENT_ENDPOINT": endpoint.rstrip("/") + "/v1",
                "M3AGENT_MODEL": self.config.model,
                "M3AGENT_PROBE": "false",
                "M3AGENT_TRAINING": str(self.config.training).lower(),
                "M3AGENT_YES": "true",
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, told = await process.communicate()
        finally:
            if process.returncode is None:  # the rollout was cancelled
                process.send_signal(signal.SIGINT)
                with suppress(TimeoutError):
                    async with asyncio.timeout(GRACE):
                        await process.wait()
        return told.decode(errors="replace").strip()[-2000:] or f"exit code {process.returncode}"


def _response(body: NeMoGymResponseCreateParamsNonStreaming, model: str, attempt: Attempt) -> NeMoGymResponse:
    """Return the end of an attempt as a response. Gym's model server records the conversation itself."""
    text = f"{attempt.verdict}: {attempt.reason}" if attempt.reason else attempt.verdict
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    prompt, cached, written, reasoning = (int(attempt.usage.get(name) or 0) for name in names)
    return NeMoGymResponse(
        id=f"resp_{uuid4().hex}",
        created_at=int(time()),
        model=model,
        object="response",
        output=[
            NeMoGymResponseOutputMessage(
                id=f"msg_{uuid4().hex}",
                content=[NeMoGymResponseOutputText(annotations=[], text=text)],
                role="assistant",
                status="completed",
                type="message",
            )
        ],
        tool_choice=body.tool_choice,
        tools=body.tools,
        parallel_tool_calls=body.parallel_tool_calls,
        usage=NeMoGymResponseUsage(
            input_tokens=prompt,
            input_tokens_details=NeMoGymResponseInputTokensDetails(cached_tokens=cached),
            output_tokens=written,
            output_tokens_details=NeMoGymResponseOutputTokensDetails(reasoning_tokens=reasoning),
            total_tokens=prompt + written,
        ),
    )


if __name__ == "__main__":
    M3AgentServer.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = M3AgentServer.run_webserver()
