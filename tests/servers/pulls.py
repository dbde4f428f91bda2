"""A pull request on a loopback server that behaves like GitHub: pages of two entries, stale reviews, checks of each commit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.servers.loopback import QuietHandler
from tests.servers.tracker import Page, TrackerServer

MEMBER: dict[str, Any] = {"author_association": "MEMBER", "user": {"login": "member", "type": "User"}}
STRANGER: dict[str, Any] = {"author_association": "NONE", "user": {"login": "stranger", "type": "User"}}
PROJECT = "/repos/owner/repo"
PULL = f"{PROJECT}/pulls/7"


class PullRequest:
    """Pull request 7 of owner/repo, whose branch is in the repository `remote`.

    Attributes:
        looks: What happens before each look at the pull request, in order: people write, checks end.
        runs: The check runs of each commit, by its id.
        written: What m3agent wrote.
    """

    def __init__(self, server: TrackerServer, remote: Path, branch: str) -> None:
        self.server, self.remote, self.branch = server, remote, branch
        self.looks: list[Callable[[], object]] = []
        self.reviews: list[dict[str, Any]] = []
        self.lines: list[dict[str, Any]] = []
        self.comments: list[dict[str, Any]] = []
        self.runs: dict[str, list[dict[str, Any]]] = {}
        self.statuses: list[dict[str, Any]] = []
        self.fields: dict[str, Any] = {"state": "open", "merged": False, "draft": False, "mergeable": True}
        self.source = "owner/repo"
        self.per_page = 2
        self.written: list[str] = []
        self._last_id = 100
        server.pages[PULL] = self._look
        server.pages[f"{PULL}/reviews"] = self._listing(lambda: self.reviews)
        server.pages[f"{PULL}/comments"] = self._listing(lambda: self.lines)
        server.pages[f"{PROJECT}/issues/7/comments"] = self._listing(lambda: self.comments)
        server.pages[f"POST {PROJECT}/issues/7/comments"] = self._write

    @property
    def head(self) -> str:
        """The last commit of the branch. Git's reference of the pull request follows it, as on GitHub."""
        found = self._git("rev-parse", f"refs/heads/{self.branch}")
        self._git("update-ref", "refs/pull/7/head", found)
        return found

    def _git(self, *args: str) -> str:
        done = subprocess.run(["git", *args], cwd=self.remote, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    # -- what people and checks do ---------------------------------------------------------------------------

    def comment(self, text: str, **who: Any) -> int:
        self.comments.append(self._said(text, "issuecomment", who))
        return self._last_id

    def line(self, text: str, path: str, number: int, **who: Any) -> int:
        about = {"path": path, "line": number, "diff_hunk": "@@ -1 +1 @@\n-old\n+new"}
        self.lines.append(self._said(text, "discussion", who) | about)
        return self._last_id

    def review(self, state: str, text: str = "", *, commit: str | None = None, **who: Any) -> int:
        more = {"state": state, "commit_id": commit or self.head}
        self.reviews.append(self._said(text, "review", who) | more)
        return self._last_id

    def check(self, name: str, conclusion: str | None, log: Page | None = None, **more: Any) -> int:
        """Report a check of the last commit; None for one that has not ended. A log makes it a job of GitHub Actions."""
        self._last_id += 1
        status = "in_progress" if conclusion is None else "completed"
        run = {"id": self._last_id, "name": name, "status": status, "conclusion": conclusion, **more}
        if log is not None:
            run["app"] = {"slug": "github-actions"}
            self.server.pages[f"{PROJECT}/actions/jobs/{self._last_id}/logs"] = log
        head = self.head
        kept = [one for one in self.runs.get(head, []) if one["name"] != name]
        self.runs[head] = [*kept, run]
        return self._last_id

    def _said(self, text: str, kind: str, who: dict[str, Any]) -> dict[str, Any]:
        self._last_id += 1
        url = f"{self.server.url}/owner/repo/pull/7#{kind}-{self._last_id}"
        when = f"2026-01-01T00:{self._last_id - 100:02}:00Z"
        return {**MEMBER, **who, "id": self._last_id, "body": text, "html_url": url, "created_at": when}

    # -- answers of the server -------------------------------------------------------------------------------

    def _look(self, handler: QuietHandler) -> None:
        if self.looks:
            page = self.looks.pop(0)()
            if isinstance(page, Page):
                self.server.send(handler, page)
                return
        head = self.head
        self.server.pages[f"{PROJECT}/commits/{head}/check-runs"] = self._listing(
            lambda: self.runs.get(head, []), "check_runs"
        )
        self.server.pages[f"{PROJECT}/commits/{head}/status"] = self._listing(
            lambda: self.statuses, "statuses"
        )
        source = {"sha": head, "ref": self.branch, "repo": {"full_name": self.source}}
        self.server.send(handler, Page({**self.fields, "head": source, "base": {"ref": "main"}}))

    def _listing(
        self, entries: Callable[[], list[dict[str, Any]]], name: str | None = None
    ) -> Callable[[QuietHandler], None]:
        def answer(handler: QuietHandler) -> None:
            path, query = urlsplit(handler.path).path, parse_qs(urlsplit(handler.path).query)
            number = int(query.get("page", ["1"])[0])
            whole = entries()
            shown = whole[(number - 1) * self.per_page : number * self.per_page]
            more = number * self.per_page < len(whole)
            link = f'<{self.server.url}{path}?per_page={self.per_page}&page={number + 1}>; rel="next"'
            body: Any = shown if name is None else {"total_count": len(whole), name: shown}
            self.server.send(handler, Page(body, headers={"Link": link} if more else {}))

        return answer

    def _write(self, handler: QuietHandler) -> None:
        text = json.loads(self.server.visits[-1].body)["body"]
        self.written.append(text)
        self.comments.append(self._said(text, "issuecomment", {}))
        self.server.send(handler, Page({"id": self._last_id}, 201))
