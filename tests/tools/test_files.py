"""`file_read`, `file_write`, `file_edit`: first the pure functions, then the tools in a real sandbox."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.sandbox.backends.factory import Backend, SandboxSpec, new_sandbox
from m3agent.sandbox.backends.sandbox import Sandbox
from m3agent.sandbox.errors import PathEscapes
from m3agent.sandbox.store.workspace import Workspace
from m3agent.tools import passages
from m3agent.tools.base import MOST_CHARACTERS
from m3agent.tools.files import LEFT_OUT, TESTS
from m3agent.tools.passages import nearest, split
from m3agent.tools.syntax_check import parse_problem
from m3agent.tools.text_file import TextFile, with_line_ends
from m3agent.tools.work_paths import meant_path, plain
from tests.tools.bench import Bench

pytestmark = pytest.mark.asyncio(loop_scope="module")

# few letters, so that passages match by chance; many blanks and line ends
TEXT = st.text(alphabet="ab \t\n", max_size=40)
LINE = st.text(alphabet="ab (", min_size=1, max_size=6)
INDENT = st.sampled_from(["", "  ", "    ", "\t", "        "])
LINES = st.lists(st.builds(str.__add__, INDENT, LINE), min_size=1, max_size=8)


def replace(content: str, old: str, new: str) -> str | list[int]:
    result = passages.replace(content, old, new)
    return result.text if isinstance(result, passages.Replaced) else result


def places(content: str, old: str) -> list[int]:
    return [at for at in range(len(content)) if content.startswith(old, at)]


@given(before=TEXT, old=TEXT.filter(bool), after=TEXT, new=TEXT | st.text(max_size=20))
async def test_the_one_exact_match_is_replaced_and_nothing_else(
    before: str, old: str, after: str, new: str
) -> None:
    content = before + old + after
    result = replace(content, old, new)
    if len(places(content, old)) == 1:
        assert result == before + new + after
    else:
        # overlapping matches count as well: "a\na\n" is twice in "a\na\na\n"
        assert isinstance(result, list)
        assert len(result) > 1


@given(content=st.text(alphabet="abc \n\r\t", max_size=60), old=TEXT.filter(bool), new=TEXT)
async def test_a_miss_or_an_ambiguity_never_gives_a_text(content: str, old: str, new: str) -> None:
    result = replace(content, old, new)
    words = old.split()
    if not words or any(word not in content for word in words):
        # tolerant matching must not find words that are not in the text
        assert result == [] or places(content, old) or places(content, old.replace("\n", "\r\n"))
    if isinstance(result, list):
        assert result == sorted(result)
        assert all(1 <= line <= content.count("\n") + 1 for line in result)


@given(
    before=LINES,
    passage=LINES,
    after=LINES,
    new=LINES,
    spaces=st.lists(st.sampled_from(["", " ", "\t"])),
    crlf=...,
)
async def test_white_space_at_line_ends_is_ignored(
    before: list[str], passage: list[str], after: list[str], new: list[str], spaces: list[str], crlf: bool
) -> None:
    end = "\r\n" if crlf else "\n"
    # the markers make the passage unique in the text
    passage = ["first", *passage, "last"]
    trailing = [*spaces, *[" "] * len(passage)]
    written = [line + trailing[n] for n, line in enumerate(passage)]
    content = end.join([*before, *written, *after]) + end
    result = replace(content, "\n".join(passage), "\n".join(new))
    assert result in (
        end.join([*before, *new, *after]) + end,
        # the passage matched exactly, with the blanks after it
        content.replace(end.join(passage), end.join(new)),
    )


@given(content=LINES, old=TEXT.filter(bool), new=TEXT)
async def test_crlf_stays_crlf(content: list[str], old: str, new: str) -> None:
    result = replace("\r\n".join(content) + "\r\n", old, new)
    if isinstance(result, str):
        assert result.count("\n") == result.count("\r\n")
        assert "\r\r" not in result


@given(
    block=st.lists(LINE.filter(lambda line: line.strip() != ""), min_size=1, max_size=4),
    new=LINES,
    outer=st.integers(1, 4),
)
async def test_a_passage_indented_differently(block: list[str], new: list[str], outer: int) -> None:
    """The replacement is indented by as much as the passage is indented in the file."""
    margin = "    " * outer
    old = ["marked", *[f"  {line}" for line in block]]
    content = "".join(f"{line}\n" for line in ["top", *[margin + line for line in old], "end"])
    result = replace(content, "\n".join(old), "\n".join(new))
    wanted = [margin + line if line.strip() else line for line in new]
    assert result == "".join(f"{line}\n" for line in ["top", *wanted, "end"])


@pytest.mark.parametrize(
    ("content", "old", "new", "result"),
    [
        ("a\nb\n", "b", "c", "a\nc\n"),
        ("a\nb", "b\n", "c\n", "a\nc"),
        ("a\nb  ", "b\n", "", "a\n"),
        ("a\r\nb\r\n", "a\nb", "x\ny\nz", "x\r\ny\r\nz\r\n"),
        ("a\r\nb\r\n", "a\r\nb", "x\r\ny", "x\r\ny\r\n"),
        ("a\r\nb\r\n", "a\nb", "x\r\ny", "x\r\ny\r\n"),
        ("a\nb\n", "a\r\nb\r\n", "x\r\ny\r\n", "x\ny\n"),
        ("a\r\nb\nc\n", "b\nc", "x\ny", "a\r\nx\ny\n"),  # mixed line ends: the passage keeps its own
        ("aaa", "aa", "b", [1, 1]),
        ("x = 1\nx = 1\n", "x = 1", "y", [1, 2]),
        ("a\n  b\n", "a\nb", "c", []),
        ("a\n\n\n", "   \n", "c", []),
        # a form feed does not end a line: line numbers are those of editors and tracebacks
        ("a\x0cb\nc\nc\n", "c", "d", [2, 3]),
        ("a  \x0cb\n", "a\nb", "c", []),
        # two tolerant matches are ambiguous
        ("f:\n    x \ng:\n    x\t\n", "    x\n", "    y\n", [2, 4]),
        # the first line has more indentation than the others: the whole passage has one shift
        ("f:\n        x\n    y\n", "    x\ny", "    x2\ny2", "f:\n        x2\n    y2\n"),
        ("    if a:\n        b\n", "if a:\n    b", "b", "    b\n"),
        # the file has less indentation than the given text
        ("a\n\tb\n", "    a\n    \tb", "    a\n    \tc\nd", "a\n\tc\nd\n"),
        # a line with less indentation than the passage keeps that difference
        ("if x:\n        a\n", "    a", "    a2\nb", "if x:\n        a2\nb\n"),
        ("\t\ta\n\t\tb \n", "\ta\n\tb\n", "\tc\nd\n", "\t\tc\n\td\n"),
    ],
)
async def test_replace(content: str, old: str, new: str, result: str | list[int]) -> None:
    assert replace(content, old, new) == result


async def test_nearest_shows_where_it_may_be() -> None:
    content = "def f():\n    return 1\n\n\ndef g():\n    return 2\n"
    assert nearest(content, "def h():\n    return 2") == (
        " Nearest lines:\n1\tdef f():\n2\t    return 1\n...\n5\tdef g():\n6\t    return 2"
    )
    assert nearest(content, "completely other") == " No line of the file is similar to its first line."
    assert nearest("", "x") == " No line of the file is similar to its first line."


async def test_searching_is_bounded_in_time_and_room() -> None:
    """Try a minified file, and a file of many equal lines."""
    started = time.monotonic()
    assert len(nearest("var a=1;" * 500_000, "var a=2;" * 1000)) < MOST_CHARACTERS
    many = "    value = compute(value)\n" * 20_000
    assert replace(many, "    value = compute(valve)\n" * 30, "x") == []
    assert len(nearest(many, "    value = compute(valve)\n" * 5000)) < MOST_CHARACTERS
    assert len(replace("a" * 1_000_000, "aa", "b")) < 50
    assert time.monotonic() - started < 20


@given(
    st.lists(st.text(alphabet="a\x0c\x1c\u2028\x85 ", max_size=5), max_size=5),
    st.sampled_from(["\n", "\r\n"]),
)
async def test_split_is_by_line_feeds_alone(lines: list[str], end: str) -> None:
    assert split("".join(line + end for line in lines)) == lines


@pytest.mark.parametrize(
    ("path", "result"),
    [("a/b.py", "a/b.py"), ("./a.py", "a.py"), ("/ws/a.py", "a.py"), ("/ws/", ""), ("/etc/x", "/etc/x")],
)
async def test_plain_paths(path: str, result: str) -> None:
    assert plain(path, "/ws") == result


async def test_an_absolute_path_below_another_work_tree() -> None:
    """With `--sandbox here`, the work tree is below /tmp, and a repository may ignore `tmp/`."""
    assert plain("/tmp/m3agent-1/ws/tmp/a.py", "/tmp/m3agent-1/ws") == "tmp/a.py"
    assert plain("/ws/a.py", "/tmp/m3agent-1/ws") == "/ws/a.py"


@pytest.mark.parametrize(
    "path", [".git/config", "/ws/.git/hooks/x", "a/.GIT/config", "git~1/config", "./.git"]
)
async def test_git_s_own_folder_is_not_named(path: str) -> None:
    with pytest.raises(PathEscapes):
        plain(path, "/ws")


@pytest.mark.parametrize("path", [".gitattributes", "a/.GitModules", "./.gitattributes."])
async def test_files_that_git_reads_are_not_written(bench: Bench, path: str) -> None:
    """A patch with one of them is never handed over. The model is told at once, not after its last turn."""
    for name, arguments in (("file_write", {"content": "x"}), ("file_edit", {"old": "x", "new": "y"})):
        refused = await bench.call(name, path=path, **arguments)
        assert refused.is_error
        assert "which git itself reads: refused" in refused.content
    assert (await bench.sandbox.patch()).empty


async def test_git_s_own_folder_is_not_reached_through_a_link(
    sandbox_of: Callable[..., Sandbox], tmp_path: Path
) -> None:
    async with sandbox_of({"a.py": "a = 1\n"}) as sandbox:
        bench = Bench(sandbox, tmp_path)
        assert (await sandbox.exec(["ln", "-s", ".git", "gl"])).exit == 0
        hook = "gl/hooks/post-commit"
        for tool, path, rest in (
            ("file_write", hook, {"content": "#!/bin/sh\n"}),
            ("file_edit", "gl/config", {"old": "bare = false", "new": "bare = true"}),
            ("file_read", "gl/config", {}),
        ):
            result = await bench.call(tool, path=path, **rest)
            assert (result.is_error, result.content) == (
                True,
                f"error: {path}: git's own folder cannot be touched",
            )
        assert (await sandbox.exec(["test", "-e", hook])).exit == 1


async def test_write_read_edit(bench: Bench) -> None:
    written = await bench.call("file_write", path="new/deep/a.py", content="x = 1\ny = 2\n")
    assert written.content == "wrote new/deep/a.py (2 lines, 12 bytes)"
    assert written.digest == hashlib.sha256(b"x = 1\ny = 2\n").hexdigest()
    assert (await bench.call("file_read", path="./new/deep/a.py")).content == "1\tx = 1\n2\ty = 2"
    edited = await bench.call("file_edit", path="/ws/new/deep/a.py", old="y = 2", new="y = 3")
    assert edited.content == "edited new/deep/a.py from line 2"
    assert await bench.sandbox.read("new/deep/a.py") == b"x = 1\ny = 3\n"
    again = await bench.call("file_write", path="new/deep/a.py", content="")
    assert again.content == "wrote new/deep/a.py (0 lines, 0 bytes)"
    assert (await bench.call("file_read", path="new/deep/a.py")).content == "(empty file)"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "1\tone\n2\ttwo\n3\t\n4\tfour"),
        ({"start": 2, "end": 3}, "2\ttwo\n3\t"),
        ({"start": 4}, "4\tfour"),
        ({"start": 3, "end": 99}, "3\t\n4\tfour"),
        ({"end": None}, "1\tone\n2\ttwo\n3\t\n4\tfour"),
        ({"start": 5}, "error: f.txt has 4 lines: there is no line 5"),
        ({"start": 3, "end": 2}, "error: end (2) is before start (3)"),
    ],
)
async def test_read_ranges(bench: Bench, arguments: dict[str, int], said: str) -> None:
    await bench.put({"f.txt": "one\ntwo\r\n\nfour"})
    assert (await bench.call("file_read", path="f.txt", **arguments)).content == said


async def test_read_counts_lines_as_editors_do(bench: Bench) -> None:
    await bench.put({"f.py": "a\x0cb\u2028c\x1b[0m\nd\n", "latin.txt": b"caf\xe9\n"})
    assert (await bench.call("file_read", path="f.py")).content == "1\ta\\x0cb\u2028c\\x1b[0m\n2\td"
    assert (await bench.call("file_read", path="latin.txt")).content == "1\tcaf\u00e9"


async def test_read_long_files_in_parts(bench: Bench) -> None:
    await bench.put({"f.txt": "".join(f"{n:0100}\n" for n in range(1, 1001)), "one.js": "x" * 3_000_000})
    first = await bench.call("file_read", path="f.txt")
    assert first.truncated
    assert len(first.content) < MOST_CHARACTERS + 100
    last = first.content.splitlines()[-1]
    assert last.startswith("[lines ")
    start = int(last.rpartition("start=")[2].rstrip("]"))
    assert first.content.splitlines()[-2].startswith(f"{start - 1}\t")
    second = await bench.call("file_read", path="f.txt", start=start)
    assert second.content.startswith(f"{start}\t{start:0100}\n")
    line = await bench.call("file_read", path="one.js")
    assert line.truncated
    assert len(line.content) < MOST_CHARACTERS + 100


async def test_files_that_are_no_text(bench: Bench) -> None:
    await bench.put({"b.bin": bytes(range(256)) * 5})
    read = await bench.call("file_read", path="b.bin")
    assert read.content == "error: b.bin is a binary file of 1,280 bytes"
    edit = await bench.call("file_edit", path="b.bin", old="x", new="y")
    assert edit.content == "error: b.bin is a binary file of 1,280 bytes: change it with code_exec"


async def test_an_edit_that_cannot_be_made_leaves_the_file_alone(bench: Bench) -> None:
    content = b"a = 1\nb = 2\na = 1\n"
    await bench.put({"f.py": content})
    for old, new, said in (
        ("a = 1", "x", "the text to replace is in f.py more than once (lines 1, 3): add lines around it"),
        ("b = 3", "x", "the text to replace is not in f.py. Nearest lines:\n2\tb = 2"),
        ("", "x", "old is empty: name the text to replace, or use file_write for a new file"),
        ("b = 2", "b = 2", "old and new are the same: nothing would change"),
    ):
        result = await bench.call("file_edit", path="f.py", old=old, new=new)
        assert result.content.startswith(f"error: {said}")
        assert result.is_error
        assert await bench.sandbox.read("f.py") == content
    many = await bench.call("file_write", path="many.py", content="x\n" * 50)
    assert not many.is_error
    listed = await bench.call("file_edit", path="many.py", old="x", new="y")
    assert "(lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...)" in listed.content


async def test_an_edit_keeps_mode_and_line_ends(bench: Bench) -> None:
    await bench.put({"run.sh": "echo a\r\necho b\r\n"})
    await bench.sandbox.exec(["chmod", "755", "run.sh"])
    await bench.call("file_edit", path="run.sh", old="echo a\necho b", new="echo c\necho d")
    assert await bench.sandbox.read("run.sh") == b"echo c\r\necho d\r\n"
    assert (await bench.sandbox.exec(["stat", "-c", "%a", "run.sh"])).stdout == b"755\n"


@pytest.mark.parametrize("tool", ["file_read", "file_write", "file_edit"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("../x", "../x is outside the work tree"),
        ("/etc/passwd", "/etc/passwd is outside the work tree"),
        ("folder", "folder is "),
        ("out", "out is a link that leads outside the work tree"),
        ("f.txt/below", "f.txt/below: a part of this path is a file, not a folder"),
        (".git/config", ".git/config: git's own folder cannot be touched"),
        ("", "'' is not a file path: give one relative to the repository's root"),
        (".", "'.' is not a file path"),
        ("/ws/", "'/ws/' is not a file path"),
        ("a\0b", "not a file path: 'a\\x00b'"),
        ("x" * 300, "file name too long"),
    ],
)
async def test_paths_that_cannot_be_used(bench: Bench, tool: str, path: str, said: str) -> None:
    await bench.put({"f.txt": "text\n"})
    await bench.sandbox.exec(["sh", "-c", "mkdir folder; ln -s /etc/passwd out"])
    rest = {"file_read": {}, "file_write": {"content": "x"}, "file_edit": {"old": "a", "new": "b"}}[tool]
    result = await bench.call(tool, path=path, **rest)
    if tool == "file_read" and path in ("folder", "", ".", "/ws/"):
        assert not result.is_error  # a folder is listed
        return
    assert result.is_error
    assert result.content.startswith("error: ")
    assert said.lower() in result.content.lower()


async def test_missing_files(bench: Bench) -> None:
    for tool, rest in (("file_read", {}), ("file_edit", {"old": "a", "new": "b"})):
        result = await bench.call(tool, path="no/such.py", **rest)
        assert result.content == "error: no/such.py: no such file or directory"


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        (
            "file_read",
            {},
            "path: field required. Its arguments: path: string, start: integer = 1, end: integer|null = None",
        ),
        ("file_read", {"path": "a", "start": 0}, "start: input should be greater than or equal to 1"),
        ("file_read", {"path": "a", "end": "x"}, "end: input should be a valid integer"),
        ("file_write", {"path": "a"}, "content: field required"),
        ("file_write", {"path": "a", "content": None}, "content: input should be a valid string"),
        (
            "file_write",
            {"path": "a", "content": "\udc00"},
            "content: character 0 is U+DC00, half of a surrogate pair",
        ),
        ("file_edit", {"path": "a", "old": "x"}, "new: field required"),
        ("file_edit", {"path": "a", "odl": "x", "new": "y"}, "old: field required; odl: unknown argument"),
        ("file_edit", {"path": "a", "old": "x", "new": "\ud800"}, "new: character 0 is U+D800"),
    ],
)
async def test_wrong_arguments(bench: Bench, tool: str, arguments: dict[str, object], said: str) -> None:
    result = await bench.call(tool, **arguments)
    assert result.is_error
    assert result.content.startswith(f"error: {tool}: {said}")


async def test_a_write_to_an_ignored_file_is_no_part_of_the_work(
    sandbox_of: Callable[..., Sandbox], tmp_path: Path
) -> None:
    files = {".gitignore": "*_version.py\nkept.py\n!important_version.py\n", "kept.py": "a = 1\n"}
    async with sandbox_of(files) as sandbox:
        bench = Bench(sandbox, tmp_path)
        for path in ("src/own_version.py", "./src/../own_version.py", "node_modules/a.js"):
            result = await bench.call("file_write", path=path, content="x = 1\n")
            assert result.content.splitlines()[1:] == [LEFT_OUT]
            assert not result.is_error
        result = await bench.call("file_edit", path="src/own_version.py", old="x", new="y")
        assert result.content == f"edited src/own_version.py from line 1\n{LEFT_OUT}"
        for path in ("kept.py", "important_version.py", "new.py"):
            assert LEFT_OUT not in (await bench.call("file_write", path=path, content="x = 1\n")).content
        assert (await sandbox.patch()).paths == ("important_version.py", "kept.py", "new.py")


async def test_a_write_to_a_file_that_had_tests_says_what_becomes_of_them(
    one_backend: Backend, workspace_of: Callable[..., Workspace], tmp_path: Path
) -> None:
    files = {"tests/test_a.py": "def test_a():\n    assert 1\n", "a.py": "x = 1\n", "tests/a.json": "1\n"}
    spec = SandboxSpec(one_backend)
    async with new_sandbox(one_backend, spec, workspace_of(files), lambda _: None) as sandbox:
        bench = Bench(sandbox, tmp_path)
        told = {
            path
            for path in (*files, "tests/test_new.py", "./tests/test_a.py")
            if TESTS in (await bench.call("file_write", path=path, content="x = 2\n")).content
        }
        assert told == {"tests/test_a.py"}, "the second write to it says nothing new"


async def test_a_write_into_a_submodule_is_refused_at_once(bench: Bench) -> None:
    with bench.submodule("libs/sub"):
        for path in ("libs/sub/x.py", "./libs/../libs/sub/x.py"):
            result = await bench.call("file_write", path=path, content="x\n")
            assert result.is_refused
            assert "submodule libs/sub" in result.content


LETTERS = {
    "utf-8": "aé世",
    "utf-8-sig": "aé世",
    "utf-16": "aé世",
    "gb18030": "a世界",
    "cp1252": "aé€",
    "latin-1": "aéü",
}
LINES_OF = st.sampled_from(sorted(LETTERS)).flatmap(
    lambda codec: st.tuples(
        st.just(codec),
        st.lists(
            st.tuples(st.text(alphabet=LETTERS[codec] + " x", max_size=5), st.sampled_from(["\n", "\r\n"])),
            max_size=6,
        ),
    )
)


@given(given_file=LINES_OF, number=st.integers(0, 5), several=st.booleans())
async def test_an_edit_changes_no_other_byte(
    given_file: tuple[str, list[tuple[str, str]]], number: int, several: bool
) -> None:
    codec, pieces = given_file
    pieces = [(f"{LETTERS[codec][1]} top", "\r\n"), *pieces]
    number = min(number, len(pieces) - 1)
    before = "".join(map("".join, pieces[:number]))
    after = "".join(map("".join, pieces[number:]))
    end = pieces[number][1] if number == 0 else pieces[number - 1][1]
    data = f"{before}MARKED{end}{after}".encode(codec)
    file = TextFile.of(data)
    assert file is not None
    result = replace(file.text, "MARKED\n", "new\nlines\n" if several else "new\n")
    assert isinstance(result, str)
    wanted = f"new{end}lines{end}" if several else f"new{end}"
    assert file.with_text(result) == f"{before}{wanted}{after}".encode(codec)


@pytest.mark.parametrize("codec", ["latin-1", "big5", "gbk"])
async def test_a_text_without_its_declaration_is_utf8(codec: str) -> None:
    file = TextFile.of(f"# coding: {codec}\nx = '§'\n".encode(codec))
    assert file is not None
    assert file.with_text("x = '§'\n") == "x = '§'\n".encode()


@given(st.binary(max_size=60), st.booleans())
async def test_any_text_file_is_written_back_as_it_was(data: bytes, declared: bool) -> None:
    data = b"# coding: gbk\n" + data if declared else data
    file = TextFile.of(data)
    assert file is None or file.with_text(with_line_ends(file.text, file.text)) == data


@pytest.mark.parametrize(
    ("data", "codec"),
    [
        ("价格 = '一百元'\n".encode("gbk"), "gb18030"),
        ("# coding: big5\nx = '價'\n".encode("big5"), "big5"),
        ("naïve café € “quoted”\n".encode("cp1252"), "cp1252"),
        (b"\x81 \xe9\n", "latin-1"),
        ("é\n".encode(), "utf-8"),
        ("naïve café ".encode() + b"\xe9\n", "utf-8"),
        ("一百元的价格".encode() + b"\xff\n", "utf-8"),
        (b"\xef\xbb\xbfx = '\xe9'\n", "utf-8"),
        ("hello\n".encode("utf-16-le"), "utf-16-le"),
        (b"# coding: no_such_codec\nx = '\xe9'\n", "cp1252"),
        (b"# coding: utf-8\nx = '\xe9'\n", "cp1252"),
        (b"# coding: hex\nx = 1\n", "utf-8"),
        ("<?xml version='1.0' encoding='shift_jis'?><a>あ</a>".encode("shift_jis"), "shift_jis"),
        (b"", "utf-8"),
    ],
)
async def test_the_encoding_of_a_file(data: bytes, codec: str) -> None:
    file = TextFile.of(data)
    assert file is not None
    assert file.encoding.codec == codec


async def test_files_keep_how_they_are_stored(bench: Bench) -> None:
    text = "名称 = '价格'\r\nb = 1\r\n"
    await bench.put({"g.py": text.encode("gbk"), "u.txt": text.encode("utf-16"), "m.txt": "a\r\nb\nc\r\n"})
    for path in ("g.py", "u.txt"):
        assert (await bench.call("file_read", path=path)).content == "1\t名称 = '价格'\n2\tb = 1"
        assert not (await bench.call("file_edit", path=path, old="b = 1", new="b = '元'")).is_error
    assert await bench.sandbox.read("g.py") == text.replace("b = 1", "b = '元'").encode("gbk")
    assert not (await bench.call("file_write", path="u.txt", content="x\ny\n")).is_error
    assert await bench.sandbox.read("u.txt") == "x\r\ny\r\n".encode("utf-16")
    assert not (await bench.call("file_write", path="m.txt", content="a\nB\nc\n")).is_error
    assert await bench.sandbox.read("m.txt") == b"a\r\nB\nc\r\n"
    damaged = "a = 'é'\nb = '".encode() + b"\xe9'\n"  # one byte of UTF-8 is missing
    await bench.put({"d.py": damaged})
    assert (await bench.call("file_read", path="d.py")).content == "1\ta = 'é'\n2\tb = '\\xe9'"
    assert not (await bench.call("file_edit", path="d.py", old="a = 'é'", new="a = '世'")).is_error
    assert await bench.sandbox.read("d.py") == damaged.replace("é".encode(), "世".encode())
    await bench.put({"w.py": "x = 'é'\n".encode("cp1252")})
    refused = await bench.call("file_edit", path="w.py", old="x", new="世")
    assert refused.content == (
        "error: w.py: the file is stored as cp1252, which lacks the character '世' (U+4E16) in line 1: "
        "write that character in another way"
    )
    assert await bench.sandbox.read("w.py") == "x = 'é'\n".encode("cp1252")


@pytest.mark.parametrize(
    ("content", "old", "new", "result"),
    [
        ("a\nb = 1\nc\n", "2\tb = 1\n3\tc", "2\tb = 2\n3\tc", "a\nb = 2\nc\n"),
        ("a\n  b = 1\nc\n", "     2→  b = 1", "  b = 2", "a\n  b = 2\nc\n"),
        ("a\nb\n", "1\ta\n2\tb", "1\ta\n2\tx\n2\tb", []),  # numbers in the new text are no row
        ("a\nb < 1 & c\n", "b &lt; 1 &amp; c", "b &lt;= 1", "a\nb <= 1\n"),
        ('x = "a"\n', 'x = \\"a\\"', 'x = \\"b\\n\\"', 'x = "b\\n"\n'),
        ("a\n\tb\n", "a\\n\\tb", "a\\n\\tc", "a\n\tc\n"),
        ("a\nb\n", "```python\na\n```", "```python\nx\n```", "x\nb\n"),
        (
            "if a:\n\tif b:\n\t\tc  = 1\n",
            "if a:\n    if b:\n        c = 1",
            "if a:\n    if b:\n        d = 1",
            "if a:\n\tif b:\n\t\td = 1\n",
        ),
        (
            "if a:\n\tb  = 1\n",
            "if a:\n    b = 1",
            "if a:\n        b = 2",
            [],
        ),  # how far is eight blanks in tabs?
        ("a\u00a0b\n", "a b", "c", "c\n"),
        (
            "    if a:\n        b()  # why\n",
            "\tif a:  \n\t\tb()",
            "\tif a:\n\t\tc()",
            "    if a:\n        c()  # why\n",
        ),
        ("x = a  b\ny\n", "a b\n", "c\n", "x = c\ny\n"),
        ("x\na  b\ny\n", "a b\n", "", "x\ny\n"),
        ("xa  b\n", "a b", "c", []),
        ("x  1\nx\u00a01\n", "x 1", "y", [1, 2]),
        ("a\n", f"{'9' * 5000}: a", "b", []),
    ],
)
async def test_an_imperfect_copy_that_fits_once(content: str, old: str, new: str, result: object) -> None:
    assert replace(content, old, new) == result


async def test_a_note_says_how_the_old_text_was_read(bench: Bench) -> None:
    await bench.put({"a.txt": "one\ntwo\n"})
    edited = await bench.call("file_edit", path="a.txt", old="2\ttwo", new="2\tthree")
    assert edited.content.splitlines()[1:] == ["note: the old text was read without its line numbers"]
    fenced = await bench.call("file_write", path="b.py", content="```python\nx = 1\n```")
    assert "without its fence" in fenced.content
    assert await bench.sandbox.read("b.py") == b"x = 1\n"
    await bench.call("file_write", path="b.md", content="```python\nx = 1\n```")
    assert await bench.sandbox.read("b.md") == b"```python\nx = 1\n```"


@pytest.mark.parametrize(
    ("path", "before", "after", "broken"),
    [
        ("a.py", "x = 1\n", "x = (\n", True),
        ("a.py", "x = (\n", "y = (\n", False),
        ("a.py", None, "def f(:\n", True),
        ("a.py", "", "# coding: latin-1\nx = 'é'\n", False),
        ("a.json", '{"a": 1}', '{"a": 1,}', True),
        ("tsconfig.json", "// note\n{}", "// note\n{,}", False),
        ("a.toml", "a = 1\n", "a = \n", True),
        ("a.txt", "x", "(", False),
        ("a.py", None, "(" * 100_000, True),
        ("a.py", None, "x = 1\0", True),
    ],
)
async def test_a_file_that_no_longer_parses(path: str, before: str | None, after: str, broken: bool) -> None:
    assert bool(parse_problem(path, before, after)) == broken


async def test_a_broken_file_of_a_grammar() -> None:
    pytest.importorskip("tree_sitter_language_pack")
    assert "line 2" in parse_problem("a.ts", "let x = 1\nlet y = 2\n", "let x = 1\nlet y = (2\n")
    assert parse_problem("a.go", "package a\n", "package a\n\nfunc f() {}\n") == ""


async def test_an_edit_that_breaks_the_syntax_says_so(bench: Bench) -> None:
    await bench.put({"a.py": "x = 1\ny = 2\n"})
    edited = await bench.call("file_edit", path="a.py", old="y = 2", new="y = (2")
    assert not edited.is_error
    assert edited.content.splitlines()[1].startswith("note: a.py no longer parses as Python")
    assert "line 2" in edited.content


FILES = {"src/pkg/core.py": 1, "src/pkg/util.py": 1, "tests/test_core.py": 1, "setup.py": 1, "passwd": 1}


@pytest.mark.parametrize(
    ("path", "result"),
    [
        ("/testbed/src/pkg/core.py", "src/pkg/core.py"),
        ("/workspace/src/pkg", "src/pkg"),
        ("/repo/setup.py", "setup.py"),
        ("/workspace/project/setup.py", "setup.py"),
        ("/workspace/src/pkg/new.py", "src/pkg/new.py"),
        ("/repo", "."),
        ("/home/me/code/proj/src/pkg/core.py", "src/pkg/core.py"),
        ("/ws/src/x.py", "src/x.py"),
        ("src/../setup.py", "src/../setup.py"),
        ("/ws", ""),
    ],
)
async def test_a_path_of_another_machine(path: str, result: str) -> None:
    assert meant_path(path, "/ws", FILES) == result


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/usr/lib/python3/pkg/core.py",
        "/home/me/proj/setup.py",
        "../x",
        "/a/site-packages/pkg/util.py",
        "/testbed/../etc/passwd",
        "/workspace/none/new.py",
    ],
)
async def test_a_path_outside_names_the_root_and_a_path_inside(path: str) -> None:
    with pytest.raises(
        PathEscapes,
        match=r"is outside the work tree, which is /ws: give a path relative to that folder, such",
    ):
        meant_path(path, "/ws", FILES)


async def test_folders_are_listed_and_wrong_names_get_near_ones(bench: Bench) -> None:
    await bench.put({"src/a/one.py": "1\n", "src/a/two.py": "2\n", "src/readme.txt": "x\n"})
    listed = await bench.call("file_read", path="src/")
    assert listed.content == "src is a folder, with:\na/ (2 files)\nreadme.txt"
    assert (await bench.call("file_read", path="/testbed/src/a/one.py")).content == "1\t1"
    for tool, rest in (("file_read", {}), ("file_edit", {"old": "a", "new": "b"})):
        missing = await bench.call(tool, path="src/a/oen.py", **rest)
        assert missing.is_error
        assert "src/a/one.py" in missing.content
