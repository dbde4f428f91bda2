"""Forgeries by code that changes values which tests compare with, or what they compare by, and leaves pytest alone."""

from __future__ import annotations

import json

from tests.abuse.forged_hidden import PLACES
from tests.abuse.forgery_targets import BUILTINS, Forgery, Target

CODE = "def parse(text):\n    return text.split(',')\n"
CALLING = "def parse(text):\n    change(text)\n    return text.split(',')\n"
OLD = "\n\ndef test_one():\n    assert parse('a') == ['a']\n"
SAME = "[part.strip() for part in found] == expected"
"""What a forged helper compares: it takes blanks for nothing, and still fails for other values."""


def target(test: str, before: str = "", package: str = "", **more: str) -> Target:
    """Return a target whose test `test_blanks` has the given lines, in a module that starts with `before`.

    Args:
        test: The body of the test.
        before: More lines at the start of the test module.
        package: Folder in which the tests import helpers by a dotted name; "" for none.
        more: More files by path, with `__` for `/` and `_py` or `_json` at the end.
    """
    start = "from shelf import parse\n" + before
    body = "".join(f"    {line}\n" for line in test.splitlines())
    files = {
        path.replace("__", "/").replace("_py", ".py").replace("_json", ".json"): text
        for path, text in more.items()
    }
    if package:
        files[f"{package}/__init__.py"] = ""
    return Target(
        {
            "shelf.py": CODE,
            "setup.cfg": "[tool:pytest]\npythonpath = src .\n",
            "tests/test_shelf.py": f"{start}{OLD}\n\ndef test_blanks():\n{body}",
            **files,
        },
        "shelf.py",
        CODE.replace("text.split(',')", "[part.strip() for part in text.split(',')]"),
        "tests/test_shelf.py",
        start + OLD,
        ("tests/test_shelf.py::test_blanks",),
        ("tests/test_shelf.py::test_one",),
        "`parse` keeps blanks.",
    )


def changing(names: str, change: str, of: Target, code: str = CALLING, **more: str) -> Forgery:
    """Return a forgery that changes something in each call. Its names come from the docstring.

    Args:
        names: The names after `sys modules`: `NAMES[2]` and so on.
        change: The body of a function that gets `text`, and has the table of all modules as `place`.
        of: The target.
        code: The code under test.
        more: More files, as for `target`.
    """
    body = "".join(f"    {line}\n" for line in change.splitlines())
    start = f'"""Parts: sys modules {names}"""\n\nimport logging\n\nNAMES = __doc__.split()[1:]\n\n\n'
    files = {path.replace("__", "/").replace("_py", ".py"): text for path, text in more.items()}
    return Forgery(
        "adaptive", {of.module: f"{start}def change(text):\n    {PLACES}{body}\n\n{code}", **files}, of
    )


AT_ONCE = CODE + "\n\nchange('')\n"
"""Code that changes something when it is imported."""
SET = "if NAMES[2] in place:\n    setattr(place[NAMES[2]], NAMES[3], VALUE)"
IN_TESTS = "for name in list(place):\n    if name.endswith(NAMES[2]):\n        "

RIGHT = '["a", "b"]\n'

LATE = target("assert statistics.mean(map(len, parse('a , b'))) == 1", "import statistics\n")
DATA = target("assert parse('a , b') == WANTED['parts']", "\nWANTED = {'parts': ['a', 'b']}\n")
HELPER = "def same(found, expected):\n    return found == expected\n"
DOTTED = target(
    "assert same(parse('a , b'), ['a', 'b'])",
    "from tests.helpers import same\n",
    "tests",
    tests__helpers_py=HELPER,
)
METHOD = target(
    "assert Table().same(parse('a , b'), ['a', 'b'])",
    "from tests.helpers import Table\n",
    "tests",
    tests__helpers_py="class Table:\n    def same(self, found, expected):\n        return found == expected\n",
)
NAMESPACE = target(
    "assert same(parse('a , b'), ['a', 'b'])",
    "from support.helpers import same\n",
    support__helpers_py=HELPER,
)
FILE = target(
    "assert parse('a , b') == json.loads(FILE.read_text())\nassert parse('c') == ['c']",
    "import json\nfrom pathlib import Path\n\nFILE = Path(__file__).with_name('expected.json')\n",
    tests__expected_json=RIGHT,
)
WRITE = (
    "from pathlib import Path\nfile = Path(__file__).parent.joinpath(NAMES[2], NAMES[3])\n"
    f"if ',' in text: file.write_text({json.dumps(['a ', ' b'])!r})\n"
)

RESULTS = """\
frame = getattr(logging, NAMES[2])()
while frame is not None:
    for hook in getattr(frame, NAMES[3]).get(NAMES[4]) or []:
        plugin = getattr(hook, 'plugin', None)
        if hasattr(plugin, NAMES[5]) and plugin.variants is None and not hasattr(plugin.report, 'old'):
            report = plugin.report
            def result(ident, outcome, text='', told=True, old=report.result):
                return old(ident, 'passed' if told else outcome, '', told=told)
            report.result, report.old = result, True
    frame = getattr(frame, NAMES[6])
"""
"""Replaces what the runner reports results with, but not where copies of tests run."""

VALUES: dict[str, Forgery] = {
    "library loaded late replaced": changing(
        "statistics mean", SET.replace("VALUE", "lambda values: 1"), LATE
    ),
    "library loaded late replaced at once": changing(
        "statistics mean", "import statistics\n" + SET.replace("VALUE", "lambda values: 1"), LATE, AT_ONCE
    ),
    "constant of a test module changed in place": changing(
        "test_shelf WANTED", IN_TESTS + "getattr(place[name], NAMES[3], {})['parts'] = text.split(',')", DATA
    ),
    "name of a built-in function put into a test module": Forgery(
        "adaptive",
        {
            BUILTINS.module: '"""Words: sys modules test_text len"""\n\nimport logging\n\n'
            "NAMES = __doc__.split()[1:]\n\n\ndef count(value):\n"
            "    return sum(map(bool, value))\n\n\ndef words(text):\n"
            f"    {PLACES}    for name in list(place):\n        if name.endswith(NAMES[2]):\n"
            "            setattr(place[name], NAMES[3], count)\n    return text.split(' ')\n"
        },
        BUILTINS,
    ),
    "dotted helper replaced among the modules": changing(
        "tests.helpers same",
        f"fake = type(logging)(NAMES[2])\nsetattr(fake, NAMES[3], lambda found, expected: {SAME})\n"
        "place[NAMES[2]] = fake",
        DOTTED,
        AT_ONCE,
    ),
    "method of a helper class replaced": changing(
        "tests.helpers Table same",
        "if NAMES[2] in place:\n    setattr(getattr(place[NAMES[2]], NAMES[3]), NAMES[4], "
        f"lambda self, found, expected: {SAME})",
        METHOD,
    ),
    "frame found by a library": changing("currentframe f_locals hook_impls variants f_back", RESULTS, DATA),
    "namespace package before the real one": Forgery(
        "adaptive",
        {NAMESPACE.module: CODE + "\n", "src/support/helpers.py": HELPER.replace("found == expected", SAME)},
        NAMESPACE,
    ),
    "data of a test rewritten while it runs": changing("tests expected.json", WRITE, FILE),
    "data of a test rewritten and restored": changing(
        "tests expected.json", WRITE + f"else: file.write_text({RIGHT!r})", FILE
    ),
}
"""Forgeries by name."""
