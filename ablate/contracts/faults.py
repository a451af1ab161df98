"""The ways in which parts break their contracts, in words: slot, method, expected shape, line.

B batch, T tokens, D d_model, H n_heads.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from ablate.errors import AblateError, SpecError, first_line_with_type
from ablate.registry import Entry, contract_of


class ContractError(SpecError):
    """A part breaks the contract of its slot."""

    def __init__(self, entry: Entry, reason: str) -> None:
        super().__init__(f"{entry.slot} {entry.name!r}: {reason}")
        self.entry = entry
        self.reason = reason


@contextmanager
def watched(entries: Sequence[Entry]) -> Iterator[None]:
    """Check what the methods of parts return within, and turn their failures into sentences.

    Raises:
        ContractError: if a constructor forgets that of its contract, a method returns None or
            another shape than its contract says, or anything in the part's own code fails, or
            ends the program.
    """
    try:
        with ExitStack() as stack:
            for entry in entries:
                for checked in _patches(entry):
                    stack.enter_context(checked)
            yield
    except AblateError:
        raise
    except (Exception, SystemExit) as error:
        if not entries:
            raise
        raise _explained(error, entries) from error


Rule = Callable[[Sequence[Any], Any], str]
"""Returns what a method must return, given its arguments and result; empty if it did."""


def _same(arguments: Sequence[Any], result: Any) -> str:
    x = arguments[0]
    is_right = isinstance(result, Tensor) and result.shape == x.shape
    return "" if is_right else f"a tensor of shape {_shape(x)}, as its first argument has"


def _added_to_scores(arguments: Sequence[Any], result: Any) -> str:
    """Check what is added to scores (B, H, T, S), given queries (B, H, T, K)."""
    q, _, key_positions = arguments[:3]
    shape = (*q.shape[:-1], len(key_positions))
    if result is None or (isinstance(result, Tensor) and _broadcasts(result, shape)):
        return ""
    return f"None, or a tensor that broadcasts to (B, H, T, S), here {shape}"


def _added_to_values(arguments: Sequence[Any], result: Any) -> str:
    """Check what is added to the heads' outputs (B, H, T, V), given weights (B, H, T, S)."""
    shape = (*arguments[0].shape[:-1], -1)
    if result is None or (isinstance(result, Tensor) and _broadcasts(result, shape)):
        return ""
    return f"None, or a tensor that broadcasts to (B, H, T, V), here {shape} with -1 for d_v"


def _mask(arguments: Sequence[Any], result: Any) -> str:
    shape = (-1, -1, len(arguments[0]), len(arguments[1]))
    if isinstance(result, Tensor) and result.dtype is torch.bool and _broadcasts(result, shape):
        return ""
    return f"a tensor of booleans that broadcasts to (B, H, T, S), here {shape} with -1 for any"


def _vectors(arguments: Sequence[Any], result: Any) -> str:
    ids = arguments[0]
    is_right = isinstance(result, Tensor) and result.ndim == 3 and result.shape[:2] == ids.shape
    return "" if is_right else f"a vector for each id, {_shape(ids)[:-1]}, d_model)"


def _logits(arguments: Sequence[Any], result: Any) -> str:
    x = arguments[0]
    is_right = isinstance(result, Tensor) and result.shape[:-1] == x.shape[:-1]
    return "" if is_right else f"logits ({', '.join(map(str, x.shape[:-1]))}, V)"


def _must_be(expected: str, is_right: Callable[[Any], bool]) -> Rule:
    """Return the rule that a result is ``expected``, whatever the arguments."""
    return lambda _, result: "" if is_right(result) else expected


_blocks = _must_be(
    "a list of whole numbers, the block of each layer",
    lambda result: isinstance(result, list) and all(type(block) is int for block in result),
)
_rate = _must_be("a number, the learning rate", lambda result: isinstance(result, float | int))
_scalar = _must_be(
    "one number, a tensor of shape ()",
    lambda result: isinstance(result, Tensor) and result.ndim == 0,
)
_optimizer = _must_be(
    "a torch.optim.Optimizer", lambda result: isinstance(result, torch.optim.Optimizer)
)

_RULES: dict[str, dict[str, Rule]] = {
    "position": {
        "embed": _same,
        "rotate": _same,
        "bias": _added_to_scores,
        "values": _added_to_values,
    },
    "attention": {"forward": _same},
    "scaling": {"query": _same, "key": _same, "scores": _same},
    "mask": {"allowed": _mask},
    "norm": {"forward": _same},
    "residual": {"forward": _same, "apply_sublayer": _same},
    "feed_forward": {"forward": _same},
    "embedding": {"src": _vectors, "tgt": _vectors, "logits": _logits},
    "sharing": {"order": _blocks},
    "objective": {"loss": _scalar},
    "optimizer": {"make": _optimizer},
    "schedule": {"rate": _rate},
}


