"""Plant small faults in product modules, one at a time, and check whether the tests fail.

    python scripts/quality/mutants.py agent/loop/loop.py --tests tests/agent/loop/test_loop.py --count 60 --seed 1
    python scripts/quality/mutants.py --spread 20 --seed 7 --coverage .coverage/data

The faults are those of cosmic-ray's operators: another arithmetic or comparison operator, `and` for `or`, a negated
condition, a number off by one, `break` for `continue`. With `--tests`, these tests run on each fault. With
`--coverage`, the tests run that executed the changed line when `make coverage` recorded them. `--spread N` takes one
fault in each of N product modules. The same seed takes the same faults. Run it in a clean clone: it writes each fault
into the module and restores the module afterwards.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

PRODUCT = ("agent", "cli", "tools", "sandbox", "serving", "evals", "util")
OPERATORS = re.compile(
    r"core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|FloorDiv_Mul|Mod_Mul|BitOr_BitAnd|BitAnd_BitOr)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Lt_GtE|Gt_LtE|Is_IsNot|IsNot_Is)"
    r"|AddNot|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue|NumberReplacer"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ReplaceUnaryOperator_Delete_Not)"
)
"""The operators of cosmic-ray that change operators, conditions and numbers."""


@dataclass(frozen=True)
class Mutant:
    """One fault: `operator` applied at its `occurrence`-th place in `module`, which begins on `line`."""

    module: str
    operator: str
    occurrence: int
    line: int
    column: int


def mutants(module: Path) -> Iterator[Mutant]:
    """Yield all faults that can be planted in a module."""
    source = module.read_text()
    tree = get_ast(source)
    lines = source.splitlines()
    bodies = _bodies(source)
    for name in operator_names():
        if not OPERATORS.fullmatch(name):
            continue
        operator = get_operator(name)()
        occurrence = 0
        for node in ast_nodes(tree):
            for start, _ in operator.mutation_positions(node):
                is_type = "Bit" in name and re.search(r"\bNone\b|->|\w: \w", lines[start[0] - 1])
                if start[0] in bodies and not is_type:
                    yield Mutant(str(module), name, occurrence, *start)
                occurrence += 1


def _bodies(source: str) -> set[int]:
    """Return the lines inside functions. Elsewhere most faults make the import fail, which any test notices."""
    functions = (
        n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {line for f in functions for line in range(f.body[0].lineno, (f.end_lineno or 0) + 1)}


def mutated(mutant: Mutant, source: str) -> str | None:
    """Return the module's source with the fault, or None if that does not compile."""
    text = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
    if text is None or text == source:
        return None
    try:
        compile(text, mutant.module, "exec")
    except SyntaxError:
        return None
    return str(text)


def tests_of(mutant: Mutant, coverage_file: Path) -> list[list[str]]:
    """Return groups of tests to run until one fails: normally the tests that ran the faulty line in their own process.

    If no test did, the line ran at import or in processes that tests started. Then the first group are the tests with
    the module's name, and the second are all tests.
    """
    from coverage import CoverageData

    data = CoverageData(str(coverage_file))
    data.read()
    [file] = [f for f in data.measured_files() if f.endswith(f"/{mutant.module}")] or [""]
    contexts = data.contexts_by_lineno(file).get(mutant.line, []) if file else []
    ids: set[str] = set()
    for context in contexts:
        # Coverage names a test by its module, classes and function. The context of a line that ran at import is "".
        module, _, name = context.partition(".")
        ids |= {f"{path}::{name.replace('.', '::')}" for path in Path("tests").rglob(f"{module}.py") if name}
    if ids:
        return [sorted(ids)]
    named = [str(path) for path in Path("tests").rglob(f"test_*{Path(mutant.module).stem}*.py")]
    return [*([named] if named else []), ["-nauto", "--dist=worksteal", "tests"]]


@contextmanager
def planted(module: Path, changed: str) -> Iterator[None]:
    """Write the fault into the module, and restore the module afterwards."""
    source = module.read_text()
    try:
        module.write_text(changed)
        yield
    finally:
        module.write_text(source)


def loads(module: str, changed: str) -> bool:
    """Return whether the module can still be imported. Any test notices a fault that makes the import fail."""
    name = ".".join(("m3agent", *Path(module).with_suffix("").parts))
    with planted(Path(module), changed):
        command = [sys.executable, "-B", "-c", f"import {name}"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def killed_by(tests: list[str], timeout: float) -> str:
    """Return the first failing test, or "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # the next fault must not run this one's bytecode
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=env)
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"exit status {done.returncode}"


def chosen(options: argparse.Namespace) -> list[Mutant]:
    """Choose the faults to try, at random by the seed."""
    draw = random.Random(options.seed)  # noqa: S311  # the same seed must give the same faults
    if not options.spread:
        found = [m for module in options.modules for m in mutants(Path(module))]
        source = {module: Path(module).read_text() for module in options.modules}
        draw.shuffle(found)
        return [m for m in found if mutated(m, source[m.module])][: options.count]
    modules = sorted(str(path) for folder in PRODUCT for path in Path(folder).rglob("*.py"))
    draw.shuffle(modules)
    taken: list[Mutant] = []
    for module in modules:
        found = [m for m in mutants(Path(module)) if "Number" not in m.operator]
        draw.shuffle(found)
        text = Path(module).read_text()
        fault = next((m for m in found if (changed := mutated(m, text)) and loads(module, changed)), None)
        taken += [fault] if fault else []
        if len(taken) == options.spread:
            break
    return taken


def main() -> int:
    """Try the faults. Return 1 if one survives."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--tests", nargs="*", default=[])
    parser.add_argument("--coverage", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--spread", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600.0)
    options = parser.parse_args()
    survivors = 0
    work = chosen(options)
    for number, mutant in enumerate(work, 1):
        module = Path(mutant.module)
        source = module.read_text()
        runs = tests_of(mutant, options.coverage) if options.coverage else [options.tests or ["tests"]]
        changed = mutated(mutant, source)
        assert changed is not None, "chosen leaves these out"
        before, after = source.splitlines(), changed.splitlines()
        difference = next(((o, n) for o, n in zip(before, after, strict=False) if o != n), ("", ""))
        with planted(module, changed):
            killer, started = "", time.monotonic()
            for tests in runs:
                killer = killer or killed_by(tests, options.timeout)
            seconds = round(time.monotonic() - started, 1)
        survivors += not killer
        row = {**asdict(mutant), "was": difference[0].strip(), "is": difference[1].strip()}
        print(
            json.dumps(
                {"number": number, **row, "tests": sum(map(len, runs)), "by": killer, "seconds": seconds}
            ),
            flush=True,
        )
    print(f"{len(work) - survivors} of {len(work)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
