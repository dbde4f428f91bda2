"""`m3agent context`: pack a repository and write the text.

A cached pack takes a few hundredths of a second, less than importing typer and pydantic. This module
therefore answers plain calls itself: options in full, nothing in settings files, an ordinary clone. All other
calls go to the full command line. It has the same options, reports errors in them, and calls `run`.
"""

from __future__ import annotations

import gc
import os
import sys
from time import monotonic

from m3agent.agent.context.cache import folder_of, folder_of_all
from m3agent.agent.context.checkout import Checkout, quick_checkout
from m3agent.agent.context.pack import pack
from m3agent.agent.context.packer import PackOptions
from m3agent.agent.context.rules import OVER_BUDGET
from m3agent.util.plain_file import read_first
from m3agent.util.xdg import config_path, state_path

TYPE_CHECKING = False  # type checkers take this for true; typing itself is slow to import
if TYPE_CHECKING:
    from m3agent.agent.context.tokenizer.source import TokenizerSource
    from m3agent.agent.context.types import Context

VALUES = frozenset(
    {"--repo", "--budget", "--prefix", "--include", "--exclude", "--tokenizer", "--output", "-o"}
)
_FILES_OF_SETTINGS = (".m3agent.toml", "pyproject.toml")
MOST_SETTINGS = 4 << 20
"""Most bytes of a file that are searched for settings. It may be a link to something endless."""


def main(arguments: list[str]) -> None:
    """Answer a plain call and exit the process; return if the call is not plain."""
    given = _plain(arguments)
    if given is None:
        return
    options, folder, tokenizer, output, stats = given
    try:
        checkout = None if _has_settings(folder) else quick_checkout(folder)
        if checkout is None:
            return
        options.tokenizer = _tokenizer(tokenizer)
        code = run(options, checkout, output=output, stats=stats)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        from m3agent.util.errors import OUTPUT_CLOSED

        code = OUTPUT_CLOSED
    except Exception as error:  # checked below, because importing the classes takes longer than packing
        from m3agent.agent.exit_codes import FAILURES, exit_code_of
        from m3agent.util.sanitize import print_note

        if not isinstance(error, FAILURES):
            raise
        print_note(f"m3agent: {error}")
        code = exit_code_of(error)
    os._exit(code)  # skip the cleanup: freeing megabytes takes time


def run(
    options: PackOptions,
    checkout: Checkout,
    *,
    output: str | None = None,
    stats: bool = False,
    verify: bool = False,
) -> int:
    """Pack, write the requested output and print a summary line to standard error. Return the exit status.

    Args:
        options: What to pack. The cache and the progress are added.
        checkout: The checkout.
        output: Name of the output file; None for standard output.
        stats: Whether to print the table of contents.
        verify: Whether to check the token count.
    """
    options.cache = folder_of(state_path(os.environ), checkout.git_dir)
    options.progress = _Progress() if sys.stderr.isatty() else None
    tokenizer = options.tokenizer
    gc.disable()  # packing makes many objects and no cycles; the search for cycles takes a seventh of the time
    try:
        context = pack(checkout, options)
    finally:
        gc.enable()
    if options.progress is not None:
        sys.stderr.write("\r\x1b[K")
    over = sum(reason == OVER_BUDGET for _, reason in context.dropped)
    nothing_fits = bool(over) and not context.files
    if nothing_fits and not stats:
        return _nothing_fits(over, options)
    if output is not None:
        _write(output, context.pieces)
    elif not (stats or verify):
        _print(context)
    sys.stderr.write(summary(context) + "\n")  # only numbers; `sanitize` is slow to import
    if tokenizer is not None and not context.exact:
        from m3agent.agent.context.tokenizer.counter import open_counter
        from m3agent.util.sanitize import print_note

        print_note(f"with this tokenizer, counts are not exact: {open_counter(tokenizer).note}")
    if stats:
        _print_stats(context, over)
    if nothing_fits:
        return _nothing_fits(over, options)
    if verify:
        return _verify(context, tokenizer)
    return 0


def _print(context: Context) -> None:
    """Print the text, unless a person would have to read it."""
    if sys.stdout.isatty():
        sys.stderr.write("the text is not printed on a terminal: name a file with -o, or use a pipe\n")
    else:
        sys.stdout.buffer.writelines(context.pieces)


def _print_stats(context: Context, over: int) -> None:
    """Print the table of contents; `over` files were left out because of the budget."""
    from m3agent.agent.context.selection.outline import available
    from m3agent.agent.context.stats import table
    from m3agent.util.sanitize import print_note, print_text

    print_text(table(context), end="")
    if over and not available():
        print_note(
            "signatures of left-out files need m3agent's parsers: install m3agent[outlines] as docs/install.md says."
        )


def _nothing_fits(files: int, options: PackOptions) -> int:
    """Say that the text would have no file; return the exit status."""
    number = f"none of {files:,} files fits" if files > 1 else "the only file does not fit"
    sys.stderr.write(f"m3agent: {number} into {options.budget or 0:,} tokens: give more with --budget\n")
    return 2


