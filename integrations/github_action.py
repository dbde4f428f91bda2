"""m3agent as a GitHub Action: decide by the event whether to work, run m3agent, and report.

`action.yml` runs this module. It reads titles, bodies and comments from the event's file, so none of them reaches a shell. Every
program starts with a list of arguments and a short list of environment variables.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from m3agent.agent.certificate.statement import read
from m3agent.agent.delivery.pr_text import fenced
from m3agent.agent.forge.address import Project
from m3agent.agent.forge.api import Api, Token
from m3agent.agent.forge.connection import GitHub
from m3agent.agent.session.catalog import session_folders
from m3agent.agent.session.log_reader import LOG, read_ends, text
from m3agent.util.errors import EXIT_CODES, M3AgentError, PermissionRefused, Status, UsageError
from m3agent.util.plain_file import read_first
from m3agent.util.sanitize import print_text, printable_line, quoted

VERDICTS = {"verified": 0, "unverified": 1, "failed": 2}
FAIL_ON = {"failed": 2, "unverified": 1, "never": 3}
"""The least bad verdict that fails the job, by the value of the input `fail-on`."""
_MOST_EVENT = 32 << 20
_PASSED_ON = re.compile(
    r"PATH|HOME|USER|LANG|LC_\w+|TZ|TMPDIR|RUNNER_TEMP|DOCKER_\w+|SSL_\w+|(HTTPS?|NO|ALL)_PROXY"
    r"|M3AGENT_(SANDBOX|IMAGE|ENVIRONMENT|RERUNS|VERIFY_MINUTES|BASELINE_MINUTES)",
    re.IGNORECASE,
)
"""Variables that m3agent gets in each mode. None of GitHub's tokens is among them."""
_FOR_A_FIX = re.compile(r"M3AGENT_(ENDPOINT|ENGINE|MODEL|API_KEY|MAX_\w+)|GITHUB_TOKEN")
"""Further variables that a fix gets."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REPOSITORY = re.compile(r"(?!\.)[\w.-]+/(?!\.\.?$)[\w.-]+", re.ASCII)


class NothingToDo(Exception):
    """The event asks for nothing; with the reason."""


@dataclass(frozen=True)
class Action:
    """The environment of one step."""

    env: Mapping[str, str]
    """The environment variables."""
    event: Mapping[str, Any]
    """What happened, as GitHub describes it."""

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Action:
        """Return the action of a runner's environment. Raises UsageError."""
        try:
            event = json.loads(read_first(env["GITHUB_EVENT_PATH"], _MOST_EVENT))
        except (KeyError, OSError, ValueError):
            raise UsageError(
                "the event cannot be read: this program runs in a step of GitHub Actions"
            ) from None
        return cls(env, event if isinstance(event, dict) else {})

    @property
    def folder(self) -> Path:
        """A folder that only this job has. Nothing in it is there for the next job."""
        return Path(self.env["RUNNER_TEMP"]) / "m3agent"

    @property
    def place(self) -> list[str]:
        """The options that name the checkout and GitHub's server."""
        return ["--repo", self.env["GITHUB_WORKSPACE"], "--github-api", self.env["GITHUB_API_URL"]]

    def passed_on(self, *more: re.Pattern[str]) -> dict[str, str]:
        """Return the environment of m3agent, with its state in the job's own folder."""
        kept = {
            name: value
            for name, value in self.env.items()
            if value and any(pattern.fullmatch(name) for pattern in (_PASSED_ON, *more))
        }
        return {**kept, "M3AGENT_STATE": str(self.folder / "state")}

    def text(self, *names: str) -> str:
        """Return a text of the event, given the names on the way to it; empty if there is none."""
        return text(self.event, *names)


