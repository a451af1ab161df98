"""Do the tests notice a wrong formula, or a wrong procedure? Change one thing at a time, and see.

    python -m tests.mutation position scaling norm residual
    python -m tests.mutation --share 1/4 attention training analysis

Every mutant is one change of one file: an operator, a constant, a comparison, a function for its
sibling, a branch, or the gradient of one expression, which is stopped or halved. Of a slot the
files of its parts are changed; a mutant that passes the tests of the slot, those of gradients and
those that visit the registry survives and is printed. Of a package (`NUMBERS`) the files that make
or judge numbers are changed, also by a swap of arguments, a seed that stays the same, a statement
left out, and the like; a mutant survives if it passes the default selection of the package's tests.
The last lines sum up. Mutants that compute the same as the original are listed in
tests/mutants_equivalent.py with the reason, and left out.

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
import shlex
import signal
import sys
import time
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # once, and not in every fork

from ablate.registry.table import TABLE, options_model
from tests.mutants import NOTE, NOTE_CALL, PACKAGE, PARTS, Mutant, instrumented, mutants
from tests.mutants_equivalent import is_equivalent

TESTS = Path(__file__).parent
DEFAULTS = TESTS / "parts" / "test_defaults.py"
SECONDS = 20  # of processor time for one test; a mutant that hangs is noticed
WAITING = 6  # times as long by the clock, for one that waits for a lock
HOMES = {"decoding": PACKAGE}
"""Where slots have their files that are not among the parts."""
TESTED_IN = {"decoding": "decoding/test_*.py", "metric": "api/test_metrics.py"}
"""Where slots have their tests that are not in ``parts/test_<slot>*.py``."""
NUMBERS: dict[str, tuple[str, ...]] = {
    "analysis": ("*",),
    "config": ("identity", "merge", "rows"),
    "data": (
        "batches", "corpus", "encodings", "faults", "own_text", "parallel", "prepare", "rows",
        "segmentation", "sentences", "subwords", "table", "tokenizer", "unigram",
    ),
    "gate": ("*",),
    "measuring": ("*",),
    "model": ("*",),
    "runner": ("match", "other_ranks", "probe", "run", "task"),
    "training": ("*",),
}  # fmt: skip
"""The modules that make or judge numbers, by package."""
TESTED_BESIDE = {
    "analysis": ("test_table_errors", "api/test_compare", "test_claims", "api/test_trials"),
    "config": (
        "api/test_study",
        "test_store",
        "test_experiments",
        "test_plugins",
        "data/test_teacher",
    ),
    "data": ("parts/test_defaults",),
    "measuring": ("api/test_inspect", "api/test_metrics", "test_parameter_counts"),
    "model": (
        "test_model",
        "test_parameter_counts",
        "test_goldens",
        "test_gradients",
        "test_contracts",
        "decoding/test_ensemble",
        "decoding/test_captured",
        "decoding/test_contract",
    ),
    "runner": ("api/test_study", "api/test_tune", "api/test_match_time"),
    "training": ("test_gradients",),
}
"""The tests of packages that are not in a folder of the package's name."""
VISITORS = [
    "parts/test_defaults",
    "parts/test_refusals",
    "test_contracts",
    "test_gradients",
    "test_model",
]


class MutantRunner:
    """A pytest plugin that runs the collected tests once for every mutant of a slot's files.

    Or, with a share of k and n, for every n-th mutant, from the k-th.
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
        files = _files(self.slot)
        usage = _observe(session.items, files)
        pool = [mutant for file in files for mutant in mutants(file, usage.with_gradient[file])]
        for mutant in pool[self.first - 1 :: self.every]:
            if is_equivalent(mutant):
                self.n_equivalent += 1
                continue
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
        seconds: how long each test takes, with its fixtures.
        with_gradient: for each file, the numbers of the expressions with a gradient in some test.
    """

    calls: list[set[tuple[str, str]]]
    seconds: list[float]
    with_gradient: dict[Path, set[int]]

    def tests(self, mutant: Mutant, items: list[pytest.Item]) -> list[pytest.Item]:
        """Return the tests that call the function of a mutant, or read the defaults of options.

        The quickest come first, by their files: a file's fixtures are made once.
        """
        function = str(mutant.file), mutant.function
        chosen = [
            (item, seconds)
            for item, calls, seconds in zip(items, self.calls, self.seconds, strict=True)
            if function in calls or item.path == DEFAULTS
        ]
        quickest: dict[Path, float] = {}
        for item, seconds in chosen:
            quickest[item.path] = min(seconds, quickest.get(item.path, seconds))
        chosen.sort(key=lambda each: (quickest[each[0].path], each[0].path, each[1]))
        return [item for item, _ in chosen]


