from textwrap import dedent

from benchmarks.holdback import find, functions_of, without_checks, without_functions

CLASSES = b"""\
import unittest

class A(unittest.TestCase):
    def test_one(self):
        self.assertEqual(1, 1)

class B(unittest.TestCase):
    @unittest.skip("\xc3\xa9")
    def test_one(self):
        self.assertEqual(2, 2)
"""


def test_functions_of_ids_without_their_parameters() -> None:
    assert functions_of(["t.py::test_b[x-[1]]", "t.py::A::test_a", "t.py::test_b[y]"]) == [
        "t.py::A::test_a",
        "t.py::test_b",
    ]


def test_a_held_function_of_one_class_leaves_the_one_of_the_other() -> None:
    files = without_functions({"t.py": CLASSES}, ["t.py::A::test_one"], ["t.py::B::test_one"])
    left = files["t.py"]
    assert left is not None
    assert find(left, "t.py::A::test_one") is not None
    assert find(left, "t.py::B::test_one") is None
    assert b"skip" not in left
    compile(left, "t.py", "exec")


def test_a_function_that_cannot_be_found_takes_its_file_unless_a_given_one_is_in_it() -> None:
    assert without_functions({"t.py": CLASSES}, ["u.py::test_x"], ["t.py::test_made"]) == {"t.py": None}
    assert without_functions({"t.py": CLASSES}, ["t.py::A::test_one"], ["t.py::test_made"]) == {
        "t.py": CLASSES
    }


def test_the_last_half_of_the_added_assertions_goes() -> None:
    old = b"def test():\n    assert f(1) == 1\n"
    new = dedent(
        """\
        def test():
            assert f(1) == 1
            assert f(2) == 2
            with pytest.raises(ValueError):
                f(-1)
            x = f(3)
            assert (
                x == 3
            )
        """
    ).encode()
    split = without_checks(new, old, "t.py::test")
    assert split is not None
    content, words = split
    assert words == "1 of 3 assertions"
    assert b"assert f(1) == 1" in content and b"raises" in content and b"x == 3" not in content
    compile(content, "t.py", "exec")


def test_the_last_half_of_the_added_parameters_goes() -> None:
    old = b"@pytest.mark.parametrize('s', ['a', 'b'])\ndef test(s):\n    assert f(s)\n"
    new = dedent(
        """\
        @pytest.mark.parametrize('s', [
            'a',
            '\u00e9',  # new
            'b', ('c'
             'd'),
            'e',
        ])
        def test(s):
            assert f(s)
        """
    ).encode()
    split = without_checks(new, old, "t.py::test")
    assert split is not None
    content, words = split
    assert words == "1 of 3 parameters"
    names: dict[str, object] = {}
    code = content.replace(b"@pytest.mark.parametrize('s', ", b"values = (").partition(b"\ndef")[0]
    exec(code, names)
    assert names["values"] == ["a", "\u00e9", "b", "cd"]


def test_a_single_added_check_stays() -> None:
    old = b"def test():\n    assert f(1) == 1\n"
    assert without_checks(old + b"    assert f(2) == 2\n", old, "t.py::test") is None
    assert without_checks(b"def other(): pass\n", old, "t.py::test") is None
