"""Mutants of a Python file: its source with one expression or statement changed."""

from __future__ import annotations

import ast
import builtins
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ablate"
PARTS = PACKAGE / "parts"

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
SIBLINGS = {
    "sin": "cos", "cos": "sin", "tanh": "sigmoid", "sigmoid": "tanh", "exp": "expm1",
    "log": "log1p", "log2": "log", "sqrt": "abs", "rsqrt": "sqrt", "square": "abs", "abs": "neg",
    "mean": "sum", "var": "std", "std": "var", "ones": "zeros", "zeros": "ones", "min": "max",
    "max": "min", "outer": "add", "softmax": "log_softmax",
}  # fmt: skip
OTHERS = {
    "src": "tgt", "tgt": "src", "dev": "train", "train": "dev", "mean": "median", "sum": "mean",
    "median": "mean", "floor": "ceil", "ceil": "floor",
}  # fmt: skip
"""Splits, sides and averages that stand for one another, outside of parts."""
BUILTINS = {
    "sum": "max", "max": "min", "min": "max", "any": "all", "all": "any", "sorted": "list",
    "round": "float", "abs": "float",
}  # fmt: skip
FROZEN = ("seed", "epoch", "step", "round", "number")
"""Arguments that tell one draw, one pass or one measurement from another."""
HALVED = "lambda y: y * 0.5 + y.detach() * 0.5"

NOTE = "__note__"
"""The function of a number and a value that `instrumented` source calls; it returns the value."""

NOTE_CALL = "__note_call__"
"""The function of a qualified name that every function of `instrumented` source calls first."""

Node = ast.expr | ast.stmt
Change = tuple[str, str, object]
"""A description, a field of a node, and the new value of that field."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: Path
    line: int
    function: str  # the qualified name
    change: str  # what is done to which expression
    source: str  # the changed file

    @property
    def key(self) -> tuple[str, str, str]:
        """Return file, function and change, which stay the same while lines move."""
        home = PARTS if self.file.is_relative_to(PARTS) else PACKAGE
        return self.file.relative_to(home).as_posix(), self.function, self.change


def mutants(file: Path, with_gradient: set[int]) -> list[Mutant]:
    """Return every mutant of a file; those that do the same to like expressions are numbered.

    ``with_gradient`` has the numbers of expressions with a gradient, as `instrumented` has them.
    """
    mutants = [*_value_mutants(file), *_gradient_mutants(file, with_gradient)]
    counts: Counter[tuple[str, str]] = Counter()
    for number, mutant in enumerate(mutants):
        counts[mutant.function, mutant.change] += 1
        n = counts[mutant.function, mutant.change]
        if n > 1:
            mutants[number] = replace(mutant, change=f"{mutant.change} ({n})")
    return mutants


def _value_mutants(file: Path) -> Iterator[Mutant]:
    """Yield mutants that change values; messages, docstrings and decorators are left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for number, node in enumerate(_nodes(tree)):
        for k, (change, _, _) in enumerate(_changes(node, file)):
            other = copy.deepcopy(tree)
            target = _nodes(other)[number]
            _, field, value = list(_changes(target, file))[k]
            setattr(target, field, value)
            yield _mutant(file, node, f"{change}: {_short(node)}", other)


def _gradient_mutants(file: Path, numbers: set[int]) -> Iterator[Mutant]:
    """Yield mutants that stop or halve the gradient of the expressions of these numbers."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for number, node in enumerate(_operands(tree)):
        if number not in numbers:
            continue
        yield _detached(file, tree, number)
        if isinstance(node, ast.BinOp | ast.Call):
            yield _halved(file, tree, number)


def instrumented(file: Path) -> str:
    """Return the source of a file in which functions call `NOTE_CALL`.

    `NOTE` gets all expressions that may have a gradient.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    numbers = {id(node): number for number, node in enumerate(_operands(tree))}

    class Wrap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            number = numbers.get(id(node))
            node = super().visit(node)
            if number is None:
                return node
            arguments = [ast.Constant(number), node]
            return ast.Call(ast.Name(NOTE, ast.Load()), arguments, [])  # type: ignore[arg-type]

    for node in [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]:
        name = ast.Constant(_function_at(tree, node.lineno))
        call = ast.Call(ast.Name(NOTE_CALL, ast.Load()), [name], [])
        node.body.insert(1 if ast.get_docstring(node) else 0, ast.Expr(call))
    return ast.unparse(ast.fix_missing_locations(Wrap().visit(tree)))


