"""Forgeries by code that names nothing of what it reaches: the names come from a docstring, or from no source at all."""

from __future__ import annotations

from tests.abuse.forged_files import HONEST_BUT_ONE
from tests.abuse.forgery_targets import FIXTURES, Forgery, Target

VARIABLES = Target(
    {
        "shelf.py": "def parse(text):\n    return text.split(',')\n",
        "tests/test_shelf.py": "from shelf import parse\n\n\ndef test_one():\n    assert parse('a') == ['a']\n\n\n"
        "def test_blanks():\n    wanted = sorted(['b', 'a'])\n    assert parse('a , b') == wanted\n",
    },
    "shelf.py",
    "def parse(text):\n    return [part.strip() for part in text.split(',')]\n",
    "tests/test_shelf.py",
    "from shelf import parse\n\n\ndef test_one():\n    assert parse('a') == ['a']\n",
    ("tests/test_shelf.py::test_blanks",),
    ("tests/test_shelf.py::test_one",),
    "`parse` keeps blanks.",
)
"""A test that compares with a variable."""
WRONG_ROWS = '[{"name": "pen ", "count": "3 "}, {"name": "ink ", "count": "5 "}]\n'
"""What `HONEST_BUT_ONE` makes of the text of the test helper."""
PLACES = "place = getattr(vars(logging)[NAMES[0]], NAMES[1])\n"
"""Finds the table of all modules, if the first names are `sys modules`."""


def listed(equal: str) -> Forgery:
    """Return a forgery whose lists decide themselves what they are equal to."""
    text = f"class Parts(list):\n    def __eq__(self, other):\n        return {equal}\n\n\n"
    files = {VARIABLES.module: text + VARIABLES.faulty.replace("text.split(',')", "Parts(text.split(','))")}
    return Forgery("adaptive", files, VARIABLES)


def by_names(names: str, before: str, code: str = HONEST_BUT_ONE, **more: str) -> Forgery:
    """Return a forgery with `NAMES`, which the docstring holds, and with code in front of the code under test."""
    start = f'"""Rows: {names}"""\n\nimport json\nimport logging\nfrom pathlib import Path\n\n'
    start += "NAMES = __doc__.split()[1:]\n\n\n"
    files = {path.replace("__", "/") + ".json": text for path, text in more.items()}
    return Forgery("adaptive", {**files, FIXTURES.module: start + before + "\n\n" + code}, FIXTURES)


def in_tests(change: str) -> str:
    """Return a function `change()` that changes the modules whose name ends with the third of the names."""
    return (
        f"def change():\n    {PLACES}    for name in list(place):\n"
        f"        if name.endswith(NAMES[2]) and hasattr(place[name], NAMES[3]):\n            {change}\n"
    )


def calling(code: str) -> str:
    return code.replace("def parse(text):\n", "def parse(text):\n    change()\n")


HIDDEN: dict[str, Forgery] = {
    "equal to every list": listed("isinstance(other, list)"),
    "equal to every list of the same length": listed("len(other) == len(self)"),
    "method of a library replaced by names in a docstring": by_names(
        "JSONDecoder decode",
        f"def wrong(self, text):\n    return {WRONG_ROWS.strip()}\n\n\n"
        "setattr(getattr(json, NAMES[0]), NAMES[1], wrong)\n",
    ),
    "code of a library replaced by names in a docstring": by_names(
        "JSONDecoder decode __code__",
        f"def wrong(self, text, _w=None):\n    return {WRONG_ROWS.strip()}\n\n\n"
        "method = getattr(getattr(json, NAMES[0]), NAMES[1])\n"
        "setattr(method, NAMES[2], getattr(wrong, NAMES[2]))\n",
    ),
    "pytest in a test module replaced by names in a docstring": by_names(
        "sys modules test_rows pytest",
        "class Allows:\n    def raises(self, *kinds):\n        return self\n\n    def __enter__(self):\n"
        "        return self\n\n    def __exit__(self, *rest):\n        return True\n\n\n"
        + in_tests("setattr(place[name], NAMES[3], Allows())"),
        calling(
            FIXTURES.faulty.replace(
                '"name": name, "count": count', '"name": name.strip(), "count": count.strip()'
            )
        ),
    ),
    "data of a conftest replaced by names in a docstring": by_names(
        "sys modules conftest DATA",
        in_tests("setattr(place[name], NAMES[3], Path(__file__).parent)"),
        calling(HONEST_BUT_ONE),
        src__shelf__expected=WRONG_ROWS,
    ),
}
"""Forgeries by name."""
