"""Read rows of SWE-bench and of related benchmarks (dialects.py) as instances.

Required fields: `instance_id, repo, base_commit, patch, test_patch, problem_statement, FAIL_TO_PASS,
PASS_TO_PASS`. Optional fields: `created_at, version, hints_text, environment_setup_commit`; those of swebench
5: `image, eval_script, log_parser, eval_type`; and m3agent's own: `environment` (see recipe.py; its `test_cmd`
and `test_runner` are for the grader), `repo_archive` (a tar of a bare repository, relative to the rows' file)
and `repo_ref` (what to take from it).

The grader gets the complete row. The agent's side gets only the fields that `_task` reads.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from m3agent.evals.data.dialects import as_swebench, id_of, own_rules
from m3agent.evals.data.fields import Fields
from m3agent.evals.data.files import within
from m3agent.evals.data.instance import (
    INSTANCE_ID,
    PYTHON_RUNNERS,
    Answer,
    Environment,
    Instance,
    Source,
    Task,
)
from m3agent.evals.data.official import official_environment
from m3agent.evals.data.recipe import read_environment, runner_of
from m3agent.evals.data.results import first_problem
from m3agent.tools.runners.suites import CODE, RUNNERS, file_of

GITHUB = "https://github.com"
"""Host of the repositories for rows without an archive."""

_TEXTS = ("hints_text", "environment_setup_commit", "image", "eval_script", "log_parser", "eval_type")
"""Optional text fields that only the official grader reads."""

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?")
_REF = re.compile(r"(?!.*(\.\.|//|/\.|\.lock$|/$))[A-Za-z0-9_][A-Za-z0-9._/+@-]*(?<!\.)")
_CHANGE = re.compile(
    r"^(diff --git \S.*|--- \S.*\r?\n\+\+\+ \S.*\r?\n@@ )", re.MULTILINE
)  # git's format, or a plain unified diff
_CHANGED = re.compile(r"^\+\+\+ b/(.+?)\r?$", re.MULTILINE)
_TEST_OUTPUT = re.compile(r">>>>> Start Test Output'?\s*\n(.*)\n[^\n]*>>>>> End Test Output", re.DOTALL)
_PYTHON_TOOLS = frozenset({"pytest", "py.test", "tox", "nox", "hatch"})
_ALSO = {".NET": ("c#", "csharp"), "C/C++": ("cpp",), "JavaScript or TypeScript": ("js", "ts")}
_RUNNERS = sorted({*PYTHON_RUNNERS, *RUNNERS} - {"command"})
"""Values of `test_runner`. A command of the repository writes its own report, which a patch could forge."""
_LANGUAGES = frozenset(
    word
    for each in RUNNERS.values()
    for word in (*re.split(r"/| or ", each.language.lower()), *_ALSO.get(each.language, ()))
)
"""Languages with a test runner of m3agent's, as rows name them."""
# Suffixes that the official harness does not count as test files (NON_TEST_EXTS of swebench 4.1.0).
_NOT_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")


def read_id(fields: Fields) -> str:
    """Return the id of a row.

    Raises:
        DataError: The id is missing or cannot name a folder.
    """
    ident = id_of(fields)
    if not INSTANCE_ID.fullmatch(ident):
        problem = "is not an id; an id has at most 200 letters, digits, dots, dashes and underscores"
        raise fields.malformed("instance_id", ident, problem)
    return ident


def read_row(fields: Fields, folder: Path | None) -> Instance:
    """Return the instance of a row.

    Args:
        folder: Folder of the rows' file. Paths in the row are relative to it and must stay inside. None for
            rows from the hub, which have no folder.

    Raises:
        DataError: The row is malformed.
    """
    fields = as_swebench(fields)
    for name in _TEXTS:
        fields.optional(name)
    recipe = fields.inner("environment")
    environment = _environment(fields, recipe)
    test_patch = _diff(fields, "test_patch", empty=True)
    command = _test_command(fields, recipe, test_patch)
    tests = fields.tests("FAIL_TO_PASS"), fields.tests("PASS_TO_PASS")
    try:
        task = _task(fields, folder, environment)
        rules = own_rules(fields, folder)
        if rules is not None and rules.unusable and not _knows_language(fields):
            raise fields.wrong(
                "language",
                f"m3agent has no test runner for it, and {rules.benchmark}'s own rules cannot be used: {rules.unusable}",
            )
        return Instance(
            task=task,
            answer=Answer(
                patch=_diff(fields, "patch"),
                test_patch=test_patch,
                fail_to_pass=tests[0],
                pass_to_pass=tests[1],
                test_command=command,
                runner=_runner(recipe, command, [*tests[0], *tests[1]], test_patch),
                row=dict(fields.values),
                rules=rules,
            ),
        )
    except ValidationError as error:
        raise fields.wrong(*first_problem(error)) from None


