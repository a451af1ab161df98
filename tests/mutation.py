"""Do the tests notice a wrong formula? Change one thing at a time in a part, and see.

    python -m tests.mutation position scaling norm residual
    python -m tests.mutation --share 1/4 attention

Every mutant is one change of one file of a slot's parts: an operator, a constant, a
comparison, a function for its sibling, a branch, or the gradient of one expression, which is
stopped or halved. A mutant that passes the tests of its slot, those of gradients and those that
visit the registry survives and is printed; the last lines sum up the slots. Mutants that compute
the same as the original are listed in tests/mutants_equivalent.py with the reason, and left out.

PyTorch is imported once, and the tests of a slot are collected once. A mutant is a fork of that
process in which the code of the functions is replaced by that of the changed file; it runs the
tests that call the changed function.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import io
import os
import pickle
import signal
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # once, and not in every fork

from ablate.registry.table import TABLE, options_model
from tests.mutants import NOTE, PACKAGE, PARTS, Mutant, instrumented, mutants
from tests.mutants_equivalent import is_equivalent

TESTS = Path(__file__).parent
DEFAULTS = TESTS / "parts" / "test_defaults.py"
SECONDS = 20  # of processor time for one test; a mutant that hangs is noticed
HOMES = {"decoding": PACKAGE}
"""Where slots have their files that are not among the parts."""
TESTED_IN = {"decoding": "decoding/test_*.py", "metric": "test_metrics.py"}
"""Where slots have their tests that are not in ``parts/test_<slot>*.py``."""
VISITORS = ["parts/test_defaults", "test_contracts", "test_gradients", "test_model"]


class MutantRunner:
    """A pytest plugin that runs the collected tests once for every mutant of a slot.

    Args:
        slot: its files are changed.
        share: k and n: only every n-th mutant, from the k-th.
    """

    def __init__(self, slot: str, share: tuple[int, int]) -> None:
        self.slot = slot
        self.first, self.every = share
        self.n_mutants = 0
        self.n_equivalent = 0
        self.n_alive = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of pytest's own loop."""
        order = {TESTS / f"{name}.py": number for number, name in enumerate(VISITORS, start=1)}
        session.items.sort(key=lambda item: order.get(item.path, 0))  # the fastest first
        files = _files(self.slot)
        usage = _observe(session.items, files)
        pool = [mutant for file in files for mutant in mutants(file, usage.with_gradient[file])]
        non_equivalent = [mutant for mutant in pool if not is_equivalent(mutant)]
        self.n_equivalent = len(pool) - len(non_equivalent)
        for mutant in non_equivalent[self.first - 1 :: self.every]:
            self.n_mutants += 1
            if _survives(mutant, usage.tests(mutant, session.items)):
                self.n_alive += 1
                path, function, change = mutant.key
                _print(f"{path}:{mutant.line}: {function}: {change}")
        return True

    def summary(self) -> str:
        """Return a line of figures."""
        share = 100 * (1 - self.n_alive / max(1, self.n_mutants))
        return (
            f"{self.slot:16}{self.n_mutants:5} mutants{self.n_alive:4} survive{share:7.1f}% noticed"
            f"{self.n_equivalent:5} equivalent"
        )


@dataclass
class Usage:
    """Which tests use which code.

    Attributes:
        calls: for each test, in order, the functions that it calls, as file and qualified name.
        with_gradient: for each file, the numbers of the expressions with a gradient in some test.
    """

    calls: list[set[tuple[str, str]]]
    with_gradient: dict[Path, set[int]]

    def tests(self, mutant: Mutant, items: list[pytest.Item]) -> list[pytest.Item]:
        """Return the tests that call the function of a mutant, or read the defaults of options."""
        function = str(mutant.file), mutant.function
        return [
            item
            for item, calls in zip(items, self.calls, strict=True)
            if function in calls or item.path == DEFAULTS
        ]


