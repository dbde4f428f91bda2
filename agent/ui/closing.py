"""Write what stays at the end of a session: the tests before and after, the verdict, the cost, and what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from m3agent.agent.loop.resume import RESUMABLE
from m3agent.agent.report import text, words
from m3agent.agent.session import log_reader as log
from m3agent.agent.session.log_reader import Line
from m3agent.agent.session.record import is_embedded
from m3agent.agent.ui.layout import Block, beside, in_order, path_then
from m3agent.agent.verify.rules import MEND, NO_RUN
from m3agent.sandbox.backends.kinds import is_isolated, shown_status
from m3agent.util.as_typed import as_typed
from m3agent.util.counted import counted, first_of
from m3agent.util.errors import HANDED_OVER, Status
from m3agent.util.sanitize import printable_line

LABEL = 10  # cells of the longest label
MOST_TESTS = 5  # most tests shown of each kind
MOST_PATHS = 3  # most names of changed files
MARKS = {
    Status.VERIFIED: ("✓", "bold green"),
    Status.ANSWERED: ("✓", "bold green"),
    Status.FAILED: ("✗", "bold red"),
    Status.ERROR: ("✗", "bold red"),
}
OTHER_MARK = ("!", "bold yellow")
COLOURS = {"green": "green", "red": "red"}
UNSOLVED = (Status.UNVERIFIED, Status.FAILED, Status.EMPTY, Status.STALLED)
Head = Callable[..., Text]
"""Returns the beginning of a line, from its label and, if it is not the usual one, its style."""


@dataclass
class Facts:
    """What the end of a session needs of its earlier lines."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings in force."""
    root: str = ""
    """The folder of the repository; empty for a bare one."""
    backend: str = ""
    """Kind of the sandbox."""
    is_embedded: bool = False
    """Whether the engine `embedded` answers, which is no language model."""
    has_red: bool | None = None
    """Whether a test failed without a change; None if the tests did not run."""
    window: int | None = None
    """The model's window, in tokens; None if unknown."""
    context_tokens: int = 0
    """Tokens of the packed repository."""
    verdict: Line = field(default_factory=dict)
    """The last line `verify`; empty without one."""
    green: frozenset[str] = frozenset()
    """Tests that passed before and after, in the last verification."""
    compared: int = 0
    """Number of tests that ran with the patch, in the last verification."""

    @property
    def isolated(self) -> bool:
        """Whether the sandbox isolates commands."""
        return is_isolated(self.backend)

    def see(self, line: Line) -> None:
        """Take a line of the session's log."""
        match line["type"]:
            case "session.started":
                self.settings, self.backend = line["settings"], log.text(line, "sandbox", "backend")
                self.root = log.text(line, "repository", "root")
                self.is_embedded = is_embedded(line)
            case "context.packed":
                self.context_tokens = line["tokens"]
            case "endpoint.probed":
                self.window = log.whole(line, "max_model_len")
                self.is_embedded |= line.get("flavour") == "embedded"  # served by another process
            case "baseline":
                red = bool(line["failed"] or line["errored"])
                self.has_red = (
                    red if red or line["passed"] else None
                )  # nothing ran, so another test would not help
            case "test.finished" if line["where"] == "before":
                self.green = frozenset(line["passed"])
            case "test.finished" if line["where"] == "after":
                self.green &= frozenset(line["passed"])
                self.compared = sum(len(line[name]) for name in ("passed", "failed", "errored", "skipped"))
            case "verify":
                self.verdict = line


def comparison(line: Line, facts: Facts, head: Head) -> Block:
    """Return the table of a verification: each test that counts, before the patch and after it."""
    rows: list[Block] = []

    def add(before: str, after: str, test: str) -> None:
        label = head("" if rows else "tests")
        label.append(f"{before:<7}", COLOURS.get(before, "dim")).append(
            f"{after:<7}", COLOURS.get(after, "dim")
        )
        rows.append(beside(label, Text(test)))

    add(
        "before",
        "after",
        f"in {words.fresh_places(isolated=facts.isolated)}, {text.duration(line['seconds'])}",
    )
    listed: set[str] = set()
    for before, after, ids in words.deciding_tests(line):
        listed.update(ids)
        for ident in ids[:MOST_TESTS]:
            add(before, after, printable_line(ident, 300))
        if len(ids) > MOST_TESTS:
            add(before, after, f"{len(ids) - MOST_TESTS} more")
    if others := len(facts.green - listed):
        add("green", "green", counted(others, "other test"))
    review = [f"{f['path']}:{f['line']} {f['what']}: {f['text']}" for f in line.get("review") or ()]
    for label, found in (("tampering", line.get("tampering") or []), ("review", review)):
        for each in found[:MOST_TESTS]:
            rows.append(beside(head(label), Text(printable_line(each, 500), "yellow")))
        if len(found) > MOST_TESTS:
            rows.append(beside(head(label), Text(f"{len(found) - MOST_TESTS} more", "yellow")))
    return in_order(*rows)


