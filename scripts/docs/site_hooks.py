"""Hooks of mkdocs: add the pages from the root of the repository to the site, and adapt links.

The pages are written for the code host. There the README links to `docs/settings.md`, and a page links to code such as
`../agent/stall`. On the site both links would be broken.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
FROM_ROOT = {
    "README.md": "readme.md",
    "SECURITY.md": "security-policy.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files at the root of the repository, and their pages on the site."""
_PAGES = {page: paper for paper, page in FROM_ROOT.items()}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_IMAGE = re.compile(r"(?P<before>!\[[^\]\n]*\]\()(?P<target>[^)\s:]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site, including those from the root of the repository."""
    for paper, page in FROM_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / paper).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with links that work on the site.

    Raises PluginError for a link to a path that does not exist in the repository.
    """
    here = page.file.src_uri

    def link(match: re.Match[str]) -> str:
        target, anchor = in_site(here, match["target"]), match["anchor"] or ""
        if target is not None:
            return f"[{match['text']}]({target}{anchor})"
        path = in_repository(here, match["target"])
        # code is not part of the site: show its path instead of a link
        return match["text"] if path in match["text"] else f"{match['text']} (`{path}`)"

    def image(match: re.Match[str]) -> str:
        return f"{match['before']}{in_site(here, match['target'])})"

    return _IMAGE.sub(image, _LINK.sub(link, markdown))


def in_repository(page: str, target: str) -> str:
    """Return the path, relative to the root of the repository, that a page's link points to on the code host."""
    paper = _PAGES.get(page, f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(paper), target))
    if not (ROOT / path).exists():
        raise PluginError(f"{paper} has a link to {target}, and there is no {path} in the repository")
    return path


def in_site(page: str, target: str) -> str | None:
    """Return the target of a page's link on the site, or None if the target is not part of the site."""
    path = in_repository(page, target)
    wanted = FROM_ROOT.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    return wanted and posixpath.relpath(wanted, posixpath.dirname(page) or ".")
