"""The GitHub Action: its steps run here, in a small interpreter, against a loopback server that plays GitHub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from m3agent.integrations.github_action import Action, NothingToDo, asked, may_approve, number_of, verify
from m3agent.util.errors import M3AgentError, PermissionRefused, UsageError
from tests.agent.delivery.test_pull_request import TOKEN, GitHub
from tests.agent.scripted import BUGGY, DONE, FIX, TEST, calls
from tests.conftest import git, one_kind
from tests.servers.misbehaving import MisbehavingServer
from tests.servers.pulls import STRANGER
from tests.servers.pulls import PullRequest as PullRequestPage
from tests.servers.tracker import Page

ROOT = Path(__file__).parents[2]
MakeRepo = Callable[..., Path]
HOSTILE = "\"'; touch owned #$(touch owned)`touch owned`\n::set-output name=x::y\n```\n<script>"
"""A title, a branch or a body that would do something if a shell or a page took it for its own text."""
FIXED = BUGGY["calc.py"].replace("a - b", "a + b")
MANIFEST: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())


# -- the interpreter ---------------------------------------------------------------------------------------------------


@dataclass
class Runner:
    """Runs the steps of action.yml as a runner does.

    Attributes:
        folder: Holds the checkout, the temporary folder and the files of the runner.
        event: What happened, and its name.
        env: Further variables of the job.
        said: The output of all steps.
        used: The actions of others that were called, with their inputs.
    """

    folder: Path
    name: str
    event: dict[str, Any]
    env: dict[str, str] = field(default_factory=dict)
    said: str = ""
    used: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)

    def run(self, **inputs: str) -> int:
        """Run all steps until one fails; return its exit code, or 0. Names of inputs have `_` in place of `-`."""
        given = {name: value.get("default", "") for name, value in MANIFEST["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        failed = 0
        for step in MANIFEST["runs"]["steps"]:
            condition = step.get("if", "true")
            always = "always()" in condition
            if (failed and not always) or not self._evaluate(condition, given):
                continue
            if "uses" in step:
                values = {name: self._filled(text, given) for name, text in step["with"].items()}
                self.used.append((step["uses"], values))
                continue
            env = {name: self._filled(text, given) for name, text in step.get("env", {}).items()}
            failed = failed or self._step(step, env)
        return failed

    def _step(self, step: dict[str, Any], env: dict[str, str]) -> int:
        assert step["shell"] == "bash"
        temporary = self.folder / "temp"
        temporary.mkdir(exist_ok=True)
        (self.folder / "event.json").write_text(json.dumps(self.event))
        files = {name: self.folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        files["GITHUB_OUTPUT"].write_text("")
        whole = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "GIT_CONFIG_GLOBAL")},
            **{name: str(path) for name, path in files.items()},
            "GITHUB_EVENT_NAME": self.name,
            "GITHUB_EVENT_PATH": str(self.folder / "event.json"),
            "GITHUB_WORKSPACE": str(self.folder / "checkout"),
            "GITHUB_REPOSITORY": "owner/repo",
            "RUNNER_TEMP": str(temporary),
            "M3AGENT_SANDBOX": one_kind(),
            "M3AGENT_RERUNS": "0",
            **self.env,
            **env,
        }
        script = self.folder / "script.sh"
        script.write_text(step["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.folder / "checkout",
            env=whole,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.said += done.stdout
        lines = files["GITHUB_OUTPUT"].read_text().splitlines()
        self.outputs[step.get("id", "")] = dict(line.split("=", 1) for line in lines)
        return done.returncode

    def _filled(self, text: str, inputs: dict[str, str]) -> str:
        return re.sub(r"\$\{\{(.*?)\}\}", lambda found: self._evaluate(found[1], inputs), str(text))

    def _evaluate(self, expression: str, inputs: dict[str, str]) -> Any:
        """Return the value of an expression of GitHub, of the kinds that action.yml has."""

        def look_up(found: re.Match[str]) -> str:
            match found[0].split("."):
                case ["inputs", name]:
                    value = inputs[name]
                case ["steps", step, "outputs", name]:
                    value = self.outputs.get(step, {}).get(name, "")
                case ["github", name]:
                    value = {"token": TOKEN, "action_path": str(ROOT)}[name]
                case _:
                    raise AssertionError(f"unknown: {found[0]}")
            return repr(self._filled(value, inputs))

        python = re.sub(r"\b(?:inputs|steps|github)(?:\.[\w-]+)+", look_up, expression.strip())
        python = python.replace("||", " or ").replace("&&", " and ").replace("always()", "True")
        return eval(python.replace("true", "True"), {"__builtins__": {}})

    @property
    def summary(self) -> str:
        return (self.folder / "github_step_summary").read_text()

    @property
    def temp(self) -> Path:
        return self.folder / "temp" / "m3agent"


# -- the manifest ------------------------------------------------------------------------------------------------------


def test_no_expression_stands_in_a_script() -> None:
    """GitHub fills expressions in before a shell reads the script: a title would become a part of it."""
    scripts = [step["run"] for step in MANIFEST["runs"]["steps"] if "run" in step]
    assert len(scripts) == 4
    assert not any("${{" in script for script in scripts)
    contexts = set(re.findall(r"\$\{\{\s*(\w+\.[\w-]+)", (ROOT / "action.yml").read_text()))
    assert not any(name.startswith("github.event") for name in contexts)


def test_the_form_of_the_manifest() -> None:
    """The keys that GitHub's schema of such files allows and requires."""
    assert set(MANIFEST) == {"name", "description", "inputs", "outputs", "runs"}
    assert all(set(one) <= {"description", "required", "default"} for one in MANIFEST["inputs"].values())
    assert all(set(one) == {"description", "value"} for one in MANIFEST["outputs"].values())
    assert set(MANIFEST["runs"]) == {"using", "steps"}
    assert MANIFEST["runs"]["using"] == "composite"
    for step in MANIFEST["runs"]["steps"]:
        kind = {"shell", "run"} if "run" in step else {"uses", "with"}
        assert kind <= set(step) <= kind | {"name", "id", "if", "env"}


