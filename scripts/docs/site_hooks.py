"""What mkdocs asks of us while it builds the site: pages from the root of the repository, and links that lead there.

The pages are written for the code host, where `docs/settings.md` leads from the README to the settings and
`../agent/stall` from a page to the code. In the site both would lead nowhere.
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
"""Files at the root of the repository, and the pages that they are in the site."""
_PAGES = {page: paper for paper, page in FROM_ROOT.items()}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_IMAGE = re.compile(r"(?P<before>!\[[^\]\n]*\]\()(?P<target>[^)\s:]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site, with those from the root of the repository among them."""
    for paper, page in FROM_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / paper).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its links as they are right in the site.

    Raises PluginError for a link to what the repository does not have.
    """
    here = page.file.src_uri

    def link(match: re.Match[str]) -> str:
        target, anchor = in_site(here, match["target"]), match["anchor"] or ""
        if target is not None:
            return f"[{match['text']}]({target}{anchor})"
        path = in_repository(here, match["target"])
        # code is not part of the site: its place is named instead
        return match["text"] if path in match["text"] else f"{match['text']} (`{path}`)"

    def image(match: re.Match[str]) -> str:
        return f"{match['before']}{in_site(here, match['target'])})"

    return _IMAGE.sub(image, _LINK.sub(link, markdown))


def in_repository(page: str, target: str) -> str:
    """Return the path, from the root of the repository, that a page's link leads to on the code host."""
    paper = _PAGES.get(page, f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(paper), target))
    if not (ROOT / path).exists():
        raise PluginError(f"{paper} has a link to {target}, and there is no {path} in the repository")
    return path


def in_site(page: str, target: str) -> str | None:
    """Return where a page's link leads in the site; None if what it leads to is not part of it."""
    path = in_repository(page, target)
    wanted = FROM_ROOT.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    return wanted and posixpath.relpath(wanted, posixpath.dirname(page) or ".")
