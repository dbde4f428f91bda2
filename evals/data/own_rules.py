"""Read how the benchmark of a row grades: which script runs the tests, which parser reads the log, which tests count.

| benchmark | script | parser | resolved if |
|---|---|---|---|
| SWE-bench-Live MultiLang | the row's `rebuild_cmds`, `test_cmds`, `print_cmds` | the row's `log_parser` | all F2P pass, no P2P fails |
| SWE-rebench V2 | `install_config.test_cmd` | `lib/agent/log_parsers.py` | exactly F2P and P2P pass |
| SWE-bench Pro | `run_scripts/ID/run_script.sh` | `run_scripts/ID/parser.py` | all F2P and P2P pass |
| Multi-SWE-bench | `/home/fix-run.sh` of the image | the repository's class in `multi_swe_bench/` | all listed tests pass, none fails that passed |

Files that are not in the rows are those of the benchmark's own repository. They are looked for beside the rows. The rules
are those that the benchmarks' own runners apply (2026-11).
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from m3agent.evals.data.dialects import MULTI, sign_of
from m3agent.evals.data.fields import Fields
from m3agent.evals.data.instance import OwnRules

REBENCH_PARSERS = Path("lib/agent/log_parsers.py")
PRO_SCRIPTS = Path("run_scripts")
MULTI_CLASSES = Path("multi_swe_bench/harness/repos")
_REGISTERED = re.compile(r"""@Instance\.register\(\s*["']([^"']+)["'],\s*["']([^"']+)["']\s*\)""")

QUIET, LOUD = "exec 3>&1 4>&2 >/dev/null 2>&1\n", "exec 1>&3 2>&4\n"
"""Shell lines: what is printed between them is not for the parser."""
APPLIED = ": > $GRADING/applied\n"


class _Unusable(Exception):
    """The rules cannot be carried out; the message says why."""


def own_rules(fields: Fields, folder: Path | None) -> OwnRules | None:
    """Return the rules of a row's benchmark; None if it has none besides m3agent's and those of SWE-bench's package.

    Args:
        fields: The row, with the fields of SWE-bench (`dialects.as_swebench`).
        folder: Folder of the rows' file; None for rows from the hub.

    Raises:
        DataError: A field that the rules need is malformed.
    """
    sign = sign_of(fields)
    if sign is None:
        return None
    benchmark, read = _BENCHMARKS[sign]
    try:
        return OwnRules(benchmark=benchmark, **read(fields, folder))
    except _Unusable as problem:
        return OwnRules(benchmark=benchmark, unusable=str(problem))


def _live(fields: Fields, _: Path | None) -> dict[str, Any]:
    parser = fields.text("log_parser")
    if "def parser" not in parser:
        raise _Unusable("its log_parser is not a program with the function `parser`")
    before = [*fields.texts("rebuild_cmds"), *fields.texts("test_cmds")]
    script = (
        f"{QUIET}git apply --whitespace=nowarn $GRADING/tests.diff || exit\n"
        f"git apply --whitespace=nowarn $GRADING/patch.diff || exit\n{APPLIED}"
        f"{_lines(before)}{LOUD}{_lines(fields.texts('print_cmds'))}"
    )
    kept = fields.tests("PASS_TO_PASS")
    return {
        "script": script,
        "parser": parser,
        "entry": "parser",
        "to_pass": fields.tests("FAIL_TO_PASS"),
        "not_to_fail": kept,
    }


def _rebench(fields: Fields, folder: Path | None) -> dict[str, Any]:
    config = fields.inner("install_config")
    ways = "--3way --recount --ignore-space-change --whitespace=nowarn"
    script = (
        f"set -e\ngit reset --hard HEAD\ngit apply -v {ways} $GRADING/patch.diff\n"
        f"git apply -v {ways} $GRADING/tests.diff\n{APPLIED}{_lines(config.texts('test_cmd'))}"
    )
    return {
        "script": script,
        "parser": _beside(folder, REBENCH_PARSERS, "SWE-rebench-V2"),
        "entry": config.text("log_parser", empty=False),
        "to_pass": (*fields.tests("FAIL_TO_PASS"), *fields.tests("PASS_TO_PASS")),
        "exact": True,
        "untimed": True,
    }


def _pro(fields: Fields, folder: Path | None) -> dict[str, Any]:
    own = PRO_SCRIPTS / fields.text("instance_id")
    runner, parser = (
        _beside(folder, own / name, "SWE-bench_Pro-os") for name in ("run_script.sh", "parser.py")
    )
    base = fields.text("base_commit")
    set_up = (fields.optional("before_repo_set_cmd") or "").strip().rpartition("\n")[2]
    files = shlex.quote(",".join(_listed(fields, "selected_test_files_to_run")))
    script = (
        f"{QUIET}git reset --hard {base}\ngit checkout {base}\ngit apply -v $GRADING/patch.diff || exit\n{APPLIED}"
        f"{set_up}\n{LOUD}bash $GRADING/run_script.sh {files}\n"
    )
    return {
        "script": script,
        "files": {"run_script.sh": runner},
        "parser": parser,
        "form": "program",
        "to_pass": (*fields.tests("FAIL_TO_PASS"), *fields.tests("PASS_TO_PASS")),
    }


def _multi(fields: Fields, folder: Path | None) -> dict[str, Any]:
    org = fields.text("org")
    name = fields.text("repo").rpartition("/")[2]
    if interval := fields.optional("number_interval"):
        name = interval
    elif tag := fields.optional("tag"):
        name += f"_{tag.replace('.', '_')}"
    path = _classes(folder).get((org, name)) if folder is not None else None
    if path is None:
        raise _Unusable(
            f"there is no class for {org}/{name} in {MULTI_CLASSES} beside the rows: put the rows into a checkout of "
            "multi-swe-bench"
        )
    listed = [*_tests_of(fields, "p2p_tests", "f2p_tests", "s2p_tests", "n2p_tests")]
    at_test = fields.inner("test_patch_result")
    passed, failed = at_test.texts("passed_tests"), at_test.texts("failed_tests")
    at_base = set(fields.inner("run_result").texts("passed_tests")) - {*passed, *failed}
    script = (
        "exec 2>&1\ncp $GRADING/patch.diff /home/fix.patch\n"
        f"git apply --check /home/test.patch /home/fix.patch || exit\n{APPLIED}bash /home/fix-run.sh\n"
    )
    return {
        "script": script,
        "parser": path.read_text(encoding="utf-8"),
        "form": "class",
        "entry": f"{org}/{name}",
        "to_pass": sorted(set(listed)),
        "not_to_fail": sorted({*passed, *at_base} - set(listed)),
    }


_BENCHMARKS: Mapping[str, tuple[str, Callable[[Fields, Path | None], dict[str, Any]]]] = {
    "install_config": ("SWE-rebench V2", _rebench),
    "test_cmds": ("SWE-bench-Live", _live),
    "dockerhub_tag": ("SWE-bench Pro", _pro),
    MULTI: ("Multi-SWE-bench", _multi),
}


def _lines(commands: Sequence[str]) -> str:
    return "".join(f"{command}\n" for command in commands)


def _beside(folder: Path | None, name: Path, repository: str) -> str:
    """Return the text of a file of the benchmark's repository."""
    try:
        if folder is not None:
            return (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise _Unusable(f"{name} beside the rows cannot be read ({error})") from None
    raise _Unusable(f"there is no {name} beside the rows: put the rows into a checkout of {repository}")


@functools.cache
def _classes(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the files of Multi-SWE-bench's classes, by organisation and name."""
    found = {}
    for path in sorted((folder / MULTI_CLASSES).glob("**/*.py")):
        for org, name in _REGISTERED.findall(path.read_text(encoding="utf-8", errors="replace")):
            found[org, name] = path
    return found


def _tests_of(fields: Fields, *names: str) -> list[str]:
    return [test for name in names for test in fields.inner(name).values]


def _listed(fields: Fields, name: str) -> list[str]:
    """Return a field with a list of texts, which may be written as one text."""
    value = fields.values.get(name)
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            value = None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise fields.wrong(name, "a list of files is expected")
    return value
