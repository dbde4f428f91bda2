"""Read the issue to fix: from GitHub or GitLab, a file, standard input, or the command line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from m3agent.agent.issue.images import IssueImage, fitting
from m3agent.util.errors import UsageError
from m3agent.util.sanitize import quoted, replace_unprintable

if TYPE_CHECKING:
    from m3agent.agent.forge.address import IssueReference

MAX_BYTES = 1024 * 1024
"""The largest accepted issue, in bytes: about 350,000 tokens, far more than anybody writes by hand."""

TITLE_LENGTH = 120
"""The longest title, in characters."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,12}")
_FILE_SUFFIXES = (".md", ".markdown", ".txt", ".rst", ".text", ".log", ".patch", ".diff")
_HEADING = re.compile(r"#{1,6}\s+(?P<text>.*?)\s*#*\s*")
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


@dataclass(frozen=True)
class Issue:
    """The issue to fix."""

    title: str
    """One line."""
    text: str
    """The whole issue, with `\\n` line ends."""
    source: str
    """Where it came from: a path as given, `-`, `text` or the address of a web page."""
    digest: str
    """The SHA-256 of `text`, in hexadecimal."""
    images: tuple[IssueImage, ...] = ()


def load_issue(
    spec: str,
    *,
    stdin: TextIO | BinaryIO | None = None,
    origin: Callable[[], str | None] = lambda: None,
    github_api: str | None = None,
    env: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
    timeout: float = 20.0,
) -> Issue:
    """Return the issue that `spec` stands for. Blocking: call it in a thread.

    Args:
        spec: The address of an issue on GitHub or GitLab, `owner/repo#N`, `#N` (an issue of the origin
            remote), the path of a file, `-` for `stdin`, or the text itself.
        timeout: The longest silence of a server, in seconds.

    Raises:
        UsageError: There is nothing to read, or it is not the text of an issue.
        PermissionRefused: A tracker denies access.
        EnvironmentFault: A tracker does not answer, or answers with an error.
    """
    stripped = spec.strip()
    if not stripped:
        raise UsageError("The issue is empty: give a file, '-' for standard input, or the text itself.")
    if stripped == "-":
        return _issue(_read_stdin(stdin, say), "-", "The issue on standard input")
    # Imported here, because it takes as long as all other imports together and '-' does not need it.
    from m3agent.agent.forge.address import GITHUB_API, parse_reference

    reference = parse_reference(stripped, github_api=github_api or GITHUB_API, origin=origin, env=env or {})
    if reference is not None:
        return _fetched(reference, env or {}, say, timeout)
    path = _as_path(spec)
    if path is not None:
        return _issue(_read_file(path), str(path), f"The issue file {quoted(str(path))}")
    if _URL.fullmatch(stripped):
        raise UsageError(
            f"{quoted(stripped)} is not the address of an issue on GitHub or GitLab: "
            "save the issue's text to a file and give that file instead."
        )
    if _NUMBER.fullmatch(stripped):
        raise UsageError(
            f"{quoted(stripped)} is no issue text: write '#{stripped}' (with the quotes, for the shell) for issue {stripped} of "
            "the origin remote."
        )
    return _issue(spec.encode("utf-8", "surrogateescape"), "text", "The issue text")


def _fetched(
    reference: IssueReference, env: Mapping[str, str], say: Callable[[str], None], timeout: float
) -> Issue:
    """Fetch title, body, comments (in their order) and images of an issue."""
    from m3agent.agent.forge.api import TooLarge, find_token
    from m3agent.agent.forge.connection import connected
    from m3agent.agent.issue.linked_images import find_images, load_images

    token = find_token(reference, env)
    say(f"fetching {reference.label} from {reference.host}")
    with connected(reference, token, say, timeout) as client:
        try:
            title, text = client.issue(reference, MAX_BYTES)
        except TooLarge:
            raise too_large(f"The {reference.what}") from None
        images = load_images(find_images(text), client.api.http, reference, say=say, timeout=timeout)
    title = " ".join(title.split())
    text = f"# {title}\n\n{text.strip()}\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Issue(_one_line(title), text, reference.url, digest, fitting(images, say))