def test_the_step_that_verifies_has_no_token() -> None:
    [step] = [step for step in MANIFEST["runs"]["steps"] if step.get("id") == "verify"]
    assert [name for name in step["env"] if re.search("TOKEN|KEY|ENDPOINT", name)] == []


def test_no_token_is_passed_on() -> None:
    env = {
        "PATH": "/bin",
        "GITHUB_TOKEN": "t",
        "GH_TOKEN": "t",
        "ACTIONS_RUNTIME_TOKEN": "t",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "t",
        "M3AGENT_API_KEY": "k",
        "M3AGENT_STATE": "/shared",
        "RUNNER_TEMP": "/temp",
        "M3AGENT_RERUNS": "1",
    }
    assert Action(env, {}).passed_on() == {
        "PATH": "/bin",
        "RUNNER_TEMP": "/temp",
        "M3AGENT_RERUNS": "1",
        "M3AGENT_STATE": "/temp/m3agent/state",
    }


# -- verify ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PullRequest:
    """A pull request on a git server: `hub`, and its merge as GitHub makes it."""

    hub: Path
    merge: str


@pytest.fixture
def pull(make_repo: MakeRepo, tmp_path: Path) -> Callable[[dict[str, str]], PullRequest]:
    def make(files: dict[str, str]) -> PullRequest:
        repo = make_repo(BUGGY)
        git(repo, "checkout", "-q", "-b", "topic")
        for name, text in files.items():
            (repo / name).write_text(text)
        git(repo, "add", "-A")
        git(repo, "commit", "-q", "-m", HOSTILE)
        git(repo, "checkout", "-q", "main")
        (repo / "other.py").write_text("1\n")
        git(repo, "add", "-A")
        git(repo, "commit", "-q", "-m", "main goes on")
        git(repo, "merge", "-q", "--no-ff", "-m", "merge", "topic")
        git(repo, "update-ref", "refs/pull/7/merge", "HEAD")
        git(repo, "reset", "-q", "--hard", "HEAD^1")
        git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
        return PullRequest(repo, git(repo, "rev-parse", "refs/pull/7/merge"))

    return make


