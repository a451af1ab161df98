"""The keys of an experiment beside those of a run: seeds, metrics, published, match, tune."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ablate.config.experiment import PartField, refuse_null
from ablate.config.tree import scalar
from ablate.record import Scores
from ablate.registry import Choice, Frozen

SEED_BITS = 44
"""PyTorch takes seeds of 64 bits; training multiplies a run's by a million and adds the step."""

_IN_RECORDS = {*Scores.__annotations__, "bleu_lc_tok"} - {"bleu", "chrf"}
"""What records hold of every test set beside the metrics of this package."""


def _refuse_number(data: object) -> object:
    if isinstance(data, int):
        raise ValueError("needs a list of seeds, as in [1, 2, 3]")
    return data


def _usable(seeds: tuple[int, ...]) -> tuple[int, ...]:
    repeated = next((seed for seed, n in Counter(seeds).items() if n > 1), None)
    if repeated is not None:
        raise ValueError(f"the seed {repeated} is given twice; remove one")
    if max(seeds, default=0) >= 2**SEED_BITS:
        raise ValueError(f"the seed {max(seeds)} is too large; seeds are below 2^{SEED_BITS}")
    return seeds


def _ascending(looks: tuple[int, ...]) -> tuple[int, ...]:
    if any(second <= first for first, second in pairwise(looks)):
        raise ValueError(f"numbers of seeds ascend, as in [3, 5, 8, 12]; these are {[*looks]}")
    return looks


def _named_once(metrics: tuple[Choice, ...]) -> tuple[Choice, ...]:
    names = [metric.name for metric in metrics]
    for name in names:
        if name in _IN_RECORDS or name.endswith("_signature"):
            raise ValueError(f"{name!r} names another value of records; rename the metric")
        if "." in name:
            raise ValueError(f"{name!r} has a dot, at which columns are split; rename the metric")
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"the metric {repeated!r} is given twice; remove one")
    return metrics


def _share(value: object) -> object:
    """Return ``1%`` as 0.01."""
    percent = re.fullmatch(r"(\S+?)\s*%", value) if isinstance(value, str) else None
    number = scalar(percent[1]) if percent else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise PydanticCustomError("share", "needs a share of the baseline's, as in 1% or 0.01")
    return number / 100 if percent else float(number)


Seeds = Annotated[
    tuple[NonNegativeInt, ...],
    Field(min_length=1),
    BeforeValidator(_refuse_number),
    AfterValidator(_usable),
]
Looks = Annotated[
    tuple[Annotated[int, Field(ge=2)], ...],
    Field(
        max_length=8,
        description="numbers of seeds after each of which rows are judged; rows that are decided "
        "get no more",
    ),
    AfterValidator(_ascending),
]
Metrics = Annotated[
    tuple[Annotated[Choice, PartField("metric", "bleu")], ...],
    BeforeValidator(lambda data: data if isinstance(data, list | tuple) else (data,)),
    AfterValidator(_named_once),
]
Bleu = Annotated[float, Field(ge=0.0, le=100.0)]
Text = Annotated[str, Field(min_length=1)]


class Negligible(Frozen):
    """Half the width of the band around 0 within which a difference is called none.

    Attributes:
        bleu: in points of BLEU.
        nll: in nats per target token.
    """

    bleu: NonNegativeFloat = 1.0
    nll: NonNegativeFloat = 0.02


class Measures(Frozen):
    """The printed numbers of one row; at least one.

    Attributes:
        params: trained parameters, as in 65e6.
        bleu: on the source's test set, 0 to 100.
        bleu_lc_tok: BLEU of lower-cased tokens, 0 to 100.
        ppl: perplexity per target token on the development set.
    """

    params: PositiveFloat | None = None
    bleu: Bleu | None = None
    bleu_lc_tok: Bleu | None = None
    ppl: Annotated[float, Field(ge=1.0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _not_empty(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        refuse_null(data, cls.model_fields)
        if not data:
            known = ", ".join(cls.model_fields)
            raise PydanticCustomError("empty", "is empty; known: {known}", {"known": known})
        return data


class Published(Frozen):
    """Numbers of one source, row by row.

    Attributes:
        source: the publication, and where in it.
        note: what to know before comparing.
        rows: by the names of the experiment's rows.
    """

    source: Text
    note: Text | None = None
    rows: Annotated[dict[str, Measures], Field(min_length=1)]

    def of(self, row: str) -> dict[str, float]:
        """Return the numbers of a row by name; none for a row that was not published."""
        return {key: value for key, value in self.rows.get(row, ()) if value is not None}


class Match(Frozen):
    """How rows are made comparable in one respect.

    A row that has as much as the baseline within the tolerance stays as it is; of any other row the
    value at ``via`` becomes the whole number that brings it nearest to the baseline, or of measured
    times the first that is tried within the tolerance.

    Attributes:
        on: trained parameters, FLOPs of the whole training, or its measured time.
        via: dotted path of the whole number that is solved for.
        tolerance: the largest share by which a row may differ from the baseline.
        multiple_of: the value is a multiple of this.
        rows: those that are matched; all unless given.
        exclude: rows that are not matched.
    """

    on: Literal["params", "flops", "time"]
    via: Text
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

    def applies_to(self, row: str) -> bool:
        return row not in self.exclude and (self.rows is None or row in self.rows)


class TuneKeys(Frozen):
    """The keys of ``tune`` that are no paths.

    ``seeds`` are those of the tuning runs; a row whose best number is the least or the largest one
    tries another beyond it, up to ``extend`` times.
    """

    seeds: Seeds = (1001,)
    extend: Annotated[int, Field(ge=0, le=8)] = 0


class Header(Frozen):
    """The keys of an experiment that are not those of a run.

    Attributes:
        question: answered by the table.
        seeds: every row is trained with each of them; the same seed pairs rows.
        looks: numbers of seeds after which rows that are decided get no more.
        negligible: how small a difference is that does not matter, in BLEU and in nats.
        metrics: what the table has beside BLEU, loss, speed and memory.
        published: numbers of a publication, shown beside those of the table.
        match: what rows have in common with the baseline, and the option that makes them alike.
        tune: values to try for every row, the baseline included; the best on dev is chosen.
        trend: the number by whose doublings differences change from context to context.
    """

    question: str = ""
    seeds: Seeds = (1, 2, 3)
    looks: Looks = ()
    negligible: Negligible = Negligible()
    metrics: Metrics = ()
    published: Published | None = None
    match: Match | None = None
    tune: TuneKeys | None = None
    trend: Text | None = None
