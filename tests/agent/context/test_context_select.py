"""Test which files fill a context's budget, and in which order."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m3agent.agent.context.languages import word_set
from m3agent.agent.context.selection.select import Candidate, Near, Selection, select
from m3agent.agent.context.selection.store import TermStore


def candidate(path: str, text: str, order: float = 0.0, touched: float | None = None) -> Candidate:
    key = hashlib.blake2b(f"{path}\0{text}".encode(), digest_size=16).digest()
    return Candidate(path, key, lambda: text, len(text) // 4 + 5, order, touched)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TermStore]:
    with TermStore(tmp_path) as opened:
        yield opened


VOCABULARY = sorted(
    word_set("alpha beta gamma parse_url load_config Engine retry socket def class import return x1 y2")
)
vocabulary_texts = st.lists(st.sampled_from(VOCABULARY), max_size=60).map(" ".join)


@st.composite
def repositories(draw: st.DrawFn) -> list[Candidate]:
    paths = draw(
        st.lists(
            st.builds(
                "{}{}.{}".format,
                st.sampled_from(["", "src/", "tests/", "docs/", "pkg/core/"]),
                st.sampled_from([*VOCABULARY, "a", "b"]),
                st.sampled_from(["py", "md", "go", "json"]),
            ),
            max_size=12,
            unique=True,
        )
    )
    return [
        candidate(
            path,
            draw(vocabulary_texts),
            draw(st.floats(-5, 5)),
            draw(st.one_of(st.none(), st.floats(-20, 5))),
        )
        for path in paths
    ]


outline_costs = st.lists(st.one_of(st.none(), st.integers(0, 60)), min_size=12, max_size=12)
issues = st.one_of(st.just(""), vocabulary_texts, st.just("pkg/core/alpha.py: beta.gamma fails\n"))
budgets = st.integers(0, 400)
examples = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestAnySelection:
    @examples
    @given(repositories(), issues, budgets, st.one_of(st.none(), outline_costs))
    def test_fits_the_budget_and_accounts_for_every_file(
        self,
        store: TermStore,
        files: list[Candidate],
        issue: str,
        budget: int,
        costs: list[int | None] | None,
    ) -> None:
        chosen = select(files, issue, budget, store, outline_tokens=costs.__getitem__ if costs else None)
        whole = [*chosen.core, *chosen.tail]
        used = sum(files[index].tokens for index in whole)
        used += sum((costs[index] or 0) if costs else 0 for index in chosen.outlined)
        assert used <= budget
        assert len(set(whole)) == len(whole)
        assert not set(chosen.outlined) & set(chosen.core)
        assert not set(chosen.dropped) & {*whole, *chosen.outlined}
        assert {*whole, *chosen.outlined, *chosen.dropped} == set(range(len(files)))
        for part in (chosen.core, chosen.outlined):
            orders = [(files[index].order, files[index].path) for index in part]
            assert orders == sorted(orders)

    @examples
    @given(repositories(), issues, budgets, outline_costs, st.randoms())
    def test_with_parts_it_still_fits_the_budget_and_accounts_for_every_file(
        self,
        store: TermStore,
        files: list[Candidate],
        issue: str,
        budget: int,
        costs: list[int | None],
        chance: Random,
    ) -> None:
        made: dict[int, int | None] = {}

        def divide(near: Sequence[Near], most: int) -> dict[int, int | None]:
            for each in near:
                part = chance.choice([None, chance.randint(1, 50)])
                tokens = files[each.index].tokens if part is None else part
                if tokens <= most and chance.random() < 0.8:
                    made[each.index] = part
                    most -= tokens
            return made

        chosen = select(files, issue, budget, store, outline_tokens=costs.__getitem__, divide=divide)
        parts = {index: tokens for index, tokens in made.items() if tokens is not None}
        assert parts.keys() == chosen.excerpts
        assert made.keys() <= set(chosen.tail)
        used = sum(files[index].tokens for index in (*chosen.core, *chosen.tail) if index not in parts)
        used += sum(parts.values()) + sum(costs[index] or 0 for index in chosen.outlined)
        assert used <= budget
        shown = {*chosen.core, *chosen.tail, *chosen.outlined}
        assert len({*chosen.core, *chosen.tail}) == len(chosen.core) + len(chosen.tail)
        assert not shown & set(chosen.dropped)
        assert shown | set(chosen.dropped) == set(range(len(files)))

    @examples
    @given(repositories(), issues, issues, budgets, outline_costs)
    def test_begins_the_same_whatever_the_issue(
        self,
        store: TermStore,
        files: list[Candidate],
        one: str,
        other: str,
        budget: int,
        costs: list[int | None],
    ) -> None:
        first = select(files, one, budget, store, outline_tokens=costs.__getitem__)
        second = select(files, other, budget, store, outline_tokens=costs.__getitem__)
        assert (first.core, first.outlined) == (second.core, second.outlined)

    @examples
    @given(repositories(), issues, budgets, st.randoms())
    def test_does_not_depend_on_the_order_given(
        self, store: TermStore, files: list[Candidate], issue: str, budget: int, chance: Random
    ) -> None:
        shuffled = files.copy()
        chance.shuffle(shuffled)
        assert named(files, select(files, issue, budget, store)) == named(
            shuffled, select(shuffled, issue, budget, store)
        )

    @examples
    @given(repositories(), issues)
    def test_shows_everything_where_everything_fits_twice(
        self, store: TermStore, files: list[Candidate], issue: str
    ) -> None:
        total = sum(file.tokens for file in files)
        assert not select(files, issue, 2 * total, store).dropped


def named(files: list[Candidate], chosen: Selection) -> tuple[list[str], list[str]]:
    return [files[index].path for index in chosen.core], [files[index].path for index in chosen.tail]


FILLER = "unrelated words about nothing in particular\n" * 10
SHOP = {
    "shop/__init__.py": "from shop.cart import Cart\n",
    "shop/cart.py": '''
        from shop.prices import total_price
        class Cart:
            """What a customer is about to buy."""
            def checkout(self):
                return total_price(self.items)
        ''',
    "shop/prices.py": """
        def total_price(items):
            return sum(item.price for item in items)
        """,
    "shop/mail/sender.py": """
        class Sender:
            def deliver(self, letter):
                self.socket.send(letter)
        """,
    "shop/mail/letters.py": "def greeting(name): return f'Dear {name}'\n",
    "shop/stock.py": "class Warehouse:\n    def refill(self): ...\n",
    "tests/test_cart.py": "from shop.cart import Cart\ndef test_checkout(): assert Cart().checkout() == 0\n",
    "tests/test_sender.py": "from shop.mail.sender import Sender\ndef test_deliver(): Sender().deliver('x')\n",
    "docs/cart.md": "# The cart\nHow to checkout a cart.\n",
    "docs/mail.md": "# Mail\nHow a letter is delivered.\n",
    "setup.py": "setup(name='shop')\n",
}


HUBS = {f"platform/hub{n}.py": f"LIMIT_{n} = {n}\n" for n in range(12)} | {
    f"platform/user{n}.py": "".join(f"from platform.hub{hub} import LIMIT_{hub}\n" for hub in range(12))
    for n in range(12)
}


class TestKnownAnswers:
    @pytest.fixture
    def shop(self) -> list[Candidate]:
        return [
            candidate(path, textwrap.dedent(text) + FILLER, order)
            for order, (path, text) in enumerate(SHOP.items())
        ]

    @pytest.mark.parametrize(
        ("issue", "path"),
        [
            ("Checkout of an empty cart is wrong", "shop/cart.py"),
            ("The warehouse is never refilled", "shop/stock.py"),
            ("Sender.deliver() sends letters twice", "shop/mail/sender.py"),
            (
                'Traceback:\n  File "/srv/lib/shop/mail/letters.py", line 1, in greeting',
                "shop/mail/letters.py",
            ),
            ("shop.prices.total_price(None) raises", "shop/prices.py"),
            ("TotalPrice is off by one", "shop/prices.py"),
            ("The test of delivery in tests/test_sender.py fails", "tests/test_sender.py"),
            ("The manual's page docs/mail.md: how is a letter delivered?", "docs/mail.md"),
        ],
    )
    def test_files_of_the_issue_come_last(
        self, shop: list[Candidate], store: TermStore, issue: str, path: str
    ) -> None:
        busy = [candidate(path, text + FILLER, touched=3.0) for path, text in HUBS.items()]
        files = [*busy, *shop]
        chosen = select(files, issue, 10 * max(file.tokens for file in files), store)
        assert {files[index].path for index in chosen.core} <= HUBS.keys()
        assert files[chosen.tail[-1]].path == path

    def test_without_an_issue_the_program_goes_before_its_tests_and_manuals(
        self, shop: list[Candidate], store: TermStore
    ) -> None:
        budget = sum(file.tokens for file in shop) * 6 // 10
        chosen = select(shop, "  \n", budget, store)
        shown = {shop[index].path for index in (*chosen.core, *chosen.tail)}
        assert {path for path in SHOP if path.startswith("shop/")} <= shown
        assert not shown & {"docs/cart.md", "docs/mail.md", "setup.py"}

    def test_imported_files_are_in_the_core(self, store: TermStore) -> None:
        files = [candidate("pkg/hub.py", "X = 1\n" + FILLER)]
        files += [
            candidate(f"pkg/part{n}.py", f"from pkg.hub import X\ny{n} = X\n" + FILLER) for n in range(9)
        ]
        chosen = select(files, "", 3 * max(file.tokens for file in files), store)
        assert 0 in chosen.core

    def test_a_changed_file_leaves_the_choice_of_the_others_as_it_was(self, store: TermStore) -> None:
        files = [
            candidate(f"pkg/part{n}.py", f"y{n} = 1\n" + FILLER * (1 + n % 5), n, touched=-n)
            for n in range(60)
        ]
        budget = sum(file.tokens for file in files) // 2
        before = select(files, "", budget, store)
        for changed in range(0, 60, 7):
            edited = candidate(files[changed].path, files[changed].text() + "z = 2\n", 99, touched=3.0)
            after = select([*files[:changed], edited, *files[changed + 1 :]], "", budget, store)
            assert len(set(before.core) ^ set(after.core)) <= 1, changed

    def test_neighbours_of_what_matches_count(self, store: TermStore) -> None:
        files = [candidate(path, text + FILLER) for path, text in HUBS.items()]
        files += [candidate(f"pkg/part{n}.py", f"y{n} = 1\n" + FILLER) for n in range(9)]
        files.append(
            candidate("pkg/entry.py", "from pkg.part7 import y7\ndef frobnicate(): return y7\n" + FILLER)
        )
        chosen = select(files, "frobnicate frobnicate is slow", 4 * max(file.tokens for file in files), store)
        assert [files[index].path for index in chosen.tail][-2:] == ["pkg/part7.py", "pkg/entry.py"]


class TestLimits:
    def test_nothing_can_be_chosen_of_nothing(self, store: TermStore) -> None:
        assert select([], "an issue", 1000, store) == Selection([], [], [], [])

    @pytest.mark.parametrize("budget", [-1, 0, 1, 10])
    def test_a_budget_smaller_than_any_file_shows_nothing(self, store: TermStore, budget: int) -> None:
        files = [candidate("a.py", FILLER), candidate("b.py", FILLER)]
        assert select(files, "words", budget, store) == Selection([], [], [], [0, 1])

    def test_a_budget_smaller_than_any_file_may_hold_outlines(self, store: TermStore) -> None:
        files = [candidate("a.py", FILLER), candidate("b.py", FILLER)]
        chosen = select(files, "words", files[0].tokens - 1, store, outline_tokens=lambda _: 5)
        assert (chosen.core, chosen.outlined, chosen.tail) == ([], [0, 1], [])

    def test_an_outline_nearly_as_long_as_the_file_is_not_shown(self, store: TermStore) -> None:
        files = [candidate("a.py", FILLER), candidate("b.py", FILLER)]
        chosen = select(files, "words", files[0].tokens - 1, store, outline_tokens=lambda i: 2 if i else 80)
        assert chosen.outlined == [1]

    def test_outlines_are_not_made_when_there_is_no_room_left(self, store: TermStore) -> None:
        files = [candidate(f"f{n}.py", FILLER) for n in range(2000)]
        asked: list[int] = []

        def outline_tokens(index: int) -> int:
            asked.append(index)
            return files[0].tokens // 3

        chosen = select(files, "words", 100 * files[0].tokens, store, outline_tokens=outline_tokens)
        assert 20 < len(chosen.outlined) <= len(asked) < 200

    def test_files_without_history_or_with_very_much_are_fine(self, store: TermStore) -> None:
        files = [candidate("a.py", FILLER, touched=1e9), candidate("b.py", FILLER, touched=-1e9)]
        assert len(select(files, "words", 10_000, store).dropped) == 0

    def test_an_issue_of_any_length_is_read(self, store: TermStore) -> None:
        files = [candidate("a/engine.py", FILLER), candidate("b.py", FILLER)]
        issue = "engine " + "/a" * 300_000
        assert select(files, issue, 3 * files[0].tokens, store).dropped == []