def _observe(items: list[pytest.Item], files: list[Path]) -> Usage:
    """Run all tests, which must pass, and return what they use."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        usage = Usage([], {file: set() for file in files})
        for file in files:
            patch(file, instrumented(file), {NOTE: partial(_note, usage.with_gradient[file])})
        names = {str(file) for file in files}
        for item in items:
            calls: set[tuple[str, str]] = set()
            sys.setprofile(partial(_note_call, names, calls))
            is_passed = _run([item])  # by itself, so that it makes all its fixtures
            sys.setprofile(None)
            usage.calls.append(calls)
            if not is_passed:
                os._exit(1)
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(usage, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        received = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("the tests fail without any change")
    observed: Usage = pickle.loads(received)
    return observed


def _note(numbers: set[int], number: int, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        numbers.add(number)
    return value


def _note_call(
    files: set[str], calls: set[tuple[str, str]], frame: types.FrameType, event: str, _: Any
) -> None:
    code = frame.f_code
    if event == "call" and code.co_filename in files:
        calls.add((code.co_filename, code.co_qualname.partition(".<locals>")[0]))


def _survives(mutant: Mutant, items: list[pytest.Item]) -> bool:
    """Return whether all tests pass with a mutant, in a process of their own."""
    child = os.fork()
    if not child:
        is_passed = False
        with contextlib.suppress(BaseException):
            patch(mutant.file, mutant.source)
            is_passed = _run(items, seconds=SECONDS)
        os._exit(0 if is_passed else 1)
    _, status = os.waitpid(child, 0)
    return status == 0


def _run(items: list[pytest.Item], seconds: float = 0) -> bool:
    """Run tests up to the first failure; return whether there is none.

    Args:
        items: the tests.
        seconds: of processor time for one of them, after which the process is ended; 0: any number.
    """
    sink = io.StringIO()
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        for item, following in zip(items, [*items[1:], None], strict=True):
            signal.setitimer(signal.ITIMER_PROF, seconds)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                return False
    return True


def patch(file: Path, source: str, names: dict[str, Any] | None = None) -> None:
    """Replace the code and the defaults of all functions of an imported module.

    Args:
        file: that of the module.
        source: its new content, with the same functions.
        names: global variables to add.
    """
    module = importlib.import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))
    vars(module).update(names or {})
    tree = ast.parse(source)
    code = dict(_codes(compile(tree, str(file), "exec")))
    arguments = dict(_arguments(tree))
    for function in _functions(module):
        qualname = function.__code__.co_qualname
        if qualname not in code:  # made by dataclasses
            continue
        function.__code__ = code[qualname]
        args = arguments[qualname]
        function.__defaults__ = tuple(_values(args.defaults, module)) or None
        named = [(a.arg, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d]
        values = _values([default for _, default in named], module)
        function.__kwdefaults__ = dict(zip([name for name, _ in named], values, strict=True))
    for table in TABLE.values():
        for name, entry in table.items():
            if any(base.__module__ == module.__name__ for base in entry.cls.__mro__):
                table[name] = replace(entry, options=options_model(entry.cls))


def _codes(code: types.CodeType) -> Iterator[tuple[str, types.CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant.co_qualname, constant
            yield from _codes(constant)


def _arguments(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.arguments]]:
    """Yield the arguments of all functions that are not inside of functions, by qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child.args
        elif isinstance(child, ast.ClassDef):
            yield from _arguments(child, f"{prefix}{child.name}.")


def _values(defaults: list[ast.expr], module: types.ModuleType) -> list[Any]:
    return [
        eval(compile(ast.Expression(each), module.__name__, "eval"), vars(module))
        for each in defaults
    ]


def _functions(holder: types.ModuleType | type, module: str = "") -> Iterator[types.FunctionType]:
    """Yield all functions and methods that are defined in a module."""
    module = module or holder.__name__
    for value in list(vars(holder).values()):
        if isinstance(value, type) and value.__module__ == module:
            yield from _functions(value, module)
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        if isinstance(function, types.FunctionType) and function.__module__ == module:
            yield function


def _files(slot: str) -> list[Path]:
    folder = HOMES.get(slot, PARTS) / slot
    files = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    return sorted(file for file in files if file.name != "__init__.py")


def _print(line: str) -> None:
    sys.__stdout__.write(f"{line}\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def main() -> None:
    """Print the survivors of every slot, and then a line of figures for each slot."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("slots", nargs="+")
    parser.add_argument("--share", default="1/1", help="k/n: only every n-th mutant, from the k-th")
    arguments = parser.parse_args()
    first, every = (int(part) for part in arguments.share.split("/"))
    torch.set_num_threads(1)
    gc.freeze()  # else a collection in a fork copies the memory of all objects
    runners = []
    for slot in arguments.slots:
        runner = MutantRunner(slot, (first, every))
        files = sorted(TESTS.glob(TESTED_IN.get(slot, f"parts/test_{slot}*.py")))
        visitors = [TESTS / f"{name}.py" for name in VISITORS]
        words = ["-s", "-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts="]
        selected = ["-k", f"test_{slot} or {slot} or torch_nn"]
        pytest.main([*words, *selected, *map(str, (*files, *visitors))], plugins=[runner])
        runners.append(runner)
    for runner in runners:
        _print(runner.summary())


if __name__ == "__main__":
    main()