def verify(action: Action) -> int:
    """Verify the pull request of the event, and return the exit code of the step.

    The settings are those of the base, which the step before has checked out. The patch is the merge that GitHub made.

    Raises:
        UsageError: The event is no pull request.
    """
    name = action.env.get("GITHUB_EVENT_NAME", "")
    if name != "pull_request":
        raise UsageError(
            f"mode verify is for the event pull_request, and this is {quoted(name)}: never run it by pull_request_target, "
            "which has secrets"
        )
    commit = action.env.get("GITHUB_SHA", "")
    if not _COMMIT.fullmatch(commit):
        raise UsageError("GITHUB_SHA is no commit")
    certificate = action.folder / "certificate.json"
    arguments = ["verify", "--repo", str(action.folder / "base"), "--commit", commit]
    code, shown = _run(action, [*arguments, "--certificate", str(certificate)], action.passed_on())
    return _report(action, code, shown, certificate)


def fix(action: Action) -> int:
    """Fix the issue of the event and open a pull request; return the exit code of the step.

    Raises:
        NothingToDo: The event does not ask for a fix.
        PermissionRefused: Somebody asks who may not.
        UsageError: The event is of another kind.
    """
    number, sender = asked(action)
    may_approve(action, sender)
    issue, certificate = action.folder / "issue.md", action.folder / "certificate.json"
    action.folder.mkdir(parents=True, exist_ok=True)
    title = " ".join(action.text("issue", "title").split())
    issue.write_text(f"# {title}\n\n{action.text('issue', 'body')}\n", encoding="utf-8", errors="replace")
    arguments = ["fix", str(issue), *action.place, "--pr", "--branch", f"m3agent/{number}"]
    arguments += ["--certificate", str(certificate), "--yes"]
    minutes, every = (number_of(action, name) for name in ("FOLLOW_MINUTES", "FOLLOW_EVERY"))
    code, shown = _run(action, arguments, action.passed_on(_FOR_A_FIX))
    ended = _report(action, code, shown, certificate)
    if ended == 0 and minutes > 0 and (opened := _opened(action)):
        return _follow(action, opened, minutes, every)
    return ended


def number_of(action: Action, name: str) -> float:
    """Return the value of an input that is a number. Raises UsageError."""
    text = action.env.get(f"M3AGENT_ACTION_{name}") or "0"
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text):
        raise UsageError(f"{name.lower().replace('_', '-')} is a number, not {quoted(text)}")
    return float(text)


def _opened(action: Action) -> str:
    """Return the address of the pull request that this job's fix opened; empty if it opened none."""
    for folder in session_folders(action.folder / "state"):
        ends = read_ends(folder / LOG)
        if ends is not None and (address := text(ends[1], "pull_request")):
            return address
    return ""


def _follow(action: Action, pull: str, minutes: float, every: float) -> int:
    """Follow the pull request, and return the exit code of the step. A limit does not fail the job."""
    limits = ["--minutes", f"{minutes:g}", "--every", f"{max(every, 1):g}"]
    arguments = ["pr", "follow", pull, *action.place, *limits]
    code, _ = _run(action, arguments, action.passed_on(_FOR_A_FIX))
    if code == EXIT_CODES[Status.LIMIT]:
        print_text(
            "::notice::m3agent: a limit ended the work on the pull request: the log of this step says which"
        )
        return 0
    return code


def asked(action: Action) -> tuple[int, str]:
    """Return the number of the issue to fix, and who asks for it.

    Raises:
        NothingToDo: The event does not ask for a fix.
        UsageError: The event is of another kind.
    """
    name, what = action.env.get("GITHUB_EVENT_NAME", ""), action.text("action")
    issue = action.event.get("issue")
    number = issue.get("number") if isinstance(issue, dict) else None
    if name not in ("issues", "issue_comment"):
        raise UsageError(f"mode fix is for the events issues and issue_comment, and this is {quoted(name)}")
    if not isinstance(issue, dict) or not isinstance(number, int) or "pull_request" in issue:
        raise NothingToDo("it is not about an issue")
    if name == "issues":
        label = action.env.get("M3AGENT_ACTION_LABEL", "")
        if what != "labeled" or action.text("label", "name") != label:
            raise NothingToDo(f"no label {quoted(label)} was added")
    else:
        command = action.env.get("M3AGENT_ACTION_COMMAND", "")
        first = action.text("comment", "body").strip().partition("\n")[0].strip()
        if what != "created" or first != command:
            raise NothingToDo(f"the comment does not begin with the line {quoted(command)}")
    return number, action.text("sender", "login")


