"""Find what a statement can refer to: variables, attributes, functions, and the types of their values."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property

from m3agent.serving.embedded.source import (
    FUNCTIONS,
    Function,
    SourceFile,
    first_line,
    names_in,
    own_nodes,
    own_parameters,
)

Kinds = Mapping[str, Mapping[str, Iterable[str]]]
"""Type names seen at run time, by ``path:first line`` of a function and by variable."""

LITERAL_KINDS = {
    ast.List: "list",
    ast.ListComp: "list",
    ast.Dict: "dict",
    ast.DictComp: "dict",
    ast.Set: "set",
    ast.SetComp: "set",
    ast.Tuple: "tuple",
    ast.JoinedStr: "str",
}
CONSTRUCTORS = frozenset(
    ("list", "dict", "set", "tuple", "str", "int", "float", "deque", "Counter", "defaultdict")
)


class Module:
    """Names and constants of one source file, collected once."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        tree = source.tree
        self.functions: dict[str, Function] = {}
        self.classes: list[str] = []
        self.variables: list[str] = []
        self.imports: list[str] = []
        for node in tree.body:
            self._take_statement(node)
        attributes = defaultdict[str, dict[str, None]](dict)
        self.methods: set[str] = set()
        self.keywords: dict[str, None] = {}
        for inner in ast.walk(tree):
            match inner:
                case ast.Attribute(value=ast.Name(id=name)):
                    attributes[name][inner.attr] = None
                case ast.keyword(arg=str() as name):
                    self.keywords[name] = None
                case ast.ClassDef():
                    self.methods |= {item.name for item in inner.body if isinstance(item, FUNCTIONS)}
        self.attributes = {name: list(seen) for name, seen in attributes.items()}
        """The attributes that are taken of each variable, in order of appearance."""

    def _take_statement(self, node: ast.stmt) -> None:
        """Take the names that a statement of the module binds."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions[node.name] = node
            case ast.ClassDef():
                self.classes.append(node.name)
            case ast.Assign(targets=targets):
                self.variables += [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                self.variables.append(name)
            case ast.Import() | ast.ImportFrom():
                self.imports += [(alias.asname or alias.name).split(".")[0] for alias in node.names]

    @cached_property
    def constants(self) -> dict[type, list[object]]:
        """The distinct constants of the file (without docstrings), by type, in order of appearance."""
        nodes = ast.walk(self.source.tree)
        return constants_of(node for node in nodes if not isinstance(self.source.parents.get(node), ast.Expr))

    @cached_property
    def all_attributes(self) -> list[str]:
        """Every attribute name of the file, sorted."""
        return sorted({name for names in self.attributes.values() for name in names})


class Scope:
    """The names that are visible inside one function, or at module level if `function` is None."""

    def __init__(self, module: Module, function: Function | None, kinds: Kinds) -> None:
        self.module = module
        self.function = function
        source = module.source
        chain = [function, *source.functions(function)] if function is not None else []
        self.parameters = own_parameters(function) if function else []
        self.first_line: dict[str, int] = {}
        self._kinds: dict[str, set[str]] = {}
        for depth, scope in enumerate(chain):
            self._gather(scope, depth, kinds)
        self.variables = list(self.first_line)
        self.owner = source.owner(function) if function is not None else None
        self.is_method = bool(function and self.owner and any(function is item for item in self.owner.body))

    def _gather(self, scope: Function, depth: int, kinds: Kinds) -> None:
        for name in own_parameters(scope):
            self.first_line.setdefault(name, 0)
        names = (node for node in own_nodes(scope) if isinstance(node, ast.Name))
        stores = (node for node in names if isinstance(node.ctx, ast.Store))
        for node in sorted(stores, key=lambda node: node.lineno):
            if not isinstance(self._binder(node), ast.comprehension):
                self.first_line.setdefault(node.id, 0 if depth else node.lineno)
        place = f"{self.module.source.path}:{first_line(scope)}"
        for name, seen in kinds.get(place, {}).items():
            self._kinds.setdefault(name, set()).update(seen)
        for statement in own_nodes(scope):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name), *_], value=value) if kind := literal_kind(value):
                    self._kinds.setdefault(name, set()).add(kind)

    def _binder(self, node: ast.AST) -> ast.AST | None:
        for above in self.module.source.ancestors(node):
            if not isinstance(above, ast.Tuple | ast.List | ast.Starred):
                return above
        return None

    def kinds(self, name: str) -> set[str]:
        """Return the type names that `name` is known to have had, without None."""
        return self._kinds.get(name, set()) - {"NoneType"}

    def alike(self, name: str, other: str) -> bool | None:
        """Tell whether two variables had values of the same types; None if unknown."""
        first, second = self.kinds(name), self.kinds(other)
        return bool(first & second) if first and second else None

    def before(self, line: int) -> list[str]:
        """Return the variables that may be bound when `line` runs."""
        return [name for name, first in self.first_line.items() if first <= line]

    @cached_property
    def unread(self) -> set[str]:
        """Variables of this function that no code reads: the faulty code often should have used them."""
        if self.function is None:
            return set()
        names = (node for node in ast.walk(self.function) if isinstance(node, ast.Name))
        read = {node.id for node in names if not isinstance(node.ctx, ast.Store)}
        return set(self.first_line) - read

    @cached_property
    def idle(self) -> set[str]:
        """Variables and ``self.`` attributes that start as a number or empty container and never change."""
        if self.function is None:
            return set()
        region = self.owner if self.is_method and self.owner is not None else self.function
        started = Counter[str]()
        changed: set[str] = set()
        for node in ast.walk(region):
            match node:
                case ast.Assign(targets=[target], value=value):
                    started[ast.unparse(target)] += 1
                    if not is_start(value) or isinstance(target, ast.Subscript | ast.Tuple):
                        changed.add(ast.unparse(target))
                case ast.AugAssign(target=target):
                    changed.add(ast.unparse(target))
                case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
                    changed.add(ast.unparse(value))
                case ast.Call(func=ast.Attribute(value=value)):
                    changed.add(ast.unparse(value))
        return {name for name, times in started.items() if times == 1 and name not in changed}

    @cached_property
    def self_attributes(self) -> list[str]:
        """Attributes that the surrounding class uses on ``self`` (without methods)."""
        if self.owner is None:
            return []
        methods, fields = set[str](), list[str]()
        for item in self.owner.body:
            match item:
                case ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[]):
                    methods.add(item.name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    fields.append(name)
                case _:
                    pass
        attributes = (node for node in ast.walk(self.owner) if isinstance(node, ast.Attribute))
        used = [node.attr for node in attributes if ast.unparse(node.value) == "self"]
        return [name for name in dict.fromkeys(used + fields) if name not in methods]

    @property
    def own_attributes(self) -> list[str]:
        """The attributes of ``self`` if the function is a method."""
        return self.self_attributes if self.is_method else []

    @cached_property
    def constants(self) -> dict[type, list[object]]:
        """The distinct constants of this function, by type."""
        return {} if self.function is None else constants_of(ast.walk(self.function))

    def comprehension_names(self, node: ast.AST) -> list[str]:
        """Return the loop names of the comprehensions and lambdas around `node`."""
        bound: list[str] = []
        for above in self.module.source.ancestors(node):
            if isinstance(above, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                for generator in above.generators:
                    bound += sorted(names_in(generator.target))
            elif isinstance(above, ast.Lambda):
                bound += [argument.arg for argument in above.args.args]
            elif isinstance(above, ast.stmt):
                break
        return bound


def constants_of(nodes: Iterable[ast.AST]) -> dict[type, list[object]]:
    """Return the distinct constants among `nodes`, by type, in order of appearance."""
    by_type: dict[type, list[object]] = {}
    for node in nodes:
        if isinstance(node, ast.Constant):
            seen = by_type.setdefault(type(node.value), [])
            if node.value not in seen:
                seen.append(node.value)
    return by_type


def literal_kind(value: ast.expr) -> str | None:
    """Return the type name of `value` if it is obvious."""
    match value:
        case ast.Constant():
            return type(value.value).__name__
        case ast.Call(func=ast.Name(id="len")):
            return "int"
        case ast.Call(func=ast.Name(id=name)) if name in CONSTRUCTORS:
            return name
        case _:
            return LITERAL_KINDS.get(type(value))


def is_start(value: ast.expr) -> bool:
    """Tell whether `value` is a usual start of a counter or a collection."""
    match value:
        case ast.Constant(value=start):
            return type(start) in (int, float)
        case ast.Call(func=ast.Name(), args=[]) | ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
        case _:
            return False