def too_large(what: str) -> UsageError:
    """Return the error for an issue of more than `MAX_BYTES`. `what` begins its sentence."""
    return UsageError(
        f"{what} is larger than {MAX_BYTES // 1024} KiB: shorten it to the report "
        "itself (put long logs into the repository, where the model can read them)."
    )


def _as_path(spec: str) -> Path | None:
    """Return the path of the existing file that `spec` names; None if `spec` is text.

    Raises:
        UsageError: `spec` looks like a path, but there is no such file.
    """
    if "\n" in spec or "\0" in spec:
        return None
    path = Path(spec)
    try:
        path.lstat()
    except PermissionError:
        return path  # reading the file will fail with the reason
    except OSError:  # the file is absent, or `spec` is no valid file name (such as a long sentence)
        # A missing path is a typo, never an issue of one word.
        looks_like_path = not re.search(r"\s", spec) and (
            "/" in spec or spec.lower().endswith(_FILE_SUFFIXES)
        )
        if looks_like_path and not _URL.fullmatch(spec):
            raise UsageError(
                f"There is no issue file {quoted(spec)}: check the path, or give the issue's text in quotes."
            ) from None
        return None
    return path


def _read_file(path: Path) -> bytes:
    name = quoted(str(path))
    try:
        if path.is_dir():
            raise UsageError(f"The issue {name} is a folder: give a file inside it.")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"The issue file {name} cannot be read: {error.strerror}.") from None


def _read_stdin(stdin: TextIO | BinaryIO | None, say: Callable[[str], None]) -> bytes:
    if stdin is None:
        raise UsageError("There is no standard input for the issue: give a file or the text itself.")
    if stdin.isatty():
        say("write or paste the issue here, then end it with Ctrl-D on an empty line; Ctrl-C leaves")
    source: TextIO | BinaryIO = getattr(stdin, "buffer", stdin)
    data = source.read(MAX_BYTES + 1)
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data


def _issue(data: bytes, source: str, what: str) -> Issue:
    """Check and decode `data`. `what` begins the sentence of any error."""
    if len(data) > MAX_BYTES:
        raise too_large(what)
    text = _decode(data, what)
    if not text.strip():
        raise UsageError(f"{what} is empty: write what goes wrong and what should happen instead.")
    return issue_of(text, source)


def _decode(data: bytes, what: str) -> str:
    """Decode text, with `\\n` line ends.

    The encoding is that of the byte order mark, else UTF-8, else Windows-1252 (the default of old editors).
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            text = data[len(mark) :].decode(encoding, "replace")
            break
    else:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = data.decode("cp1252", "replace")
    # Many control characters mean binary data, even if it decodes. A log may hold a few escape sequences.
    strange = sum(1 for character in text if character < " " and character not in "\t\n\r\f\x1b\b")
    strange += text.count("\N{REPLACEMENT CHARACTER}")
    if "\0" in text or strange > len(text) // 100:
        raise UsageError(f"{what} is not text: give a plain text or Markdown file.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def issue_of(text: str, source: str) -> Issue:
    """Return a text as an issue."""
    return Issue(
        title_of(text), text, source, hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    )


def title_of(text: str) -> str:
    """Return the title of an issue: one line, cut to `TITLE_LENGTH`.

    It is the first Markdown heading outside code, else the first line that is not empty.
    """
    lines = [line.strip() for line in text.splitlines()]
    title = next((line for line in lines if line), "")
    fenced = False
    for line in lines:
        if line.startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced and (heading := _HEADING.fullmatch(line)) and heading["text"]:
            title = heading["text"]
            break
    return _one_line(title)


def _one_line(title: str) -> str:
    title = replace_unprintable(title).strip()
    return title if len(title) <= TITLE_LENGTH else title[: TITLE_LENGTH - 1].rstrip() + "…"
