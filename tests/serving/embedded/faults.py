"""Small repositories with one fault each, in different domains and shapes. Each issue describes only the symptom."""

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Fault:
    """A repository's files, the issue, the faulty file, and the wrong text in it with its correction."""

    name: str
    files: dict[str, str]
    issue: str
    path: str
    wrong: str
    right: str

    def written(self) -> dict[str, str]:
        """Return the files with the fault, as the engine gets them."""
        text = self.files[self.path]
        assert text.count(self.right) == 1, self.name
        return {**self.files, self.path: text.replace(self.right, self.wrong)}


def _files(texts: dict[str, str]) -> dict[str, str]:
    return {path: dedent(text).lstrip("\n") for path, text in texts.items()}


STOCK = Fault(
    "stock",
    _files(
        {
            "stock.py": '''
        """Stock keeping."""


        class OutOfStock(Exception):
            pass


        class Shelf:
            def __init__(self, capacity):
                self.capacity = capacity
                self.items = {}

            def put(self, name, count=1):
                if self.total() + count > self.capacity:
                    raise ValueError("shelf is full")
                self.items[name] = self.items.get(name, 0) + count

            def take(self, name, count=1):
                held = self.items.get(name, 0)
                if held < count:
                    raise OutOfStock(name)
                self.items[name] = held - count
                return self.items[name]

            def total(self):
                return sum(self.items.values())
        ''',
            "test_stock.py": """
        import unittest

        from stock import OutOfStock, Shelf


        class ShelfTest(unittest.TestCase):
            def setUp(self):
                self.shelf = Shelf(10)
                self.shelf.put("tea", 4)

            def test_total(self):
                self.assertEqual(self.shelf.total(), 4)

            def test_take_some(self):
                self.assertEqual(self.shelf.take("tea", 1), 3)

            def test_take_all(self):
                self.assertEqual(self.shelf.take("tea", 4), 0)

            def test_take_too_many(self):
                with self.assertRaises(OutOfStock):
                    self.shelf.take("tea", 5)

            def test_full(self):
                self.shelf.put("salt", 6)
                with self.assertRaises(ValueError):
                    self.shelf.put("rice")
        """,
        }
    ),
    "# Cannot take the last item\n\nTaking everything that is left of an article fails with `OutOfStock`.",
    "stock.py",
    "if held <= count:",
    "if held < count:",
)

SLUG = Fault(
    "slug",
    _files(
        {
            "src/webtext/__init__.py": 'from webtext.slug import slugify\n\n__all__ = ["slugify"]\n',
            "src/webtext/slug.py": '''
        import re
        import unicodedata

        SEPARATOR = "-"


        def ascii_only(text):
            decomposed = unicodedata.normalize("NFKD", text)
            return decomposed.encode("ascii", "ignore").decode("ascii")


        def slugify(title, limit=40):
            """Make a title fit for a URL."""
            words = re.findall(r"[a-z0-9]+", ascii_only(title).lower())
            slug = ""
            for word in words:
                longer = slug + SEPARATOR + word if slug else word
                if len(longer) > limit:
                    break
                slug = longer
            return slug
        ''',
            "tests/test_slug.py": """
        import pytest

        from webtext import slugify


        @pytest.mark.parametrize(
            "title, slug",
            [
                ("Hello, World!", "hello-world"),
                ("  many   spaces ", "many-spaces"),
                ("Crème brûlée", "creme-brulee"),
                ("", ""),
                ("x" * 50, ""),
            ],
        )
        def test_slug(title, slug):
            assert slugify(title) == slug


        def test_limit():
            assert slugify("one two three", limit=7) == "one-two"
        """,
            "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\ntestpaths = ["tests"]\n',
        }
    ),
    "# Capital letters vanish from slugs\n\n`slugify('Hello, World!')` gives `ello-orld`.",
    "src/webtext/slug.py",
    "ascii_only(title))",
    "ascii_only(title).lower())",
)

