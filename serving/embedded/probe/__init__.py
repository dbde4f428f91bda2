"""Build the program that measures and judges inside the sandbox: join its modules into one source text.

The modules beside this file use the standard library only (and pytest, if the repository's tests need it).
They run on Python 3.5 and later, and never on the host: with `m3agent.util.tap`, `bundle` joins them into one script that
``code_exec`` runs, in the form for old Pythons.
"""

import re
from functools import cache
from pathlib import Path

from m3agent.util import tap
from m3agent.util.portable_source import portable

MARK = "M3-REPAIR "
"""Start of the program's only result line; JSON follows."""

_MODES = {
    "spectrum": (
        "spectrum",
        ("processes", "session", "spectrum"),
        "find the lines that the failing tests run",
    ),
    "judge": (
        "judge",
        ("processes", "session", "swap", "judge"),
        "let the tests judge candidate changes in a private copy",
    ),
    "read": ("read", (), "read files exactly"),
    "profile": (
        "profile",
        ("processes", "tap", "commands"),
        "find the lines that the failing {language} tests run",
    ),
    "try": (
        "attempt",
        ("processes", "tap", "commands"),
        "let the {language} tests judge candidate changes in private copies",
    ),
}
"""The function of a mode, the modules after `tree`, and what people read: `{language}` is one word."""
_EARLIER = {
    "measure which lines failing and passing tests run": "spectrum",
    "measure which lines the failing tests of another language run": "profile",
    "find the lines that the failing tests of another language run": "profile",
    "let the tests of another language judge candidate changes in private copies": "try",
}
"""Purposes as earlier versions wrote them, and their modes."""


@cache
def _body(parts: tuple[str, ...]) -> str:
    here = Path(__file__).parent
    shared = {"tap": Path(tap.__file__)}
    text = "\n\n".join(shared.get(part, here / f"{part}.py").read_text("utf-8") for part in parts)
    # On the host the parts import each other; in the bundle they share one namespace.
    alone = re.sub(
        r"^from (?:m3agent\.[\w.]+|__future__) import (?:\([^)]*\)|.*)\n", "", text, flags=re.MULTILINE
    )
    return portable(alone)


def bundle(mode: str, payload: str, language: str = "Python") -> str:
    """Return the program for a mode; `payload` is its input as JSON, `language` that of the tests in one word."""
    entry, parts, purpose = _MODES[mode]
    return (
        f"# {purpose.format(language=language)}\n"
        # Remove the program's own folder from the path: a file there could hide a module.
        "import os, sys\n"
        "sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(sys.argv[0]))]\n"
        f"{_body(('tree', *parts))}\n"
        'if __name__ == "__main__":\n'
        f"    report({entry}(json.loads({payload!r})))\n"
    )


def same_job(one: str, other: str) -> bool:
    """Return whether two programs do the same job: equal code, or the same mode and payload.

    Two versions of m3agent write different programs for one job. A conversation of an older version must go on.
    """
    return one == other or (_job(one) is not None and _job(one) == _job(other))


def _job(program: str) -> tuple[str, str] | None:
    """Return a program's mode and its line with the payload; None if `bundle` did not write it."""
    purpose = program.partition("\n")[0].removeprefix("# ")
    known = {words.format(language=r"\w+"): mode for mode, (_, _, words) in _MODES.items()}
    mode = _EARLIER.get(purpose) or next((known[one] for one in known if re.fullmatch(one, purpose)), None)
    return None if mode is None else (mode, program.rstrip("\n").rpartition("\n")[2])
