"""Build the template environment that all pages share.

Pages share the head, the style, the filters, and the macros for untrusted text (`parts.html.jinja`).
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from m3agent import __version__
from m3agent.agent.report import text

_HERE = Path(__file__).parent
LIMITS = {"words": 12_000, "arguments": 8_000, "result": 12_000, "patch_line": 2_000}
"""Most characters shown of each kind of text.

For a longer text the page shows the beginning, the end, and where to find the whole text.
"""
MOST_TESTS = 200
"""Most test ids, or changed paths, in one list."""


def page_environment(folder: Path | None = None) -> Environment:
    """Return the environment for the page templates, with all filters and globals.

    Args:
        folder: Folder with further templates and a style.css that follows the shared one; None for none.
    """
    folders = [_HERE] if folder is None else [folder, _HERE]
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        auto_reload=False,
    )
    shown_as = {
        "count": text.count,
        "share": text.share,
        "speed": text.speed,
        "price": text.price,
        "duration": text.duration,
        "size": text.size,
    }
    environment.filters |= shown_as
    environment.filters |= {
        "shown_as": lambda value, kind: shown_as[kind](value),
        "visible": text.visible,
        "plain": text.plain,
        "excerpt": text.excerpt,
        "one_line": text.one_line,
        "moment": text.moment,
    }
    css = "".join((one / "style.css").read_text("utf-8") for one in reversed(folders))
    environment.globals |= {
        "css": Markup(css),  # noqa: S704  # files of this package
        "version": __version__,
        "limits": LIMITS,
        "most_tests": MOST_TESTS,
    }
    return environment
