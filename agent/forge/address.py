"""What addresses mean: a web address, `owner/repo#N`, or `#N` of the origin remote; and the addresses of projects, issues and pulls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self, TypeAlias
from urllib.parse import SplitResult, quote, urlsplit

from m3agent.serving.client.http import is_local
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import quoted

GITHUB_API = "https://api.github.com"
GITLAB = "gitlab.com"

ServerKind: TypeAlias = Literal["github", "gitlab"]


@dataclass(frozen=True)
class Server:
    """The values in which the kinds of servers differ. Their clients differ in the rest."""

    name: str
    """The name to show to people."""
    tokens: tuple[str, ...]
    """The environment variables that a token is taken from, the first one that is set."""
    auth: tuple[str, str]
    """The header with the token, and the text before the token in its value."""
    projects: str
    """The folder of projects in the API."""
    kept: str
    """Characters of names that addresses have unchanged."""
    pulls: str
    """The folder of pull requests in the API."""
    comments: str
    """The folder of a pull request's comments in the API, below its project."""
    issue_pages: str
    """The folder of issues on a project's web page."""
    pull_pages: str
    """The folder of pull requests on a project's web page."""
    new_pull: str
    """The page below a project's web page on which a person opens a pull request from one branch to another."""
    pull_refs: str
    """The folder of references in a project's repository that has the last commits of pull requests."""
    pull_sign: str
    """Stands between the project and the number of a pull request."""
    closing: str
    """The word before an issue in a text, with which a merge closes the issue."""
    advice: str
    """What to do if something else answers in place of the API."""
    subgroups: bool = False
    """Whether the path of a project may have more than two steps."""
    uploads: tuple[str, ...] = ()
    """How an issue's text begins the addresses of files below the project's web page."""
    host_variable: str = ""
    """The environment variable with the only host that gets the token; empty if each host has its own token."""
    login: tuple[str, ...] = ()
    """The command that prints tokens; empty for a server without such a command."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The other headers of every request."""


SERVERS: dict[ServerKind, Server] = {
    "github": Server(
        name="GitHub",
        tokens=("GITHUB_TOKEN", "GH_TOKEN"),
        auth=("Authorization", "Bearer "),
        projects="repos",
        kept="/",
        pulls="pulls",
        comments="issues/{number}/comments",
        issue_pages="issues",
        pull_pages="pull",
        new_pull="compare/{base}...{branch}?expand=1",
        pull_refs="refs/pull",
        pull_sign="#",
        closing="Fixes",
        advice="check --github-api (GitHub Enterprise has its API under /api/v3)",
        login=("gh", "auth"),
        headers={"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"},
    ),
    "gitlab": Server(
        name="GitLab",
        tokens=("GITLAB_TOKEN",),
        auth=("PRIVATE-TOKEN", ""),
        projects="projects",
        kept="",
        pulls="merge_requests",
        comments="merge_requests/{number}/notes",
        issue_pages="-/issues",
        pull_pages="-/merge_requests",
        new_pull="-/merge_requests/new?merge_request%5Bsource_branch%5D={branch}&merge_request%5Btarget_branch%5D={base}",
        pull_refs="refs/merge-requests",
        pull_sign="!",
        closing="Closes",
        advice="check the address",
        subgroups=True,
        uploads=("/uploads/",),
        host_variable="GITLAB_HOST",
    ),
}