def checked_out(folder: Path, pull: PullRequest, depth: int = 1, **env: str) -> Runner:
    """Return a runner as after actions/checkout: the merge is checked out, with few commits."""
    checkout = folder / "checkout"
    checkout.mkdir(parents=True)
    git(checkout, "init", "-q")
    git(checkout, "remote", "add", "origin", f"file://{pull.hub}")
    git(checkout, "fetch", "-q", f"--depth={depth}", "origin", pull.merge)
    git(checkout, "checkout", "-q", "--detach", pull.merge)
    event = {"pull_request": {"title": HOSTILE, "body": HOSTILE, "head": {"ref": HOSTILE}}}
    return Runner(folder, "pull_request", event, {"GITHUB_SHA": pull.merge, "GITHUB_TOKEN": TOKEN, **env})


def verified(folder: Path, pull: PullRequest, depth: int = 1, **inputs: str) -> tuple[Runner, int]:
    runner = checked_out(folder, pull, depth)
    return runner, runner.run(mode="verify", python=sys.executable, **inputs)


MakePull = Callable[[dict[str, str]], PullRequest]


@pytest.mark.slow
@pytest.mark.integration
def test_a_pull_request_is_verified(pull: MakePull, tmp_path: Path) -> None:
    """Its settings do not count, its title does nothing, and its certificate is kept."""
    made = pull({"calc.py": FIXED, ".m3agent.toml": "nonsense = [\n"})
    runner, code = verified(tmp_path / "run", made)
    assert code == 0, runner.said
    assert "✓ verified     1 test red before, green after" in runner.summary
    assert runner.summary.startswith("### m3agent\n\n```text\n✓ verified ")
    [(used, values)] = runner.used
    assert used.startswith("actions/upload-artifact@")
    certificate = json.loads(Path(values["path"]).read_text())["predicate"]
    assert certificate["base"]["commit"] == git(made.hub, "rev-parse", f"{made.merge}^1")
    assert certificate["patch"]["paths"] == [".m3agent.toml", "calc.py"]
    assert runner.outputs["verify"]["verdict"] == "verified"
    assert list(tmp_path.rglob("owned")) == []
    assert (runner.temp / "state").is_dir(), "its caches are the job's own"


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("files", "fail_on", "code"),
    [
        ({"calc.py": BUGGY["calc.py"].replace("a * 2", "a * 3")}, "failed", 1),
        ({"calc.py": BUGGY["calc.py"].replace("a * 2", "a * 3")}, "never", 0),
        ({"test_calc.py": "x"}, "failed", 1),
    ],
)
def test_what_fails_the_job(
    pull: MakePull, tmp_path: Path, files: dict[str, str], fail_on: str, code: int
) -> None:
    runner, ended = verified(tmp_path / "run", pull(files), depth=2, fail_on=fail_on)
    assert (ended, runner.outputs["verify"]["verdict"]) == (code, "failed"), runner.said
    assert len(runner.used) == 1, "the certificate is kept in any case"


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(("fail_on", "code"), [("failed", 0), ("unverified", 1)])
def test_an_unverified_patch_is_neutral(make_repo: MakeRepo, tmp_path: Path, fail_on: str, code: int) -> None:
    repo = make_repo({"calc.py": FIXED})
    (repo / "calc.py").write_text(FIXED + "\n# more\n")
    git(repo, "commit", "-q", "-a", "-m", "more")
    made = PullRequest(repo, git(repo, "rev-parse", "HEAD"))
    git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
    runner, ended = verified(tmp_path / "run", made, depth=2, fail_on=fail_on)
    assert (ended, runner.outputs["verify"]["verdict"]) == (code, "unverified"), runner.said
    assert ("::notice::m3agent: unverified" in runner.said) == (code == 0)


