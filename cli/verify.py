"""`m3agent verify`: verify a patch whoever made it, or check a certificate."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from m3agent.agent.settings.options import Flags, takes_settings
from m3agent.cli.common import (
    AsJson,
    Certificate,
    Repo,
    argument,
    option,
    print_bytes,
    print_json,
    run,
    say,
    settings_in,
    state_folder,
)
from m3agent.util.sanitize import columns_of

if TYPE_CHECKING:
    from m3agent.agent.certificate.build import Change
    from m3agent.agent.certificate.statement import Predicate, Statement
    from m3agent.agent.patches.change import Source
    from m3agent.agent.patches.verification import VerifyRequest

SETTINGS = (
    *("image", "environment", "dockerfile", "sandbox", "allow_net"),
    *("reruns", "checks", "verify_minutes", "baseline_minutes", "github_api", "yes"),
)
"""The settings that a verification needs."""
MAY_PIN = "If the issue asks to change what the broken tests check, verify with"
MOST_PINNED = 10
"""Most options that are shown. If more tests are broken, each option names a test with all of its parameters."""
_PACKAGES = re.compile(r"(?:requirements|constraints)[^/]*\.(?:txt|in)|Gemfile|[^/]+\.(?:cs|fs)proj")
"""Names of files that declare packages and are no manifests."""


@takes_settings(
    *SETTINGS,
    sandbox="Where the tests run.",
    allow_net="Hosts that the tests may reach, through a proxy.",
    verify_minutes="Time for the tests with the patch if the whole suite takes longer.",
    baseline_minutes="Time for the tests without the patch.",
    yes="Let --sandbox here run the tests on this machine with all your rights.",
)
def verify(
    patch: Annotated[
        str | None,
        argument(
            "A patch as `git apply` takes it: a file, or - for standard input. Without one, the changes of the work "
            "tree.",
            "[PATCH]",
            show_default=False,
        ),
    ] = None,
    commit: Annotated[str | None, option("A commit, or a range such as main..HEAD.", "RANGE")] = None,
    branch: Annotated[
        str | None, option("A branch, since it left the commit that is checked out.", "B")
    ] = None,
    pr: Annotated[
        str | None, option("--pr", "The address of a pull request of origin, on GitHub or GitLab.", "URL")
    ] = None,
    base: Annotated[
        str | None, option("The commit without the patch, or a branch that the patch left.", "REV")
    ] = None,
    repo: Repo = Path(),
    issue: Annotated[
        str | None, option("The issue that the patch is for, in any form that fix accepts.", "TEXT")
    ] = None,
    pinned: Annotated[
        list[str] | None,
        option(
            "A test that states what the issue changes. If the patch breaks it, the patch is unverified and not failed; may "
            "be repeated.",
            "TEST",
        ),
    ] = None,
    *,
    flags: Flags,
    certificate: Certificate = None,
    check: Annotated[
        Path | None,
        option(
            "Verify the patch of this certificate again, without results of earlier runs, and print what differs. If the "
            "certificate names no commit, the patch must be in the work tree, or be given.",
            "CERTIFICATE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a patch, whoever made it. No model is asked.

    Exit codes: 0 verified; 1 unverified, failed, or empty (no patch); 2 wrong use; 3 sandbox or environment; 5 refused; 130
    interrupted. With --check: 0 if the certificate holds, 1 if not.
    """
    from m3agent.agent.patches.change import Source
    from m3agent.cli.dockerfiles import ask
    from m3agent.util.errors import UsageError

    source = Source(patch, commit, branch, pr, base)
    if check is not None and (certificate is not None or issue is not None):
        raise UsageError(
            "--check takes the issue from the certificate, and writes none: leave out the other option"
        )
    ask(repo, flags)
    if check is not None:
        raise typer.Exit(run(_check(check, source, repo, flags, as_json=as_json)))
    raise typer.Exit(run(_verify(source, repo, flags, issue, pinned or [], certificate, as_json=as_json)))


