"""The documentation site builds without a warning, is complete, and loads nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from mkdocs.exceptions import PluginError

from scripts.docs import browser
from scripts.docs.site_hooks import FROM_ROOT, in_site

pytestmark = pytest.mark.slow  # quick: test_docs.py

ROOT = Path(__file__).parent.parent
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}
"""Tags that make a browser fetch something while it shows a page. The site has no `link` of another kind."""


SEARCH = """
  const find = (what) => page.document.querySelectorAll(what);
  const [field] = find("[name=query]");
  field.focus();
  field.value = "trusted publishing";
  field.dispatchEvent(new Event("keyup", {bubbles: true}));
  while (!find(".md-search-result__link").length) await new Promise((then) => setTimeout(then, 100));
  return [...find(".md-search-result__link")].map((link) => link.href).join(" ");
"""
"""Returns the addresses that the search of a page finds, in JavaScript."""
PHONE = """
  const broken = [...page.document.querySelectorAll("td code")].filter(
    (code) => !/[ -]/.test(code.textContent) && code.offsetHeight > 30);
  const tables = [...page.document.querySelectorAll("table")].filter(
    (table) => table.offsetWidth > page.innerWidth && getComputedStyle(table.closest("div").parentNode).overflowX != "auto");
  return [page.document.documentElement.scrollWidth, broken.length, tables.length];
"""
"""Returns the width of a page, the names that are broken into lines, and the wide tables that do not scroll."""


@dataclass
class Html(HTMLParser):
    """A page's ids, links, fetched addresses and CSS classes."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    classes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        self.classes |= set(given.get("class", "").split())
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in FETCHED and FETCHED[tag] in given:
            self.fetched.append(given[FETCHED[tag]])


@dataclass(frozen=True)
class Site:
    folder: Path
    pages: dict[Path, Html]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages: dict[Path, Html] = {}
    for path in folder.rglob("*.html"):
        pages[path] = Html()
        pages[path].feed(path.read_text())
    return Site(folder, pages)


def target(site: Site, page: Path, link: str) -> Path:
    """Return the file of the site that a link without a host points to."""
    path = unquote(urlsplit(link).path)
    if path.startswith("/"):  # only the page for missing addresses is shown at any depth
        assert page.name == "404.html", f"{page.name} has a link from the root of the host: {link}"
        found = (site.folder / path.lstrip("/")).resolve()
    else:
        found = (page.parent / path).resolve() if path else page
    return found / "index.html" if found.is_dir() else found


@pytest.mark.slow
@pytest.mark.integration
def test_every_page_of_the_navigation_is_there_and_none_is_left_out(site: Site) -> None:
    named = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    written = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted([*written, *FROM_ROOT.values()])
    built = {path.relative_to(site.folder).as_posix() for path in site.pages}
    assert built == {page.replace(".md", ".html") for page in named} | {"404.html"}


def test_nothing_is_fetched_from_another_host(site: Site) -> None:
    foreign = {
        address for page in site.pages.values() for address in page.fetched if urlsplit(address).netloc
    }
    assert foreign == set()
    for path in site.folder.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", path.read_text()), path
    # for pages with such a diagram, the theme fetches another script from a foreign host
    assert "mermaid" not in {name for page in site.pages.values() for name in page.classes}


def test_links_and_anchors_lead_somewhere(site: Site) -> None:
    checked = 0
    for path, page in site.pages.items():
        for link in [*page.links, *page.fetched]:
            if urlsplit(link).scheme in ("http", "https", "data"):
                continue
            found = target(site, path, link)
            assert found.is_file(), f"{path.name}: {link}"
            anchor = urlsplit(link).fragment
            if anchor and found.suffix == ".html":
                assert unquote(anchor) in site.pages[found].ids, f"{path.name}: {link}"
            checked += 1
    assert checked > 1000


def test_the_readme_is_read_in_the_site_as_on_the_code_host(site: Site) -> None:
    page = site.pages[site.folder / "readme.html"]
    assert {"settings.html", "security-policy.html", "changelog.html"} <= set(page.links)
    assert {"casts/fix.svg", "casts/attempts.svg"} <= set(page.fetched)


def test_no_bar_is_shown_with_its_escape(site: Site) -> None:
    """In a table, code needs the escape on the code host, but the site shows it: `<code>a&#124;b</code>` suits both."""
    for path in site.pages:
        assert r"\|" not in path.read_text(), path.name


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")
@pytest.mark.parametrize("page", ["index.html", "engines/vllm.html"])
def test_a_page_that_is_opened_from_the_folder_can_search(site: Site, page: str) -> None:
    assert "contributing.html#versions" in browser.evaluate(site.folder / page, SEARCH)


@pytest.mark.slow
@pytest.mark.usefixtures("chromium")
@pytest.mark.parametrize("page", ["readme", "servers", "settings"])
def test_tables_can_be_read_on_a_phone(site: Site, page: str) -> None:
    assert browser.evaluate(site.folder / f"{page}.html", PHONE, width=390) == "390,0,0"


@pytest.mark.parametrize(
    ("page", "link", "right"),
    [
        ("readme.md", "docs/settings.md", "settings.md"),
        ("readme.md", "SECURITY.md", "security-policy.md"),
        ("security.md", "../SECURITY.md", "security-policy.md"),
        ("engines/vllm.md", "../serving.md", "../serving.md"),
        ("engines/vllm.md", "failures.md", "failures.md"),
        ("stall.md", "../agent/stall", None),
    ],
)
def test_a_link_between_papers_becomes_one_between_pages(page: str, link: str, right: str | None) -> None:
    assert in_site(page, link) == right


def test_a_link_to_nothing_ends_the_build() -> None:
    with pytest.raises(PluginError, match=r"docs/stall\.md has a link to \.\./agent/stahl"):
        in_site("stall.md", "../agent/stahl")
