"""Edits of Go, JavaScript and TypeScript that put back what is missing: statements, calls, conditions, ends of texts.

What is missing is most often like other code of the same file. So each edit takes a piece of the file, as it is or with one
of its variables replaced.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from m3agent.serving.embedded.code_file import (
    MOST_NAMES,
    STRINGS,
    Change,
    File,
    Rewrite,
    identifiers,
    logical_sign,
    operands_of,
)
from m3agent.serving.embedded.operators.base import TABLES
from m3agent.serving.embedded.syntax import FUNCTIONS, NAMES, is_condition, is_field, line_of, types

if TYPE_CHECKING:
    from tree_sitter import Node

OPPOSITES: dict[str, str] = TABLES["curly"]["opposites"]
BLOCKS = types("block statement_block statement_list switch_case switch_default expression_case default_case")
"""Nodes whose children are statements."""
VALUES = NAMES | types(
    "member_expression selector_expression call_expression subscript_expression index_expression"
)
"""Nodes that may lack a call around them."""
NUMBER = r"(?<![\w.])\d+(?![\w.])"
MOST_CONDITIONS = 60
"""Most conditions that are added to one."""
MOST_ENDS = 12
"""Most characters that are tried at the end of a text."""
MOST_TEXT = 60
"""Most characters of a value that gets a call around it."""
NEAR = 40
"""Lines within which statements are tried with another variable."""
NEAREST = 4
"""Variables that are tried there: those that are used nearest."""


def opposite(condition: str) -> str:
    """Return a condition that is true if a condition without `&&` and `||` is false."""
    if condition.startswith("!"):
        return condition[1:]
    parts = re.split(r" ([!=]==?|[<>]=?) ", condition)
    if len(parts) == 3:
        return f"{parts[0]} {OPPOSITES[parts[1]]} {parts[2]}"
    return f"!{condition}" if re.fullmatch(r"[\w$.]+(\(.*\))?", condition) else f"!({condition})"


def renamed(text: str, old: str, new: str) -> str:
    """Return code with another variable."""
    return re.sub(rf"(?<![\w$.]){re.escape(old)}(?![\w$])", lambda _: new, text)


def statements(file: File, node: Node) -> Iterator[Change]:
    """Yield statements of the file that may be missing before or after one, those from near places first."""
    above = node.parent
    is_empty = node.type in ("block", "statement_block") and not node.named_children
    if not is_empty and (above is None or above.type not in BLOCKS or not node.is_named):
        return
    if node.type == "comment" or is_field(node, "value"):  # the value of a case
        return
    start, end = file.tree.span(node)
    others = statements_for(file, node)
    is_first = node.prev_named_sibling is None or is_field(node.prev_named_sibling, "value")
    for place, other in enumerate(others):
        cost = 2.2 + 0.03 * place
        if is_empty:
            yield start + 1, start + 1, f"\n{other}\n", "statement added", cost
            continue
        yield end, end, f"\n{other}", "statement added", cost
        if is_first:
            yield start, start, f"{other}\n", "statement added", cost


def statements_for(file: File, node: Node) -> dict[str, None]:
    """Return statements of the file that a node's place may lack: as they are, and with another variable."""
    line, known = line_of(node), file.known(node)
    likely = file.names(node)[:NEAREST]
    same, changed = dict[str, None](), dict[str, None]()
    for near, text, names in file.statements_near(line):
        variables = names & file.all_names
        unknown = variables - known
        if not unknown:
            same[text] = None
        if len(unknown) < 2 and abs(near - line) < NEAR:
            for old, new in itertools.product(sorted(unknown or variables), likely):
                changed[renamed(text, old, new)] = None
        if len(same) >= 3 * MOST_NAMES and len(changed) >= 2 * MOST_NAMES:
            break
    return dict.fromkeys([*list(same)[: 3 * MOST_NAMES], *list(changed)[: 2 * MOST_NAMES]])


def is_value(node: Node) -> bool:
    """Return whether a node is a value that code reads, not a name or the target of an assignment."""
    above = node.parent
    if above is None or "param" in above.type or above.type in FUNCTIONS:
        return False
    if is_field(node, "function", "name", "label", "type", "constructor", "key", "field", "property"):
        return False
    return above.type == "binary_expression" or not is_field(node, "left")


