"""`code_exec`, in a real sandbox."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.sandbox.backends.sandbox import ExecResult
from m3agent.tools.base import MOST_CHARACTERS
from m3agent.tools.code_exec import describe, names_other_root, stream_text
from tests.conftest import TIME_LIMITS
from tests.tools.bench import Bench

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_python_and_bash(bench: Bench) -> None:
    await bench.put({"helper.py": "NAME = 'from the work tree'\n"})
    python = await bench.call("code_exec", code="import os, helper; print(os.getcwd(), helper.NAME)")
    assert python.content == "exit code: 0\nstdout:\n/ws from the work tree"
    assert (python.is_error, python.exit_code, python.truncated, python.full_path) == (False, 0, False, None)
    bash = await bench.call("code_exec", code="a=(x y); echo ${a[1]}; echo no >&2; exit 3", language="bash")
    assert bash.content == "exit code: 3\nstdout:\ny\nstderr:\nno"
    assert (bash.is_error, bash.exit_code) == (True, 3)
    assert (await bench.call("code_exec", code="pass")).content == "exit code: 0"
    assert (await bench.call("code_exec", code="", language="bash")).content == "exit code: 0"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("(exit 3) | cat", 3),
        ("(exit 3) | (exit 4) | cat", 3),
        ("for i in 1 2; do (exit 3) | cat; done", 3),
        ("(exit 3) | yes | head -1", 3),
        ("python -c 'import sys; sys.exit(5)' 2>&1 | tail -3 && echo not reached", 5),
        ("(exit 3) | cat || true", 0),
        ("(exit 3) | cat; true", 0),
        ("(exit 3) | cat; exit 6", 6),
        ("bash -c '(exit 3) | cat'", 0),
        ("set -x; false | true", 1),
        ("trap 'true' EXIT; (exit 3) | (exit 4) | cat", 4),
        ("seq 3 | head -1", 0),
    ],
)
async def test_a_pipeline_fails_with_its_first_failure(bench: Bench, code: str, exit_code: int) -> None:
    result = await bench.call("code_exec", code=code, language="bash")
    assert result.content.splitlines()[0] == f"exit code: {exit_code}"
    assert (result.is_error, result.exit_code) == (exit_code != 0, exit_code)
    assert "not reached" not in result.content
    assert "PIPESTATUS" not in result.content


async def test_a_reader_that_has_enough_is_no_failure(bench: Bench) -> None:
    result = await bench.call("code_exec", code="yes | head -1", language="bash")
    assert result.content.startswith("exit code: 0 (a pipeline's reader, such as head, closed it early: 141")
    assert (result.is_error, result.exit_code) == (False, 0)
    python = await bench.call("code_exec", code="raise SystemExit(141)")
    assert (python.content, python.is_error) == ("exit code: 141", True)


@pytest.mark.slow
async def test_pip_without_a_network_is_explained(bench: Bench) -> None:
    for code in ("pip install no-such-package", "python3 -m pip install no-such-package 2>&1 | tail -2"):
        result = await bench.call("code_exec", code=code, language="bash")
        assert result.is_error
        assert "no network" in result.content


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("bash: line 1: cd: /testbed: No such file or directory", True),
        ("sh: 1: cd: can't cd to /workspace/src", True),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/repo/a.py'", True),
        ("cat: /ws/testbed: No such file or directory", False),
        ("cat: /testbed-2/a: No such file or directory", False),
        ("cat: /app/a: No such file or directory", False),  # the work tree
        ("/testbed\ncat: a: No such file or directory", False),
    ],
)
async def test_the_work_tree_of_another_sandbox_is_recognised(text: str, result: bool) -> None:
    assert names_other_root(text, "/app") == result


async def test_where_the_work_tree_is(bench: Bench) -> None:
    result = await bench.call("code_exec", code="cd /testbed && ls", language="bash")
    assert result.content.endswith(f"working directory, {bench.sandbox.folders.work_tree}")


async def test_standard_input_is_empty(bench: Bench) -> None:
    result = await bench.call("code_exec", code="import sys; print(repr(sys.stdin.read()))")
    assert result.content.endswith("''")


async def test_the_program_is_in_no_module_s_way(bench: Bench) -> None:
    """`pdb` imports the standard library's `code`, pytest imports `pdb`."""
    program = "import code, pdb, pytest; print(code.InteractiveConsole.__name__)"
    result = await bench.call("code_exec", code=program)
    assert result.content == "exit code: 0\nstdout:\nInteractiveConsole"


