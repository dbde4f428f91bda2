"""Look at pages in a headless Chromium: for the pictures of the documentation, and for tests of pages and pictures."""

from __future__ import annotations

import html
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",  # Chromium's own sandbox refuses root
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--allow-file-access-from-files",  # so that a page may look into its frame
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
SECONDS = 60


def find() -> str | None:
    """Return the Chromium on PATH, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def photograph(page: Path, picture: Path, width: int, height: int) -> None:
    """Write a picture (PNG) of the top of a page.

    Args:
        page: The HTML or SVG file.
        picture: The picture's file.
        width: The width of the window, in pixels; it may be as narrow as a phone.
        height: The height of the picture.
    """
    _run(_framed(page, width, height), f"--screenshot={picture}", f"--window-size={width},{height}")


def evaluate(page: Path, script: str, width: int = 1280, height: int = 900) -> str:
    """Load a page, run a script in a page around it, and return the text that the script returns.

    Args:
        page: The HTML or SVG file.
        script: The body of an async function, in JavaScript. `page` is the window of the page.
        width: The width of the window, in pixels; it may be as narrow as a phone.
        height: Its height.
    """
    run = f"""<script>addEventListener("load", async () => {{
      const page = document.querySelector("iframe").contentWindow;
      const answer = await (async () => {{ {script} }})().catch(String);
      document.body.textContent = String(answer);
    }})</script>"""
    dumped = _run(_framed(page, width, height) + run, "--dump-dom", f"--virtual-time-budget={SECONDS * 1000}")
    return html.unescape(dumped.rpartition("</body>")[0].rpartition(">")[2])


def _framed(page: Path, width: int, height: int) -> str:
    """Return a page that shows another one in a frame, because no window of Chromium is as narrow as a phone."""
    style = f"border: 0; width: {width}px; height: {height}px"
    return f'<!doctype html><body style="margin: 0"><iframe src="{page.resolve().as_uri()}" style="{style}"></iframe>'


def _run(around: str, *options: str) -> str:
    chromium = find()
    if chromium is None:
        raise SystemExit(f"needs Chromium, and there is none of {', '.join(NAMES)} on PATH")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        start = Path(folder, "start.html")
        start.write_text(around)
        command = [chromium, *OPTIONS, f"--user-data-dir={folder}/profile", *options, start.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