def may_approve(action: Action, person: str) -> None:
    """Check that a person may write to the repository.

    Raises:
        PermissionRefused: The person may not, or is a program.
        EnvironmentFault: GitHub does not answer.
    """
    if action.text("sender", "type") != "User" or not person:
        raise PermissionRefused("only a person can ask for a fix")
    api, repository = action.env["GITHUB_API_URL"], action.env["GITHUB_REPOSITORY"]
    token = action.env.get("GITHUB_TOKEN", "")
    if not _REPOSITORY.fullmatch(repository) or not token:
        raise PermissionRefused("mode fix needs the input github-token")
    project = Project("github", api, action.env["GITHUB_SERVER_URL"], repository)
    with Api(project, Token(token, "github-token"), _say) as asking:
        may_write = GitHub(asking).may_write(project, person)
    if not may_write:
        raise PermissionRefused(
            f"{quoted(person)} may not write to {repository}, so m3agent does not work for them"
        )


def _run(action: Action, arguments: Sequence[str], env: Mapping[str, str]) -> tuple[int, bytes]:
    """Run m3agent; return its exit code and its standard output."""
    # isolated mode: no module of the checkout may take the place of one of m3agent's
    program = [sys.executable, "-I", "-m", "m3agent.agent", *arguments]
    done = subprocess.run(
        program, env=dict(env), cwd=action.folder.parent, stdout=subprocess.PIPE, check=False
    )
    return done.returncode, done.stdout


def _report(action: Action, code: int, shown: bytes, certificate: Path) -> int:
    """Write the summary and the outputs; return the exit code of the step."""
    text = (
        shown.decode("utf-8", "replace").strip()
        or "m3agent has no result: its messages are in the log of this step."
    )
    _append(action, "GITHUB_STEP_SUMMARY", f"### m3agent\n\n{fenced(text)}\n")
    print_text(text)
    if not certificate.is_file():
        return code if code not in (0, 1) else 0
    verdict = read(certificate).predicate.verdict
    _append(action, "GITHUB_OUTPUT", f"verdict={verdict}\ncertificate={certificate}\n")
    if code not in (0, 1):
        return code
    least = FAIL_ON.get(action.env.get("M3AGENT_ACTION_FAIL_ON", ""))
    if least is None:
        raise UsageError(f"fail-on is one of {', '.join(FAIL_ON)}")
    if verdict == "unverified" and least > VERDICTS[verdict]:
        print_text("::notice::m3agent: unverified: no test shows that the patch is right or wrong")
    return 1 if VERDICTS[verdict] >= least else 0


def _append(action: Action, variable: str, text: str) -> None:
    """Append text to the file that a variable of the runner names."""
    if path := action.env.get(variable):
        with Path(path).open("a", encoding="utf-8", errors="replace") as file:
            file.write(text)


def _say(text: str) -> None:
    print_text(printable_line(text, 500))


def main(env: Mapping[str, str] = os.environ) -> NoReturn:
    """Run one mode and exit. Errors are annotations of the job, in one sentence."""
    modes = {"verify": verify, "fix": fix}
    try:
        mode = modes.get(env.get("M3AGENT_ACTION_MODE", ""))
        if mode is None:
            raise UsageError(f"mode is one of {' and '.join(modes)}")
        code = mode(Action.of(env))
    except NothingToDo as reason:
        _say(f"nothing to do: {reason}")
        code = 0
    except M3AgentError as error:
        _say(f"::error::m3agent: {error}")
        code = error.exit_code
    raise SystemExit(code)


if __name__ == "__main__":
    main()
