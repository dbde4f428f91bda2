"""Test reading an issue: from a file, from text, or from standard input."""

import hashlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.agent.issue.load import MAX_BYTES, Issue, load_issue
from m3agent.util.errors import UsageError


def refused(spec: str, stdin: io.BytesIO | io.StringIO | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        load_issue(spec, stdin=stdin)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    return sentence


def test_reads_a_file_with_its_heading_as_title(tmp_path: Path) -> None:
    path = tmp_path / "issue.md"
    path.write_bytes(b"Hello,\r\n\r\n# Wrong total #\r\n\r\nThe sum is off.\r\n")
    text = "Hello,\n\n# Wrong total #\n\nThe sum is off.\n"
    assert load_issue(str(path)) == Issue(
        "Wrong total", text, str(path), hashlib.sha256(text.encode()).hexdigest()
    )


def test_reads_text_given_in_place() -> None:
    issue = load_issue("divide(1, 0) should raise")
    assert (issue.title, issue.text, issue.source) == (
        "divide(1, 0) should raise",
        "divide(1, 0) should raise",
        "text",
    )


@pytest.mark.parametrize(
    "text",
    ["crash", "and/or is parsed wrongly", "either a/b\nor c/d", "see https://example.invalid/x for more"],
)
def test_text_with_slashes_is_text(text: str) -> None:
    assert load_issue(text).text == text


@pytest.mark.parametrize("number", ["12", " 007\n"])
def test_a_bare_number_is_no_text(number: str) -> None:
    """Other tools name an issue by its number alone; as a text it says nothing."""
    written = number.strip()
    assert refused(number) == (
        f"'{written}' is no issue text: write '#{written}' (with the quotes, for the shell) for issue {written} of the origin "
        "remote."
    )


def test_a_file_may_have_a_number_as_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "12").write_text("It fails\n")
    monkeypatch.chdir(tmp_path)
    assert load_issue("12").text == "It fails\n"


def test_a_terminal_is_told_that_m3agent_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, `fix -` looks as if it hung."""
    keyboard = io.StringIO("It fails\n")
    monkeypatch.setattr(keyboard, "isatty", lambda: True)
    said: list[str] = []
    load_issue("-", stdin=keyboard, say=said.append)
    [told] = said
    assert "end it with Ctrl-D" in told


@pytest.mark.parametrize("stdin", [io.BytesIO(b"It fails\n"), io.StringIO("It fails\n")])
def test_reads_standard_input(stdin: io.BytesIO | io.StringIO) -> None:
    said: list[str] = []
    issue = load_issue("-", stdin=stdin, say=said.append)
    assert said == []
    assert (issue.text, issue.source) == ("It fails\n", "-")


def test_reads_bytes_behind_a_text_stream() -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xc3\xa9 fails\r\n"), encoding="ascii")
    assert load_issue("-", stdin=stdin).text == "caf\xe9 fails\n"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xef\xbb\xbf# A\r\nb\rc\n", "# A\nb\nc\n"),
        ("# Ä\n".encode("utf-16"), "# Ä\n"),
        (b"\xfe\xff" + "# Ä\n".encode("utf-16-be"), "# Ä\n"),
        (b"the caf\xe9 \x93closes\x94\n", "the café “closes”\n"),
        (b"\x1b[31mFAILED\x1b[0m test_x\n", "\x1b[31mFAILED\x1b[0m test_x\n"),
    ],
)
def test_decodes_what_editors_write(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "issue.txt"
    path.write_bytes(data)
    assert load_issue(str(path)).text == text


def test_title_skips_headings_inside_code_and_is_cut() -> None:
    issue = load_issue("\n\n```\n# a comment\n```\n\n## The real one\n")
    assert issue.title == "The real one"
    long = load_issue("x" * 300).title
    assert len(long) == 120 and long.endswith("…")
    assert load_issue("colour \x1b[31mred\x1b[0m is lost").title == "colour  [31mred [0m is lost"


@pytest.mark.parametrize("spec", ["", "  \n\t "])
def test_nothing_given_is_refused(spec: str) -> None:
    assert "is empty" in refused(spec)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "is empty"),
        (b" \r\n\t\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "is not text"),
        (bytes(range(1, 9)) * 50, "is not text"),
        (b"a" * 1000 + b"\0", "is not text"),
        (b"a" * 5_000_000, "larger than 1024 KiB"),
    ],
    ids=["empty", "blank", "mark only", "program", "controls", "one NUL", "5 MB"],
)
def test_files_that_cannot_be_an_issue_are_refused(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "issue.md"
    path.write_bytes(data)
    sentence = refused(str(path))
    assert complaint in sentence and "issue.md" in sentence
    assert complaint in refused("-", io.BytesIO(data))


def test_the_limit_itself_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "issue.md"
    path.write_bytes(b"a" * MAX_BYTES)
    assert len(load_issue(str(path)).text) == MAX_BYTES


@pytest.mark.parametrize("spec", ["missing.md", "./issue", "docs/issue", "ISSUE.TXT"])
def test_missing_file_is_not_mistaken_for_text(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no issue file" in refused(spec)


def test_a_folder_and_a_broken_link_are_refused(tmp_path: Path) -> None:
    assert "is a folder" in refused(str(tmp_path))
    link = tmp_path / "link.md"
    link.symlink_to(tmp_path / "gone.md")
    assert "cannot be read: No such file" in refused(str(link))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "issue.md"
    path.write_text("x")
    path.chmod(0)
    assert "cannot be read: Permission denied" in refused(str(path))


def test_a_number_without_an_origin_and_other_addresses() -> None:
    assert "this repository has none" in refused("#12")
    assert "save the issue's text to a file" in refused("https://example.invalid/bug/1")


def test_no_standard_input() -> None:
    assert "no standard input" in refused("-", None)


@pytest.mark.linux  # /dev/fd is a link into /proc
def test_a_pipe_given_as_a_path_is_read() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"It fails\n")
        os.close(writer)
        assert load_issue(f"/dev/fd/{reader}").text == "It fails\n"
    finally:
        os.close(reader)


@given(st.binary(max_size=200))
def test_any_bytes_give_an_issue_or_one_sentence(data: bytes) -> None:
    try:
        issue = load_issue("-", stdin=io.BytesIO(data))
    except UsageError as error:
        assert str(error).endswith(".")
    else:
        assert issue.text.strip() and issue.title and len(issue.title) <= 120
        assert "\r" not in issue.text and "\0" not in issue.text and "\n" not in issue.title
        issue.text.encode()