def calls(file: File, node: Node) -> Iterator[Change]:
    """Yield calls with one argument, and of methods without arguments, that the file has elsewhere."""
    start, end = file.tree.span(node)
    text = file.tree.text_of(node)
    if not is_value(node) or len(text) > MOST_TEXT or "\n" in text:
        return
    if not is_field(node, "object", "operand"):
        for function, seen in itertools.islice(file.functions_of_one.items(), 2 * MOST_NAMES):
            if not text.startswith(f"{function}("):
                yield start, end, f"{function}({text})", "call added", 1.6 if text in seen else 2.3
    for method, seen in itertools.islice(file.methods_of_none.items(), MOST_NAMES):
        if not text.endswith(f".{method}()"):
            yield end, end, f".{method}()", "call added", 1.6 if text in seen else 2.3


def conditions(file: File, node: Node) -> Iterator[Change]:
    """Yield conditions of the file about other variables, each about a variable of this condition."""
    if not node.is_named or node.type == "parenthesized_expression" or not is_condition(node):
        return
    start, end = file.tree.span(node)
    text = file.tree.text_of(node)
    known = file.known(node)
    own = [name for name in dict.fromkeys(identifiers(text)) if name in file.all_names]
    for operand in {text, *(file.tree.text_of(each) for each in operands_of(node, logical_sign(node)))}:
        for (other, sign), _ in file.partners.get(operand, Counter()).most_common(MOST_NAMES):
            if other not in text:
                yield from beside(start, end, other, sign, 1.5)
    others = other_conditions(file, known, own)
    shown = sorted((cost, len(other), other) for other, cost in others.items() if other not in text)
    for cost, _, other in shown[:MOST_CONDITIONS]:
        yield from beside(start, end, other, "&&", cost)
        yield from beside(start, end, other, "||", cost + 0.2)


def beside(start: int, end: int, other: str, sign: str, cost: float) -> Iterator[Change]:
    """Yield a condition before and after another one."""
    yield start, start, f"{other} {sign} ", "missing condition", cost
    yield end, end, f" {sign} {other}", "missing condition", cost


def other_conditions(file: File, known: frozenset[str], own: list[str]) -> dict[str, float]:
    """Return conditions of the file with their costs: as they are, and about the variables `own`.

    Args:
        known: The variables that the code can use.
    """
    variables = {text: names & file.all_names for text, names in file.conditions.items()}
    usable = [text for text, names in variables.items() if names <= known]
    others = dict[str, float]()
    for other in usable[: 2 * MOST_NAMES]:
        others[other], others[opposite(other)] = 2.2, 2.3
    for other, names in variables.items():
        for old, new in itertools.product(sorted(names), own):
            if old != new and names <= known | {old}:
                changed = renamed(other, old, new)
                for text, more in ((changed, 0.0), (opposite(changed), 0.1)):
                    others.setdefault(text, 2.2 + more)
                    for near in with_near_numbers(text):
                        others.setdefault(near, 2.5 + more)
    return others


def with_near_numbers(text: str) -> Iterator[str]:
    """Yield a condition with each of its numbers one more and one less."""
    for number in re.findall(NUMBER, text):
        for value in sorted({int(number) + 1, abs(int(number) - 1)}):
            yield re.sub(NUMBER.replace(r"\d+", number), str(value), text)


def ends_of_texts(file: File, node: Node) -> Iterator[Change]:
    """Yield longer texts that begin with a text: those of the file, and with one more character."""
    if node.parent is not None and "import" in node.parent.type:
        return
    start, end = file.tree.span(node)
    text = file.tree.text_of(node)
    for other in file.strings:
        if other != text and other[:-1].startswith(text[:-1]):
            yield start, end, other, "constant", 1.5
    for place, last in enumerate(file.ends_of_texts[:MOST_ENDS]):
        yield end - 1, end - 1, last, "constant", 2.1 + 0.04 * place


ADDITIONS: tuple[Rewrite, ...] = (
    (types(""), statements),
    (VALUES, calls),
    (types(""), conditions),
    (STRINGS, ends_of_texts),
)