@pytest.mark.integration
def test_a_base_that_cannot_be_fetched_is_one_sentence(pull: MakePull, tmp_path: Path) -> None:
    runner = checked_out(tmp_path / "run", pull({"calc.py": FIXED}))
    git(runner.folder / "checkout", "remote", "remove", "origin")
    assert runner.run(mode="verify", python=sys.executable) == 2
    [line] = [line for line in runner.said.splitlines() if line.startswith("::error::")]
    assert line.endswith("give actions/checkout the option fetch-depth: 2")


@pytest.mark.parametrize("name", ["pull_request_target", "workflow_run", "push", "issue_comment", ""])
def test_other_events_are_never_verified(name: str) -> None:
    with pytest.raises(UsageError, match="mode verify is for the event pull_request"):
        verify(Action({"GITHUB_EVENT_NAME": name, "GITHUB_SHA": "0" * 40, "RUNNER_TEMP": "/nowhere"}, {}))


# -- fix ---------------------------------------------------------------------------------------------------------------

ISSUE = {"number": 12, "title": f"Sums are wrong {HOSTILE}", "body": f"add(2, 3) is -1 {HOSTILE}"}
MEMBER = {"login": "member", "type": "User"}
LABELED = {"action": "labeled", "label": {"name": "m3agent"}, "issue": ISSUE, "sender": MEMBER}
COMMENT = {
    "action": "created",
    "comment": {"body": " /m3agent fix \n" + HOSTILE},
    "issue": ISSUE,
    "sender": MEMBER,
}


def action(name: str, event: dict[str, Any], **env: str) -> Action:
    inputs = {"M3AGENT_ACTION_LABEL": "m3agent", "M3AGENT_ACTION_COMMAND": "/m3agent fix"}
    return Action({"GITHUB_EVENT_NAME": name, **inputs, **env}, event)


def test_who_asks_for_a_fix() -> None:
    assert asked(action("issues", LABELED)) == (12, "member")
    assert asked(action("issue_comment", COMMENT)) == (12, "member")


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("issues", {**LABELED, "label": {"name": "bug"}}),
        ("issues", {**LABELED, "action": "unlabeled"}),
        ("issues", {**LABELED, "action": "opened"}),
        ("issues", {**LABELED, "issue": {**ISSUE, "pull_request": {}}}),
        ("issues", {}),
        ("issue_comment", {**COMMENT, "action": "edited"}),
        ("issue_comment", {**COMMENT, "comment": {"body": "please /m3agent fix"}}),
        ("issue_comment", {**COMMENT, "comment": {"body": "/m3agent fix everything"}}),
        ("issue_comment", {**COMMENT, "comment": None}),
        ("issue_comment", {**COMMENT, "issue": {**ISSUE, "pull_request": {}}}),
    ],
)
def test_events_that_ask_for_nothing(name: str, event: dict[str, Any]) -> None:
    with pytest.raises(NothingToDo):
        asked(action(name, event))


@pytest.mark.parametrize("name", ["pull_request_target", "pull_request", "workflow_run", "push"])
def test_other_events_are_never_fixed(name: str) -> None:
    with pytest.raises(UsageError, match="mode fix is for the events issues and issue_comment"):
        asked(action(name, LABELED))


