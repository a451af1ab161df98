"""The quantity in which rows equal the baseline, and the number of the spec that is solved for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from ablate.config.source import scalar
from ablate.registry import Frozen

_PERCENT = re.compile(r"(\S+?)\s*%")


def _share(value: object) -> object:
    """Return ``1%`` as 0.01."""
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    number = scalar(percent[1]) if percent else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise PydanticCustomError("share", "needs a share of the baseline's, as in 1% or 0.01")
    return number / 100 if percent else float(number)


class Match(Frozen):
    """How rows are made comparable in one respect.

    A row that has as much as the baseline within the tolerance stays as it is; of any other row the
    value at ``via`` becomes the whole number that brings it nearest to the baseline.

    Attributes:
        on: trained parameters, FLOPs of the whole training, or its measured time.
        via: dotted path of the whole number that is solved for.
        tolerance: the largest share by which a row may differ from the baseline.
        multiple_of: the value is a multiple of this.
        rows: those that are matched; all unless given.
        exclude: rows that are not matched.
    """

    on: Literal["params", "flops", "time"]
    via: Annotated[str, Field(min_length=1)]
    tolerance: Annotated[float, BeforeValidator(_share), Field(gt=0.0, lt=1.0)] = 0.01
    multiple_of: PositiveInt = 1
    rows: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    exclude: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_list(self) -> Match:
        if self.rows is not None and self.exclude:
            raise ValueError("'rows' and 'exclude' exclude each other; keep one")
        return self

    @property
    def quantity(self) -> str:
        """Return the name in messages of what is equal."""
        return {"params": "parameters", "flops": "training FLOPs", "time": "training time"}[self.on]

    def named_rows(self) -> Sequence[str]:
        """Return the rows that ``rows`` and ``exclude`` name."""
        return (*(self.rows or ()), *self.exclude)

    def applies_to(self, row: str) -> bool:
        """Return whether a variant is matched."""
        return row not in self.exclude and (self.rows is None or row in self.rows)
