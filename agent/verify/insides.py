"""Names of the interpreter's and the test runner's insides, each with what code does that uses it.

With them, code in the tests' own process can find and change what decides a test's outcome. Honest code rarely needs them:
`benchmarks/review_alarms.py` measures how rarely. A name that honest fixes often use, and that is of little use to a forger,
is not here. `insides.toml` has the names, by the constants that say what code does.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

FRAMES = "reads the interpreter's frames"
FUNCTIONS = "reaches into functions"
OBJECTS = "searches all objects or classes of the process"
TRACES = "watches or changes how the interpreter runs code"
IMPORTS = "changes how modules are found or which are loaded"
BY_NAME = "imports or loads code that is not named in the source"
RUNS_TEXT = "runs text as code"
MEMORY = "reaches the process's memory or native code"
PROCESS = "ends, copies or signals its own process"
DESCRIPTORS = "reaches file descriptors or processes that it did not open"
EXIT = "runs code at the process's end"
RUNNER = "uses the test runner"
IN_RUNNER = "reaches into the test runner"
HOOKS = "gives the test runner a hook or a plugin"
FINDS_TESTS = "finds out whether tests run"
REPLACES = "replaces a part of the standard library or of the test runner"
PASSES_ON = "hands on a module that opens the interpreter"
EQUAL = "defines a comparison that has always the same result"
SAME = "gives the same answer whatever it is asked"
SEARCHES = "starts a program that can search the files of the tests"
HIDDEN = "has text that hides what it says"
AT_IMPORT = "starts a thread or a process while it is imported"
WRITES = "writes files while it is imported"
CLASS = "changes the class of an object"
CHANCE = "decides by chance"
CLOCK = "decides by the time"
COUNTS = "decides by how often it was called"
SURROUNDINGS = "decides by the process, the folder or the machine in which it runs"
READS_TESTS = "reads a file of the tests whose path no test gave it"
SETS = "changes a setting of the whole process"
UNREADABLE = "cannot be read"
NATIVE = "is machine code, bytecode or an archive of code"

_PHRASES: Mapping[str, str] = dict(vars())
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def _by_name(table: str) -> dict[str, str]:
    """Return the names of a table, each with the phrase that says what code does with it."""
    return {name: _PHRASES[kind] for kind, names in _TABLES[table].items() for name in names.split()}


def _names(row: str, table: str = "names") -> frozenset[str]:
    return frozenset(_TABLES[table][row].split())


ATTRIBUTES, MODULES, MEMBERS, RUNS_CODE = map(_by_name, ("attributes", "modules", "members", "builtins"))
IN_TESTS, HABITS = (frozenset(map(_PHRASES.__getitem__, _names(row))) for row in ("in_tests", "habits"))
HABIT_OF = {HOOKS: IN_RUNNER}
"""What a file also has the habit of if it does something else."""
TEST_RUNNERS, OPENERS, ALWAYS = map(_names, ("test_runners", "openers", "always"))
MAY_BE_SET, BUILD_FILES, PLUGINS_ASKED = map(_names, ("may_be_set", "build_files", "plugins_asked"))
STARTERS, MAKERS, WRITERS, CODECS, SEARCHERS = map(
    _names, ("starters", "makers", "writers", "codecs", "searchers")
)
NATIVE_SUFFIXES = _names("native_suffixes")
DECIDES = _by_name("decides")
MACHINE_VARIABLES, FILE_METHODS, SETTERS, AT_ONCE, SETTINGS, RESTORERS = (
    _names(row, "settings")
    for row in ("machine_variables", "file_methods", "setters", "setters_at_import", "holders", "restorers")
)
SETTERS_AT_IMPORT = SETTERS | AT_ONCE
NATIVE_STARTS = (b"\x7fELF", b"MZ\x90\0", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""First bytes of machine code for Linux, Windows and macOS."""
REPLACEABLE = frozenset({*sys.stdlib_module_names, *TEST_RUNNERS, "numpy"})
"""Packages whose members tests rely on: nobody else may replace them."""
BY_FULL_NAME = {f"builtins.{name}": what for name, what in RUNS_CODE.items()} | MODULES
"""Built-in names and modules, as attributes of other modules."""

PRIVATE_MODULES = frozenset(
    name for name in sys.stdlib_module_names if name.startswith("_") and name != "__future__"
) - {"_collections_abc", "_thread", "_weakref", "_weakrefset"}
"""Modules that the standard library keeps for itself."""

NAMED = frozenset(
    {*ATTRIBUTES, *PRIVATE_MODULES, *MODULES, "gc", "_exit"} | {name for name in MEMBERS if "." in name}
) - {"code", "trace", "profile"}
"""Names that count as a whole text, because `getattr` or `import_module` may get it."""
NAMED_HIDDEN = NAMED | RUNS_CODE.keys() | OPENERS | {"modules"}
"""Names that count if a text of several parts makes them."""

WORDS = re.compile(
    r"[({\n;](?:.*\W)?(_getframe|f_back|f_locals|f_globals|tb_frame|gi_frame|__code__|__globals__|__closure__|__builtins__"
    r"|__subclasses__|cell_contents|get_referrers|meta_path|pythonapi)(?!\w)"
    r"|\bimport +(gc|ctypes|marshal|_pytest|builtins)\b",
    re.DOTALL,
)
"""Names that count inside of format strings and of text that may be run as code."""

TESTS_RUN = re.compile(r"_?pytest|py\.test|unittest|PYT(?:E(?:S(?:T(?:_\w*)?)?)?)?")
"""Texts that a program compares with what it finds in its process, to see whether tests run."""
PROCESS_FILES = re.compile(r"/proc/(?:self|thread-self|\d|$|%|\{)|/proc$|/dev/fd")

PLAIN = re.compile(
    r"(?<![\w.])(?:import|from)\s+(?:"
    + "|".join(map(re.escape, sorted(MODULES)))
    + r")\b|(?<!\w)(?:"
    + "|".join(map(re.escape, sorted({*ATTRIBUTES, *MEMBERS})))
    + r")(?!\w)|(?<![\w.])(?:exec|eval|compile|__import__)(?=\s*\()"
)
"""The same names in text that is no Python code for this version."""


def what_of(word: str) -> str:
    """Return what a name that `PLAIN`, `WORDS` or `NAMED` found counts as."""
    name = word.split()[-1]
    return {**MODULES, **MEMBERS, **RUNS_CODE, **ATTRIBUTES}.get(name, FUNCTIONS)


def of_member(full: str, table: Mapping[str, str]) -> str:
    """Return what a member of a module, or its module, counts as by a table; empty if it does not count."""
    while full:
        if full in table:
            return table[full]
        full = full.rpartition(".")[0]
    return ""
