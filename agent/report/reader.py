"""Build a report from a session's record.

Nothing here relies on a field of the log: fields that are missing or have the wrong type are unknown. Events of unknown
types are left out, with a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from m3agent.agent.report import text as show
from m3agent.agent.report import words
from m3agent.agent.report.model import CallView, Incident, Request, SessionReport, SuiteRun, TurnView
from m3agent.agent.report.patch import parse_patch
from m3agent.agent.report.words import step_outcome, step_title
from m3agent.agent.session.catalog import NOT_FINISHED
from m3agent.agent.session.log_reader import Line, SessionLog, number, text, whole
from m3agent.agent.session.record import CallRecord, SessionRecord, TurnRecord, is_embedded, record_of
from m3agent.agent.session.session import PATCH
from m3agent.util.counted import counted
from m3agent.util.errors import Status
from m3agent.util.json_value import items, mapping, mappings, strings

MOST_PATCH = 400_000
"""Most characters of a patch that are shown. If the patch is longer, a note says where the complete patch is."""
_ACCEPTED = "the model says it is done, and the gate found nothing missing"
_WITHOUT_CHANGE: dict[str, str] = {
    Status.EMPTY: "the model says it is done, and the session ends without a change",
    Status.ANSWERED: "the model has answered, and nothing was changed",
}
"""What an accepted last answer is, by the status of the session."""


def report_of(log: SessionLog, folder: Path | None) -> SessionReport:
    """Return the report of one session.

    Args:
        folder: The session's folder, which contains its patch; None for a log outside a session's folder.
    """
    record = record_of(log.events)
    started, ended = record.started, record.ended
    runs = {where: _suite_run(line) for where, line in record.tests.items()}
    report = SessionReport(
        folder.name if folder else log.path.stem,
        record,
        status=text(ended, "status") or NOT_FINISHED,
        reason=text(ended, "reason"),
        title=text(started, "issue", "title"),
        issue=text(started, "issue", "text"),
        source=text(started, "issue", "source"),
        repository=text(started, "repository", "root"),
        started=text(started, "ts"),
        facts=_facts(record),
        settings=[
            (name, _as_json(value))
            for name, value in mapping(started, "settings").items()
            if value is not None
        ],
        before=runs.get("before"),
        after=runs.get("after"),
        requests=_requests(record.network),
        errors=[text(e, "text") or text(e, "kind") for e in record.errors],
        notes=strings(ended, "notes"),
    )
    for turn in record.turns:
        report.turns.append(_turn(turn, report))
    if not ended:
        report.reason = "the log has no end: the session is still running, or it was killed"
        if log.events:
            report.reason += f"; the last event is of {show.moment(text(log.events[-1], 'ts'))}"
    report.notes += log.notes
    report.notes += [
        f"{times} events of the type '{show.one_line(kind or '(none)', 60)}' are left out: this version does not know it"
        for kind, times in record.unknown.items()
    ]
    _add_patch(report, folder)
    return report


def _add_patch(report: SessionReport, folder: Path | None) -> None:
    """Read the patch from the session's folder. The path in the log is never used, because it may be forged."""
    path = folder / PATCH if folder else None
    if path is not None and path.is_file() and not path.is_symlink():
        content = path.read_bytes().decode(errors="surrogateescape")
        if len(content) > MOST_PATCH:
            cut = content.rfind("\n", 0, MOST_PATCH) + 1 or MOST_PATCH
            report.notes.append(
                f"the patch is cut after {cut:,} of {len(content):,} characters; the full patch is in {path}"
            )
            content = content[:cut]
        report.patch = parse_patch(content)
    elif text(report.record.ended, "patch"):
        report.notes.append(
            f"the patch is not here; the session wrote it to {text(report.record.ended, 'patch')}"
        )


def _facts(record: SessionRecord) -> list[tuple[str, str]]:
    """Return the facts from before the first turn as (name, value), each once: a resume logs them again."""
    found = [*_facts_of_start(record.started)]
    has_server = not is_embedded(record.started, record.prepared)
    packed: tuple[str, float | None] = "", None
    window: int | None = None
    for line in record.prepared:
        match line["type"]:
            case "environment.ready":
                seconds = show.duration(number(line, "seconds"))
                found.append(("Environment", f"{text(line, 'image')} ({seconds})"))
            case "tests.collected":
                if files := len(mapping(line, "errors")):
                    found.append(("Not importable", counted(files, "test file")))
            case "baseline":
                found.append(("Baseline", words.baseline(line)))
            case "context.packed":
                packed = words.context(line), number(line, "tokens")
            case "endpoint.probed" if has_server:
                window = whole(line, "max_model_len")
                found += _facts_of_server(line)
    if packed[0]:
        found.append(("Context", packed[0] + words.share_of_window(packed[1], window)))
    if record.choice:
        found.append(("Attempts", _choice(record.choice)))
    return list(dict.fromkeys((name, value) for name, value in found if value))


