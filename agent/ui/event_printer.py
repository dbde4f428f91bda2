"""Show running fixes on stderr: lines that stay and, on a terminal, one or two changing rows below for each fix.

The screen is a view of the event logs: it gets the same lines that `--json` prints. This module decides which lines stay;
`closing.py` writes those of a session's end, and `status_row.py` renders the changing rows.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rich.text import Text

from m3agent.agent.loop.inbox import NO_ADVICE, Inbox
from m3agent.agent.repo.snapshot import TREES
from m3agent.agent.report import text, words
from m3agent.agent.report.words import step_outcome, step_title
from m3agent.agent.session.log_reader import Line
from m3agent.agent.ui import closing
from m3agent.agent.ui.display import LiveView
from m3agent.agent.ui.layout import Block, beside, one_row
from m3agent.agent.ui.patch_view import change
from m3agent.agent.ui.status_row import StatusRow, area, still
from m3agent.agent.ui.typed_line import TypedLine
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.store.git import TreeStore
from m3agent.serving.client.messages import Delta
from m3agent.util.counted import counted
from m3agent.util.errors import HANDED_OVER
from m3agent.util.sanitize import printable_line, printable_text

MOST_TOLD = 20  # most different network requests that are shown
SAID = 300  # most characters of what the model says between two calls
LAST_WORDS = 4000  # most characters of what the model says when it is done
BRIEF = 1.0  # seconds; the time of a shorter step is only shown in detail
MOST_OUTPUT = 10  # most lines of a call's result that are shown in detail
LAST_OUTPUT = 4  # how many of them are the last lines
NOT_HEARD = "the model's work is over, so it does not get this: {}"
MOST_DIFFED = 50  # most files of a change that are compared for the screen


class Detail(enum.IntEnum):
    """How much the screen shows."""

    QUIET = -1
    NORMAL = 0
    VERBOSE = 1


@dataclass
class _Shown:
    """What the screen knows of one session: its row, and what later lines refer to."""

    row: StatusRow = field(default_factory=StatusRow)
    started: Line = field(default_factory=dict)  # `session.started`
    calls: dict[int, Line] = field(default_factory=dict)  # `call.started`, by number
    context: str = ""  # the packed repository, until the model's window is known
    copied: Line = field(default_factory=dict)  # `session.forked`, if the session was only copied so far
    chosen: int | None = None  # number of the chosen attempt
    proposal: Line = field(default_factory=dict)  # `proposal`, while it waits for an answer


@dataclass(kw_only=True, eq=False, repr=False)
class Screen:
    """The screen of running fixes. It is a context manager and shows the rows between its entry and its exit.

    A session has a row from its `listener` or its first line until it is finished.
    """

    detail: Detail = Detail.NORMAL
    """How much to show. A quiet screen shows notes, errors and how each session ended."""
    rows: bool = True
    """Whether to show the changing rows on a terminal."""
    state: Path | None = None
    """The state folder. With it, changes of files are shown as diffs; they are read from the session's trees."""
    shown_by: str | None = None
    """The command that shows the patch after it was applied or committed; None if the user asked for neither. Empty if there
    is no such command."""
    by_id: bool = False
    """Whether the next steps name the session by its id, because it is not the last one of this command."""
    repo: str = ""
    """The repository's folder, for the next commands; empty if they find it from where the user is."""
    has_next: bool = True
    """Whether the closing block names commands that can come next; not if a program started the fix."""
    hold_end: bool = False
    """Keep the closing blocks until `print_end`, so that they can follow the patch on the same terminal."""
    as_json: Callable[[Line], None] | None = None
    """Receives the lines of the logs too; None without --json."""
    inbox: Inbox | None = None
    """Gets what the person types while the screen is shown, and asks the person; None if nobody shall type."""
    session: str = ""
    """The id of the first session that it shows; empty before that."""

    def __post_init__(self) -> None:
        self._typed = None if self.inbox is None else TypedLine(self.pass_on)
        still = None if self.detail is Detail.QUIET else self._still
        self._live, self._label, self._is_shared = LiveView(self._area, still, typed=self._typed), "", False
        self._held: list[Block] = []
        self._sessions: dict[str, _Shown] = {}
        self._now = _Shown()  # the session that the current line belongs to
        self._common: dict[str, str] = {}  # facts that all attempts share, by label
        self._errors: set[str] = set()  # errors shown so far: several sessions may report the same
        self._told: set[str] = set()  # shown network requests that were refused or failed

    def share(self, view: LiveView, label: str) -> None:
        """Show its lines in a view with those of other screens, each after a label. The view draws the rows of all."""
        self._live, self._label, self._is_shared = view, label, True

    def __enter__(self) -> Self:
        if not self._is_shared:
            self._live.start(rows=self.has_rows)
        if self.inbox is not None and self._typed is not None and self._typed.is_read:
            self.inbox.ask = self._ask
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_shared:
            self._live.stop()

    @property
    def has_rows(self) -> bool:
        """Whether changing rows may be drawn for it."""
        return self.rows and self.detail > Detail.QUIET

    @property
    def sinks(self) -> list[Callable[[Line], None]]:
        """The receivers of a session's log lines."""
        return [self.on_line] if self.as_json is None else [self.on_line, self.as_json]

    def pass_on(self, text: str) -> None:
        """Pass on what the person types."""
        if self.inbox is not None and not self.inbox.put(text):
            self.say(NOT_HEARD.format(text))

    async def _ask(self, question: str) -> str | None:
        """Ask the person. Returns the line that the person types; None after Ctrl-C."""
        assert self._typed is not None
        self._live.print(beside(Text("? ", "bold yellow"), Text(question, "bold")))
        return await self._typed.answer()

    def say(self, text: str) -> None:
        """Show a note for the person, also if the screen is quiet."""
        head = Text.assemble((self._label, "cyan"), ("note: ", "dim"))
        self._live.print(beside(head, Text(printable_line(text, 500), "dim")))

    def print_end(self) -> None:
        """Show the closing blocks that were kept."""
        for block in self._held:
            self._live.print(block)
        self._held.clear()

    def listener(self, session: str) -> Callable[[Delta], None]:
        """Return the callback for the stream's deltas of a session."""
        return self._of(session).row.hear

    def read(self, lines: Iterable[Line]) -> None:
        """Take the lines that an earlier process of a resumed session has logged, without showing them again."""
        for line in lines:
            self._take(line)
            self._now.copied = line if line["type"] == "session.forked" else {}

    def on_line(self, line: Line) -> None:
        """Show a line that was just logged."""
        self._take(line)
        if line["type"] == "session.finished":
            del self._sessions[line["session"]]
        name = "_on_" + line["type"].replace(".", "_")
        handler = getattr(self, name, None)
        if self.detail is Detail.QUIET and handler not in self._at_every_detail:
            return
        if handler is not None:
            handler(line)
        elif (warn := words.WARNINGS.get(line["type"])) and (warning := warn(line)):
            self._mark("!", printable_line(warning, 500), "yellow")

    @property
    def _at_every_detail(self) -> Sequence[Callable[[Line], None]]:
        return self._on_error, self._on_attempt_chosen, self._on_session_finished

    def _take(self, line: Line) -> None:
        self._now = self._of(line["session"])
        self._now.row.see(line)
        if line["type"] in ("proposal", "proposal.answered"):
            self._now.proposal = line if line["type"] == "proposal" else {}
        if line["type"] == "session.started":
            self._now.started = line
            self.session = self.session or line["session"]
            self._let_type()

    def _let_type(self) -> None:
        """Invite the person to type, now that it is known whether a model listens."""
        if self._typed is None or self.inbox is None:
            return
        self._typed.invites = not self._now.row.facts.is_embedded
        if not self._typed.invites:
            begun, dropped = self._typed.end(), self.inbox.drop()
            self.inbox.ask = None
            if begun or dropped:
                self.say(NO_ADVICE)

    def _of(self, session: str) -> _Shown:
        return self._sessions.setdefault(session, _Shown(StatusRow(label=self._label)))

    def _area(self, width: int, height: int, now: float) -> Sequence[Text]:
        if self._typed is not None and self._typed.is_awaited:
            return ()  # nothing is being done
        return area(self.running(), width, height, now)

    def _still(self, now: float) -> Sequence[Text]:
        return still(self.running(), now)

    def running(self) -> list[StatusRow]:
        """Return the rows of its running sessions, in the order of the attempts."""
        # the drawing thread calls this, so the sessions are read only once
        return sorted((shown.row for shown in list(self._sessions.values())), key=lambda row: row.number)

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _begun(self, start: str, style: str = "") -> Text:
        """Return the beginning of a line: the attempt, and what follows."""
        return Text.assemble((self._now.row.prefix, "cyan"), (start, style))

    def _head(self, label: str, style: str = "bold cyan") -> Text:
        return self._begun(f"{label:<{closing.LABEL}} ", style)

    def _print(self, label: str, body: str, style: str = "") -> None:
        self._live.print(beside(self._head(label), Text(body, style)))

    def _mark(self, mark: str, body: str, style: str) -> None:
        """Print a line with an icon; `style` is the icon's and the text's."""
        self._live.print(beside(self._begun(f"{mark} ", style), Text(body, style)))

    def _print_common(self, label: str, body: str) -> None:
        """Print a fact that attempts share: once for all, and again for each attempt where it differs."""
        if label not in self._common:
            self._common[label] = body
            head = Text.assemble((self._label, "cyan"), (f"{label:<{closing.LABEL}} ", "bold cyan"))
            self._live.print(beside(head, Text(body)))
        elif self._common[label] != body:
            self._print(label, body)

    def _print_context(self, share: str = "") -> None:
        if self._now.context:
            self._print_common("context", self._now.context + share)
            self._now.context = ""

    # -- the beginning -------------------------------------------------------------------------------------------------

    def _on_session_started(self, line: Line) -> None:
        repository, endpoint = line["repository"], line["endpoint"]
        self._print_common("issue", printable_line(line["issue"]["title"]))
        place = repository.get("root") or repository.get("git_dir") or "repository"
        branch = repository["branch"] or "detached"
        self._print_common(
            "repository",
            printable_line(f"{place} at {repository['head'][:12]} ({branch}){words.uncommitted(line)}", 500),
        )
        self._print_common(words.server_label(line), printable_line(endpoint["description"], 500))
        self._print_common("sandbox", printable_line(line["sandbox"]["backend"]))
        self._print("session", printable_line(line["session"]))

    def _on_session_resumed(self, line: Line) -> None:
        if self._now.started:
            self._on_session_started(self._now.started)
        if self._now.copied:
            source, turn = printable_line(self._now.copied["source"]), self._now.copied["turn"]
            self._print("forked", f"from {source}, after turn {turn}")
        else:
            self._print("resumed", f"after {counted(line['messages'], 'message')}")
        if self._now.proposal:
            self._mark("•", printable_text(self._now.proposal["text"].strip()[:LAST_WORDS]), "italic")
            self._on_proposal(self._now.proposal)

    def _on_context_packed(self, line: Line) -> None:
        self._now.context = words.context(line)
        if self._now.row.facts.window:
            self._print_context(self._share())

    def _on_endpoint_probed(self, line: Line) -> None:
        if not self._now.row.facts.is_embedded:
            self._print_common("model", printable_line(words.model(line), 300))
        self._print_context(self._share())

    def _share(self) -> str:
        """Return the share of the model's window that the repository takes; empty if there is no language model."""
        facts = self._now.row.facts
        return "" if facts.is_embedded else words.share_of_window(facts.context_tokens, facts.window)

    def _on_baseline(self, line: Line) -> None:
        self._print_common("baseline", words.baseline(line))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _on_person_message(self, line: Line) -> None:
        self._print("you", printable_line(line["text"], SAID))

    def _on_proposal(self, line: Line) -> None:
        for ident, error in line["tests"].items():
            self._print("red", printable_text(f"{ident}\n{error}"[:LAST_WORDS]))

    def _on_proposal_answered(self, line: Line) -> None:
        if line.get("by", "person") == "person":
            self._print("you", "accepted" if line["accepted"] else printable_line(line["text"], SAID))

    def _on_turn_started(self, _: Line) -> None:
        self._print_context()

    def _on_message(self, line: Line) -> None:
        said = line["text"].strip()
        if not said:
            return
        if line["calls"]:
            self._mark("•", printable_line(said, SAID), "italic")
            return
        shown = printable_text(said[:LAST_WORDS])
        rest = f"\n… {len(said) - LAST_WORDS:,} more characters: m3agent report" if said[LAST_WORDS:] else ""
        self._mark("•", shown + rest, "italic")

    def _on_call_started(self, line: Line) -> None:
        self._now.calls[line.get("call", 0)] = line

    def _on_call_finished(self, line: Line) -> None:
        begun = self._now.calls.get(line.get("call", 0), {})
        title, outcome = step_title(line["name"], begun.get("arguments")), step_outcome(line)
        failed = line["status"] != "done" or line.get("is_error")
        if line["seconds"] >= BRIEF or self.detail is Detail.VERBOSE:
            outcome += f"{', ' if outcome else ''}{text.duration(line['seconds'])}"
        head = self._begun("✗ ", "red") if failed else self._begun("✓ ", "green")
        self._live.print(one_row(head, Text(title), Text(outcome, "red" if failed else "dim")))
        if self.detail is Detail.VERBOSE:
            self._print_output(line["content"].splitlines())

    def _print_output(self, output: Sequence[str]) -> None:
        indent = self._begun("    ")
        shown = list(output)
        if (more := len(output) - MOST_OUTPUT) > 1:  # a tool's errors mostly are at the end
            shown[-LAST_OUTPUT - more : -LAST_OUTPUT] = [f"… {more} more lines"]
        for each in shown:
            said = printable_line(text.without_data(each), 400)
            self._live.print(one_row(indent, Text(said, "dim"), Text()))

    def _on_file_changed(self, line: Line) -> None:
        begun = self._now.calls.get(line["call"], {}) if "call" in line else {}
        title = step_title(begun["name"], begun["arguments"]) if begun else ""
        self._live.print(self._change(line, begun.get("tree"), self._begun("  "), title))

    def _change(self, line: Line, before: str | None, indent: Text, title: str) -> Block:
        """Return the lines for a change. They are read from the session's trees when they are written."""
        folder = None if self.state is None else self.state / "sessions" / line["session"] / TREES
        names = printable_line(", ".join(f"{status} {path}" for status, path in line["changes"]), 300)

        def lines(width: int | None) -> Sequence[Text]:
            if folder is not None and before and folder.is_dir() and len(line["changes"]) <= MOST_DIFFED:
                with contextlib.suppress(SandboxError, OSError):
                    patch = TreeStore(folder, only_read=True).diff(before, line["tree"])
                    return change(patch.decode(errors="replace"), indent, title=title)(width)
            return beside(indent, Text(names))(width)

        return lines

    def _on_turn_finished(self, line: Line) -> None:
        used = "" if self._now.row.facts.is_embedded else closing.used(line)
        if self.detail is Detail.VERBOSE and used:
            self._print(f"turn {line['turn']}", used, "dim")

    def _on_network_request(self, line: Line) -> None:
        what = f"{line['method']} {line['host']}:{line['port']}" if line["host"] else "a malformed request"
        told = f"network: {line['verdict']} {what}: {line['reason']}"
        # each request once, and a limited number: programs may send as many as they like
        if line["verdict"] != "allowed" and told not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(told)
            self._mark("!", printable_line(told, 300), "yellow")

    def _on_tokens_differ(self, line: Line) -> None:
        told = (
            f"the prompt repeats {line['kept']:,} of the {line['expected']:,} tokens so far: a trainer cannot use this turn "
            "and the last one as one sequence"
        )
        self._mark("!", told, "yellow")

    # -- the verdict ---------------------------------------------------------------------------------------------------

    def _on_verify(self, line: Line) -> None:
        self._live.print(closing.comparison(line, self._now.row.facts, self._head))

    def _on_feedback(self, line: Line) -> None:
        reason = self._now.row.facts.verdict.get("reason") or "the change is refused"
        self._mark("!", printable_line(f"{reason}; {words.sent_back(line)}", 500), "yellow")

    def _on_error(self, line: Line) -> None:
        self._print_context()
        told = printable_line(line["text"], 500)
        if told not in self._errors:
            self._errors.add(told)
            self._mark("✗", told, "bold red")

    def _on_attempt_chosen(self, line: Line) -> None:
        self._now.chosen = line["chosen"]

    def _on_session_finished(self, line: Line) -> None:
        shown = self._now
        if self.detail > Detail.QUIET:
            self._print_context()
        is_best = shown.chosen is None or shown.chosen == shown.row.number
        end = closing.End(
            line,
            shown.row.facts,
            name="last" if shown.row.of == 1 and not self.by_id else line["session"],
            is_told=printable_line(line["reason"], 500) in self._errors,
            repo=self.repo,
            shown_by=self.shown_by if line["status"] in HANDED_OVER and line["exit"] < 2 else None,
            is_refused=self.shown_by is not None and line["status"] in HANDED_OVER and line["exit"] >= 2,
        )
        block = end.lines(
            self._head, whole=is_best and self.detail > Detail.QUIET, has_next=is_best and self.has_next
        )
        if self.hold_end:
            self._held.append(block)
        else:
            self._live.print(block)