async def test_over_its_time(bench: Bench) -> None:
    program = "import time; print('before'); time.sleep(600)"
    for limit in TIME_LIMITS:
        result = await bench.call("code_exec", code=program, timeout=limit)
        if "before" in result.content:
            break
    else:
        pytest.fail("it did not begin")
    assert result.content == f"timed out after {limit} s (processes killed)\nstdout:\nbefore"
    assert (result.is_error, result.exit_code, result.data["timed_out"]) == (True, 124, True)


async def test_killed_by_a_signal(bench: Bench) -> None:
    result = await bench.call("code_exec", code="import os; os.kill(os.getpid(), 11)")
    assert result.content == "exit code: 139 (killed by SIGSEGV)"
    assert result.is_error


@pytest.mark.slow
async def test_out_of_memory_and_out_of_disk_are_reported(tight: Bench) -> None:
    program = "x = [bytearray(10**7) for _ in range(1000)]"
    result = await tight.call("code_exec", code=program)
    assert result.is_error
    if tight.sandbox.machine.name == "docker":
        assert result.content == "exit code: 137 (killed by SIGKILL, out of memory)"
        child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
        survived = await tight.call("code_exec", code=child)
        assert survived.content == "exit code: 0 (a process was killed: out of memory)"
    else:
        assert "MemoryError" in result.content
    await tight.call("code_exec", code="cat /dev/zero > fill.bin", language="bash")
    full = await tight.call("file_write", path="new.txt", content="x" * 100_000)
    assert full.content == "error: no room for new.txt: the sandbox's disk is full"
    assert full.is_error


async def test_long_output_is_cut_in_the_middle_and_kept_whole(bench: Bench) -> None:
    program = "for n in range(150_000): print(f'{n:07}')"
    result = await bench.call("code_exec", code=program)
    assert result.truncated
    assert len(result.content) < MOST_CHARACTERS + 100
    head, omitted, tail = re.split(r"\n\[\.\.\. ([\d,]+) bytes omitted \.\.\.\]\n", result.content)
    head = head.removeprefix("exit code: 0\nstdout:\n")
    assert head.startswith("0000000\n0000001\n")
    assert tail.endswith("0149999")
    # the parts shown and the bytes omitted add up to the whole output (without the last line end)
    assert len(head) + int(omitted.replace(",", "")) + len(tail) + 1 == 1_200_000
    assert result.full_path is not None
    kept = Path(result.full_path).read_text()
    assert kept.splitlines() == [f"{n:07}" for n in range(150_000)]


async def test_a_long_standard_error_leaves_room_for_the_output(bench: Bench) -> None:
    program = "import sys\nfor n in range(30_000): print('o', n); print('e', n, file=sys.stderr)"
    result = await bench.call("code_exec", code=program)
    assert len(result.content) < MOST_CHARACTERS + 200
    out, _, err = result.content.partition("\nstderr:\n")
    for letter, text in (("o", out), ("e", err)):
        assert text.count("bytes omitted") == 1
        assert len(text) > MOST_CHARACTERS // 3
        assert text.endswith(f"{letter} 29999")


async def test_control_characters_cannot_drive_a_terminal(bench: Bench) -> None:
    program = r"import sys; sys.stdout.buffer.write(b'a\0b\x1b[31mred\x1b[0m\x1b]0;title\x07 \xff \xe2\x80\xae end\r\n')"
    result = await bench.call("code_exec", code=program)
    assert result.content == "exit code: 0\nstdout:\na\\x00bred \ufffd \\x202e end"


