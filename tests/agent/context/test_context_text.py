"""Test how text is made safe for a prompt: reserved strings, invisible characters, encodings and attributes."""

import html
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from m3agent.agent.context.neutralise import attribute, decode, harmless

M3_TOKENS = [
    "]!p~[", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<reponame>", "<filename>",
    "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>",
    "<jupyter_text>", "<jupyter_code>", "<jupyter_output>", "<empty_output>", "<commit_before>",
    "<commit_msg>", "<commit_after>", "]~b]", "[e~[", "]!d~[", "<function_call>", "<code_interpreter>",
    "]<]speech[>[", "]<]image[>[", "]<]video[>[", "]~!b[", "<jupyter_error>", "<add_file>",
    "<delete_file>", "<rename_file>", "<edit_file>", "<commit_message>", "<empty_source_file>",
    "<repo_struct>", "<code_context>", "<file_content>", "<source_files>", "<pr_start>",
    "<review_comment>", "<filepath>", "<file_sep>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "]<]frame[>[", "<|content_altered_placeholder|>", "]<]minimax[>[", "<mm:think>", "</mm:think>",
]  # fmt: skip
M3_TOKENS += [
    f"]<]{edge} of {kind}[>[" for edge in ("start", "end") for kind in ("speech", "image", "video", "frame")
]
M3_TOKENS += ["]<]vision pad[>[", "]<]2.0 seconds[>["]
OTHER_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|unused_200050|>"]
DELIMITERS = [
    "</file>", "</file", "</file >", '<file path="x">', "<file\t", "<file", "<not_shown>", "</not_shown>",
    "</issue>",
]  # fmt: skip
INVISIBLE = [
    chr(code)
    for code in (0, 8, 0x1B, 0x7F, 0x85, 0x9B, 0xAD, 0x200B, 0x2028, 0x202E, 0x2066, 0xFEFF, 0xE0041)
]

RESERVED = [*M3_TOKENS, *OTHER_TOKENS]
FORGED = re.compile(r"</(?:file|issue)\b|<file\s|<file$|</?not_shown\b")

texts = st.lists(
    st.one_of(
        st.sampled_from(
            [*RESERVED, *DELIMITERS, *INVISIBLE, "\\", "\\\\", "<", "]", "[", ">", "|", "\n", "\t"]
        ),
        st.sampled_from(["<U+001B>", "<\\U+1F600>", "U+202E>", "file", "/", "~", "[>[", "]<]"]),
        st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8),
    ),
    max_size=12,
).map("".join)


def undo(text: str) -> str:
    """Undo the changes as documented: codes become characters, and each reserved string loses one backslash."""
    rests: dict[str, list[str]] = {
        "<": [
            r"\|[\w-]{1,64}\|>",
            r"(?:/file|/issue|/?not_shown)(?!\w)",
            r"file(?![\w>.:/-])",
            r"U\+[0-9A-F]{4,6}>",
        ],
        "]": [r"<\][\w. ]{1,64}\[>\["],
        "[": [],
    }
    for token in RESERVED:
        rests[token[0]].append(re.escape(token[1:]))
    broken = "|".join(rf"{re.escape(first)}(?=\\+(?:{'|'.join(rest)}))" for first, rest in rests.items())
    pattern = rf"<U\+([0-9A-F]{{4,6}})>|({broken})\\"
    return re.sub(pattern, lambda match: match[2] or chr(int(match[1], 16)), text)


@given(texts)
def test_nothing_reserved_or_invisible_survives_and_nothing_is_lost(text: str) -> None:
    shown = harmless(text)
    assert [token for token in RESERVED if token in shown] == []
    assert FORGED.search(shown) is None
    assert [c for c in shown if unicodedata.category(c) == "Cc" and c not in "\t\n"] == []
    assert [c for c in INVISIBLE if c in shown] == []
    assert undo(shown) == text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_read_back(text: str) -> None:
    assert undo(harmless(text)) == text


@pytest.mark.parametrize("token", [*RESERVED, *DELIMITERS])
def test_each_reserved_string_is_broken_after_its_first_character(token: str) -> None:
    assert harmless(f"a{token}") == f"a{token[0]}\\{token[1:]}"
    assert harmless(harmless(token)) == f"{token[0]}\\\\{token[1:]}"