BANK = Fault(
    "bank",
    _files(
        {
            "bank/__init__.py": "",
            "bank/money.py": '''
        class Money:
            """An amount in cents."""

            def __init__(self, cents, currency="EUR"):
                self.cents = cents
                self.currency = currency

            def __add__(self, other):
                self._same(other)
                return Money(self.cents + other.cents, self.currency)

            def __sub__(self, other):
                self._same(other)
                return Money(self.cents - other.cents, self.currency)

            def __eq__(self, other):
                return (self.cents, self.currency) == (other.cents, other.currency)

            def __lt__(self, other):
                self._same(other)
                return self.cents < other.cents

            def _same(self, other):
                if self.currency != other.currency:
                    raise ValueError("currencies differ")
        ''',
            "bank/ledger.py": """
        from bank.money import Money


        class Account:
            def __init__(self, owner, balance):
                self.owner = owner
                self.balance = balance
                self.history = []

            def book(self, amount, note):
                self.balance = self.balance + amount
                self.history.append((note, amount.cents))


        def transfer(source, target, amount):
            if source.balance < amount:
                raise ValueError("not enough money")
            source.book(Money(-amount.cents, amount.currency), "to " + target.owner)
            target.book(amount, "from " + source.owner)


        def statement(account):
            return [f"{note}: {cents / 100:.2f}" for note, cents in account.history]
        """,
            "tests/test_ledger.py": """
        import pytest

        from bank.ledger import Account, statement, transfer
        from bank.money import Money


        @pytest.fixture
        def pair():
            return Account("ann", Money(10000)), Account("bob", Money(500))


        def test_transfer_moves_money(pair):
            ann, bob = pair
            transfer(ann, bob, Money(2500))
            assert ann.balance == Money(7500)
            assert bob.balance == Money(3000)


        def test_not_enough(pair):
            ann, bob = pair
            with pytest.raises(ValueError):
                transfer(bob, ann, Money(501))


        def test_statement(pair):
            ann, bob = pair
            transfer(ann, bob, Money(1234))
            assert statement(bob) == ["from ann: 12.34"]
            assert statement(ann) == ["to bob: -12.34"]


        def test_currencies(pair):
            with pytest.raises(ValueError):
                pair[0].balance + Money(1, "USD")
        """,
        }
    ),
    "# Statement shows the wrong name\n\nThe receiver's statement says the money came from the receiver.",
    "bank/ledger.py",
    '"from " + target.owner)',
    '"from " + source.owner)',
)

CALENDAR = Fault(
    "calendar",
    _files(
        {
            "dates.py": """
        DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


        def is_leap(year):
            return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


        def days_in_month(year, month):
            if month == 2 and is_leap(year):
                return 29
            return DAYS[month - 1]


        def day_of_year(year, month, day):
            return sum(days_in_month(year, m) for m in range(1, month)) + day
        """,
            "tests/test_dates.py": """
        from dates import day_of_year, days_in_month, is_leap


        def test_leap():
            assert is_leap(2024)
            assert not is_leap(2023)


        def test_centuries():
            assert not is_leap(1900)
            assert is_leap(2000)


        def test_february():
            assert days_in_month(2024, 2) == 29
            assert days_in_month(2100, 2) == 28


        def test_day_of_year():
            assert day_of_year(2023, 12, 31) == 365
            assert day_of_year(2024, 3, 1) == 61
            assert day_of_year(2024, 1, 1) == 1
        """,
        }
    ),
    "# 1900 counts as a leap year",
    "dates.py",
    "(year % 100 != 0 or year % 400 != 0)",
    "(year % 100 != 0 or year % 400 == 0)",
)

CACHE = Fault(
    "cache",
    _files(
        {
            "cache.py": '''
        from collections import OrderedDict


        class Cache:
            """Keeps the entries that were used last."""

            def __init__(self, size):
                self.size = size
                self.entries = OrderedDict()
                self.hits = 0
                self.misses = 0

            def get(self, key, default=None):
                if key not in self.entries:
                    self.misses += 1
                    return default
                self.hits += 1
                self.entries.move_to_end(key)
                return self.entries[key]

            def put(self, key, value):
                self.entries[key] = value
                self.entries.move_to_end(key)
                if len(self.entries) > self.size:
                    self.entries.popitem(last=False)

            def __len__(self):
                return len(self.entries)
        ''',
            "test_cache.py": """
        from cache import Cache


        def filled():
            cache = Cache(2)
            cache.put("a", 1)
            cache.put("b", 2)
            return cache


        def test_get():
            cache = filled()
            assert cache.get("a") == 1
            assert cache.get("x", 7) == 7
            assert (cache.hits, cache.misses) == (1, 1)


        def test_oldest_goes():
            cache = filled()
            cache.put("c", 3)
            assert len(cache) == 2
            assert cache.get("a") is None
            assert cache.get("c") == 3


        def test_reading_counts_as_use():
            cache = filled()
            cache.get("a")
            cache.put("c", 3)
            assert cache.get("a") == 1
            assert cache.get("b") is None
        """,
        }
    ),
    "# Entries are dropped although they were just read",
    "cache.py",
    "        self.hits += 1\n        return",
    "        self.hits += 1\n        self.entries.move_to_end(key)\n        return",
)

