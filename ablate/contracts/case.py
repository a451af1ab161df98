"""One part in the small model, and the contracts by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from ablate.contracts.faults import ContractError
from ablate.contracts.tiny import fitted, required, scrambled
from ablate.model import Transformer
from ablate.registry import Choice, Entry


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

    def demand(self, is_kept: bool, reason: str) -> None:
        """Raise a `ContractError` with a reason unless a contract is kept."""
        if not is_kept:
            raise ContractError(self.entry, reason)


Contract = Callable[[Case], None]
"""Tests one property of a part.

Raises:
    ContractError: if the part does not have it.
"""


def choice_of(entry: Entry) -> Choice:
    """Return the part with its defaults, and some value for what must be given."""
    return entry.choose(required(entry))