IN_WORK_TREE = "git diff"
"""The command that shows a patch which was written into the work tree."""


@dataclass(frozen=True)
class End:
    """The end of a session."""

    line: Line
    """The line `session.finished`."""
    facts: Facts
    """What earlier lines said."""
    name: str
    """What the user calls the session in a command."""
    is_told: bool
    """Whether the reason was printed before, as an error."""
    repo: str = ""
    """The repository's folder, for the next commands; empty if they find it from where the user is."""
    shown_by: str | None = None
    """The command that shows the patch where it was handed over; None if it was not, empty without a command."""
    is_refused: bool = False
    """Whether the patch was to be handed over and was not."""

    def lines(self, head: Head, *, whole: bool, has_next: bool) -> Block:
        """Return the closing block.

        Args:
            whole: Whether it has more than the verdict, the patch and the next steps.
            has_next: Whether it has the next steps.
        """
        status = self.line["status"]
        mark, style = MARKS.get(status, OTHER_MARK)
        label = f"{mark} {shown_status(status, self.facts.backend)}"
        reason = "" if self.line["reason"] == status else printable_line(self.line["reason"], 1000)
        blocks = []
        if not self.is_told:
            blocks.append(beside(head(label, style), Text(reason, style)))
        rows = list(self._evidence()) if whole else []
        if whole and self.line["turns"]:
            rows.append(("cost", cost(self.line, self.facts), ""))
        rows += [("note", printable_line(note, 500), "yellow") for note in self.line["notes"]]
        blocks += [beside(head(name), Text(said, style)) for name, said, style in rows]
        if self.line["patch"]:
            blocks.append(path_then(head("patch"), printable_line(self.line["patch"], 1000), self._names()))
        for number, (command, why) in enumerate(self._next() if has_next else ()):
            start = head("" if number else "next")
            typed = printable_line(as_typed(command, self.facts.root), 2000)
            if "/" in typed:
                blocks.append(path_then(start, typed, why, gap="  "))
                continue
            said = Text.assemble((typed, "bold"), (f"  {why}" if why else "", "dim"))
            blocks.append(beside(start, said))
        return in_order(*blocks)

    def _evidence(self) -> Iterator[tuple[str, str, str]]:
        parts = words.evidence(self.facts.verdict, self.facts.compared, isolated=self.facts.isolated)
        for number, said in enumerate(parts):
            yield "" if number else "evidence", printable_line(said, 500), ""

    def _names(self) -> str:
        paths = self.line["paths"]
        return printable_line(f"({first_of(paths, MOST_PATHS)})", 1000) if paths else ""

    def _next(self) -> Iterator[tuple[str, str]]:
        """Yield commands, each with its purpose."""
        if self.line["reason"].startswith(NO_RUN):
            yield MEND, ""
        if self.shown_by is not None:
            yield from self._after_handover(self.shown_by)
        elif self.is_refused and self.line["patch"]:
            yield self._by_git, "applies it if its lines did not change"
        else:
            yield from self._without_handover()

    def _without_handover(self) -> Iterator[tuple[str, str]]:
        """Yield what to do if the patch was not to be handed over."""
        status, patch = self.line["status"], self.line["patch"]
        if status in HANDED_OVER and patch:
            yield self._apply()
        elif status in RESUMABLE and self.line["turns"]:
            yield from self._resume()
        elif status == Status.INTERRUPTED:
            yield "type the same command again", "no model was asked yet"
        name, there = printable_line(self.name), self._there
        advice = f"m3agent sessions fork {name}{there} --tell TEXT", "continues with your advice"
        if status in UNSOLVED:
            yield from self._from_embedded() if self.facts.is_embedded else [advice]
            yield f"m3agent report{self._latest}", "shows each step"
        elif status == Status.VERIFIED and patch and not self.facts.is_embedded:
            yield advice

    @property
    def _there(self) -> str:
        """The option that names the repository."""
        return f" --repo {shlex.quote(printable_line(self.repo, 1000))}" if self.repo else ""

    @property
    def _latest(self) -> str:
        """The words that name the session in a command for which the last session is the usual one."""
        name = printable_line(self.name)
        return self._there if name == "last" else f" {name}{self._there}"

    @property
    def _by_git(self) -> str:
        """The command of git that applies the patch."""
        return f"git apply {printable_line(self.line['patch'], 1000)}"

    def _after_handover(self, shown_by: str) -> Iterator[tuple[str, str]]:
        """Yield what to do with a patch that was handed over."""
        if shown_by:
            yield printable_line(shown_by), "shows the change"
        if shown_by == IN_WORK_TREE:
            yield f"m3agent apply --undo{self._latest}", "takes it back"

    def _apply(self) -> tuple[str, str]:
        """Return what writes the patch into the work tree. `apply` does not write over uncommitted changes."""
        writes = f"{self._caution()}writes it into your work tree"
        if self.line.get("uncommitted"):
            return self._by_git, f"{writes}, beside your uncommitted changes"
        return f"m3agent apply{self._latest}", writes

    def _resume(self) -> Iterator[tuple[str, str]]:
        """Yield what continues the session."""
        resume = f"m3agent sessions resume {printable_line(self.name)}{self._there}"
        if self.line["status"] == Status.PROPOSED:
            yield resume, "accepts it and goes on; a terminal asks you first"
            yield f"{resume} --tell TEXT", "says what to change"
        else:
            yield f"{resume}{self._higher_limit()}", "continues here"

    def _caution(self) -> str:
        """Return what to do before a patch is applied. The embedded engine finds edits, not reasons."""
        is_sure = self.line["status"] == Status.VERIFIED and not self.facts.is_embedded
        return "" if is_sure else "read the patch first; then this "

    def _from_embedded(self) -> Iterator[tuple[str, str]]:
        """Yield what to do if the embedded engine, which takes no advice, did not solve the issue."""
        if self.facts.has_red is False:
            yield "add a test that fails", "this engine needs one; then run the fix again"
        yield (
            "m3agent fix ISSUE --endpoint URL",
            "asks a language model; this engine makes small repairs only",
        )

    def _higher_limit(self) -> str:
        """Return the option that raises the limit which ended the session; empty if none did."""
        if self.line["status"] != Status.LIMIT:
            return ""
        spent = {
            "max_turns": self.line["turns"],
            "max_minutes": self.line["seconds"] / 60,
            "max_tokens": self.line["completion_tokens"] or 0,
            "max_cost": self.line["price"] or 0.0,
        }
        for name, value in spent.items():
            limit = self.facts.settings.get(name)
            if limit is not None and value >= limit:
                return f" --{name.replace('_', '-')} {math.ceil(2 * limit):g}"
        return ""


