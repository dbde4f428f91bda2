"""The program that measures and judges inside the sandbox, and its bundling into one source text.

The modules beside this file use the standard library only (pytest where the repository's tests need it), run on
Python 3.8 and later, and never run on the host: `bundle` joins them into one script that ``code_exec`` executes.
"""

import re
from functools import cache
from pathlib import Path

MARK = "M3-REPAIR "
"""What the one result line of the program begins with; JSON follows."""

_PARTS = {
    "spectrum": ("tree", "session", "tracing", "spectrum"),
    "judge": ("tree", "session", "swap", "jobs", "judge"),
    "read": ("tree", "reading"),
}
_PURPOSES = {
    "spectrum": "measure which lines failing and passing tests run",
    "judge": "let the tests judge candidate changes in a private copy",
    "read": "read files exactly",
}
_ENTRY = {"spectrum": "spectrum", "judge": "judge", "read": "read"}


@cache
def _body(parts: tuple[str, ...]) -> str:
    here = Path(__file__).parent
    text = "\n\n".join((here / f"{part}.py").read_text("utf-8") for part in parts)
    # The parts see each other as modules on the host and as one namespace in the bundle.
    return re.sub(
        r"^from (?:m3agent\.[\w.]+|__future__) import (?:\([^)]*\)|.*)\n", "", text, flags=re.MULTILINE
    )


def bundle(mode: str, payload: str) -> str:
    """Return the program for `mode` (a key of ``_PARTS``) with `payload`, a JSON text, as its input."""
    return (
        f"# {_PURPOSES[mode]}\n"
        "from __future__ import annotations\n"
        # The program's own folder must not be imported from: whatever its file is called may hide a module.
        "import os, sys\n"
        "sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(sys.argv[0]))]\n"
        f"{_body(_PARTS[mode])}\n"
        'if __name__ == "__main__":\n'
        f"    report({_ENTRY[mode]}(json.loads({payload!r})))\n"
    )
