"""What a person sees while a fix runs: lines on standard error, with a spinner where that is a terminal.

A view of the event log and nothing more: it is fed the same lines that `--json` prints.
"""

from __future__ import annotations

import re
from typing import Any, Self

from rich.console import Console
from rich.status import Status as Spinner
from rich.text import Text

from m3agent.agent.session_log import Line
from m3agent.serving.chat import Delta

STATUS_STYLES = {
    "verified": "bold green",
    "unverified": "bold yellow",
    "empty": "bold yellow",
    "limit": "bold yellow",
    "stalled": "bold yellow",
}
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069]")
MOST_TOLD = 20  # different requests to the network that are shown
LOW_SHARE, LONG_PROMPT = 0.5, 10_000  # below this share of a prompt longer than this the cache is at fault
SAID = 300  # characters of the model's own words shown after a turn


def shown(text: object, limit: int = 160) -> str:
    """Anything as one printable line: what a repository or model wrote must not drive the terminal."""
    line = UNPRINTABLE.sub(" ", " ".join(str(text).split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


class Screen:
    """Lines and a spinner on standard error. Use as a context manager; quiet shows nothing but `say`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._spinner: Spinner | None = None
        self._streamed = 0
        self._told: set[str] = set()  # requests to the network that were refused or failed
        self._call = ""  # the one that is running: its tool and the argument that tells most

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self._quiet:
            self._spinner = self.console.status("starting", spinner="dots")
            self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def say(self, text: str) -> None:
        """A note for the person, always shown."""
        self.console.print(Text(f"note: {shown(text, 500)}", style="dim"))

    def doing(self, text: str) -> None:
        """What is going on right now."""
        if self._spinner is not None:
            self._spinner.update(Text(shown(text, max(20, self.console.width - 6))))

    def on_delta(self, delta: Delta) -> None:
        """A piece of the model's answer arrived."""
        self._streamed = 0 if delta.kind == "reset" else self._streamed + len(delta.text)
        verb = {"reasoning": "thinking", "text": "writing"}.get(delta.kind, "calling a tool")
        self.doing(f"model: {verb} ({self._streamed:,} characters)")

    def on_line(self, line: Line) -> None:
        """An event was logged."""
        handler = getattr(self, "_on_" + line["type"].replace(".", "_"), None)
        if handler is not None and not self._quiet:
            handler(line)

    def _print(self, label: str, text: str, style: str = "") -> None:
        self.console.print(Text.assemble((f"{label:<8} ", "bold cyan"), (text, style)))

    def _on_session_started(self, line: Line) -> None:
        repository, endpoint, sandbox = line["repository"], line["endpoint"], line["sandbox"]
        self._print("issue", shown(line["issue"]["title"]))
        where = repository["branch"] or "detached"
        dirty = f", {repository['dirty']} uncommitted changes included" if repository["dirty"] else ""
        self._print("commit", shown(f"{repository['head'][:12]} ({where}){dirty}"))
        self._print("engine", shown(f"{endpoint['description']}"))
        self._print("sandbox", shown(sandbox["backend"]))
        self._print("session", shown(line["session"]))
        self.doing("starting the sandbox, reading the repository")

    def _on_context_packed(self, line: Line) -> None:
        dropped = sum(line["dropped"].values())
        left_out = f", {dropped} left out" if dropped else ""
        approx = "" if line["exact"] else "≈"
        files = f"{line['files']:,} {'file' if line['files'] == 1 else 'files'}"
        redacted = f", secrets redacted in {len(line['redacted'])}" if line["redacted"] else ""
        self._print("context", f"{files}, {approx}{line['tokens']:,} tokens{left_out}{redacted}")

    def _on_turn_started(self, line: Line) -> None:
        self._streamed = 0
        self.doing(f"turn {line['turn']}: waiting for the model")

    def _on_message(self, line: Line) -> None:
        words = line["text"] if line["text"].strip() else ""
        if words.strip():
            self._print(f"turn {line['turn']}", shown(words, SAID), "italic")

    def _on_call_started(self, line: Line) -> None:
        self._call = f"{line['name']} {_argument(line['arguments'])}".rstrip()
        self.doing(f"turn {line['turn']}: {self._call}")

    def _on_call_finished(self, line: Line) -> None:
        first = shown(line["content"].splitlines()[0] if line["content"] else "", 100)
        style = "red" if line["status"] != "done" else ""
        self._print(f"turn {line['turn']}", f"{self._call}: {first}  ({line['seconds']:.1f} s)", style)

    def _on_file_changed(self, line: Line) -> None:
        self._print("changed", shown(", ".join(path for _, path in line["changes"])))

    def _on_network_request(self, line: Line) -> None:
        what = f"{line['method']} {line['host']}:{line['port']}" if line["host"] else "a malformed request"
        told = f"{line['verdict']} {what}: {line['reason']}"
        # each once, and not without end: programs may ask as often as they like
        if line["verdict"] != "allowed" and told not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(told)
            self._print("network", shown(told, 300), "yellow")

    def _on_stall(self, line: Line) -> None:
        self._print("stall", shown(f"{line['text']} ({line['action']})"), "yellow")

    def _on_turn_finished(self, line: Line) -> None:
        if used := _used(line):
            self._print(f"turn {line['turn']}", used, "dim")
        share, prompt = line["cached_share"], line["prompt_tokens"] or 0
        if line["turn"] > 1 and share is not None and share < LOW_SHARE and prompt > LONG_PROMPT:
            lost = (
                f"the server's cache had {share:.0%} of a prompt that only grew: the rest is paid for again"
            )
            self._print("cache", lost, "yellow")

    def _on_gate(self, line: Line) -> None:
        if line["missing"]:
            self._print("gate", shown(line["missing"]), "yellow")
        self.doing("checking the result")

    def _on_retry(self, line: Line) -> None:
        self._print("retry", shown(f"{line['reason']} (in {line['wait']:.0f} s)"), "yellow")

    def _on_verify(self, line: Line) -> None:
        style = {"verified": "green", "failed": "red"}.get(line["verdict"], "yellow")
        self._print("verify", shown(f"{line['reason']}  ({line['seconds']:.1f} s)"), style)
        for name, ids in (
            ("fixed", line["fixed"]),
            ("broken", line["broken"]),
            ("still red", line["still_red"]),
            ("flaky", line["flaky"]),
        ):
            for ident in ids[:5]:
                self._print("", shown(f"{name}: {ident}"))
            if len(ids) > 5:
                self._print("", f"{name}: {len(ids) - 5} more")

    def _on_error(self, line: Line) -> None:
        self._print("error", shown(line["text"], 500), "bold red")

    def _on_session_finished(self, line: Line) -> None:
        self.__exit__()
        for note in line["notes"]:
            self._print("note", shown(note, 300), "yellow")
        style = STATUS_STYLES.get(line["status"], "bold red")
        self._print(
            line["status"],
            f"{shown(line['reason'], 300)}  ({line['seconds']:.1f} s, {line['turns']} turns)",
            style,
        )
        if used := _used(line):
            self._print("used", used)
        if line["patch"]:
            self._print("patch", shown(line["patch"], 500))


def _used(line: Line) -> str:
    """Tokens, speed and price of a turn or of the session, as far as they are known; empty if no tokens are."""
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


def _argument(arguments: dict[str, Any] | None) -> str:
    """The one argument that tells most."""
    for name in ("path", "test_file", "code"):
        if arguments and name in arguments:
            return shown(
                str(arguments[name]).strip().splitlines()[0] if str(arguments[name]).strip() else "", 60
            )
    return ""
