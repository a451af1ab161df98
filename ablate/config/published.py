"""Published numbers that stand beside an experiment's own; no run depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, PositiveFloat, model_validator
from pydantic_core import PydanticCustomError

from ablate.config.experiment import refuse_null
from ablate.registry import Frozen

Bleu = Annotated[float, Field(ge=0.0, le=100.0)]
Text = Annotated[str, Field(min_length=1)]


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

    def numbers(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {key: value for key, value in self if value is not None}


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
        return self.rows[row].numbers() if row in self.rows else {}
