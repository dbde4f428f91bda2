"""Plant small faults in product modules, one at a time, and see whether the tests notice.

    python scripts/quality/mutants.py agent/loop.py --tests tests/agent/test_loop.py --count 60 --seed 1
    python scripts/quality/mutants.py --spread 20 --seed 7 --coverage .coverage/data

The faults are those of cosmic-ray's operators: another arithmetic or comparison operator, `and` for `or`, a condition
negated, a number off by one, `break` for `continue`. With `--tests` each fault is tried on these tests; with `--coverage`
on the tests that run the changed line, as a run with `make coverage` recorded them. `--spread N` takes one fault in each of N
product modules. The same seed takes the same faults. Run it in a clean clone: the fault is written into the module, and the
module is put back afterwards.
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

PRODUCT = ("agent", "tools", "sandbox", "serving", "evals")
OPERATORS = re.compile(
    r"core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|FloorDiv_Mul|Mod_Mul|BitOr_BitAnd|BitAnd_BitOr)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Lt_GtE|Gt_LtE|Is_IsNot|IsNot_Is)"
    r"|AddNot|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue|NumberReplacer"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ReplaceUnaryOperator_Delete_Not)"
)
"""Faults in operators, conditions and numbers."""


@dataclass(frozen=True)
class Mutant:
    """One fault: the `occurrence`-th place of `operator` in `module`, which begins on `line`."""

    module: str
    operator: str
    occurrence: int
    line: int
    column: int


def mutants(module: Path) -> Iterator[Mutant]:
    """All faults that can be planted in a module."""
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
    """Lines inside of functions: a fault elsewhere is mostly an import that fails, which any test notices."""
    functions = (
        n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {line for f in functions for line in range(f.body[0].lineno, (f.end_lineno or 0) + 1)}


def mutated(mutant: Mutant, source: str) -> str | None:
    """The module's source with the fault; None where it would not even compile."""
    text = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
    if text is None or text == source:
        return None
    try:
        compile(text, mutant.module, "exec")
    except SyntaxError:
        return None
    return str(text)


def tests_of(mutant: Mutant, coverage_file: Path) -> list[list[str]]:
    """What to run until a test fails: the tests that ran the line of the fault in their own process.

    Without one, the line ran at import or in processes that tests started: the tests that bear the module's name, then all.
    """
    from coverage import CoverageData

    data = CoverageData(str(coverage_file))
    data.read()
    [file] = [f for f in data.measured_files() if f.endswith(f"/{mutant.module}")] or [""]
    contexts = data.contexts_by_lineno(file).get(mutant.line, []) if file else []
    ids: set[str] = set()
    for context in contexts:
        # Coverage names a test by its module, classes and function, and a line run at import by "".
        module, _, name = context.partition(".")
        ids |= {f"{path}::{name.replace('.', '::')}" for path in Path("tests").rglob(f"{module}.py") if name}
    if ids:
        return [sorted(ids)]
    named = [str(path) for path in Path("tests").rglob(f"test_*{Path(mutant.module).stem}*.py")]
    return [*([named] if named else []), ["-nauto", "--dist=worksteal", "tests"]]


@contextmanager
def planted(module: Path, changed: str) -> Iterator[None]:
    """The fault stands in the module, which is put back afterwards."""
    source = module.read_text()
    try:
        module.write_text(changed)
        yield
    finally:
        module.write_text(source)


def loads(module: str, changed: str) -> bool:
    """Whether the module can still be imported: a fault that fails there is noticed by any test."""
    name = ".".join(("m3agent", *Path(module).with_suffix("").parts))
    with planted(Path(module), changed):
        command = [sys.executable, "-B", "-c", f"import {name}"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def killed_by(tests: list[str], timeout: float) -> str:
    """The first failing test, "" where all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # bytecode of one fault must not serve another
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=env)
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"exit status {done.returncode}"


def chosen(options: argparse.Namespace) -> list[Mutant]:
    """The faults to try, by the seed."""
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
    """Try the faults; returns 1 if one survives."""
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
