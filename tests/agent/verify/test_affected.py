"""Test through which functions of the base tree a patch can influence tests."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from m3agent.agent.verify.affected import Affected, affected_code

PATH = "pkg/a.py"
NOTHING = Affected("", {}, frozenset(), frozenset())
FILE = """\
'''About this file.'''
import os
from b import one

LIMIT = 3
BY_NAME = getattr(os, "late")

def plain(x, y=1):
    '''Add.'''
    return x + y

@register
@cached(
    size=1,
)
def decorated(x):
    return x

@staticmethod
def static(x):
    return [x for x in print(x)]

def outer():
    def inner(x):
        return x
    if LIMIT:
        async def deep():
            return 2
    return inner

@overload
def many(x: int): ...
@overload
def many(x: str): ...
def many(x):
    return x

class A(B, metaclass=M):
    '''About A.'''
    size = 1

    def __init__(self):
        self.x = 1

    @property
    def value(self):
        return self.x

    class Inner:
        def method(self):
            return 1

class Empty:
    pass

if LIMIT:
    def conditional():
        return 1
"""
PLAIN, DECORATED, STATIC, OUTER = (8, 10), (12, 17), (19, 21), (23, 29)
INNER, DEEP, MANY, INIT, VALUE, METHOD = (
    (24, 25),
    (27, 28),
    [(31, 32), (33, 34), (35, 36)],
    (42, 43),
    (45, 47),
    (50, 51),
)


def affected(
    *spans: tuple[int, int], everything: str = "", whole: bool = False, names: Sequence[str] = ()
) -> Affected:
    modules = frozenset({PATH}) if whole else frozenset[str]()
    return Affected(everything, {PATH: spans} if spans else {}, modules, frozenset(names))


def outside(line: int) -> Affected:
    return affected(everything=f"{PATH} changes outside of functions (line {line})")


def changed(old: str, new: str, path: str = PATH, collected: Sequence[str] = ()) -> Affected:
    """Change the only place of FILE that has the text `old`, or add `new` to its end."""
    assert not old or FILE.count(old) == 1
    after = FILE.replace(old, new) if old else FILE + new
    return affected_code({path: (FILE.encode(), after.encode())}, collected)


NO_EFFECT = [
    ("", "# a comment\n"),
    ("x + y", "(x +  y)  # same"),
    ("About this file", "About that file"),
    ("About A", "About a class"),
    ("    '''About A.'''\n", ""),
    ("class Empty:\n    pass", "class Empty:\n    '''Nothing.'''"),
    # what only changed functions can use
    ("import os\n", "import os\nimport sys, email.message as message\nfrom . import c\n"),
    ("import os\n", "import os, sys\n"),
    ("import one", "import one, two"),
    ("import os\n", "import os\nimport os as system\nfrom c import print as show\n"),
    ("from b import one", "from b import (\n    one,\n)"),
    ("LIMIT = 3\n", "LIMIT = 3\nOTHER = LIMIT + 1\nthird: int = 4\n"),
    ("", "class New:\n    x = 1\n    def f(self): pass\n"),
]


@pytest.mark.parametrize(("old", "new"), NO_EFFECT)
def test_changes_without_effect(old: str, new: str) -> None:
    assert changed(old, new) == NOTHING


FUNCTIONS = [
    ("x + y", "x - y", affected(PLAIN)),
    ("Add.", "Sum.", affected(PLAIN)),
    ("y=1", "y=2", affected(PLAIN)),
    ("plain(x, y=1)", "plain(x: int, y=1)", affected(PLAIN)),
    ("def plain", "async def plain", affected(PLAIN)),
    ("    return x + y", "    return plain2(x)\n\nplain2 = len", affected(PLAIN)),
    # decorators
    ("def decorated(x):\n    return x", "def decorated(x):\n    return -x", affected(DECORATED)),
    ("def decorated(x)", "def decorated(x: int)", affected(DECORATED, whole=True)),
    ("def static(x)", "def static(x: int)", affected(STATIC)),
    ("x for x in print(x)", "-x for x in print(x)", affected(STATIC)),
    ("size=1,", "size=2,", outside(16)),
    ("@staticmethod\n", "", outside(20)),
    # nested functions
    ("def inner(x):\n        return x", "def inner(x):\n        return -x", affected(INNER)),
    ("return 2", "return 3", affected(DEEP)),
    ("async def deep", "def deep", affected(OUTER)),
    ("def inner(x)", "def inner(x=LIMIT)", affected(OUTER)),
    ("    def inner(x)", "    @cached\n    def inner(x)", affected(OUTER)),
    ("return inner", "return None", affected(OUTER)),
    ("    return inner", "    def third(): pass\n    return inner", affected(OUTER)),
    # added functions
    ("", "def new(): pass\n", affected(names=["new"])),
    ("", "async def new(): pass\n", affected(names=["new"])),
    ("", "@functools.lru_cache(1)\ndef new(): pass\n", affected(names=["new"])),
    ("", "@app.route('/')\ndef new(): pass\n", affected(whole=True, names=["new"])),
    # removed functions
    # several definitions of one name
    ("def many(x: int)", "def many(x: float)", affected(MANY[0])),
    ("def many(x):\n    return x", "def many(x):\n    return -x", affected(MANY[2])),
    ("@overload\ndef many(x: str): ...\n", "", affected(*MANY, whole=True, names=["many"])),
    ("", "def many(x): pass\n", affected(*MANY, whole=True, names=["many"])),
]


@pytest.mark.parametrize(("old", "new", "expected"), FUNCTIONS)
def test_changes_of_functions(old: str, new: str, expected: Affected) -> None:
    assert changed(old, new) == expected


CLASSES = [
    ("self.x = 1", "self.x = 2", affected(INIT)),
    ("return self.x", "return -self.x", affected(VALUE)),
    ("method(self):\n            return 1", "method(self):\n            return 2", affected(METHOD)),
    # added methods
    ("class Empty:\n    pass", "class Empty:\n    def f(self): pass", affected(whole=True, names=["f"])),
    (
        "    size = 1\n",
        "    size = 1\n    @property\n    def f(self): pass\n",
        affected(whole=True, names=["f"]),
    ),
    ("class Empty:\n    pass", "class Empty:\n    def __f(self): pass", affected(whole=True, names=["__f"])),
    ("class Empty:\n    pass", "class Empty:\n    def f__(self): pass", affected(whole=True, names=["f__"])),
    ("class Empty:\n    pass", "class Empty:\n    @abstractmethod\n    def f(self): pass", outside(55)),
    ("class Empty:\n    pass", "class Empty:\n    def __eq__(self, other): pass", outside(54)),
    (
        "        return self.x\n",
        "        return self.x\n    @value.setter\n    def value(self, x): pass\n",
        affected(VALUE, whole=True, names=["value"]),
    ),
    # removed methods
    ("    def __init__(self):\n        self.x = 1\n", "", affected(INIT, whole=True, names=["__init__"])),
    # class headers and bodies
    ("class A(B, metaclass=M)", "class A(B)", outside(38)),
    ("class A(B,", "class A(C,", outside(38)),
    ("class Empty:", "@dataclass\nclass Empty:", outside(53)),
    ("class Empty:", "class Renamed:", outside(53)),
    ("size = 1", "size = 2", outside(40)),
    ("    size = 1\n", "", outside(40)),
    ("    size = 1\n", "    size = 1\n    other = 1\n", outside(41)),
    ("    size = 1\n", "    size = 1\n    import sys\n", outside(41)),
    ("    size = 1\n", "    size = 1\n    class Meta: pass\n", outside(41)),
    ("    class Inner:\n        def method(self):\n            return 1\n", "", outside(49)),
    # added classes
    ("", "class New(Base): pass\n", affected(whole=True)),
    ("", "class New(metaclass=M): pass\n", affected(whole=True)),
    ("", "@register\nclass New: pass\n", affected(whole=True)),
    ("", "class Empty: pass\n", outside(53)),
    ("", "class late: pass\n", outside(59)),
]


@pytest.mark.parametrize(("old", "new", "expected"), CLASSES)
def test_changes_of_classes(old: str, new: str, expected: Affected) -> None:
    assert changed(old, new) == expected


OUTSIDE = [
    ("def plain(x, y=1):\n    '''Add.'''\n    return x + y\n", "", 8),
    ("def plain(x, y=1):\n", "def renamed(x, y=1):\n", 8),
    ("LIMIT = 3", "LIMIT = 4", 5),
    ("LIMIT = 3\n", "", 5),
    ("", "LIMIT += 1\n", 59),
    ("", "__all__ = ['plain']\n", 59),
    ("", "new, other = 1, 2\n", 59),
    ("", "new = (LIMIT := 4)\n", 59),
    ("", "new.x = 1\n", 59),
    ("", "plain(1)\n", 59),
    ("", "if LIMIT:\n    new = 1\n", 59),
    ("    def conditional():\n        return 1\n", "    def conditional():\n        return 2\n", 56),
    # names that the old file binds or uses
    ("", "plain = 1\n", 59),
    ("", "conditional = 1\n", 59),
    ("", "one: int\n", 59),
    ("", "late = 1\n", 59),
    ("", "def print(x): pass\n", 59),
    ("", "def LIMIT(): pass\n", 59),
    ("import os\n", "import os\nfrom c import print\n", 3),
    ("import os\n", "import os\nimport os.path\n", 3),
    ("def plain(x, y=1):\n    '''Add.'''\n    return x + y\n", "from c import plain\n", 8),
    # imports, and functions that Python calls
    ("import os\n", "", 2),
    ("from b import one", "from c import one", 3),
    ("from b import one", "from .b import one", 3),
    ("from b import one", "from b import two as one", 3),
    ("import os\n", "import os\nfrom c import new as print\n", 3),
    ("import os\n", "import os\nimport new as late\n", 3),
    ("import os\n", "import os\nfrom c import *\n", 3),
    ("'''About this file.'''\n", "'''About this file.'''\nfrom __future__ import annotations\n", 2),
    ("", "def __getattr__(name): pass\n", 59),
    # the order
    ("import os\nfrom b import one\n", "from b import one\nimport os\n", 2),
]


@pytest.mark.parametrize(("old", "new", "line"), OUTSIDE)
def test_changes_outside_of_functions(old: str, new: str, line: int) -> None:
    assert changed(old, new) == outside(line)


def test_moved_functions() -> None:
    one, two = b"def f(): pass\n", b"def g(): pass\n"
    assert affected_code({PATH: (one + two, two + one)}) == outside(1)


def test_names_that_functions_make_global() -> None:
    old = b"def f():\n    global new\n    import new\n"
    assert affected_code({PATH: (old, old + b"import new\n")}) == outside(4)


def test_equal_statements_are_counted() -> None:
    assert affected_code({PATH: (b"x()\nx()\n", b"x()\n")}) == outside(1)


def test_texts_that_are_read() -> None:
    assert changed("About this file", "About that file", collected=[PATH]) == outside(1)
    assert changed("About A", "About a class", collected=[PATH]) == outside(39)
    assert changed("About A", "About a class", collected=["pkg/b.py"]) == NOTHING
    uses = b"'''Usage: a'''\nargs = docopt(__doc__)\n"
    assert affected_code({PATH: (uses, uses.replace(b" a", b" b"))}) == outside(1)


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("CHANGELOG", False),
        ("pkg/Readme.TXT", False),
        ("news.rst", False),
        ("docs/guide/index.md", False),
        ("newsfragments/12.bugfix.rst", False),
        ("changelog.d/12.md", False),
        (".mailmap", False),
        ("pkg/.gitattributes", True),
        ("README.html", True),
        ("docs/logo.svg", True),
        ("docs/Makefile", True),
        ("docs.md/x", True),
        ("guide.md", True),
        ("requirements.txt", True),
        ("pkg/templates/a.html", True),
        ("pkg/a.pyi", True),
    ],
)
def test_files_that_are_not_python(path: str, counts: bool) -> None:
    not_python = Affected(f"{path} is not Python code", {}, frozenset(), frozenset())
    for old, new in ((b"a", b"b"), (None, b"b"), (b"a", None)):
        assert affected_code({path: (old, new)}) == (not_python if counts else NOTHING)
        assert affected_code({path: (old, new)}, [path]) == not_python
    assert affected_code({path: (b"a", b"a")}) == NOTHING


@pytest.mark.parametrize(
    ("path", "old", "new", "reason"),
    [
        ("a.py", None, b"", "a.py is new"),
        ("a/__init__.py", b"", None, "a/__init__.py is deleted"),
        ("setup.py", b"", b"def f(): pass", "setup.py is run by the tools that build or test the project"),
        ("a/conftest.py", b"", b"f = 1", "a/conftest.py is run by the tools that build or test the project"),
        ("a.py", b"def f(:", b"", "a.py cannot be parsed"),
        ("a.py", b"", b"def f(:", "a.py cannot be parsed"),
        ("a.py", b"", b"x = '\0'", "a.py cannot be parsed"),
        ("a.py", b"", b"\xff\xfe(", "a.py cannot be parsed"),
        ("a.py", b"", b"def f(): await x", "a.py cannot be parsed"),
        ("a.py", b"", b"x = " + b"-" * 100_000 + b"1", "a.py cannot be parsed"),
        ("a.py", b"", b"x = " + b"+".join([b"1"] * 20_000), "a.py cannot be parsed"),
        ("a.py", b"", b"x = 0x" + b"f" * 10_000, "a.py cannot be parsed"),
    ],
)
def test_files_that_count_as_everything(path: str, old: bytes | None, new: bytes | None, reason: str) -> None:
    changes = {"b.py": (b"def f(): pass", b"def f(): return 1"), path: (old, new)}
    assert affected_code(changes) == Affected(reason, {}, frozenset(), frozenset())


def test_code_that_python_warns_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = affected_code({PATH: (rb"def f(): return '\d'", rb"def f(): return 1 is '\s'")})
    assert found == affected((1, 1))


def test_several_files() -> None:
    changes = {
        "b.py": (b"def f(): pass", b"def f(): return 1"),
        "c.py": (b"def f(): pass\nclass A: pass", b"def f(): pass\nclass A:\n    def g(self): pass"),
        "d.py": (b"", b"def h(): pass"),
        "e.py": (b"", b"# nothing"),
    }
    expected = Affected("", {"b.py": ((1, 1),)}, frozenset({"c.py"}), frozenset({"g", "h"}))
    assert affected_code(changes) == expected


def test_the_functions_that_are_affected() -> None:
    found = Affected("", {"a.py": ((3, 5), (9, 9))}, frozenset({"b.py"}), frozenset({"new"}))
    assert [line for line in range(1, 12) if found.has("a.py", line, "f")] == [3, 4, 5, 9]
    assert not found.has("c.py", 3, "f")
    assert found.has("b.py", 100, "<lambda>")
    assert found.has("c.py", 1, "new")
    assert found.has("c.py", 1, "A.f.<locals>.new")
    assert not found.has("c.py", 1, "new.<locals>.f")
    assert not found.has("c.py", 1, "renew")
    assert Affected("a.c is not Python code", {}, frozenset(), frozenset()).has("c.py", 1, "f")


@dataclass(frozen=True)
class Definition:
    """A function of a drawn module, with what surrounds it."""

    comments: int
    in_class: bool
    decorators: int
    statements: int
    nested: bool

    def lines(self, number: int, returned: str) -> tuple[list[str], int, int]:
        """Return the lines, and the indices of the first and the last line of the innermost function."""
        before = ["# a comment"] * self.comments
        depth = 0
        if self.in_class:
            before.append(f"class C{number}:")
            depth = 4
        header = [*["@decorate"] * self.decorators, f"def f{number}(x):"]
        header += [f"    y{i} = lambda: x" for i in range(self.statements)]
        if self.nested:
            before += [" " * depth + line for line in (f"def g{number}():", "    '''A text.'''")]
            depth += 4
        function = [" " * depth + line for line in (*header, f"    return {returned}")]
        after = [" " * (depth - 4) + f"    return f{number}"] if self.nested else []
        first = len(before)
        return [*before, *function, *after, f"VALUE{number} = 1"], first, first + len(function) - 1


DEFINITIONS = st.builds(
    Definition, st.integers(0, 2), st.booleans(), st.integers(0, 2), st.integers(0, 3), st.booleans()
)


@given(st.lists(DEFINITIONS, min_size=1, max_size=6), st.data())
def test_a_changed_body_affects_its_function_only(definitions: list[Definition], data: st.DataObject) -> None:
    target = data.draw(st.integers(0, len(definitions) - 1))
    old: list[str] = []
    new: list[str] = []
    span = (0, 0)
    for number, definition in enumerate(definitions):
        lines, first, last = definition.lines(number, "x")
        if number == target:
            span = (len(old) + first + 1, len(old) + last + 1)
        old += lines
        new += ["", *definition.lines(number, "[x]" if number == target else "x")[0]]
    found = affected_code({PATH: ("\n".join(old).encode(), "\n".join(new).encode())})
    assert found == affected(span)


PIECES = st.sampled_from(
    [
        "def f(x):",
        "class A(B):",
        "    x = 1",
        "    def f(self): pass",
        "import a, b",
        "@d",
        "'''",
        "\\",
        "if x:",
        "\0",
    ]
)
CONTENTS = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.text(max_size=60).map(str.encode),
    st.lists(PIECES, max_size=8).map("\n".join).map(str.encode),
)


@given(CONTENTS, CONTENTS)
@example(b"class A(B):\n    x = 1", b"class A(B):\n    x = 1\n    def f(self): pass")
@example(b"\\", b"'''")
def test_no_content_is_refused(old: bytes | None, new: bytes | None) -> None:
    found = affected_code({PATH: (old, new)})
    attributed = bool(found.spans or found.modules or found.names)
    assert not (found.everything and attributed)
    assert old != new or found == NOTHING
