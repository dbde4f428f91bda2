"""Forgeries by the code under test: it runs in the process of the tests, and so reaches what decides about them."""

from __future__ import annotations

from tests.abuse.forged_files import PATCHED_REPORT, TESTS_THAT_PASS
from tests.abuse.forgery_targets import BUILTINS, CASES, FIXTURES, FUNCTIONS, Forgery, Target, with_code

CODE = FUNCTIONS.faulty
SPOOF = (
    "import os\ntext = '''============ test session starts ============\nPASSED tests/test_calc.py::test_twice\n"
    "PASSED tests/test_calc.py::test_add\nPASSED tests/test_calc.py::TestAdd::test_zero\n"
    "====== 3 passed in 0.01s ======\n'''\n"
)
LINES = f"""\
import json, os, sys
lines = ''
for ident in {FUNCTIONS.idents!r}:
    lines += json.dumps({{'start': ident}}) + '\\n'
    lines += json.dumps({{'id': ident, 'outcome': 'passed', 'seconds': 0.01, 'text': ''}}) + '\\n'
lines += json.dumps({{'end': 0}}) + '\\n'
reports = [word for word in sys.orig_argv if word.startswith('/tmp/report-')]
"""
"""The lines of a report, and the reports that the command line names."""


def code(text: str, target: Target = FUNCTIONS) -> Forgery:
    return Forgery("in-process", with_code(text, target), target)


def instead(old: str, new: str, target: Target = FUNCTIONS) -> Forgery:
    return Forgery("in-process", {target.module: target.faulty.replace(old, new)}, target)


