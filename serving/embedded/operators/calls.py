"""Mutate calls: swap, add or drop arguments, call a sibling function, add a wrapper."""

import ast
from collections.abc import Iterator

from m3agent.serving.embedded.operators.arithmetic import atom, numeric
from m3agent.serving.embedded.operators.base import Alternative, Place
from m3agent.serving.embedded.source import parameters

SIBLINGS: tuple[tuple[str, ...], ...] = (
    ("min", "max", "sum"),
    ("any", "all"),
    ("sum", "len", "max"),
    ("sorted", "reversed", "list", "set"),
    ("list", "tuple", "set", "sorted"),
    ("int", "float", "round", "str", "bool"),
    ("floor", "ceil", "trunc"),
    ("append", "extend", "add", "appendleft", "insert"),
    ("add", "discard", "update", "append"),
    ("update", "setdefault"),
    ("remove", "discard", "pop"),
    ("pop", "popleft", "get", "popitem"),
    ("startswith", "endswith"),
    ("lower", "upper", "title", "capitalize", "casefold", "swapcase"),
    ("keys", "values", "items"),
    ("strip", "lstrip", "rstrip"),
    ("find", "rfind", "index", "rindex"),
    ("split", "rsplit", "splitlines", "partition"),
    ("partition", "rpartition"),
    ("ljust", "rjust", "center", "zfill"),
    ("union", "intersection", "difference", "symmetric_difference"),
    ("issubset", "issuperset", "isdisjoint"),
    ("isdigit", "isalpha", "isalnum", "isnumeric", "isdecimal", "isspace"),
    ("isupper", "islower", "istitle"),
    ("removeprefix", "removesuffix"),
    ("replace", "strip"),
    ("match", "search", "fullmatch", "findall"),
    ("heappush", "heappop", "heappushpop", "heapreplace"),
    ("bisect_left", "bisect_right", "bisect"),
    ("insort_left", "insort_right", "insort"),
    ("sort", "reverse"),
    ("zip", "zip_longest"),
    ("permutations", "combinations", "product", "combinations_with_replacement"),
    ("islice", "takewhile", "dropwhile", "filterfalse"),
    ("sin", "cos", "tan"),
    ("log", "log2", "log10", "log1p", "exp"),
    ("mean", "median", "mode"),
    ("stdev", "pstdev"),
    ("variance", "pvariance"),
    ("isinstance", "issubclass"),
    ("getattr", "hasattr"),
    ("enumerate", "range"),
    ("map", "filter"),
    ("copy", "deepcopy"),
    ("loads", "load"),
    ("dumps", "dump"),
    ("seconds", "total_seconds"),
    ("weekday", "isoweekday"),
    ("now", "utcnow", "today"),
    ("read", "readline", "readlines"),
    ("write", "writelines"),
    ("encode", "decode"),
    ("ord", "chr"),
    ("bin", "hex", "oct"),
    ("divmod", "pow"),
    ("most_common", "elements"),
    ("exists", "is_file", "is_dir"),
)

METHODS_OF: dict[str, tuple[str, ...]] = {
    "str": ("strip()", "lower()", "upper()", "split()", "rstrip()", "lstrip()", "title()", "casefold()"),
    "dict": ("items()", "values()", "keys()", "copy()"),
    "list": ("copy()",),
    "set": ("copy()",),
}

WRAPPERS: tuple[tuple[str, float], ...] = (
    ("int", 3.2),
    ("str", 3.2),
    ("float", 3.4),
    ("list", 3.2),
    ("abs", 3.2),
    ("len", 3.2),
    ("sorted", 3.2),
    ("set", 3.4),
    ("tuple", 3.6),
    ("dict", 4.0),
    ("round", 3.8),
    ("sum", 4.0),
    ("max", 4.2),
    ("min", 4.2),
    ("reversed", 4.0),
    ("bool", 4.2),
    ("enumerate", 4.0),
    ("any", 4.4),
    ("all", 4.4),
)


