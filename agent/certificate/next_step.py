"""Say what to do after a verdict."""

from __future__ import annotations

from m3agent.agent.certificate.statement import Predicate
from m3agent.agent.verify.rules import (
    MEND,
    NEEDS_REVIEW,
    NO_RUN,
    NOT_ABOUT,
    NOT_TESTED,
    STATES,
    UNTESTABLE,
    WEAKER,
)

OTHER_PYTHON = "name an image that has this Python with --image, and verify again"
REVIEW = "read the lines that need a review; apply the patch if they are right"
RESTORE = (
    "take the changes of these tests out of the patch, or read them and apply the patch if they are right"
)
CONTRADICTS = (
    "read the tests that the patch breaks; if the issue asks for it, apply the patch with these tests changed"
)
LEFT = "read the patch and apply it; the tests that are still red need a fix of their own"
BY_REASON = (
    (NOT_TESTED, OTHER_PYTHON),
    (NO_RUN, MEND),
    (UNTESTABLE, MEND),
    (NEEDS_REVIEW, REVIEW),
    (WEAKER, RESTORE),
)
"""How reasons begin, and what to do then."""
BY_VERDICT = {
    "verified": "read the patch; a verified patch can still be wrong",
    "unverified": "add a test that fails without the patch, to the patch or in a commit before it, and verify again",
    "failed": "change the patch, and verify again",
}


def next_step(said: Predicate) -> str:
    """Return what to do after the verdict of a certificate."""
    if said.verdict == "unverified" and STATES in said.reason:
        return CONTRADICTS
    if NOT_ABOUT in said.reason:
        return LEFT
    if stopped := unstarted(said):
        return f"mend what keeps {stopped} from starting, and verify again"
    return next(
        (step for start, step in BY_REASON if said.reason.startswith(start)), BY_VERDICT[said.verdict]
    )


def unstarted(said: Predicate) -> str:
    """Return a test file of which no test runs with a patch that failed, because the file fails itself; otherwise an empty text."""
    broken = [test.id for test in said.tests.broken] if said.verdict == "failed" else []
    files = {ident.partition("::")[0] for ident in broken if "::" in ident}
    return next((ident for ident in broken if ident in files), "")
