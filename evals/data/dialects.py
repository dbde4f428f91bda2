"""Read rows of related benchmarks: turn them into rows of SWE-bench, and find out how their benchmark grades.

| benchmark | sign | what differs |
|---|---|---|
| SWE-rebench V2 | `install_config`, `image_name` | a date in milliseconds, code in `/NAME` |
| SWE-bench-Live MultiLang | `test_cmds`, `docker_image` | the name of the image |
| SWE-bench-Live | `test_cmds`, `pull_number` | the image's name is made from the id |
| SWE-bench Pro | `dockerhub_tag` | `fail_to_pass` and `pass_to_pass` are Python lists as text; code in `/app` |
| Multi-SWE-bench | `fix_patch` | all names of fields; code in `/home/NAME` |

How they grade: which script runs the tests, which parser reads the log, and which tests count.

| benchmark | script | parser | resolved if |
|---|---|---|---|
| SWE-bench-Live MultiLang | the row's `rebuild_cmds`, `test_cmds`, `print_cmds` | the row's `log_parser` | all F2P pass, no P2P fails |
| SWE-rebench V2 | `install_config.test_cmd` | `lib/agent/log_parsers.py` | exactly F2P and P2P pass |
| SWE-bench Pro | `run_scripts/ID/run_script.sh` | `run_scripts/ID/parser.py` | all F2P and P2P pass |
| Multi-SWE-bench | `/home/fix-run.sh` of the image | the repository's class in `multi_swe_bench/` | all listed tests pass, none fails that passed |

Files that are not in the rows are those of the benchmark's own repository. They are looked for beside the rows. Fields and
rules are those of the benchmarks' own runners (2026-11, see docs/eval.md).
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from m3agent.evals.data.fields import Fields
from m3agent.evals.data.instance import OwnRules

Row = dict[str, Any]
PRO_IMAGES = "jefzda/sweap-images"
LIVE_IMAGES = "starryzhang/sweb.eval.x86_64"
REBENCH_PARSERS = Path("lib/agent/log_parsers.py")
PRO_SCRIPTS = Path("run_scripts")
MULTI_CLASSES = Path("multi_swe_bench/harness/repos")
_REGISTERED = re.compile(r"""@Instance\.register\(\s*["']([^"']+)["'],\s*["']([^"']+)["']\s*\)""")

QUIET, LOUD = "exec 3>&1 4>&2 >/dev/null 2>&1\n", "exec 1>&3 2>&4\n"
"""Shell lines: what is printed between them is not for the parser."""
APPLIED = ": > $GRADING/applied\n"


class _Unusable(Exception):
    """The rules cannot be carried out; the message says why."""


def as_swebench(fields: Fields) -> Fields:
    """Return a row with the fields of SWE-bench. A row of SWE-bench itself is returned as it is.

    Raises:
        DataError: A field that is needed for that is missing, or has another type.
    """
    benchmark = _benchmark_of(fields)
    if benchmark is None:
        return fields
    row = benchmark.row(fields)
    row["environment"] |= fields.inner("environment").values  # the row's own recipe wins
    return Fields({**fields.values, **row}, fields.where)


def _benchmark_of(fields: Fields) -> Benchmark | None:
    """Return the benchmark that a row is of; None for SWE-bench itself."""
    return next((one for one in BENCHMARKS if all(sign in fields for sign in one.signs)), None)


def id_of(fields: Fields) -> str:
    """Return the id of a row.

    Raises:
        DataError: It is missing.
    """
    number = fields.values.get("number")
    if "fix_patch" in fields and "instance_id" not in fields and isinstance(number, int):
        return f"{fields.text('org')}__{fields.text('repo')}-{number}"
    return fields.text("instance_id", empty=False)


def own_rules(fields: Fields, folder: Path | None) -> OwnRules | None:
    """Return the rules of a row's benchmark; None if it has none besides m3agent's and those of SWE-bench's package.

    Args:
        folder: Folder of the rows' file; None for rows from the hub.

    Raises:
        DataError: A field that the rules need is malformed.
    """
    benchmark = _benchmark_of(fields)
    if benchmark is None:
        return None
    try:
        return OwnRules(benchmark=benchmark.name, **benchmark.rules(fields, folder))
    except _Unusable as problem:
        return OwnRules(benchmark=benchmark.name, unusable=str(problem))


def _rebench_row(fields: Fields) -> Row:
    name = fields.text("repo", empty=False).rpartition("/")[2]
    return {
        "created_at": _of_milliseconds(fields),
        "environment": {"image": _image(fields, "image_name"), "folder": f"/{name}"},
    }


def _live_row(fields: Fields) -> Row:
    return {"environment": {"image": _image(fields, "docker_image")}}


def _live_python_row(fields: Fields) -> Row:
    name = fields.text("instance_id", empty=False).replace("__", "_1776_").lower()
    return {"environment": {"image": f"{LIVE_IMAGES}.{name}"}}


def _pro_row(fields: Fields) -> Row:
    parts = ("problem_statement", "requirements", "interface")
    texts = [text for part in parts if (text := fields.optional(part)) and text.strip()]
    return {
        "FAIL_TO_PASS": _tests_in(fields, "fail_to_pass"),
        "PASS_TO_PASS": _tests_in(fields, "pass_to_pass"),
        "problem_statement": "\n\n".join(texts),
        "environment": {
            "image": f"{PRO_IMAGES}:{fields.text('dockerhub_tag', empty=False)}",
            "folder": "/app",
        },
    }


def _multi_row(fields: Fields) -> Row:
    org, name = fields.text("org", empty=False), fields.text("repo", empty=False)
    number = fields.values.get("number")
    if not isinstance(number, int) or isinstance(number, bool):
        raise fields.wrong("number", "the number of a pull request is expected")
    issues = fields.values.get("resolved_issues")
    if not isinstance(issues, list) or not all(isinstance(issue, Mapping) for issue in issues):
        raise fields.wrong("resolved_issues", "a list of objects is expected")
    texts = [Fields(issue, fields.where, "resolved_issues.") for issue in issues]
    statement = "\n\n".join(
        f"{issue.optional('title') or ''}\n\n{issue.optional('body') or ''}".strip() for issue in texts
    )
    return {
        "instance_id": id_of(fields),
        "repo": f"{org}/{name}",
        "base_commit": fields.inner("base").text("sha", empty=False),
        "problem_statement": statement,
        "patch": fields.text("fix_patch"),
        "FAIL_TO_PASS": sorted(fields.inner("fixed_tests").values),
        "PASS_TO_PASS": sorted(fields.inner("p2p_tests").values),
        "environment": {"image": f"mswebench/{org}_m_{name}:pr-{number}".lower(), "folder": f"/home/{name}"},
    }


def _live_rules(fields: Fields, _: Path | None) -> dict[str, Any]:
    parser = fields.text("log_parser")
    if "def parser" not in parser:
        raise _Unusable("its log_parser is not a program with the function `parser`")
    before = [*fields.texts("rebuild_cmds"), *fields.texts("test_cmds")]
    script = (
        f"{QUIET}git apply --whitespace=nowarn $GRADING/tests.diff || exit\n"
        f"git apply --whitespace=nowarn $GRADING/patch.diff || exit\n{APPLIED}"
        f"{_lines(before)}{LOUD}{_lines(fields.texts('print_cmds'))}"
    )
    return {
        "script": script,
        "parser": parser,
        "entry": "parser",
        "to_pass": fields.tests("FAIL_TO_PASS"),
        "not_to_fail": fields.tests("PASS_TO_PASS"),
    }


def _rebench_rules(fields: Fields, folder: Path | None) -> dict[str, Any]:
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


def _pro_rules(fields: Fields, folder: Path | None) -> dict[str, Any]:
    own = PRO_SCRIPTS / fields.text("instance_id")
    runner, parser = (
        _beside(folder, own / name, "SWE-bench_Pro-os") for name in ("run_script.sh", "parser.py")
    )
    base = fields.text("base_commit")
    set_up = (fields.optional("before_repo_set_cmd") or "").strip().rpartition("\n")[2]
    files = shlex.quote(",".join(_files_in(fields, "selected_test_files_to_run")))
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


def _multi_rules(fields: Fields, folder: Path | None) -> dict[str, Any]:
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
    kinds = ("p2p_tests", "f2p_tests", "s2p_tests", "n2p_tests")
    listed = {test for kind in kinds for test in fields.inner(kind).values}
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
        "to_pass": sorted(listed),
        "not_to_fail": sorted({*passed, *at_base} - listed),
    }


@dataclass(frozen=True)
class Benchmark:
    """A benchmark whose rows or whose grading differ from those of SWE-bench."""

    name: str
    signs: tuple[str, str]
    """Two fields that together only this benchmark has."""
    row: Callable[[Fields], Row]
    """Returns what a row has in SWE-bench's own fields."""
    rules: Callable[[Fields, Path | None], dict[str, Any]]
    """Returns the fields of `OwnRules` from a row and the folder of the rows' file."""


