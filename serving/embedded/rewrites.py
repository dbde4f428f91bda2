"""General edits of Go, JavaScript and TypeScript that reverse ordinary programming mistakes.

Each operator gets a parsed file and one of its nodes, and yields edits with the kind of change and its cost: smaller for a
more ordinary mistake, as for Python's operators (`m3agent.serving.embedded.operators`).
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from m3agent.serving.embedded.additions import ADDITIONS, opposite
from m3agent.serving.embedded.code_file import (
    FIELDS,
    MOST_NAMES,
    NUMBERS,
    STATEMENTS,
    STRINGS,
    Change,
    File,
    Rewrite,
)
from m3agent.serving.embedded.mutants import rank
from m3agent.serving.embedded.operators.base import TABLES, Hints, Mutation
from m3agent.serving.embedded.source import Edit
from m3agent.serving.embedded.syntax import (
    FUNCTIONS,
    NAMES,
    SyntaxTree,
    before_dot,
    field,
    function_of,
    is_condition,
    is_field,
    line_of,
    types,
)

if TYPE_CHECKING:
    from tree_sitter import Node

TABLE = TABLES["curly"]
COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!=", "===", "!=="})
WITH_SIGNS = types(
    "binary_expression assignment_statement assignment_expression augmented_assignment_expression "
    "update_expression inc_statement dec_statement"
)
"""Nodes with an operator that can be another one."""
COUNTS = NAMES | types("binary_expression call_expression member_expression selector_expression")
"""Nodes that may be one more or less, as an index, a bound or an argument."""
JUMPS = {"break_statement": "break", "continue_statement": "continue"}
ZEROS = {"string": '""', "bool": "false", "error": "nil"}
PAIRS = [pair.split() for pair in TABLE["pairs"].split(",")]


def similar(name: str, others: Iterator[str] | list[str]) -> list[str]:
    """Return the names that are spelt most like `name`."""
    return difflib.get_close_matches(name, [other for other in others if other != name], MOST_NAMES, 0.55)


def paired(name: str) -> list[str]:
    """Return `name` with a word replaced by its counterpart: `lastIndexOf`, `HasSuffix`."""
    found = []
    for pair in PAIRS:
        for one, other in (pair, pair[::-1]):
            for old, new in ((one, other), (one.title(), other.title())):
                pattern = rf"(?<![a-z]){old}(?![a-z])" if old.islower() else rf"{old}(?![a-z])"
                changed = re.sub(pattern, new, name)
                if changed != name:
                    found.append(changed)
    if re.search("[Ll]astIndex", name):
        found.append(name.replace("lastIndex", "index").replace("LastIndex", "Index"))
    elif re.match("[Ii]ndex", name):
        found.append(("lastI" if name[0] == "i" else "LastI") + name[1:])
    return list(dict.fromkeys(found))


def signs(file: File, node: Node) -> Iterator[Change]:
    """Yield other operators, jumps and truth values."""
    start, end = file.tree.span(node)
    if node.parent is not None and (node.parent.type in WITH_SIGNS or node.type in JUMPS):
        text = JUMPS.get(node.type, node.type)
        for other, cost in (
            TABLE["instead"].get(text, {}).items() if node.is_named == (node.type in JUMPS) else ()
        ):
            if not (file.tree.is_go and other in TABLE["only_javascript"]):
                kind = "comparison" if text in COMPARISONS else "operator"
                yield start, start + len(text), other, kind, cost
    if node.type in ("true", "false"):
        for other, cost in TABLE["instead"][node.type].items():
            yield start, end, other, "truth value", cost


def operands(file: File, node: Node) -> Iterator[Change]:
    """Yield dropped and swapped operands, and off by one."""
    tree = file.tree
    start, end = tree.span(node)
    left, sign, right = (field(node, name) for name in ("left", "operator", "right"))
    if left is None or sign is None or right is None:
        return
    texts = {"left": tree.text_of(left), "right": tree.text_of(right)}
    for pattern, kind, cost in TABLE["operands"].get(sign.type, ()):
        yield start, end, pattern.format(**texts), kind, cost
    if sign.type in COMPARISONS and right.type not in {*NUMBERS, *STRINGS, "nil", "null", "undefined"}:
        place = tree.offset(right.end_byte)
        yield place, place, " + 1", "off by one", 1.4
        yield place, place, " - 1", "off by one", 1.4


def branches(file: File, node: Node) -> Iterator[Change]:
    """Yield swapped and dropped branches of a conditional expression."""
    start, end = file.tree.span(node)
    roles = (field(node, name) for name in ("condition", "consequence", "alternative"))
    test, one, other = (file.tree.text_of(part) if part is not None else "" for part in roles)
    yield start, end, f"{test} ? {other} : {one}", "branches swapped", 1.2
    yield start, end, one, "condition removed", 2.2
    yield start, end, other, "condition removed", 2.2


def conditions(file: File, node: Node) -> Iterator[Change]:
    """Yield negated conditions, and conditions that guard against a missing value."""
    tree = file.tree
    start, end = tree.span(node)
    if node.type == "unary_expression" and node.children[0].type == "!":
        yield start, tree.offset(node.children[1].start_byte), "", "negation", 0.8
    if not node.is_named or node.type == "parenthesized_expression" or not is_condition(node):
        return
    text = tree.text_of(node)
    if node.type == "binary_expression":
        yield start, end, f"!({text})", "negation", 1.6
    elif node.type != "unary_expression":
        yield start, end, f"!{text}", "negation", 1.0
    likely = itertools.chain.from_iterable((near, opposite(near)) for near in file.conditions_like(node))
    for other in (other for other in likely if other not in text):
        yield start, start, f"{other} && ", "missing condition", 1.8
        yield start, start, f"{other} || ", "missing condition", 2.1
    if is_field(node, "condition") or (node.parent and is_field(node.parent, "condition")):
        yield from decided(file, node)


def decided(file: File, node: Node) -> Iterator[Change]:
    """Yield a constant condition, and checks that a value is there, for the condition of a statement."""
    tree, text = file.tree, file.tree.text_of(node)
    start, end = tree.span(node)
    yield start, end, "true", "condition", 2.4
    yield start, end, "false", "condition", 2.4
    for name in dict.fromkeys(re.findall(r"(?<![\w.\"'`])([A-Za-z_$][\w$]*)(?=[.\[])", text)):
        one, other = (f"{name} != nil", f"{name} == nil") if tree.is_go else (name, f"!{name}")
        inner = f"({text})" if "||" in text or "??" in text or "?" in text else text
        yield start, end, f"{one} && {inner}", "missing guard", 1.9
        yield start, end, f"{other} || {text}", "missing guard", 2.1


def _is_term(node: Node) -> bool:
    """Tell whether `node` is added or subtracted: instead of zero, `operands` leaves such a term out."""
    parent = node.parent
    sign = None if parent is None else field(parent, "operator")
    return is_field(node, "right") and sign is not None and sign.type in ("+", "-")


def numbers(file: File, node: Node) -> Iterator[Change]:
    """Yield other numbers, and off by one for what is an index, a bound or an argument."""
    start, end = file.tree.span(node)
    text = file.tree.text_of(node)
    if node.type in NUMBERS and re.fullmatch(r"\d+", text):
        value = int(text)
        others = ((value + 1, 1.0), (value - 1, 1.0), (0, 1.2), (1, 1.4), (2 * value, 2.2), (10, 2.4))
        for number, cost in others:
            if number != value and not (number == 0 and _is_term(node)):
                yield start, end, str(number), "constant", cost
    if node.type in NUMBERS:
        yield from ((start, end, f"{number}", "constant", 1.8) for number in file.hints.numbers)
        return
    given = node.parent is not None and node.parent.type in ("arguments", "argument_list") and node.is_named
    if node.type in COUNTS and (given or is_field(node, "index", "start", "end")):
        for sign in ("+", "-"):
            yield end, end, f" {sign} 1", "off by one", 1.5


def strings(file: File, node: Node) -> Iterator[Change]:
    """Yield other texts of the file, texts that the issue or the failure quotes, and the empty text."""
    if node.parent is not None and "import" in node.parent.type:
        return
    start, end = file.tree.span(node)
    text = file.tree.text_of(node)
    mark = text[:1]
    for quoted in file.hints.strings:
        if mark not in quoted and "\\" not in quoted:
            yield start, end, f"{mark}{quoted}{mark}", "constant", 1.7
    for other in similar(text, file.strings):
        yield start, end, other, "constant", 2.0
    alike = [other for other in file.strings if abs(len(other) - len(text)) <= 1]
    for other in alike[: 2 * MOST_NAMES]:
        yield start, end, other, "constant", 2.3
    yield start, end, 2 * mark, "constant", 2.4


def fields(file: File, node: Node) -> Iterator[Change]:
    """Yield other fields, and the value itself in place of its field."""
    tree, above = file.tree, node.parent
    before = before_dot(above) if above is not None and above.type != "pair" else None
    if above is None or before is None:
        return
    start, end = tree.span(node)
    text = tree.text_of(node)
    owned = [name for name in file.fields.get(tree.text_of(before), ()) if name != text]
    for other in paired(text):
        yield start, end, other, "attribute", 1.1
    for other in dict.fromkeys([*similar(text, owned), *owned[:MOST_NAMES]]):
        yield start, end, other, "attribute", 1.7
    for other in similar(text, file.fields.get("", [])):
        yield start, end, other, "attribute", 2.0
    if not is_field(above, "function", "left"):
        yield *tree.span(above), tree.text_of(before), "attribute dropped", 2.3


def names(file: File, node: Node) -> Iterator[Change]:
    """Yield other variables and functions."""
    start, end = file.tree.span(node)
    text, above = file.tree.text_of(node), node.parent.type if node.parent is not None else ""
    if is_field(node, "name", "label", "type", "constructor") or "param" in above or above in FUNCTIONS:
        return
    if is_field(node, "function"):
        others = [*paired(text), *similar(text, file.called), *file.called[:MOST_NAMES]]
        for other in dict.fromkeys(others):
            yield start, end, other, "function", 1.8
        return
    known = [name for name in file.names(node) if name not in (text, "_")]
    nearest = list(dict.fromkeys([*similar(text, known)[:2], *known]))[: 2 * MOST_NAMES]
    for place, other in enumerate(nearest):
        yield start, end, other, "variable", 1.7 + 0.06 * place
    if above in ("return_statement", "expression_list"):
        yield start, end, file.nil, "constant for variable", 2.2


def calls(file: File, node: Node) -> Iterator[Change]:
    """Yield swapped and dropped arguments, dropped calls, and missing `await`."""
    tree = file.tree
    function, given = field(node, "function"), field(node, "arguments")
    if function is None or given is None:
        return
    start, end = tree.span(node)
    arguments = [child for child in given.named_children if child.type != "comment"]
    for one, other in itertools.pairwise(arguments):
        between = tree.text[tree.offset(one.end_byte) : tree.offset(other.start_byte)]
        place = tree.offset(one.start_byte), tree.offset(other.end_byte)
        yield *place, tree.text_of(other) + between + tree.text_of(one), "arguments swapped", 1.2
    if len(arguments) == 1:
        yield start, end, tree.text_of(arguments[0]), "call dropped", 2.0
    before = before_dot(function)
    if before is not None:
        yield start, end, tree.text_of(before), "call dropped", 2.1
    if len(arguments) > 1:
        place = tree.offset(arguments[-2].end_byte), tree.offset(arguments[-1].end_byte)
        yield *place, "", "argument dropped", 2.2
    above = function_of(node)
    is_async = above is not None and above.children[0].type == "async"
    if is_async and node.parent is not None and node.parent.type != "await_expression":
        yield start, start, "await ", "missing await", 1.6


def statements(file: File, node: Node) -> Iterator[Change]:
    """Yield deleted statements and branches, and in Go the missing check of an error."""
    tree = file.tree
    start, end = tree.span(node)
    if node.type in STATEMENTS and node.parent is not None and not is_field(node, "initializer", "update"):
        yield start, end, "" if tree.is_go else ";", "statement deleted", 2.0
    if node.type == "if_statement" and field(node, "alternative") is None:
        body = field(node, "consequence")
        yield start, end, "" if tree.is_go else ";", "statement deleted", 2.4
        if body is not None and body.type in ("block", "statement_block"):
            yield start, tree.offset(body.start_byte), "", "condition removed", 2.3
    if node.type == "short_var_declaration" and re.search(r"\berr\s*:=", tree.text_of(node)):
        after = tree.text[end : end + 80].lstrip()
        function = function_of(node)
        if function is not None and not after.startswith(("if err", "; ")):
            values = ", ".join([*zero_values(tree, function)[:-1], "err"])
            yield end, end, f"\nif err != nil {{\nreturn {values}\n}}", "missing guard", 1.4


def guards(file: File, node: Node) -> Iterator[Change]:
    """Yield checks of parameters at the start of a function."""
    tree = file.tree
    if not is_field(node, "body"):
        return
    function = node.parent
    if function is None or function.type not in FUNCTIONS:
        return
    listed = field(function, "parameters")
    place = tree.offset(node.start_byte) + 1
    body = tree.text_of(node)
    for parameter in listed.named_children[:4] if listed is not None else ():
        name = field(parameter, "name") or parameter
        if name.type != "identifier":
            continue
        text = tree.text_of(name)
        if tree.is_go:
            if test := _emptiness(tree, field(parameter, "type")).format(text):
                returned = f"return {', '.join(zero_values(tree, function))}".strip()
                yield place, place, f"\nif {test} {{\n{returned}\n}}\n", "missing guard", 2.6
        elif re.search(rf"\b{re.escape(text)}[.\[]", body):
            for value in ("", f" {text}", " false", " ''"):
                yield place, place, f" if ({text} == null) return{value};", "missing guard", 2.6


def _emptiness(tree: SyntaxTree, kind: Node | None) -> str:
    """Return Go's condition for an empty value of a type, with `{}` for the value's name. Return an empty text if the type has none."""
    if kind is None:
        return ""
    return str(TABLE["empty"].get(kind.type, '{} == ""' if tree.text_of(kind) == "string" else ""))


def zero_values(tree: SyntaxTree, function: Node) -> list[str]:
    """Return the zero values of a Go function's results."""
    result = field(function, "result")
    if result is None:
        return []
    kinds = [result] if result.type != "parameter_list" else result.named_children
    return [zero_value(field(each, "type") or each, tree) for each in kinds]