def _verify(context: Context, tokenizer: TokenizerSource | None) -> int:
    """Compare the sum of the chunks' counts with the vendor's own tokenizer on the complete text.

    Returns:
        The exit status: 0 if they are equal, else 1.

    Raises:
        UsageError: There is no tokenizer, or its library is not installed.
    """
    from m3agent.agent.context.tokenizer.counter import oracle_count
    from m3agent.util.errors import UsageError
    from m3agent.util.sanitize import print_text

    if tokenizer is None:
        raise UsageError(
            "--verify needs the model's tokenizer: give its tokenizer.json or folder with --tokenizer."
        )
    whole = oracle_count(tokenizer, context.text)
    same = whole == context.tokens
    mark = "=" if same else "is not"
    print_text(
        f"sum of the chunks {context.tokens:,} {mark} {whole:,}, counted as one text ({tokenizer.label})"
    )
    return 0 if same else 1


class _Progress:
    """Show a progress line on the terminal if reading takes more than a second."""

    def __init__(self) -> None:
        self._started = monotonic()

    def __call__(self, done: int, total: int) -> None:
        if monotonic() - self._started > 1:
            sys.stderr.write(f"\r\x1b[Kreading files: {done:,} of {total:,}")
            sys.stderr.flush()


def summary(context: Context) -> str:
    """Return a line with the size of the context and the number of omitted and redacted files."""
    files = len(context.files)
    line = f"{context.size} tokens in {files:,} {'file' if files == 1 else 'files'}"
    if context.dropped:
        line += f", {len(context.dropped):,} left out"
    if context.redacted:
        line += f", secrets redacted in {len(context.redacted):,}"
    return line


def _plain(arguments: list[str]) -> tuple[PackOptions, str, str | None, str | None, bool] | None:
    """Return the options, the folder, the tokenizer, the output file, and whether to print the table of contents.

    Returns:
        None unless all options are known here and written in full.
    """
    values = _values(arguments)
    if values is None or "server" in values.get("--tokenizer", ()):
        return None  # choosing the server takes longer than packing from cache does
    budget, prefix = values.get("--budget", [""])[-1], values.get("--prefix", ["plain"])[-1]
    if prefix not in ("plain", "frozen") or (budget and not _is_positive(budget)):
        return None
    options = PackOptions(
        budget=int(budget) if budget else None,
        frozen=prefix == "frozen",
        include=tuple(values.get("--include", ())),
        exclude=tuple(values.get("--exclude", ())),
    )
    tokenizer, output = (values.get(name, [None])[-1] for name in ("--tokenizer", "--output"))
    return options, values.get("--repo", ["."])[-1], tokenizer, output, "--stats" in values


def _values(arguments: list[str]) -> dict[str, list[str]] | None:
    """Return the values of each option; None unless all options are known here and written in full."""
    values: dict[str, list[str]] = {}
    rest = iter(arguments)
    for option in rest:
        if option == "--stats":
            values[option] = []
            continue
        name, equals, inline = option.partition("=")
        if name not in VALUES:
            return None
        value = inline if equals and name != "-o" else next(rest, None)
        if value is None:
            return None
        values.setdefault("--output" if name == "-o" else name, []).append(value)
    return values


def _is_positive(number: str) -> bool:
    return number.isascii() and number.isdigit() and int(number) > 0


def _has_settings(folder: str) -> bool:
    """Return whether settings may come from anything but the options: the environment or a settings file."""
    if any(name.startswith("M3AGENT_") and name != "M3AGENT_STATE" for name in os.environ):
        return True
    user = config_path(os.environ)
    if user is not None and os.path.lexists(user):
        return True
    path = os.path.realpath(folder)
    while True:
        if os.path.lexists(f"{path}/{_FILES_OF_SETTINGS[0]}") or _mentions(f"{path}/{_FILES_OF_SETTINGS[1]}"):
            return True
        if os.path.lexists(f"{path}/.git") or path == "/":
            return False
        path = os.path.dirname(path)


def _mentions(path: str) -> bool:
    try:
        return b"m3agent" in read_first(path, MOST_SETTINGS)
    except OSError:  # absent, or no regular file
        return False


def _tokenizer(wanted: str | None) -> TokenizerSource | None:
    from m3agent.agent.context.tokenizer.source import find_tokenizer

    return find_tokenizer(wanted, env=os.environ, cache=folder_of_all(state_path(os.environ)))


def _write(name: str, pieces: list[bytes]) -> None:
    """Write the text to a file atomically; on failure the old file remains."""
    temporary = f"{name}.{os.getpid()}~"
    try:
        special = os.path.lexists(name) and not os.path.isfile(name)
        with open(name if special else temporary, "wb") as file:
            file.writelines(pieces)
        if not special:
            os.replace(temporary, name)
    except OSError as error:
        from contextlib import suppress

        from m3agent.util.errors import EnvironmentFault

        with suppress(OSError):
            os.unlink(temporary)
        raise EnvironmentFault(
            f"The context cannot be written to {name} ({error.strerror}): name another file with -o."
        ) from None