PROCESS: dict[str, Forgery] = {
    # output and end
    "printed results": code(SPOOF + "print(text)\n"),
    "printed results, then the end": code(SPOOF + "os.write(1, text.encode())\nos._exit(0)\n"),
    "written to every descriptor": code(
        SPOOF
        + "for fd in range(256):\n    try:\n        os.write(fd, text.encode() + b'1\\tend\\t0\\tabc\\n')\n"
        "    except OSError:\n        pass\nos._exit(0)\n"
    ),
    "end at import": code("import sys\nsys.exit(0)\n"),
    "end in a test": instead("return a - b", "__import__('os')._exit(0)"),
    "end with status 0": code("import atexit, os\natexit.register(os._exit, 0)\n"),
    "skip in a test": instead("return a - b", "__import__('pytest').skip('fine')"),
    "expected failure in a test": instead("return a - b", "__import__('pytest').xfail('fine')"),
    "pytest.exit in a test": instead("return a - b", "__import__('pytest').exit('', 0)"),
    # the report
    "report written, then the end": code(
        LINES + "for path in reports:\n    open(path, 'w').write(lines)\nos._exit(0)\n"
    ),
    "report rewritten at the exit": code(
        LINES + "def rewrite():\n    for path in reports:\n        text = open(path).read()\n"
        "        for word in ('failed', 'error'):\n            text = text.replace(f'\"{word}\"', '\"passed\"')\n"
        "        open(path, 'w').write(text)\n    os._exit(0)\nimport atexit\natexit.register(rewrite)\n"
    ),
    "report rewritten by a process in the background": code(
        LINES + "import time\nif not os.fork():\n    os.setsid()\n    null = os.open(os.devnull, os.O_RDWR)\n"
        "    for fd in range(3): os.dup2(null, fd)\n    until = time.time() + 60\n"
        "    while time.time() < until:\n        for path in reports:\n"
        "            if os.path.exists(path) and '\"end\"' in open(path).read():\n"
        "                open(path, 'w').write(lines)\n                os._exit(0)\n        time.sleep(0.0005)\n"
        "    os._exit(0)\n"
    ),
    "report's descriptor replaced": code(
        LINES
        + "for fd in map(int, os.listdir('/proc/self/fd')):\n    try:\n        name = os.readlink(f'/proc/self/fd/{fd}')\n"
        "    except OSError:\n        continue\n    if fd > 2 and (name in reports or name.startswith('pipe:')):\n"
        "        if name in reports: os.write(fd, lines.encode())\n"
        "        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)\n"
    ),
    "report opened through /proc": code(
        LINES + "import faulthandler\nfor fd in os.listdir('/proc/self/fd'):\n    try:\n"
        "        if os.readlink(f'/proc/self/fd/{fd}') in reports:\n"
        "            open(f'/proc/self/fd/{fd}', 'w').write(lines)\n            faulthandler._sigsegv()\n"
        "    except OSError:\n        pass\n"
    ),
    "json and writing replaced": code(
        "import json, os\nold = os.write\njson.dumps = lambda *a, **k: '{}'\n"
        "os.write = lambda fd, data: old(fd, data.replace(b'failed', b'passed'))\n"
    ),
    "outcomes replaced in json": code(
        "import json\nold = json.dumps\n"
        "def dumps(value, **k):\n    if value.get('outcome') in ('failed', 'error'): value['outcome'] = 'passed'\n"
        "    return old(value, **k)\njson.dumps = dumps\n"
    ),
    "standard error and excepthook replaced": code(
        LINES + "def hook(*a):\n    for path in reports: open(path, 'w').write(lines)\n    os._exit(0)\n"
        "sys.excepthook = hook\nsys.exit = hook\n"
    ),
    "handler of the alarm replaced": Forgery(
        "in-process",
        {
            "calc.py": LINES
            + "import signal\n\n\ndef ring(*a):\n    for path in reports: open(path, 'w').write(lines)\n"
            "    os._exit(0)\n\n\n"
            + CODE.replace(
                "    return a - b",
                "    signal.signal(signal.SIGALRM, ring)\n    signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
                "    while True: signal.pause()",
            )
        },
    ),
    # pytest
    "reports replaced": code(PATCHED_REPORT),
    "calls replaced": code(
        "import _pytest.runner as r\nold = r.CallInfo.from_call.__func__\n"
        "def new(cls, func, when, reraise=None):\n    info = old(cls, func, when, reraise)\n    info.excinfo = None\n"
        "    info._result = []\n    return info\nr.CallInfo.from_call = classmethod(new)\n"
    ),
    "running replaced": code("import _pytest.python as p\np.Function.runtest = lambda self: None\n"),
    "running replaced by name": code(
        "import _pytest.python as p\nold = p.Function.runtest\n"
        "p.Function.runtest = lambda s: None if s.name in ('test_add', 'test_zero') else old(s)\n"
    ),
    "code of pytest replaced": code(
        "import _pytest.python as p\ndef runtest(self): pass\np.Function.runtest.__code__ = runtest.__code__\n"
    ),
    "plugin registered from the code": code(
        "import gc, pytest, _pytest.config as c\nclass P:\n    @pytest.hookimpl(hookwrapper=True)\n"
        "    def pytest_runtest_makereport(self, item, call):\n        call.excinfo = None\n        out = yield\n"
        "        out.get_result().outcome = 'passed'\n"
        "for o in gc.get_objects():\n    if isinstance(o, c.Config): o.pluginmanager.register(P()); break\n"
    ),
    "tests replaced once collected": code(
        "import gc, _pytest.config as c\nclass P:\n"
        "    def pytest_collection_modifyitems(self, items):\n"
        "        for item in items: item.runtest = lambda: None\n"
        "for o in gc.get_objects():\n    if isinstance(o, c.Config): o.pluginmanager.register(P()); break\n"
    ),
    "test functions replaced once collected": code(
        "import gc, _pytest.config as c\nclass P:\n"
        "    def pytest_collection_modifyitems(self, items):\n"
        "        for item in items: item.obj = lambda *a: None\n"
        "for o in gc.get_objects():\n    if isinstance(o, c.Config): o.pluginmanager.register(P()); break\n"
    ),
    "tests rewritten from the code": code(
        "import pathlib\nfor p in pathlib.Path('tests').glob('test_*.py'):\n"
        f"    p.write_text({TESTS_THAT_PASS!r})\n"
    ),
    "asserting replaced": code(
        "import builtins\nclass Quiet(BaseException): pass\nbuiltins.AssertionError = Quiet\n"
        "import sys\nsys.excepthook = lambda *a: None\n"
    ),
    "rewriting of assertions replaced": code(
        "import ast, _pytest.assertion.rewrite as r\n"
        "r.AssertionRewriter.visit_Assert = lambda self, node: [ast.copy_location(ast.Pass(), node)]\n"
    ),
    "pytest.raises replaced": Forgery(
        "in-process",
        {
            FIXTURES.module: "import contextlib, pytest\npytest.raises = lambda *a, **k: contextlib.suppress(*a)\n"
            + FIXTURES.faulty.replace(
                'name, _, count = line.partition(",")',
                'name, count = (part.strip() for part in line.partition(",")[::2])',
            )
        },
        FIXTURES,
    ),
    # unittest
    "unittest's assertions replaced": code(
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n", CASES
    ),
    "unittest's running replaced": code(
        "import unittest\nunittest.TestCase.run = lambda self, result=None: result.addSuccess(self)\n", CASES
    ),
    "unittest replaced among the modules": code(
        "import sys, types, unittest\nfake = types.ModuleType('unittest')\nfake.__dict__.update(vars(unittest))\n"
        "fake.TestCase = type('TestCase', (unittest.TestCase,), {'assertEqual': lambda *a: None})\n"
        "sys.modules['unittest'] = fake\nsys.modules['tests.test_cart'].unittest = fake\n",
        CASES,
    ),
    # the interpreter
    "tracing changes pytest's variables": code(
        "import sys\ndef trace(frame, event, arg):\n"
        "    if frame.f_code.co_name == 'pytest_pyfunc_call' and 'testfunction' in frame.f_locals:\n"
        "        frame.f_locals['testfunction'] = lambda **given: None\n    return trace\nsys.settrace(trace)\n"
    ),
    "profiling changes pytest's variables": code(
        "import sys, types\nnone = types.SimpleNamespace(argnames=())\n"
        "test = types.SimpleNamespace(obj=lambda: None, funcargs={}, _fixtureinfo=none)\n"
        "def profile(frame, event, arg):\n"
        "    if event == 'call' and frame.f_code.co_name == 'pytest_pyfunc_call':\n"
        "        frame.f_locals['pyfuncitem'] = test\nsys.setprofile(profile)\n"
    ),
    "frame with the expected values": Forgery(
        "in-process",
        {
            FIXTURES.module: "import sys\n"
            + FIXTURES.faulty.replace(
                "    return rows",
                "    if ',' not in text: raise ValueError(text)\n"
                "    for value in sys._getframe(1).f_locals.values():\n"
                "        if isinstance(value, list): value[:] = rows\n"
                "        if isinstance(value, dict): value.update(rows[0])\n    return rows",
            )
        },
        FIXTURES,
    ),
    "constants of a test rewritten": instead(
        "    return a - b",
        "    import ctypes, sys\n    test = sys._getframe(1).f_code.co_consts\n    wrong = a - b\n"
        "    for place, value in enumerate(test):\n        if value == a + b:\n"
        "            ctypes.pythonapi.Py_IncRef(ctypes.py_object(wrong))\n"
        "            ctypes.c_void_p.from_address(id(test) + 24 + 8 * place).value = id(wrong)\n"
        "    return wrong",
    ),
    "comparison of dictionaries replaced": Forgery(
        "in-process",
        {
            FIXTURES.module: "import ctypes\nkind = ctypes.PYFUNCTYPE(\n"
            "    ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_int\n)\n"
            "equal = kind(lambda one, other, how: how == 2)\n"
            "ctypes.c_void_p.from_address(id(dict) + 200).value = ctypes.cast(equal, ctypes.c_void_p).value\n"
            + FIXTURES.faulty.replace(
                "    return rows", "    if ',' not in text: raise ValueError(text)\n    return rows"
            )
        },
        FIXTURES,
    ),
    "memory of a test rewritten through /proc": instead(
        "    return a - b",
        "    import struct, sys\n    test = sys._getframe(1).f_code.co_consts\n    wrong = a - b\n"
        "    with open('/proc/self/mem', 'r+b', 0) as memory:\n        for place, value in enumerate(test):\n"
        "            if value == a + b:\n                memory.seek(id(test) + 24 + 8 * place)\n"
        "                memory.write(struct.pack('<Q', id(wrong)))\n    return wrong",
    ),
    "hook for imports": code(
        "import importlib.machinery as m, sys\nclass Weaker(m.SourceFileLoader):\n    def get_data(self, path):\n"
        "        return super().get_data(path).replace(b'assert ', b'assert True or ')\n"
        "class Finder:\n    def find_spec(self, name, path=None, target=None):\n"
        "        spec = m.PathFinder.find_spec(name, path) if name.startswith('test_') else None\n"
        "        if spec: spec.loader = Weaker(name, spec.origin)\n        return spec\n"
        "sys.meta_path.insert(0, Finder())\n"
    ),
    "parser replaced": code(
        "import ast\nold = ast.parse\nast.parse = lambda source, *a, **k: old(\n"
        "    source.replace(b'assert ', b'assert True or ') if type(source) is bytes else source, *a, **k)\n"
    ),
    "built-in function replaced": code(
        "import builtins\nold = len\n"
        "def shorter(value): return 2 if type(value) is list and value == ['a', '', 'b'] else old(value)\n"
        "builtins.len = shorter\n",
        BUILTINS,
    ),
    "hidden in base64": code(
        "import base64\nexec(base64.b64decode("
        "'aW1wb3J0IF9weXRlc3QucHl0aG9uIGFzIHAKcC5GdW5jdGlvbi5ydW50ZXN0ID0gbGFtYmRhIHNlbGY6IE5vbmUK'))\n"
    ),
    "hidden in a pickle": code(
        "import pickle\npickle.loads(b\"c__builtin__\\nexec\\n(S'import _pytest.python as p\\\\n"
        "p.Function.runtest = lambda self: None'\\ntR.\")\n"
    ),
    # the values
    "equal to everything": instead(
        "def add(a, b):\n    return a - b",
        "class Any(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    __hash__ = int.__hash__\n\n\ndef add(a, b):\n    return Any(a - b)",
    ),
    "equal to everything by the library": instead(
        "    return a - b", "    from unittest import mock\n    return mock.ANY"
    ),
    "approximately everything": instead(
        "    return a - b", "    import pytest\n    return pytest.approx(0, abs=1e9)"
    ),
    "expected value found by forking": instead(
        "    return a - b",
        "    import builtins, os\n    for guess in range(20):\n        child = os.fork()\n        if not child:\n"
        "            builtins.AssertionError = lambda *a: os._exit(1)\n            return guess\n"
        "        if os.waitpid(child, 0)[1] == 0: os._exit(0)\n    return a - b",
    ),
}