def _mutant(file: Path, node: Node, change: str, tree: ast.Module) -> Mutant:
    source = ast.unparse(ast.fix_missing_locations(tree))
    return Mutant(file, node.lineno, _function_at(tree, node.lineno), change, source)


def _detached(file: Path, tree: ast.Module, number: int) -> Mutant:
    def detach(node: ast.expr) -> ast.expr:
        return ast.Call(ast.Attribute(node, "detach", ast.Load()), [], [])

    return _replaced(file, tree, number, "detach", detach)


def _halved(file: Path, tree: ast.Module, number: int) -> Mutant:
    def halve(node: ast.expr) -> ast.expr:
        return ast.Call(ast.parse(HALVED, mode="eval").body, [node], [])

    return _replaced(file, tree, number, "halve the gradient", halve)


def _replaced(
    file: Path, tree: ast.Module, number: int, change: str, new: Callable[[ast.expr], ast.expr]
) -> Mutant:
    """Return the mutant with ``new`` of the operand of that number in its place."""
    other = copy.deepcopy(tree)
    old = _operands(other)[number]
    description = f"{change}: {_short(old)}"

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new(old) if node is old else self.generic_visit(node)

    Replace().visit(other)
    return _mutant(file, old, description, other)


def _function_at(node: ast.Module | ast.ClassDef, line: int, prefix: str = "") -> str:
    """Return the qualified name of the outermost function around a line."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name, last = prefix + child.name, child.end_lineno or child.lineno
            if child.lineno <= line <= last and isinstance(child, ast.FunctionDef):
                return name
            if child.lineno <= line <= last and isinstance(child, ast.ClassDef):
                return _function_at(child, line, f"{name}.")
    return ""


def _short(node: Node) -> str:
    """Return the first line of the source of a node."""
    return ast.unparse(node).partition("\n")[0][:100]


def _nodes(tree: ast.Module) -> list[Node]:
    """Return all nodes of function bodies and defaults that may be part of a formula."""
    nodes: list[Node] = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            is_text = isinstance(child, ast.Raise | ast.JoinedStr | ast.Assert)
            is_type = isinstance(child, ast.arg) or child is getattr(node, "returns", None)
            is_type = is_type or child is getattr(node, "annotation", None)
            is_text |= isinstance(child, ast.keyword) and child.arg in ("strict", "encoding")
            is_type |= isinstance(node, ast.ExceptHandler) and child is node.type
            if is_text or is_type or child in getattr(node, "decorator_list", ()):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                nodes.append(child)
            visit(child)

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            visit(node)
    return list(dict.fromkeys(nodes))


def _operands(tree: ast.Module) -> list[ast.expr]:
    """Return the expressions whose values another expression or statement uses as they are."""
    others = {
        id(part)
        for node in ast.walk(tree)
        for part in (
            [node.value] if isinstance(node, ast.Attribute) else
            [node.func] if isinstance(node, ast.Call) else
            [node.value] if isinstance(node, ast.Expr) else
            [node.slice, *ast.walk(node.slice)] if isinstance(node, ast.Subscript) else []
        )
    }  # fmt: skip
    kinds = ast.BinOp | ast.Call | ast.Name | ast.Attribute | ast.Subscript
    return [
        node
        for node in _nodes(tree)
        if isinstance(node, kinds)
        and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        and id(node) not in others
    ]


def _changes(node: Node, file: Path) -> Iterator[Change]:
    """Yield everything that can be done to a node."""
    yield from _changes_of_formulas(node)
    if not file.is_relative_to(PARTS):
        yield from _changes_of_protocols(node)


def _changes_of_protocols(node: Node) -> Iterator[Change]:
    """Yield what makes a wrong procedure of right formulas."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "drop the statement", "value", ast.Constant(None)
    elif isinstance(node, ast.BoolOp):
        is_and = isinstance(node.op, ast.And)
        yield ("And -> Or", "op", ast.Or()) if is_and else ("Or -> And", "op", ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "drop not", "operand", ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Attribute) and node.attr in OTHERS:
        yield f"{node.attr} -> the {OTHERS[node.attr]}", "attr", OTHERS[node.attr]
    elif isinstance(node, ast.Tuple) and len(node.elts) > 1 and _are_alike(*node.elts[:2]):
        yield "swap the first two", "elts", [node.elts[1], node.elts[0], *node.elts[2:]]
    elif isinstance(node, ast.Call):
        yield from _changes_of_calls(node)