def _facts_of_start(line: Line) -> list[tuple[str, str]]:
    root = text(line, "repository", "root") or ("bare" if line.get("repository") else "")
    head, branch = text(line, "repository", "head"), text(line, "repository", "branch")
    image = text(line, "sandbox", "image")
    images = filter(None, (text(each, "name") for each in mappings(line, "issue", "images")))
    return [
        ("Repository", root),
        ("Commit", f"{head} ({branch or 'detached'}){words.uncommitted(line)}" if head else ""),
        (words.server_label(line).capitalize(), text(line, "endpoint", "description")),
        ("Address", text(line, "endpoint", "url")),
        ("Sandbox", text(line, "sandbox", "backend") + (f", image {image}" if image else "")),
        ("Images", ", ".join(images)),
        ("m3agent", text(line, "m3agent")),
        ("Attempt", _attempt(line)),
    ]


def _attempt(line: Line) -> str:
    attempt = whole(line, "attempt", "number")
    if not attempt:
        return ""
    temperature, hint = number(line, "attempt", "temperature"), text(line, "attempt", "hint")
    own = f", temperature {temperature:g}" if temperature is not None else ""
    own += f", told: {hint}" if hint else ""
    return f"{attempt} of {show.count(whole(line, 'attempt', 'of'))}{own}"


def _facts_of_server(line: Line) -> list[tuple[str, str]]:
    window = whole(line, "max_model_len")
    known = f", window of {window:,} tokens" if window else ""
    found = [("Model", f"{words.model(line)}{known}")]
    caching = line.get("prefix_caching")
    if isinstance(caching, bool):
        works = "works" if caching else "the server did not reuse a prompt's prefix"
        found.append(("Prefix cache", works))
    return found


def _choice(line: Line) -> str:
    ranking = [
        f"{show.count(whole(rank, 'number'))} {text(rank, 'verdict')}"
        + (f", {broken} broken" if (broken := whole(rank, "regressions")) else "")
        for rank in mappings(line, "ranking")
    ]
    return f"{show.count(whole(line, 'chosen'))} chosen; best first: {'; '.join(ranking)}"


def _turn(turn: TurnRecord, report: SessionReport) -> TurnView:
    """Return a turn for the page; `report` contains the turns before it."""
    again = sum(before.number == turn.number for before in report.turns)
    started = text(turn.request, "ts")
    began, now = show.instant(report.started), show.instant(started)
    shown = TurnView(
        turn.number,
        label=f"{turn.number}.{again + 1}" if again else str(turn.number),
        started=started,
        after=max(0.0, (now - began).total_seconds()) if began and now else None,
        line=turn.line,
        reasoning=turn.reasoning,
        text=turn.text,
        finish=text(turn.finished, "finish"),
        used=turn.finished,
        before=[_incident(line) for line in turn.before],
        requests=_requests(turn.of_type("network.request")),
    )
    is_last = turn is report.record.turns[-1]
    _add_incidents(shown, turn, report.status if is_last else "")
    return shown


def _add_incidents(shown: TurnView, turn: TurnRecord, ended: str) -> None:
    """Add a turn's calls and incidents to its view; `ended` is the session's status if the turn is the last one."""
    for call in turn.calls:
        incidents = [_incident(line) for line in call.of_type("stall")]
        if call.started or call.finished:
            shown.calls.append(_call(call, incidents))
        else:
            shown.incidents += incidents
    for line in turn.events:
        kind = line["type"]
        if kind == "gate":
            shown.incidents.append(_gate(line, ended))
        elif kind == "stall" and shown.calls:
            shown.calls[-1].incidents.append(_incident(line))
        elif kind in INCIDENTS:
            shown.incidents.append(_incident(line))


def _call(call: CallRecord, incidents: list[Incident]) -> CallView:
    """Return a call for the page. It must have started or have a result."""
    line, result = call.started or call.finished, call.finished
    arguments = line.get("arguments")
    arguments = arguments if isinstance(arguments, dict) else None
    return CallView(
        number=whole(line, "call"),
        name=text(line, "name"),
        arguments=arguments,
        line=call.line or call.result_line,
        title=step_title(text(line, "name"), arguments),
        outcome=step_outcome(result) if result else "cut off: there is no result",
        status=text(result, "status"),
        content=text(result, "content"),
        is_error=result.get("is_error") is True,
        exit_code=whole(result, "exit_code"),
        seconds=number(result, "seconds"),
        whole_output=text(result, "full_path") if result.get("truncated") is True else "",
        result_line=call.result_line or None,
        changes=[change for line in call.of_type("file.changed") for change in _changes(line)],
        runs=[_suite_run(line) for line in call.of_type("test.finished")],
        incidents=incidents,
    )


