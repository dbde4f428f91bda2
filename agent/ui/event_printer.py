"""Show running fixes on stderr: lines that stay and, on a terminal, one or two changing rows below for each fix.

The screen is a view of the event logs: it gets the same lines that `--json` prints. This module writes the lines that
stay; `status_row.py` renders the changing rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self

from rich.text import Text

from m3agent.agent.session.log_reader import Line
from m3agent.agent.ui.display import LiveView
from m3agent.agent.ui.status_row import StatusRow, area
from m3agent.agent.util.sanitize import printable_line
from m3agent.sandbox.backends.kinds import shown_status
from m3agent.serving.client.messages import Delta

STATUS_STYLES = {
    "verified": "bold green",
    "unverified": "bold yellow",
    "empty": "bold yellow",
    "limit": "bold yellow",
    "stalled": "bold yellow",
}
MOST_TOLD = 20  # most different network requests that are shown
LOW_SHARE, LONG_PROMPT = 0.5, 10_000  # least cached share of a prompt with more than these tokens
SAID = 300  # most characters of the model's answer shown after a turn


class Screen:
    """The screen of running fixes. It is a context manager and shows the rows between its entry and its exit.

    A session has a row from its `listener` or its first line until it is finished.

    Args:
        quiet: Whether to show only the notes of `say`.
        rows: Whether to show the changing rows on a terminal.
    """

    def __init__(self, *, quiet: bool = False, rows: bool = True) -> None:
        self._live = LiveView(self._area)
        self._quiet = quiet
        self._wants_rows = rows and not quiet
        self._rows: dict[str, StatusRow] = {}
        self._row = StatusRow()  # row of the session that the current line belongs to
        self._common: dict[str, str] = {}  # facts that all attempts share, by label
        self._errors: set[str] = set()  # errors shown so far: several sessions may report the same
        self._backend = ""
        self._told: set[str] = set()  # shown network requests that were refused or failed

    def __enter__(self) -> Self:
        self._live.start(rows=self._wants_rows)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Show a note for the person, also if the screen is quiet."""
        self._live.print(Text(f"note: {printable_line(text, 500)}", style="dim"))

    def listener(self, session: str) -> Callable[[Delta], None]:
        """Return the callback for the stream's deltas of a session."""
        return self._row_of(session).hear

    def read(self, lines: Iterable[Line]) -> None:
        """Take the lines that an earlier process of a resumed session has logged, without showing them again."""
        for line in lines:
            self._row_of(line["session"]).see(line)

    def on_line(self, line: Line) -> None:
        """Show a line that was just logged."""
        self._row = self._row_of(line["session"])
        self._row.see(line)
        if line["type"] == "session.finished":
            del self._rows[line["session"]]
        handler = getattr(self, "_on_" + line["type"].replace(".", "_"), None)
        if handler is not None and not self._quiet:
            handler(line)

    def _row_of(self, session: str) -> StatusRow:
        return self._rows.setdefault(session, StatusRow())

    def _area(self, width: int, height: int, now: float) -> Sequence[Text]:
        rows = sorted(self._rows.values(), key=lambda row: row.number)
        return area(rows, width, height, now)

    def _print(self, label: str, text: str, style: str = "") -> None:
        self._live.print(
            Text.assemble((self._row.prefix, "cyan"), (f"{label:<8} ", "bold cyan"), (text, style))
        )

    def _print_common(self, label: str, text: str) -> None:
        """Print a fact that attempts share: once for all, and again for each attempt where it differs."""
        if label not in self._common:
            self._common[label] = text
            self._live.print(Text.assemble((f"{label:<8} ", "bold cyan"), text))
        elif self._common[label] != text:
            self._print(label, text)

    def _on_session_started(self, line: Line) -> None:
        repository, endpoint, sandbox = line["repository"], line["endpoint"], line["sandbox"]
        self._print_common("issue", printable_line(line["issue"]["title"]))
        where = repository["branch"] or "detached"
        dirty = f", {repository['dirty']} uncommitted changes included" if repository["dirty"] else ""
        self._print_common("commit", printable_line(f"{repository['head'][:12]} ({where}){dirty}"))
        self._print_common("engine", printable_line(f"{endpoint['description']}"))
        self._backend = sandbox["backend"]
        self._print_common("sandbox", printable_line(sandbox["backend"]))
        self._print("session", printable_line(line["session"]))

    def _on_session_resumed(self, line: Line) -> None:
        self._print("resumed", f"the session resumes after {line['messages']} messages")

    def _on_context_packed(self, line: Line) -> None:
        dropped = sum(line["dropped"].values())
        left_out = f", {dropped} left out" if dropped else ""
        approx = "" if line["exact"] else "≈"
        files = f"{line['files']:,} {'file' if line['files'] == 1 else 'files'}"
        redacted = f", secrets redacted in {len(line['redacted'])}" if line["redacted"] else ""
        self._print_common("context", f"{files}, {approx}{line['tokens']:,} tokens{left_out}{redacted}")

    def _on_baseline(self, line: Line) -> None:
        sets = {name: len(line[name]) for name in ("passed", "failed", "errored", "skipped")}
        counts = ", ".join(f"{count:,} {name}" for name, count in sets.items() if count) or "none"
        known = "known from an earlier session" if line["cached"] else f"{line['seconds']:.1f} s"
        stopped = "" if line["complete"] else "; there was no time for more tests"
        self._print_common("tests", f"{counts} without a change ({known}){stopped}")

    def _on_message(self, line: Line) -> None:
        words = line["text"] if line["text"].strip() else ""
        if words.strip():
            self._print(f"turn {line['turn']}", printable_line(words, SAID), "italic")

    def _on_call_finished(self, line: Line) -> None:
        first = printable_line(line["content"].splitlines()[0] if line["content"] else "", 100)
        style = "red" if line["status"] != "done" else ""
        call = self._row.call or printable_line(line["name"], 64)
        self._print(f"turn {line['turn']}", f"{call}: {first}  ({line['seconds']:.1f} s)", style)

    def _on_file_changed(self, line: Line) -> None:
        self._print("changed", printable_line(", ".join(path for _, path in line["changes"])))

    def _on_network_request(self, line: Line) -> None:
        what = f"{line['method']} {line['host']}:{line['port']}" if line["host"] else "a malformed request"
        told = f"{line['verdict']} {what}: {line['reason']}"
        # each request once, and a limited number: programs may send as many as they like
        if line["verdict"] != "allowed" and told not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(told)
            self._print("network", printable_line(told, 300), "yellow")

    def _on_stall(self, line: Line) -> None:
        self._print("stall", printable_line(f"{line['text']} ({line['action']})"), "yellow")

    def _on_turn_finished(self, line: Line) -> None:
        if used := _used(line):
            self._print(f"turn {line['turn']}", used, "dim")
        share, prompt = line["cached_share"], line["prompt_tokens"] or 0
        if line["turn"] > 1 and share is not None and share < LOW_SHARE and prompt > LONG_PROMPT:
            lost = (
                f"the server's cache had {share:.0%} of a prompt that only grew: the rest is computed again"
            )
            self._print("cache", lost, "yellow")

    def _on_gate(self, line: Line) -> None:
        if line["missing"]:
            self._print("gate", printable_line(line["missing"]), "yellow")

    def _on_retry(self, line: Line) -> None:
        self._print("retry", printable_line(f"{line['reason']} (in {line['wait']:.0f} s)"), "yellow")

    def _on_tokens_differ(self, line: Line) -> None:
        text = (
            f"the prompt repeats {line['kept']:,} of the {line['expected']:,} tokens so far: a trainer cannot use this turn "
            "and the last one as one sequence"
        )
        self._print("tokens", text, "yellow")

    def _on_verify(self, line: Line) -> None:
        style = {"verified": "green", "failed": "red"}.get(line["verdict"], "yellow")
        self._print("verify", printable_line(f"{line['reason']}  ({line['seconds']:.1f} s)"), style)
        for name, ids in (
            ("fixed", line["fixed"]),
            ("broken", line["broken"]),
            ("still red", line["still_red"]),
            ("added red", line.get("added_red", [])),
            ("flaky", line["flaky"]),
            ("tampering", line.get("tampering", [])),
            ("review", [f"{f['path']}:{f['line']} {f['what']}: {f['text']}" for f in line.get("review", [])]),
        ):
            for ident in ids[:5]:
                self._print("", printable_line(f"{name}: {ident}"))
            if len(ids) > 5:
                self._print("", f"{name}: {len(ids) - 5} more")

    def _on_feedback(self, line: Line) -> None:
        self._print("verify", f"the verdict goes back to the model (round {line['round']})", "yellow")

    def _on_error(self, line: Line) -> None:
        text = printable_line(line["text"], 500)
        if text not in self._errors:
            self._errors.add(text)
            self._print("error", text, "bold red")

    def _on_session_finished(self, line: Line) -> None:
        for note in line["notes"]:
            self._print("note", printable_line(note, 300), "yellow")
        style = STATUS_STYLES.get(line["status"], "bold red")
        reason = printable_line(line["reason"], 500)
        if reason not in self._errors:
            status = shown_status(line["status"], self._backend)
            self._print(status, f"{reason}  ({line['seconds']:.1f} s, {line['turns']} turns)", style)
        if used := _used(line):
            self._print("used", used)
        if line["patch"]:
            self._print("patch", printable_line(line["patch"], 500))


def _used(line: Line) -> str:
    """Format the known tokens, speed and price of a turn or a session; empty if the tokens are unknown."""
    prompt, completion, reasoning = line["prompt_tokens"], line["completion_tokens"], line["reasoning_tokens"]
    if prompt is None or completion is None:
        return ""
    share = "" if line["cached_share"] is None else f" ({line['cached_share']:.1%} cached)"
    thought = f" ({reasoning:,} thinking)" if reasoning else ""
    parts = [f"{prompt:,} tokens in{share}", f"{completion:,} out{thought}"]
    if line["tokens_per_second"]:
        parts.append(f"{line['tokens_per_second']:.0f}/s")
    if (first := line.get("first_token_seconds")) is not None:
        parts.append(f"first after {first:.1f} s")
    if line["price"]:
        parts.append(f"${line['price']:.4f}")
    return ", ".join(parts)
