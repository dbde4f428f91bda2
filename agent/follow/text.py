"""Write what the model is told about its pull request, and what m3agent answers there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from m3agent.agent.context.neutralise import harmless
from m3agent.agent.context.output import redact_text
from m3agent.agent.delivery.pr_text import MOST_LISTED, fenced, listed, one_line, spoken
from m3agent.agent.fix.finalize import FixResult
from m3agent.agent.forge.client import MARK, Check, Remark

LOG_LENGTH = 12_000
"""Most characters of a log."""
TEXT_LENGTH = 20_000
"""Most characters of a remark."""
CODE_LINES = 12
"""Most lines of code with a remark."""
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z ", re.MULTILINE)
_ERROR = "##[error]"

CONFLICT = (
    "The branch that your change goes to has changed, and your change conflicts with it. The work tree now has the files of "
    "that branch, without your change. Make your change again on them, so that both are kept. This was your change:"
)


def for_model(
    label: str,
    checks: Sequence[Check],
    logs: Mapping[str, str],
    remarks: Sequence[Remark],
    conflict: str | None,
) -> str:
    """Return the message to the model.

    Args:
        conflict: The patch so far, if it conflicts with the target branch; else None.
    """
    parts = [f"Your change is pull request {label} now. This happened there:"]
    if conflict is not None:
        parts += [CONFLICT, fenced(_end(conflict, LOG_LENGTH))]
    for check in checks:
        parts.append(f"The check '{check.name}' failed. The end of its output, which programs wrote:")
        parts.append(fenced(end_of_log(logs.get(check.key, "")) or "(it printed nothing)"))
    for remark in remarks:
        where = f" about {remark.place}" if remark.place else ""
        parts.append(f"{remark.author}, a member of the project, writes{where}:")
        if remark.code:
            parts.append(fenced("\n".join(remark.code.splitlines()[-CODE_LINES:])))
        parts.append(remark.text[:TEXT_LENGTH])
    parts.append(
        "Change the code so that the checks pass and the members' wishes are met, and run the tests. Then say for each of "
        "them in a sentence what you did; if nothing needs to change for one, say why."
    )
    return harmless(redact_text("\n\n".join(parts)))


def end_of_log(text: str) -> str:
    """Return the part of a log that shows a failure: up to its last error if it marks one, else its end."""
    text = _TIME.sub("", text)
    at = text.rfind(_ERROR)
    if at >= 0:
        end = text.find("\n", at)
        text = text[: end if end >= 0 else None]
    return _end(text.strip(), LOG_LENGTH)


def _end(text: str, most: int) -> str:
    return (
        text
        if len(text) <= most
        else f"[the first {len(text) - most} characters are left out]\n{text[-most:]}"
    )


def answer(
    result: FixResult,
    checks: Sequence[Check],
    remarks: Sequence[Remark],
    round_: int,
    rounds: int,
    before: str,
) -> str:
    """Return the comment that says what was done, in Markdown. All words of others are in fenced code."""
    opened = result.opened
    if opened is None:
        done = "m3agent could not do what is asked, and pushed nothing."
    elif opened.commit == before:
        done = "m3agent changed nothing."
    else:
        done = f"m3agent pushed commit {opened.commit}."
    parts = [MARK, f"{done} This is round {round_} of at most {rounds}."]
    parts += ["The result:", fenced(one_line(f"{result.status}: {result.reason}", 500))]
    about = [f"check {check.name}" for check in checks]
    about += [f"{remark.author} {remark.place} {remark.url}" for remark in remarks]
    parts += listed("Read", about[:MOST_LISTED])
    if result.evidence is not None:
        parts += listed("Red before, green with the patch", sorted(result.evidence.fixed))
        parts += listed("Broken", sorted(result.evidence.broken))
    if result.words.strip():
        parts += ["The model's own words, which nobody has checked:", fenced(spoken(result.words))]
    return "\n\n".join(parts) + "\n"
