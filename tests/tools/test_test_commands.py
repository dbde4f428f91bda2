"""Test which programs of the model count as test runs."""

from __future__ import annotations

import time

import pytest

from m3agent.tools.test_commands import runs_tests


@pytest.mark.parametrize(
    "command",
    [
        "pytest",
        "python -m pytest -q tests",
        "python3 -X dev -m pytest",
        "cd x && pytest -x 2>&1 | tail -5",
        "PYTHONPATH=. timeout 60 python3 -m unittest discover",
        "set -e\npytest -q \\\n  tests",
        "for f in a b; do pytest $f; done",
        "if true; then tox -e py; fi",
        "(cd a && go test ./...)",
        "uv run pytest",
        "poetry run python -m pytest",
        "python manage.py test app",
        "python tests/runtests.py x",
        "npm test",
        "npm run test:unit -- -t x",
        "yarn test",
        "npx jest a",
        "./node_modules/.bin/vitest run",
        "node --test a.js",
        "make -j4 check",
        "cd build; ctest --output-on-failure",
        "meson test -C build",
        "cargo test --all",
        "./gradlew :a:test",
        "mvn -q test",
        "bundle exec rspec spec/a.rb",
        "vendor/bin/phpunit",
        "mix test",
        "dotnet test",
    ],
)
def test_a_command_of_a_test_runner_counts(command: str) -> None:
    assert runs_tests(command, "bash")
    assert runs_tests(command), "a tool that names no language"


@pytest.mark.parametrize(
    "command",
    [
        "",
        "python /tmp/r.py",
        "python reproduce_test.py",
        "python -c 'import test_calc; test_calc.test_add()'",
        "echo pytest",
        "grep -rn pytest .",
        "cat tests/test_a.py",
        "cat > t.py <<'END'\npytest\nEND\npython t.py",
        "pip install pytest",
        "# pytest\nls",
        "which pytest",
        "make",
        "npm install",
        "go build ./... test",
        "git log -- test",
        "echo 'unbalanced",
    ],
)
def test_another_command_counts_as_none(command: str) -> None:
    assert not runs_tests(command, "bash")
    assert not runs_tests(command)


@pytest.mark.parametrize(
    ("program", "counts"),
    [
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pytest', '-q'])", True),
        ("import os\nos.system('cd a && pytest')", True),
        ("import pytest\npytest.main(['-q'])", True),
        ("import unittest\nunittest.main()", True),
        ("from test_calc import test_add\ntest_add()", False),
        ("import subprocess\nsubprocess.run(['python', '/tmp/r.py'])", False),
        ("print('pytest')", False),
        ("subprocess.run()", False),
        ("def f(:", False),
    ],
)
def test_programs_in_python(program: str, counts: bool) -> None:
    assert runs_tests(program, "python") == counts


@pytest.mark.parametrize(
    "piece", ["a=b ", "-x ", "make x ", "<<E\n", "'", "(", "python -x ", "f(", "\\\n", "timeout -1 "]
)
def test_a_long_program_takes_no_time(piece: str) -> None:
    started = time.monotonic()
    runs_tests(piece * (200_000 // len(piece)))
    assert time.monotonic() - started < 60