BENCHMARKS = (
    Benchmark("SWE-rebench V2", ("install_config", "image_name"), _rebench_row, _rebench_rules),
    Benchmark("SWE-bench-Live", ("test_cmds", "docker_image"), _live_row, _live_rules),
    Benchmark("SWE-bench-Live", ("test_cmds", "pull_number"), _live_python_row, _live_rules),
    Benchmark("SWE-bench Pro", ("dockerhub_tag", "fail_to_pass"), _pro_row, _pro_rules),
    Benchmark("Multi-SWE-bench", ("fix_patch", "fixed_tests"), _multi_row, _multi_rules),
)


def _image(fields: Fields, name: str) -> str:
    return fields.text(name, empty=False).removeprefix("docker.io/")


def _of_milliseconds(fields: Fields) -> str | None:
    """Return `created_at` as text."""
    value = fields.values.get("created_at")
    if value is None or isinstance(value, str):
        return value
    try:
        return datetime.fromtimestamp(value / 1000, UTC).isoformat()
    except (TypeError, ValueError, OverflowError, OSError):
        raise fields.wrong("created_at", "a time in milliseconds since 1970 is expected") from None


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
    files = {}
    for path in sorted((folder / MULTI_CLASSES).glob("**/*.py")):
        for org, name in _REGISTERED.findall(path.read_text(encoding="utf-8", errors="replace")):
            files[org, name] = path
    return files


def _literal(fields: Fields, name: str) -> Any:
    """Return a field that may be written as a Python expression; None if it is malformed."""
    value = fields.values.get(name)
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _tests_in(fields: Fields, name: str) -> list[Any]:
    """Return a field with a list of test ids, which may be written as one text."""
    value = _literal(fields, name)
    if value is None and isinstance(text := fields.values.get(name), str):
        raise fields.malformed(name, text, "is not a list of test ids")
    if not isinstance(value, list):
        raise fields.wrong(name, "a list of test ids is expected")
    return value


def _files_in(fields: Fields, name: str) -> list[str]:
    """Return a field with a list of files, which may be written as one text."""
    value = _literal(fields, name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise fields.wrong(name, "a list of files is expected")
    return value
