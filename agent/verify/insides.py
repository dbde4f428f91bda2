"""Names of the interpreter's and the test runner's insides, each with what code does that uses it.

With them, code in the tests' own process can find and change what decides a test's outcome. Honest code rarely needs them:
`benchmarks/review_alarms.py` measures how rarely. A name that honest fixes often use, and that is of little use to a forger,
is not here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

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
HIDDEN = "has text that hides what it says"
AT_IMPORT = "starts a thread or a process while it is imported"
WRITES = "writes files while it is imported"
CLASS = "changes the class of an object"
UNREADABLE = "cannot be read"
NATIVE = "is machine code, bytecode or an archive of code"

IN_TESTS = frozenset({FRAMES, FUNCTIONS, OBJECTS, MEMORY, PROCESS, HIDDEN, REPLACES, UNREADABLE, NATIVE})
"""What counts in test files as well. Tests honestly do all the rest."""

HABITS = frozenset({IN_RUNNER, RUNS_TEXT, BY_NAME})
"""What a file may do more of if it did it before, such as a plugin for pytest. Fixes of such files often do.

`HOOKS` is not here: a further hook can change outcomes, whatever hooks the file had.
"""
HABIT_OF = {HOOKS: IN_RUNNER}
"""What a file also has the habit of if it does something else."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    return {name: what for what, names in table.items() for name in names.split()}


ATTRIBUTES = _by_name(
    {
        FRAMES: """
            _getframe _getframemodulename _current_frames _current_exceptions currentframe getouterframes
            getinnerframes f_back f_locals f_globals f_builtins f_trace tb_frame gi_frame cr_frame ag_frame
        """,
        FUNCTIONS: "__code__ __globals__ __closure__ __builtins__ cell_contents func_code func_globals func_closure",
        OBJECTS: "get_objects get_referrers get_referents __subclasses__",
        TRACES: "settrace setprofile settrace_all_threads setprofile_all_threads addaudithook",
        IMPORTS: "meta_path path_hooks path_importer_cache exec_module load_module __loader__",
        MEMORY: "pythonapi py_object memmove string_at from_address PyDLL",
        FINDS_TESTS: "orig_argv",
    }
)
"""Attributes that count whatever object they belong to."""

MODULES = _by_name(
    {
        IMPORTS: "runpy setup",
        RUNS_TEXT: "marshal code codeop timeit cProfile profile trace doctest pdb bdb dill cloudpickle shelve",
        MEMORY: "ctypes cffi _ctypes _cffi_backend",
        PROCESS: "faulthandler",
        EXIT: "atexit",
        RUNNER: "pytest unittest nose",
        IN_RUNNER: "_pytest pluggy conftest unittest.case unittest.suite unittest.result unittest.runner __main__",
    }
)
"""Modules whose import counts. If the file imported one before, only the members below count."""

MEMBERS = _by_name(
    {
        FRAMES: "inspect.stack inspect.trace inspect.getargvalues traceback.walk_stack traceback.walk_tb traceback.extract_stack",
        OBJECTS: "gc.callbacks inspect.getclosurevars",
        TRACES: "sys.monitoring sys.excepthook sys.unraisablehook threading.excepthook",
        IMPORTS: """
            importlib.reload importlib.util.spec_from_file_location importlib.util.spec_from_loader
            site.addsitedir
        """,
        BY_NAME: "pkgutil.resolve_name pydoc.locate",
        RUNS_TEXT: "marshal.loads marshal.load pickle.load pickle.loads pickle.Unpickler logging.config",
        PROCESS: """
            os._exit os.abort os.fork os.forkpty os.kill os.killpg os.register_at_fork os.execv os.execve os.execvp
            os.execvpe os.execl os.execle os.execlp os.execlpe signal.setitimer signal.alarm
            signal.raise_signal signal.pthread_kill
        """,
        DESCRIPTORS: "os.closerange os.pidfd_open",
        FINDS_TESTS: "os.getpid os.getppid",
        EXIT: "atexit.register weakref.finalize threading._register_atexit",
        IN_RUNNER: """
            pytest.hookimpl pytest.Config pytest.Item pytest.Function pytest.CallInfo pytest.TestReport unittest.case
            unittest.suite unittest.result unittest.runner
        """,
    }
)
"""Members of modules, by their full names."""

TEST_RUNNERS = frozenset(
    {"pytest", "_pytest", "unittest", "pluggy", "nose", "conftest", "hypothesis", "__main__"}
)
REPLACEABLE = frozenset({*sys.stdlib_module_names, *TEST_RUNNERS, "numpy"})
"""Packages whose members tests rely on: nobody else may replace them."""
MAY_BE_SET = frozenset(
    {
        "sys.stdout",
        "sys.stderr",
        "sys.stdin",
        "sys.argv",
        "sys.path",
        "warnings.filters",
        "warnings.showwarning",
    }
)
"""Members of these packages that programs set."""

OPENERS = _names("sys gc builtins inspect importlib ctypes os signal threading atexit")
"""Modules that lead to the insides: other modules have them as attributes, and a variable may hold one of them."""
ALWAYS = frozenset({"sys", "gc", "builtins", "ctypes"})
"""Modules that are followed even if it is not known where a name or an attribute of this name comes from."""

BUILD_FILES = frozenset({"setup.py", "noxfile.py", "runtests.py"})
"""Files that honestly name the test runner, because they install or start it."""

PLUGINS_ASKED = _names(
    """
    get_canonical_name get_name get_plugin get_plugins getplugin has_plugin hasplugin is_blocked is_registered
    list_name_plugin list_plugin_distinfo
    """
)
"""Methods of pytest's plugin manager that register nothing."""

STARTERS = _names(
    """
    threading.Thread threading.Timer _thread.start_new_thread multiprocessing.Process multiprocessing.Pool
    concurrent.futures.ThreadPoolExecutor concurrent.futures.ProcessPoolExecutor subprocess.Popen subprocess.run
    subprocess.call subprocess.check_call subprocess.check_output os.system os.popen os.posix_spawn os.posix_spawnp
    os.spawnv os.spawnl
    """
)
"""Callables that start a thread or a process."""

MAKERS = frozenset({"types.CodeType", "types.FunctionType", "types.CellType"})
"""Classes whose call makes a part of a function. Honest code asks whether something is one of them."""

WRITERS = frozenset({"write_text", "write_bytes", "unlink", "rename", "symlink_to"})
"""Methods of paths that change files."""

RUNS_CODE = _by_name(
    {RUNS_TEXT: "exec eval compile", BY_NAME: "__import__", FUNCTIONS: "__builtins__", IMPORTS: "__loader__"}
)
"""Built-in names that count wherever they are used."""

BY_FULL_NAME = {f"builtins.{name}": what for name, what in RUNS_CODE.items()} | MODULES
"""The same names and modules, as attributes of other modules."""

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

TESTS_RUN = re.compile(r"_?pytest|py\.test|unittest|PYTEST_\w+")
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


CODECS = frozenset({"utf-8", "utf-8-sig", "ascii", "iso-8859-1", "iso-8859-15", "cp1252"})
"""Encodings of source files in which the file shows what the interpreter reads."""

NATIVE_SUFFIXES = frozenset({".so", ".pyd", ".pyc", ".pyo", ".dll", ".dylib", ".egg", ".whl", ".pyz"})
NATIVE_STARTS = (b"\x7fELF", b"MZ\x90\0", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""First bytes of machine code for Linux, Windows and macOS."""