def _observe(items: list[pytest.Item], files: list[Path]) -> Usage:
    """Run all tests and return what they use; one that looks at code itself may fail then."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        usage = Usage([], [], {file: set() for file in files})
        calls: set[tuple[str, str]] = set()
        for file in files:
            note = partial(_note, usage.with_gradient[file])
            note_call = partial(_note_call, calls, str(file))
            patch(file, instrumented(file), {NOTE: note, NOTE_CALL: note_call})
        for item in items:
            _forget(files)
            calls.clear()
            began = time.perf_counter()
            is_passed = _run([item])  # by itself, so that it makes all its fixtures
            usage.calls.append(set(calls) if is_passed else set())
            usage.seconds.append(time.perf_counter() - began)
            if not is_passed:
                _print(f"{item.nodeid}: fails where calls are noted, and is left out")
                item.session.testsfailed = 0
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(usage, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        received = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("the tests end the process")
    observed: Usage = pickle.loads(received)
    return observed


def _note(numbers: set[int], number: int, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        numbers.add(number)
    return value


def _forget(files: list[Path]) -> None:
    """Empty the caches of functions, whose results would else be those of another test or code."""
    for file in files:
        for value in list(vars(_module(file)).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def _note_call(calls: set[tuple[str, str]], file: str, function: str) -> None:
    calls.add((file, function))


def _survives(mutant: Mutant, items: list[pytest.Item]) -> bool:
    """Return whether all tests pass with a mutant, in a process of their own."""
    child = os.fork()
    if not child:
        is_passed = False
        with contextlib.suppress(BaseException):
            patch(mutant.file, mutant.source)
            _forget([mutant.file])
            is_passed = _run(items, seconds=SECONDS)
        os._exit(0 if is_passed else 1)
    _, status = os.waitpid(child, 0)
    return status == 0


def _run(items: list[pytest.Item], seconds: float = 0) -> bool:
    """Run tests up to the first failure; return whether there is none.

    After so many seconds of processor time for one of them the process is ended; 0: any number.
    """
    sink = io.StringIO()
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        for item, following in zip(items, [*items[1:], None], strict=True):
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.setitimer(signal.ITIMER_REAL, WAITING * seconds)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                return False
    return True


def patch(file: Path, source: str, names: dict[str, Any] | None = None) -> None:
    """Replace the code and the defaults of all functions of an imported module.

    The new source has the same functions; ``names`` are global variables to add.
    """
    module = _module(file)
    vars(module).update(names or {})
    tree = ast.parse(source)
    code = {
        (each.co_qualname, each.co_argcount): each
        for each in _codes(compile(tree, str(file), "exec"))
    }  # the getter and the setter of a property have one name
    arguments = dict(_arguments(tree))
    for function in _functions(module):
        qualname = function.__code__.co_qualname
        if qualname not in arguments:  # made by dataclasses, or a lambda
            continue
        function.__code__ = code[qualname, function.__code__.co_argcount]
        args = arguments[qualname]
        function.__defaults__ = tuple(_values(args.defaults, module)) or None
        named = [(a.arg, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d]
        values = _values([default for _, default in named], module)
        function.__kwdefaults__ = dict(zip([name for name, _ in named], values, strict=True))
    for table in TABLE.values():
        for name, entry in table.items():
            if any(base.__module__ == module.__name__ for base in entry.cls.__mro__):
                table[name] = replace(entry, options=options_model(entry.cls))


def _module(file: Path) -> types.ModuleType:
    parts = file.relative_to(TESTS.parent).with_suffix("").parts
    return importlib.import_module(".".join(parts))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
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
        if isinstance(value, property):
            candidates: list[Any] = [value.fget, value.fset]
        else:
            candidates = [value.func if isinstance(value, cached_property) else value]
        for function in candidates:
            function = getattr(function, "__func__", function)
            while hasattr(function, "__wrapped__"):
                function = function.__wrapped__
            if isinstance(function, types.FunctionType) and function.__module__ == module:
                yield function


def _files(slot: str) -> list[Path]:
    if slot in NUMBERS:
        globs = [PACKAGE.glob(f"{slot}/**/{name}.py") for name in NUMBERS[slot]]
        return sorted(file for files in globs for file in files if file.name != "__init__.py")
    folder = HOMES.get(slot, PARTS) / slot
    files = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    return sorted(file for file in files if file.name != "__init__.py")


def _print(line: str) -> None:
    sys.__stdout__.write(f"{line}\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def _selection(slot: str) -> list[str]:
    """Return the arguments of pytest that select the tests of a slot or of a package."""
    if slot in NUMBERS:
        beside = (TESTS / f"{name}.py" for name in TESTED_BESIDE.get(slot, ()))
        project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))
        words = shlex.split(project["tool"]["pytest"]["ini_options"]["addopts"])
        marks = words[words.index("-m") + 1]  # of the default selection
        return ["-m", marks, *map(str, (*sorted(TESTS.glob(f"{slot}/test_*.py")), *beside))]
    files = sorted(TESTS.glob(TESTED_IN.get(slot, f"parts/test_{slot}*.py")))
    visitors = [TESTS / f"{name}.py" for name in VISITORS]
    of_slot = ["-k", f"test_{slot} or {slot} or torch_nn"]
    return [*of_slot, *map(str, (*files, *visitors))]


def main() -> None:
    """Print the survivors of every slot, and then a line of figures for each slot."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("slots", nargs="+", help="slots, and packages")
    parser.add_argument("--share", default="1/1", help="k/n: only every n-th mutant, from the k-th")
    arguments = parser.parse_args()
    first, every = (int(part) for part in arguments.share.split("/"))
    torch.set_num_threads(1)
    gc.freeze()  # else a collection in a fork copies the memory of all objects
    runners = []
    for slot in arguments.slots:
        runner = MutantRunner(slot, (first, every))
        words = ["-s", "-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts="]
        pytest.main([*words, *_selection(slot)], plugins=[runner])
        runners.append(runner)
    for runner in runners:
        _print(runner.summary())


if __name__ == "__main__":
    main()
