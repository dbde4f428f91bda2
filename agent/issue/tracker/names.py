"""Parse a reference to an issue on a tracker: a web address, `owner/repo#N`, or `#N` of the origin remote."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, quote, urlsplit

from m3agent.agent.errors import UsageError
from m3agent.agent.issue.load import quoted
from m3agent.serving.client.http import is_local

GITHUB_API = "https://api.github.com"

TrackerKind: TypeAlias = Literal["github", "gitlab"]


@dataclass(frozen=True)
class Tracker:
    """A kind of tracker.

    Attributes:
        name: The name to show to people.
        tokens: The environment variables that a token is taken from, the first one that is set.
        auth: The header with the token, and the text before the token in its value.
        headers: The other headers of every request.
    """

    name: str
    tokens: tuple[str, ...]
    auth: tuple[str, str]
    headers: Mapping[str, str] = field(default_factory=dict)


TRACKERS: dict[TrackerKind, Tracker] = {
    "github": Tracker(
        "GitHub",
        ("GITHUB_TOKEN", "GH_TOKEN"),
        ("Authorization", "Bearer "),
        headers={"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"},
    ),
    "gitlab": Tracker("GitLab", ("GITLAB_TOKEN",), ("PRIVATE-TOKEN", "")),
}

_SHORT = re.compile(r"(?P<project>[a-z0-9][\w-]*/[\w.-]+)?#(?P<number>[0-9]+)", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
_SEGMENT = re.compile(r"(?!\.\.?$)[\w.-]+", re.ASCII)
_SCP = re.compile(r"(?:[^@/\s]+@)?(?P<host>[^:/@\s]+):(?P<path>[^\s]+)")
# Host names for ssh over the https port.
_SSH_HOSTS = {"ssh.github.com": "github.com", "altssh.gitlab.com": "gitlab.com"}


@dataclass(frozen=True)
class TrackerProject:
    """A project on a tracker.

    Attributes:
        kind: Which tracker.
        api: The address of its API, without a slash at the end.
        web: The address of its web pages, without a slash at the end.
        project: `owner/repo`; on GitLab also with subgroups.
    """

    kind: TrackerKind
    api: str
    web: str
    project: str

    @property
    def label(self) -> str:
        """The name to show to people."""
        return self.project

    @property
    def what(self) -> str:
        """The label with the kind of thing, for a sentence."""
        return f"repository {self.label}"

    @property
    def instead(self) -> str:
        """The end of a sentence that says what else the user can do if the tracker does not answer."""
        return ""

    @property
    def project_api(self) -> str:
        """The project's address in the API."""
        if self.kind == "github":
            return f"{self.api}/repos/{self.project}"
        return f"{self.api}/projects/{quote(self.project, safe='')}"

    @property
    def host(self) -> str:
        """Host (and port) of the tracker's web pages."""
        return urlsplit(self.web).netloc


@dataclass(frozen=True)
class Reference(TrackerProject):
    """An issue on a tracker."""

    number: int

    @property
    def label(self) -> str:
        """The name to show to people."""
        return f"{self.project}#{self.number}"

    @property
    def what(self) -> str:
        """The label with the kind of thing, for a sentence."""
        return f"issue {self.label}"

    @property
    def instead(self) -> str:
        """The end of a sentence that says what else the user can do if the tracker does not answer."""
        return ", or give the issue's text as a file"

    @property
    def url(self) -> str:
        """The issue's web page."""
        return f"{self.web}/{self.project}{'/-' if self.kind == 'gitlab' else ''}/issues/{self.number}"


@dataclass(frozen=True)
class PullReference(TrackerProject):
    """A pull request on GitHub, or a merge request on GitLab."""

    number: int

    @property
    def label(self) -> str:
        """The name to show to people."""
        return f"{self.project}{'!' if self.kind == 'gitlab' else '#'}{self.number}"

    @property
    def what(self) -> str:
        """The label with the kind of thing, for a sentence."""
        return f"pull request {self.label}"

    @property
    def url(self) -> str:
        """The pull request's web page."""
        folder = "-/merge_requests" if self.kind == "gitlab" else "pull"
        return f"{self.web}/{self.project}/{folder}/{self.number}"

    @property
    def pull_api(self) -> str:
        """The pull request's address in the API."""
        folder = "merge_requests" if self.kind == "gitlab" else "pulls"
        return f"{self.project_api}/{folder}/{self.number}"

    @property
    def ref(self) -> str:
        """The reference under which the project's repository has its last commit."""
        folder = "merge-requests" if self.kind == "gitlab" else "pull"
        return f"refs/{folder}/{self.number}/head"


