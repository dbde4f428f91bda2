"""Convert a fix's log and its streamed answers into updates for an ACP client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from acp.helpers import (
    plan_entry,
    start_tool_call,
    text_block,
    tool_content,
    tool_diff_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
    update_user_message_text,
)
from acp.schema import (
    ContentToolCallContent,
    Cost,
    FileEditToolCallContent,
    TerminalToolCallContent,
    ToolCallLocation,
    UsageUpdate,
)

from m3agent.agent.repo.snapshot import TREES
from m3agent.agent.report import words
from m3agent.agent.report.text import without_data
from m3agent.agent.report.words import step_title
from m3agent.agent.session.log_reader import Line
from m3agent.agent.ui.closing import MOST_TESTS, Facts, cost
from m3agent.sandbox.errors import SandboxError
from m3agent.sandbox.store.git import TreeStore
from m3agent.serving.client.messages import Delta
from m3agent.tools.registry import understood
from m3agent.util.sanitize import printable_line

Update = Any
"""One of the SDK's update models."""
ToolContent = ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent
STEPS = ("Read the repository", "Find and make the change", "Verify it in {fresh_places}", "Hand it over")
MOST_FILES = 50
"""Most files of one change that are shown as diffs."""
MOST_DIFF = 1 << 20
"""Most bytes of a file that is shown as a diff."""
MOST_OUTPUT = 20_000
"""Most characters of a call's result that are shown; the session's folder contains the whole result."""
MOST_IN_LINE = 300
"""Most characters of one line of it. Longer lines are for programs."""


@dataclass(eq=False)
class Updates:
    """Sends the updates of one fix."""

    root: Path
    """Folder of the work tree."""
    folder: Path
    """Folder of the fix's session."""
    tell: Callable[[Update], None]
    """Receives the updates."""
    replay: bool = False
    """Whether the fix is over and its log is shown again. No usage is reported then."""
    _facts: Facts = field(init=False, default_factory=Facts)
    _streamed: bool = field(init=False, default=False)
    _step: int = field(init=False, default=-1)
    _trees: dict[int, str] = field(init=False, default_factory=dict)  # the work tree before each call

    def hear(self, delta: Delta) -> None:
        """Send a piece of a streamed answer."""
        match delta.kind:
            case "reasoning":
                self._streamed = True
                self.tell(update_agent_thought_text(delta.text))
            case "text":
                self._streamed = True
                self.tell(update_agent_message_text(delta.text))
            case "reset":
                self.tell(update_agent_thought_text("\n\n(the answer broke off; asking again)\n\n"))

    def note(self, text: str) -> None:
        """Send a note for the person."""
        self.tell(update_agent_thought_text(f"\n\n{printable_line(text, 500)}\n\n"))

    def see(self, line: Line) -> None:
        """Send the updates for a line of the log."""
        self._facts.see(line)
        handler = getattr(self, "_on_" + line["type"].replace(".", "_"), None)
        if handler is not None:
            handler(line)
        elif (warn := words.WARNINGS.get(line["type"])) and (said := warn(line)):
            self.note(said)

    def _on_session_started(self, line: Line) -> None:
        self._reach(0)
        served = f"{words.server_label(line)} {line['endpoint']['description']}"
        self.note(f"{served}; sandbox {line['sandbox']['backend']}{words.uncommitted(line)}")

    def _on_context_packed(self, line: Line) -> None:
        self._reach(1)
        self.note(f"context {words.context(line)}")

    def _on_baseline(self, line: Line) -> None:
        self.note(f"baseline {words.baseline(line)}")

    def _on_session_resumed(self, _: Line) -> None:
        self._reach(1)

    def _on_endpoint_probed(self, line: Line) -> None:
        if not self._facts.is_embedded:
            self.note(f"model {words.model(line)}")

    def _on_turn_started(self, _: Line) -> None:
        self._streamed = False

    def _on_message(self, line: Line) -> None:
        if not self._streamed:
            if line["reasoning"]:
                self.tell(update_agent_thought_text(line["reasoning"]))
            if line["text"]:
                self.tell(update_agent_message_text(line["text"]))

    def _on_turn_finished(self, line: Line) -> None:
        if self.replay or self._facts.window is None or line["prompt_tokens"] is None:
            return
        used = line["prompt_tokens"] + (line["completion_tokens"] or 0)
        cost = None if line["price"] is None else Cost(amount=line["price"], currency="USD")
        self.tell(UsageUpdate(session_update="usage_update", used=used, size=self._facts.window, cost=cost))

    def _on_person_message(self, line: Line) -> None:
        if self.replay:  # otherwise the editor shows what the person typed
            self.tell(update_user_message_text(line["text"]))

    def _on_call_started(self, line: Line) -> None:
        self._trees[line["call"]] = line["tree"]
        arguments = line["arguments"]
        traits, read = understood(line["name"], arguments)
        path = traits.path(read)
        places = [ToolCallLocation(path=str(self.root / path))] if path and "\0" not in path else None
        self.tell(
            start_tool_call(
                self._call(line),
                step_title(line["name"], arguments),
                kind=traits.kind,
                status="in_progress",
                locations=places,
                raw_input=arguments and {name: _without_data(value) for name, value in arguments.items()},
            )
        )

    def _on_call_finished(self, line: Line) -> None:
        content = "\n".join(_cut(each) for each in without_data(line["content"]).split("\n"))
        if len(content) > MOST_OUTPUT:
            content = f"{content[:MOST_OUTPUT]}\n(and {len(content) - MOST_OUTPUT:,} characters more)"
        failed = line["status"] != "done" or line["is_error"]
        self.tell(
            update_tool_call(
                self._call(line),
                status="failed" if failed else "completed",
                content=[tool_content(text_block(content))] if content else None,
            )
        )

    def _on_file_changed(self, line: Line) -> None:
        before = self._trees.get(line["call"])
        if before is None or self._store is None:
            return
        paths = [path for _, path in line["changes"]]
        with contextlib.suppress(SandboxError):  # the client can do without a diff
            found = diffs(self._store, self.root, before, line["tree"], paths)
            if found:
                self.tell(update_tool_call(self._call(line), content=found))

    @cached_property
    def _store(self) -> TreeStore | None:
        """The store of the fix's trees; None if it was removed, because opening it would create it again."""
        folder = self.folder / TREES
        return TreeStore(folder, only_read=True) if folder.is_dir() else None

    def _on_feedback(self, line: Line) -> None:
        self.note(words.sent_back(line))

    def _on_test_finished(self, line: Line) -> None:
        if line["where"] != "session":
            self._reach(2)

    def _on_verify(self, line: Line) -> None:
        self._reach(3)
        self.note(f"{line['verdict']}: {line['reason']}")
        for before, after, tests in words.deciding_tests(line):
            for each in tests[:MOST_TESTS]:
                self.note(f"{words.change_of_tests(before, after)}: {each}")
            if len(tests) > MOST_TESTS:
                self.note(f"{words.change_of_tests(before, after)}: {len(tests) - MOST_TESTS:,} more")

    def _on_session_finished(self, line: Line) -> None:
        for said in words.evidence(self._facts.verdict, self._facts.compared, isolated=self._facts.isolated):
            self.note(said)
        if line["turns"]:
            self.note(f"cost {cost(line, self._facts)}")

    def _call(self, line: Line) -> str:
        return f"{self.folder.name}-{line['call']}"

    def _reach(self, step: int) -> None:
        """Send the plan when a new step begins; all earlier steps are complete then."""
        if step <= self._step:
            return
        self._step = step
        self.tell(plan(step, isolated=self._facts.isolated))


