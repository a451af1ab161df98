"""Do the tests notice a wrong formula? Change one thing at a time in a part, and see.

    python -m tests.mutation position scaling norm residual

Every mutant is one change of one file under ``ablate/parts``: an operator, a constant, a
comparison, a function for its sibling, a branch. A copy of the package with that change goes
through the tests of the slot and through those that visit the registry; a mutant that passes them
all survives and is printed. PyTorch is loaded once, and a mutant is a fork of that process.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import copy
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
SECONDS = 300  # for one mutant; one that hangs is noticed
ELSEWHERE = 99

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


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: Path
    line: int
    what: str
    source: str


def mutants(file: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file; messages, docstrings and registrations are left alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for number, node in enumerate(_nodes(tree)):
        for k in range(len(list(_changes(copy.deepcopy(node))))):
            other = copy.deepcopy(tree)
            target = _nodes(other)[number]
            what = list(_changes(target, only=k))[k]
            yield Mutant(file, node.lineno, what, ast.unparse(ast.fix_missing_locations(other)))


def _nodes(tree: ast.Module) -> list[ast.expr | ast.stmt]:
    """Return all nodes of function bodies and defaults that a formula may stand in."""
    found: list[ast.expr | ast.stmt] = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            is_text = isinstance(child, ast.Raise | ast.JoinedStr | ast.Assert)
            is_type = isinstance(child, ast.arg) or child is getattr(node, "returns", None)
            is_type = is_type or child is getattr(node, "annotation", None)
            if is_text or is_type or child in getattr(node, "decorator_list", ()):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                found.append(child)
            visit(child)

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            visit(node)
    return list(dict.fromkeys(found))


def _changes(node: ast.expr | ast.stmt, only: int | None = None) -> Iterator[str]:
    """Yield what can be done to a node, and do the change number ``only``."""
    todo = list(_possible(node))
    for k, (what, field, value) in enumerate(todo):
        if k == only:
            setattr(node, field, value)
        yield what


def _possible(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str, object]]:
    """Yield changes as (words, field, new value)."""
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
    yield from _without(node)
    yield from _renamed(node)


def _without(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str, object]]:
    """Yield changes that take something away."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        nothing = ast.BinOp(ast.Constant(0), ast.Mult(), node.right)
        yield "drop the second term", "right", nothing
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        one = ast.BinOp(node.right, ast.Pow(), ast.Constant(0))
        yield "drop the second factor", "right", one
    elif isinstance(node, ast.Call) and _is_ours(node):
        identity = ast.parse("lambda y: y", mode="eval").body
        yield f"drop the call of {ast.unparse(node.func)}", "func", identity


def _renamed(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str, object]]:
    """Yield other constants, and other functions of the same kind."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value} -> {value}", "value", value
    elif isinstance(node, ast.Attribute) and node.attr in SIBLINGS:
        yield f"{node.attr} -> {SIBLINGS[node.attr]}", "attr", SIBLINGS[node.attr]


def _is_ours(call: ast.Call) -> bool:
    """Return whether a call may be a step of a formula: of a local function or of ``self``."""
    name = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    is_known = isinstance(name, ast.Name) and not hasattr(builtins, name.id)
    own = isinstance(call.func, ast.Name) or (isinstance(name, ast.Name) and name.id == "self")
    return is_known and own and len(call.args) == 1 and not call.keywords


def survives(mutant: Mutant, tests: list[str]) -> bool:
    """Return whether all ``tests`` pass with the mutant in place of the file."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "ablate", Path(folder) / "ablate")
        (Path(folder) / mutant.file.relative_to(ROOT)).write_text(mutant.source, encoding="utf-8")
        process = multiprocessing.get_context("fork").Process(target=_test, args=(folder, tests))
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
        process.join()
        if process.exitcode == ELSEWHERE:
            raise RuntimeError(f"the tests did not import the package in {folder}")
        return process.exitcode == 0


def _test(folder: str, tests: list[str]) -> None:
    sys.path.insert(0, folder)
    os.chdir(ROOT)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        code = pytest.main([*options, "--import-mode=append", *tests])  # the folder stays first
    import ablate

    in_place = Path(ablate.__file__).is_relative_to(folder)
    os._exit(int(code) if in_place else ELSEWHERE)


def _files(slot: str) -> list[Path]:
    home = ROOT / "ablate" / "parts" / slot
    return sorted(home.rglob("*.py")) if home.is_dir() else [home.with_suffix(".py")]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Print the survivors of every slot, and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slots", nargs="+")
    parser.add_argument("--share", default="1/1", help="k/n: only every n-th mutant, from the k-th")
    arguments = parser.parse_args()
    first, every = (int(part) for part in arguments.share.split("/"))
    torch.set_num_threads(1)
    for slot in arguments.slots:
        tests = [
            *(str(p) for p in sorted((ROOT / "tests" / "parts").glob(f"test_{slot}*.py"))),
            str(ROOT / "tests" / "test_model.py"),
            "-k",
            f"test_{slot} or {slot} or torch_nn",
        ]
        made = [mutant for file in _files(slot) for mutant in mutants(file)][first - 1 :: every]
        alive = 0
        file = _files(slot)[0]
        if not survives(Mutant(file, 1, "nothing", file.read_text(encoding="utf-8")), tests):
            raise RuntimeError(f"the tests of {slot} fail without any change")
        for mutant in made:
            if survives(mutant, tests):
                alive += 1
                where = mutant.file.relative_to(ROOT)
                _say(f"{where}:{mutant.line}: {mutant.what}")
        share = 100 * (1 - alive / max(1, len(made)))
        _say(f"{slot}: {len(made)} mutants, {alive} survive, {share:.1f}% noticed")


if __name__ == "__main__":
    main()
