"""`m3agent serve bench`: measure a running server as an agent uses it; print a table or JSON, and draw a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from m3agent.cli.common import AsJson, option, print_bytes, run, say
from m3agent.cli.serve.app import serve_app
from m3agent.cli.serve.check import ServedModel, ServerUrl
from m3agent.util.errors import ServerFault, UsageError, reason_of
from m3agent.util.sanitize import print_text, printable_line
from m3agent.util.table import columns
from m3agent.util.token_count import token_count

if TYPE_CHECKING:
    from m3agent.serving.bench.compare import BenchComparison
    from m3agent.serving.bench.options import Options
    from m3agent.serving.bench.result import BenchResult, BenchRow, Statistics
    from m3agent.serving.bench.run import BenchProgress

COLUMNS = ("", "TOKENS", "AT ONCE", "TTFT s", "TPOT ms", "ITL ms", "E2E s", "TOKENS/S", "CACHED", "FASTER")
STATISTICS = "TTFT, TPOT, ITL and E2E: mean / median / P99"
REGRESSION_EXIT = 1


@serve_app.command()
def bench(
    endpoint: ServerUrl = None,
    model: ServedModel = None,
    lengths: Annotated[
        str, option("Prompt lengths in tokens; those that do not fit the window are left out.", "N,...")
    ] = "8K,32K,128K,512K,1000000",
    rounds: Annotated[int, option("How often each is measured.", "N", min=1, max=100)] = 3,
    output_tokens: Annotated[int, option("Length of each answer in tokens.", "N", min=2)] = 64,
    concurrency: Annotated[
        str, option("Numbers of concurrent streams, each with its own prompt; 0 for none.", "N,...")
    ] = "1,2,4,8",
    agents: Annotated[
        int, option("Agents that share a prefix, as with --attempts; 0 for none.", "N", min=0)
    ] = 4,
    shared_prefix: Annotated[str, option("Length of the shared prefix in tokens.", "N")] = "128K",
    seed: Annotated[int, option("Seed of the prompts' text.", "N")] = 0,
    max_seconds: Annotated[float | None, option("Start no measurement after this many seconds.", "S")] = None,
    request_timeout: Annotated[float, option("Time limit of one request, in seconds.", "S")] = 900,
    output: Annotated[
        Path | None,
        option("--output", "-o", "Write the JSON to this file, and again after each measurement.", "FILE"),
    ] = None,
    plot: Annotated[Path | None, option("Write a plot to this file, as SVG.", "FILE")] = None,
    plan: Annotated[
        Path | None,
        option(
            "Compare with the first plan in this output of `m3agent plan --json`; by default with the "
            "plan of the server, if `m3agent serve` started it.",
            "FILE",
        ),
    ] = None,
    baseline: Annotated[Path | None, option("Compare with the JSON of an earlier bench.", "FILE")] = None,
    threshold: Annotated[
        float, option("Percent by which a figure may be worse than the baseline's.", "P", min=0)
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Measure a running server under an agent's load: cold and cached prompts, concurrent streams, a shared prefix.

    Exit codes: 0 measured; 1 worse than the baseline; 2 wrong use; 4 the model server; 130 interrupted.
    """
    from m3agent.agent.report.write import check_target
    from m3agent.serving.bench.options import Options

    try:
        options = Options(
            lengths=_sizes(lengths, "--lengths"),
            rounds=rounds,
            output_tokens=output_tokens,
            concurrency=_sizes(concurrency, "--concurrency"),
            stream_output=max(2, 2 * output_tokens),
            agents=agents,
            shared_prefix=_size(shared_prefix, "--shared-prefix"),
            seed=seed,
            max_seconds=max_seconds,
            timeout=request_timeout,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    for path in (output, plot):
        if path is not None:
            check_target(path)
    work = _Work(options, output, plot, threshold / 100)
    if plan is not None:
        work.expected = _expected(plan)
    if baseline is not None:
        work.baseline = _read_result(baseline)
    try:
        run(work.measure(endpoint, model))
    finally:
        code = work.hand_over(as_json=as_json)
    raise typer.Exit(code)


class _Work:
    """A running benchmark. It keeps the results so far, so that they can be written if the benchmark ends early."""

    def __init__(self, options: Options, output: Path | None, plot: Path | None, threshold: float) -> None:
        self.expected: dict[str, float] | None = None
        self.baseline: BenchResult | None = None
        self._options = options
        self._output = output
        self._plot = plot
        self._threshold = threshold
        self._result: BenchResult | None = None

    async def measure(self, url: str | None, model: str | None) -> None:
        """Probe the server and measure it."""
        from dataclasses import replace

        from m3agent.agent.endpoint.server import chosen_server
        from m3agent.serving.bench.run import bench as measure

        why = "whose tokens a second are not worth measuring"
        server = await chosen_server(url, model, embedded=why, say=say)
        if self.expected is None and server.record is not None and server.record.plan is not None:
            self.expected = expectation(server.record.plan)
        say(f"measuring {server.endpoint.model} at {server.endpoint.url}")
        try:
            self._result = await measure(
                server.endpoint, api_key=server.key, options=self._options, listen=self._hear
            )
        finally:
            if self._result is not None and self._result.ended == "running":
                self._result = replace(self._result, ended="interrupted")

    def _hear(self, progress: BenchProgress) -> None:
        """Print the next step, and write the results so far: the machine may go down before the end."""
        from m3agent.agent.report.text import duration

        new = self._result is None or self._result.rows != progress.result.rows
        self._result = progress.result
        if new:
            self._write()
        if progress.doing == "done":
            return
        to_come = "" if progress.to_come is None else f"; about {duration(progress.to_come)} left"
        say(f"{duration(progress.elapsed)}: {progress.doing}{to_come}")

    def _write(self) -> None:
        from m3agent.agent.report.write import write_page
        from m3agent.serving.bench.result import to_json

        if self._output is not None and self._result is not None:
            write_page(self._output, to_json(self._result).encode())

    def hand_over(self, *, as_json: bool) -> int:
        """Write and print the results so far; return the exit code."""
        from m3agent.agent.report.write import write_page
        from m3agent.serving.bench.result import to_json

        result = self._result
        if result is None:
            return ServerFault.exit_code
        self._write()
        if self._plot is not None:
            from m3agent.agent.report.bench_plot import plot

            write_page(self._plot, plot(result).encode())
        comparisons, only = self._compared(result)
        if as_json:
            print_bytes(to_json(result).encode())
        else:
            print_text(_text(result), end="")
        compared = _compared_text(comparisons, only)
        print_bytes(compared.encode(), err=as_json)
        if result.ended == "died" or not any(row.requests for row in result.rows):
            say(result.error or "nothing could be measured")
            return ServerFault.exit_code
        worse = self.baseline is not None and any(comparison.worse for comparison in comparisons)
        return REGRESSION_EXIT if worse else 0

    def _compared(self, result: BenchResult) -> tuple[list[BenchComparison], list[str]]:
        from m3agent.serving.bench.compare import against_baseline, against_plan

        planned = [] if self.expected is None else against_plan(result, self.expected)
        if self.baseline is None:
            return planned, []
        found, only = against_baseline(result, self.baseline, threshold=self._threshold)
        return [*planned, *found], only


def _sizes(text: str, option: str) -> tuple[int, ...]:
    sizes = [_size(part, option) for part in text.split(",")]
    return tuple(size for size in sizes if size)


def _size(text: str, option: str) -> int:
    """Parse a number that may end with K (1,024) or M (1,048,576)."""
    try:
        return token_count(text)
    except ValueError:
        raise UsageError(
            f"{option} takes numbers like 8192 or 8K, separated by commas; {text!r} is not one"
        ) from None


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{option} {path}: {reason_of(error)}") from None


def _read_result(path: Path) -> BenchResult:
    from m3agent.serving.bench.result import from_json

    try:
        return from_json(_read(path, "--baseline"))
    except ValueError as error:
        raise UsageError(
            f"--baseline {path}: {error}; give a file that `m3agent serve bench -o FILE` wrote"
        ) from None


def _expected(path: Path) -> dict[str, float]:
    """Return the expectation from the first plan in the output of `m3agent plan --json`."""
    import json

    try:
        value: Any = json.loads(_read(path, "--plan"))
        wish = value["wish"]
        return expectation(value["plans"][0], wish["typical"] or wish["context"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise UsageError(
            f"--plan {path}: this is not a plan; give the output of `m3agent plan --json`"
        ) from None


def expectation(plan: Mapping[str, Any], sequence: int | None = None) -> dict[str, float]:
    """Return the values that a plan promises for what is measured here, without unknown values.

    Args:
        sequence: Tokens of the context that the plan's speed is for; None means the plan's longest context.
    """
    promised = {
        "kv_tokens": plan["kv_tokens"],
        "tokens_per_second": plan["cost"]["tokens_per_second"],
        "sequence": sequence or plan["max_model_len"],
    }
    return {name: float(number) for name, number in promised.items() if number}


def _text(result: BenchResult) -> str:
    """Return the table with notes on its rows."""
    from m3agent.serving.bench.compare import label

    lines = (
        []
        if not result.rows
        else [columns([COLUMNS, *(_row(result, row) for row in result.rows)]), f"{STATISTICS}\n"]
    )
    lines += [
        f"note: {label(row)}: {printable_line(mark, 500)}\n" for row in result.rows for mark in row.marks
    ]
    if result.accepted_length is not None:
        lines.append(f"draft: {result.accepted_length:.2f} tokens a step\n")
    lines += [f"left out: {part}\n" for part in result.left_out]
    return "".join(lines)


def _row(result: BenchResult, row: BenchRow) -> tuple[str, ...]:
    from m3agent.agent.report import text

    speed = row.tokens_per_second if row.kind == "streams" else None
    if speed is None and row.kind != "streams" and row.tpot is not None and row.tpot.median:
        speed = 1 / row.tpot.median
    faster = result.speed_up(row)
    return (
        row.kind + (" !" if row.marks else ""),
        text.count(row.prompt_tokens or row.tokens),
        str(row.streams),
        _statistics(row.ttft, 1),
        _statistics(row.tpot, 1000),
        _statistics(row.itl, 1000),
        _statistics(row.e2e, 1),
        text.speed(speed),
        text.share(row.cached_share),
        "" if faster is None else f"{faster:.3g}x",
    )


def _statistics(value: Statistics | None, factor: float) -> str:
    from m3agent.agent.report.text import UNKNOWN, three_digits

    if value is None:
        return UNKNOWN
    return " / ".join(three_digits(factor * number) for number in (value.mean, value.median, value.p99))


def _compared_text(comparisons: Sequence[BenchComparison], only: Sequence[str]) -> str:
    from m3agent.agent.report.text import UNKNOWN, three_digits

    if not comparisons and not only:
        return ""
    rows = [("COMPARED", "", "EXPECTED", "MEASURED", "RATIO", "")]
    for comparison in comparisons:
        measured = UNKNOWN if comparison.measured is None else three_digits(comparison.measured)
        ratio = UNKNOWN if comparison.ratio is None else f"{comparison.ratio:.2f}"
        verdict = "worse" if comparison.worse else ""
        rows.append(
            (comparison.name, comparison.unit, three_digits(comparison.expected), measured, ratio, verdict)
        )
    return "\n" + columns(rows) + "".join(f"note: {part}\n" for part in only)