LEXER = Fault(
    "lexer",
    _files(
        {
            "calc/__init__.py": "",
            "calc/lexer.py": '''
        class Token:
            def __init__(self, kind, text):
                self.kind = kind
                self.text = text

            def __repr__(self):
                return f"Token({self.kind}, {self.text})"


        def tokens(line):
            """Split an arithmetic expression into numbers and signs."""
            found = []
            position = 0
            while position < len(line):
                sign = line[position]
                if sign.isspace():
                    position += 1
                elif sign.isdigit():
                    end = position
                    while end < len(line) and line[end].isdigit():
                        end += 1
                    found.append(Token("number", line[position:end]))
                    position = end
                elif sign in "+-*/()":
                    found.append(Token("sign", sign))
                    position += 1
                else:
                    raise ValueError(f"unexpected {sign!r} at {position}")
            return found
        ''',
            "calc/evaluate.py": """
        from calc.lexer import tokens

        RANK = {"+": 1, "-": 1, "*": 2, "/": 2}


        def apply(sign, left, right):
            if sign == "+":
                return left + right
            if sign == "-":
                return left - right
            if sign == "*":
                return left * right
            return left / right


        def evaluate(line):
            values, signs = [], []

            def reduce():
                right, left = values.pop(), values.pop()
                values.append(apply(signs.pop(), left, right))

            for token in tokens(line):
                if token.kind == "number":
                    values.append(int(token.text))
                elif token.text == "(":
                    signs.append("(")
                elif token.text == ")":
                    while signs[-1] != "(":
                        reduce()
                    signs.pop()
                else:
                    while signs and signs[-1] != "(" and RANK[signs[-1]] >= RANK[token.text]:
                        reduce()
                    signs.append(token.text)
            while signs:
                reduce()
            return values[0]
        """,
            "tests/test_evaluate.py": """
        import pytest

        from calc.evaluate import evaluate


        @pytest.mark.parametrize(
            "line, value",
            [
                ("1", 1),
                ("1 + 2", 3),
                ("2 + 3 * 4", 14),
                ("(2 + 3) * 4", 20),
                ("10 - 3 - 2", 5),
                ("8 / 4 / 2", 1),
                ("12 + 34", 46),
            ],
        )
        def test_evaluate(line, value):
            assert evaluate(line) == value


        def test_unknown():
            with pytest.raises(ValueError):
                evaluate("1 ? 2")
        """,
        }
    ),
    "# 10 - 3 - 2 is 9\n\nSubtraction and division are grouped from the right.",
    "calc/evaluate.py",
    "RANK[signs[-1]] > RANK[token.text]",
    "RANK[signs[-1]] >= RANK[token.text]",
)

TAGS = Fault(
    "tags",
    _files(
        {
            "notes.py": """
        class Note:
            def __init__(self, title, tags=None):
                self.title = title
                self.tags = tags if tags is not None else []

            def tag(self, *names):
                for name in names:
                    if name not in self.tags:
                        self.tags.append(name)
                return self


        class Notebook:
            def __init__(self):
                self.notes = []

            def add(self, title, *names):
                note = Note(title).tag(*names)
                self.notes.append(note)
                return note

            def tagged(self, name):
                return [note.title for note in self.notes if name in note.tags]
        """,
            "test_notes.py": """
        from notes import Note, Notebook


        def test_tags_once():
            assert Note("x").tag("a", "b", "a").tags == ["a", "b"]


        def test_notes_are_apart():
            book = Notebook()
            book.add("one", "red")
            book.add("two", "blue")
            assert book.tagged("red") == ["one"]
            assert book.tagged("blue") == ["two"]
        """,
        }
    ),
    "# All notes have all tags",
    "notes.py",
    "tags=[]):\n        self.title = title\n        self.tags = tags\n",
    "tags=None):\n        self.title = title\n        self.tags = tags if tags is not None else []\n",
)

