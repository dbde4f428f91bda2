"""`m3agent serve check` and `m3agent serve scrape`: check a running server, and configure Prometheus for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.cli.common import AsJson, Typical, option, print_bytes, run, say, state_folder
from m3agent.cli.serve.app import serve_app
from m3agent.util.errors import ServerFault, UsageError
from m3agent.util.token_count import some_tokens

if TYPE_CHECKING:
    from m3agent.agent.endpoint.server import ChosenServer
    from m3agent.serving.check.check import Check
    from m3agent.serving.client.endpoint import Endpoint
    from m3agent.serving.plan.plan import PlanRequest

ServerUrl = Annotated[
    str | None,
    option("--endpoint", "The server; by default the configured one, else one that runs here.", "URL"),
]
ServedModel = Annotated[str | None, option("--model", "The model, if the server has several.", "NAME")]


@serve_app.command()
def check(
    endpoint: ServerUrl = None,
    model: ServedModel = None,
    context: Annotated[
        int | None, option("Context window that the server should have, in tokens.", "N", parser=some_tokens)
    ] = None,
    concurrency: Annotated[
        int | None, option("Sequences that the KV cache should hold at a time.", "N", min=1, max=4096)
    ] = None,
    typical: Typical = None,
    prometheus: Annotated[
        str | None, option("A Prometheus that should read the server's metrics.", "URL")
    ] = None,
    evict: Annotated[
        bool,
        option(
            "--evict",
            "Evict the GPUs' cache to check the host cache; other requests become slower for a while.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a running server: its parsers, tokenizer, cache and settings, and whether its model answers sensibly.

    Exit codes: 0 nothing failed; 2 wrong use, or no server is named and none runs here; 4 something failed, or the
    server does not answer.
    """
    from m3agent.cli.check_table import print_checks

    checks = run(_check(endpoint, model, (context, concurrency, typical), prometheus, evict=evict))
    print_checks(checks, as_json=as_json, failed="failed")
    raise typer.Exit(ServerFault.exit_code if any(result.ok is False for result in checks) else 0)


@serve_app.command()
def scrape(
    endpoint: ServerUrl = None,
    model: ServedModel = None,
    credentials_file: Annotated[
        str | None, option("File with the key on Prometheus' machine, if the metrics need a key.", "FILE")
    ] = None,
    alerts: Annotated[bool, option("--alerts", "Print alerting rules instead, for a separate file.")] = False,
    board: Annotated[bool, option("--dashboard", "Print a dashboard for Grafana instead.")] = False,
) -> None:
    """Print the Prometheus configuration that reads a running server's metrics."""
    from m3agent.serving.check.scrape import alert_rules, dashboard, scrape_config

    if alerts and board:
        raise UsageError("--alerts and --dashboard print different files: give one at a time")
    target = run(_chosen(endpoint, model)).endpoint
    if board:
        text = dashboard(target)
    elif alerts:
        text = alert_rules(target)
    else:
        text = scrape_config(target, credentials_file=credentials_file)
    print_bytes(text.encode())


async def _check(
    url: str | None,
    model: str | None,
    work: tuple[int | None, int | None, int | None],
    prometheus: str | None,
    *,
    evict: bool,
) -> list[Check]:
    """Run all checks; each name appears once."""
    import asyncio

    from m3agent.serving.check.checklist import checklist
    from m3agent.serving.check.draft_check import draft_check
    from m3agent.serving.check.model_check import model_check
    from m3agent.serving.check.prefix_checks import partial_prefix_check, restored_prefix_check
    from m3agent.serving.check.prefix_probe import examine
    from m3agent.serving.check.reasoning_check import reasoning_check
    from m3agent.serving.check.wire_check import EXAMINE_SECONDS, wire_check

    server = await _chosen(url, model)
    endpoint, key = server.endpoint, server.key
    workload = _workload(endpoint, *work)
    tokenizer = _tokenizer(server)
    _listen(f"{endpoint.model} at {endpoint.url}")
    _listen("prefix cache and tokenizer")
    findings = await examine(endpoint, api_key=key, timeout=EXAMINE_SECONDS)
    checks = await wire_check(
        endpoint, api_key=key, context=work[0], tokenizer=tokenizer, listen=_listen, findings=findings
    )
    _listen("the end of the reasoning")
    checks += await reasoning_check(endpoint, api_key=key, thinking=server.settings.thinking)
    checks += await model_check(endpoint, api_key=key, listen=_listen)
    _listen("the draft, if there is one")
    checks += await draft_check(endpoint, api_key=key)
    checks += await asyncio.to_thread(_sparse_attention, server)
    _listen("prefixes that end inside a block")
    checks += await partial_prefix_check(endpoint, api_key=key)
    if evict:
        _listen("a prefix that leaves the GPUs")
        checks += await restored_prefix_check(endpoint, api_key=key)
    _listen("settings and metrics")
    checks += await checklist(
        endpoint, api_key=key, workload=workload, prometheus=prometheus, findings=findings
    )
    return list({result.name: result for result in checks}.values())


def _sparse_attention(server: ChosenServer) -> list[Check]:
    """Check a server that runs here by its config and its log."""
    from m3agent.serving.launch.dense_check import dense_check, facts_of
    from m3agent.serving.launch.record import live_servers

    running = live_servers(state_folder())
    folder = next((folder for folder, record in running if record == server.record), None)
    if server.record is None or folder is None:
        return []
    return dense_check(server.record, facts_of(folder, server.record.engine), os.environ)


async def _chosen(url: str | None, model: str | None) -> ChosenServer:
    from m3agent.agent.endpoint.server import chosen_server

    why = "which has no parsers, cache or metrics to check"
    return await chosen_server(url, model, embedded=why, say=say)


def _workload(
    endpoint: Endpoint, context: int | None, concurrency: int | None, typical: int | None
) -> PlanRequest | None:
    """Return the workload that the server must carry; None if no option names one."""
    from m3agent.serving.plan.memory_model import NATIVE_CONTEXT
    from m3agent.serving.plan.plan import PlanRequest

    if context is None and concurrency is None and typical is None:
        return None
    window = context or endpoint.max_model_len or NATIVE_CONTEXT
    try:
        return PlanRequest(context=window, concurrency=concurrency or 1, typical=typical)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _tokenizer(server: ChosenServer) -> Path | None:
    """Return the model's tokenizer.json on this machine: in the model's folder, else the one that packing uses."""
    from m3agent.agent.context.tokenizer.source import chosen_tokenizer

    endpoint, settings, record = server.endpoint, server.settings, server.record
    served = endpoint.model if record is None or record.checkpoint is None else record.checkpoint
    beside = Path(served) / "tokenizer.json"
    if endpoint.local and Path(served).is_absolute() and beside.is_file():
        return beside
    if settings.tokenizer == "server":  # the server's tokenizer cannot check itself
        return None
    source = chosen_tokenizer(settings, str(state_folder()), endpoint.model)
    return None if source is None else Path(source.location)


def _listen(what: str) -> None:
    say(f"checking {what}")