def parse_pull_request(spec: str, *, github_api: str, env: Mapping[str, str]) -> PullReference:
    """Return the pull request or merge request with a web address.

    Args:
        spec: The text that the user gave.
        github_api: The address of GitHub's API. It decides which host counts as GitHub.
        env: The environment variables.

    Raises:
        UsageError: `spec` is no such address.
    """
    web = web_of(github_api)
    parts = _address(spec, urlsplit(web).netloc)
    if parts is not None:
        host, path = _host(parts), parts.path.strip("/").replace("/-/", "/")
        found = re.fullmatch(
            r"(?P<project>.+)/(?P<what>pull|merge_requests)/(?P<number>[1-9][0-9]{0,9})(?:/.*)?", path
        )
        if found and _is_project(found["project"]):
            project, number = found["project"], int(found["number"])
            if host == urlsplit(web).netloc and found["what"] == "pull":
                return PullReference("github", github_api, web, project, number)
            if found["what"] == "merge_requests" and _is_gitlab(host, env):
                own = _web_address(host)
                return PullReference("gitlab", f"{own}/api/v4", own, project, number)
    raise UsageError(
        f"{quoted(spec)} is not the address of a pull request, which looks like {web}/owner/repo/pull/12; for GitHub "
        "Enterprise, also give --github-api."
    )


def parse_reference(
    spec: str, *, github_api: str, origin: Callable[[], str | None], env: Mapping[str, str]
) -> Reference | None:
    """Return the issue that `spec` names; None if `spec` is not a reference to an issue on a tracker.

    Args:
        spec: The text that the user gave.
        github_api: The address of GitHub's API. It decides which host counts as GitHub.
        origin: Returns the address of the repository's origin remote. Called only if `spec` is `#N`.
        env: The environment variables.

    Raises:
        UsageError: `spec` names something on a tracker that is not an issue, or a host that is not configured
            as a tracker.
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
        return Reference("github", github_api, web, f"{owner}/{repository}", number)
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


def _github(parts: SplitResult, api: str, web: str, spec: str) -> Reference:
    match parts.path.strip("/").split("/"):
        case [owner, repository, "issues", number] if _SEGMENT.fullmatch(owner) and _SEGMENT.fullmatch(
            repository
        ):
            return Reference("github", api, web, f"{owner}/{repository}", _number(number, spec))
        case [_, _, "pull", *_]:
            raise UsageError(f"{quoted(spec)} is a pull request: give the address of its issue.")
    raise UsageError(
        f"{quoted(spec)} is not the address of an issue, which looks like {web}/owner/repo/issues/12."
    )


def _gitlab(parts: SplitResult, host: str, spec: str) -> Reference:
    web = _web_address(host)
    path = parts.path.strip("/").replace("/-/", "/")
    found = re.fullmatch(
        r"(?P<project>.+)/(?P<what>issues|work_items|merge_requests)/(?P<number>[0-9]+)(?:/.*)?", path
    )
    if found and found["what"] == "merge_requests":
        raise UsageError(f"{quoted(spec)} is a merge request: give the address of its issue.")
    if not found or not _is_project(found["project"]):
        raise UsageError(
            f"{quoted(spec)} is not the address of an issue, which looks like {web}/group/project/-/issues/12."
        )
    return Reference("gitlab", f"{web}/api/v4", web, found["project"], _number(found["number"], spec))


def _of_origin(origin: str | None, number: int, github_api: str, env: Mapping[str, str]) -> Reference:
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
    return Reference(project.kind, project.api, project.web, project.project, number)


def project_of(origin: str, *, github_api: str, env: Mapping[str, str]) -> TrackerProject | None:
    """Return the GitHub or GitLab project at a git remote's address; None for other addresses."""
    host, path = _remote(origin)
    web = web_of(github_api)
    project = path.strip("/").removesuffix(".git").strip("/")
    # the port of an ssh address is unrelated to the port of the web pages
    names = (
        {urlsplit(web).netloc, urlsplit(web).hostname}
        if not origin.startswith("http")
        else {urlsplit(web).netloc}
    )
    if host in names and re.fullmatch(r"[^/]+/[^/]+", project) and _is_project(project):
        return TrackerProject("github", github_api, web, project)
    if host and _is_gitlab(host, env) and _is_project(project):
        web = _web_address(host)
        return TrackerProject("gitlab", f"{web}/api/v4", web, project)
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
    return re.sub(r"^https?://", "", env.get("GITLAB_HOST", "").strip().lower()).rstrip("/") or "gitlab.com"


def _is_project(path: str) -> bool:
    segments = path.split("/")
    return len(segments) > 1 and all(_SEGMENT.fullmatch(segment) for segment in segments)


def _web_address(host: str) -> str:
    """Return the address with https; with http for a server on this machine."""
    return f"http://{host}" if is_local(f"http://{host}") else f"https://{host}"


def _number(text: str, spec: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{quoted(spec)} is not an issue: its number must be a whole number from 1.")
    return int(text)