MATRIX = Fault(
    "matrix",
    _files(
        {
            "src/linear/__init__.py": "",
            "src/linear/matrix.py": """
        class Matrix:
            def __init__(self, rows):
                self.rows = [list(row) for row in rows]

            @property
            def shape(self):
                return len(self.rows), len(self.rows[0])

            def transposed(self):
                height, width = self.shape
                return Matrix([[self.rows[i][j] for i in range(height)] for j in range(width)])

            def __matmul__(self, other):
                height, inner = self.shape
                _, width = other.shape
                result = []
                for i in range(height):
                    row = []
                    for j in range(width):
                        row.append(sum(self.rows[i][k] * other.rows[k][j] for k in range(inner)))
                    result.append(row)
                return Matrix(result)

            def __eq__(self, other):
                return self.rows == other.rows
        """,
            "tests/test_matrix.py": """
        from linear.matrix import Matrix

        WIDE = Matrix([[1, 2, 3], [4, 5, 6]])


        def test_shape():
            assert WIDE.shape == (2, 3)


        def test_transposed():
            assert WIDE.transposed() == Matrix([[1, 4], [2, 5], [3, 6]])
            assert WIDE.transposed().transposed() == WIDE


        def test_product():
            assert WIDE @ WIDE.transposed() == Matrix([[14, 32], [32, 77]])
        """,
        }
    ),
    "# Products of matrices that are not square raise IndexError",
    "src/linear/matrix.py",
    "other.rows[j][k] for k",
    "other.rows[k][j] for k",
)

CONFIG = Fault(
    "config",
    _files(
        {
            "settings.py": """
        class Settings:
            def __init__(self, text):
                self.values = {}
                for line in text.splitlines():
                    line = line.split("#")[0].strip()
                    if not line:
                        continue
                    key, _, value = line.partition("=")
                    self.values[key.strip()] = value.strip()

            def number(self, key, default=0):
                try:
                    return int(self.values[key])
                except KeyError:
                    return default

            def flag(self, key):
                return self.values.get(key, "no").lower() in ("yes", "true", "on", "1")
        """,
            "tests/test_settings.py": '''
        from settings import Settings

        TEXT = """
        # comment
        port = 80  # web
        debug = Yes
        """


        def test_number():
            assert Settings(TEXT).number("port") == 80


        def test_missing():
            assert Settings(TEXT).number("size", 5) == 5


        def test_flag():
            settings = Settings(TEXT)
            assert settings.flag("debug")
            assert not settings.flag("other")
        ''',
        }
    ),
    "# A setting that is not there crashes instead of giving the default",
    "settings.py",
    "except ValueError:",
    "except KeyError:",
)

EVENTS = Fault(
    "events",
    _files(
        {
            "events.py": """
        class Emitter:
            def __init__(self):
                self.handlers = {}

            def on(self, name, handler):
                self.handlers.setdefault(name, []).append(handler)

            def off(self, name, handler):
                self.handlers[name].remove(handler)

            def once(self, name, handler):
                def wrapper(*args):
                    self.off(name, wrapper)
                    handler(*args)

                self.on(name, wrapper)

            def emit(self, name, *args):
                called = 0
                for handler in list(self.handlers.get(name, [])):
                    handler(*args)
                    called += 1
                return called
        """,
            "test_events.py": """
        from events import Emitter


        def test_on():
            seen = []
            emitter = Emitter()
            emitter.on("x", seen.append)
            assert emitter.emit("x", 1) == 1
            assert seen == [1]


        def test_nobody():
            assert Emitter().emit("y") == 0


        def test_once_each():
            seen = []
            emitter = Emitter()
            emitter.once("x", lambda value: seen.append(("a", value)))
            emitter.once("x", lambda value: seen.append(("b", value)))
            assert emitter.emit("x", 1) == 2
            assert emitter.emit("x", 2) == 0
            assert seen == [("a", 1), ("b", 1)]
        """,
        }
    ),
    "# Every second handler registered with once() is skipped",
    "events.py",
    "in self.handlers.get(name, []):",
    "in list(self.handlers.get(name, [])):",
)

