"""The blessed seeds run again, each compared with its blessed value.

Two runs of one seed share its initialisation and its batches. On one kind of machine they are the
same bit for bit; with other rounding they differ far less than two seeds do. How much they
differ must be measured: the seeds are run again on another kind of machine (``--repeats``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import model_validator

from ablate.gate.check import Context, Scalar
from ablate.gate.evidence import Evidence, UnfitError, difference, machine, values_so_far
from ablate.gate.mean import MeanBlessing, MeanCheck
from ablate.gate.tolerance import PairedPromise, Promise, ReferenceSample
from ablate.wording import counted, listed

_HOW = (
    "run the same seeds on another kind of machine, into another folder of results, and name it "
    "with --repeats"
)


class PairedBlessing(MeanBlessing):
    """The mean of the first seeds; ``std`` is the root mean square of repeats less values."""

    repeats: tuple[float, ...]  # the values of the same seeds on another kind of machine
    other_machine: dict[str, Scalar]  # its kind

    @model_validator(mode="after")
    def _one_repeat_each(self) -> PairedBlessing:
        if len(self.repeats) != len(self.seeds):
            raise ValueError(f"has {len(self.seeds)} seeds but {len(self.repeats)} repeats")
        return self


class Paired(MeanCheck):
    """The mean of the first blessed seeds; a gate runs ``seeds`` of them again."""

    uses_repeats: ClassVar[bool] = True
    promises: ClassVar[type[Promise]] = PairedPromise

    kind: Literal["paired"] = "paired"
    blessed: PairedBlessing | None = None

    @property
    def min_seeds(self) -> int:
        return max(2, self.seeds)

    def too_few_seeds(self, promise: Promise) -> str:
        return f"needs {self.min_seeds} seeds or more, as many as a gate runs again"

    @property
    def fixed_seeds(self) -> tuple[int, ...]:
        return self.blessed.seeds[: self.seeds] if self.blessed else ()

    def forecast(self, evidence: Evidence, context: Context) -> str | None:
        if not evidence.repeats and self.blessed is None:
            raise UnfitError(f"needs to know how far runs of one seed lie apart: {_HOW}")
        return super().forecast(evidence, context)

    def bless(self, evidence: Evidence, context: Context) -> PairedBlessing:
        seeds = context.seeds
        if len(seeds) < self.min_seeds:
            raise UnfitError(self.too_few_seeds(self.promise(context.alpha)))
        values, before = evidence.values(self.row, self.measure, seeds), self.blessed
        if not evidence.repeats and before and (before.seeds, before.values) == (seeds, values):
            repeats, other = before.repeats, before.other_machine  # of an earlier blessing
        else:
            by_seed = values_so_far(evidence.repeats, self.row, self.measure, seeds)
            missing = [seed for seed in seeds if seed not in by_seed]
            if missing:
                raise UnfitError(f"no repeat of {self.row} with {listed(missing)} is done; {_HOW}")
            repeats = tuple(by_seed[seed] for seed in seeds)
            other = self._other_machine(evidence, seeds)
        return self.blessing(seeds, values, context.alpha, repeats=repeats, other=other)

    def blessing(
        self,
        seeds: tuple[int, ...],
        values: tuple[float, ...],
        alpha: float,
        *,
        repeats: tuple[float, ...],
        other: dict[str, Scalar],
    ) -> PairedBlessing:
        return PairedBlessing(
            seeds=seeds,
            values=values,
            repeats=repeats,
            other_machine=other,
            **self.derived_fields(self._sample(values, repeats), alpha),
        )

    def blessed_text(self, mean: str, std: str, n: int) -> str:
        return f"{mean} ({counted(self.seeds, 'seed')}) ± {std} ({counted(n, 'pair')})"

    def sample(self, blessed: MeanBlessing) -> ReferenceSample:
        assert isinstance(blessed, PairedBlessing), "this kind has blessings of its own"
        return self._sample(blessed.values, blessed.repeats)

    def sample_so_far(self, evidence: Evidence, seeds: tuple[int, ...]) -> ReferenceSample | None:
        values = values_so_far(evidence.records, self.row, self.measure, seeds)
        repeats = values_so_far(evidence.repeats, self.row, self.measure, seeds)
        both = [seed for seed in seeds if seed in values and seed in repeats]
        if len(both) < 2:
            return None
        return self._sample([values[seed] for seed in both], [repeats[seed] for seed in both])

    def _sample(self, values: Sequence[float], repeats: Sequence[float]) -> ReferenceSample:
        first, pairs = values[: self.seeds], zip(values, repeats, strict=True)
        square = math.fsum((repeat - value) ** 2 for value, repeat in pairs) / len(values)
        if not math.isfinite(square):
            raise UnfitError(f"{self.measure} is not finite with some seed")
        return ReferenceSample(math.fsum(first) / len(first), math.sqrt(square), len(values))

    def _other_machine(self, evidence: Evidence, seeds: tuple[int, ...]) -> dict[str, Scalar]:
        """Return the one kind of machine of the repeats, which is not that of the blessed runs."""
        other = machine(evidence.repeats[self.row, seeds[0]])
        for seed in seeds:
            repeat, record = (runs[self.row, seed] for runs in (evidence.repeats, evidence.records))
            if repeat.get("is_fallback"):
                raise UnfitError(
                    f"the repeat of {self.row} with seed {seed} was trained with the eager engine, "
                    f"{repeat['engine_note']}; run it again with --fresh, or with --engine eager "
                    "--fresh"
                )
            if machine(repeat) != other:
                kinds = difference(machine(repeat), other)
                raise UnfitError(f"the repeats are of several kinds of machine ({kinds}); {_HOW}")
            if other.get("device") == "cpu" and other == machine(record):
                raise UnfitError(
                    "the repeats are of the same kind of machine, where a run on the CPU repeats "
                    f"bit for bit and tells nothing; {_HOW}"
                )
        return other