def zero_value(kind: Node, tree: SyntaxTree) -> str:
    """Return the zero value of a type in Go."""
    text = tree.text_of(kind)
    if text in ZEROS:
        return ZEROS[text]
    if re.fullmatch(r"u?int\d*|float\d+|byte|rune|time\.Duration", text):
        return "0"
    return f"{text}{{}}" if kind.type == "type_identifier" else "nil"


REWRITES: tuple[Rewrite, ...] = (
    (types(""), signs),
    (types("binary_expression"), operands),
    (types("ternary_expression"), branches),
    (types(""), conditions),
    (types(""), numbers),
    (STRINGS, strings),
    (FIELDS, fields),
    (NAMES | types("nil null undefined"), names),
    (types("call_expression"), calls),
    (types(""), statements),
    (types("block statement_block"), guards),
    *ADDITIONS,
)


def propose_plain(
    path: str, text: str, suspects: Mapping[int, float], hints: Hints, most: int
) -> list[tuple[float, Mutation]]:
    """Return ``(suspicion, mutation)`` for the best distinct changes of a file, best first.

    Only nodes that begin on a line in `suspects` are changed.
    """
    file = File(SyntaxTree(path, text), hints)
    found: dict[Edit, tuple[float, Mutation]] = {}
    for node in file.tree.nodes():
        line = line_of(node)
        suspicion = suspects.get(line, 0.0)
        if suspicion <= 0:
            continue
        for kinds, rewrite in REWRITES:
            changes = rewrite(file, node) if not kinds or node.type in kinds else ()
            for start, end, new, operator, cost in changes:
                edit = Edit(start, end, new)
                known = found.get(edit)
                if text[start:end] != new and (known is None or cost < known[1].cost):
                    found[edit] = suspicion, Mutation((edit,), line, operator, cost)
    return sorted(found.values(), key=lambda one: rank(one[1].cost, one[0]))[:most]
