"""What people are told about tests that cannot be imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from m3agent.agent.fix import collection
from m3agent.agent.fix.collection import Collection, collect, collected, collection_of, not_importable
from m3agent.sandbox.backends.factory import SandboxSpec
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import SandboxDied
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools.test_report import TestReport

WorkspaceOf = Callable[[dict[str, str | bytes]], Workspace]


def report(
    errors: dict[str, str], status: int = 1, output: str = "", *, timed_out: bool = False
) -> TestReport:
    return TestReport(
        (), (), tuple(errors), (), errors, not timed_out, timed_out, 1.0, status, output, truncated=False
    )


def test_the_line_that_names_the_exception_is_told() -> None:
    text = "ImportError while importing test module\nTraceback:\na.py:1: in <module>\n    import own\nE   own.Broken: no\nE   ModuleNotFoundError: No module named 'own'\nE   \n"
    found = collection_of(
        report({"tests/a.py": text, "tests/b.py": text, "tests/c.py": "SyntaxError: odd\n"})
    )
    assert found.sentences() == [
        "tests/a.py and 1 other file cannot be imported in the sandbox: ModuleNotFoundError: No module named 'own'",
        "tests/c.py cannot be imported in the sandbox: SyntaxError: odd",
    ]


def test_few_errors_are_told() -> None:
    found = collection_of(report({f"tests/{n}.py": f"E   OSError: {n}\n" for n in range(9)}))
    assert len(found.sentences()) == 6
    assert found.sentences()[-1] == "4 more errors are not shown"


def test_a_run_of_all_tests_says_which_files_cannot_be_imported() -> None:
    """Without an image of the repository's own nothing collects the tests before; the baseline then tells it."""
    lacks = "ImportError while importing\nE   ModuleNotFoundError: No module named 'requests'\n"
    found = not_importable(report({"test_m.py": lacks, "test_n.py::test_it": "E   OSError: no fixture\n"}))
    assert found.sentences() == [
        "test_m.py cannot be imported in the sandbox: ModuleNotFoundError: No module named 'requests'"
    ]
    assert found.advice("docker") == (
        "if requests comes from a package, declare it in pyproject.toml or requirements.txt, or give an image that has it with "
        "--image or --dockerfile"
    )
    assert "install it on this machine" in found.advice("here")
    assert Collection({"a.py": "SyntaxError: odd"}).advice("docker") == ""


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            "requests.exceptions.ConnectionError: Max retries (Caused by NameResolutionError: x)",
            "--allow-net HOST",
        ),
        ("OSError: pytest: reading from stdin while output is captured!", "--ignore"),
        ("KeyError: 'SERVICE_URL'", "[tests] env"),
        ("own.NotFound: Set the SUITE environment variable to the path", "[tests] env"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'schemas.json'", "--dockerfile build"),
        ("ModuleNotFoundError: No module named 'test_source'", "pythonpath"),
        ("KeyError: 'key'", ""),
    ],
)
def test_a_cause_that_is_no_package_has_its_advice(error: str, advice: str) -> None:
    said = Collection({"test_a.py": error}).advice("docker")
    assert advice in said and bool(said) == bool(advice)
    assert "from a package" not in said


def test_a_file_that_skips_itself_without_a_package_is_told_to_who_asks() -> None:
    lacks = "Skipped: could not import 'own.more': No module named 'own'"
    found = collection_of(
        replace(
            report({}),
            skipped=("test_a.py", "test_b.py"),
            errors={"test_a.py": lacks, "test_b.py": "Skipped: Windows"},
        )
    )
    assert found.sentences() == []
    assert found.skips() == [f"test_a.py skips itself: {lacks}"]
    assert "if own comes from a package" in found.advice("docker")


@pytest.mark.parametrize("status", [0, 5])
def test_nothing_is_told_where_all_is_well(status: int) -> None:
    assert collection_of(report({}, status)).sentences() == []


def test_a_pytest_that_does_not_start_is_told() -> None:
    output = "Traceback:\npytest.PytestConfigWarning: no filter 'trio'\nResourceWarning: unclosed file\n"
    [line] = collection_of(report({}, 1, output)).sentences()
    assert line.endswith(
        "the test program ended with exit status 1: pytest.PytestConfigWarning: no filter 'trio'"
    )
    assert collection_of(report({}, 4)).sentences()[0].endswith("exit status 4 and said nothing")
    assert collection_of(report({}, -9, timed_out=True)).sentences()[0].endswith("more than 60 s")


@pytest.mark.integration
async def test_collecting_runs_no_test_and_leaves_nothing(sandbox_of: Callable[..., Sandbox]) -> None:
    files = {
        "tests/test_a.py": "import own_missing\n",
        "other/test_c.py": "import own_missing\n",
        "tests/test_b.py": "def test_b():\n    open('ran', 'w')\n",
        "pytest.ini": "[pytest]\naddopts = -x --unknown-option\ntestpaths = tests\n",
    }
    async with sandbox_of(files) as sandbox:
        found = await collect(sandbox)
        assert found.errors == {"tests/test_a.py": "ModuleNotFoundError: No module named 'own_missing'"}
        assert (await sandbox.patch()).empty


async def test_the_result_is_kept_for_one_tree_and_image(
    workspace_of: WorkspaceOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    results: list[Collection | SandboxDied] = [
        Collection({"a.py": "OSError: one"}),
        Collection({}, "odd"),
        SandboxDied("gone"),
    ]

    class Opened:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    async def collect_once(_: object) -> Collection:
        result = results.pop(0)
        if isinstance(result, SandboxDied):
            raise result
        return result

    monkeypatch.setattr(collection, "new_sandbox", lambda *_: Opened())
    monkeypatch.setattr(collection, "collect", collect_once)

    async def tell(image: str | None, workspace: Workspace) -> list[str]:
        said.clear()
        found = await collected(SandboxSpec("docker", image), "docker", workspace, tmp_path, said.append)
        return [*said, *(found.sentences() if found is not None else ())]

    first, second = workspace_of({"a.py": ""}), workspace_of({"a.py": "x = 1\n"})
    told = ["a.py cannot be imported in the sandbox: OSError: one"]
    assert await tell(None, first) == await tell("own:1", first) == []
    assert await tell("m3agent-env:1", first) == told
    assert await tell("m3agent-env:1", first) == told, "kept"
    odd = ["no test could run: odd"]
    assert await tell("m3agent-env:1", second) == odd
    assert await tell("m3agent-env:1", second) == odd
    assert await tell("m3agent-env:2", second) == ["the tests could not be collected: gone"]
    (tmp_path / "environments/1.collected").write_text('{"tree": 3}')
    results.append(Collection({}))
    assert await tell("m3agent-env:1", second) == []