def _patches(entry: Entry) -> Iterator[AbstractContextManager[Any]]:
    """Yield checked versions of a part's constructor, and of each method that has a rule."""
    methods = {"__init__": _constructor(entry, entry.cls.__init__)}
    for name, rule in _RULES.get(entry.slot, {}).items():
        if callable(method := getattr(entry.cls, name, None)):
            methods[name] = _checked(entry, method, rule)
    yield from (patch.object(entry.cls, name, method) for name, method in methods.items())


def _constructor(entry: Entry, method: Callable[..., None]) -> Callable[..., None]:
    expected, signature = _arguments(contract_of(entry.cls)), inspect.signature(method)

    @wraps(method)
    def construct(part: Any, *arguments: Any, **options: Any) -> None:
        try:
            signature.bind(part, *arguments, **options)
        except TypeError as error:
            actual = f"{len(arguments)} argument{'s' * (len(arguments) != 1)}"
            raise ContractError(
                entry,
                f"the constructor of {entry.cls.__name__} does not take what the program gives, "
                f"{actual} by position ({error}); it begins with those of the contract, "
                f"(self, {expected}), and has its options after a *",
            ) from error
        method(part, *arguments, **options)
        if isinstance(part, nn.Module) and "_modules" not in vars(part):
            raise ContractError(entry, _no_super(entry))

    return construct


def _checked(entry: Entry, method: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
    @wraps(method)
    def call(part: Any, *arguments: Any, **options: Any) -> Any:
        try:
            result = method(part, *arguments, **options)
        except TypeError as error:
            try:
                inspect.signature(method).bind(part, *arguments, **options)
            except TypeError as mismatch:
                reason = f"{_named(entry, method)} does not take what the program gives: {mismatch}"
                raise ContractError(entry, reason) from error
            raise
        expectation = rule(arguments or list(options.values()), result)
        if expectation and type(part) is entry.cls:
            returned = "None" if result is None else f"a {type(result).__name__}"
            if isinstance(result, Tensor):
                returned = f"shape {_shape(result)}"
            reason = f"{_named(entry, method)} must return {expectation}; it returned {returned}"
            raise ContractError(entry, reason)
        return result

    return call


def _explained(error: BaseException, entries: Sequence[Entry]) -> ContractError:
    """Return in words how the code of a part has failed."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = frame.f_globals.get("__name__")
        entry = next((e for e in entries if e.cls.__module__ == module), None)
        if entry is not None:
            own = [e for e in entries if isinstance(frame.f_locals.get("self"), e.cls)]
            entry = own[0] if own else entry
            name = frame.f_code.co_qualname if own else frame.f_code.co_name
            where = f"{_file(entry)}:{line}, in {name}"
            return ContractError(entry, f"{where}: {_reason(entry, error)}")
    missing = error.obj if isinstance(error, AttributeError) else None
    entry = next((e for e in entries if isinstance(missing, e.cls)), entries[0])
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}, in {last.name}"
    return ContractError(entry, f"with it the model fails at {where}: {_reason(entry, error)}")


def _reason(entry: Entry, error: BaseException) -> str:
    if isinstance(error, AttributeError):
        if "before Module.__init__() call" in str(error):
            return _no_super(entry)
        if isinstance(error.obj, entry.cls):
            return (
                f"{entry.cls.__name__} has no attribute {error.name!r}; the constructor must set "
                f"it, or, if the contract's does, begin with {_super(entry)}"
            )
    return first_line_with_type(error)


def _no_super(entry: Entry) -> str:
    return f"the constructor of {entry.cls.__name__} must begin with {_super(entry)}"


def _super(entry: Entry) -> str:
    return f"super().__init__({_arguments(contract_of(entry.cls))})"


def _arguments(cls: type) -> str:
    """Return the positional arguments of a constructor that the program gives."""
    _, *arguments = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return ", ".join(a.name for a in arguments if a.kind in kinds and a.default is a.empty)


def _named(entry: Entry, method: Callable[..., Any]) -> str:
    """Return the name of a method, and its line if it is the part's own."""
    name = f"{entry.cls.__name__}.{method.__name__}"
    code = getattr(inspect.unwrap(method), "__code__", None)
    if code is None or method.__module__ != entry.cls.__module__:
        return name
    return f"{name} ({_file(entry)}:{code.co_firstlineno})"


def _file(entry: Entry) -> str:
    if entry.origin and entry.origin.source:
        return entry.origin.name
    return Path(inspect.getfile(entry.cls)).name


def _broadcasts(result: Tensor, shape: Sequence[int]) -> bool:
    """Return whether a tensor broadcasts to a shape in which -1 is any size."""
    if result.ndim > len(shape):
        return False
    pairs = zip(reversed(result.shape), reversed(shape), strict=False)
    return all(size in (1, other) or other == -1 for size, other in pairs)


def _shape(x: Tensor) -> str:
    return str(tuple(x.shape))