_SHORT = re.compile(r"(?P<project>[a-z0-9][\w-]*/[\w.-]+)?#(?P<number>[0-9]+)", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
_PULL = re.compile(r"(?P<project>.+)/(?P<what>pull|merge_requests)/(?P<number>[1-9][0-9]{0,9})(?:/.*)?")
_ON_GITLAB = re.compile(
    r"(?P<project>.+)/(?P<what>issues|work_items|merge_requests)/(?P<number>[0-9]+)(?:/.*)?"
)
_SEGMENT = re.compile(r"(?!\.\.?$)[\w.-]+", re.ASCII)
_SCP = re.compile(r"(?:[^@/\s]+@)?(?P<host>[^:/@\s]+):(?P<path>[^\s]+)")
# Host names for ssh over the https port.
_SSH_HOSTS = {"ssh.github.com": "github.com", "altssh.gitlab.com": "gitlab.com"}


@dataclass(frozen=True)
class Project:
    """A project on GitHub or GitLab."""

    kind: ServerKind
    api: str
    """The address of the server's API, without a slash at the end."""
    web: str
    """The address of its web pages, without a slash at the end."""
    project: str
    """`owner/repo`; on GitLab also with subgroups."""

    noun: ClassVar[str] = "repository"
    instead: ClassVar[str] = ""
    """The end of a sentence that says what else the user can do if the server does not answer."""

    @classmethod
    def on_gitlab(cls, host: str, project: str, *number: int) -> Self:
        """Return what a project on a GitLab, and perhaps a number, name."""
        # http only for a server on this machine
        web = f"http://{host}" if is_local(f"http://{host}") else f"https://{host}"
        return cls("gitlab", f"{web}/api/v4", web, project, *number)

    @property
    def server(self) -> Server:
        """The values of its server."""
        return SERVERS[self.kind]

    @property
    def label(self) -> str:
        """The name to show to people."""
        return self.project

    @property
    def what(self) -> str:
        """The label with the kind of thing, for a sentence."""
        return f"{self.noun} {self.label}"

    @property
    def page(self) -> str:
        """The project's web page."""
        return f"{self.web}/{self.project}"

    @property
    def project_api(self) -> str:
        """The project's address in the API."""
        return f"{self.api}/{self.server.projects}/{self._written(self.project)}"

    @property
    def host(self) -> str:
        """Host (and port) of the server's web pages."""
        return urlsplit(self.web).netloc

    @property
    def token_variable(self) -> str:
        """Which environment variables to set for a token, as part of a sentence."""
        variable, host = self.server.tokens[0], self.server.host_variable
        return f"{host} to {self.host} and {variable}" if host and self.host != GITLAB else variable

    def new_pull(self, base: str, branch: str) -> str:
        """Return the web page on which a person opens the pull request from `branch` to `base`."""
        page = self.server.new_pull.format(base=self._written(base), branch=self._written(branch))
        return f"{self.page}/{page}"

    def beside(self, name: str) -> Project | None:
        """Return the project with this name on the same server; None if no project has such a name."""
        subgroups = self.server.subgroups or name.count("/") == 1
        return Project(self.kind, self.api, self.web, name) if subgroups and _is_project(name) else None

    def _written(self, name: str) -> str:
        return quote(name, safe=self.server.kept)


@dataclass(frozen=True)
class _Numbered(Project):
    """An issue or a pull request."""

    number: int


@dataclass(frozen=True)
class IssueReference(_Numbered):
    """An issue on GitHub or GitLab."""

    noun = "issue"
    instead = ", or give the issue's text as a file"

    @property
    def label(self) -> str:
        """The name to show to people."""
        return f"{self.project}#{self.number}"

    @property
    def url(self) -> str:
        """Its web page."""
        return f"{self.page}/{self.server.issue_pages}/{self.number}"


@dataclass(frozen=True)
class PullReference(_Numbered):
    """A pull request on GitHub, or a merge request on GitLab."""

    noun = "pull request"

    @property
    def pull_api(self) -> str:
        """The pull request's address in the API."""
        return f"{self.project_api}/{self.server.pulls}/{self.number}"

    @property
    def ref(self) -> str:
        """The reference under which the project's repository has its last commit."""
        return f"{self.server.pull_refs}/{self.number}/head"

    @property
    def label(self) -> str:
        """The name to show to people."""
        return f"{self.project}{self.server.pull_sign}{self.number}"

    @property
    def url(self) -> str:
        """Its web page."""
        return f"{self.page}/{self.server.pull_pages}/{self.number}"


def parse_pull_request(spec: str, *, github_api: str, env: Mapping[str, str]) -> PullReference:
    """Return the pull request or merge request with a web address.

    Args:
        github_api: The address of GitHub's API. It decides which host counts as GitHub.

    Raises:
        UsageError: `spec` is no such address.
    """
    web = web_of(github_api)
    parts = _address(spec, urlsplit(web).netloc)
    if parts is not None:
        host, found = _host(parts), _PULL.fullmatch(_path(parts))
        if found and _is_project(found["project"]):
            project, number = found["project"], int(found["number"])
            if host == urlsplit(web).netloc and found["what"] == "pull":
                return PullReference("github", github_api, web, project, number)
            if found["what"] == "merge_requests" and _is_gitlab(host, env):
                return PullReference.on_gitlab(host, project, number)
    raise UsageError(
        f"{quoted(spec)} is not the address of a pull request, which looks like {web}/owner/repo/pull/12; for GitHub "
        "Enterprise, also give --github-api."
    )


def pull_of_origin(
    address: str, origin: str | None, *, github_api: str, env: Mapping[str, str]
) -> PullReference:
    """Return the pull request with an address. Raises UsageError if it is not one of the origin remote's project."""
    pull = parse_pull_request(address, github_api=github_api, env=env)
    mine = None if origin is None else project_of(origin, github_api=github_api, env=env)
    if mine is None or (mine.web, mine.project.lower()) != (pull.web, pull.project.lower()):
        raise UsageError(
            f"{pull.label} is not of this repository's origin: give --repo with a clone of {pull.project}"
        )
    return pull


def parse_reference(
    spec: str, *, github_api: str, origin: Callable[[], str | None], env: Mapping[str, str]
) -> IssueReference | None:
    """Return the issue that `spec` names; None if `spec` is not a reference to an issue on GitHub or GitLab.

    Args:
        github_api: The address of GitHub's API. It decides which host counts as GitHub.
        origin: Returns the address of the repository's origin remote. Called only if `spec` is `#N`.

    Raises:
        UsageError: `spec` names something that is not an issue, or a host that is not configured as GitHub.
    """
    web = web_of(github_api)
    short = _SHORT.fullmatch(spec)
    if short:
        number = _number(short["number"], spec)
        if short["project"] is None:
            return _of_origin(origin(), number, github_api, env)
        owner, repository = short["project"].split("/")
        if not _SEGMENT.fullmatch(repository):
            raise UsageError(f"{quoted(spec)} names no repository: write it like owner/repo#12.")
        return IssueReference("github", github_api, web, f"{owner}/{repository}", number)
    parts = _address(spec, urlsplit(web).netloc)
    if parts is None:
        return None
    host = _host(parts)
    if host == urlsplit(web).netloc:
        return _github(parts, github_api, web, spec)
    if host == "github.com":
        raise UsageError(
            f"{quoted(spec)} is on github.com, but the configured GitHub is {urlsplit(web).netloc}: "
            f"give --github-api {GITHUB_API}."
        )
    if "/-/" in parts.path or _is_gitlab(host, env):
        return _gitlab(parts, host, spec)
    if re.fullmatch(r"/[^/]+/[^/]+/(issues|pull)/[0-9]+/?", parts.path):
        raise UsageError(
            f"{host} is not known as a GitHub or GitLab ({quoted(spec)}): if it is GitHub Enterprise, "
            f"give --github-api https://{host}/api/v3, else save the issue's text to a file and give that file."
        )
    return None


def web_of(github_api: str) -> str:
    """Return the address of the web pages that belong to a GitHub API."""
    parts = urlsplit(github_api)
    host = parts.netloc.lower()
    if host == "api.github.com" or (host.startswith("api.") and host.endswith(".ghe.com")):
        host = host.removeprefix("api.")
    return f"{parts.scheme}://{host}"


def _address(spec: str, github: str) -> SplitResult | None:
    """Parse `spec` as a web address. Without a scheme, it must begin with a known host."""
    if re.search(r"\s", spec):
        return None
    if "://" not in spec:
        if spec.partition("/")[0].lower() not in (github, "github.com", "www.github.com", "gitlab.com"):
            return None
        spec = f"https://{spec}"
    try:
        parts = urlsplit(spec)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return None
    return parts if parts.scheme in ("http", "https") and parts.hostname else None


def _host(parts: SplitResult) -> str:
    """Return host and port, without the scheme's default port."""
    host = (parts.hostname or "").removesuffix(".")
    host = "github.com" if host == "www.github.com" else host
    host = f"[{host}]" if ":" in host else host
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    return host if parts.port in (None, usual) else f"{host}:{parts.port}"


def _path(parts: SplitResult) -> str:
    """Return the path of a page, in the form that GitLab used before it had `/-/`."""
    return parts.path.strip("/").replace("/-/", "/")


def _github(parts: SplitResult, api: str, web: str, spec: str) -> IssueReference:
    match parts.path.strip("/").split("/"):
        case [owner, repository, "issues", number] if _is_project(f"{owner}/{repository}"):
            return IssueReference("github", api, web, f"{owner}/{repository}", _number(number, spec))
        case [_, _, "pull", *_]:
            raise UsageError(f"{quoted(spec)} is a pull request: give the address of its issue.")
    raise UsageError(
        f"{quoted(spec)} is not the address of an issue, which looks like {web}/owner/repo/issues/12."
    )


def _gitlab(parts: SplitResult, host: str, spec: str) -> IssueReference:
    found = _ON_GITLAB.fullmatch(_path(parts))
    if found and found["what"] == "merge_requests":
        raise UsageError(f"{quoted(spec)} is a merge request: give the address of its issue.")
    if not found or not _is_project(found["project"]):
        example = IssueReference.on_gitlab(host, "group/project", 12).url
        raise UsageError(f"{quoted(spec)} is not the address of an issue, which looks like {example}.")
    return IssueReference.on_gitlab(host, found["project"], _number(found["number"], spec))


def _of_origin(origin: str | None, number: int, github_api: str, env: Mapping[str, str]) -> IssueReference:
    if not origin:
        raise UsageError(
            f"#{number} is an issue of the origin remote, and this repository has none: "
            f"name the issue like owner/repo#{number}, or give its address."
        )
    project = project_of(origin, github_api=github_api, env=env)
    if project is None:
        raise UsageError(
            f"#{number} is an issue of the origin remote, which is {place_of(origin)}, not a project "
            f"on GitHub or GitLab: give the issue's address, with --github-api for GitHub Enterprise."
        )
    return IssueReference(project.kind, project.api, project.web, project.project, number)


def project_of(origin: str, *, github_api: str, env: Mapping[str, str]) -> Project | None:
    """Return the GitHub or GitLab project at a git remote's address; None for other addresses."""
    host, path = _remote(origin)
    web = web_of(github_api)
    project = path.strip("/").removesuffix(".git").strip("/")
    # the port of an ssh address is unrelated to the port of the web pages
    names = {urlsplit(web).netloc, *(() if origin.startswith("http") else (urlsplit(web).hostname,))}
    if host in names and re.fullmatch(r"[^/]+/[^/]+", project) and _is_project(project):
        return Project("github", github_api, web, project)
    if host and _is_gitlab(host, env) and _is_project(project):
        return Project.on_gitlab(host, project)
    return None


def place_of(origin: str) -> str:
    """Describe where a git remote's address leads to, for a sentence; user name and password are left out."""
    host, _ = _remote(origin)
    return f"on {host}" if host else "a local one"


def _remote(origin: str) -> tuple[str, str]:
    """Return host (lower case; "" for a local folder) and path of a git remote."""
    if "://" in origin:
        try:
            parts = urlsplit(origin)
            host = _host(parts) if parts.scheme in ("http", "https") else (parts.hostname or "")
        except ValueError:
            return "", ""
        return _SSH_HOSTS.get(host, host), parts.path
    scp = _SCP.fullmatch(origin)
    if scp is None:
        return "", ""
    host = scp["host"].lower()
    return _SSH_HOSTS.get(host, host), scp["path"]


def _is_gitlab(host: str, env: Mapping[str, str]) -> bool:
    """Return whether a host is GitLab: it is `gitlab_host`, or a part of its name starts with "gitlab"."""
    name = host.partition(":")[0]
    return host == gitlab_host(env) or any(label.startswith("gitlab") for label in name.split("."))


def gitlab_host(env: Mapping[str, str]) -> str:
    """Return the host that GITLAB_TOKEN is for: GITLAB_HOST, else gitlab.com.

    GitLab's own command line uses the same variables.
    """
    return re.sub(r"^https?://", "", env.get("GITLAB_HOST", "").strip().lower()).rstrip("/") or GITLAB


def _is_project(path: str) -> bool:
    segments = path.split("/")
    return len(segments) > 1 and all(_SEGMENT.fullmatch(segment) for segment in segments)


def _number(text: str, spec: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{quoted(spec)} is not an issue: its number must be a whole number from 1.")
    return int(text)