@pytest.mark.parametrize("language", ["python", "bash"])
async def test_nul_in_a_program_is_refused(bench: Bench, language: str) -> None:
    result = await bench.call("code_exec", code="echo = 1\0", language=language)
    assert result.content.startswith(
        "error: code_exec: code: character 8 is NUL, which no program may contain."
    )


async def test_a_program_of_a_megabyte(bench: Bench) -> None:
    result = await bench.call("code_exec", code=f"x = '{'y' * 1_000_000}'\nprint(len(x))")
    assert result.content == "exit code: 0\nstdout:\n1000000"


async def test_half_a_surrogate_pair_is_refused(bench: Bench) -> None:
    result = await bench.call("code_exec", code="print('\ud83d')")
    assert result.content.startswith(
        "error: code_exec: code: character 7 is U+D83D, half of a surrogate pair."
    )
    whole = await bench.call("code_exec", code="print('\U0001f600')")
    assert whole.content.endswith("\U0001f600")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "code: field required"),
        ({"code": 5}, "code: input should be a valid string"),
        ({"code": "x", "language": "ruby"}, "language: input should be 'python' or 'bash'"),
        ({"code": "x", "timeout": 0}, "timeout: input should be greater than or equal to 1"),
        ({"code": "x", "timeout": 601}, "timeout: input should be less than or equal to 600"),
        ({"code": "x", "timeout": "soon"}, "timeout: input should be a valid integer"),
        ({"code": "x", "cmd": "y"}, "cmd: unknown argument"),
    ],
)
async def test_wrong_arguments(bench: Bench, arguments: dict[str, object], said: str) -> None:
    result = await bench.call("code_exec", **arguments)
    assert result.is_error
    assert result.content.startswith(f"error: code_exec: {said}")
    assert result.content.endswith(
        "Its arguments: code: string, language: 'python'|'bash' = 'python', timeout: integer = 60"
    )


async def test_a_number_in_quotes_is_taken(bench: Bench) -> None:
    assert (await bench.call("code_exec", code="print(1)", timeout="30")).content.endswith("1")


async def test_the_digest_follows_the_result(bench: Bench) -> None:
    first, second, third = [
        await bench.call("code_exec", code=code) for code in ("1/0", "1/0", "print('x'); 1/0")
    ]
    assert first.digest == second.digest != third.digest


@pytest.mark.parametrize(
    ("exit_code", "timed_out", "oom", "said"),
    [
        (0, False, False, "exit code: 0"),
        (7, False, False, "exit code: 7"),
        (-9, True, False, "timed out after 5 s (processes killed)"),
        (-9, False, False, "exit code: 137 (killed by SIGKILL)"),
        (-9, False, True, "exit code: 137 (killed by SIGKILL, out of memory)"),
        (1, False, True, "exit code: 1 (a process was killed: out of memory)"),
        (-63, False, False, "(killed by signal 63)"),  # a signal without a name
    ],
)
async def test_first_line(exit_code: int, timed_out: bool, oom: bool, said: str) -> None:
    result = ExecResult(exit_code, b"", b"", 0, timed_out, 1.0, oom=oom)
    assert describe(result, 5).endswith(said)


@pytest.mark.integration
@given(
    data=st.binary(max_size=300) | st.text(max_size=300).map(str.encode),
    repeat=st.integers(1, 40),
    omitted=st.sampled_from([0, 0, 1, 10**9]),
    limit=st.integers(20, 2000),
)
async def test_a_shown_stream_never_takes_more_room_than_it_may(
    data: bytes, repeat: int, omitted: int, limit: int
) -> None:
    data *= repeat
    text, was_cut = stream_text(data, omitted, limit)
    parts = re.split(r"\n\[\.\.\. ([\d,]+) bytes omitted \.\.\.\]\n", text)
    assert was_cut == (len(parts) == 3)
    assert was_cut or omitted == 0
    shown = parts[0] + parts[2] if was_cut else text
    assert len(shown) <= limit
    if was_cut:
        missing = int(parts[1].replace(",", ""))
        assert omitted <= missing <= omitted + len(data)