def _changes(line: Line) -> list[tuple[str, str]]:
    return [
        (str(change[0]), str(change[1]))
        for change in items(line, "changes")
        if isinstance(change, list) and len(change) == 2
    ]


def _suite_run(line: Line) -> SuiteRun:
    return SuiteRun(
        text(line, "where"),
        passed=len(items(line, "passed")),
        failed=tuple(strings(line, "failed")),
        errored=tuple(strings(line, "errored")),
        skipped=len(items(line, "skipped")),
        complete=line.get("complete") is not False,
    )


def _requests(lines: list[Line]) -> list[Request]:
    """Count network requests, equal ones together."""
    found: dict[tuple[str, str, str], Request] = {}
    for line in lines:
        host, port = text(line, "host"), whole(line, "port")
        what = f"{text(line, 'method')} {host}:{port}" if host else "a malformed request"
        key = (what, text(line, "verdict"), text(line, "reason"))
        request = found.setdefault(key, Request(*key))
        request.times += 1
        request.sent += number(line, "sent") or 0
        request.received += number(line, "received") or 0
    return list(found.values())


def _incident(line: Line) -> Incident:
    """Return the incident for an event."""
    kind = line["type"]
    if kind in _CALM:
        name, told = _CALM[kind]
        return Incident(name, told(line), bad=False)
    if made := _OTHERS.get(kind):
        return made(line)
    return Incident(kind.partition(".")[0], words.WARNINGS[kind](line))


def _resumed(line: Line) -> str:
    cut_off = len(items(line, "interrupted"))
    calls = f"; interrupted calls that were not run again: {cut_off}" if cut_off else ""
    return f"the session continued in another process at {show.moment(text(line, 'ts'))}{calls}"


def _proposal(line: Line) -> str:
    red = "".join(f"\n{ident}: {error}" for ident, error in mapping(line, "tests").items())
    return f"waits until the person accepts it{red}"


def _tested(line: Line) -> Incident:
    run = _suite_run(line)
    told = f"{run.passed} passed, {len(run.failed)} failed, {len(run.errored)} errors"
    return Incident("tests", told, bad=run.red)


def _gate(line: Line, ended: str) -> Incident:
    """Return the incident for an answer that ends the work; `ended` is the session's status if it is the last answer."""
    if missing := words.not_done(line):
        return Incident("gate", missing)
    return Incident("gate", _WITHOUT_CHANGE.get(ended, _ACCEPTED), bad=ended == Status.EMPTY)


def _summary(line: Line) -> str:
    kept = show.count(whole(line, "kept"))
    whose = "the model's notes" if line.get("own_words") is True else "a list of its calls"
    return f"the window was nearly full: {whose} replaced all but the last {kept} messages"


_CALM: Mapping[str, tuple[str, Callable[[Line], str]]] = {
    "session.resumed": ("resumed", _resumed),
    "session.forked": (
        "forked",
        lambda line: (
            f"the turns before belong to session {text(line, 'source')}; this session continues from here"
        ),
    ),
    "pull.followed": (
        "followed",
        lambda line: f"the session continues because of comments or checks on {text(line, 'pull_request')}",
    ),
    "proposal": ("proposal", _proposal),
    "person.message": ("person", lambda line: text(line, "text")),
    "context.summarised": ("summary", _summary),
    "file.changed": (
        "changed",
        lambda line: ", ".join(f"{letter} {path}" for letter, path in _changes(line)),
    ),
}
"""Events that are no fault: how the page calls each, and what it says of it."""
_OTHERS: Mapping[str, Callable[[Line], Incident]] = {
    "proposal.answered": lambda line: Incident(
        "person" if line.get("by", "person") == "person" else "m3agent",
        "accepted" if line.get("accepted") is True else text(line, "text"),
        bad=False,
    ),
    "feedback": lambda line: Incident("verdict", f"{words.sent_back(line)}:\n{text(line, 'text')}"),
    "test.finished": _tested,
}
"""What the page shows of other events that are no warnings (`words.WARNINGS`)."""
INCIDENTS = frozenset(_CALM) | frozenset(_OTHERS) | frozenset(words.WARNINGS)
"""Types of the events that are incidents."""


def _as_json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
