"""Test which patches may change how values compare."""

from __future__ import annotations

import pytest

from m3agent.agent.verify.comparisons import comparison_changes

OLD = """
class Money(int):
    def __eq__(self, other):
        return int(self) == int(other)

    def add(self, other):
        return Money(int(self) - int(other))
"""


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("money.py", OLD.replace("-", "+")),
        ("money.py", OLD + "\n    def __ior__(self, other):\n        return super().__init__(other)\n"),
        ("money.py", OLD.replace("def __eq__", "# a comment\n    def __eq__")),
        ("README.md", "class Text: __eq__"),
        ("money.pyi", OLD + "class Same(int):\n    def __eq__(self, other: object) -> bool: ..."),
        (".github/workflows/test.yml", "on: push\njobs:\n  type: tests"),
        ("money.json", '{"type": "sum"}'),
        ("CHANGELOG", "Add Same"),
        ("money.py", OLD + "\nassert type(Money(1)) is Money and isinstance(Money, (type, int))"),
        ("money.py", OLD + "\nname = Money(1).__class__.__name__ + type(Money(1)).__qualname__"),
        ("money.py", OLD + "\nparser.add_argument('x', type=int).type\nfield.type = 1"),
        ("money.py", OLD + "\n__all__ = ['Money']\nsuper().__setitem__(1, 2)"),
        ("money.py", OLD + '\ndef add():\n    """Compare with __eq__."""'),
        ("money.py", OLD + "\nif __name__ == '__main__': ..."),
        ("money.py", ""),
    ],
)
def test_an_honest_change_leaves_comparisons_alone(path: str, new: str) -> None:
    assert not comparison_changes({path: (OLD.encode(), new.encode())})


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("money.py", OLD + "\nclass Same(int): ..."),
        ("money.py", OLD + "\nclass Money(int): ..."),
        ("money.py", OLD.replace("int(self) ==", "int(self) >=")),
        ("money.py", OLD + "\n    __ne__ = add"),
        ("money.py", OLD + "\nMoney.__eq__ = Money.add"),
        ("money.py", OLD + "\nMoney.__dict__"),
        ("money.py", OLD + "\nsetattr(Money, '_' * 2 + 'eq' + '_' * 2, Money.add)"),
        ("money.py", OLD + "\nSame = type('Same', (int,), dict(eq=1))"),
        ("money.py", OLD + "\nfrom unittest.mock import ANY as five"),
        ("money.py", OLD + "\nimport types\nSame = types.new_class('Same')"),
        ("money.py", OLD + "\nMoney = attrs.define(eq=same)(Money)"),
        ("money.py", OLD + "\nname = f'__{word}__'"),
        ("money.py", OLD + "\nbroken("),
        ("money.py", OLD.replace("int(self) ==", "+".join(["int(self)"] * 2000) + " ==")),  # nests too deep
        ("money.py", OLD + "\nkind = type(type(1))\nSame = kind('Same', (int,), made)"),
        ("money.py", OLD + "\nSame = (1).__class__.__class__('Same', (int,), made)"),
        ("money.py", OLD + "\nimport builtins as b\nmake = b.type\nSame = make('Same', (int,), made)"),
        ("money.py", OLD + "\nmake = print.__self__.type\nSame = make('Same', (int,), made)"),
        ("money.py", OLD + "\nimport importlib\nb = importlib.import_module('built' + 'ins')\nmake = b.type"),
        ("money.py", OLD + "\nimport runpy\nrunpy.run_path('same.txt')"),
        ("money.py", OLD + "\nMoney.__hash__ = Money.add"),
        ("money.yaml", "expected: !!python/name:unittest.mock.ANY"),
        ("money.dat", "class Same(int):\n    def __eq__(self, other): return True"),
        ("run", "#!/usr/bin/env python3"),
        ("money.pyx", OLD + "\n"),
        ("money.so", "\0"),
    ],
)
def test_what_may_change_comparisons(path: str, new: str) -> None:
    assert comparison_changes({"other.py": (b"", None), path: (OLD.encode(), new.encode())})


def test_a_new_file_counts_whole_and_a_removed_one_not() -> None:
    assert comparison_changes({"money.py": (None, OLD.encode())})
    assert not comparison_changes({"money.py": (OLD.encode(), None)})
    assert not comparison_changes({"add.py": (None, b"def add(one, other):\n    return one + other\n")})