def cost(line: Line, facts: Facts) -> str:
    """Return what a session took: time, turns, tokens, price."""
    turns, limit = line["turns"], facts.settings.get("max_turns")
    spent = f"{text.duration(line['seconds'])}, {counted(turns, 'turn')}"
    if line["status"] == Status.LIMIT and limit is not None and turns == limit + 1:
        spent += " (the last one for a summary)"
    tokens = "" if facts.is_embedded else used(line)
    return f"{spent}, {tokens}" if tokens else spent


def used(line: Line) -> str:
    """Format the known tokens and price of a turn or a session; empty if the tokens are unknown."""
    prompt, completion, reasoning = line["prompt_tokens"], line["completion_tokens"], line["reasoning_tokens"]
    if prompt is None or completion is None:
        return ""
    share = "" if line["cached_share"] is None else f" ({line['cached_share']:.1%} cached)"
    thought = f" ({reasoning:,} thinking)" if reasoning else ""
    parts = [f"{prompt:,} tokens in{share}", f"{completion:,} out{thought}"]
    if line["tokens_per_second"]:
        parts.append(f"{line['tokens_per_second']:.0f} tokens/s")
    if (first := line.get("first_token_seconds")) is not None:
        parts.append(f"first after {first:.1f} s")
    if line["price"]:
        parts.append(text.price(line["price"]))
    return ", ".join(parts)