def _without_data(value: object) -> object:
    """Return an argument of a call; texts without long runs of encoded data, which the session's log contains whole."""
    return without_data(value) if isinstance(value, str) else value


def _cut(line: str) -> str:
    rest = len(line) - MOST_IN_LINE
    return line if rest <= 0 else f"{line[:MOST_IN_LINE]}… ({rest:,} characters more)"


def plan(step: int, *, isolated: bool) -> Update:
    """Return the plan as an update.

    Args:
        step: Index of the step that has begun; `len(STEPS)` if all are complete.
    """

    def status(number: int) -> Literal["pending", "in_progress", "completed"]:
        if number < step:
            return "completed"
        return "in_progress" if number == step else "pending"

    texts = (text.format(fresh_places=words.fresh_places(isolated=isolated)) for text in STEPS)
    return update_plan(
        plan_entry(text, status=status(number), priority="medium") for number, text in enumerate(texts)
    )


def diffs(store: TreeStore, root: Path, before: str, after: str, paths: Sequence[str]) -> list[ToolContent]:
    """Return the changes of files between two trees, without files that are binary or too large.

    Args:
        paths: Paths relative to `root`; only the first `MOST_FILES` are shown.
    """
    shown = paths[:MOST_FILES]
    entries = [store.entries_at(tree, shown) for tree in (before, after)]
    ids = list({entry.sha for tree in entries for entry in tree.values()})
    contents = dict(zip(ids, store.get_blobs(ids), strict=True))
    found = list[ToolContent]()
    for path in shown:
        blobs = [None if path not in tree else contents[tree[path].sha] for tree in entries]
        with contextlib.suppress(_NotShown):
            old, new = map(_text, blobs)
            found.append(tool_diff_content(str(root / path), new or "", old))
    return found


class _NotShown(Exception):
    """A file is binary or too large."""


def _text(blob: bytes | None) -> str | None:
    """Return the text of a file; None for a missing one."""
    if blob is None:
        return None
    if len(blob) > MOST_DIFF or b"\0" in blob:
        raise _NotShown
    try:
        return blob.decode()
    except UnicodeDecodeError:
        raise _NotShown from None