@pytest.fixture
def github(make_repo: MakeRepo, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    with GitHub() as running:
        running.publish(make_repo(BUGGY))
        running.pages["/repos/owner/repo/collaborators/member/permission"] = Page({"permission": "write"})
        yield running


def place(github: GitHub) -> dict[str, str]:
    return {"GITHUB_API_URL": github.url, "GITHUB_SERVER_URL": github.url}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("page", "sender"),
    [
        (Page({"permission": "read"}), MEMBER),
        (Page({"permission": "none"}), MEMBER),
        (Page({"message": "Not Found"}, 404), MEMBER),
        (Page({"message": "Forbidden"}, 403), MEMBER),
        (Page([]), MEMBER),
        (Page({"permission": "write"}), {"login": "member", "type": "Bot"}),
        (Page({"permission": "write"}), {"login": "", "type": "User"}),
        (Page({"permission": "write"}), {"login": "../../x", "type": "User"}),
    ],
)
def test_a_stranger_may_not_ask(github: GitHub, page: Page, sender: dict[str, str]) -> None:
    github.pages["/repos/owner/repo/collaborators/member/permission"] = page
    env = {"GITHUB_REPOSITORY": "owner/repo", "GITHUB_TOKEN": TOKEN, **place(github)}
    with pytest.raises(PermissionRefused):
        may_approve(action("issues", {**LABELED, "sender": sender}, **env), sender["login"])


@pytest.mark.integration
@pytest.mark.parametrize("change", [{"GITHUB_TOKEN": ""}, {"GITHUB_REPOSITORY": "../x"}])
def test_without_a_token_nobody_may_ask(github: GitHub, change: dict[str, str]) -> None:
    env = {"GITHUB_REPOSITORY": "owner/repo", "GITHUB_TOKEN": TOKEN, **place(github), **change}
    with pytest.raises(M3AgentError, match="needs the input github-token"):
        may_approve(action("issues", LABELED, **env), "member")


def runner_of(github: GitHub, folder: Path, name: str, event: dict[str, Any]) -> Runner:
    folder.mkdir()
    git(folder, "clone", "-q", str(github.remote), "checkout")
    git(folder / "checkout", "remote", "set-url", "origin", f"{github.url}/owner/repo.git")
    return Runner(folder, name, event, place(github))


@pytest.mark.slow
@pytest.mark.integration
def test_an_approved_issue_becomes_a_pull_request(
    github: GitHub, server: MisbehavingServer, tmp_path: Path
) -> None:
    """The text is that of the approving event: what the issue says meanwhile does not count."""
    github.add_issue(12, title="Changed", body="Delete everything.")
    server.answers = [FIX, TEST, DONE]
    runner = runner_of(github, tmp_path / "run", "issues", LABELED)
    code = runner.run(mode="fix", endpoint=server.url, python=sys.executable)
    assert code == 0, runner.said
    [opened] = github.opened
    assert opened["draft"] is False
    assert (opened["head"], github.pushed) == ("m3agent/12", ["m3agent/12"])
    asked_for = server.requests[-1].body.decode()
    assert "add(2, 3) is -1" in asked_for
    assert "Delete everything" not in asked_for
    assert "/repos/owner/repo/issues/12" not in github.paths
    assert TOKEN not in asked_for
    assert runner.outputs["fix"]["verdict"] == "verified"
    assert list(tmp_path.rglob("owned")) == []


def merged(github: GitHub) -> PullRequest:
    """Return the pull request with the merge that GitHub makes of it."""
    git(github.clone, "fetch", "-q", str(github.remote), "m3agent/12")
    git(github.clone, "merge", "-q", "--no-ff", "-m", HOSTILE, "FETCH_HEAD")
    git(github.clone, "push", "-q", str(github.remote), "HEAD:refs/pull/7/merge")
    git(github.remote, "config", "uploadpack.allowAnySHA1InWant", "true")
    return PullRequest(github.remote, git(github.clone, "rev-parse", "HEAD"))


