"""Puts a report together from a session's log.

Nothing of the log is relied on: fields that an older version did not write, or that are of another kind, are unknown.
Events of a type unknown here are left out, with a note.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from m3agent.agent.report import text as show
from m3agent.agent.report.model import Call, Incident, Request, SessionReport, SuiteRun, Turn
from m3agent.agent.report.patch import parse_patch
from m3agent.agent.session import PATCH
from m3agent.agent.session_log import (
    Line,
    SessionLog,
    items,
    mapping,
    number,
    strings,
    text,
    whole,
)
from m3agent.agent.sessions import NOT_FINISHED
from m3agent.tools.registry import traits_of

MOST_PATCH = 400_000
"""Characters of a patch shown; what is longer is cut, with a note where the whole is."""


def report_of(log: SessionLog, folder: Path | None) -> SessionReport:
    """The report of one session. folder: the session's, where its patch is; None for a log that stands alone."""
    reader = _Reader(SessionReport(folder.name if folder else log.path.stem))
    for position, line in enumerate(log.events, 1):
        reader.read(line, position)
    report = reader.report
    if not report.total:
        report.reason = "the log has no end: the session is still running, or it was killed"
        if log.events:
            report.reason += f"; the last event is of {show.moment(text(log.events[-1], 'ts'))}"
    report.notes += log.notes
    report.notes += [
        f"{times} events of the type '{kind}' are left out: this version does not know it"
        for kind, times in reader.unknown.items()
    ]
    _add_patch(report, folder)
    return report


def _add_patch(report: SessionReport, folder: Path | None) -> None:
    """Read the patch from the session's folder. A log's own word on where it is, is never followed: it may be forged."""
    path = folder / PATCH if folder else None
    if path is not None and path.is_file() and not path.is_symlink():
        content = path.read_bytes().decode(errors="surrogateescape")
        report.patch_path = str(path)
        if len(content) > MOST_PATCH:
            cut = content.rfind("\n", 0, MOST_PATCH) + 1 or MOST_PATCH
            report.notes.append(
                f"the patch is cut after {cut:,} of {len(content):,} characters; the whole is in {path}"
            )
            content = content[:cut]
        report.patch = parse_patch(content)
    elif text(report.total, "patch"):
        report.notes.append(f"the patch is not here; the session wrote it to {text(report.total, 'patch')}")