def _task(fields: Fields, folder: Path | None, environment: Environment) -> Task:
    return Task(
        instance_id=read_id(fields),
        repo=_matching(fields, "repo", _REPO, "a name such as owner/name"),
        base_commit=_matching(
            fields, "base_commit", _COMMIT, "a whole commit id of 40 or 64 hexadecimal digits"
        ),
        statement=fields.text("problem_statement", empty=False),
        version=fields.optional("version") or "",
        created_at=fields.date("created_at"),
        source=_source(fields, folder),
        environment=environment,
    )


def _source(fields: Fields, folder: Path | None) -> Source:
    base = fields.text("base_commit")
    if "repo_archive" not in fields:
        return Source(kind="git", location=f"{GITHUB}/{fields.text('repo')}.git", ref=base)
    name = fields.text("repo_archive", empty=False)
    if folder is None:
        raise fields.wrong("repo_archive", "rows from the hub have no folder for it")
    path = within(folder, name, f"{fields.where}, field repo_archive:")
    ref = _matching(fields, "repo_ref", _REF, "a ref's name or a commit") if "repo_ref" in fields else base
    return Source(kind="archive", location=str(path), ref=ref)


def _environment(fields: Fields, recipe: Fields) -> Environment:
    """Return the environment of a row.

    It comes from the row's own recipe, else from its image, else from the official package's tables; else it
    is empty.
    """
    if recipe.values:
        return read_environment(recipe)
    if image := fields.first("image"):
        return read_environment(recipe, image)
    return read_environment(_official(fields))


def _official(fields: Fields) -> Fields:
    """Return the official package's recipe for a row; without fields if it has none."""
    values = official_environment(fields.text("repo"), fields.optional("version") or "")
    return Fields(values or {}, fields.where, "environment.")


def _test_command(fields: Fields, recipe: Fields, test_patch: str) -> str:
    """Return the row's test command with the files of its test patch; empty if the row names no command."""
    if whole := recipe.first("test_cmd_full"):
        return whole
    if (script := fields.first("eval_script")) and (match := _TEST_OUTPUT.search(script)):
        return match[1].strip()
    command = recipe.first("test_cmd") or _official(fields).first("test_cmd")
    if command is None:
        return ""
    files = [path for path in _CHANGED.findall(test_patch) if not path.endswith(_NOT_TESTS)]
    if runner_of(command) == "django":  # it expects modules below tests/, not files
        files = [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in files]
    return " ".join([command, *map(shlex.quote, files)])


def _runner(recipe: Fields, command: str, tests: Sequence[str], test_patch: str) -> str:
    """Return the test runner that the row names, or one of Python's if its command or its tests are Python's.

    Else it is empty, and the grader finds the runner in the code.
    """
    if named := recipe.first("test_runner"):
        if named not in _RUNNERS:
            known = ", ".join(_RUNNERS)
            raise recipe.malformed(
                "test_runner", named, f"is no runner that can be graded; it is one of {known}"
            )
        return named
    runner = runner_of(command)
    changed = {PurePosixPath(path).suffix for path in _CHANGED.findall(test_patch)} & CODE
    is_python = (
        (runner != "pytest" and (not changed or ".py" in changed))  # `bin/test` is not only SymPy's
        or any(_is_python_tool(word) for word in command.split())
        or (
            not any(_is_foreign(name) for name in tests)
            and (changed == {".py"} or any(file_of(name).endswith(".py") for name in tests))
        )
    )
    return runner if is_python else ""


def _knows_language(fields: Fields) -> bool:
    """Return whether a runner of m3agent's may fit. If the row names no language, the code decides later."""
    named = (fields.first("language", "repo_language") or "").lower()
    return not named or named in _LANGUAGES


def _is_foreign(test: str) -> bool:
    """Return whether a test's name is that of another runner: tools for Python have tests with .py files as data."""
    file, separator, _ = test.partition("::")
    whole_file = test.endswith(".py") and " " not in test  # names of Django's tests may be sentences
    return whole_file or (bool(separator) and not file.endswith(".py"))


def _is_python_tool(word: str) -> bool:
    name = word.rpartition("/")[2]
    return name in _PYTHON_TOOLS or name.startswith("python")


def _diff(fields: Fields, name: str, *, empty: bool = False) -> str:
    text = fields.text(name)
    if empty and not text.strip():
        return ""
    if not _CHANGE.search(text):
        raise fields.malformed(name, text, "is not a patch; git's diff format is expected")
    return text


def _matching(fields: Fields, name: str, pattern: re.Pattern[str], expected: str) -> str:
    text = fields.text(name)
    if not pattern.fullmatch(text):
        raise fields.malformed(name, text, f"is not {expected}")
    return text