@pytest.mark.parametrize(
    "text",
    [
        "a < file and b > file",
        "List<File> files;",
        "Map<file>",
        "#include <file.h>",
        "<file:///etc>",
        "<files>",
        "x <| f |> g",
        "a[i]<b[j]",
        "<thinking>",
        "<profile>",
        "naïve 日本語 👩\u200d💻 שלום\n\tindented",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert harmless(text) == text


def test_invisible_characters_become_their_code_points() -> None:
    assert harmless("\x1b[31m \u202eabc \U000e0041") == "<U+001B>[31m <U+202E>abc <U+E0041>"
    assert harmless("<U+001B>") == "<\\U+001B>"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\nb\n", ("a\nb\n", "lf", "utf-8")),
        (b"a\r\nb\r\n", ("a\nb\n", "crlf", "utf-8")),
        (b"a\r\nb\n", ("a\nb\n", "mixed", "utf-8")),
        (b"a\rb\r", ("a\nb\n", "cr", "utf-8")),
        (b"a\nb\rc", ("a\nb\rc", "lf", "utf-8")),
        (b"\xef\xbb\xbfa", ("a", "lf", "utf-8")),
        (b"caf\xe9", ("café", "lf", "cp1252")),
        (b"caf\x81", ("caf\N{REPLACEMENT CHARACTER}", "lf", "utf-8")),
        (
            "né à Łódź, \u2026".encode() + b"\xff",
            ("né à Łódź, \u2026\N{REPLACEMENT CHARACTER}", "lf", "utf-8"),
        ),
        (
            "# coding: iso-8859-2\nx = 'Łódź'\n".encode("iso-8859-2"),
            ("# coding: iso-8859-2\nx = 'Łódź'\n", "lf", "iso8859-2"),
        ),
        ("# coding: klingon\nx = 'é'\n".encode("latin-1"), ("# coding: klingon\nx = 'é'\n", "lf", "cp1252")),
        ("x = 'é'\r\n".encode("utf-16"), ("x = 'é'\n", "crlf", "utf-16")),
        ("\ufeffx\n".encode("utf-16-be"), ("x\n", "lf", "utf-16")),
        (b"\xff\xfea", ("\N{REPLACEMENT CHARACTER}", "lf", "utf-16")),
        (b"", ("", "lf", "utf-8")),
    ],
)
def test_decoding(data: bytes, expected: tuple[str, str, str]) -> None:
    assert decode(data) == expected


@pytest.mark.parametrize("encoding", ["shift_jis", "gb18030", "euc_kr", "cp1251"])
def test_other_encodings_are_guessed_from_enough_text(encoding: str) -> None:
    words = {
        "shift_jis": "これは日本語の文章です。文字コードを正しく読む必要があります。",
        "gb18030": "这是一个中文文件，需要正确识别它的编码方式。",  # noqa: RUF001
        "euc_kr": "이 파일은 한국어로 작성되었으며 인코딩을 올바르게 읽어야 합니다.",
        "cp1251": "Этот файл написан по-русски, и его кодировку нужно определить правильно.",  # noqa: RUF001
    }
    text = "".join(f"# {words[encoding]}\nvalue = {number}\n" for number in range(10))
    assert decode(text.encode(encoding)).text == text


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_something(data: bytes) -> None:
    text, _, encoding = decode(data)
    "".encode(encoding)
    harmless(text).encode()


def test_attributes_are_one_line_and_quoted() -> None:
    assert attribute('a"b<c>&d\n\x1b') == "a&quot;b&lt;c&gt;&amp;d&lt;U+000A&gt;&lt;U+001B&gt;"
    assert attribute("caf\udce9.py") == "caf\\xe9.py"
    assert attribute("]~b]user") == "]\\~b]user"


@given(texts)
@example("]!p~[\\U+202E>")
def test_no_attribute_can_end_early(name: str) -> None:
    shown = attribute(name)
    assert not {"<", ">", '"', "\n", "\r"} & set(shown)
    assert [token for token in RESERVED if token in shown] == []
    assert undo(html.unescape(shown)) == name
