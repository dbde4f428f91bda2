"""Entry point of the console script: every command, and the one handler around all of them.

`m3agent context` skips typer: a warm pack is faster than typer's import. So nothing heavy is imported at the top here either.
"""

from __future__ import annotations

import io
import os
import signal
import sys

TYPE_CHECKING = False  # type checkers take this for true; typing itself is slow to import
if TYPE_CHECKING:
    from typing import Any, NoReturn, TextIO


class _Output(io.FileIO):
    """The file below standard output or standard error. It remembers why a write failed.

    Attributes:
        failure: Why the last write failed; None if none did.
        drops: Whether what cannot be written is dropped, as for standard error: nobody could be told.
    """

    failure: OSError | None = None
    drops = False

    def write(self, data: Any, /) -> int:
        """Write bytes, and return how many were taken."""
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            if self.drops:
                return len(data)
            raise


def main(*, can_interrupt: bool = False) -> NoReturn:
    """Run the command line and exit.

    Args:
        can_interrupt: Ctrl-C has its default action, and shall interrupt the command. Python's own handler means the same.

    Whatever happens, no traceback is shown: Ctrl-C exits with 130 and an output that nobody reads with 141, both in silence. An
    output that cannot be written and a fault of m3agent itself are one line each and exit with 3. Python's development mode
    (`python -X dev`) shows the traceback.
    """
    _read_names_as_utf_8()
    usual = signal.default_int_handler if can_interrupt else signal.getsignal(signal.SIGINT)
    can_interrupt = usual is signal.default_int_handler  # else the parent process ignores Ctrl-C for this one
    if can_interrupt:
        signal.signal(signal.SIGINT, _quit)
    (sys.stdout, output), (sys.stderr, errors) = map(_watched, (sys.stdout, sys.stderr))
    errors.drops = True
    try:
        code = _run(usual)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001  # nothing may pass this place
        code = _code_of(error, output)
    if can_interrupt:
        signal.signal(signal.SIGINT, _quit)  # also while Python ends
    output.drops = True  # Python tries once more when it ends
    if isinstance(output.failure, BrokenPipeError):
        from m3agent.util.errors import OUTPUT_CLOSED

        code = OUTPUT_CLOSED
    elif output.failure is not None:
        code = _told(f"standard output cannot be written: {output.failure.strerror}")
    sys.exit(code)


def _read_names_as_utf_8() -> None:
    """Start Python again in its UTF-8 mode if the locale has another encoding.

    Names of files are bytes. Records, test ids and sandboxes have them as UTF-8, so one name must not be two texts. The
    output keeps the encoding of the locale.
    """
    if sys.getfilesystemencoding() == "utf-8":
        return
    encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"
    os.environ.setdefault("PYTHONIOENCODING", encoding)
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606  # no shell is meant


def _watched(stream: TextIO | None) -> tuple[TextIO, _Output]:
    """Return a standard stream that knows why a write failed, and its file.

    One that was closed becomes the null device. What the encoding of a stream lacks is replaced, so every printer works in
    every locale.
    """
    if stream is None:
        output = _Output(os.devnull, "w")
        return io.TextIOWrapper(io.BufferedWriter(output), "utf-8", "backslashreplace"), output
    output = _Output(stream.fileno(), "w", closefd=False)
    buffer = io.BufferedWriter(output)
    lines = bool(stream.line_buffering)
    errors = "backslashreplace" if stream is sys.stderr else "replace"
    return io.TextIOWrapper(buffer, stream.encoding, errors, line_buffering=lines), output


def _run(on_interrupt: Any) -> int:
    """Run the command and return its exit status.

    No program is searched for in relative folders of PATH: inside a checkout, they belong to the checkout.
    """
    from m3agent.sandbox.store.git_command import trusted_path

    if "PATH" in os.environ:
        os.environ["PATH"] = trusted_path()
    if sys.argv[1:2] == ["context"]:
        from m3agent.cli import context

        signal.signal(signal.SIGINT, on_interrupt)
        context.main(sys.argv[2:])  # returns only if the full command line has to do the work
    from m3agent.cli import app

    signal.signal(signal.SIGINT, on_interrupt)  # commands clean up
    return app.main()


def _code_of(error: BaseException, output: _Output) -> int:
    """Tell what ended a command that should have ended by itself, and return the exit status."""
    if isinstance(error, KeyboardInterrupt):
        _quit()
    if isinstance(error, OSError | SystemExit) and output.failure is not None:
        return 0  # `main` sees to it; typer turns a reader that is gone into an exit with 1
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if sys.flags.dev_mode:
        raise error
    what = f"{type(error).__name__} in {_place_of(error)}: {error}"
    return _told(f"this is a fault of m3agent, please report it: {what}")


def _place_of(error: BaseException) -> str:
    """Return the file and the line that raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _told(text: str) -> int:
    from m3agent.util.errors import EnvironmentFault
    from m3agent.util.sanitize import print_note

    print_note(f"m3agent: {text}")
    return EnvironmentFault.exit_code


def _quit(*_: object) -> NoReturn:
    """End at once and in silence, as a shell expects after Ctrl-C."""
    os._exit(130)


if __name__ == "__main__":
    main()
