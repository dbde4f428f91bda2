"""The requests to GitHub and GitLab that open a pull request: what a project allows, forks, and the pull request itself."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from m3agent.agent.errors import M3AgentError, UsageError
from m3agent.agent.issue.tracker.http import Api
from m3agent.agent.issue.tracker.names import GITHUB_API, TrackerKind, TrackerProject, project_of


@dataclass(frozen=True)
class Opened:
    """A project that takes pull requests.

    Attributes:
        project: The project under its present name.
        may_push: Whether the token's owner may push to it, as far as the server says.
    """

    project: TrackerProject
    may_push: bool


@dataclass(frozen=True)
class Proposal:
    """A pull request to open.

    Attributes:
        title: One line.
        body: The text, in Markdown.
        draft: Whether it is a draft.
        base: The branch that it goes to.
        branch: The branch with the change.
        fork: The project that has `branch`; None if it is the project itself.
    """

    title: str
    body: str
    draft: bool
    base: str
    branch: str
    fork: TrackerProject | None = None


class Forge(ABC):
    """One kind of server that takes pull requests. All methods that send a request block."""

    @abstractmethod
    def present(self, api: Api, project: TrackerProject) -> Opened:
        """Return a project as it is now. Raises UsageError if it cannot be read or is archived."""

    @abstractmethod
    def fork(self, api: Api, project: TrackerProject) -> TrackerProject:
        """Return the fork of the token's owner. The server makes a missing fork, and may need some time for it."""

    @abstractmethod
    def open(self, api: Api, project: TrackerProject, what: Proposal) -> str:
        """Open the pull request, or find the open one for this branch; return its address."""

    @abstractmethod
    def page(self, project: TrackerProject, base: str, branch: str) -> str:
        """Return the web page on which a person opens the pull request."""


class _GitHub(Forge):
    def present(self, api: Api, project: TrackerProject) -> Opened:
        found = api.get(project.project_api).json
        now = _named(api, project, found, "full_name")
        _refuse_archived(found, now)
        permissions = found.get("permissions")
        may_push = not (isinstance(permissions, dict) and permissions.get("push") is False)
        return Opened(now, may_push)

    def fork(self, api: Api, project: TrackerProject) -> TrackerProject:
        found = api.post(f"{project.project_api}/forks", {}).json
        return _named(api, project, found, "full_name")

    def open(self, api: Api, project: TrackerProject, what: Proposal) -> str:
        pulls = f"{project.project_api}/pulls"
        owner = (what.fork or project).project.partition("/")[0]
        value = {
            "title": what.title,
            "body": what.body,
            "head": what.branch if what.fork is None else f"{owner}:{what.branch}",
            "base": what.base,
            "draft": what.draft,
        }
        head = quote(f"{owner}:{what.branch}", safe="")
        return _posted(api, project, pulls, value, f"{pulls}?state=open&head={head}", "html_url")

    def page(self, project: TrackerProject, base: str, branch: str) -> str:
        return f"{project.web}/{project.project}/compare/{quote(base)}...{quote(branch)}?expand=1"


class _GitLab(Forge):
    def present(self, api: Api, project: TrackerProject) -> Opened:
        found = api.get(project.project_api).json
        now = _named(api, project, found, "path_with_namespace")
        _refuse_archived(found, now)
        return Opened(now, may_push=True)

    def fork(self, api: Api, project: TrackerProject) -> TrackerProject:
        raise UsageError(f"--pr: you may not push to {project.project}: push to your fork by hand")

    def open(self, api: Api, project: TrackerProject, what: Proposal) -> str:
        requests = f"{project.project_api}/merge_requests"
        value = {
            "title": f"Draft: {what.title}"
            if what.draft
            else what.title,  # GitLab knows a draft by its title
            "description": what.body,
            "source_branch": what.branch,
            "target_branch": what.base,
        }
        found = f"{requests}?state=opened&source_branch={quote(what.branch, safe='')}"
        return _posted(api, project, requests, value, found, "web_url")

    def page(self, project: TrackerProject, base: str, branch: str) -> str:
        chosen = f"merge_request%5Bsource_branch%5D={quote(branch, safe='')}&merge_request%5Btarget_branch%5D={quote(base, safe='')}"
        return f"{project.web}/{project.project}/-/merge_requests/new?{chosen}"


FORGES: Mapping[TrackerKind, Forge] = {"github": _GitHub(), "gitlab": _GitLab()}


def _named(api: Api, project: TrackerProject, found: object, name: str) -> TrackerProject:
    """Return the project that a response names. Raises EnvironmentFault if it names none on this server."""
    named = found.get(name) if isinstance(found, dict) else None
    github_api = project.api if project.kind == "github" else GITHUB_API
    present = project_of(f"{project.web}/{named}", github_api=github_api, env=os.environ)
    if present is None or present.kind != project.kind:
        raise api.not_the_api()
    return present


def _refuse_archived(found: Mapping[str, Any], project: TrackerProject) -> None:
    if found.get("archived") is True:
        raise UsageError(f"--pr: {project.project} is archived and takes no pull requests; use --branch NAME")


def _posted(api: Api, project: TrackerProject, url: str, value: object, search: str, name: str) -> str:
    try:
        return _address(api, project, api.post(url, value).json, name)
    except M3AgentError:
        # The request may have succeeded although the response was lost, or other automation was faster.
        with contextlib.suppress(M3AgentError):
            found = api.get(search).json
            if isinstance(found, list) and found:
                return _address(api, project, found[0], name)
        raise


def _address(api: Api, project: TrackerProject, value: object, name: str) -> str:
    url = value.get(name) if isinstance(value, dict) else None
    if not isinstance(url, str) or not url.isprintable() or not url.startswith(f"{project.web}/"):
        raise api.not_the_api()
    return url
