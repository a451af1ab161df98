"""A small Transformer on which contracts of parts are tested, and functions that vary it.

Some parts require another choice beside them, as a residual scheme without norms ``norm: none``;
`companion` searches the registry for it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import torch
from pydantic import TypeAdapter, ValidationError

from ablate.config.experiment import ModelSpec
from ablate.contracts.faults import ContractError
from ablate.model import Transformer, assemble
from ablate.parts.embedding import Vocabulary
from ablate.registry import Choice, Entry, RefusedError, lookup, slots

T = TypeVar("T")

PAD = 0
LARGE = 24
"""A value of options that is more than the tests' sentences have tokens."""
VOCABULARY = Vocabulary(n_src=50, n_tgt=50, is_joint=True)
TINY: dict[str, Any] = {
    "dims": {"d_model": 32, "n_heads": 4, "max_len": 16},
    "n_layers": 2,
    "feed_forward": {"name": "relu", "d_ff": 48},
    "dropout": {"embedding": 0.0, "residual": 0.0},
}
MODEL_SLOTS = [slot for slot in slots() if slot in ModelSpec.model_fields]


@dataclass(frozen=True)
class Case:
    """A part whose contract is tested."""

    entry: Entry

    @functools.cached_property
    def model(self) -> Transformer:
        """The model with the part and large weights, in double precision; not to be changed."""
        return scrambled(self.fresh())

    def fresh(self) -> Transformer:
        """Return the small model with the part, in double precision, with its initial weights."""
        return fitted(self.entry.slot, self.entry.name).double()

    def variants(self) -> Iterator[tuple[str, Transformer]]:
        """Yield the model, then one for each other value of an option; before it, that setting."""
        yield "", self.model
        for option in self.entry.options.model_fields:
            for value in alternatives(self.entry, option):
                model = accepted(**choices(self.entry.slot, self.entry.name, **{option: value}))
                if model is not None:
                    yield f"with {option}: {value}, ", scrambled(model.double())

    def settings(self, make: Callable[[Choice], T]) -> Iterator[tuple[str, str, T]]:
        """Yield what is made of the part, then with each other value of an option.

        Before it, the option, and how a message begins; both are empty for the defaults. Values
        that the part refuses are left out.
        """
        yield "", "", make(choice_of(self.entry))
        for option in self.entry.options.model_fields:
            for value in alternatives(self.entry, option):
                with suppress(RefusedError):
                    choice = self.entry.choose(required(self.entry) | {option: value})
                    yield option, f"with {option}: {value}, ", make(choice)

    def demand(self, is_kept: bool, reason: str) -> None:
        """Raise a `ContractError` with a reason unless a contract is kept."""
        if not is_kept:
            raise ContractError(self.entry, reason)

    def demand_effective(self, behaviour: Callable[[Choice], object], what: str) -> None:
        """Demand that some value of every option behaves otherwise than the default."""
        (_, _, default), *others = self.settings(behaviour)
        for option in self.entry.options.model_fields:
            values = [value for name, _, value in others if name == option]
            self.demand(
                not values or any(value != default for value in values),
                f"the option {option!r} changes nothing: {what} are the same with every value",
            )


Contract = Callable[[Case], None]
"""Tests one property of a part.

Raises:
    ContractError: if the part does not have it.
"""


def spec(**changes: Any) -> ModelSpec:
    """Return the tiny model with some of its keys replaced."""
    return ModelSpec.model_validate(TINY | changes)


def tiny(vocabulary: Vocabulary = VOCABULARY, /, **changes: Any) -> Transformer:
    """Assemble the tiny model, in evaluation mode; the same weights at every call."""
    torch.manual_seed(0)
    return assemble(spec(**changes), vocabulary, PAD).eval()


def accepted(**changes: Any) -> Transformer | None:
    """Assemble the tiny model with these changes; None if a part refuses."""
    try:
        return tiny(**changes)
    except RefusedError:
        return None


