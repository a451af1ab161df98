"""The mean of new seeds is within what chance explains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from ablate.analysis.statistics import Estimate
from ablate.gate.check import Context
from ablate.gate.evidence import Evidence, UnfitError, values_so_far
from ablate.gate.mean import MeanBlessing, MeanCheck
from ablate.gate.tolerance import Promise, ReferenceSample
from ablate.wording import seeds_named


class Statistical(MeanCheck):
    """The mean of new seeds; a gate has none of the seeds that blessed it."""

    promises: ClassVar[type[Promise]] = Promise

    kind: Literal["statistical"] = "statistical"

    @property
    def needs_one_place(self) -> bool:
        """Of quality it does not: new seeds may be of any place, and differ as the blessed ones."""
        return self.measure.partition(".")[0] not in ("dev", "test")

    def refused_seeds(self, seeds: Sequence[int]) -> str | None:
        blessed_seeds = self.blessed.seeds if self.blessed else ()
        again = [seed for seed in seeds if seed in blessed_seeds]
        if again:
            return (
                f"is about new seeds, and {seeds_named(again)} blessed it; a check of the kind "
                "'paired' compares blessed seeds, each with itself"
            )
        return super().refused_seeds(seeds)

    def bless(self, evidence: Evidence, context: Context) -> MeanBlessing:
        values = evidence.values(self.row, self.measure, context.seeds)
        return self.blessing(context.seeds, values, context.alpha)

    def blessing(
        self, seeds: tuple[int, ...], values: tuple[float, ...], alpha: float
    ) -> MeanBlessing:
        if len(values) < 2:
            raise UnfitError(self.too_few_seeds(self.promise(alpha)))
        derived_fields = self.derived_fields(self._sample(values), alpha)
        return MeanBlessing(seeds=seeds, values=values, **derived_fields)

    def sample(self, blessed: MeanBlessing) -> ReferenceSample:
        return self._sample(blessed.values)

    def sample_so_far(self, evidence: Evidence, seeds: tuple[int, ...]) -> ReferenceSample | None:
        estimate = Estimate(values_so_far(evidence.records, self.row, self.measure, seeds))
        if estimate.n < 2 or estimate.sd is None:
            return None
        return ReferenceSample(estimate.mean, estimate.sd, estimate.n)

    def _sample(self, values: tuple[float, ...]) -> ReferenceSample:
        estimate = Estimate(dict(enumerate(values)))
        if estimate.sd is None:
            raise UnfitError(f"{self.measure} is not finite with some seed")
        return ReferenceSample(estimate.mean, estimate.sd, estimate.n)