class _Reader:
    """Goes through a log's events, each by the method of its type."""

    def __init__(self, report: SessionReport) -> None:
        self.report = report
        self.unknown: Counter[str] = Counter()
        self._calls: dict[int | None, Call] = {}
        self._next: list[Incident] = []  # what the turn that begins next is to show first
        self._methods: dict[str, Callable[[Line, int], None]] = {
            "session.started": self._started,
            "session.resumed": self._resumed,
            "session.forked": self._forked,
            "environment.ready": self._environment,
            "context.packed": self._packed,
            "endpoint.probed": self._probed,
            "turn.started": self._turn_started,
            "retry": self._retry,
            "message": self._message,
            "turn.finished": self._turn_finished,
            "call.started": self._call_started,
            "call.finished": self._call_finished,
            "file.changed": self._changed,
            "network.request": self._network,
            "test.finished": self._tests,
            "stall": self._stall,
            "gate": self._gate,
            "context.summarised": self._summarised,
            "verify": self._verify,
            "error": self._error,
            "attempt.chosen": self._chosen,
            "session.finished": self._finished,
        }

    def read(self, line: Line, position: int) -> None:
        method = self._methods.get(text(line, "type"))
        if method is None:
            self.unknown[show.one_line(text(line, "type") or "(none)", 60)] += 1
        else:
            method(line, position)

    def _fact(self, name: str, value: str) -> None:
        if value and (name, value) not in self.report.facts:  # a resumed session says it again
            self.report.facts.append((name, value))

    def _started(self, line: Line, _: int) -> None:
        report = self.report
        if report.started:
            return  # another process went on with the session: what it is about stands
        report.started = text(line, "ts")
        report.title, report.issue = text(line, "issue", "title"), text(line, "issue", "text")
        report.source = text(line, "issue", "source")
        report.repository = text(line, "repository", "root")
        self._fact("Repository", report.repository or ("bare" if line.get("repository") else ""))
        head, branch = text(line, "repository", "head"), text(line, "repository", "branch")
        dirty = whole(line, "repository", "dirty")
        changed = f", {dirty} uncommitted changes included" if dirty else ""
        self._fact("Commit", f"{head} ({branch or 'detached'}){changed}" if head else "")
        self._fact("Engine", text(line, "endpoint", "description"))
        self._fact("Endpoint", text(line, "endpoint", "url"))
        image = text(line, "sandbox", "image")
        self._fact("Sandbox", text(line, "sandbox", "backend") + (f", image {image}" if image else ""))
        names = [
            name
            for image in items(line, "issue", "images")
            if isinstance(image, dict) and (name := text(image, "name"))
        ]
        self._fact("Images", ", ".join(names))
        self._fact("m3agent", text(line, "m3agent"))
        if attempt := whole(line, "attempt", "number"):
            temperature, hint = number(line, "attempt", "temperature"), text(line, "attempt", "hint")
            own = f", temperature {temperature:g}" if temperature is not None else ""
            own += f", told: {hint}" if hint else ""
            self._fact("Attempt", f"{attempt} of {show.count(whole(line, 'attempt', 'of'))}{own}")
        settings = mapping(line, "settings")
        report.settings = [(name, _as_json(value)) for name, value in settings.items() if value is not None]

    def _resumed(self, line: Line, _: int) -> None:
        self._goes_on()
        cut_off = len(items(line, "interrupted"))
        calls = f"; calls that were cut off and not run again: {cut_off}" if cut_off else ""
        told = f"the session went on in another process at {show.moment(text(line, 'ts'))}{calls}"
        self._next.append(Incident("resumed", told, bad=False))

    def _forked(self, line: Line, _: int) -> None:
        told = (
            f"the turns before are those of session {text(line, 'source')}; from here on it is one of its own"
        )
        self._next.append(Incident("forked", told, bad=False))

    def _goes_on(self) -> None:
        """What ended the session before was not its end."""
        self.report.total, self.report.status, self.report.reason = {}, NOT_FINISHED, ""

    def _environment(self, line: Line, _: int) -> None:
        self._fact("Environment", f"{text(line, 'image')} ({show.duration(number(line, 'seconds'))})")

    def _packed(self, line: Line, _: int) -> None:
        approx = "" if line.get("exact") is True else "≈"
        dropped = sum(value for key in mapping(line, "dropped") if (value := whole(line, "dropped", key)))
        parts = [
            f"{show.count(number(line, 'files'))} files",
            f"{approx}{show.count(number(line, 'tokens'))} tokens",
            *([f"{dropped:,} left out"] if dropped else []),
            *([f"secrets redacted in {len(items(line, 'redacted'))}"] if items(line, "redacted") else []),
        ]
        self._fact("Context", ", ".join(parts))

    def _probed(self, line: Line, _: int) -> None:
        version, window = text(line, "version"), whole(line, "max_model_len")
        server = " ".join(part for part in (text(line, "flavour"), version) if part)
        known = f", window of {window:,} tokens" if window else ""
        self._fact("Model", f"{text(line, 'model')} on {server or 'an unknown server'}{known}")
        caching = line.get("prefix_caching")
        if isinstance(caching, bool):
            self._fact(
                "Prefix cache", "works" if caching else "the server did not find a prompt's beginning again"
            )

    def _turn_started(self, line: Line, position: int) -> None:
        number_ = whole(line, "turn") or len(self.report.turns) + 1
        turn = self._new_turn(number_, position)
        turn.started = text(line, "ts")
        began, now = show.instant(self.report.started), show.instant(turn.started)
        turn.after = max(0.0, (now - began).total_seconds()) if began and now else None
        turn.before, self._next = self._next, []
        if self.report.total:
            self._goes_on()

    def _new_turn(self, number_: int, position: int) -> Turn:
        again = sum(turn.number == number_ for turn in self.report.turns)
        label = f"{number_}.{again + 1}" if again else str(number_)
        turn = Turn(number_, label, line=position)
        self.report.turns.append(turn)
        return turn

    def _turn(self, line: Line, position: int) -> Turn:
        """The turn that an event belongs to: its last one of that number, else the last."""
        number_ = whole(line, "turn")
        for turn in reversed(self.report.turns):
            if turn.number == number_ or number_ is None:
                return turn
        return self._new_turn(number_ or 1, position)

    def _retry(self, line: Line, position: int) -> None:
        wait = show.duration(number(line, "wait"))
        self._turn({}, position).before.append(
            Incident("retry", f"{text(line, 'reason')} (again after {wait})")
        )

    def _message(self, line: Line, position: int) -> None:
        turn = self._turn(line, position)
        turn.line, turn.reasoning, turn.text = position, text(line, "reasoning"), text(line, "text")

    def _turn_finished(self, line: Line, position: int) -> None:
        turn = self._turn(line, position)
        turn.used, turn.finish = line, text(line, "finish")

    def _call_started(self, line: Line, position: int) -> None:
        arguments = line.get("arguments")
        arguments = arguments if isinstance(arguments, dict) else None
        call = Call(
            number=whole(line, "call"),
            id=text(line, "id"),
            name=text(line, "name"),
            arguments=arguments,
            line=position,
            argument=show.one_line(traits_of(text(line, "name")).title(arguments), 120),
        )
        self._calls[call.number] = call
        self._turn(line, position).calls.append(call)

    def _call(self, line: Line) -> Call | None:
        return self._calls.get(whole(line, "call"))

    def _call_finished(self, line: Line, position: int) -> None:
        call = self._call(line)
        if call is None:
            self._call_started(line, position)
            call = self._calls[whole(line, "call")]
        call.status, call.content = text(line, "status"), text(line, "content")
        call.is_error, call.exit_code = line.get("is_error") is True, whole(line, "exit_code")
        call.seconds, call.result_line = number(line, "seconds"), position
        if line.get("truncated") is True:
            call.whole_output = text(line, "full_path")

    def _changed(self, line: Line, position: int) -> None:
        changes = [
            (str(change[0]), str(change[1]))
            for change in items(line, "changes")
            if isinstance(change, list) and len(change) == 2
        ]
        if call := self._call(line):
            call.changes += changes
        else:
            names = ", ".join(f"{letter} {path}" for letter, path in changes)
            self._turn(line, position).incidents.append(Incident("changed", names, bad=False))

    def _network(self, line: Line, position: int) -> None:
        host, port = text(line, "host"), whole(line, "port")
        what = f"{text(line, 'method')} {host}:{port}" if host else "a malformed request"
        verdict, reason = text(line, "verdict"), text(line, "reason")
        outside = text(line, "where") == "verify" or not self.report.turns
        into = self.report.requests if outside else self._turn({}, position).requests
        same = (what, verdict, reason)
        request = next((r for r in into if (r.what, r.verdict, r.reason) == same), None)
        if request is None:
            into.append(request := Request(what, verdict, reason))
        request.times += 1
        request.sent += number(line, "sent") or 0
        request.received += number(line, "received") or 0

    def _tests(self, line: Line, position: int) -> None:
        where = text(line, "where")
        run = SuiteRun(
            where,
            passed=len(items(line, "passed")),
            failed=tuple(strings(line, "failed")),
            errored=tuple(strings(line, "errored")),
            skipped=len(items(line, "skipped")),
            complete=line.get("complete") is not False,
        )
        if where == "before":
            self.report.before = run
        elif where == "after":
            self.report.after = run
        elif call := self._call(line):
            call.runs.append(run)
        else:
            told = f"{run.passed} passed, {len(run.failed)} failed, {len(run.errored)} errors"
            self._turn({}, position).incidents.append(Incident("tests", told, bad=run.red))

    def _stall(self, line: Line, position: int) -> None:
        actions = {
            "told": "the model was told",
            "forced": "a different move was asked for",
            "stopped": "the session was stopped",
        }
        what = actions.get(text(line, "action"), "")
        rule = ", ".join(part for part in (text(line, "rule"), what) if part)
        turn = self._turn(line, position)
        into = turn.calls[-1].incidents if turn.calls else turn.incidents
        said = text(line, "text").partition("\n\n")[0]
        into.append(Incident("stall", f"{said} ({rule})"))

    def _gate(self, line: Line, position: int) -> None:
        missing = text(line, "missing")
        told = missing or "the model says it is done, and nothing is missing"
        self._turn(line, position).incidents.append(Incident("gate", told, bad=bool(missing)))

    def _summarised(self, line: Line, position: int) -> None:
        kept = show.count(whole(line, "kept"))
        whose = "the model's notes" if line.get("own_words") is True else "a list of its calls"
        told = f"the window was nearly full: {whose} took the place of all but the last {kept} messages"
        self._turn(line, position).incidents.append(Incident("summary", told, bad=False))

    def _chosen(self, line: Line, _: int) -> None:
        ranking = [
            f"{show.count(whole(rank, 'number'))} {text(rank, 'verdict')}"
            + (f", {broken} broken" if (broken := whole(rank, "regressions")) else "")
            for rank in items(line, "ranking")
            if isinstance(rank, dict)
        ]
        self._fact(
            "Attempts", f"{show.count(whole(line, 'chosen'))} chosen; best first: {'; '.join(ranking)}"
        )

    def _verify(self, line: Line, _: int) -> None:
        self.report.verdict = line

    def _error(self, line: Line, _: int) -> None:
        kind = text(line, "kind")
        self.report.errors.append(f"{kind}: {text(line, 'text')}" if kind else text(line, "text"))

    def _finished(self, line: Line, _: int) -> None:
        report = self.report
        report.total, report.reason = line, text(line, "reason")
        report.status = text(line, "status") or NOT_FINISHED
        report.notes += strings(line, "notes")


def _as_json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