def companion(slot: str, name: str) -> dict[str, str]:
    """Return the other choice that a part requires beside it, by slot; empty for most."""
    return _companion(lookup(slot, name))


def companions(entry: Entry) -> Iterator[dict[str, str]]:
    """Yield the other choices to try beside a part, by slot: none; one of its paper; any one."""
    yield {}
    others = [other for slot in MODEL_SLOTS for other in slots()[slot].values()]
    for other in sorted(others, key=lambda other: not _papers(entry) & _papers(other)):
        if other.slot != entry.slot:
            yield {other.slot: other.name}


def choices(slot: str, name: str, **options: Any) -> dict[str, Any]:
    """Return the changes for one part: its companion, and three layers if it relates layers.

    Options that must be given get some value.
    """
    choice = {**required(lookup(slot, name)), **options}
    whole = {"name": name, **choice} if choice else name
    return {"n_layers": _n_layers(slot)} | companion(slot, name) | {slot: whole}


def required(entry: Entry) -> dict[str, Any]:
    """Return a valid value for each option of a part that has no default."""
    fields = entry.options.model_fields.items()
    return {name: next(alternatives(entry, name)) for name, f in fields if f.is_required()}


def choice_of(entry: Entry) -> Choice:
    """Return the part with its defaults, and some value for what must be given."""
    return entry.choose(required(entry))


def fitted(slot: str, name: str) -> Transformer:
    """Assemble the tiny model with one part and its companion."""
    return tiny(**choices(slot, name))


def _n_layers(slot: str) -> int:
    return 3 if slot in ("residual", "sharing") else 2


@functools.cache
def _companion(entry: Entry) -> dict[str, str]:
    choice = {"name": entry.name, **required(entry)}
    own = {"n_layers": _n_layers(entry.slot), entry.slot: choice}
    for other in companions(entry):
        if accepted(**own, **other) is not None:
            return other
    tiny(**own)  # refused, with its reason
    raise AssertionError("a part that is accepted needs no companion")


def _papers(entry: Entry) -> set[str]:
    return set(re.findall(r"arXiv:([\d.]+\d)", entry.source))


def scrambled(model: Transformer) -> Transformer:
    """Set matrices to, and change vectors by, random values that depend on the name alone.

    The outputs of two models that differ in one part then differ only by that part, and no bias is
    0.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = _noise(name, parameter.shape)
            if parameter.ndim <= 1:
                parameter.copy_(parameter * (1 + 0.3 * noise) + 0.2 * noise)
            else:
                parameter.copy_(noise * parameter.size(1) ** -0.5)
    return model


@functools.lru_cache(maxsize=1000)
def _noise(name: str, shape: torch.Size) -> torch.Tensor:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def ids(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    """Return random ids without padding, (rows, length)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCABULARY.n_src, (rows, length), generator=generator)


def alternatives(entry: Entry, option: str) -> Iterator[Any]:
    """Yield values of ``option`` that the part accepts and that are not its default."""
    field = entry.options.model_fields[option]
    literals = itertools.chain.from_iterable(_literals(field.annotation))
    texts = ("a", ("a", "b"), {"a": ("a", "b")})
    plain = (True, False, 2, 3, 4, 12, LARGE, 0.25, 0.75, (0.5, 0.6), *texts)
    reader: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation(), config={"strict": True})
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    for value in (*literals, *plain):
        if accepts(reader, value):
            read = reader.validate_python(value)
            if read != default and type(read) is type(value):
                yield value


def accepts(reader: TypeAdapter[Any], value: object) -> bool:
    """Return whether a value is of a type."""
    try:
        reader.validate_python(value)
    except ValidationError:
        return False
    return True


def _literals(annotation: Any) -> Iterator[tuple[Any, ...]]:
    args = get_args(annotation)
    if args and all(isinstance(arg, str) for arg in args):
        yield args
    for arg in args:
        yield from _literals(arg)
