"""Test which line of a test's or a program's output people are told."""

from __future__ import annotations

import pytest

from m3agent.tools.test_report import error_line, exception_line, first_reason, missing_host

RSPEC = """NoMethodError: undefined method `total' for nil
# ./lib/cart.rb:7:in `sum'
# ./spec/cart_spec.rb:3:in `block (2 levels) in <top (required)>'
"""
AVA = """file:///ws/node_modules/chalk/source/chalk.js:7
import ansiStyles from '#ansi-styles';
^
SyntaxError: Cannot use import statement outside a module
    at wrapSafe (internal/modules/cjs/loader.js:915:16)
    at Module._compile (internal/modules/cjs/loader.js:963:27)
"""
JAVA = """java.lang.IllegalStateException: no port
\tat org.shop.Server.start(Server.java:12)
\t... 23 more
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (RSPEC, "NoMethodError: undefined method `total' for nil"),
        ("expected: 2\n     got: 1\n# ./spec/cart_spec.rb:3:in `block'", "expected: 2"),
        (AVA, "SyntaxError: Cannot use import statement outside a module"),
        (JAVA, "java.lang.IllegalStateException: no port"),
        ("E AssertionError: assert {1} == {1, 2}", "AssertionError: assert {1} == {1, 2}"),
        (
            "E assert Left contains 1 more item:\nE {'a': 1}\nt.py:3: AssertionError",
            "assert Left contains 1 more item: {'a': 1}",
        ),
        (
            "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:\n\n5 !== 6\n\n    at f (a.js:1:2)",
            "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal: 5 !== 6",
        ),
        (
            "a.py:1: in <module>\n    import b\nE     File \"/ws/b.py\", line 2\nE       if 1 > 2\nE               ^\nE   SyntaxError: expected ':'",
            "SyntaxError: expected ':' (b.py, line 2)",
        ),
        ("ValueError: these are missing:", "ValueError: these are missing:"),
        ('Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: x', "ValueError: x"),
    ],
)
def test_a_stack_below_the_error_is_no_reason(text: str, line: str) -> None:
    assert exception_line(text) == line


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            "INTERNALERROR> Traceback:\nINTERNALERROR> OSError: no server\n\nno tests ran in 0.03s",
            "OSError: no server",
        ),
        ("E   _pytest.outcomes.Exit: no database\n", "Exit: no database"),
        ("set DB_URL first\n==== 1 error in 0.1s ====\n", "set DB_URL first"),
        ("no tests ran in 0.03s", "no tests ran in 0.03s"),
        ("", ""),
    ],
)
def test_the_reason_of_a_run_without_a_result(output: str, line: str) -> None:
    assert error_line(output) == line


def test_a_problem_begins_with_its_reason_unless_that_is_only_a_place() -> None:
    assert first_reason(AVA) == "SyntaxError: Cannot use import statement outside a module"
    assert first_reason("\nthe command reported no test\nok: 3") == "the command reported no test"
    assert first_reason("\n") == ""


@pytest.mark.parametrize(
    ("text", "host"),
    [
        (
            "HTTPSConnectionPool(host='api.example.org', port=443): Name or service not known",
            "api.example.org",
        ),
        ("Error: getaddrinfo ENOTFOUND api.example.org", "api.example.org"),
        ("dial tcp: lookup api.example.org: no such host", "api.example.org"),
        ("java.net.UnknownHostException: api.example.org", "api.example.org"),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", ""),
        ("assert 'https://api.example.org' == ''", None),
    ],
)
def test_the_host_that_a_test_could_not_reach(text: str, host: str | None) -> None:
    assert missing_host(text) == host