MEDIAN = Fault(
    "median",
    _files(
        {
            "stats/__init__.py": "from .core import mean, median, spread\n",
            "stats/core.py": """
        def mean(values):
            return sum(values) / len(values)


        def median(values):
            ordered = sorted(values)
            middle = len(ordered) // 2
            if len(ordered) % 2:
                return ordered[middle]
            return (ordered[middle - 1] + ordered[middle]) / 2


        def spread(values):
            average = mean(values)
            return (sum((value - average) ** 2 for value in values) / len(values)) ** 0.5
        """,
            "tests/test_core.py": """
        import unittest

        import stats


        class CoreTest(unittest.TestCase):
            def test_mean(self):
                self.assertEqual(stats.mean([1, 2, 6]), 3)

            def test_median_odd(self):
                self.assertEqual(stats.median([5, 1, 3]), 3)

            def test_median_even(self):
                self.assertEqual(stats.median([4, 1, 2, 8]), 3)
                self.assertEqual(stats.median([1, 2]), 1.5)

            def test_spread(self):
                self.assertAlmostEqual(stats.spread([2, 4, 4, 4, 5, 5, 7, 9]), 2.0)
        """,
            "tests/__init__.py": "",
        }
    ),
    "# The median of an even number of values is too high",
    "stats/core.py",
    "(ordered[middle - 1] + ordered[middle]) // 2",
    "(ordered[middle - 1] + ordered[middle]) / 2",
)

SEARCH = Fault(
    "search",
    _files(
        {
            "graph.py": """
        from collections import deque


        class Graph:
            def __init__(self):
                self.edges = {}

            def connect(self, one, other):
                self.edges.setdefault(one, set()).add(other)
                self.edges.setdefault(other, set()).add(one)

            def reachable(self, start):
                seen = {start}
                waiting = deque([start])
                while waiting:
                    node = waiting.popleft()
                    for neighbour in sorted(self.edges.get(node, ())):
                        if neighbour not in seen:
                            seen.add(neighbour)
                            waiting.append(neighbour)
                return seen
        """,
            "tests/test_graph.py": """
        from graph import Graph


        def test_alone():
            assert Graph().reachable("a") == {"a"}


        def test_chain():
            graph = Graph()
            graph.connect("a", "b")
            graph.connect("b", "c")
            graph.connect("x", "y")
            assert graph.reachable("a") == {"a", "b", "c"}


        def test_cycle():
            graph = Graph()
            for one, other in ("ab", "bc", "ca"):
                graph.connect(one, other)
            assert graph.reachable("b") == {"a", "b", "c"}
        """,
        }
    ),
    "# reachable() never returns",
    "graph.py",
    "if neighbour in seen:",
    "if neighbour not in seen:",
)

REPORT = Fault(
    "report",
    _files(
        {
            "shop/__init__.py": "",
            "shop/report.py": '''
        from dataclasses import dataclass


        @dataclass
        class Line:
            name: str
            price: float
            count: int = 1

            def total(self):
                return self.price * self.count


        def render(lines):
            """Format a receipt: one line for each article, then the sum."""
            width = max(len(line.name) for line in lines)
            rows = [f"{line.name:<{width}} {line.total():8.2f}" for line in lines]
            rows.append(f"{'sum':<{width}} {sum(line.total() for line in lines):8.2f}")
            return "\\n".join(rows)


        def cheapest(lines):
            return min(lines, key=lambda line: line.price).name
        ''',
            "tests/test_report.py": """
        from shop.report import Line, cheapest, render

        LINES = [Line("tea", 2.5, 3), Line("bread", 3.1)]


        def test_render():
            assert render(LINES) == "tea       7.50\\nbread     3.10\\nsum      10.60"


        def test_cheapest():
            assert cheapest(LINES) == "tea"


        def test_total():
            assert Line("x", 2.0, 4).total() == 8.0
        """,
        }
    ),
    "# Receipts show one digit too few for each article",
    "shop/report.py",
    "{line.total():8.1f}",
    "{line.total():8.2f}",
)