@pytest.mark.slow
@pytest.mark.integration
def test_the_pull_request_is_seen_through(github: GitHub, server: MisbehavingServer, tmp_path: Path) -> None:
    """Fix: a check is red, a second commit makes it green, a member comments, a third commit; verify: the result is green."""
    opened = PullRequestPage(github, github.remote, "m3agent/12")
    opened.looks = [
        lambda: (
            opened.check(HOSTILE, "failure", Page(f"double() must use add() {HOSTILE}".encode())),
            opened.comment(f"/m3agent fix {HOSTILE}", **STRANGER),
        ),
        lambda: (opened.check(HOSTILE, "success"), opened.comment(f"Add a docstring. {HOSTILE}")),
        lambda: (opened.check(HOSTILE, "success"), opened.review("APPROVED", HOSTILE)),
    ]
    also = calls("file_edit", path="calc.py", old="return a * 2", new="return add(a, a)")
    more = calls(
        "file_edit", path="calc.py", old="def double(a):\n", new='def double(a):\n    """Twice a."""\n'
    )
    server.answers = [FIX, TEST, DONE, also, TEST, DONE, more, TEST, DONE]
    runner = runner_of(github, tmp_path / "run", "issue_comment", COMMENT)
    inputs = {"mode": "fix", "endpoint": server.url, "python": sys.executable}
    assert runner.run(**inputs, follow_minutes="5", follow_every="1") == 0, runner.said
    assert "owner/repo#7 is approved" in runner.said
    assert git(github.remote, "rev-list", "--count", "main..m3agent/12") == "3"
    patched = git(github.remote, "show", "m3agent/12:calc.py")
    assert "return a + b" in patched
    assert "return add(a, a)" in patched
    assert "Twice a." in patched
    asked_for = server.chats[-1].body.decode()
    assert "Add a docstring." in asked_for
    assert "/m3agent fix" not in asked_for
    assert len(opened.written) == 2
    again, code = verified(tmp_path / "again", merged(github))
    assert (code, again.outputs["verify"]["verdict"]) == (0, "verified"), again.said
    assert list(tmp_path.rglob("owned")) == []
    assert TOKEN not in runner.said + again.said + "".join(opened.written)


@pytest.mark.parametrize("value", ["-1", "soon", "1; touch owned", "1e9", "9999999"])
def test_minutes_are_a_number(value: str) -> None:
    with pytest.raises(UsageError, match="follow-minutes is a number"):
        number_of(action("issues", LABELED, M3AGENT_ACTION_FOLLOW_MINUTES=value), "FOLLOW_MINUTES")


@pytest.mark.slow
@pytest.mark.integration
def test_a_strangers_comment_does_nothing(github: GitHub, server: MisbehavingServer, tmp_path: Path) -> None:
    event = {**COMMENT, "sender": {"login": "stranger", "type": "User"}}
    runner = runner_of(github, tmp_path / "run", "issue_comment", event)
    assert runner.run(mode="fix", endpoint=server.url, python=sys.executable) == 5
    assert "'stranger' may not write to owner/repo" in runner.said
    assert (github.opened, github.pushed, server.requests) == ([], [], [])
    other = Runner(
        tmp_path / "run", "issue_comment", {**COMMENT, "comment": {"body": HOSTILE}}, place(github)
    )
    assert other.run(mode="fix", endpoint=server.url, python=sys.executable) == 0
    assert "nothing to do: the comment does not begin with the line '/m3agent fix'" in other.said
    assert list(tmp_path.rglob("owned")) == []


@pytest.mark.integration
def test_an_unknown_mode_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    runner = Runner(tmp_path, "issues", LABELED)
    assert runner.run(mode="other", python=sys.executable) == 2
    assert runner.said == "::error::m3agent: mode is one of verify and fix\n"


@pytest.mark.slow
@pytest.mark.integration
def test_the_action_installs_m3agent(pull: MakePull, tmp_path: Path) -> None:
    """Without a Python that has it. The packages come from the index of this machine."""
    index = {name: value for name, value in os.environ.items() if re.match("PIP_|SSL_|HTTPS?_|UV_", name)}
    runner = checked_out(tmp_path / "run", pull({"calc.py": FIXED}), 2, **index)
    assert runner.run(mode="verify") == 0, runner.said
