"""What checks of a mean have in common: a promise, the limits that follow from it, messages."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from ablate.analysis.statistics import Estimate
from ablate.gate import tolerance
from ablate.gate.check import (
    SUBJECT,
    Blessing,
    Check,
    Context,
    Directed,
    Loosening,
    Result,
    is_close,
    rounded,
)
from ablate.gate.evidence import Evidence, UnfitError, percentage, to_scale
from ablate.gate.tolerance import Promise, ReferenceSample
from ablate.wording import counted, seeds_named

_BLEU_EFFECT = 1.5


class TooWeakError(UnfitError):
    """The runs cannot promise what a check asks for, but what the one ``instead`` does."""

    def __init__(self, reason: str, instead: MeanCheck) -> None:
        super().__init__(reason)
        self.instead = instead


class MeanBlessing(Blessing):
    """A mean and its tolerance."""

    value: float  # the mean that new runs are compared with
    std: NonNegativeFloat  # what the tolerance follows from
    lowest: float  # limits of the mean of the new runs
    highest: float
    values: Annotated[tuple[float, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _one_each(self) -> MeanBlessing:
        if len(self.values) != len(self.seeds):
            raise ValueError(f"has {len(self.seeds)} seeds but {len(self.values)} values")
        return self


class MeanCheck(Directed):
    """The mean of a few runs is within what chance explains."""

    spends_alpha: ClassVar[bool] = True
    promises: ClassVar[type[Promise]]  # how the new runs relate to the blessed ones

    min_effect: PositiveFloat  # the smallest true loss that must be caught; 1.5 for BLEU
    power: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.9  # the share of gates in which it must be
    blessed: MeanBlessing | None = None

    @model_validator(mode="before")
    @classmethod
    def _effect_of_bleu(cls, data: Any) -> Any:
        measure = str(data.get("measure", "")) if isinstance(data, dict) else ""
        is_bleu = measure.rpartition(".")[2].startswith("bleu")
        return {"min_effect": _BLEU_EFFECT, **data} if is_bleu else data

    @property
    def loosening_terms(self) -> Loosening:
        return {**super().loosening_terms, "power": "lower", "min_effect": "higher"}

    @abstractmethod
    def sample(self, blessed: MeanBlessing) -> ReferenceSample:
        """Return the sample that a blessing holds; refuse values without a standard deviation."""

    @abstractmethod
    def sample_so_far(self, evidence: Evidence, seeds: tuple[int, ...]) -> ReferenceSample | None:
        """Return the sample of the runs that are done; None if they are too few for a std."""

    def promise(self, alpha: float, n_new: int | None = None) -> Promise:
        """Return the promise of a gate of ``n_new`` runs; by default the fewest it allows."""
        return self.promises(alpha, self.min_effect, self.power, n_new or self.seeds)

    def limits(self, sample: ReferenceSample, promise: Promise) -> tuple[float, float]:
        room = tolerance.margins(sample.std, sample.n, promise)
        below, above = (room.loss, room.gain) if self.is_higher_better else (room.gain, room.loss)
        rounding = 1e-12 * abs(sample.mean)  # so that equal values have a mean equal to them
        return sample.mean - below - rounding, sample.mean + above + rounding

    def derived_fields(self, sample: ReferenceSample, alpha: float) -> dict[str, Any]:
        """Return the fields of a blessing that follow from its values, if they keep the promise."""
        promise = self.promise(alpha)
        if sample.std > tolerance.largest_std(sample.n, promise):
            text = f"{counted(sample.n, 'seed')} with a std of {to_scale(sample.std, sample.std)}"
            raise self._too_weak(text, sample.std, sample.n, promise)
        low, high = self.limits(sample, promise)
        if self.is_score and low <= 0:
            raise UnfitError(
                f"{self.measure} is {to_scale(sample.mean, sample.std)}, so low that a model "
                "which translates nothing would pass; train for longer, or check another measure"
            )
        room = tolerance.margins(sample.std, sample.n, promise)
        steps = tolerance.margins(1 / promise.standard_error(sample.n), sample.n, promise)
        worse, better = ("below", "above") if self.is_higher_better else ("above", "below")
        derived = (
            f"the mean of {promise.runs} may lie {to_scale(room.loss, room.loss)} {worse} and "
            f"{to_scale(room.gain, room.gain)} {better}: {steps.loss:.3f} and {steps.gain:.3f} x "
            f"std x {promise.standard_error_formula(sample.n)}, Student's t with "
            f"{promise.df(sample.n)} degrees of freedom, which chance exceeds in "
            f"{percentage(promise.alpha)} of gates; a true loss of {promise.min_effect:g} is "
            f"caught in {percentage(tolerance.power(sample.std, sample.n, promise))}"
        )
        return {
            "value": rounded(sample.mean),
            "std": rounded(sample.std),
            "lowest": rounded(low),
            "highest": rounded(high),
            "derived": derived,
            "terms": self.terms(alpha),
        }

    def forecast(self, evidence: Evidence, context: Context) -> str | None:
        n, promise = len(context.seeds), self.promise(context.alpha)
        if n < self.min_seeds:
            raise UnfitError(self.too_few_seeds(promise))
        most = tolerance.largest_std(n, promise)
        sample = self.sample_so_far(evidence, context.seeds)
        if sample is None:
            return (
                f"{counted(n, 'seed')} can promise to catch a loss of {self.min_effect:g} if their "
                f"std is at most {to_scale(most, most)}"
            )
        std = to_scale(sample.std, sample.std)
        so_far = f"{counted(sample.n, 'seed')} so far, with a std of {std}"
        if tolerance.lowest_std(sample.std, promise.df(sample.n)) > most:
            confidence = f"{percentage(tolerance.CONFIDENCE)} confidence"
            text = f"{so_far}; with {confidence}, {counted(n, 'seed')}"
            raise self._too_weak(text, sample.std, n, promise)
        effect = tolerance.smallest_effect(sample.std, n, promise)
        return (
            f"{so_far}; with that, {counted(n, 'seed')} can promise to catch a loss of "
            f"{to_scale(effect, effect)}, and {self.min_effect:g} is asked"
        )

    def derive_again(self, alpha: float) -> Blessing:
        assert self.blessed is not None, "only what is blessed is derived again"
        derived = self.derived_fields(self.sample(self.blessed), alpha)
        return self.blessed.model_copy(update=derived)

    def allowed(self, context: Context) -> tuple[str, str]:
        blessed, low, high, scale = self._limits_now(context)
        value, std = (to_scale(each, scale) for each in (blessed.value, blessed.std))
        reference = self.blessed_text(value, std, len(blessed.values))
        return reference, f"{to_scale(low, scale)} to {to_scale(high, scale)}"

    def blessed_text(self, mean: str, std: str, n: int) -> str:
        """Return a blessed mean, and the std of ``n`` seeds, in words."""
        return f"{mean} ± {std} ({counted(n, 'seed')})"

    def result(self, evidence: Evidence, context: Context) -> Result:
        blessed, low, high, scale = self._limits_now(context)
        seeds = self.seeds_to_judge(context.seeds)
        mean = Estimate(dict(enumerate(evidence.values(self.row, self.measure, seeds)))).mean
        measured = f"{to_scale(mean, scale)} ({counted(len(seeds), 'seed')})"
        if low <= mean <= high:
            return Result(measured, None)
        side, excess = ("low", low - mean) if mean < low else ("high", mean - high)
        beyond = f"{to_scale(excess, excess)} too {side}" if math.isfinite(mean) else ""
        failure = (
            f"{self.measure} of {self.row} is {to_scale(mean, scale)}, the mean of "
            f"{seeds_named(seeds)}; the reference is {to_scale(blessed.value, scale)} and "
            f"tolerates {self.allowed(context)[1]}: {beyond or 'it is no number'}"
        )
        return Result(measured, failure)

    def _limits_now(self, context: Context) -> tuple[MeanBlessing, float, float, float]:
        assert self.blessed is not None, "only what is blessed is judged"
        n_new = len(self.seeds_to_judge(context.seeds))
        low, high = self.limits(self.sample(self.blessed), self.promise(context.alpha, n_new))
        return self.blessed, low, high, self.blessed.std and high - low

    def loosened(self, old: Check) -> Iterator[str]:
        yield from super().loosened(old)
        before, after = old.blessed, self.blessed
        if not isinstance(before, MeanBlessing) or after is None:
            return
        if any(before.terms.get(term) != after.terms.get(term) for term in SUBJECT):
            return
        for side, was, would in (
            ("below", before.value - before.lowest, after.value - after.lowest),
            ("above", before.highest - before.value, after.highest - after.value),
        ):
            if would > was and not is_close(would, was):
                wider = f"from {to_scale(was, was)} to {to_scale(would, would)}"
                yield f"the tolerance {side} would widen {wider}"

    @property
    def min_seeds(self) -> int:
        return 2

    def too_few_seeds(self, promise: Promise) -> str:
        """Return why fewer seeds than `min_seeds` cannot bless it."""
        enough = tolerance.seeds_needed(promise.min_effect / 10, promise)
        assert enough is not None, "few seeds suffice for so small a standard deviation"
        return (
            f"one seed has no std; even a std of a tenth of min_effect takes "
            f"{max(enough, self.min_seeds)} seeds"
        )

    def _too_weak(self, text: str, std: float, n: int, promise: Promise) -> TooWeakError:
        most = tolerance.largest_std(n, promise)
        effect = tolerance.rounded_up(tolerance.smallest_effect(std, n, promise))
        needed = tolerance.seeds_needed(std, promise)
        ways = [f"a std of at most {to_scale(most, most)}"]
        ways += [f"a reference of {needed} seeds"] if needed else []
        ways.append(f"min_effect: {effect:g}")
        return TooWeakError(
            f"{text} cannot promise a gate of {counted(promise.n_new, 'seed')} that catches a "
            f"loss of {promise.min_effect:g} in {percentage(promise.power)} of cases and raises a "
            f"false alarm in {percentage(promise.alpha)}; it takes {', or '.join(ways)}",
            self.model_copy(update={"min_effect": effect}),
        )