LOOP = Fault(
    "loop",
    _files(
        {
            "words.py": '''
        def count_words(lines, ignored=()):
            """Count each word of the lines."""
            counts = {}
            for line in lines:
                for word in line.lower().split():
                    if word in ignored:
                        continue
                    counts[word] = counts.get(word, 0) + 1
            return counts


        def top(counts, number):
            ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            return [word for word, _ in ranked[:number]]
        ''',
            "test_words.py": """
        from words import count_words, top


        def test_one_line():
            assert count_words(["a b a"]) == {"a": 2, "b": 1}


        def test_more_lines():
            assert count_words(["a b", "B c"]) == {"a": 1, "b": 2, "c": 1}


        def test_ignored():
            assert count_words(["the cat", "the dog"], ignored={"the"}) == {"cat": 1, "dog": 1}


        def test_top():
            assert top({"a": 1, "b": 3, "c": 3}, 2) == ["b", "c"]
        """,
        }
    ),
    "# Only the first line of a text is counted",
    "words.py",
    "        return counts\n\n\ndef top",
    "    return counts\n\n\ndef top",
)

CLOCK = Fault(
    "clock",
    _files(
        {
            "src/clock/__init__.py": "from clock.duration import Duration\n",
            "src/clock/units.py": """
        MINUTE = 60
        HOUR = 60 * MINUTE
        DAY = 24 * HOUR
        """,
            "src/clock/duration.py": """
        from clock.units import DAY, HOUR, MINUTE


        class Duration:
            def __init__(self, seconds):
                self.seconds = seconds

            @classmethod
            def parse(cls, text):
                factors = {"d": DAY, "h": HOUR, "m": MINUTE, "s": 1}
                total = 0
                for part in text.split():
                    total += int(part[:-1]) * factors[part[-1]]
                return cls(total)

            def __str__(self):
                rest = self.seconds
                parts = []
                for name, factor in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", 1)):
                    count, rest = divmod(rest, factor)
                    if count:
                        parts.append(f"{count}{name}")
                return " ".join(parts) or "0s"
        """,
            "tests/test_duration.py": """
        import pytest

        from clock import Duration


        @pytest.mark.parametrize(
            "text, seconds", [("90s", 90), ("1h 30m", 5400), ("2d", 172800), ("1d 1s", 86401)]
        )
        def test_parse(text, seconds):
            assert Duration.parse(text).seconds == seconds


        def test_str():
            assert str(Duration(3661)) == "1h 1m 1s"
            assert str(Duration(0)) == "0s"
        """,
            "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\n',
        }
    ),
    "# Days are too short",
    "src/clock/units.py",
    "DAY = 12 * HOUR",
    "DAY = 24 * HOUR",
)

RANKING = Fault(
    "ranking",
    _files(
        {
            "league.py": """
        class Team:
            def __init__(self, name):
                self.name = name
                self.points = 0
                self.scored = 0
                self.against = 0

            def record(self, own, other):
                self.scored += own
                self.against += other
                if own > other:
                    self.points += 3
                elif own == other:
                    self.points += 1

            @property
            def difference(self):
                return self.scored - self.against


        def table(teams):
            ordered = sorted(teams, key=lambda team: (team.points, team.difference), reverse=True)
            return [team.name for team in ordered]
        """,
            "test_league.py": """
        import pytest

        from league import Team, table


        @pytest.fixture
        def teams():
            red, blue, green = Team("red"), Team("blue"), Team("green")
            red.record(3, 1)
            blue.record(1, 3)
            green.record(2, 2)
            return [blue, green, red]


        def test_points(teams):
            assert [team.points for team in teams] == [0, 1, 3]


        def test_difference(teams):
            assert [team.difference for team in teams] == [-2, 0, 2]


        def test_table(teams):
            assert table(teams) == ["red", "green", "blue"]
        """,
        }
    ),
    "# The table is upside down",
    "league.py",
    "team.difference))",
    "team.difference), reverse=True)",
)

FAULTS = (
    STOCK,
    SLUG,
    BANK,
    CALENDAR,
    CACHE,
    LEXER,
    TAGS,
    MATRIX,
    CONFIG,
    EVENTS,
    MEDIAN,
    SEARCH,
    REPORT,
    LOOP,
    CLOCK,
    RANKING,
)