def siblings(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose a function or method of the same family."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
        prefix, name = "", node.id
        if name in place.names(node) or name in place.module.functions:
            return
    elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
        prefix, name = place.text(node.value) + ".", node.attr
    else:
        return
    for family in SIBLINGS:
        if name in family:
            for other in family:
                if other != name:
                    yield Alternative(prefix + other, "sibling function", 1.6)


def _written(node: ast.Call, place: Place, arguments: list[str]) -> str:
    return f"{place.text(node.func)}({', '.join(arguments)})"


def arguments(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose swapped, dropped or added arguments."""
    if not isinstance(node, ast.Call):
        return
    texts = [place.text(argument) for argument in node.args]
    keywords = [place.text(keyword) for keyword in node.keywords]
    for index in range(len(texts) - 1):
        swapped = [*texts[:index], texts[index + 1], texts[index], *texts[index + 2 :]]
        yield Alternative(_written(node, place, swapped + keywords), "arguments swapped", 1.6)
    if len(texts) == 3:
        for order in ((2, 1, 0), (1, 2, 0), (2, 0, 1)):
            yield Alternative(
                _written(node, place, [texts[at] for at in order] + keywords), "arguments swapped", 2.6
            )
    for index in range(len(texts) + len(keywords)):
        everything = texts + keywords
        cost = 2.6 if len(everything) > 1 else 3.2
        yield Alternative(
            _written(node, place, everything[:index] + everything[index + 1 :]), "argument dropped", cost
        )
    yield from _keyword_swaps(place, node)
    yield from _units(place, node)
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    yield from _known(place, node, name, texts, keywords)
    yield from _added(place, node, name, texts, keywords)


def _keyword_swaps(place: Place, node: ast.Call) -> Iterator[Alternative]:
    for index, keyword in enumerate(node.keywords):
        for other in node.keywords[index + 1 :]:
            if keyword.arg and other.arg:
                start, _ = place.source.span(node)
                text = place.text(node)
                first, second = (place.source.span(one.value) for one in (keyword, other))
                changed = (
                    text[: first[0] - start]
                    + place.text(other.value)
                    + text[first[1] - start : second[0] - start]
                    + place.text(keyword.value)
                    + text[second[1] - start :]
                )
                yield Alternative(changed, "arguments swapped", 1.8)


UNITS = ("weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds")


def _units(place: Place, node: ast.Call) -> Iterator[Alternative]:
    start, _ = place.source.span(node)
    text = place.text(node)
    for keyword in node.keywords:
        if keyword.arg in UNITS:
            at = place.source.span(keyword)[0] - start
            for unit in UNITS:
                if unit != keyword.arg:
                    yield Alternative(text[:at] + unit + text[at + len(keyword.arg) :], "unit", 2.4)


def _known(
    place: Place, node: ast.Call, name: str, texts: list[str], keywords: list[str]
) -> Iterator[Alternative]:
    """Propose arguments that are often missing in calls of well-known functions."""
    if name in ("sorted", "sort") and not any(text.startswith("reverse") for text in keywords):
        yield Alternative(_written(node, place, [*texts, *keywords, "reverse=True"]), "argument added", 2.2)
    if name in ("sorted", "sort", "min", "max") and not any(text.startswith("key") for text in keywords):
        for key in (
            "len",
            "str.lower",
            "abs",
            "lambda item: item[0]",
            "lambda item: item[1]",
            "lambda item: -item[1]",
        ):
            yield Alternative(_written(node, place, [*texts, *keywords, f"key={key}"]), "argument added", 3.4)
        for attribute in place.module.all_attributes[:12]:
            key = f"key=lambda item: item.{attribute}"
            yield Alternative(_written(node, place, [*texts, *keywords, key]), "argument added", 4.2)
    if name in ("min", "max") and not keywords and len(texts) == 1:
        for default in ("0", "None"):
            yield Alternative(_written(node, place, [*texts, f"default={default}"]), "argument added", 3.0)
    if name == "get" and len(texts) == 1:
        for default in ("0", "[]", "''", "{}", "False", "1", "()", "set()", "0.0"):
            yield Alternative(_written(node, place, [*texts, default]), "argument added", 2.6)
        if isinstance(node.func, ast.Attribute):
            yield Alternative(f"{place.text(node.func.value)}[{texts[0]}]", "lookup", 2.6)
    if name == "pop" and isinstance(node.func, ast.Attribute):
        if not texts:
            yield Alternative(_written(node, place, ["0"]), "argument added", 1.8)
            yield Alternative(_written(node, place, ["-1"]), "argument added", 2.8)
        else:
            yield Alternative(_written(node, place, [*texts, "None"]), "argument added", 2.6)
    if name in (
        "range",
        "enumerate",
        "round",
        "sum",
        "strip",
        "split",
        "join",
        "isinstance",
        "next",
        "getattr",
        "zip",
    ):
        extra = {
            "range": ("1", "-1", "2"),
            "enumerate": ("1", "start=1"),
            "round": ("2", "1"),
            "sum": ("0", "1", "[]"),
            "next": ("None",),
            "split": ("','", "' '", "'\\n'", "None, 1", "':'", "'='", "'-'", "'/'", "'.'"),
            "strip": ("'.'", "','", "'\"'"),
            "getattr": ("None",),
        }.get(name, ())
        for value in extra:
            yield Alternative(_written(node, place, [*texts, *keywords, value]), "argument added", 2.4)
        if name in ("split", "rsplit", "replace") and len(texts) in (1, 2):
            yield Alternative(_written(node, place, [*texts, "1"]), "argument added", 2.4)
    if name == "range":
        yield from _ranges(place, node, texts)


def _ranges(place: Place, node: ast.Call, texts: list[str]) -> Iterator[Alternative]:
    if len(texts) == 1:
        yield Alternative(_written(node, place, ["1", texts[0]]), "range bounds", 1.8)
        yield Alternative(_written(node, place, ["1", f"{texts[0]} + 1"]), "range bounds", 2.0)
        for name in place.names(node):
            yield Alternative(_written(node, place, [name, texts[0]]), "range bounds", 3.0)
            yield Alternative(_written(node, place, [f"{name} + 1", texts[0]]), "range bounds", 3.2)
        yield Alternative(_written(node, place, [f"{texts[0]} - 1", "-1", "-1"]), "range bounds", 3.4)
    elif len(texts) == 2:
        yield Alternative(_written(node, place, [texts[1]]), "range bounds", 2.4)
        yield Alternative(_written(node, place, [f"{texts[0]} + 1", f"{texts[1]} + 1"]), "range bounds", 2.8)
        yield Alternative(_written(node, place, [f"{texts[0]} - 1", f"{texts[1]} - 1"]), "range bounds", 3.0)


def _added(
    place: Place, node: ast.Call, name: str, texts: list[str], keywords: list[str]
) -> Iterator[Alternative]:
    function = place.module.functions.get(name)
    if function is not None:
        taken = len(texts) + len(keywords)
        known = parameters(function)
        for missing in known[len(texts) :]:
            if not any(keyword.arg == missing for keyword in node.keywords):
                for value in place.names(node):
                    if value == missing:
                        cost = 1.8 if taken < len(known) else 3.0
                        yield Alternative(
                            _written(node, place, [*texts, *keywords, f"{missing}={value}"]),
                            "argument added",
                            cost,
                        )
    if name in ("range", "isinstance", "print"):
        return
    methods = name in place.module.methods
    base = 3.6 if function is not None or methods else 4.4
    if "TypeError" in place.hints.errors:
        base -= 1.2
    for value in place.names(node):
        if value not in texts:
            cost = base - (1.0 if value in place.scope.unread else 0)
            yield Alternative(_written(node, place, [*texts, value, *keywords]), "argument added", cost)
            if texts:
                yield Alternative(
                    _written(node, place, [value, *texts, *keywords]), "argument added", cost + 0.4
                )


def wrappers(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose a conversion, copy or method call around a value."""
    if isinstance(node, ast.Constant | ast.Starred | ast.Slice | ast.JoinedStr | ast.Compare):
        return
    if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        return
    parent = place.parent(node)
    if isinstance(parent, ast.Attribute | ast.Expr | ast.keyword | ast.Slice | ast.FormattedValue):
        return
    if isinstance(parent, ast.Call) and parent.func is node:
        return
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return
    text = place.text(node)
    if "\n" in text:
        return
    number = numeric(place, node)
    outer = parent.func.id if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) else ""
    typing = -0.8 if place.hints.errors & {"TypeError", "AttributeError"} else 0.0
    for wrapper, cost in WRAPPERS:
        collection = wrapper in (
            "list",
            "len",
            "sorted",
            "set",
            "tuple",
            "dict",
            "sum",
            "max",
            "min",
            "reversed",
            "enumerate",
            "any",
            "all",
        )
        if (number and collection) or outer == wrapper or (number is False and wrapper in ("abs", "round")):
            continue
        yield Alternative(f"{wrapper}({text})", "missing conversion", cost + typing)
        if wrapper == "round":
            yield Alternative(f"round({text}, 2)", "missing conversion", cost + 0.2 + typing)
    kinds = place.scope.kinds(node.id) if isinstance(node, ast.Name) else set()
    if number:
        return
    for kind, methods in METHODS_OF.items():
        if kinds and kind not in kinds:
            continue
        for method in methods:
            yield Alternative(
                f"{atom(text)}.{method}", "missing method call", (3.2 if kinds else 4.0) + typing
            )
    if isinstance(node, ast.Name) and not kinds & {"int", "float", "str", "bool"}:
        for attribute in place.module.attributes.get(node.id, []):
            yield Alternative(f"{text}.{attribute}", "missing attribute", 3.6 + typing)


def awaits(place: Place, node: ast.expr) -> Iterator[Alternative]:
    """Propose a missing ``await``."""
    inside = isinstance(place.scope.function, ast.AsyncFunctionDef)
    if inside and isinstance(node, ast.Call) and not isinstance(place.parent(node), ast.Await):
        yield Alternative(f"await {place.text(node)}", "missing await", 2.4)
