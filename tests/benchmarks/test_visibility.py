"""The visibility benchmark reads what each program shows."""

from benchmarks.visibility import Changed, read_shown, shown_in_map

from m3agent.agent.context.excerpt import block
from m3agent.agent.context.selection.passages import Passage, write_passages

TEXT = "".join(f"line {number}\n" for number in range(1, 31))


def test_reads_the_passages_of_a_prompt() -> None:
    body = write_passages(TEXT, [Passage(20, 22), Passage(3, 4)], 1000)
    shown = read_shown(
        f'<file path="whole.py">\n{TEXT}</file>\n{block("passages", b"part.py", body).decode()}'
    )
    assert shown.whole == {"whole.py"}
    assert shown.lines == {"part.py": {3, 4, 20, 21, 22}}
    assert shown.has("whole.py", {7})
    assert not shown.has("part.py", {3, 5})


def test_reads_the_lines_of_a_map() -> None:
    made = "a.py:\n⋮\n│class A:\n│    def run(self):\n⋮\n\nb.py:\n⋮\n│    def stop(self):\n⋮\n"
    lines = ["import os", "class A:", "    def run(self):", "        pass", "    def stop(self):"]
    shown = shown_in_map(made, [Changed("a.py", lines, (), frozenset())])
    assert shown.lines == {"a.py": {2, 3}}
