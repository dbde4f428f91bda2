"""Test which definitions are shown of a repository that exceeds the budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.agent.context.selection.definitions import Definitions, Source, beside_their_tests
from m3agent.agent.context.selection.kinds import FileKind, comes_last
from m3agent.agent.context.selection.passages import Passage, pieces_of

MODULE = '''"""Parse carts."""

import re


# the default
LIMIT = 3


@cached
def total(cart):
    """Return the total.

    A cart is a list.
    It may be empty.
    The total is a number.
    """
    return sum(price(item) for item in cart)


class Cart:
    size = 0

    def add(self, item):
        self.items.append(item)

    def checkout(self):
        return total(self.items)
'''


DECORATED = """def first():
    return {
        1: 2,
    }
@mark.parametrize(
    "cart",

    [1, 2],
)
@slow
async def second(cart):
    pass

@total(1)
class Third:
    @other.setter
    def fourth(self):
        pass
"""
DECORATED_OUTLINE = """1\tdef first()
11\t@mark.parametrize( "cart", [1, 2], ) @slow async def second(cart)
15\t@total(1) class Third
17\t  @other.setter def fourth(self)"""


def shown_lines(source: Source, ranges: list[Passage] | None) -> str:
    lines = source.text.split("\n")
    if ranges is None:
        return source.text
    return "\n".join(line for part in ranges for line in lines[part.first - 1 : part.last])


def function(name: str, body: str = "step", lines: int = 20) -> str:
    return f"def {name}(x):\n" + "".join(f"    {body}_{n} = x + {n}\n" for n in range(lines)) + "\n\n"


def source(path: str, text: str, kind: FileKind = FileKind.SOURCE, relevance: float = 0.5) -> Source:
    return Source(path, text, None, len(text) // 3 + 10, kind, relevance)


class TestPieces:
    def test_definitions_have_their_bodies_and_owners(self) -> None:
        named = {(*piece.owners, piece.name): piece for piece in pieces_of(MODULE, None) if piece.name}
        lines = MODULE.split("\n")
        assert "return total(self.items)" in named["Cart", "checkout"].text(lines)
        assert named["Cart", "add"].text(lines).strip().startswith("def add")
        assert named["Cart",].text(lines) == "class Cart:\n    size = 0"

    def test_comments_and_decorators_belong_to_the_definition_after_them(self) -> None:
        texts = [piece.text(MODULE.split("\n")) for piece in pieces_of(MODULE, None)]
        assert any(text.startswith("# the default\nLIMIT") for text in texts)
        assert any(text.startswith("@cached\ndef total") for text in texts)

    def test_a_decorated_definition_has_its_own_name_and_all_its_decorators(self) -> None:
        made = pieces_of(DECORATED, DECORATED_OUTLINE)
        pieces = {piece.name: piece.text(DECORATED.split("\n")) for piece in made}
        assert [*pieces] == ["first", "second", "Third", "fourth"]
        assert pieces["first"].endswith("    }")
        assert pieces["second"].startswith("@mark.parametrize(\n")
        assert pieces["Third"] == "@total(1)\nclass Third:"
        assert pieces["fourth"].startswith("    @other.setter")

    def test_a_long_docstring_is_a_piece_of_its_own(self) -> None:
        pieces = [piece for piece in pieces_of(MODULE, None) if piece.name == "total"]
        body, docstring = (piece.text(MODULE.split("\n")) for piece in pieces)
        assert "return sum" in body
        assert "It may be empty." not in body
        assert "It may be empty." in docstring
        assert [piece.is_docstring for piece in pieces] == [False, True]

    def test_a_very_long_definition_is_divided(self) -> None:
        pieces = pieces_of(function("huge", lines=1000), None)
        assert len(pieces) > 10
        assert {piece.name for piece in pieces} == {"huge"}

    @settings(deadline=None, max_examples=60)
    @given(
        st.lists(st.sampled_from([*MODULE.split("\n"), "x", "\t'''", "}", "/* a"]), max_size=80).map(
            "\n".join
        )
    )
    def test_every_line_is_in_exactly_one_piece(self, text: str) -> None:
        lines = text.split("\n")
        held = [
            number
            for piece in pieces_of(text, None)
            for part in piece.ranges
            for number in range(part.first, part.last + 1)
        ]
        assert len(held) == len(set(held))
        assert {n for n, line in enumerate(lines, start=1) if line.strip()} <= set(held)
        assert all(1 <= number <= len(lines) for number in held)


NAMES = [f"{verb}_{noun}" for verb in ("take", "drop", "group", "count") for noun in "abcdefgh"]
LIBRARY = [
    source("lib/more.py", "import re\n\n\n" + "".join(map(function, NAMES)), relevance=1.0),
    source("lib/other.py", "".join(function(f"other_{n}") for n in range(20))),
    source(
        "tests/test_more.py",
        "from lib.more import *\n\n\n" + "".join(function(f"test_{n}", f"{n}(1)\n    assert") for n in NAMES),
        FileKind.TEST,
    ),
]


def texts(issue: str, room: int, sources: list[Source] = LIBRARY) -> dict[str, str]:
    chosen = Definitions(sources, issue).within(room)
    return {sources[index].path: shown_lines(sources[index], ranges) for index, ranges in chosen.items()}


class TestDefinitions:
    @pytest.mark.parametrize(
        "issue",
        [
            "group_c() gives a wrong result",
            "The result of `group_c` is wrong.",
            'File "lib/more.py", line 500, in group_c',
            "lib.more.group_c fails for zero",
        ],
    )
    def test_what_the_issue_names_comes_whole_with_its_test(self, issue: str) -> None:
        shown = texts(issue, 1200)
        assert function("group_c").strip() in shown["lib/more.py"]
        assert "def test_group_c" in shown["tests/test_more.py"]

    def test_a_line_of_a_traceback_brings_its_definition(self) -> None:
        line = LIBRARY[1].text.split("\n").index("def other_7(x):") + 5
        assert function("other_7").strip() in texts(f"lib/other.py:{line}: fails", 1200)["lib/other.py"]

    def test_a_quoted_message_brings_the_definition_that_has_it(self) -> None:
        text = LIBRARY[1].text.replace(
            "def other_9(x):", "def other_9(x):\n    raise Bad('no such thing at all')"
        )
        sources = [LIBRARY[0], source("lib/other.py", text), LIBRARY[2]]
        shown = texts('It says "no such thing at all".', 1200, sources)
        assert "raise Bad" in shown["lib/other.py"]

    def test_code_comes_before_a_document_with_the_same_words(self) -> None:
        manual = source("docs/more.md", "# group_c\n\n" + "How group_c works.\n" * 60, FileKind.DOC, 1.0)
        assert "docs/more.md" not in texts("group_c is wrong", 600, [manual, *LIBRARY])

    def test_a_file_that_fits_is_whole(self) -> None:
        chosen = Definitions(LIBRARY, "group_c() is wrong").within(1_000_000)
        assert chosen == {0: None, 1: None, 2: None}

    @pytest.mark.parametrize(
        "text", ["def total(x):\n    return x\n", "import os\n\n\ndef total(x):\n    return os.x(x)\n"]
    )
    def test_a_small_file_of_which_all_is_chosen_is_whole(self, text: str) -> None:
        assert Definitions([source("a.py", text), *LIBRARY], "total is wrong").within(400)[0] is None

    @pytest.mark.parametrize("room", [0, 1, 200, 1000, 5000])
    def test_the_room_is_kept_and_the_result_is_the_same_again(self, room: int) -> None:
        chosen = Definitions(LIBRARY, "group_c() is wrong").within(room)
        assert chosen == Definitions(LIBRARY, "group_c() is wrong").within(room)
        assert sum(len(text) for text in texts("group_c() is wrong", room).values()) <= 3 * room

    @pytest.mark.parametrize("issue", ["", "   ", "!", "x" * 100_000])
    def test_any_issue_and_no_files_are_fine(self, issue: str) -> None:
        assert not Definitions([], issue).within(1000)
        assert Definitions(LIBRARY, issue).within(1000)


def test_texts_for_people_and_stubs_come_last() -> None:
    paths = {
        "a.py",
        "a.pyi",
        "b.pyi",
        "CHANGES.md",
        "LICENSE.txt",
        ".github/workflows/ci.yml",
        "pyproject.toml",
    }
    last = {path for path in paths if comes_last(path, paths)}
    assert last == {"a.pyi", "CHANGES.md", "LICENSE.txt", ".github/workflows/ci.yml"}


def test_texts_that_repeat_a_quoted_text_take_linear_time() -> None:
    repeated = source("data.py", "x = 'abcd efgh'\n" * 60_000)
    chosen = Definitions([repeated], 'It says "abcd efgh".').within(1000)
    assert chosen[0]


class TestBesideTheirTests:
    def test_a_test_follows_the_best_file_that_it_is_named_like(self) -> None:
        sources = [(f"shop/{name}.py", FileKind.SOURCE) for name in ("cart", "price", "tax")]
        tests = [(f"tests/test_{name}.py", FileKind.TEST) for name in ("mail", "price", "cart")]
        files = sources + tests
        ordered = [files[place][0] for place in beside_their_tests(files)]
        assert ordered == [
            "shop/cart.py",
            "tests/test_cart.py",
            "shop/price.py",
            "tests/test_price.py",
            "shop/tax.py",
            "tests/test_mail.py",
        ]

    def test_few_tests_of_one_name_and_none_of_files_far_below(self) -> None:
        files = [(f"shop/part{n}.py", FileKind.SOURCE) for n in range(50)]
        files += [(f"tests/{n}/test_part0.py", FileKind.TEST) for n in range(9)]
        files += [("tests/test_part40.py", FileKind.TEST)]
        order = beside_their_tests(files)
        assert sorted(order) == [*range(len(files))]
        assert order[:5] == [0, 50, 51, 52, 1]
        assert order.index(59) == 59

    def test_a_file_without_a_name_of_its_own_has_no_tests(self) -> None:
        files = [("__init__.py", FileKind.SOURCE), ("a.py", FileKind.SOURCE), ("test_.py", FileKind.TEST)]
        assert beside_their_tests(files) == [0, 1, 2]