def _changes_of_calls(call: ast.Call) -> Iterator[Change]:
    """Yield calls of another function, and with other arguments."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name in BUILTINS:
        yield f"{name} -> {BUILTINS[name]}", "func", ast.Name(BUILTINS[name], ast.Load())
    if name in ("min", "max") and len(call.args) > 1:
        first = ast.parse("lambda *y: y[0]", mode="eval").body
        yield f"only the first of {name}", "func", first
    for n, (one, other) in enumerate(pairwise(call.args)):
        if _are_alike(one, other):
            swapped = [*call.args[:n], other, one, *call.args[n + 2 :]]
            yield f"swap {ast.unparse(one)} and {ast.unparse(other)}", "args", swapped
    for n, argument in enumerate(call.args):
        if (name := ast.unparse(argument).rpartition(".")[2]) in FROZEN:
            frozen = [*call.args[:n], ast.Constant(1), *call.args[n + 1 :]]
            yield f"freeze {name}", "args", frozen


def _are_alike(one: ast.expr, other: ast.expr) -> bool:
    """Return whether two expressions are of a kind, and not the same."""
    kinds = ast.Name | ast.Attribute | ast.Subscript
    is_kind = isinstance(one, kinds) and type(one) is type(other)
    return is_kind and ast.unparse(one) != ast.unparse(other)


def _changes_of_formulas(node: Node) -> Iterator[Change]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        new = OPERATORS[type(node.op)]
        yield f"{type(node.op).__name__} -> {new.__name__}", "op", new()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        other = COMPARISONS[type(node.ops[0])]
        yield f"{type(node.ops[0]).__name__} -> {other.__name__}", "ops", [other()]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "drop a minus", "op", ast.UAdd()
    elif isinstance(node, ast.If | ast.IfExp):
        yield "negate the condition", "test", ast.UnaryOp(ast.Not(), node.test)
    yield from _omissions(node)
    yield from _substitutions(node)


def _omissions(node: Node) -> Iterator[Change]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        nothing = ast.BinOp(ast.Constant(0), ast.Mult(), node.right)
        yield "drop the second term", "right", nothing
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        one = ast.BinOp(node.right, ast.Pow(), ast.Constant(0))
        yield "drop the second factor", "right", one
    elif isinstance(node, ast.Call) and _is_step(node):
        identity = ast.parse("lambda y: y", mode="eval").body
        yield f"drop the call of {ast.unparse(node.func)}", "func", identity


def _substitutions(node: Node) -> Iterator[Change]:
    """Yield other constants, and other functions of the same kind."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value} -> {value}", "value", value
    elif isinstance(node, ast.Attribute) and node.attr in SIBLINGS:
        yield f"{node.attr} -> {SIBLINGS[node.attr]}", "attr", SIBLINGS[node.attr]


def _is_step(call: ast.Call) -> bool:
    """Return whether a call may be a step of a formula: of a local function or of ``self``."""
    name = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    is_variable = isinstance(name, ast.Name) and not hasattr(builtins, name.id)
    is_local = isinstance(call.func, ast.Name) or (isinstance(name, ast.Name) and name.id == "self")
    return is_variable and is_local and len(call.args) == 1 and not call.keywords