async def _verify(
    source: Source,
    repo: Path,
    flags: Flags,
    issue: str | None,
    pinned: Sequence[str],
    certificate: Path | None,
    *,
    as_json: bool,
) -> int:
    """Verify the patch, print the result, and return the exit code."""
    from m3agent.agent.certificate.statement import Statement, check_folder, write
    from m3agent.agent.certificate.table import WIDTH, table
    from m3agent.agent.fix.entry import read_issue
    from m3agent.agent.ui.result import labelled, print_result, sign_of
    from m3agent.agent.verify.accuracy import known_accuracy
    from m3agent.util.daemon_thread import in_background
    from m3agent.util.errors import EXIT_CODES, Status

    if certificate is not None:
        check_folder(certificate)
    request = replace(await _request(source, repo, flags), pinned=tuple(pinned))
    if issue is not None:
        about = await in_background(
            lambda: read_issue(issue, request.repository, request.settings, os.environ, say, sys.stdin)
        )
        request = replace(request, issue=about)
    found = await _verified(request)
    if not isinstance(found, Statement):
        base = found.base.commit[:12]
        if source.named:
            say(f"the patch changes nothing of {base}")
        else:
            say(f"the work tree has no changes since {base}: give a patch file, --commit, --branch or --pr")
        return EXIT_CODES[Status.EMPTY]
    if certificate is not None:
        write(found, certificate)
    if as_json:
        print_bytes(found.text())
    else:
        sign = f"{sign_of(found.predicate.verdict)} "
        accuracy = str(known_accuracy(state_folder(), request.repository.common_dir) or "")
        print_result(labelled(table(found, columns_of(sys.stdout), sign, accuracy), WIDTH))
        say(_next_step(found.predicate))
        if any(map(declares_packages, found.predicate.put_back)):
            say(
                "if the tests need a package that the patch declares, verify with an image that has it: --image NAME"
            )
    return EXIT_CODES[Status(found.predicate.verdict)]


def declares_packages(path: str) -> bool:
    """Return whether a file may declare the packages that tests need."""
    from m3agent.agent.verify.touched import MANIFESTS

    return bool(MANIFESTS.fullmatch(Path(path).name) or _PACKAGES.fullmatch(Path(path).name))


def _next_step(said: Predicate) -> str:
    """Return what to do after a verdict; after broken tests also the options that declare them to state what the issue changes."""
    from m3agent.agent.certificate.next_step import next_step, unstarted
    from m3agent.tools.runners.suites import function_of

    broken = (
        [test.id for test in said.tests.broken] if said.verdict == "failed" and not unstarted(said) else []
    )
    if len(broken) > MOST_PINNED:
        broken = sorted({*map(function_of, broken)})
    pins = [f"--pinned {shlex.quote(ident)}" for ident in broken] if len(broken) <= MOST_PINNED else []
    return f"next: {next_step(said)}" + (f". {MAY_PIN} {' '.join(pins)}" if pins else "")


async def _check(certificate: Path, source: Source, repo: Path, flags: Flags, *, as_json: bool) -> int:
    """Verify the patch of a certificate again, print what differs, and return the exit code."""
    from m3agent.agent.certificate.statement import Statement, read
    from m3agent.agent.certificate.table import WIDTH
    from m3agent.agent.patches.check import (
        Difference,
        differences,
        different_patch,
        issue_of,
        source_of,
        table,
    )
    from m3agent.agent.ui.result import labelled, print_result
    from m3agent.util.errors import UsageError

    stated = read(certificate)
    where = source_of(stated, source)
    request = await _request(where, repo, flags)
    request = replace(request, issue=issue_of(stated), cached=False, pinned=stated.predicate.pinned)
    differing = list[Difference]()

    def is_same(change: Change) -> bool:
        differing[:] = different_patch(stated, change, request.repository)
        return not any(difference.decides for difference in differing)

    again = await _verified(request, is_same)
    if isinstance(again, Statement):
        differing += differences(stated, again)
    elif not where.named:
        raise UsageError(
            f"the changes since {stated.predicate.base.commit[:12]} are not the patch of this certificate: let the work tree have "
            "that patch and no other change, or give the patch as a file or by --commit"
        )
    if as_json:
        print_json([asdict(each) for each in differing])
    else:
        new = again if isinstance(again, Statement) else None
        print_result(labelled(table(new, differing, columns_of(sys.stdout)), WIDTH))
    return 1 if any(difference.decides for difference in differing) else 0


async def _request(source: Source, repo: Path, flags: Flags) -> VerifyRequest:
    import asyncio

    from m3agent.agent.fix.entry import opened
    from m3agent.agent.patches.verification import VerifyRequest

    settings = settings_in(repo, flags)
    repository = await asyncio.to_thread(opened, repo, settings, state_folder())
    return VerifyRequest(source, repository, settings)


async def _verified(
    request: VerifyRequest, expected: Callable[[Change], bool] = lambda _: True
) -> Statement | Change:
    from m3agent.agent.patches.verification import verify_patch
    from m3agent.agent.report.words import fresh_places
    from m3agent.agent.ui.activity import Activity
    from m3agent.sandbox.backends.kinds import is_isolated

    where = fresh_places(isolated=is_isolated(request.settings.sandbox or ""))
    with Activity(f"verifying the patch in {where}") as activity:
        return await verify_patch(
            request, state_folder(), env=os.environ, say=activity.say, expected=expected
        )
